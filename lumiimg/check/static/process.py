"""One process of a job, from the program that is started to the network: with the image's files, and a host's binds.

The path is followed file by file, as ld.so would. What may come from the host at run time is reported as an open
question, not a problem. With a host snapshot the binds are solved first; the plugin and the process are then judged
once: with the binds if these load, else with the files of the image alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING

from lumiimg.check.registry import SHOWN, Findings, remedies_for
from lumiimg.check.static.load_faults import add_closed, failed_load, judge_closed, judge_denied
from lumiimg.check.static.plugin import PluginJudgement
from lumiimg.check.static.process_faults import judge_process, judge_symbols
from lumiimg.check.static.variables import as_doubts, judge_binds, judge_plugin_name, judge_variables
from lumiimg.core.findings import Finding, Level, Remedy, Severity
from lumiimg.core.text import count
from lumiimg.core.toml import package_toml
from lumiimg.elf import FoundBy  # noqa: TC001 - `decode` reads the types of the fields
from lumiimg.fabric.path import HOST_LIB_DIR, LIBCXI, LIBFABRIC, LIBRCCL, Fabric, FabricPath, Part, part_of
from lumiimg.fabric.process import PROVIDER_PATH, read_libfabric_conf
from lumiimg.fabric.rccl import PLUGIN_VARIABLE, Rccl
from lumiimg.host.bind import SolvedManifest, solve
from lumiimg.host.bind_trial import BindTrial, ProcessDemand
from lumiimg.host.communicator import INIT_CALL
from lumiimg.host.container_view import variable_of
from lumiimg.host.engine_rules import complete, may_be_hidden
from lumiimg.host.job_process import JobProcess, StartedProcess, begin
from lumiimg.host.rccl_process import demand_without_rccl, rccl_candidates

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lumiimg.check.context import ImageInContext
    from lumiimg.check.registry import FindingDetails
    from lumiimg.elf import LoadedObject, LoadResult, Process
    from lumiimg.host.manifest import Refusal
    from lumiimg.host.rccl_process import Variables
    from lumiimg.image import Image, Obstacle, RootFileSystem
    from lumiimg.inventory.components import Inventory

_GLIBC = re.compile(r"GLIBC_2\.(\d+)\b")
_LIBRARY = re.compile(r"[^ /]+\.so(\.[0-9.]+)?")
_BUILT_FOR = {"CUDA": "program.cuda", "CPUs": "program.cpu"}


@dataclass(frozen=True, slots=True)
class StaticResult:
    """The result from the files."""

    path: FabricPath = field(default_factory=FabricPath)
    loader: str | None = None
    """Path of the image's ld.so."""
    plugin_found_by: FoundBy | None = None
    job: JobProcess | None = None
    """The process that has the RCCL, or should have it; None if no program is known either."""
    is_open: bool = False
    """Whether a job may start a different program."""
    opened: tuple[str, ...] = ()
    """Libraries of that process once RCCL has opened its plugin, as paths without symlinks."""
    opened_by_libfabric: tuple[str, ...] = ()
    """Libraries that libfabric opens after that: its provider, ROCr."""
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True)
class CheckedProcess:
    """The result from the files for one process, and the binds for it."""

    static: StaticResult
    demand: ProcessDemand | None
    """What is started and opened; None if the image has no loader that is modelled."""
    manifest: SolvedManifest | None
    """The binds; None without a host, or without a process to bind for."""


