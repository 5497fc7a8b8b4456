"""The variables that jobs with an image want on a site, each with its reason: for job scripts and modules."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from lumiimg.resolve.stack import read_by_srun

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lumiimg.catalog.launch import SiteVariable
    from lumiimg.catalog.sites import Site

REFERENCE = re.compile(r"\$(?:\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*))")
_OF_RANK = {"SLURM_LOCALID", "SLURM_PROCID", "LOCAL_RANK", "RANK"}


class SetIn(StrEnum):
    """Where a variable gets its value."""

    BATCH = "batch"
    """Outside of the container: srun reads it there, whatever an image sets."""
    NODE = "node"
    """In the container, so that nothing that the image sets itself comes over it; the node's number is known there."""
    RANK = "rank"
    """In each rank: it names the rank's number."""


@dataclass(frozen=True, slots=True)
class JobVariable:
    """A variable for a job, and why."""

    name: str
    """Of it."""
    value: str
    """As a shell reads it."""
    why: str
    """A sentence."""
    source: str = ""
    """Where that is from."""
    folder: str | None = None
    """To be made first, as a shell reads it."""
    literal: bool = False

    @classmethod
    def of_site(cls, item: SiteVariable) -> JobVariable:
        """Return one of a site's file."""
        return cls(item.name, item.value, item.because, item.source, item.folder)

    @property
    def set_in(self) -> SetIn:
        """Where it gets its value: batch script, container, or each rank."""
        if read_by_srun(self.name):
            return SetIn.BATCH
        return SetIn.RANK if not self.literal and self.names & _OF_RANK else SetIn.NODE

    @property
    def names(self) -> set[str]:
        """Names of the variables that its value names."""
        return {match[1] or match[2] for match in REFERENCE.finditer(self.value)}

    @property
    def reason(self) -> str:
        """Why, with the source."""
        return f"{self.why} ({self.source})" if self.source else self.why


def caches_of(site: Site | None, variables: Iterable[JobVariable]) -> str | None:
    """Return the site's folder for caches of a job, on its node; None where no variable is below it."""
    return site.caches if site is not None and any(site.is_cache(item.value) for item in variables) else None
