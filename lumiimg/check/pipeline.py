"""`lumiimg check`: take the highest level that can be taken here, and say what the others would add."""

from __future__ import annotations

import platform
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from lumiimg.check.advice import next_step
from lumiimg.check.answer import Answer, decide, levels_taken, merge_levels, sentence
from lumiimg.check.probe import simulation
from lumiimg.check.probe.task import (
    ProbeTask,
    carry_out,
    find_all_reduce,
    inconclusive_because,
    make_task,
)
from lumiimg.check.run.collective import CollectiveOutcome  # noqa: TC001 - the codec reads the types of the fields
from lumiimg.check.run.execution import RunResult, count_gpus, refuse_without_gpu, run_collective, start_here
from lumiimg.check.static.commands import with_commands
from lumiimg.check.static.files import check_files
from lumiimg.check.steps import fabric_steps, origins
from lumiimg.engine.engine import Engine, find_engine
from lumiimg.engine.workspace import scratch_folder
from lumiimg.errors import MissingHereError
from lumiimg.files import temporary_folder
from lumiimg.findings import NO_ADVICE, Advice, Finding, Level
from lumiimg.resolve.gpu_account import GpuAccount  # noqa: TC001 - the codec reads the types of the fields

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumiimg.check.context import ImageInContext
    from lumiimg.check.probe.container import ProbeRun
    from lumiimg.check.probe.judgement import ProbeResult
    from lumiimg.check.static.host_fit import HostFit
    from lumiimg.fabric.path import FabricPath, Step
    from lumiimg.host.manifest import BindManifest
    from lumiimg.host.snapshot import Snapshot

NOT_ASKED = "not asked for"
NO_RCCL = "there is no RCCL to run"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Whether RCCL in an image would use the fast network: what is said of it on one machine, and on many nodes."""

    image: str
    """As it was named."""
    answer: Answer
    """The exit code says the same: `no-obstacle` 0, `no` 1, `undecided` 3."""
    sentence: str
    """The answer for a person."""
    levels: dict[str, str]
    """What became of each level, by its name: `done`, or why it was not taken."""
    collective: CollectiveOutcome | None = field(default=None, kw_only=True)
    """What the collective of level run came to."""
    gpu: GpuAccount | None = field(default=None, kw_only=True)
    """Whether the GPU of --host, else of --site, takes the image's code; null where none of AMD's is known."""
    advice: Advice = field(default=NO_ADVICE, kw_only=True)
    """Why, and what to do."""


@dataclass(frozen=True, slots=True)
class CheckReport(CheckResult):
    """Whether RCCL in an image would use the fast network on one machine, with the evidence."""

    level: Level
    """The highest level that was taken."""
    path: FabricPath
    """The path that a collective's bytes take."""
    steps: tuple[Step, ...]
    """The path, with what is known of each of its steps."""
    findings: tuple[Finding, ...]
    """What was found, as it bears on the answer."""
    files: HostFit
    """The account of the image's libraries: which comes from where, and what margin is left."""
    runs: tuple[ProbeRun, ...] = ()
    """What the probes said; empty below level `probe`."""


@dataclass(frozen=True, slots=True)
class Conclusion:
    """What the findings of all levels come to, on one node or on nodes that are the same."""

    answer: Answer
    sentence: str
    findings: tuple[Finding, ...]
    steps: tuple[Step, ...]


def check_image(context: ImageInContext, level: Level | None, *, simulate: bool = False) -> CheckReport:
    """Check an image up to `level`, or as far as is possible here if it is None; with what a host offers, if given.

    `simulate`: ask RCCL with a stand-in for HIP too (`probe/simulation.py`).

    Raises BadInputError for what cannot be read, MissingHereError if `level` or the simulation needs what is not here.
    """
    files = check_files(context)
    probed: ProbeResult | None = None
    ran: RunResult | None = None
    if level is Level.STATIC or files.static.path.rccl is None:
        why = NOT_ASKED if level is Level.STATIC else NO_RCCL
        return _report(context, files, levels_taken(why, why), level_was_asked_for=level is not None)
    run = NOT_ASKED
    try:
        if files.manifest is not None and files.manifest.binds and context.snapshot is not None:
            _refuse_elsewhere(files.manifest, context.snapshot)
        engine = find_engine(context.environment)
        with scratch_folder(temporary_folder(), "lumiimg-probe-") as folder:
            task = make_task(engine, context, files, folder, simulate=simulate)
            probed = carry_out(task, engine, context.environment)
        if level is not Level.PROBE:
            ran, run = _run_here(engine, context, task, probed, is_owed=level is Level.RUN)
        levels = levels_taken(simulation.DONE if simulate else "done", run)
    except MissingHereError as error:
        if level is not None or simulate:
            raise
        levels = levels_taken(str(error), str(error))
    return _report(context, files, levels, probed, ran, level_was_asked_for=level is not None)


