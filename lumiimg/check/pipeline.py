"""`lumiimg check`: take the highest level possible here, and report what the others would add."""

from __future__ import annotations

import platform
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from lumiimg.check.answer import (
    decide,
    level_statuses,
    merge_levels,
    next_step,
    probe_command,
    process_questions,
    sentence,
    unfollowed_files,
)
from lumiimg.check.probe.judgement import SIMULATED
from lumiimg.check.probe.process import recheck_as_seen
from lumiimg.check.probe.task import carry_out, find_all_reduce, inconclusive_reason, make_task
from lumiimg.check.run.collective import CollectiveOutcome  # noqa: TC001 - `decode` reads the types of the fields
from lumiimg.check.run.execution import NO_GPU, Ranks, RunResult, count_gpus, has_gpu, run_collective, start_here
from lumiimg.check.static.commands import with_commands
from lumiimg.check.static.files import check_files
from lumiimg.check.steps import fabric_steps
from lumiimg.core.errors import LumiimgError, MissingHereError
from lumiimg.core.files import temporary_folder
from lumiimg.core.findings import NO_ADVICE, Advice, Answer, Finding, Level
from lumiimg.core.text import count
from lumiimg.engine.engine import find_engine
from lumiimg.engine.workspace import scratch_folder
from lumiimg.host.manifest import origins
from lumiimg.inventory.gpu_fit import GpuAccount  # noqa: TC001 - `decode` reads the types of the fields

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumiimg.check.context import ImageInContext
    from lumiimg.check.probe.container import Container, ProbePrograms, ProbeRun
    from lumiimg.check.probe.judgement import ProbeResult
    from lumiimg.check.probe.process import SeenProcess
    from lumiimg.check.probe.task import ProbeTask
    from lumiimg.check.static.files import HostFit
    from lumiimg.engine.engine import Engine
    from lumiimg.fabric.path import FabricPath, Step

T = TypeVar("T")
NOT_ASKED = "skipped (not requested)"
NO_RCCL = "there is no RCCL to run"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Whether RCCL in an image would use the fast network, on one machine or on many nodes."""

    image: str
    """Name as the user gave it."""
    answer: Answer
    """The exit code says the same: `no-obstacle` 0, `no` 1, `undecided` 3."""
    sentence: str
    """The answer as a sentence."""
    levels: dict[str, str]
    """Status of each level, by its name: `done`, or why it was not completed."""
    collective: CollectiveOutcome | None = field(default=None, kw_only=True)
    """Result of the collective of level run."""
    gpu: GpuAccount | None = field(default=None, kw_only=True)
    """Whether the GPU of --host, else of --site, accepts the image's code; null if no AMD GPU is known."""
    advice: Advice = field(default=NO_ADVICE, kw_only=True)
    """The reason, and what to do."""


@dataclass(frozen=True, slots=True)
class CheckReport(CheckResult):
    """Whether RCCL in an image would use the fast network on one machine, with the evidence."""

    level: Level
    """The highest level that was taken."""
    path: FabricPath
    """The path that a collective's bytes take."""
    steps: tuple[Step, ...]
    """The steps of the path, with what is known about each."""
    findings: tuple[Finding, ...]
    """The merged findings of all levels."""
    files: HostFit
    """The account of the image's libraries: where each comes from, and what margin is left."""
    runs: tuple[ProbeRun, ...] = ()
    """What the probes printed; empty below level `probe`."""


@dataclass(frozen=True, slots=True)
class Conclusion:
    """The conclusion from the findings of all levels, on one node or on identical nodes."""

    files: HostFit
    """The account of the process that was seen, else of the one that the files predict."""
    answer: Answer
    sentence: str
    findings: tuple[Finding, ...]
    steps: tuple[Step, ...]


