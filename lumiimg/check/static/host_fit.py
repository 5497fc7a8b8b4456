"""The boundary between an image and a machine: what comes from where, which versions meet there, what margin is left.

Nothing is run: the process of RCCL and its plugin is modelled with the files of the image and, where a host snapshot is
given, with what `lumiimg.host.bind` would bind into it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from lumiimg.check.answer import Answer, decide
from lumiimg.check.registry import Findings
from lumiimg.check.static.commands import with_commands
from lumiimg.check.static.gpu_code import GpuAccount, findings_of, judge_gpu_code
from lumiimg.check.static.host_binds import with_host
from lumiimg.check.static.variables import doubted
from lumiimg.elf.system import glibc_version
from lumiimg.fabric.names import LIBFABRIC, PRIVATE
from lumiimg.fabric.path import Fabric
from lumiimg.fabric.provider import PROVIDER_PATH
from lumiimg.findings import Code, Finding, Level, Remedy, Severity
from lumiimg.host.bind import solve
from lumiimg.host.bind_trial import BindPlan, Demand, attempt
from lumiimg.host.carried_account import CarriedAccount, account_of
from lumiimg.host.container_view import variable_of
from lumiimg.host.engine_constraints import complete
from lumiimg.host.manifest import BindManifest, Loaded
from lumiimg.host.margins import Margin, margins_of
from lumiimg.host.rccl_process import demand_without_rccl
from lumiimg.host.root_queries import names_in
from lumiimg.host.snapshot_tree import SnapshotTree
from lumiimg.image import Image, RootFileSystem
from lumiimg.resolve.rules import RuleOutcome, RuleResult

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from lumiimg.check.context import ImageInContext
    from lumiimg.check.static.result import StaticResult
    from lumiimg.elf.rules import LoaderSettings

_AGAINST = frozenset({Severity.PROBLEM, Severity.UNKNOWN})
_TORCH = re.compile(r"torch-([0-9][^-/]*)\.dist-info")
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


def check_host_fit(
    context: ImageInContext, static: StaticResult, *, with_site: bool = False, with_gpu: bool = True
) -> HostFit:
    """Return what comes from where for an image whose files are checked already.

    `with_site`: with what the site's jobs have bound on top. `with_gpu`: with what the machine's GPU makes of its code.
    """
    image, environment, snapshot = context.image, context.read_by_engine, context.snapshot
    settings = context.inside.settings
    manifest: BindManifest | None = None
    loaded: tuple[Loaded, ...] = ()
    missing: tuple[str, ...] = ()
    provider_path = static.provider_path or variable_of(PROVIDER_PATH, image, environment)
    if static.job is None:
        demand = demand_without_rccl(image.root, provider_path)
    else:
        demand = Demand(static.job, static.path.plugin_files, static.path.accepts, provider_path)
    if demand is not None and snapshot is not None:
        manifest = solve(image.root, settings, demand, snapshot, RootFileSystem(SnapshotTree(snapshot)))
        manifest = complete(manifest, snapshot, image.root, context.site if with_site else None)
        loaded = manifest.loaded
        static = with_host(static, manifest, host=snapshot.host)
    if demand is not None and manifest is None:
        loaded, missing = _alone(image.root, settings, demand)
    margins = tuple(margins_of(loaded))
    carried = account_of(image.root, settings, demand, manifest, snapshot)
    files = (item.object.path for item in loaded)
    gpu = judge_gpu_code(image, environment, files, context.site, snapshot) if with_gpu else None
    found = Findings(Level.STATIC, [*doubted(findings_of(gpu), context.variables), *static.findings])
    if carried.sentence is not None:
        found.add(Code.BIND_MANIFEST, Severity.INFO, carried.sentence)
    static = replace(static, findings=tuple(found.found))
    return HostFit(
        image=str(context.path),
        host=snapshot.host if snapshot else None,
        static=static,
        glibc=glibc_version(image.root),
        host_glibc=snapshot.glibc if snapshot else None,
        torch=_torch(image, static),
        manifest=manifest,
        loaded=loaded,
        missing=missing,
        margins=margins,
        carried=carried,
        gpu=gpu,
    )


def _alone(
    root: RootFileSystem, settings: LoaderSettings, demand: Demand
) -> tuple[tuple[Loaded, ...], tuple[str, ...]]:
    """Return (what the process has with the image's files alone, names that it lacks)."""
    trial = attempt(root, settings, demand, root, BindPlan("the image's own files"))
    names = demand.names or (LIBFABRIC,)
    lacking = [item.name for item in trial.outcome.missing if item.name not in names]
    lacking += names[:1] if not trial.opened else ()
    return tuple(Loaded(item, None) for item in trial.objects), tuple(dict.fromkeys(lacking))


def _torch(image: Image, static: StaticResult) -> str | None:
    """Return the version of the torch whose process it is, from its metadata's name."""
    package = static.job.package if static.job else None
    names = names_in(image.root, package.rpartition("/")[0]) if package else []
    return next((found[1] for name in names if (found := _TORCH.fullmatch(name))), None)
