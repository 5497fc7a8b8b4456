"""The boundary between an image and a machine: what comes from where, which versions meet there, what margin is left.

Nothing is run: the process of RCCL and its plugin is modelled with the files of the image and, where a host snapshot is
given, with what `lumiimg.host.bind` would bind into it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from lumiimg.check.answer import Answer
from lumiimg.check.context import open_for_check
from lumiimg.check.static.commands import ON_NODE, SCAN, bind_command, concluded, site_of, with_commands, without_host
from lumiimg.check.static.comparisons import is_finding, rules_of
from lumiimg.check.static.files import check_static
from lumiimg.check.static.gpu_code import GpuAccount, GpuOwner, findings_of, gpu_owner, judge_gpu_code
from lumiimg.check.static.host_binds import remedies, with_carried, with_host
from lumiimg.check.static.machine import with_machine
from lumiimg.check.static.variables import doubted, read_variables
from lumiimg.elf.system import glibc_version
from lumiimg.fabric.names import LIBFABRIC, PRIVATE
from lumiimg.fabric.path import Fabric
from lumiimg.fabric.provider import PROVIDER_PATH
from lumiimg.findings import Advice, Code, Remedy, Severity, first_command
from lumiimg.host.bind import solve
from lumiimg.host.bind_trial import Demand
from lumiimg.host.carried_account import CarriedAccount, account_of
from lumiimg.host.container_view import LoaderMachine, read_on, see_inside, variable_of
from lumiimg.host.engine_constraints import complete
from lumiimg.host.job_process import begin
from lumiimg.host.manifest import BindManifest, Loaded
from lumiimg.host.margins import Margin, margins_of
from lumiimg.host.rccl_process import demand_without_rccl
from lumiimg.host.root_queries import names_in
from lumiimg.host.snapshot_tree import SnapshotTree
from lumiimg.image import Image, RootFileSystem
from lumiimg.resolve.rules import RuleOutcome, RuleResult
from lumiimg.wording import operand, typed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from lumiimg.catalog.sites import Site
    from lumiimg.check.static.evidence import StaticResult
    from lumiimg.elf.rules import LoaderSettings
    from lumiimg.host.snapshot import Snapshot

_TORCH = re.compile(r"torch-([0-9][^-/]*)\.dist-info")


DECISIONS: dict[Answer, Literal["ok", "refused", "unknown"]] = {
    Answer.NO_OBSTACLE: "ok",
    Answer.NO: "refused",
    Answer.UNDECIDED: "unknown",
}


@dataclass(frozen=True, slots=True)
class Boundary:
    """The account of one image, on one machine or without any."""

    image: str
    """As it was named."""
    host: str | None
    """Node of the snapshot; null without one."""
    static: StaticResult
    glibc: str | None
    host_glibc: str | None
    torch: str | None
    """Its version with the local part; null where there is none."""
    manifest: BindManifest | None
    """None without a host, or without a process to look at."""
    loaded: tuple[Loaded, ...]
    """The process, in the loader's order."""
    missing: tuple[str, ...]
    """Names that nothing serves."""
    rules: tuple[RuleResult, ...]
    """All comparisons."""
    margins: tuple[Margin, ...]
    """Pairs of versions that meet."""
    carried: CarriedAccount
    """The bind manifest of the image itself, beside what was found."""
    gpu: GpuAccount | None = None
    """Whether the GPU of --host, else of --site, takes the image's code; null where none of AMD's is known."""
    machine: tuple[str, ...] | None = None
    """The options that name the machine, for commands; None: these are for no machine and image in particular."""

    @property
    def fabric(self) -> Fabric:
        """Where the fabric's libraries come from."""
        return self.manifest.fabric if self.manifest else Fabric.NONE

    @property
    def answer(self) -> Answer:
        """Whether everything on the way from RCCL to the NIC loads; undecided where a host snapshot would decide."""
        found = {rule.outcome.severity for rule in self.rules}
        if Severity.PROBLEM in found:
            return Answer.NO
        is_open = self.fabric is Fabric.NONE or Severity.UNKNOWN in found
        return Answer.UNDECIDED if is_open else Answer.NO_OBSTACLE

    @property
    def decision(self) -> Literal["ok", "refused", "unknown"]:
        """The answer, in the words that JSON has for it."""
        return DECISIONS[self.answer]

    @property
    def remedies(self) -> tuple[Remedy, ...]:
        """What to do, a command or a sentence each."""
        refused = {rule.id for rule in self.rules if rule.outcome is RuleOutcome.REFUSED}
        findings = {rule.id for rule in self.rules if is_finding(rule)}
        found: list[Remedy] = []
        if self.manifest is not None and self.manifest.fabric is Fabric.NONE and refused:
            found += remedies(self.manifest.refusals)
        for finding in self.static.findings:
            is_told = finding.severity is Severity.PROBLEM and finding.id is not Code.BIND_REFUSED
            if is_told or finding.id is Code.PLUGIN_SYMBOLS or finding.id in findings:
                found += finding.remedy
        if self.answer is Answer.UNDECIDED and (self.manifest is None or not self.manifest.host_has_fabric):
            found.append(Remedy("then --host host.json", SCAN, "on a compute node, with the job's modules"))
        if self.machine is not None:
            found = [*concluded(found, operand(self.image), site_of(self.machine))]
        return tuple(dict.fromkeys(found))

    @property
    def advice(self) -> Advice:
        """The command of the first remedy, else the one to go on with; why is a part of the answer."""
        machine = self.machine or ()
        if self.answer is Answer.NO_OBSTACLE and self.manifest is not None:
            return Advice(None, bind_command(operand(self.image), machine))
        command = first_command(self.remedies[:1])
        if self.answer is Answer.UNDECIDED and (self.manifest is None or command == SCAN):
            again = typed(["lumiimg", "explain", operand(self.image), *without_host(machine), "--host", "host.json"])
            return Advice(None, f"{SCAN} && {again}", ON_NODE)
        return Advice(None, command)


