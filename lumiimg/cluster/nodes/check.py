"""`lumiimg check --nodes N`: the probes of one image on every node of a job, and what the nodes come to together.

The files of the image are read once, here. One step starts one process per node. It carries out the task in a folder
that all nodes share, and puts its answer beside it; nothing is read out of the step's output.
"""

from __future__ import annotations

import secrets
import sys
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import lumiimg
from lumiimg.check.advice import advice_from_findings
from lumiimg.check.answer import Answer
from lumiimg.check.pipeline import NO_RCCL, NOT_ASKED, check_files, conclude
from lumiimg.check.probe.task import ProbeTask, find_all_reduce, make_task
from lumiimg.check.run.collective import CollectiveOutcome  # noqa: TC001 - the codec reads the types of the fields
from lumiimg.check.run.execution import RunResult, run_collective
from lumiimg.check.static.gpu_code import GpuAccount  # noqa: TC001 - as above
from lumiimg.cluster.nodes.answers import Fingerprint, Library  # noqa: TC001 - as above
from lumiimg.cluster.nodes.collective import shared_gpus, step_on, without_nic
from lumiimg.cluster.nodes.differences import differences
from lumiimg.cluster.nodes.groups import FingerprintGroup, NodeAnswers, UnresponsiveNodes, gather
from lumiimg.cluster.nodes.node_task import SCHEMA, NodeTask, identity_of, write_task
from lumiimg.cluster.nodes.slurm import Allocation, run_step
from lumiimg.cluster.nodes.watch import Waiting, Watch, limit_s
from lumiimg.engine.engine import find_engine
from lumiimg.engine.own_folder import own_folder
from lumiimg.errors import BadInputError, LumiimgError, MissingHereError, one_line
from lumiimg.fabric.path import FabricPath, Step  # noqa: TC001 - as above
from lumiimg.findings import NO_ADVICE, Advice, Finding, Level
from lumiimg.nccl.node_names import folded
from lumiimg.wording import count

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from lumiimg.check.context import ImageInContext
    from lumiimg.check.probe.programs import ProbePrograms
    from lumiimg.check.static.host_fit import HostFit
    from lumiimg.cluster.nodes.request import NodesRequest
    from lumiimg.engine.process import Completed

_OUTPUT_LINES = 6
_LONG_NAMES = 200
"""Characters of names of nodes, above which too many are at fault to go on without them."""
_WORST_FIRST = (Answer.NO, Answer.UNDECIDED, Answer.NO_OBSTACLE)
_CUT_OFF = "not done: the job ended before it did"


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """Nodes that are the same, and what that means."""

    nodes: tuple[str, ...]
    """Names."""
    answer: Answer
    """Of these nodes."""
    sentence: str
    """The answer for a person."""
    differs: tuple[str, ...]
    """From the largest group, in a few words; empty for that one."""
    path: FabricPath
    """As it is on these nodes."""
    findings: tuple[Finding, ...]
    """On these nodes."""
    libraries: tuple[Library, ...]
    """That were in the processes of the probes."""
    slowest_ms: int
    """That the slowest node took, in milliseconds."""
    gpus: int | None = None
    """Of one node, as HIP says there; None where it was not asked."""
    steps: tuple[Step, ...] = ()
    """The path step by step, with what is known of each."""


@dataclass(frozen=True, slots=True)
class NodesReport:
    """The same on N nodes of a job; identical nodes are reported as one group."""

    image: str
    """As it was named."""
    job: str
    """Number of the job."""
    answer: Answer
    """The exit code says the same: `no-obstacle` 0, `no` 1, `undecided` 3."""
    sentence: str
    """The answer for a person."""
    levels: dict[str, str]
    """What became of each level, by its name: `done`, or why it was not taken."""
    groups: tuple[NodeGroup, ...]
    """Those that say no first, then the largest."""
    silent: tuple[UnresponsiveNodes, ...]
    """Nodes that gave no answer."""
    output: tuple[str, ...]
    """What the step printed at its end, where nodes are silent: for people."""
    collective: CollectiveOutcome | None = None
    """What the collective of level run came to."""
    gpu: GpuAccount | None = None
    """Whether the GPU of --host or --site takes the image's code; null where none of AMD's is known."""
    advice: Advice = NO_ADVICE
    """Why, and what to do."""