def check_image(context: ImageInContext, level: Level | None, *, simulate: bool = False) -> CheckReport:
    """Check an image up to `level`, None for the highest possible here; with what a host offers, if given.

    `simulate`: also run RCCL on a stand-in for HIP (`probe/judgement.py`).

    Raises BadInputError for unreadable input, MissingHereError if `level` or the simulation needs what is not here.
    """
    files = check_files(context)
    has_rccl = files.static.path.rccl is not None
    if level is Level.STATIC or not (has_rccl or process_questions(files.static.findings)):
        why = NOT_ASKED if level is Level.STATIC else NO_RCCL
        return _report(context, files, level_statuses(why, why), level_was_asked_for=level is not None)
    taken = None
    without_gpu = f"skipped: {NO_GPU}" if level is None and not has_gpu() else None if has_rccl else NO_RCCL
    try:
        _refuse_elsewhere(context, files)
        with scratch_folder(temporary_folder(), "lumiimg-check-") as folder:
            upto = Level.PROBE if without_gpu else level
            taken = run_levels(context, files, upto, folder, _Here(context, files), simulate=simulate)
        levels = level_statuses(SIMULATED if simulate else taken.of_probes, without_gpu or taken.why)
    except MissingHereError as error:
        if level is not None or simulate:
            raise
        levels = level_statuses(str(error), str(error))
    probed, ran = (taken.probed, taken.ran) if taken else (None, None)
    return _report(context, files, levels, probed, ran, level_was_asked_for=level is not None)


class Prober(Protocol[T]):
    """The place where the levels above the files are taken."""

    answers_stand: bool
    """Whether the results of the probes are reported even if a collective fails."""

    def probe(self, engine: Engine, task: ProbeTask, counter: ProbePrograms | None) -> T:
        """Run the probes; `counter` counts GPUs, if a collective is to run."""

    def ranks(self, probed: T, counter: Container) -> Ranks:
        """Return where the ranks of a collective run. Raises MissingHereError if none can run."""


@dataclass(frozen=True, slots=True)
class _Here:
    """This machine."""

    context: ImageInContext
    files: HostFit
    answers_stand = False

    def probe(self, engine: Engine, task: ProbeTask, _: ProbePrograms | None) -> ProbeResult:
        return carry_out(task, engine, self.context.environment)

    def ranks(self, probed: ProbeResult, counter: Container) -> Ranks:
        gpus = count_gpus(counter, self.files.static.path.rccl or "")
        return Ranks(start_here, 1, gpus, probed.loaded_rccl, inconclusive_reason(self.context.environment))


@dataclass(frozen=True, slots=True)
class LevelResults(Generic[T]):
    """Results of the levels above the files."""

    probed: T
    ran: RunResult | None
    why: str
    """Status of level run."""
    wanted_run: bool
    """Whether a collective was requested or started: without its result the question is open."""
    of_probes: str
    """Status of level probe."""


def run_levels(
    context: ImageInContext,
    files: HostFit,
    level: Level | None,
    folder: Path,
    where: Prober[T],
    *,
    simulate: bool,
    without: str | None = None,
) -> LevelResults[T]:
    """Run the probes, then a collective, up to `level`; None: up to the highest level possible.

    `folder` is visible wherever they run. `without`: a variable that the collective gets neither from the site nor from
    the image.

    Raises MissingHereError if something that the probes, or a requested run, need is not here.
    """
    (programs := folder / "programs").mkdir()
    (of_run := folder / "run").mkdir()
    engine = find_engine(context.environment)
    task = make_task(engine, context, files, programs, simulate=simulate)
    counter, why = None, NOT_ASKED
    if level is not Level.PROBE:
        try:
            counter = find_all_reduce(engine, context, task, of_run)
        except MissingHereError as error:
            if level is Level.RUN:
                raise
            why = f"skipped: {error}"
    probed = where.probe(engine, task, counter)
    of_probes = "done" if task.tools.folder else f"done, except for the plugin: {task.tools.origin}"
    if counter is None:
        return LevelResults(probed, None, why, wanted_run=False, of_probes=of_probes)
    try:
        container = task.container(engine, context.environment, counter)
        ran = run_collective(container, context, files.static, of_run, where.ranks(probed, container), without)
    except LumiimgError as error:
        is_missing = isinstance(error, MissingHereError)
        if not where.answers_stand and (level is Level.RUN or not is_missing):
            raise
        failed = f"{'skipped' if is_missing else 'failed'}: {error}"
        return LevelResults(probed, None, failed, wanted_run=True, of_probes=of_probes)
    done = f"done: {ran.outcome.program}, {count(ran.outcome.ranks, 'rank')}"
    return LevelResults(probed, ran, done, wanted_run=True, of_probes=of_probes)