def study(
    path: Path,
    environment: Mapping[str, str],
    snapshot: Snapshot | None,
    site: Site | None = None,
    program: str | None = None,
    *,
    machine: Sequence[str] = (),
    built_with: Sequence[str] = (),
) -> Boundary:
    """Return the account of an image; `environment` is the user's, variables of it reach the container.

    The manifest in it has what the engine of the host and a site need on top. `program`: what jobs start, by its path
    or name; None for the Python on the image's PATH. `machine` are the options that name the machine,
    `built_with` those that the image was built with.

    Raises BadInputError for what is not an image.
    """
    environment = read_on(snapshot, without_ours(environment))
    with open_for_check(path, environment, snapshot) as context:
        image = context.image
        static = with_machine(image, check_static(image, environment, program), snapshot, site)
        owner = gpu_owner(site, snapshot)
        found = study_open(str(path), image, environment, snapshot, static, site, owner=owner)
    findings = with_commands(found.static.findings, operand(str(path)), built_with, machine)
    of_program = ("--program", program) if program is not None else ()
    return replace(found, static=replace(found.static, findings=findings), machine=(*machine, *of_program))


def without_ours(environment: Mapping[str, str]) -> dict[str, str]:
    """Leave out a search path that an earlier manifest, perhaps of another image, has put into the user's shell."""
    return {
        name: value
        for name, value in environment.items()
        if not (name.endswith("ENV_LD_LIBRARY_PATH") and value.split(":")[0] == PRIVATE)
    }


def study_open(
    path: str,
    image: Image,
    environment: Mapping[str, str],
    snapshot: Snapshot | None,
    static: StaticResult,
    site: Site | None = None,
    *,
    owner: GpuOwner | None = None,
) -> Boundary:
    """Return the account of an image whose files are checked already.

    `site`: what its jobs have bound on top; `owner`: whose GPU is to take the image's code.
    """
    machine = LoaderMachine.of(snapshot) if snapshot else LoaderMachine()
    settings = see_inside(image, environment, machine=machine).settings
    manifest: BindManifest | None = None
    loaded: tuple[Loaded, ...] = ()
    missing: tuple[str, ...] = ()
    demand = demand_of(image, static, static.provider_path or variable_of(PROVIDER_PATH, image, environment))
    if demand is not None and snapshot is not None:
        manifest = solve(image.root, settings, demand, snapshot, RootFileSystem(SnapshotTree(snapshot)))
        manifest = complete(manifest, snapshot, image.root, site)
        loaded = manifest.loaded
        static = with_host(static, manifest, host=snapshot.host)
    if demand is not None and manifest is None:
        loaded, missing = _alone(image.root, settings, demand)
    margins = tuple(margins_of(loaded))
    carried = account_of(image.root, settings, demand, manifest, snapshot)
    static = with_carried(static, carried)
    gpu = judge_gpu_code(image, environment, (item.object.path for item in loaded), owner)
    static = replace(
        static, findings=(*doubted(findings_of(gpu, owner), read_variables(image, environment)), *static.findings)
    )
    return Boundary(
        image=path,
        host=snapshot.host if snapshot else None,
        static=static,
        glibc=glibc_version(image.root),
        host_glibc=snapshot.glibc if snapshot else None,
        torch=_torch(image, static),
        manifest=manifest,
        loaded=loaded,
        missing=missing,
        rules=tuple(rules_of(static, manifest, loaded, missing, margins)),
        margins=margins,
        carried=carried,
        gpu=gpu,
    )


def demand_of(image: Image, static: StaticResult, provider_path: str | None) -> Demand | None:
    """Return the process to look at: RCCL's, or without a loadable RCCL one that has nothing but the loader.

    None where the image has no loader that is modelled.
    """
    if static.job is not None:
        return Demand(static.job, static.path.plugin_files, static.path.accepts, provider_path)
    return demand_without_rccl(image.root, provider_path)


def _alone(
    root: RootFileSystem, settings: LoaderSettings, demand: Demand
) -> tuple[tuple[Loaded, ...], tuple[str, ...]]:
    """Return (what the process has with the image's files alone, names that it lacks)."""
    begun = begin(root, settings, demand.job)
    process, opener = begun.process, begun.rccl
    missing = [item.name for item in begun.outcome.missing]
    for name in demand.names or (LIBFABRIC,):
        outcome = process.dlopen(name, opener) if opener is not None else None
        if outcome is not None and outcome.root is not None:
            missing += [item.name for item in outcome.missing]
            break
    else:
        missing += (demand.names or (LIBFABRIC,))[:1]
    return tuple(Loaded(item, None) for item in process.objects), tuple(dict.fromkeys(missing))


def _torch(image: Image, static: StaticResult) -> str | None:
    """Return the version of the torch whose process it is, from its metadata's name."""
    package = static.job.package if static.job else None
    names = names_in(image.root, package.rpartition("/")[0]) if package else []
    return next((found[1] for name in names if (found := _TORCH.fullmatch(name))), None)