def own_command() -> list[str]:
    """Return how this program is started on another node that has the same files, from a checkout too.

    Not out of the folder it is started in (-P), and without PYTHONPATH, which would reach the container. From a zip
    file it is that file: what it unpacks lies on this node alone.
    """
    if lumiimg.archive is not None:
        return [sys.executable, lumiimg.archive]
    home = str(Path(lumiimg.__file__).parent.parent)
    code = f"import sys; sys.path.append({home!r}); from lumiimg.cli.main import run; run()"
    return [sys.executable, "-P", "-c", code]


@contextmanager
def shared_folder() -> Iterator[Path]:
    """Make a folder for a check where the user is, which all nodes share as a rule; it is gone afterwards.

    What a check of this machine left there when it was killed is removed.

    Raises BadInputError where nothing can be written.
    """
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(own_folder(Path.cwd(), ".lumiimg-check-"))
        except OSError as error:
            raise BadInputError(
                f"the answers of the nodes cannot be put here: {error.strerror}",
                where=str(Path.cwd()),
                hint="start the check in a folder that can be written and that all nodes share",
            ) from error
        yield folder


def check_nodes(
    context: ImageInContext,
    request: NodesRequest,
    allocation: Allocation,
    on_progress: Callable[[Waiting], None],
    on_probed: Callable[[NodesReport], None],
) -> NodesReport:
    """Check an image on nodes of a job; `on_progress` hears twice a second how far it is.

    `on_probed` hears what the probes came to, before a collective begins that may outlast the job.

    This process may be on a login node, in the shell of salloc: what GPUs there are is what the nodes answer.

    Raises BadInputError for what cannot be read or more nodes than the job has, MissingHereError without an engine or
    the programs of a level on this node.
    """
    if request.nodes > len(allocation.nodes):
        what = f"job {allocation.job} has {count(len(allocation.nodes), 'node')}"
        raise BadInputError(what, where=f"--nodes {request.nodes}")
    nodes, environment = allocation.nodes[: request.nodes], context.environment
    engine = find_engine(environment)
    with shared_folder() as folder:
        files = check_files(context)
        static = files.static
        if static.path.rccl is None:
            return _without_rccl(context, files, nodes, allocation.job)
        programs, run = folder / "programs", folder / "run"
        programs.mkdir()
        run.mkdir()
        probes = make_task(engine, context, static, files.manifest, programs, simulate=request.simulate)
        owes_run = request.level is Level.RUN
        counter, ran, why = None, None, NOT_ASKED
        if request.level is not Level.PROBE:
            try:
                counter = find_all_reduce(engine, context, probes, run)
            except MissingHereError as error:
                if owes_run:
                    raise
                why = f"not taken: {error}"
        gathered, done = _ask(folder, nodes, probes, counter, environment, on_progress, allocation.ends)
        well = [group for group in gathered.groups if group.fingerprint.trouble is None]
        if counter is not None:
            try:
                gpus = shared_gpus(well)
                owes_run = True
                on_probed(build_report(context, files, allocation.job, gathered, why=_CUT_OFF, owes_run=True))
                if gathered.out_of_time:
                    raise MissingHereError("the time of the job is up", hint="--sbatch=--time=30, or salloc --time=30")
                taking_part = [node for node in nodes if any(node in group.nodes for group in well)]
                ran = run_collective(
                    probes.container(engine, environment, counter),
                    context,
                    static,
                    run,
                    step_on(taking_part),
                    gpus=gpus,
                    nodes=len(taking_part),
                    version=well[0].fingerprint.rccl,
                    inconclusive=without_nic(well),
                    without=request.without,
                )
            except LumiimgError as error:  # what the nodes have answered stands
                why = f"{'not taken' if isinstance(error, MissingHereError) else 'failed'}: {error}"
        return build_report(context, files, allocation.job, gathered, ran, why, _tail(done), owes_run=owes_run)


