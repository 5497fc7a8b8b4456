"""`lumiimg check --nodes N`: probe one image on every node of a job, and combine the nodes' answers.

One step starts one process per node, which carries out the task found in a folder that all nodes share and writes its
answer there. Outside an allocation, a Slurm job runs the same command, and its report is read when it has ended.
"""

from __future__ import annotations

import math
import os
import secrets
import shlex
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from lumiimg.check.pipeline import run_levels
from lumiimg.check.run.execution import LIMIT_S, Ranks
from lumiimg.check.static.files import check_files
from lumiimg.cluster.nodes.node import ANSWER, SHARED, STARTED, NodeTask, gather, identity_of, node_of_file, write_task
from lumiimg.cluster.nodes.report import NodesReport, build_report, read_report
from lumiimg.cluster.nodes.slurm import is_job_number, own_command, run_job, run_step, shared_folder
from lumiimg.core.decode import DecodeError, decode_json, read_whole
from lumiimg.core.errors import BadInputError, MissingHereError, UndecidedError, one_line
from lumiimg.core.files import read_beginning
from lumiimg.core.text import count, hostlist, shell_quote

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import BinaryIO

    from lumiimg.check.context import ImageInContext
    from lumiimg.check.probe.container import Container, ProbePrograms
    from lumiimg.check.probe.task import ProbeTask
    from lumiimg.check.static.files import HostFit
    from lumiimg.cluster.nodes.node import NodeAnswers, NodesAlike
    from lumiimg.cluster.nodes.slurm import Allocation
    from lumiimg.core.findings import Level
    from lumiimg.engine.engine import Engine
    from lumiimg.engine.process import Completed

NODE_LIMIT_S = 300.0
"""Per node, from its start; the probe reports a hanging plugin after a minute, hanging HIP after two."""
START_LIMIT_S = 120.0
"""For a node to start, counted from the start of the first one; plus, for each node of the check:"""
START_LIMIT_PER_NODE_S = 0.05
"""All nodes read Python and lumiimg from one file system at once. The project's own choice, not measured."""
FIRST_LIMIT_S = 600.0
"""For the first node to start: Slurm may have to boot it."""
END_LIMIT_S = 30.0
"""For the step to end after all nodes have answered."""
RESERVE_S = 20.0
"""Time before the job's limit that is reserved to end the step and combine the answers received."""
_LOOK_EVERY_S = 0.5
TOGETHER_LIMIT_S = LIMIT_S + 60.0
"""For the step of a collective; one minute of it is for Slurm to start it."""
_ASK = "request all GPUs of each node: salloc --gpus-per-node=8, or --sbatch='--gpus-per-node=8'"
_OUTPUT_LINES = 6
_REPORT = "report.json"
_OUTPUT = "job.out"
_PREPARE_S = 120.0
"""For reading the files of the image and compiling the probe programs."""
_MAX_BYTES = 64 << 20
# --no-kill: a failing node is a result. --exclusive: other jobs, or too few cores, would slow a collective down, which
# would be reported as a no; the user's own options can undo it with --oversubscribe.
_SCRIPT = """\
#!/bin/bash
#SBATCH --job-name=lumiimg-check
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --time={minutes}
#SBATCH --no-kill
exec {command} >{report}
"""


def check_nodes(
    context: ImageInContext,
    nodes: int,
    level: Level | None,
    allocation: Allocation,
    on_progress: Callable[[Waiting], None],
    *,
    simulate: bool = False,
    without: str | None = None,
    earlier: NodesReport | None = None,
) -> NodesReport:
    """Check an image on `nodes` nodes of a job, up to `level`; None: up to the highest level possible there.

    `on_progress` is called twice a second with the progress. `simulate`: see `check_image`. `without`: a variable that
    the collective gets neither from the site nor from the image. `earlier`: see `build_report`. This process may be on
    a login node, in the shell of salloc, so the number of GPUs comes from the nodes' answers.

    Raises BadInputError for unreadable input or more nodes than the job has, MissingHereError if this node lacks an
    engine or the programs of a level.
    """
    if nodes > len(allocation.nodes):
        what = f"job {allocation.job} has {count(len(allocation.nodes), 'node')}"
        raise BadInputError(what, where=f"--nodes {nodes}")
    job, names, files = allocation.job, allocation.nodes[:nodes], files_for_nodes(context)
    with shared_folder() as folder:
        of_nodes = NodesOfJob(folder, names, context.environment, on_progress, allocation.ends)
        taken = run_levels(context, files, level, folder, of_nodes, simulate=simulate, without=without)
    return build_report(context, files, job, taken, last_lines(of_nodes.done), earlier)


