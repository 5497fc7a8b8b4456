"""The steps of a trial, one after the other, inside a job; what each comes to is kept before the next begins."""

from __future__ import annotations

import datetime as dt
import json
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from lumiimg.cluster.nodes.slurm import own_command, run_step, seconds
from lumiimg.cluster.trial.folder import MAX_BYTES, JobTime
from lumiimg.cluster.trial.look import forget_looks, looks_in, snapshot_in
from lumiimg.cluster.trial.measure import NO_ANSWER
from lumiimg.cluster.trial.plan import FOLDER, HOST, content, job_name
from lumiimg.cluster.trial.values import Ending, Record, TrialStep
from lumiimg.core.errors import BadInputError, LumiimgError, MissingHereError, one_line
from lumiimg.core.files import read_beginning, write_text
from lumiimg.core.text import count
from lumiimg.engine.engine import find_engine
from lumiimg.engine.process import run, which
from lumiimg.host.container_view import TO_ENGINE, told_to_engine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from lumiimg.cluster.nodes.slurm import Allocation
    from lumiimg.cluster.trial.folder import TrialFolder
    from lumiimg.cluster.trial.values import TrialPlan
    from lumiimg.engine.process import Completed

_LINES, _SAID = 4, 300
"""Of what a step says: lines, and characters of one."""
_QUICK = 1
"""Minutes of a step that the job of a trial waits for."""
_NONE = Record(step="", ending=Ending.WAITS)
"""Of a step that was not begun."""
_GRACE_S = 20.0
"""That a job keeps for itself before its time is up."""
_MPI = re.compile(r"[a-z0-9_]{1,32}")


def run_here(
    folder: TrialFolder, plan: TrialPlan, environment: Mapping[str, str], say: Callable[[str], None], *, quick: bool
) -> None:
    """Do the steps that need no job: the quick ones, or the others. Raises FailedError where nothing can be kept."""
    for step in steps_left(folder, plan):
        if step.nodes == 0 and (step.minutes <= _QUICK) is quick:
            say(step.about)
            folder.keep(_here(folder, step, environment))


def run_in_job(
    folder: TrialFolder,
    plan: TrialPlan,
    allocation: Allocation,
    environment: Mapping[str, str],
    say: Callable[[str], None],
) -> None:
    """Do the steps that are left, as far as the time of this job goes, and the node minutes of the trial.

    Raises FailedError where nothing can be kept.
    """
    nodes, start = allocation.nodes[: plan.nodes], time.monotonic()
    # a job of the trial's own has taken time since Slurm began it; salloc's shell may have done anything before
    ran_s = allocation.ran_s if environment.get("SLURM_JOB_NAME") == job_name(plan) else 0.0
    # the nodes of the job count, also those that no step uses
    room_s = (plan.node_minutes - folder.spent()) * 60 / len(allocation.nodes) - ran_s
    ends = start + max(room_s - _GRACE_S, 0)
    if allocation.ends is not None:
        ends = min(ends, allocation.ends - _GRACE_S)
    own = _without_tried(plan, environment)
    began = time.time()
    taken = JobTime(
        job=allocation.job,
        nodes=len(allocation.nodes),
        began=began,
        until=began,
        hosts=allocation.nodes,
        account=environment.get("SLURM_JOB_ACCOUNT", ""),
    )

    def note(more_s: float = 0.0) -> None:
        """Note what the job has taken, by a clock that is not set while it runs."""
        folder.note(replace(taken, until=began + ran_s + time.monotonic() - start + more_s))

    note()
    for step in steps_left(folder, plan):
        if step.nodes == 0:
            if not step.words:
                folder.keep(_here(folder, step, environment))
            continue
        left_s = ends - time.monotonic()
        if len(nodes) < step.nodes:
            folder.keep(_unfit(step, Ending.WAITS, f"the job has {len(nodes)} of {step.nodes} nodes", allocation.job))
            continue
        if step.after is not None and (folder.record(step.after) or _NONE).ending is Ending.WAITS:
            continue
        if (reason := _shows_nothing(folder, plan, step)) is not None:
            folder.keep(_unfit(step, Ending.SKIPPED, reason, allocation.job))
            continue
        if left_s < step.minutes * 60:
            say(f"{step.about}: not begun, {left_s / 60:.0f} min are left and it takes {step.minutes}")
            continue
        if folder.tried(step.name):
            folder.keep(Record(step=step.name, ending=Ending.CUT_OFF, job=allocation.job))
            continue
        limit_s = min(step.limit * 60.0, left_s)
        note(limit_s)
        say(step.about)
        try:
            record = _in_job(folder, step, nodes, own, limit_s, allocation.job)
            if record.ending is Ending.TIMED_OUT and limit_s < step.limit * 60:
                record = _unfit(step, Ending.WAITS, "the time of the job was up", allocation.job)
            elif record.ending is Ending.DONE and (reason := _not_taken(folder, step)) is not None:
                record = _unfit(step, Ending.WAITS, reason, allocation.job)
                folder.stopped(step.name)
            folder.keep(record)
        except BaseException:  # a signal: the job was cancelled, or its time is up
            folder.stopped(step.name)
            raise
        finally:
            note()