def build_report(
    context: ImageInContext,
    files: HostFit,
    job: str,
    gathered: NodeAnswers,
    ran: RunResult | None = None,
    why: str = NOT_ASKED,
    output: tuple[str, ...] = (),
    *,
    owes_run: bool = False,
) -> NodesReport:
    """Return what the answers come to, with what the files of the image say.

    `ran`: a collective over all of the nodes; `why` there was none. `owes_run`: one was asked for, or begun, so that
    without one the question is open. `output` is that of the step.
    """
    usual = gathered.groups[0].fingerprint if gathered.groups else None
    found = [_group(context, files, group, usual, ran) for group in gathered.groups]
    groups = tuple(sorted(found, key=lambda group: _WORST_FIRST.index(group.answer)))
    silent = gathered.silent
    answer = _answer(groups, silent)
    outcome = ran.outcome if ran is not None else None
    levels = {
        Level.STATIC.value: "done",
        Level.PROBE.value: f"done on {count(sum(len(group.nodes) for group in groups), 'node')}",
        Level.RUN.value: f"done: {outcome.program}, {count(outcome.ranks, 'rank')}" if outcome is not None else why,
    }
    words = _sentence(answer, groups, silent)
    missing = f"level run {why}" if owes_run and ran is None else None
    if answer is Answer.NO_OBSTACLE and missing is not None:
        answer, words = Answer.UNDECIDED, f"CANNOT TELL: {missing}; {words}"
    return NodesReport(
        image=str(context.path),
        job=job,
        answer=answer,
        sentence=words,
        levels=levels,
        groups=groups,
        silent=silent,
        output=output if silent else (),
        collective=outcome,
        gpu=files.gpu,
        advice=_advice(answer, groups, silent, missing),
    )


def _without_rccl(context: ImageInContext, files: HostFit, nodes: tuple[str, ...], job: str) -> NodesReport:
    """Return what an image comes to in which there is nothing to run: the same on all nodes."""
    found = conclude(context, files, files.static.path, level=Level.STATIC)
    path = files.static.path
    group = NodeGroup(nodes, found.answer, found.sentence, (), path, found.findings, (), 0, steps=found.steps)
    levels = {Level.STATIC.value: "done", Level.PROBE.value: NO_RCCL, Level.RUN.value: NO_RCCL}
    advice = advice_from_findings(found.answer, found.findings, str(context.path))
    asked = (str(context.path), job, found.answer, found.sentence)
    return NodesReport(*asked, levels, (group,), (), (), gpu=files.gpu, advice=advice)


def _advice(
    answer: Answer, groups: Sequence[NodeGroup], silent: Sequence[UnresponsiveNodes], missing: str | None
) -> Advice:
    """Return why, and what to do: where the image works on other nodes, the nodes are at fault, and not the image."""
    worst = next((group for group in groups if group.answer is answer), None)
    if answer is Answer.UNDECIDED and silent:
        bad = [node for entry in silent for node in entry.nodes]
        why = f"{count(len(bad), 'node')} gave no answer: {silent[0].why}"
    elif worst is None:
        return Advice(missing)
    else:
        of_group = advice_from_findings(worst.answer, worst.findings)
        if len(groups) == 1 or answer is Answer.NO_OBSTACLE:
            return of_group if answer is not Answer.UNDECIDED or of_group.why else Advice(missing)
        bad = [*worst.nodes]
        why = f"on {count(len(bad), 'node')}: {of_group.why or worst.sentence}"
    names = folded(bad)
    fine = len(names) < _LONG_NAMES and any(group.answer is Answer.NO_OBSTACLE for group in groups)
    return Advice(why, f"#SBATCH --exclude={names}", "in the job script") if fine else Advice(why)