def report_to_complete(path: Path, image: Path) -> NodesReport:
    """Return a report about this image in which some nodes gave no answer. Raises BadInputError for any other file."""
    earlier = read_report(path)
    if earlier.image != str(image.absolute()):
        raise BadInputError(f"is a report about another image: {earlier.image}", where=str(path))
    if not earlier.silent:
        raise BadInputError("all nodes answered in it", where=str(path), hint="--nodes N checks all again")
    return earlier


def files_for_nodes(context: ImageInContext) -> HostFit:
    """Return the result of checking the image's files. Raises BadInputError if nodes would have nothing to test."""
    files = check_files(context)
    if files.static.path.rccl is None:
        hint = f"without --nodes: lumiimg check {shell_quote(context.name)}"
        raise BadInputError("has no RCCL to test on nodes", where=str(context.path), hint=hint)
    return files


@dataclass(slots=True)
class NodesOfJob:
    """The nodes of a job, which run the levels above static."""

    folder: Path
    names: Sequence[str]
    environment: Mapping[str, str]
    on_progress: Callable[[Waiting], None]
    job_ends: float | None
    done: Completed | None = None
    """The finished step of the probes."""
    answers_stand: bool = True

    def probe(self, _: Engine, task: ProbeTask, counter: ProbePrograms | None) -> NodeAnswers:
        """Run a step with one process per node, and gather the answers.

        If a node cannot be reached, Slurm ends the step some time after it began: the nodes whose probes this cut short
        are asked once more, without the others.
        """
        run = secrets.token_hex(8)
        write_task(self.folder, NodeTask(run, identity_of(Path(task.image)), task, counter))
        watch, self.done = self._step(self.names, self.on_progress)
        cut = [node for node in self.names if node in watch.waiting and node in watch.started]
        if not self.done.ok and not self.done.timed_out and 0 < len(cut) < len(self.names):
            before = len(self.names) - len(watch.waiting)
            self._step(cut, lambda now: self.on_progress(replace(now, answered=before + now.answered)))
        printed = self.done.output
        return gather(self.folder, run, self.names, watch.started, out_of_time=watch.out_of_time, printed=printed)

    def _step(self, names: Sequence[str], on_progress: Callable[[Waiting], None]) -> tuple[Watch, Completed]:
        watch = Watch(self.folder, names, on_progress, job_ends=self.job_ends)
        argv: list[str | Path] = [*own_command(), "node", self.folder]
        done = run_step(names, argv, self.environment, timeout_s=limit_s(len(names)), give_up=watch.is_over)
        watch.look()
        return watch, done

    def ranks(self, gathered: NodeAnswers, _: Container) -> Ranks:
        """Return the ranks of a collective over the nodes that could be probed. Raises MissingHereError."""
        well = [group for group in gathered.groups if group.answer.trouble is None]
        gpus, probed = shared_gpus(well), {node for group in well for node in group.nodes}
        nodes = [node for node in self.names if node in probed]
        return Ranks(partial(self.start, nodes), len(nodes), gpus, well[0].answer.rccl, without_nic(well))

    def start(
        self, nodes: Sequence[str], words: Sequence[str | Path], environment: Mapping[str, str], log: BinaryIO
    ) -> Completed:
        """Run a collective once on each of these nodes, and end it before the job's time limit."""
        left_s = math.inf if self.job_ends is None else self.job_ends - RESERVE_S - time.monotonic()
        limit_s = min(TOGETHER_LIMIT_S, left_s)
        done = None
        if limit_s > 0:
            done = run_step(nodes, words, environment, timeout_s=limit_s, together=True, log=log)
        if done is None or (done.timed_out and limit_s < TOGETHER_LIMIT_S):
            raise MissingHereError("the job's time limit is reached", hint="--sbatch=--time=30, or salloc --time=30")
        return done


