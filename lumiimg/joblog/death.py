"""Find the trouble that ended the job: the first death that did not follow from another one.

Lines of one file are in chronological order, except for Slurm's report of an out-of-memory kill: it appears when the
step ends, after what other ranks printed as a consequence. So anything that may follow from another rank's death ranks
second, whenever it was printed.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from lumiimg.joblog.aftermath import has_continued, is_aftermath
from lumiimg.joblog.beginnings import ending_in_init, incomplete_communicators
from lumiimg.joblog.ending import Ending, How
from lumiimg.joblog.lines import evidence_text
from lumiimg.joblog.places import Places
from lumiimg.joblog.troubles import RANKLESS_ROLES, Trouble, is_peer_loss, rank_and_node, says_how, targets
from lumiimg.joblog.vocabulary import Effect, ExitRole, Weight, vocabulary

if TYPE_CHECKING:
    from lumiimg.joblog.state import JobLog, Match, ProcessLog

_NEAR_LINES, _NEAR_PER_PROCESS = 1000, 100
"""Maximum distance in lines from an error to the end of a process caused by it: a base, plus lines per process."""
_LAST_WORDS = 100
"""Maximum number of lines that a program may print after its fatal error."""
_FRAMES = 40
"""Maximum number of lines of an exception that Python ignores."""
_ALIVE = ("network", "channel", "local-channel", "connected", "provider")
"""Events that show that a process is alive."""
_NETWORK_EFFECTS = frozenset({Effect.ENDPOINT_ERROR, Effect.NETWORK_ABSENT, Effect.NO_NETWORK})
_STANDS_ALONE = frozenset({ExitRole.CAUSE, ExitRole.CRASH, ExitRole.RAISED, ExitRole.OUTSIDE, ExitRole.CANCELLED})
_MAY_FOLLOW = frozenset({ExitRole.WAITED, ExitRole.FOLLOWS, ExitRole.OTHER, ExitRole.EXIT})
_ERROR_ROLES = frozenset({ExitRole.RAISED, ExitRole.OTHER})
_EXIT_ROLES = frozenset({ExitRole.EXIT, ExitRole.FOLLOWS, ExitRole.CLEARED})
_DEATH_ROLES = frozenset({ExitRole.CAUSE, ExitRole.CRASH, ExitRole.EXIT})
_CLEARING_ROLES = frozenset({ExitRole.CANCELLED, ExitRole.CLEARED})
_KINDS, _FOLLOWING = 4, 2
"""Number of kinds of ends, tried in this order; and the kind that may follow from the end of another process."""
_SAYS_NO_REASON = frozenset({ExitRole.EXIT, ExitRole.CLEARED, ExitRole.OTHER, ExitRole.FOLLOWS})
"""Ends for which the library's message about a failed call is closer to the reason."""
_LOST_CONNECTION = "peer-gone"
"""A program may connect again; other lines that follow from the end of a process say that one ended."""
_LOST = "6"
"""ncclRemoteError."""
_HOW = {"time-limit": How.TIME_LIMIT, "preempted": How.CANCELLED}
_SIGNALLED = re.compile(r": Killed|[Ee]xit(?:ed with exit)? code \(?(?:130|137|143)\b")
_LAST_ERROR = 5
"""Number of lines after a PyTorch error in which it may quote NCCL."""


class FailedCall(NamedTuple):
    """A failed library call, identified by the trace that it prints, and the warning before it."""

    process: ProcessLog
    call: Match
    warning: Match | None

    @property
    def lines(self) -> tuple[Match, ...]:
        return tuple(filter(None, (self.warning, self.call)))


class End(NamedTuple):
    """What is known about the end of the job, and the lines that show it."""

    ending: Ending
    clean_up: frozenset[str] = frozenset()
    """Ids of troubles that look like a death but are only a consequence of one."""
    lines: tuple[Match, ...] = ()
    """Lines of a cause without a signature."""
    first: Trouble | None = None
    """The trouble, if the cause has a signature."""