def explain_image(context: ImageInContext) -> CheckReport:
    """Check the files of an image, including a site's binds: `explain` shows the account of its libraries."""
    files = check_files(context, with_site=True)
    return _report(context, files, level_statuses(NOT_ASKED, NOT_ASKED), level_was_asked_for=True)


def _report(
    context: ImageInContext,
    files: HostFit,
    levels: dict[str, str],
    probed: ProbeResult | None = None,
    ran: RunResult | None = None,
    *,
    level_was_asked_for: bool,
) -> CheckReport:
    taken = Level.RUN if ran else Level.PROBE if probed else Level.STATIC
    path = probed.path if probed else files.static.path
    concluded = conclusion(
        context,
        files,
        path,
        probed.findings.found if probed else (),
        ran,
        seen=probed.seen if probed else None,
        level=taken,
        level_was_asked_for=level_was_asked_for,
        plugin_version=probed.plugin_version if probed else None,
    )
    if left := unfollowed_files(concluded.findings):
        levels[Level.STATIC.value] = f"done; not examined: {left}; {probe_command(context)} shows what it does"
    return CheckReport(
        image=context.title,
        answer=concluded.answer,
        sentence=concluded.sentence,
        advice=next_step(concluded.answer, concluded.findings, context, level=taken, limited=level_was_asked_for),
        level=taken,
        levels=levels,
        path=path,
        steps=concluded.steps,
        findings=concluded.findings,
        files=concluded.files.with_findings(concluded.findings),
        runs=tuple(probed.runs) if probed else (),
        collective=ran.outcome if ran else None,
        gpu=concluded.files.gpu,
    )


def conclusion(
    context: ImageInContext,
    files: HostFit,
    path: FabricPath,
    probed: Sequence[Finding] = (),
    ran: RunResult | None = None,
    *,
    seen: SeenProcess | None = None,
    level: Level,
    level_was_asked_for: bool = False,
    plugin_version: str | None = None,
) -> Conclusion:
    """Return the merged findings of all levels and the conclusion; `level` is the highest of them.

    `path`: the path as seen at that level.
    """
    if seen is not None:
        files, probed = recheck_as_seen(context, files, probed, seen)
    findings = final_findings(context, files.static.findings, probed, ran.findings.found if ran else ())
    answer = decide(findings, path, level=level, level_was_asked_for=level_was_asked_for)
    loaded = files.manifest.loaded if files.manifest else ()
    known = origins(path, context.image, context.read_by_engine, loaded, running=level is not Level.STATIC)
    verdict = ran.outcome.verdict.value if ran else None
    steps = fabric_steps(path, findings, known, plugin_version=plugin_version, verdict=verdict)
    return Conclusion(files, answer, sentence(answer, findings, level), findings, steps)


def final_findings(
    context: ImageInContext, static: Sequence[Finding], probed: Sequence[Finding] = (), ran: Sequence[Finding] = ()
) -> tuple[Finding, ...]:
    """Return the merged findings of all levels, with commands that fix what is missing."""
    return with_commands(context, merge_levels(static, probed, ran))


def _refuse_elsewhere(context: ImageInContext, files: HostFit) -> None:
    """Raise MissingHereError if the bound libraries are those of another machine."""
    snapshot = context.snapshot
    if snapshot is None or files.manifest is None or not files.manifest.binds:
        return
    here = platform.node().partition(".")[0]
    gone = next((bind.source for bind in files.manifest.binds if not Path(bind.source).exists()), None)
    if here != snapshot.host or gone is not None:
        why = f"{gone} does not exist here" if gone is not None and here == snapshot.host else f"this is {here}"
        raise MissingHereError(
            f"skipped: its binds are for {snapshot.host}, but {why}", hint=f"run the check on {snapshot.host}"
        )