def last_lines(done: Completed | None) -> tuple[str, ...]:
    """Return the last lines that a step printed, without repeats."""
    lines = [one_line(line.rstrip()) for line in (done.output if done else "").splitlines() if line.strip()]
    return tuple(dict.fromkeys(lines[-50 * _OUTPUT_LINES :]))[-_OUTPUT_LINES:]


def shared_gpus(groups: Sequence[NodesAlike]) -> int:
    """Return the number of GPUs per node, as HIP reports it on the nodes of these groups.

    Raises MissingHereError if they have none, or not all the same number.
    """
    if not groups:
        raise MissingHereError("no node could be probed")
    nodes_by_gpus: dict[int, list[str]] = {}
    for group in groups:
        nodes_by_gpus.setdefault(group.answer.gpus or 0, []).extend(group.nodes)
    if nodes_by_gpus.keys() == {0}:
        why = next((group.answer.no_gpu for group in groups if group.answer.no_gpu), None)
        raise MissingHereError(why or "HIP finds no GPU in the container", hint=_ASK)
    if len(nodes_by_gpus) != 1:
        counts = (f"{gpus} on {hostlist(sorted(nodes))}" for gpus, nodes in sorted(nodes_by_gpus.items()))
        raise MissingHereError(f"the nodes have different numbers of GPUs: {', '.join(counts)}", hint=_ASK)
    return next(iter(nodes_by_gpus))


def without_nic(groups: Sequence[NodesAlike]) -> str | None:
    """Return why a collective over these nodes proves nothing about the image; None if each node has a usable NIC."""
    of_groups = (g.nodes for g in groups if all(nic.link_is_up is False for nic in g.answer.nics))
    nodes = sorted(node for nodes in of_groups for node in nodes)
    return f"no Slingshot NIC with its link up on {hostlist(nodes)}" if nodes else None


# -- how long nodes are waited for --


def start_limit_s(nodes: int) -> float:
    """Return how long a node may take to start after the first one did, in a check of this number of nodes."""
    return START_LIMIT_S + START_LIMIT_PER_NODE_S * nodes


def limit_s(nodes: int) -> float:
    """Return the time after which every node, of this number, has answered or timed out."""
    return FIRST_LIMIT_S + start_limit_s(nodes) + NODE_LIMIT_S


@dataclass(frozen=True, slots=True)
class Waiting:
    """Progress of a check."""

    answered: int
    nodes: tuple[str, ...]
    """Nodes that have not answered, sorted."""
    seconds: float
    """Seconds from now until they are given up."""