def end_of_job(processes: Sequence[ProcessLog], held: Sequence[Trouble], log: JobLog, dead: Collection[str]) -> End:
    """Return how the job ended, judging by the lines of its processes and the troubles that they show.

    `dead` contains the names of processes that died of their own network.
    """
    lines = _LastLines(processes, held, log)
    clean_up = frozenset(one.signature.id for one in lines.clean_up)
    first, calls = lines.first_death(dead), lines.calls_that_failed()
    if first is not None:
        calls = [one for one in calls if lines.led_to(one, first)]
    says_why = first is None or not (first.ends in _SAYS_NO_REASON or first.signature.weight is Weight.ECHO)
    if first is not None and (says_why or not calls):
        ending = lines.ending(first)
        waited = first.ends in {ExitRole.OUTSIDE, ExitRole.CANCELLED} or first.signature.effect is Effect.RUN_ERROR
        if waited and (begun := incomplete_communicators(processes)):
            said = ending_in_init(begun[0], processes).summary
            ending = replace(ending, summary=f"{ending.summary}; {said[0].lower()}{said[1:]}")
        return End(ending, clean_up - {first.signature.id}, first=first)
    error = lines.last_error()
    if error is not None and not (calls and error.ends in _SAYS_NO_REASON):
        return End(lines.ending(error, is_likely=True), clean_up, first=error)
    if calls:
        return End(lines.ending_by(calls[0], is_likely=first is None), clean_up, calls[0].lines)
    if begun := incomplete_communicators(processes):
        return End(ending_in_init(begun[0], processes), clean_up, tuple(one for _, one in begun))
    if warned := lines.last_warning():
        return End(Ending(cause="library-warned", summary=evidence_text(warned.value("text"))), clean_up, (warned,))
    ending = lines.unclear()
    if ending == Ending() and (failed := lines.last_failure()):
        summary = vocabulary().advice["failure-reported"].summary
        return End(Ending(cause="failure-reported", summary=summary), clean_up, (failed,))
    return End(ending, clean_up)


