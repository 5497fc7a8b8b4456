"""An image beside a machine: the check of its files with the account of its libraries, and what is bound."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from lumiimg.fabric.path import Fabric
from lumiimg.findings import Severity
from lumiimg.host.manifest import BindManifest, Variable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lumiimg.check.pipeline import CheckReport
    from lumiimg.check.static.host_fit import HostFit

_WOULD = {Severity.PROBLEM: "would", Severity.UNKNOWN: "perhaps would"}


@dataclass(frozen=True, slots=True)
class ExplainedImage:
    """What comes from where in the process of RCCL and its plugin, which versions meet, what margin is left."""

    report: CheckReport
    of: HostFit
    """Versions of the C library."""
    nearest: None = None
    """Always null: of a request, see explain-request."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What is worth knowing and changes nothing."""
        return self.of.manifest.notes if self.of.manifest else ()


@dataclass(frozen=True, slots=True)
class BoundImage:
    """The least list of binds and variables for an image on a machine, or why there is none."""

    of: HostFit

    @property
    def manifest(self) -> BindManifest:
        """What is bound; nothing where none of it loads."""
        return self.of.manifest or BindManifest(Fabric.NONE)

    @property
    def is_refused(self) -> bool:
        """Whether there is nothing that can be bound."""
        return self.manifest.fabric is Fabric.NONE

    @property
    def decision(self) -> Literal["ok", "refused", "unknown"]:
        """About the binds: `ok`, each library that is opened is found, in versions that fit."""
        return self.of.decision if self.is_refused else "ok"

    @property
    def environment(self) -> dict[str, Variable]:
        """Variables to set for the container, by name."""
        return {variable.name: variable for variable in self.manifest.variables}

    @property
    def doubts(self) -> tuple[str, ...]:
        """What stands, or may stand, against RCCL's using what is bound; then `explain` does not say `ok`."""
        return () if self.is_refused else tuple(text for _, text in doubts_of_binds(self.of))


def doubts_of_binds(fit: HostFit) -> Iterator[tuple[Severity, str]]:
    """Yield what keeps RCCL from using what is bound, and where the manifest in the image differs from it."""
    for finding in fit.static.findings:
        if would := _WOULD.get(finding.severity):
            yield finding.severity, f"with these binds RCCL {would} not use the fabric: {finding.summary}"
    if fit.carried.against and fit.carried.sentence:
        yield Severity.INFO, fit.carried.sentence
