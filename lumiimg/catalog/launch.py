"""How jobs come to run on a site, beside the program: modules, options of the scheduler, annotations of the engine."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lumiimg.catalog.toml_table import Table

_MODULE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+/-]{0,127}")
_OPTION = re.compile(r"-[A-Za-z0-9_.,:=/+@ -]{1,199}")
"""What a comment of a script hands to a scheduler: a word or two, nothing that a shell or a scheduler would expand."""
_KEY = re.compile(r"[A-Za-z0-9_-]{1,64}(\.[A-Za-z0-9_-]{1,64}){1,9}")


class Jobs(StrEnum):
    """For which jobs something is."""

    ANY = "any"
    ONE = "one"
    """Those on one node."""
    SEVERAL = "several"
    """Those on several nodes."""

    @property
    def note(self) -> str:
        """For which jobs, as a comment of a shell behind a line; nothing where it is for all."""
        return {Jobs.ONE: "  # on one node", Jobs.SEVERAL: "  # on several nodes"}.get(self, "")

    def fit(self, nodes: int) -> bool:
        """Whether a job on this number of nodes is one of them."""
        return self is not (Jobs.SEVERAL if nodes == 1 else Jobs.ONE)


@dataclass(frozen=True, slots=True)
class SiteModule:
    """A module that job scripts load there."""

    name: str
    """For `module load`."""
    because: str
    """Why."""
    source: str
    """Where that is from."""


@dataclass(frozen=True, slots=True)
class SiteOption:
    """An option of the scheduler that jobs want there: `-l place=scatter`."""

    value: str
    """As the scheduler takes it."""
    nodes: Jobs
    """For which jobs it is."""
    because: str
    """Why."""
    source: str
    """Where that is from."""


@dataclass(frozen=True, slots=True)
class SiteAnnotation:
    """What an engine's file says of a container to the engine's hooks: `com.hooks.cxi.enabled = "true"`."""

    key: str
    """Of the environment definition file."""
    value: str
    """Of it."""
    nodes: Jobs
    """For which jobs it is."""
    because: str
    """Why."""
    source: str
    """Where that is from."""


def read_jobs(entry: Table) -> Jobs:
    """Return what an entry says of the jobs that it is for; a fault is noted with the others."""
    return Jobs(entry.choice("nodes", tuple(Jobs)) or Jobs.ANY)


def read_module(entry: Table) -> SiteModule:
    """Read `[[module]]`."""
    entry.match("name", _MODULE, "no name of a module")
    return entry.fill(SiteModule)


def read_option(entry: Table) -> SiteOption:
    """Read `[[option]]`."""
    entry.match("value", _OPTION, "no option like `-l place=scatter`")
    return entry.fill(SiteOption, nodes=read_jobs(entry))


def read_annotation(entry: Table) -> SiteAnnotation:
    """Read `[[annotation]]`."""
    entry.match("key", _KEY, "no key like com.hooks.cxi.enabled")
    return entry.fill(SiteAnnotation, nodes=read_jobs(entry))