def check_process(context: ImageInContext, job: JobProcess, files: list[str], *, with_site: bool) -> CheckedProcess:
    """Follow the path of one process; `with_site`: include the binds of the context's site."""
    found, image, variables = Findings(Level.STATIC), context.image, replace(context.variables, job=job)
    begun = _load_rccl(context, job, variables, files, found)
    root, process, rccl = image.root, begun.process, begun.rccl
    if rccl is None:
        broken = job.program if not job.is_program and begun.failed and root.is_file(job.program) else None
        static = StaticResult(FabricPath(rccl=broken), job=job, findings=tuple(found.found))
        return without_rccl(context, static, variables, with_site=with_site)
    library = context.contents.rccl_at(rccl.path)
    path = _read_path(rccl, begun.caller, library, variables.get(PLUGIN_VARIABLE), found)
    of_search = Findings(Level.STATIC)
    plugin = PluginJudgement(context.contents, variables, root, process, path, of_search)
    outcome = plugin.load(rccl, library)
    own = replace(path, plugin=outcome.root.path if outcome and outcome.root else None)
    demand = ProcessDemand(job, path.plugin_files, path.accepts, variables.get(PROVIDER_PATH))
    manifest = _binds(context, demand, with_site=with_site)
    judged, bound = found, _bound(manifest, path)
    if bound is not None:
        judged, root, process, outcome = Findings(Level.STATIC), bound.root, bound.process, bound.outcome
    else:
        found.found += of_search.found
    if outcome is not None:
        path = replace(plugin, root=root, process=process, found=judged).judge(outcome)
        judge_process(root, process, begun, judged)
    judge_closed(root, process, job.reads, judged)
    judge_plugin_name(variables, own, found)
    judge_variables(variables, own, found, read_libfabric_conf(process, root))
    judge_binds(context.read_by_engine, process, found)
    _judge_shadowed(image, job, process, found)
    findings = [*found.found, *(judged.found if bound is not None else ())]
    opened, later = _files_of(root, process)
    static = StaticResult(
        path=path,
        loader=process.loader.path,
        plugin_found_by=outcome.root.found_by if outcome and outcome.root else None,
        job=job,
        opened=opened,
        opened_by_libfabric=later,
        findings=_with_binds(context, variables, findings, manifest, is_bound=bound is not None),
    )
    return CheckedProcess(static, demand, manifest)


def without_rccl(
    context: ImageInContext, static: StaticResult, variables: Variables, *, with_site: bool
) -> CheckedProcess:
    """Return the result without an RCCL, with what a host adds: whether its libfabric loads in an empty process."""
    provider_path = variable_of(PROVIDER_PATH, context.image, context.read_by_engine)
    demand = demand_without_rccl(context.image.root, provider_path)
    manifest = _binds(context, demand, with_site=with_site)
    findings = _with_binds(context, variables, static.findings, manifest, is_bound=False)
    return CheckedProcess(replace(static, findings=findings), demand, manifest)


# -- up to RCCL --


def _load_rccl(
    context: ImageInContext, job: JobProcess, variables: Variables, files: list[str], found: Findings
) -> StartedProcess:
    """Model the process of a job up to its RCCL; the result has no RCCL if there is none, or it cannot be loaded."""
    image, contents = context.image, context.contents
    begun = begin(image.root, context.inside.settings, job)
    candidates = rccl_candidates(image.root, files)
    obstacle = image.root.obstacle(job.failure.where) if job.failure is not None and job.failure.where else None
    if job.failure is not None and obstacle is not None and not obstacle.is_for_some:
        add_closed({job.failure.where or "": obstacle}, Severity.PROBLEM, found, job.failing)
    elif job.failure is not None:
        names, reason = {"failing": job.failing, "why": job.failure.what}, "import" if job.imports else "start"
        details: FindingDetails = {"where": job.failure.where, "evidence": begun.outcome.errors}
        if (cause := job.failure.variable) is not None:
            without = variables.without(cause)
            of_image = () if without.command else remedies_for("program.load", "variable", variable=cause)
            details["remedy"] = (*of_image, without)
        found.add("program.load", Severity.PROBLEM, reason=reason, names=names, **details)
    elif begun.failed is not None and (candidates or job.is_program):
        _judge_failure(contents, begun.process, job, begun.failed, found)
    elif job.built_for is not None:
        begun = replace(begun, rccl=None)  # an RCCL that something else loaded is not its own
        names, lines = {"job": job.title}, tuple(candidates)
        found.add(_BUILT_FOR[job.built_for], Severity.PROBLEM, names=names, where=job.package, evidence=lines)
    elif begun.rccl is None and judge_denied(
        image.root, begun.process, job.asks, f"{job.title} finds no RCCL", (), found
    ):
        pass
    elif begun.rccl is None and not candidates and (closed := _closed_rccl(image)):
        add_closed(closed, Severity.PROBLEM, found, "no process can load an RCCL")
    elif begun.rccl is None and not candidates:
        found.add("rccl.absent", Severity.PROBLEM, reason="image")
    elif begun.rccl is None:
        names = {"job": job.title, "caller": begun.caller.path if begun.caller else ""}
        reason = "unanswered" if begun.caller else "process"
        found.add("rccl.absent", Severity.PROBLEM, reason=reason, names=names, where=candidates[0])
    else:
        rccl = begun.rccl
        begun = judge_symbols(job, begun, found)
        others = [file for file in candidates if image.root.resolve(file) != image.root.resolve(rccl.path)]
        if others:
            names = {"rccl": rccl.path, "why": _why(job, begun)}
            found.add("rccl.several", Severity.INFO, names=names, evidence=others)
    return begun