def is_over(folder: TrialFolder, plan: TrialPlan) -> bool:
    """Whether no step is left to be done."""
    return next(steps_left(folder, plan), None) is None


def steps_left(folder: TrialFolder, plan: TrialPlan) -> Iterator[TrialStep]:
    """Yield the steps that are not done, in their order."""
    return (step for step in plan.steps if (folder.record(step.name) or _NONE).ending is Ending.WAITS)


def _shows_nothing(folder: TrialFolder, plan: TrialPlan, step: TrialStep) -> str | None:
    """Return why a step would show nothing."""
    if step.after is not None and not folder.output(step.after).get("collective"):
        return f"{step.after} had no collective"
    number = step.name.partition(".")[0].removeprefix("image-")
    image = plan.images[int(number) - 1] if number.isdecimal() and int(number) <= len(plan.images) else None
    try:
        changed = image is not None and content(Path(image.path)) != image.content
    except BadInputError as error:
        return f"the image {error.what}"
    return "the image is another than when the claims were written down" if changed else None


def _not_taken(folder: TrialFolder, step: TrialStep) -> str | None:
    """Return why a step came to nothing that a job with more could have: this one had no GPUs."""
    printed = folder.output(step.name)
    levels = printed.get("levels")
    why = levels.get("run") if isinstance(levels, dict) else None
    if isinstance(why, str) and why.startswith("not taken"):
        return one_line(why)[:_SAID]
    return f"no GPU: {one_line(str(printed.get('why')))[:_SAID]}" if printed.get("no_gpu") is True else None


def _unfit(step: TrialStep, ending: Ending, why: str, job: str) -> Record:
    return Record(step=step.name, ending=ending, job=job, said=(why,), began=_now())


def _here(folder: TrialFolder, step: TrialStep, environment: Mapping[str, str]) -> Record:
    if step.words:
        return _kept(folder, step, environment, step.limit * 60.0)
    began = _now()
    write_text(folder.output_file(step.name), json.dumps(_slurm(environment)))
    return Record(step=step.name, ending=Ending.DONE, began=began, code=0)


def _slurm(environment: Mapping[str, str]) -> dict[str, object]:
    """Return Slurm's partitions with their longest job in hours, and what `srun --mpi=` takes; nothing without it."""

    def ask(*argv: str) -> str:
        program = which(argv[0], environment.get("PATH"))
        if program is None:
            return ""
        try:
            return run([program, *argv[1:]], env=environment, timeout_s=30).output
        except MissingHereError:
            return ""

    # --all: also those that are hidden from who may not use them
    found = [*_records(ask("scontrol", "--all", "show", "partition"))]
    default = next((one["PartitionName"] for one in found if one.get("Default") == "YES"), None)
    longest = {one["PartitionName"]: seconds(one.get("MaxTime", "")) for one in found}
    partitions = {name: time_s / 3600 if time_s is not None else None for name, time_s in longest.items()}
    words = map(str.strip, ask("srun", "--mpi=list").splitlines())
    return {"partitions": partitions, "default": default, "mpi": [word for word in words if _MPI.fullmatch(word)]}


def _records(output: str) -> Iterator[dict[str, str]]:
    """Yield the partitions of `scontrol show partition`: records of `Key=value`, an empty line between two."""
    record: dict[str, str] = {}
    for line in (*output.splitlines(), ""):
        record |= {key: value for key, equals, value in (word.partition("=") for word in line.split()) if equals}
        if not line.strip() and record:
            if "PartitionName" in record:
                yield record
            record = {}