class Watch:
    """Tracks answers and timeouts by its own clock only: clocks of nodes and file systems do not matter."""

    def __init__(
        self,
        folder: Path,
        nodes: Iterable[str],
        on_progress: Callable[[Waiting], None],
        clock: Callable[[], float] = time.monotonic,
        job_ends: float | None = None,
    ) -> None:
        """`job_ends` is a time of `clock`; None: not known."""
        self._folder = folder
        self._nodes = set(nodes)
        self._on_progress = on_progress
        self._clock = clock
        self._latest = math.inf if job_ends is None else job_ends - RESERVE_S
        self._begun = self._looked = clock()
        self._answered: dict[str, float] = {}
        self.started: dict[str, float] = {}
        """The nodes seen to start, and when."""

    @property
    def waiting(self) -> set[str]:
        """The nodes that have not answered."""
        return self._nodes - self._answered.keys()

    @property
    def out_of_time(self) -> bool:
        """Whether the job's time limit is reached, or nearly."""
        return self._clock() >= self._latest

    def is_over(self) -> bool:
        """Whether every node has answered or timed out; reads the folder at most twice a second."""
        now = self._clock()
        if now - self._looked < _LOOK_EVERY_S:
            return False
        self.look()
        return now > self._given_up()

    def _given_up(self) -> float:
        """Return when the last node that is still awaited times out."""
        if not self.waiting:
            end = max(self._answered.values()) + END_LIMIT_S
        elif not self.started:
            end = self._begun + FIRST_LIMIT_S
        else:
            start_by = min(self.started.values()) + start_limit_s(len(self._nodes))
            end = max(self.started[node] + NODE_LIMIT_S if node in self.started else start_by for node in self.waiting)
        return min(end, self._latest)

    def look(self) -> None:
        """Read the folder, and report progress."""
        now = self._looked = self._clock()
        for name in os.listdir(self._folder):  # noqa: PTH208 - thousands of files: the names suffice
            for kind, seen in ((ANSWER, self._answered), (STARTED, self.started)):
                if (node := node_of_file(name, kind)) in self._nodes:
                    seen.setdefault(node, now)
        self._on_progress(Waiting(len(self._answered), tuple(sorted(self.waiting)), self._given_up() - now))


# -- outside an allocation --


def check_by_job(
    words: Sequence[str],
    nodes: int,
    options: Sequence[str],
    environment: Mapping[str, str],
    on_progress: Callable[[str], None],
) -> NodesReport:
    """Run `lumiimg WORDS` in a job on this number of nodes and return its report; `options` are passed to sbatch.

    `words` use absolute paths and request JSON. Raises MissingHereError without Slurm, UndecidedError if no job runs or
    it ends without a report.
    """
    with shared_folder() as folder:
        script, report = folder / "job.sh", folder / _REPORT
        command, place = shlex.join([*own_command(), *words]), shlex.quote(str(report))
        # the sum of all limits; nodes that are asked once more have started already
        limits_s = _PREPARE_S + limit_s(nodes) + (limit_s(nodes) - FIRST_LIMIT_S) + TOGETHER_LIMIT_S
        minutes = math.ceil(limits_s / 60)
        script.write_text(_SCRIPT.format(nodes=nodes, minutes=minutes, command=command, report=place))
        # Slurm expands patterns in the name of the output file; given relative to --chdir, it contains none
        done = run_job(script, [f"--chdir={folder}", f"--output={_OUTPUT}", *options], environment, on_progress)
        if not report.exists() or not report.stat().st_size:
            raise _without_report(done, folder / _OUTPUT)
        try:
            return decode_json(read_whole(report, _MAX_BYTES), NodesReport)
        except DecodeError as error:
            raise UndecidedError(f"the report of the job cannot be read: {one_line(str(error))}") from error


def _without_report(done: Completed, output: Path) -> UndecidedError:
    """Return an error for a job that ended without a report, with the last line of its output."""
    try:
        lines = read_beginning(output, _MAX_BYTES).decode("utf-8", "replace").splitlines()
    except FileNotFoundError:  # Slurm creates it when the job begins
        return UndecidedError(
            f"the job left nothing in {Path.cwd()} (exit code {done.exit_code}): its nodes do not see this folder,"
            " or it was cancelled before it began",
            hint=SHARED,
        )
    except OSError:
        lines = []
    # sbatch itself usually prints only the job number
    last_line = next((line for line in reversed(lines) if line.strip()), "")
    is_ours, last_line = last_line.startswith("lumiimg: "), last_line.removeprefix("lumiimg: ")
    last_line = last_line or ("" if is_job_number(done.last_line) else done.last_line)
    return UndecidedError(
        f"the job ended without a report (exit code {done.exit_code}): {one_line(last_line) or 'it printed nothing'}",
        hint=None if is_ours else "sacct shows whether it was cancelled, ran out of time or lost a node",
    )
