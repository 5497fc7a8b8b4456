"""The boundary between an image and a machine: what comes from where, which versions meet there, what margin is left.

Nothing is run: the process of RCCL and its plugin is modelled with the files of the image and, where a host snapshot is
given, with what `lumiimg.host.bind` would bind into it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from lumiimg.check.answer import decide
from lumiimg.check.static.commands import with_commands
from lumiimg.check.static.process import StaticResult  # noqa: TC001 - as above
from lumiimg.fabric.path import Fabric
from lumiimg.findings import Answer, Code, Finding, Level, Remedy, Severity
from lumiimg.host.carried_account import CarriedAccount  # noqa: TC001 - as above
from lumiimg.host.manifest import BindManifest, Loaded, Refusal, Variable
from lumiimg.host.margins import Margin  # noqa: TC001 - as above
from lumiimg.resolve.gpu_account import GpuAccount  # noqa: TC001 - the codec reads the types of the fields

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lumiimg.check.context import ImageInContext

_AGAINST = frozenset({Severity.PROBLEM, Severity.UNKNOWN})
_WOULD = {Severity.PROBLEM: "would", Severity.UNKNOWN: "perhaps would"}

DECISIONS: dict[Answer, Literal["ok", "refused", "unknown"]] = {
    Answer.NO_OBSTACLE: "ok",
    Answer.NO: "refused",
    Answer.UNDECIDED: "unknown",
}


@dataclass(frozen=True, slots=True)
class HostFit:
    """The account of one image, on one machine or without any."""

    image: str
    """As it was named."""
    host: str | None
    """Node of the snapshot; null without one."""
    static: StaticResult
    glibc: str | None
    """The image's; null where it is not known."""
    host_glibc: str | None
    """The host's; null where it is not known, or there is no snapshot."""
    torch: str | None
    """Its version with the local part; null where there is none."""
    manifest: BindManifest | None
    """None without a host, or without a process to look at."""
    loaded: tuple[Loaded, ...]
    """The process, in the loader's order."""
    missing: tuple[str, ...]
    """Names that nothing serves."""
    margins: tuple[Margin, ...]
    """Pairs of versions that meet."""
    carried: CarriedAccount
    """The bind manifest of the image itself, beside what was found."""
    gpu: GpuAccount | None = None
    """Whether the GPU of --host, else of --site, takes the image's code; null where none of AMD's is known."""

    @property
    def fabric(self) -> Fabric:
        """Where the fabric's libraries come from. Of a module: null without a snapshot."""
        return self.manifest.fabric if self.manifest else Fabric.NONE

    @property
    def answer(self) -> Answer:
        """What the files come to: what a check of them answers."""
        return decide(self.static.findings, self.static.path, level=Level.STATIC, level_was_asked_for=True)

    @property
    def decision(self) -> Literal["ok", "refused", "unknown"]:
        """The answer, in the words that JSON has for it."""
        return DECISIONS[self.answer]

    @property
    def refusals(self) -> tuple[Refusal, ...]:
        """Each attempt at binds that does not load, where none does."""
        return self.manifest.refusals if self.manifest and self.fabric is Fabric.NONE else ()

    @property
    def notes(self) -> tuple[str, ...]:
        """What is worth knowing and changes nothing."""
        return self.manifest.notes if self.manifest else ()

    @property
    def against(self) -> tuple[Finding, ...]:
        """What stands, or may stand, against it: first that no binds load, then other obstacles."""
        against = [finding for finding in self.static.findings if finding.severity in _AGAINST]
        against.sort(key=lambda finding: (finding.id is not Code.BIND_REFUSED, finding.severity is Severity.UNKNOWN))
        return tuple(against)

    @property
    def remedies(self) -> tuple[Remedy, ...]:
        """What to do, a command or a sentence each."""
        return tuple(dict.fromkeys(remedy for finding in self.against for remedy in finding.remedy))

    def concluded(self, context: ImageInContext) -> HostFit:
        """Return it with the commands that mend what is lacking."""
        return self.with_findings(with_commands(context, self.static.findings))

    def with_findings(self, findings: tuple[Finding, ...]) -> HostFit:
        """Return it with other findings."""
        return replace(self, static=replace(self.static, findings=findings))


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
