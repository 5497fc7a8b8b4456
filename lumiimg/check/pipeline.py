"""`lumiimg check`: take the highest level that can be taken here, and say what the others would add."""

from __future__ import annotations

import platform
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from lumiimg.check.answer import decide, levels_taken, merge_levels, next_step, sentence
from lumiimg.check.probe import simulation
from lumiimg.check.probe.task import (
    ProbeTask,
    carry_out,
    find_all_reduce,
    inconclusive_because,
    make_task,
)
from lumiimg.check.run.collective import CollectiveOutcome  # noqa: TC001 - `decode` reads the types of the fields
from lumiimg.check.run.execution import NO_GPU, RunResult, count_gpus, has_gpu, run_collective, start_here
from lumiimg.check.static.commands import with_commands
from lumiimg.check.static.files import check_files
from lumiimg.check.steps import fabric_steps
from lumiimg.core.errors import LumiimgError, MissingHereError
from lumiimg.core.files import temporary_folder
from lumiimg.core.findings import NO_ADVICE, Advice, Answer, Finding, Level
from lumiimg.core.text import count
from lumiimg.engine.engine import Engine, find_engine
from lumiimg.engine.workspace import scratch_folder
from lumiimg.host.origins import origins
from lumiimg.inventory.gpu_fit import GpuAccount  # noqa: TC001 - `decode` reads the types of the fields

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lumiimg.check.context import ImageInContext
    from lumiimg.check.probe.container import Container, ProbePrograms, ProbeRun
    from lumiimg.check.probe.judgement import ProbeResult
    from lumiimg.check.static.files import HostFit
    from lumiimg.fabric.path import FabricPath, Step

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
    if level is Level.STATIC or files.static.path.rccl is None:
        why = NOT_ASKED if level is Level.STATIC else NO_RCCL
        return _report(context, files, levels_taken(why, why), level_was_asked_for=level is not None)
    probed, higher = None, None
    without_gpu = f"not taken: {NO_GPU}" if level is None and not has_gpu() else None
    try:
        _refuse_elsewhere(context, files)
        with scratch_folder(temporary_folder(), "lumiimg-check-") as folder:
            upto = Level.PROBE if without_gpu else level
            higher = HigherLevels.prepare(context, files, upto, folder, simulate=simulate)
            probed = carry_out(higher.task, higher.engine, context.environment)
            if higher.counter is not None:
                with higher.or_why_not():
                    higher.ran = run_collective(
                        higher.container(),
                        context,
                        files.static,
                        higher.folder,
                        start_here,
                        gpus=count_gpus(higher.container(), files.static.path.rccl),
                        version=probed.loaded_rccl,
                        inconclusive=inconclusive_because(context.environment),
                    )
        levels = levels_taken(simulation.DONE if simulate else "done", without_gpu or higher.why)
    except MissingHereError as error:
        if level is not None or simulate:
            raise
        levels = levels_taken(str(error), str(error))
    ran = higher.ran if higher else None
    return _report(context, files, levels, probed, ran, level_was_asked_for=level is not None)


@dataclass(slots=True)
class HigherLevels:
    """The levels above the files while they are taken, here or on nodes: what they need, what became of level run."""

    context: ImageInContext
    level: Level | None
    """The highest that is wanted; None: as far as is possible."""
    engine: Engine
    task: ProbeTask
    folder: Path
    """Of the run."""
    counter: ProbePrograms | None = None
    """What counts GPUs, and is a collective if need be; None where none is to be run."""
    without: str = NOT_ASKED
    """Why level run is not taken."""
    ran: RunResult | None = None

    @classmethod
    def prepare(
        cls, context: ImageInContext, files: HostFit, level: Level | None, folder: Path, *, simulate: bool
    ) -> HigherLevels:
        """Make ready what the probes and the run need, in a folder that is seen wherever they are.

        Raises MissingHereError where that of the probes is not here, or that of a run which was asked for.
        """
        (programs := folder / "programs").mkdir()
        (of_run := folder / "run").mkdir()
        engine = find_engine(context.environment)
        task = make_task(engine, context, files, programs, simulate=simulate)
        levels = cls(context, level, engine, task, of_run)
        if level is not Level.PROBE:
            with levels.or_why_not():
                levels.counter = find_all_reduce(engine, context, task, of_run)
        return levels

    @contextmanager
    def or_why_not(self, *, answers_stand: bool = False) -> Iterator[None]:
        """Keep the reason why level run is not taken; raise MissingHereError where it was asked for.

        `answers_stand`: what the probes have found is reported all the same, whatever else goes wrong.
        """
        try:
            yield
        except LumiimgError as error:
            is_missing = isinstance(error, MissingHereError)
            if not answers_stand and (self.level is Level.RUN or not is_missing):
                raise
            self.without = f"{'not taken' if is_missing else 'failed'}: {error}"

    def container(self) -> Container:
        """Return the container of a collective."""
        return self.task.container(self.engine, self.context.environment, self.counter)

    @property
    def why(self) -> str:
        """What became of level run."""
        return (
            f"done: {self.ran.outcome.program}, {count(self.ran.outcome.ranks, 'rank')}" if self.ran else self.without
        )


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


def _refuse_elsewhere(context: ImageInContext, files: HostFit) -> None:
    """Raise MissingHereError where the libraries that are bound are those of another machine."""
    snapshot = context.snapshot
    if snapshot is None or files.manifest is None or not files.manifest.binds:
        return
    here = platform.node().partition(".")[0]
    gone = next((bind.source for bind in files.manifest.binds if not Path(bind.source).exists()), None)
    if here != snapshot.host or gone is not None:
        why = f"{gone} is not here" if gone is not None and here == snapshot.host else f"this is {here}"
        raise MissingHereError(
            f"not taken: its binds are those of {snapshot.host}, {why}", hint=f"run the check on {snapshot.host}"
        )
