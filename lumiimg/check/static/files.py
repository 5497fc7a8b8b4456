"""Evidence of the first kind: from the files of the image; nothing is run.

Every process that its jobs may start is followed (`process.py`), and the worst one counts. The result includes the
account of where each library comes from, which versions meet there and what margin is left.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from lumiimg.check.answer import decide
from lumiimg.check.registry import SHOWN, Findings
from lumiimg.check.static.beyond_network import find_faults, findings_of_gpu, findings_of_machine, findings_of_venv
from lumiimg.check.static.commands import with_commands
from lumiimg.check.static.load_faults import add_closed
from lumiimg.check.static.process import CheckedProcess, StaticResult, check_process, without_rccl
from lumiimg.check.static.variables import as_doubts
from lumiimg.core.findings import Answer, Finding, Level, Remedy, Severity
from lumiimg.fabric.path import LIBFABRIC, RCCL_OR_PLUGIN, Fabric
from lumiimg.host.bind import SolvedManifest
from lumiimg.host.bind_trial import ProcessDemand, attempt
from lumiimg.host.container_view import gpu_of_machine, undetermined_variables, why_not_modelled
from lumiimg.host.engine_rules import hidden_files
from lumiimg.host.image_manifest import CarriedManifest, carried_by
from lumiimg.host.job_process import QuestionKind
from lumiimg.host.manifest import Margin, margins_of
from lumiimg.host.rccl_process import job_of_library
from lumiimg.image import SEARCH
from lumiimg.inventory.gpu_fit import GpuAccount, account_of_gpu

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from lumiimg.check.context import ImageInContext
    from lumiimg.host.job_process import JobProcess
    from lumiimg.host.jobs import JobProcesses
    from lumiimg.host.manifest import Loaded, Refusal, Variable
    from lumiimg.image import Image

_OBSTACLE_SEVERITIES = frozenset({Severity.PROBLEM, Severity.UNKNOWN})
_WOULD = {Severity.PROBLEM: "would", Severity.UNKNOWN: "perhaps would"}

_ABOUT = {QuestionKind.CODE: "python.code", QuestionKind.FILES: "python.files"}
DECISIONS: dict[Answer, Literal["ok", "refused", "unknown"]] = {
    Answer.NO_OBSTACLE: "ok",
    Answer.NO: "refused",
    Answer.UNDECIDED: "unknown",
}


@dataclass(frozen=True, slots=True)
class HostFit:
    """The account of one image, on one machine or without a machine."""

    image: str
    """Name as the user gave it."""
    host: str | None
    """Node of the snapshot; null without one."""
    static: StaticResult
    glibc: str | None
    """glibc version of the image; null if it is not known."""
    host_glibc: str | None
    """glibc version of the host; null if it is not known, or there is no snapshot."""
    torch: str | None
    """Version of torch with the local part; null if there is none."""
    manifest: SolvedManifest | None
    """The binds; None without a host, or without a process to bind for."""
    loaded: tuple[Loaded, ...]
    """The libraries of the process, in the loader's order."""
    missing: tuple[str, ...]
    """Names of libraries that are not found."""
    margins: tuple[Margin, ...]
    """Pairs of versions that meet across image and host."""
    carried: CarriedManifest
    """The image's own bind manifest, compared with what was found."""
    gpu: GpuAccount | None = None
    """Whether the GPU of --host, else of --site, accepts the image's code; null if no AMD GPU is known."""

    @property
    def fabric(self) -> Fabric:
        """Where the fabric's libraries come from. In a module: null without a snapshot."""
        return self.manifest.fabric if self.manifest else Fabric.NONE

    @property
    def answer(self) -> Answer:
        """The answer that a check of the files alone gives."""
        return decide(self.static.findings, self.static.path, level=Level.STATIC, level_was_asked_for=True)

    @property
    def decision(self) -> Literal["ok", "refused", "unknown"]:
        """The answer, in the words of the JSON output."""
        return DECISIONS[self.answer]

    @property
    def refusals(self) -> tuple[Refusal, ...]:
        """The attempts at binds, each with why it does not load, if none loads."""
        return self.manifest.refusals if self.manifest and self.fabric is Fabric.NONE else ()

    @property
    def notes(self) -> tuple[str, ...]:
        """Facts that are worth knowing and change nothing."""
        return self.manifest.notes if self.manifest else ()

    @property
    def against(self) -> tuple[Finding, ...]:
        """Obstacles, certain or possible: first that no binds load, then the others."""
        against = [finding for finding in self.static.findings if finding.severity in _OBSTACLE_SEVERITIES]
        against.sort(key=lambda finding: (finding.id != "bind.refused", finding.severity is Severity.UNKNOWN))
        return tuple(against)

    @property
    def remedies(self) -> tuple[Remedy, ...]:
        """Remedies, a command or a sentence each."""
        return tuple(dict.fromkeys(remedy for finding in self.against for remedy in finding.remedy))

    def with_remedies(self, context: ImageInContext) -> HostFit:
        """Return the account with the commands that fix what is missing."""
        return self.with_findings(with_commands(context, self.static.findings))

    def with_findings(self, findings: tuple[Finding, ...]) -> HostFit:
        """Return the account with other findings."""
        return replace(self, static=replace(self.static, findings=findings))


