"""What ended the job: the first death that stands by itself, not what follows when a rank has died.

Lines of one file are in the order of time, but for Slurm's report that the kernel killed for want of memory: it comes
when the step ends, behind what other ranks printed of it. So what may follow from another rank's death comes second,
whenever it was printed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from lumiimg.joblog.aftermath import is_aftermath
from lumiimg.joblog.report import Death
from lumiimg.joblog.vocabulary import Effect, Ends, vocabulary

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lumiimg.joblog.causes import Trouble
    from lumiimg.joblog.events import ProcessState, Sighting
    from lumiimg.joblog.job import JobState

_NEAR_LINES, _OF_EACH = 1000, 100
"""Lines between an error and the end of a process that followed from it: of all processes, and more of its own."""
_LAST_WORDS = 100
"""Lines that a program may print of its own when it ends with an error."""
_FRAMES = 40
"""Lines of an exception that Python ignores."""
_ALIVE = ("network", "channel", "local-channel", "connected", "provider")
"""What a process prints that lives."""
_OF_NETWORK = frozenset({Effect.ENDPOINT_ERROR, Effect.NETWORK_ABSENT, Effect.NO_NETWORK})
_STANDS_ALONE = frozenset({Ends.CAUSE, Ends.CRASH, Ends.RAISED, Ends.OUTSIDE, Ends.CANCELLED})
_MAY_FOLLOW = frozenset({Ends.WAITED, Ends.FOLLOWS, Ends.OTHER, Ends.EXIT, Ends.CLEARED})
_OF_ERROR = frozenset({Ends.RAISED, Ends.OTHER})
_OF_EXIT = frozenset({Ends.EXIT, Ends.FOLLOWS, Ends.CLEARED})
_OF_DEATH = frozenset({Ends.CAUSE, Ends.CRASH, Ends.EXIT})
_OF_CLEARING = frozenset({Ends.CANCELLED, Ends.CLEARED})


class End(NamedTuple):
    """What is known of how the job ended."""

    death: Death | None
    """What ended it; None where no line says so, or where it was the network."""
    unclear: bool = False
    """An error stands so near the end of the log that it may have ended the job."""
    signature: str | None = None
    """Id of the death, or of that error, where one is known."""
    clean_up: frozenset[str] = frozenset()
    """Ids of what looks like a death, and only follows on one."""
    calls: tuple[Sighting, ...] = ()
    """Calls of the library that failed or did not end, where nothing shows that the job went on."""


class _Seen(NamedTuple):
    """A line that may have ended the job."""

    process: ProcessState
    trouble: Trouble

    @property
    def at(self) -> int:
        return self.trouble.sighting.first

    @property
    def ends(self) -> Ends:
        return self.trouble.signature.ends


def ending(processes: Sequence[ProcessState], found: Sequence[Sequence[Trouble]], state: JobState) -> End:
    """Return how the job ended, as far as its lines say."""
    job = _Job(processes, found, state)
    clean_up = frozenset(one.trouble.signature.id for one in job.clean_up)
    first = job.first(_STANDS_ALONE, _OF_NETWORK) or job.first(_MAY_FOLLOW, frozenset({Effect.RUN_ERROR}))
    if first is None:
        return job.unclear()
    if first.trouble.signature.effect is not Effect.NONE:
        return End(None, clean_up=clean_up)
    same = [first, *(one for one in job.seen if one.trouble.signature is first.trouble.signature)]
    named = [_place(one) for one in same]
    rank, node = (next((place[index] for place in named if place[index]), None) for index in (0, 1))
    id_ = first.trouble.signature.id
    return End(Death(id_, first.trouble.summary, rank, node), signature=id_, clean_up=clean_up - {id_})


def of_another_job(sighting: Sighting, state: JobState) -> bool:
    """Whether it is sacct's row of a job that the log is not of, or of one that was queued again and completed."""
    number = sighting.value("job") or sighting.value("job_in_column")
    if not number:
        return False
    completed = (s.last for s in state.job.saw("completed") if s.value("job") == number)
    later = any(at > sighting.last and state.same_file(at, sighting.last) for at in completed)
    return later or number not in (job_numbers(state) or {number})