def _closed_rccl(image: Image) -> dict[str, Obstacle]:
    """Return the files of an RCCL in folders that only root may list, and the obstacle for others."""
    obstacles = {path: image.root.obstacle(path) for path in islice(image.unmounted.find(LIBRCCL), SHOWN)}
    return {path: each for path, each in obstacles.items() if each is not None}


def _why(job: JobProcess, begun: StartedProcess) -> str:
    if begun.caller is not None:
        return f"it resolves {INIT_CALL} for {begun.caller.path}"
    if job.framework:
        return f"it is what {job.framework} of {job.program} loads"
    return f"it is what {job.program} finds" if job.is_program else "no known program would load another"


def _judge_failure(
    contents: Inventory, process: Process, job: JobProcess, outcome: LoadResult, found: Findings
) -> None:
    code, severity, what = "program.load", Severity.PROBLEM, f"{job.program} cannot load RCCL"
    load = failed_load(contents, process, outcome, job.package or job.program)
    if job.is_program and load.of_host:
        severity = Severity.UNKNOWN
        is_host = not (load.loop or load.is_in_image)
        from_where = "which must come from the host" if is_host else "which the loader does not find"
        what = f"{job.title} needs {', '.join(load.of_host)} at its start, {from_where}"
    elif job.framework is not None:
        what = job.failing
    elif not job.is_program:
        code, what = "rccl.load", f"{job.program} cannot be loaded in this image"
    lost = [*(each.name for each in outcome.missing), *(error.partition(":")[0] for error in outcome.errors)]
    if not judge_denied(contents.image.root, process, lost, what, outcome.errors, found):
        found.add(code, severity, what, reason="libraries", **load.details)


def _read_path(
    rccl: LoadedObject, caller: LoadedObject | None, library: Rccl, named: str | None, found: Findings
) -> FabricPath:
    """Return the path so far: which plugin this RCCL, called by `caller`, looks for, and which net APIs it takes.

    `named` is NCCL_NET_PLUGIN, if it is set.
    """
    where = rccl.path
    files, accepts = library.names(named), library.accepts
    source = library.generation.basis if library.generation else None
    names = {"version": library.version or "(version not found)", "names": " or ".join(files)}
    names |= {"apis": ", ".join(f"v{number}" for number in accepts), "variable": f"{PLUGIN_VARIABLE}={named}"}
    if library.opens_none(named):
        found.add("rccl.found", Severity.INFO, reason="none", names=names, where=where, source=source)
    elif not files or not accepts:
        names["version"] = library.version or "not found in it"
        names["caller"] = caller.path if caller else ""
        unknown = "files" if caller is None or part_of(where) is Part.RCCL else "answers"
        found.add("rccl.unknown", Severity.UNKNOWN, reason=unknown, names=names, where=where, chain=rccl.chain)
    else:
        reason = "named" if named else None
        source = "; ".join(filter(None, ("strings in the library", source)))
        found.add("rccl.found", Severity.INFO, reason=reason, names=names, where=where, source=source)
    return FabricPath(where, library.version, files, named, accepts)


# -- the whole process --


def _judge_shadowed(image: Image, job: JobProcess, process: Process, found: Findings) -> None:
    """Judge whether the engine may hide files of the process from a user who starts it."""
    files = (job.program, *job.opens, *(process.config.absolute(loaded.path) for loaded in process.objects))
    # binds are on top of what the engine mounts
    own = (file for file in files if not file.startswith(f"{HOST_LIB_DIR}/"))
    for mount, below in may_be_hidden(image, own):
        of, lines = {"folder": mount.target}, below
        found.add("image.covered", Severity.UNKNOWN, names=of, where=below[0], evidence=lines, cause=mount.by)


