"""The boundary between an image and a machine: what comes from where, which versions meet there, what margin is left.

Nothing is run: the process of RCCL and its plugin is modelled with the files of the image and, where a host snapshot is
given, with what `lumiimg.host.bind` would bind into it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from lumiimg.check.answer import Answer, decide
from lumiimg.check.static.commands import with_commands
from lumiimg.fabric.names import PRIVATE
from lumiimg.fabric.path import Fabric
from lumiimg.findings import Code, Finding, Level, Remedy, Severity
from lumiimg.resolve.rules import RuleOutcome, RuleResult

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from lumiimg.check.context import ImageInContext
    from lumiimg.check.static.gpu_code import GpuAccount
    from lumiimg.check.static.process import StaticResult
    from lumiimg.host.carried_account import CarriedAccount
    from lumiimg.host.manifest import BindManifest, Loaded
    from lumiimg.host.margins import Margin

_AGAINST = frozenset({Severity.PROBLEM, Severity.UNKNOWN})
_FREE = "nothing that keeps RCCL off the fabric"
_SHOWN = 3
_OUTCOMES = {
    Severity.OK: RuleOutcome.OK,
    Severity.UNKNOWN: RuleOutcome.UNKNOWN,
    Severity.PROBLEM: RuleOutcome.REFUSED,
}
_OF_VERSIONS = {"GLIBC": "glibc-gate", "FABRIC": "libfabric-api", "LIBCXI": "libcxi"}

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
    def rules(self) -> tuple[RuleResult, ...]:
        """What the findings come to, each attempt at binds that does not load, and all versions that were compared."""
        return tuple(_rules(self.static.findings, self.manifest, self.margins))

    @property
    def remedies(self) -> tuple[Remedy, ...]:
        """What to do, a command or a sentence each."""
        against = [finding for finding in self.static.findings if finding.severity in _AGAINST]
        against.sort(key=lambda finding: (finding.id is not Code.BIND_REFUSED, finding.severity is Severity.UNKNOWN))
        return tuple(dict.fromkeys(remedy for finding in against for remedy in finding.remedy))

    def concluded(self, context: ImageInContext) -> HostFit:
        """Return it with the commands that mend what is lacking."""
        return self.with_findings(with_commands(context, self.static.findings))

    def with_findings(self, findings: tuple[Finding, ...]) -> HostFit:
        """Return it with other findings."""
        return replace(self, static=replace(self.static, findings=findings))


def words_of(rule: RuleResult) -> str:
    """Return what a rule says; of a finding, its sentence."""
    return rule.have if rule.need == _FREE else f"needs {rule.need}: {rule.have}"


def _rules(
    findings: Iterable[Finding], manifest: BindManifest | None, margins: Iterable[Margin]
) -> Iterator[RuleResult]:
    for found in findings:
        if found.severity in _OUTCOMES and found.id is not Code.BIND_REFUSED:  # the attempts say that
            because = found.cause or "; ".join(found.evidence[:_SHOWN])
            source = found.source or "lumiimg"
            yield RuleResult(found.id, _OUTCOMES[found.severity], _FREE, found.summary, because, source)
    if manifest is not None and manifest.fabric is Fabric.NONE:
        outcome = RuleOutcome.REFUSED if manifest.host_has_fabric else RuleOutcome.UNKNOWN
        for refusal in manifest.refusals:
            name = "glibc-gate" if refusal.need.startswith("GLIBC_") else "library"
            because = f"{refusal.attempt}: {' -> '.join(refusal.chain)}; {refusal.words}"
            source = "glibc elf/dl-load.c, elf/dl-version.c, modelled"
            yield RuleResult(name, outcome, refusal.need, refusal.have, because, source)
        if not manifest.host_has_fabric:
            need, have = "a libfabric with the cxi provider", "the snapshot of the host has none"
            because = "was it taken on a compute node, with the modules of the job loaded?"
            yield RuleResult("host-fabric", outcome, need, have, because, "libfabric prov/cxi/configure.m4")
        return
    for margin in margins:
        if margin.crosses:
            name, need = _OF_VERSIONS.get(margin.family, "versions"), f"{margin.needed} of {margin.provider_side}"
            have, because = f"up to {margin.offered}", f"{margin.library_side} needs it"
            source = "glibc elf/dl-version.c: names of versions are compared before any code runs"
            yield RuleResult(name, RuleOutcome.OK, need, have, because, source)


def without_ours(environment: Mapping[str, str]) -> dict[str, str]:
    """Leave out a search path that an earlier manifest, perhaps of another image, has put into the user's shell."""
    return {
        name: value
        for name, value in environment.items()
        if not (name.endswith("ENV_LD_LIBRARY_PATH") and value.split(":")[0] == PRIVATE)
    }