def job_numbers(state: JobState) -> set[str]:
    """Return the numbers under which Slurm ran what the log is of, as its variables say."""
    names = {"SLURM_JOB_ID", "SLURM_JOBID"}
    values = (s.value("value") for s in state.job.saw("slurm") if s.value("name") in names)
    return {value for value in values if value.isascii() and value.isdecimal()}


class _Job:
    def __init__(self, processes: Sequence[ProcessState], found: Sequence[Sequence[Trouble]], state: JobState) -> None:
        self.state = state
        self.near = _NEAR_LINES + _OF_EACH * len(processes)
        self.starts = list(_starts(processes))
        self.processes = processes
        ends = [*state.job.saw("completed"), *(s for process in processes for s in process.saw("init-complete"))]
        self.are_completed = bool(ends)
        self.ignored = [s.last for process in processes for s in process.saw("exception-ignored")]
        pairs = [_Seen(process, trouble) for process, of in zip(processes, found, strict=True) for trouble in of]
        relevant = [one for one in pairs if one.ends is not Ends.NO or one.trouble.signature.effect is not Effect.NONE]
        relevant = [one for one in relevant if not self._is_ignored(one.trouble.sighting.last)]
        seen = [one for one in sorted(relevant, key=lambda one: one.at) if not self._of_run_before(one)]
        self.clearing = [one.at for one in seen if one.ends in _OF_CLEARING]
        deaths = [at for one in seen for at in self._deaths(one)]
        self.clean_up = [one for one in seen if self._is_clean_up(one, deaths)]
        self.exits = [at for one in seen if one.ends in _OF_EXIT or one in self.clean_up for at in _places(one)]
        self.seen = [one for one in seen if one not in self.clean_up]
        self.outside = [one.at for one in self.seen if one.ends is Ends.OUTSIDE]
        self.outside += [self._cleared(one.at) for one in self.seen if one.ends is Ends.CANCELLED]

    def first(self, ends: frozenset[Ends], effects: frozenset[Effect]) -> _Seen | None:
        """Return the first line of these kinds that ended a process."""
        return next(
            (
                one
                for one in self.seen
                if (one.ends in ends or one.trouble.signature.effect in effects)
                and (one.ends not in _OF_ERROR or self._ended_its_process(one))
            ),
            None,
        )

    def unclear(self) -> End:
        """Return whether an error, or a traceback, has so little behind it that it may have been the end."""
        last = [(one.trouble.sighting.last, one) for one in self.seen if one.ends in _OF_ERROR]
        errors = [one for at, one in last if one.ends is Ends.RAISED and self._is_near_the_end(at)]
        tracebacks = [s.last for process in self.processes for s in process.saw("traceback")]
        near = [at for at in tracebacks if not self._is_ignored(at) and self._is_near_the_end(at)]
        errors += [one for at, one in last if near and at > min(near)]
        calls = tuple(call for process in self.processes for call in self._open_calls(process))
        return End(None, bool(errors or near), errors[0].trouble.signature.id if errors else None, calls=calls)

    def _open_calls(self, process: ProcessState) -> Iterator[Sighting]:
        """Yield the calls of a process that failed and were its last, and communicators that it began and never had.

        These count where the job has ended, or other lines show that completed ones are in the log.
        """
        done = list(process.saw("init-complete"))
        alive = max((s.last for s in process.saw(*_ALIVE, "init-complete")), default=-1)
        yield from (call for call in process.saw("call-failed") if call.last > alive)
        if self.are_completed and len(begun := list(process.saw("init-begun"))) < process.limit:
            ends = {(s.value("comm"), s.last) for s in done}
            yield from (s for s in begun if not any(c == s.value("comm") and at > s.last for c, at in ends))

    def _is_near_the_end(self, at: int) -> bool:
        alive = (s.last for process in self.processes for s in process.saw(*_ALIVE))
        if any(sign > at and self.state.same_file(sign, at) for sign in alive):
            return False
        after = self.state.lines_after(at)
        return after is not None and len(after) < _LAST_WORDS

    def _is_ignored(self, at: int) -> bool:
        """Whether Python printed the error and went on with its own end, as of a destructor."""
        line = self.state.place(at)[1]
        near = (mark for mark in self.ignored if mark < at and self.state.same_file(mark, at))
        return any(line - self.state.place(mark)[1] <= _FRAMES for mark in near)

    def _cleared(self, at: int) -> int:
        """Return where Slurm began to clear the step away, in the file of a position; the position where it did not."""
        return min([at, *(began for began in self.clearing if self.state.same_file(began, at))])

    def _deaths(self, one: _Seen) -> tuple[int, ...]:
        """Return where a line says that a process died, or where a program stopped at an error."""
        if one.ends in _OF_DEATH:
            return _places(one)
        after = self.state.lines_after(one.trouble.sighting.last) if one.ends in _OF_ERROR else None
        return _places(one)[1:] if after is not None and is_aftermath(after) else ()

    def _is_clean_up(self, one: _Seen, deaths: Sequence[int]) -> bool:
        """Whether a line is only of a step that is cleared away: srun ends it when a process of it has died."""
        began = self._cleared(one.at)
        if one.ends is Ends.CRASH:  # shared memory goes away first
            return began < one.at
        return one.ends is Ends.CANCELLED and any(
            self.state.same_file(began, at) and self._may_follow(began, at) for at in deaths
        )

    def _of_run_before(self, one: _Seen) -> bool:
        return any(start > one.trouble.sighting.last and self.state.same_file(start, one.at) for start in self.starts)

    def _ended_its_process(self, one: _Seen) -> bool:
        """Whether a program that printed an error did not go on: programs catch errors, and print them all the same."""
        last = one.trouble.sighting.last
        alive = [s.last for s in one.process.saw(*_ALIVE)] if not one.process.shared else []
        if any(at > last and self.state.same_file(at, last) for at in alive):
            return False
        cut_short = [at for at in self.outside if at > last or not self.state.same_file(at, last)]
        exits = [at for at in self.exits if self._may_follow(at, last)]
        if cut_short and not any(at < min(cut_short) for at in exits):
            return False
        if one.ends is Ends.OTHER:
            return bool(exits)
        after = self.state.lines_after(last)
        return bool(exits) or (after is not None and is_aftermath(after))

    def _may_follow(self, at: int, error: int) -> bool:
        """Whether a process that ended may have ended of an error: soon after it, or in another file."""
        if not self.state.same_file(at, error):
            return True
        return at > error and self.state.place(at)[1] - self.state.place(error)[1] <= self.near