def _files_of(root: RootFileSystem, process: Process) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the files that /proc/self/maps would list, without symlinks: (at first, opened by libfabric later)."""
    later = {loaded for loaded in process.objects if _is_opened_by_libfabric(loaded)}
    files = [(loaded in later, root.resolve(process.config.absolute(loaded.path))) for loaded in process.objects]
    return tuple(file for is_later, file in files if not is_later), tuple(file for is_later, file in files if is_later)


def _is_opened_by_libfabric(loaded: LoadedObject) -> bool:
    here: LoadedObject | None = loaded
    while here is not None:
        above = here.requested_by
        if here.by_dlopen and above is not None and part_of(above.path) is Part.LIBFABRIC:
            return True
        here = above
    return False


# -- what a host adds --


def _binds(context: ImageInContext, demand: ProcessDemand | None, *, with_site: bool) -> SolvedManifest | None:
    snapshot, root = context.snapshot, context.image.root
    if snapshot is None or demand is None:
        return None
    manifest = solve(root, context.inside.settings, demand, snapshot)
    return complete(manifest, snapshot, root, context.site if with_site else None)


def _bound(manifest: SolvedManifest | None, path: FabricPath) -> BindTrial | None:
    """Return the process with the binds; None if none loads, or neither side has a plugin."""
    trial = manifest.trial if manifest is not None else None
    is_there = manifest is not None and any(item.name in path.plugin_files for item in manifest.loaded)
    return trial if trial is not None and trial.outcome.root is not None and is_there else None


def _with_binds(
    context: ImageInContext,
    variables: Variables,
    findings: Sequence[Finding],
    manifest: SolvedManifest | None,
    *,
    is_bound: bool,
) -> tuple[Finding, ...]:
    """Return the findings of a process and about the binds of a host; uncertain problems become open questions."""
    found, given = Findings(Level.STATIC, [*findings]), context.given
    if manifest is None or context.snapshot is None:
        return as_doubts(findings, variables, given)
    host = context.snapshot.host
    if is_bound:
        given |= {variable.name for variable in manifest.variables}
        libraries = [bind for bind in manifest.binds if bind.chain]
        if libraries:
            names = {"libraries": count(len(libraries), "library"), "host": host}
            lines = tuple(f"{bind.source} at {bind.target}" for bind in libraries)
            found.add("bind.loads", Severity.OK, names=names, evidence=lines)
        for note in manifest.notes:
            found.add("bind.note", Severity.INFO, note)
    elif manifest.fabric is Fabric.NONE and manifest.host_has_fabric:
        # what should come from the host, but cannot
        found.found = [f for f in findings if f.id not in {"plugin.needs-host", "provider.no-cxi"}]
        # of several attempts, the one that fails at the C library cannot be fixed by any bind, whatever is started
        of_glibc = next((r for r in manifest.refusals if r.need.startswith("GLIBC_")), None)
        telling = of_glibc or manifest.refusals[-1]
        names = {"host": host, "need": telling.need, "have": telling.have}
        lines, ways = tuple(refusal.words for refusal in manifest.refusals), tuple(_remedies(manifest.refusals))
        of_binds = Findings(Level.STATIC)
        of_binds.add("bind.refused", Severity.PROBLEM, names=names, evidence=lines, chain=telling.chain, remedy=ways)
        refused = of_binds.found if of_glibc else as_doubts(of_binds.found, variables, given)
        return (*as_doubts(found.found, variables, given), *refused)
    return as_doubts(found.found, variables, given)


def _remedies(refusals: Sequence[Refusal]) -> Iterator[Remedy]:
    """Yield the remedies if no attempt loads, nearest first."""
    for name in sorted({refusal.need for refusal in refusals if _LIBRARY.fullmatch(refusal.need)}):
        if name not in {LIBFABRIC, LIBCXI}:
            yield from remedies_for("bind.refused", "library", name=name)
    if any(refusal.of_host for refusal in refusals):
        yield from remedies_for("bind.refused", "of-host")
    minors = [int(found[1]) for refusal in refusals if (found := _GLIBC.match(refusal.need))]
    if minors:
        known = package_toml(__package__, "distributions.toml")["glibc"].items()
        enough = [f"{name} (glibc {version})" for name, version in known if int(version.split(".")[1]) >= max(minors)]
        bases = ", ".join(enough) or "none that lumiimg knows"
        yield from remedies_for("bind.refused", "glibc", glibc=f"2.{max(minors)}", bases=bases)
    if any(refusal.need.startswith("FABRIC_") for refusal in refusals):
        yield from remedies_for("bind.refused", "libfabric")