class _LastLines:
    """The lines of a job that may have ended it, and their surroundings."""

    def __init__(self, processes: Sequence[ProcessLog], held: Sequence[Trouble], log: JobLog) -> None:
        self.log, self.processes, self.held = log, processes, held
        self.near = _NEAR_LINES + _NEAR_PER_PROCESS * len(processes)
        ignored = (one.last_at for process in processes for one in process.saw("exception-ignored"))
        alive = (sign.last_at for process in processes for sign in process.saw(*_ALIVE))
        self.ignored, self.alive, starts = Places(log, ignored), Places(log, alive), Places(log, _starts(processes))
        self.threads = Places(log, (one.last_at for process in processes for one in process.saw("thread-exception")))
        warned = {at for process in processes for one in process.saw("warning") for at in (one.first_at, one.last_at)}
        self.known: dict[int, list[Trouble]] = {}  # troubles that warnings show, by the positions of their lines
        for trouble, at in ((one, at) for one in held for at in warned.intersection(one.places)):
            self.known.setdefault(at, []).append(trouble)
        seen = [
            one
            for one in sorted(held, key=lambda one: (one.at, one.signature.weight is Weight.ECHO))
            if one.signature.is_grave
            and not self._is_below(self.ignored, one.match.last_at)
            # these belong to the previous run
            and starts.last(one.at) <= one.match.last_at
        ]
        self.clearing = Places(log, (one.at for one in seen if one.ends in _CLEARING_ROLES))
        deaths = Places(log, (at for one in seen for at in self._deaths(one)))
        ended = Places(log, (one.at for one in seen if one.ends is ExitRole.OUTSIDE))
        self.clean_up = [one for one in seen if self._is_clean_up(one, deaths, ended)]
        cleaned = {*map(id, self.clean_up)}
        exits = (one for one in seen if one.ends in _EXIT_ROLES or id(one) in cleaned)
        self.exits = Places(log, (at for one in exits for at in one.places))
        self.candidates = [one for one in seen if id(one) not in cleaned]
        cut = (one for one in self.candidates if one.ends in {ExitRole.OUTSIDE, ExitRole.CANCELLED})
        self.outside = Places(log, (one.at if one.ends is ExitRole.OUTSIDE else self._cleared(one.at) for one in cut))

    def first_death(self, dead: Collection[str]) -> Trouble | None:
        """Return the first line, of the most telling kind, that ended a process and does not follow from another end.

        The end of a rank explains more than another's lost connection, and a launcher's next lines explain more than a
        line that names no rank; lines in other files may have come earlier.
        """
        for kind in range(_KINDS):
            found = (one for one in self.candidates if _kind(one, dead) == kind)
            ended = (one for one in found if one.ends is ExitRole.NO or self._ended_its_process(one))
            if (first := next(ended, None)) is not None:
                return next((one for one in ended if self._says_more(one, first)), first)
        return None

    def _says_more(self, one: Trouble, first: Trouble) -> bool:
        """Return whether a line explains the end better: how the rank ended that `first` lost or waited for.

        A launcher's line without a rank explains less than its next lines, and an error of PyTorch less than the last
        message of NCCL that it quotes after it.
        """
        behind = {ExitRole.WAITED, ExitRole.FOLLOWS}
        if first.ends is ExitRole.WAITED and is_peer_loss(first.signature) and one.ends in behind:
            is_behind = self.log.same_file(one.at, first.at) and 0 < self._distance(first.at, one.at) <= _LAST_ERROR
            return is_behind and one.signature.weight is not Weight.ECHO
        if first.ends is ExitRole.EXIT and not says_how(first) and rank_and_node(first) == (None, None):
            return says_how(one) and self._may_follow(one.at, first.at)
        if one.ends not in {ExitRole.OTHER, ExitRole.EXIT} or first.ends not in _MAY_FOLLOW - _ERROR_ROLES:
            return False
        if not is_peer_loss(first.signature):
            return one.ends is ExitRole.OTHER and not self.log.same_file(one.at, first.at)
        known = ((mine, theirs) for mine, theirs in zip(targets([one]), self._losers, strict=True) if mine and theirs)
        return says_how(one) or any(mine.isdisjoint(theirs) for mine, theirs in islice(known, 1))

    @cached_property
    def _losers(self) -> tuple[frozenset[object], ...]:
        """The ranks, nodes and processes that lost another rank."""
        return targets([one for one in self.candidates if is_peer_loss(one.signature)])

    def led_to(self, failed: FailedCall, first: Trouble) -> bool:
        """Return whether a failed call may precede a death, and did not fail because another process ended."""
        at = failed.call.first_at
        known = [one.signature for one in self.known.get(failed.warning.first_at, ())] if failed.warning else []
        is_lost = any(map(is_peer_loss, known)) or (failed.warning is None and failed.call.value("result") == _LOST)
        return not is_lost and (at < first.at or not self.log.same_file(at, first.at))

    def ending(self, first: Trouble, *, is_likely: bool = False) -> Ending:
        """Return the ending described by the line that ended the job, with the rank or node that it hit."""
        same = [one for one in self.candidates if one.signature is first.signature]
        named = [rank_and_node(one) for one in (first, *self._heads_of_stack(first), *same)]
        if not any(map(any, named)) and first.ends not in RANKLESS_ROLES:  # the launcher may name it
            exits = (one for one in self.candidates if one.ends is ExitRole.EXIT and one.at > first.at)
            named += [rank_and_node(one) for one in exits if self._may_follow(one.at, first.match.last_at)][:1]
        ranks, node = (next((place[index] for place in named if place[index]), None) for index in (0, 1))
        how = _HOW.get(first.signature.id, How.CANCELLED if first.ends is ExitRole.CANCELLED else How.DIED)
        by_network = first.signature.effect in _NETWORK_EFFECTS
        return Ending(how, first.signature.id, first.summary, ranks, node, is_likely, by_network)

    def _heads_of_stack(self, one: Trouble) -> Iterator[Trouble]:
        """Yield the first lines of MPI's error stack: the last line says why, but only the first names the rank."""
        head = vocabulary().signatures["mpi-error"]
        if one.signature.id in head.unless:
            begun = [match for match in one.process.saw(head.id) if self.log.same_file(match.first_at, one.at)]
            near = [match for match in begun if 0 <= self._distance(match.first_at, one.at) <= _FRAMES]
            yield from (Trouble(one.process, head, match) for match in near)

    def last_error(self) -> Trouble | None:
        """Return a known error that is close enough to the end of the log to have ended the job."""
        last = [(one.match.last_at, one) for one in self.candidates if one.ends in _ERROR_ROLES]
        errors = [one for at, one in last if one.ends is ExitRole.RAISED and self._is_near_the_end(at)]
        near = self._last_tracebacks()
        errors += [one for at, one in last if (near and at > min(near)) or self._is_last(at)]
        return errors[0] if errors else None

    def unclear(self) -> Ending:
        """Return the ending of a job in which no known line may have ended it."""
        if self._last_tracebacks():
            return Ending(cause="end-unclear", summary=vocabulary().advice["end-unclear"].summary)
        return Ending(How.COMPLETED if self.log.job.saw("completed") else How.UNKNOWN)

    def last_warning(self) -> Match | None:
        """Return a warning of the library after which nothing shows that the job continued.

        The warning has no signature, or one whose effect explains nothing, as the process already had a network.
        """
        for process in self.processes:
            alive = max((one.last_at for one in process.saw(*_ALIVE, "init-complete")), default=-1)
            for one in process.saw("warning"):
                said = self.known.get(one.last_at, ())
                is_known = any(alive < 0 or of.signature.effect is Effect.NONE for of in said)
                if one.last_at > alive and not is_known and self._is_near_the_end(one.last_at):
                    return one
        return None

    def last_failure(self) -> Match | None:
        """Return a line that reports a failure, in words that no signature knows, and after which nothing continued."""
        said = (one for process in self.processes for one in process.saw("failure"))
        return next((one for one in said if self._is_last(one.last_at)), None)

    def _last_tracebacks(self) -> list[int]:
        tracebacks = [one.last_at for process in self.processes for one in process.saw("traceback")]
        return [at for at in tracebacks if not self._is_below(self.ignored, at) and self._is_near_the_end(at)]

    def calls_that_failed(self) -> list[FailedCall]:
        """Return failed library calls after which their process showed no sign of life."""
        found = []
        for process in self.processes:
            alive = max((one.last_at for one in process.saw(*_ALIVE, "init-complete")), default=-1)
            failed = [one for one in process.saw("call-failed") if one.last_at > alive]
            for call in failed[:1]:
                before = [one for one in process.saw("warning") if one.first_at < call.last_at]
                found.append(FailedCall(process, call, before[-1] if before else None))
        return sorted(found, key=lambda one: one.call.first_at)

    def ending_by(self, failed: FailedCall, *, is_likely: bool) -> Ending:
        """Return the ending caused by a failed call: the known trouble of its warning, or the text of the warning."""
        process, call, warning = failed
        words = warning.value("text") if warning else f"a call failed: {call.text}"
        known = [one for one in self.known.get(warning.first_at, ()) if one.process is process] if warning else []
        if known:
            return replace(self.ending(known[0], is_likely=is_likely), by_network=False)
        ranks = {one.rank for one in process.communicators.values()}
        rank = f"{ranks.pop()}" if len(ranks) == 1 else None
        return Ending(How.DIED, "library-call-failed", evidence_text(words), rank, process.node, is_likely)

    def _is_near_the_end(self, at: int) -> bool:
        if self.alive.last(at) > at:
            return False
        after = self.log.lines_after(at)
        return after is not None and len(after) < _LAST_WORDS and not has_continued(after)

    def _is_below(self, marks: Places, at: int) -> bool:
        """Return whether one of the marks is the first line of the exception at a position."""
        mark = marks.before(at)
        return mark is not None and self._distance(mark, at) <= _FRAMES

    def _distance(self, at: int, later: int) -> int:
        """Return the number of lines between two positions in a file."""
        return self.log.place(later)[1] - self.log.place(at)[1]

    def _cleared(self, at: int) -> int:
        """Return where Slurm began to clear the step away in the file of a position, or the position if it did not."""
        return min(at, self.clearing.first(at))

    def _deaths(self, one: Trouble) -> tuple[int, ...]:
        """Return the positions where a line says that a process died, or where a program stopped at an error."""
        if one.ends in _DEATH_ROLES:
            return one.places
        return one.places[1:] if one.ends in _ERROR_ROLES and self._is_last(one.match.last_at) else ()

    def _is_clean_up(self, one: Trouble, deaths: Places, ended: Places) -> bool:
        """Return whether a line comes from clearing a step away: a process died, or Slurm ended the job (`ended`)."""
        began = self._cleared(one.at)
        if one.ends is ExitRole.CRASH or (one.ends is ExitRole.EXIT and _SIGNALLED.search(one.match.text)):
            return began < one.at  # shared memory disappears first, and Slurm sends signals
        death, end = (deaths.before(began), ended.after(began)) if one.ends is ExitRole.CANCELLED else (None, None)
        has_died = death is not None and self._may_follow(began, death)
        return has_died or (end is not None and self._distance(began, end) <= _FRAMES)

    def _ended_its_process(self, one: Trouble) -> bool:
        """Return whether a process did not continue after a line: programs also print errors that they catch."""
        last, same_file = one.match.last_at, self.log.same_file
        alive = [sign.last_at for sign in one.process.saw(*_ALIVE)] if not one.process.shared else []
        if any(at > last and same_file(at, last) for at in alive):
            return False
        if one.signature.id == _LOST_CONNECTION and one.process.shared and not self.exits.following(last):
            # an exception of a thread, such as one of wandb's, ends only that
            is_of_thread = self._is_below(self.threads, last)
            # other ranks, which print the messages of NCCL that follow, may not know yet
            return not is_of_thread and not has_continued(self.log.last_lines(last))
        if one.ends not in _ERROR_ROLES:
            return True
        cut_short = self.outside.following(last)
        exits = [at for at in self.exits.following(last) if self._may_follow(at, last)]
        if cut_short and not any(at < min(cut_short) for at in exits):
            return False
        return bool(exits) or (one.ends is ExitRole.RAISED and (self._is_last(last) or self._was_late(last)))

    def _was_late(self, error: int) -> bool:
        """Return whether srun reported the end of a process just before its last words, which also end the log."""
        before = self.exits.before(error)
        return before is not None and self._distance(before, error) <= _FRAMES and self._is_near_the_end(error)

    def _may_follow(self, at: int, error: int) -> bool:
        """Return whether the end of a process may follow from an error: it is soon after it, or in another file."""
        return not self.log.same_file(at, error) or (at > error and self._distance(error, at) <= self.near)

    def _is_last(self, at: int) -> bool:
        """Return whether all lines after a position are such as may follow the end of a program."""
        after = self.log.lines_after(at)
        return after is not None and is_aftermath(after)


def _kind(one: Trouble, dead: Collection[str]) -> int | None:
    """Return the kind of end that a line shows: independent, of a transfer, possibly a consequence, or of a whole step.

    `dead` contains the names of processes that died of their own network.
    """
    effect = one.signature.effect
    if one.ends in _STANDS_ALONE or (effect in _NETWORK_EFFECTS and one.process.name in dead):
        return 0
    if effect is Effect.RUN_ERROR and one.signature.weight is Weight.ROOT:
        return 1
    if one.ends in _MAY_FOLLOW or effect is Effect.RUN_ERROR:
        return _FOLLOWING
    return 3 if one.ends is ExitRole.CLEARED else None


def _starts(processes: Sequence[ProcessLog]) -> Iterator[int]:
    """Yield the first positions of connected processes: after a death, they belong to the next run of the job."""
    for process in processes:
        if not process.shared and any(one.has_origin for one in process.saw("connected", "channel")):
            yield min(one.first_at for one in process.matches)
        yield from (one.last_at for one in process.saw("starts-again"))