def _places(one: _Seen) -> tuple[int, int]:
    return one.trouble.sighting.first, one.trouble.sighting.last


def _starts(processes: Sequence[ProcessState]) -> Iterator[int]:
    """Yield where processes that were connected printed first: behind a death, they are of the next run of the job."""
    for process in processes:
        if not process.shared and any(s.has_origin for s in process.saw("connected", "channel")):
            yield min(sighting.first for seen in process.events.values() for sighting in seen)


def _place(one: _Seen) -> tuple[str | None, str | None]:
    """Return the rank and the node that a death hit, as far as its line or its process says."""
    sighting = one.trouble.sighting
    said = dict(sighting.values)
    if one.ends in {Ends.OUTSIDE, Ends.CANCELLED}:  # Slurm says on which node it runs the job's script
        return None, said.get("node")
    for pattern in vocabulary().places:
        found = pattern.search(sighting.text)
        for name, value in found.groupdict(default="").items() if found else ():
            said[name] = said.get(name) or value
    if not sighting.has_origin:  # it may be of any program
        return said.get("rank"), said.get("node")
    ranks = {communicator.rank for communicator in one.process.communicators.values()}
    rank = said.get("rank") or (f"{ranks.pop()}" if len(ranks) == 1 else None)
    return rank, said.get("node") or one.process.node