def _ask(
    folder: Path,
    nodes: Sequence[str],
    probes: ProbeTask,
    counter: ProbePrograms | None,
    environment: Mapping[str, str],
    on_progress: Callable[[Waiting], None],
    job_ends: float | None = None,
) -> tuple[NodeAnswers, Completed]:
    """Run the step and gather.

    Slurm ends a step of which one node cannot be reached, some time after it has begun: nodes that were at it then are
    asked once more, without the others.
    """
    run = secrets.token_hex(8)
    write_task(folder, NodeTask(SCHEMA, run, identity_of(Path(probes.image)), probes, counter))
    argv: list[str | Path] = [*own_command(), "node", folder]
    watch = Watch(folder, nodes, on_progress, job_ends=job_ends)
    done = run_step(nodes, argv, environment, timeout_s=limit_s(len(nodes)), give_up=watch.is_over)
    watch.look()
    cut = [node for node in nodes if node in watch.waiting and node in watch.started]
    if not done.ok and not done.timed_out and 0 < len(cut) < len(nodes):
        before = len(nodes) - len(watch.waiting)
        again = Watch(
            folder, cut, lambda now: on_progress(replace(now, answered=before + now.answered)), job_ends=job_ends
        )
        run_step(cut, argv, environment, timeout_s=limit_s(len(cut)), give_up=again.is_over)
    return gather(folder, run, nodes, watch.started, out_of_time=watch.out_of_time), done


def _group(
    context: ImageInContext, files: HostFit, group: FingerprintGroup, usual: Fingerprint | None, ran: RunResult | None
) -> NodeGroup:
    """Return what nodes that are the same come to; `ran` counts for those that were probed."""
    here = group.fingerprint
    ran = ran if here.trouble is None else None
    level = Level.STATIC if here.trouble else Level.RUN if ran is not None else Level.PROBE
    found = conclude(context, files, here.fabric, group.findings, ran, level=level)
    return NodeGroup(
        nodes=group.nodes,
        answer=found.answer if here.trouble is None else Answer.UNDECIDED,
        sentence=found.sentence if here.trouble is None else f"CANNOT TELL: not probed: {here.trouble}",
        differs=differences(here, usual) if usual else (),
        path=here.fabric,
        steps=found.steps,
        findings=found.findings,
        libraries=here.libraries,
        slowest_ms=group.slowest_ms,
        gpus=here.gpus,
    )


def _answer(groups: Sequence[NodeGroup], silent: Sequence[UnresponsiveNodes]) -> Answer:
    """Return the answer for all: one node that says no is a no, one that says nothing leaves it open."""
    answers = {group.answer for group in groups}
    if Answer.NO in answers:
        return Answer.NO
    return Answer.UNDECIDED if silent or Answer.UNDECIDED in answers else Answer.NO_OBSTACLE


def _sentence(answer: Answer, groups: Sequence[NodeGroup], silent: Sequence[UnresponsiveNodes]) -> str:
    """Return the answer with the tally: 60 the same, 3 with another libcxi, 1 gave no answer."""
    total = sum(len(group.nodes) for group in groups) + sum(len(entry.nodes) for entry in silent)
    if len(groups) == 1 and not silent:
        return f"{groups[0].sentence} ({count(total, 'node')}{', all the same' if total > 1 else ''})"
    tally = [
        f"{len(group.nodes)} {group.differs[0] if group.differs else 'the same'}"
        for group in sorted(groups, key=lambda group: bool(group.differs))
    ]
    tally += [f"{len(entry.nodes)} {entry.why}" for entry in silent]
    concerned = [group for group in groups if group.answer is answer]
    number = sum(len(group.nodes) for group in concerned)
    if answer is Answer.UNDECIDED:
        number += sum(len(entry.nodes) for entry in silent)
    of = f"{number} of {count(total, 'node')}"
    start = {
        Answer.NO: f"NO on {of}",
        Answer.UNDECIDED: f"CANNOT TELL for {of}",
        Answer.NO_OBSTACLE: f"no obstacle found on {of}",
    }[answer]
    return f"{start}: {'; '.join(tally)}"


def _tail(done: Completed) -> tuple[str, ...]:
    lines = [one_line(line.rstrip()) for line in done.output.splitlines() if line.strip()]
    return tuple(dict.fromkeys(lines[-50 * _OUTPUT_LINES :]))[-_OUTPUT_LINES:]