def _in_job(
    folder: TrialFolder, step: TrialStep, nodes: Sequence[str], environment: Mapping[str, str], limit_s: float, job: str
) -> Record:
    if step.everywhere:
        words = [*own_command(), *_words(folder, step)]
        forget_looks(folder.looks)  # of an earlier job, on other nodes and at another time
        began, start = _now(), time.monotonic()
        done = run_step(nodes, words, environment, timeout_s=limit_s)
        looks = looks_in(folder.looks)
        missing = sorted(set(nodes) - {look.node for look in looks})
        said = (*_said(done), *([f"{count(len(missing), 'node')}{NO_ANSWER}"] if missing else []))
        ending = Ending.DONE if looks else Ending.FAILED
        seconds = time.monotonic() - start
        return Record(step=step.name, ending=ending, job=job, began=began, seconds=round(seconds, 1), said=said)
    return _kept(folder, step, environment, limit_s, job)


def _command(folder: TrialFolder, step: TrialStep, environment: Mapping[str, str], limit_s: float) -> Completed:
    """Run a command of lumiimg; what it prints for machines goes into the folder, the rest is kept in the record."""
    part = folder.output_file(step.name).with_suffix(".part")
    words = [*own_command(), *_words(folder, step)]
    # its output, and what it says to people, apart: one gate runs all programs, and reads them together. -C: into a new
    # file, never through a link that somebody else has put there
    part.unlink(missing_ok=True)
    argv = ["/bin/sh", "-C", "-c", 'exec "$@" >"$0"', str(part), *map(str, words)]
    # by the engine's names too: over a plain one, what the image sets itself would win
    return run(argv, env={**environment, **step.sets, **told_to_engine(step.sets)}, timeout_s=limit_s)


def _without_tried(plan: TrialPlan, environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without what the trial itself sets or leaves out: a user's own would be in each run."""
    tried = {name for step in plan.steps for name in (*step.sets, step.name.partition(".without.")[2])}
    names = {f"{prefix}{name}" for name in tried for prefix in ("", *TO_ENGINE)}
    return {name: value for name, value in environment.items() if name not in names}


def _words(folder: TrialFolder, step: TrialStep) -> Iterator[str]:
    snapshot = snapshot_in(folder.looks)
    words = list(step.words)
    if snapshot is None and HOST in words:
        place = words.index(HOST)
        del words[place - 1 : place + 1]
    for word in words:
        here = f"{folder.path}{word.removeprefix(FOLDER)}" if word.startswith(FOLDER) else word
        yield str(snapshot) if word == HOST else here


def _kept(
    folder: TrialFolder, step: TrialStep, environment: Mapping[str, str], limit_s: float, job: str = ""
) -> Record:
    """Run a command and return its record, with its output in its place where that is whole."""
    done = _command(folder, step, environment, limit_s)
    part, place = folder.output_file(step.name).with_suffix(".part"), folder.output_file(step.name)
    ending = Ending.TIMED_OUT if done.timed_out else Ending.FAILED
    try:
        if not done.timed_out and isinstance(json.loads(read_beginning(part, MAX_BYTES)), dict):
            part.replace(place)
            ending = Ending.DONE
    except (OSError, ValueError, RecursionError):
        pass
    part.unlink(missing_ok=True)
    if ending is not Ending.DONE:
        place.unlink(missing_ok=True)  # of a try that was killed before its record was kept
    began = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=done.seconds)
    return Record(
        step=step.name,
        ending=ending,
        job=job,
        began=began.isoformat(timespec="seconds"),
        seconds=round(done.seconds, 1),
        code=done.exit_code if done.exit_code >= 0 else None,
        engine=_engine(environment),
        said=_said(done),
    )


def _engine(environment: Mapping[str, str]) -> str | None:
    try:
        return find_engine(environment).name
    except LumiimgError:
        return None


def _said(done: Completed) -> tuple[str, ...]:
    lines = [line for line in done.output.splitlines() if line.strip()]
    return tuple(one_line(line)[:_SAID] for line in lines[-_LINES:])


def _now() -> str:
    return dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