@dataclass(frozen=True, slots=True)
class BoundImage:
    """The minimal list of binds and variables for an image on a machine, or why there is none."""

    of: HostFit

    @property
    def manifest(self) -> SolvedManifest:
        """The binds; empty if none loads."""
        return self.of.manifest or SolvedManifest(Fabric.NONE)

    @property
    def is_refused(self) -> bool:
        """Whether nothing can be bound."""
        return self.manifest.fabric is Fabric.NONE

    @property
    def decision(self) -> Literal["ok", "refused", "unknown"]:
        """The decision on the binds: `ok` if each library that is opened is found, in versions that fit."""
        return self.of.decision if self.is_refused else "ok"

    @property
    def environment(self) -> dict[str, Variable]:
        """Variables to set for the container, by name."""
        return {variable.name: variable for variable in self.manifest.variables}

    @property
    def doubts(self) -> tuple[str, ...]:
        """What keeps RCCL, or may keep it, from using the binds; if there is anything, `explain` does not say `ok`."""
        return () if self.is_refused else tuple(text for _, text, _ in doubts_of_binds(self.of))


def doubts_of_binds(fit: HostFit) -> Iterator[tuple[Severity, str, tuple[Remedy, ...]]]:
    """Yield what keeps RCCL from using the binds, with remedies, and how the manifest in the image differs."""
    for finding in fit.static.findings:
        if would := _WOULD.get(finding.severity):
            what = f"with these binds RCCL {would} not use the fabric: {finding.summary}"
            yield finding.severity, what, finding.remedy
    if fit.carried.sentence:
        yield Severity.INFO, fit.carried.sentence, ()


def check_files(context: ImageInContext, *, with_site: bool = False) -> HostFit:
    """Return the account of the files; a snapshot adds what to bind from its host, a site adds the fit with its GPU.

    `with_site`: include the site's own binds. Raises BadInputError if the image cannot be read.
    """
    files = check_libraries(context, with_site=with_site)
    static = files.static
    around = findings_of_machine(context, static)
    # the processors of the machine may be why no binds load; the finding about them says more
    found = sorted((*static.findings, *around), key=lambda finding: finding.id == "bind.refused")
    return files.with_findings((*findings_of_venv(context), *found, *find_faults(context, static)))


def check_libraries(context: ImageInContext, *, with_site: bool = False, with_gpu: bool = True) -> HostFit:
    """Follow the fabric path through the image's files, from the program that its jobs start.

    `with_gpu`: also judge whether the machine's GPU accepts the code of its libraries.

    Raises BadInputError if the image itself cannot be read, or has no such program; a broken library in it is a
    finding.
    """
    image, snapshot, settings = context.image, context.snapshot, context.inside.settings
    checked = _worst_process(context, with_site=with_site)
    static, demand, manifest = checked.static, checked.demand, checked.manifest
    loaded, missing = manifest.loaded if manifest else (), tuple[str, ...]()
    if manifest is None and demand is not None:
        loaded, missing = _alone(context, demand)
    carried = carried_by(image.root, settings, demand, has_node=manifest is not None)
    paths = (item.object.path for item in loaded)
    of = gpu_of_machine(snapshot, context.site) if with_gpu else None
    gpu = account_of_gpu(context.contents, of, context.variable, paths)
    of_gpu = as_doubts(findings_of_gpu(gpu, context.variables), context.variables, context.given)
    found = Findings(Level.STATIC, [*of_gpu, *static.findings])
    if carried.sentence is not None:
        found.add("bind.manifest", Severity.INFO, carried.sentence)
    return HostFit(
        image=context.title,
        host=snapshot.host if snapshot else None,
        static=replace(static, findings=tuple(found.found)),
        glibc=context.contents.glibc,
        host_glibc=snapshot.glibc if snapshot else None,
        torch=_torch(context, static.job),
        manifest=manifest,
        loaded=loaded,
        missing=missing,
        margins=tuple(margins_of(loaded)),
        carried=carried,
        gpu=gpu,
    )