def explain_image(context: ImageInContext) -> CheckReport:
    """Check the files of an image with what a site binds as well: what `explain` shows is the account of libraries."""
    files = check_files(context, with_site=True)
    return _report(context, files, levels_taken(NOT_ASKED, NOT_ASKED), level_was_asked_for=True)


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
    concluded = conclude(
        context,
        files,
        path,
        probed.findings.found if probed else (),
        ran,
        level=taken,
        level_was_asked_for=level_was_asked_for,
        plugin_version=probed.plugin_version if probed else None,
    )
    return CheckReport(
        image=str(context.path),
        answer=concluded.answer,
        sentence=concluded.sentence,
        advice=next_step(concluded.answer, concluded.findings, context, level=taken, limited=level_was_asked_for),
        level=taken,
        levels=levels,
        path=path,
        steps=concluded.steps,
        findings=concluded.findings,
        files=files.with_findings(concluded.findings),
        runs=tuple(probed.runs) if probed else (),
        collective=ran.outcome if ran else None,
        gpu=files.gpu,
    )


def conclude(
    context: ImageInContext,
    files: HostFit,
    path: FabricPath,
    probed: Sequence[Finding] = (),
    ran: RunResult | None = None,
    *,
    level: Level,
    level_was_asked_for: bool = False,
    plugin_version: str | None = None,
) -> Conclusion:
    """Return what was found at all levels as one account, and what it comes to; `level` is the highest of them.

    `path`: as it was seen at that level.
    """
    findings = final_findings(context, files.static.findings, probed, ran.findings.found if ran else ())
    answer = decide(findings, path, level=level, level_was_asked_for=level_was_asked_for)
    loaded = files.manifest.loaded if files.manifest else ()
    known = origins(path, context.image, context.read_by_engine, loaded, running=level is not Level.STATIC)
    verdict = ran.outcome.verdict.value if ran else None
    steps = fabric_steps(path, findings, known, plugin_version=plugin_version, verdict=verdict)
    return Conclusion(answer, sentence(answer, findings, level), findings, steps)


def final_findings(
    context: ImageInContext, static: Sequence[Finding], probed: Sequence[Finding] = (), ran: Sequence[Finding] = ()
) -> tuple[Finding, ...]:
    """Return the findings of all levels as one account, with the command that would mend what is lacking."""
    return with_commands(context, merge_levels(static, probed, ran))


def _run_here(
    engine: Engine, context: ImageInContext, task: ProbeTask, probed: ProbeResult, *, is_owed: bool
) -> tuple[RunResult | None, str]:
    """Return what a collective on the GPUs of this node comes to, and what became of level run.

    `is_owed`: raise MissingHereError if HIP finds no GPU in the container, or no program can be had that asks it.
    """
    try:
        if not is_owed:
            refuse_without_gpu()
        with scratch_folder(temporary_folder(), "lumiimg-run-") as folder:
            programs = find_all_reduce(engine, context, task, folder)
            container = task.container(engine, context.environment, programs)
            ran = run_collective(
                container,
                context,
                task.static,
                folder,
                start_here,
                gpus=count_gpus(container, task.static.path.rccl or ""),
                version=probed.loaded_rccl,
                inconclusive=inconclusive_because(context.environment),
            )
    except MissingHereError as error:
        if is_owed:
            raise
        return None, f"not taken: {error}"
    return ran, f"done: {ran.outcome.program}"


def _refuse_elsewhere(manifest: BindManifest, snapshot: Snapshot) -> None:
    """Raise MissingHereError where the libraries that a manifest binds are those of another machine."""
    here = platform.node().partition(".")[0]
    gone = next((bind.source for bind in manifest.binds if not Path(bind.source).exists()), None)
    if here != snapshot.host or gone is not None:
        why = f"{gone} is not here" if gone is not None and here == snapshot.host else f"this is {here}"
        raise MissingHereError(
            f"not taken: its binds are those of {snapshot.host}, {why}", hint=f"run the check on {snapshot.host}"
        )