def _worst_process(context: ImageInContext, *, with_site: bool) -> CheckedProcess:
    """Return the worst process of the image's jobs, and note others that have a different RCCL."""
    found, image = Findings(Level.STATIC), context.image
    for warning in (*image.description.warnings, *undetermined_variables(image)):
        found.add("image.partly-read", Severity.UNKNOWN, warning)
    if (musl := why_not_modelled(image.root)) is not None:
        found.add("image.musl", Severity.UNKNOWN, musl)
        return without_rccl(context, StaticResult(findings=tuple(found.found)), context.variables, with_site=with_site)
    files, jobs, inside = context.contents.rccl_files, context.jobs, context.inside
    if jobs.hidden:
        _judge_hidden_program(image, jobs.hidden, found)
        return without_rccl(context, StaticResult(findings=tuple(found.found)), context.variables, with_site=with_site)
    processes = jobs.processes or (job_of_library(image.root, inside.settings, files),)
    for doubt in inside.doubts:
        found.add("loader.not-modelled", Severity.UNKNOWN, doubt)
    results = {job: check_process(context, job, files, with_site=with_site) for job in processes}
    counted = {job: each for job, each in results.items() if each.static.path.rccl or not job.is_optional}
    results = counted or results
    job = min(results, key=lambda job: _rank(results[job].static))
    worst, static = results[job], results[job].static
    if jobs.note:
        static = _note_program(jobs, worst, job, found)
    _note_questions(jobs, found)
    for other, result in results.items():
        rccl = result.static.path.rccl
        if rccl not in {None, static.path.rccl}:
            names = {"job": other.title, "path": rccl or "", "worst": job.title}
            found.add("rccl.several", Severity.INFO, reason="other", names=names, where=rccl)
    _note_shadowed(image, static.findings, found)
    return replace(worst, static=replace(static, findings=(*found.found, *static.findings)))


def _rank(result: StaticResult) -> int:
    """Return the rank of a result: lowest with a problem, then with an open question."""
    severities = {finding.severity for finding in result.findings}
    return next((i for i, each in enumerate((Severity.PROBLEM, Severity.UNKNOWN)) if each in severities), 2)


def _note_program(jobs: JobProcesses, checked: CheckedProcess, job: JobProcess, found: Findings) -> StaticResult:
    """Note how the program was found; if jobs may start another, problems of this one do not count for the image.

    What affects every process of the image still counts: problems of libraries if no program is known, and binds that
    do not load because of the image's C library.
    """
    static, lines = checked.static, tuple[str, ...]()
    if jobs.is_open and job.is_program:
        refusals = checked.manifest.refusals if checked.manifest else ()
        is_of_image = all(
            each.need == LIBFABRIC or (each.of_host and each.need.startswith("GLIBC_")) for each in refusals
        )
        of_each = {"bind.refused"} if is_of_image else set()
        own = [f for f in static.findings if f.severity is Severity.PROBLEM and f.id not in of_each]
        lines = tuple(f"if it is this one: {finding.summary}" for finding in own)
        static = replace(static, findings=tuple(finding for finding in static.findings if finding not in own))
    static = replace(static, is_open=jobs.is_open)
    what = jobs.note or ""
    found.add("program.unknown", Severity.UNKNOWN if jobs.is_open else Severity.INFO, what, evidence=lines)
    return static


def _note_questions(jobs: JobProcesses, found: Findings) -> None:
    """Note what the files leave open about the processes: one finding for each kind of question."""
    for kind, of_kind in itertools.groupby(sorted(jobs.questions, key=lambda each: each.kind), lambda each: each.kind):
        questions = [*of_kind]
        lines, where = [f"{each.file} {each.what}" for each in questions], questions[0].file
        found.add(_ABOUT[kind], Severity.UNKNOWN, names={"first": lines[0]}, where=where, evidence=lines)


def _judge_hidden_program(image: Image, program: str, found: Findings) -> None:
    """Report that the program that the image's jobs start is not available in the container."""
    if (obstacle := image.root.obstacle(program, SEARCH)) is not None:
        add_closed({program: obstacle}, Severity.PROBLEM, found, f"{program} cannot be started")
        return
    real = image.unmounted.resolve(program)
    by = next((mount.by for mount in image.mounts if mount.hides(real)), None)
    found.add("program.load", Severity.PROBLEM, reason="covered", where=program, evidence=(real,), cause=by)


def _note_shadowed(image: Image, findings: Iterable[Finding], found: Findings) -> None:
    """Note the image's files that a process lacks, because the engine mounts over their folders."""
    lacking = {re.escape(name.rpartition("/")[2]) for finding in findings for name in finding.chain[-1:]}
    wanted = re.compile("|".join((RCCL_OR_PLUGIN.pattern, *sorted(lacking))))
    for mount, path in itertools.islice(hidden_files(image, wanted), SHOWN):
        found.add("image.covered", Severity.INFO, reason="hidden", where=path, cause=mount.by)


def _alone(context: ImageInContext, demand: ProcessDemand) -> tuple[tuple[Loaded, ...], tuple[str, ...]]:
    """Return (what the process loads with the image's files alone, names of the libraries that it lacks)."""
    trial = attempt(context.image.root, context.inside.settings, demand)
    names = demand.names or (LIBFABRIC,)
    lacking = [item.name for item in trial.outcome.missing if item.name not in names]
    lacking += names[:1] if not trial.opened else ()
    return trial.loaded, tuple(dict.fromkeys(lacking))


def _torch(context: ImageInContext, job: JobProcess | None) -> str | None:
    """Return the version of torch in the package folder of a job, from the name of its metadata."""
    package = job.package if job else None
    return context.contents.versions_in(package.rpartition("/")[0]).get("torch") if package else None
