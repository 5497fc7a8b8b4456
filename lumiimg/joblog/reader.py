"""The log reader: blocks of lines in, in any order of processes; a report out, at any time."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lumiimg.joblog import causes, flight, summary, whole_job
from lumiimg.joblog.aftermath import TAIL_BYTES
from lumiimg.joblog.ending import ending, job_numbers, of_another_job
from lumiimg.joblog.events import ProcessState, Sighting, position
from lumiimg.joblog.job import FileChunk, JobState
from lumiimg.joblog.job_verdict import judge_job
from lumiimg.joblog.lines import Message, excerpt, messages, warns
from lumiimg.joblog.prefilter import Prefilter, announces_table
from lumiimg.joblog.records import unpacked
from lumiimg.joblog.repeats import Repeats
from lumiimg.joblog.report import Cause, Confidence, Evidence, LogReport, RunBefore, Verdict
from lumiimg.joblog.runs import first_line, runs
from lumiimg.joblog.verdict import dead_of, job_of, judge_process
from lumiimg.joblog.vocabulary import Effect, Ends, MessagePattern, Occasion, vocabulary

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from lumiimg.joblog.bandwidth import BandwidthReader
    from lumiimg.joblog.flight import FlightDump


_TAILS = 4096
"""Pieces of a log of which the end is kept."""
_VARIABLES = frozenset({"environment", "printed"})


class LogReader:
    """Reads the log of one job, from one file or several, into a JobState."""

    def __init__(self) -> None:
        self._vocabulary = vocabulary()
        self._gate = Prefilter(self._vocabulary)
        self._values: dict[tuple[tuple[str, str], ...], tuple[tuple[str, str], ...]] = {}
        self._piece = -1
        self._repeats = Repeats()
        self._state = JobState()
        self._tails = 0
        self.changes = 0
        """Grows when something new was seen."""

    def restart(self) -> None:
        """Forget what was read: the log was written again."""
        self._piece = -1
        self._repeats.forget()
        self._state = JobState()
        self.changes += 1

    @property
    def state(self) -> JobState:
        """All that was seen so far."""
        self._repeats.tell(self._piece)
        return self._state

    def begin(self, file: str) -> None:
        """Start with a file, or with more of one."""
        known = self.state.pieces.get(self._piece)
        if known is not None and known.file != file:
            self._repeats.forget()  # there a line may be of another process
        self._piece += 1
        self.state.pieces[self._piece] = FileChunk(file)

    def feed(self, file: str, block: bytes) -> None:
        """Take in the next lines of a file, each whole; never raises, whatever the bytes.

        A block without an end is one line that may be cut off: it counts only if it says that something failed.
        """
        piece = self._state.pieces.get(self._piece)
        if piece is None or piece.file != file:
            self.begin(file)
            piece = self._state.pieces[self._piece]
        start = piece.lines
        block, piece.others = unpacked(block, piece.lines - piece.others, piece.others)
        is_cut = not block.endswith(b"\n")
        count = block.count(b"\n") + is_cut
        abounds = not is_cut and self._repeats.abound(block, count)
        if abounds:
            for index, line, key in self._repeats.unread(block, start):
                seen = self._read(line, self._gate.entries(line), file, start + index)
                if seen is not None:
                    self._repeats.remember(key, seen)
        else:
            for index, line, entries in self._gate.select(block)[1]:
                counted = tuple(filter(self._is_grave, entries)) if is_cut else entries
                self._read(line, counted, file, start + index)
        if not is_cut and (tables := self._tables_in(block)):
            tables.feed(file, block, lambda index: position(self._piece, start + index, 0))
        if piece.tail is not None and not is_cut:
            piece.tail = (piece.tail + block)[-TAIL_BYTES:]
        piece.lines += count
        if self._repeats.quotes or not abounds:
            piece.quoted += block.count(b"\n>") + block.startswith(b">")

    def take_dump(self, dump: FlightDump) -> None:
        """Take in a dump of PyTorch's flight recorder."""
        if len(self._state.dumps) < flight.DUMP_LIMIT:
            self._state.dumps.append(dump)
        self.changes += 1

    def _read(
        self, line: bytes, entries: Sequence[MessagePattern], file: str, number: int
    ) -> tuple[Sighting, ...] | None:
        """Take in a line; return what was seen in it, where it is one message of a process that it names."""
        seen: list[Sighting] = []
        said = messages(line) if entries else []
        for index, message in enumerate(said):
            state = self._state.of_copies() if message.copied else self._state
            if message.process is not None:
                state.note_owner(message.process, message.task, file)
            seen += self._take(state, message, entries, file, position(self._piece, number, index))
        return tuple(seen) if len(said) == 1 and said[0].process is not None else None

    def _tables_in(self, block: bytes) -> BandwidthReader | None:
        if self._state.bandwidth is None and announces_table(block):
            from lumiimg.joblog.bandwidth import BandwidthReader  # 10 ms for patterns that few logs need

            self._state.bandwidth = BandwidthReader()
        return self._state.bandwidth

    def _take(
        self, state: JobState, message: Message, entries: Sequence[MessagePattern], file: str, at: int
    ) -> Iterator[Sighting]:
        text = message.text
        found = [(e, m) for e in entries if (m := e.match(message)) is not None]
        found = [(e, m) for e, m in found if not (self._is_grave(e) and warns(message, m.start()))]
        if not found or self._vocabulary.foreign.search(text) is not None:
            return
        process = state.process(message.process, message.task, file)
        for entry, match in found:
            groups = match.groupdict(default="")
            if entry.id == "communicator":
                process.see_communicator(groups, has_origin=message.has_origin)
                groups = {}
            elif entry.id == "coordinates":
                process.see_coordinates(groups, has_origin=message.has_origin)
            values = tuple(groups.items())
            home = state.job if entry.of_job else process
            if entry.id in _VARIABLES and not process.shared and groups["name"] not in self._vocabulary.own_values:
                state.note_value(groups["name"], groups["value"], process.name)
            known = home.known(entry.id, values)
            if known is not None:
                known.last = max(known.last, at)
                known.has_origin |= message.has_origin
                yield known
                continue
            values = self._values.setdefault(values, values) if len(self._values) < 65_536 else values
            sighting = Sighting(entry.id, values, excerpt(text, match.span()), at, at, message.has_origin)
            home.see(sighting)
            if entry.id == "traceback" or (
                entry.is_trouble and self._vocabulary.signatures[entry.id].ends is Ends.RAISED
            ):
                self._keep_tail()
            yield sighting
            self.changes += 1

    def _is_grave(self, entry: MessagePattern) -> bool:
        """Whether an entry says that a network, or the job, ended."""
        signature = self._vocabulary.signatures.get(entry.id)
        return signature is not None and (signature.ends, signature.effect) != (Ends.NO, Effect.NONE)

    def _keep_tail(self) -> None:
        """Keep what follows from here on in this piece of the log: it shows whether the error ended the program."""
        piece = self._state.pieces[self._piece]
        self._tails += piece.tail is None
        if piece.tail is None and self._tails <= _TAILS:
            piece.tail = b""

    def report(self) -> LogReport:
        """Return the answer about all lines so far; of several runs about the last one."""
        whole = self.state.counted()
        *before, last = runs(whole)
        report = self._report(last, own=self.state.own() if last is whole else last)
        if not before:
            return report
        earlier = [(state, self._report(state, own=state)) for state in before]
        begin = first_line(whole, last)
        return replace(
            report,
            runs_before=tuple(
                RunBefore(one.verdict, one.confidence, one.provider, one.ended, first_line(whole, state))
                for state, one in earlier
            ),
            first_line=begin,
            measurements=tuple(one for one in report.measurements if one.line >= begin),
        )

    def _report(self, state: JobState, own: JobState) -> LogReport:
        """Return the answer about one run; `own`: what it printed itself."""
        processes, troubles = _troubled(state)
        seen = causes.job_events([*processes, state.job])
        job_seen = job_of(processes, state.job, state.same_file)
        findings = [judge_process(p, t, job_seen) for p, t in zip(processes, troubles, strict=True)]
        dead = [bool(dead_of(p, t, job_seen)) for p, t in zip(processes, troubles, strict=True)]
        job = judge_job(processes, findings, dead)
        everywhere = [*troubles, causes.troubles(state.job, seen, ())]
        end = ending(*((processes, troubles) if own is state else _troubled(own)), state)
        single_node = summary.is_single_node(processes)
        told = summary.told(processes, findings, state.job)
        ranks = summary.rank_results(processes, findings)
        stall = flight.stalled(state.dumps) or whole_job.stall(state.job, ranks, told)
        groups = summary.node_groups(processes, findings, troubles)
        progress = flight.progress(state.dumps)
        calls = tuple(map(self._evidence, end.calls[: causes.EVIDENCE_OF_CAUSE]))
        unclear = _unclear(
            Verdict.INTRA_NODE_ONLY if single_node else job.verdict,
            {
                Occasion.CALL_NOT_ENDED: bool(calls),
                Occasion.END_UNCLEAR: end.unclear and not (calls and job.verdict is not Verdict.NONE),
                Occasion.STALLED: bool(state.dumps) and stall is not None and job.verdict is not Verdict.NONE,
                Occasion.NOT_ENDED: stall is None and any(one.waits_in for one in progress),
            },
        )
        ranked = causes.ranked(
            [trouble for found in everywhere for trouble in found],
            job.verdict,
            proved=job.confidence is Confidence.PROVED,
            single_node=single_node,
            apart=single_node and max(told.nodes, told.of_nodes or 0) > 1,
            several_runs=summary.has_several_runs(processes, state.same_file),
            stalled=stall is not None and bool(state.dumps) and job.verdict is Verdict.NONE,
            first=end.signature,
            clean_up=end.clean_up,
            some_nodes=whole_job.some_nodes(
                job.verdict, groups, out_of_time=end.signature == causes.TIME_LIMIT and not single_node
            ),
            evidence=self._evidence,
        )
        report = LogReport(
            verdict=job.verdict,
            confidence=job.confidence,
            proof=tuple(map(self._evidence, job.proof)),
            ranks=ranks,
            nodes=groups,
            told=told,
            runs_before=(),
            first_line=1,
            excerpt=bool(job.proof) and not any(sighting.has_origin for sighting in job.proof),
            single_node=single_node,
            failed_running=any(t.signature.effect is Effect.RUN_ERROR for found in everywhere for t in found),
            connected=any(True for p in processes for _ in p.saw("channel", "local-channel", "connected")),
            ended=end.death,
            end_unclear=end.unclear or bool(calls),
            stall=stall,
            progress=progress,
            differing=whole_job.differing(state.holders, processes),
            channels=whole_job.channels(processes),
            communicators=summary.communicators(processes, findings),
            library=summary.component(processes, "library") or summary.component(processes, "oneccl-library", "oneCCL"),
            plugin=summary.component(processes, "plugin"),
            provider=job.provider or (job_seen.provider.value("provider") if job_seen.provider else None),
            transport=summary.transport(processes, state.job),
            environment=summary.environment(state.job),
            measurements=state.bandwidth.measurements(state.place) if state.bandwidth else (),
            causes=tuple(replace(c, evidence=calls) if c.id == Occasion.CALL_NOT_ENDED else c for c in unclear)
            + ranked,
        )
        return report.with_names({"job_id": _job_number(state) or "$SLURM_JOB_ID"})

    def _evidence(self, sighting: Sighting) -> Evidence:
        file, line = self.state.place(sighting.first)
        return Evidence(file, line, sighting.text)


def _troubled(state: JobState) -> tuple[list[ProcessState], list[list[causes.Trouble]]]:
    """Return the processes of a job, and the troubles of each."""
    processes = state.settled()
    seen = causes.job_events([*processes, state.job])
    found = (causes.troubles(process, seen, state.job.events) for process in processes)
    return processes, [[one for one in of if not of_another_job(one.sighting, state)] for of in found]


def _unclear(verdict: Verdict, occasions: Mapping[Occasion, bool]) -> tuple[Cause, ...]:
    """Return what stands first where a network is proved, and not that the job went well."""
    return tuple(cause for occasion, holds in occasions.items() if holds for cause in causes.advice(occasion, verdict))


def _job_number(state: JobState) -> str | None:
    """Return the job's number, for commands that are typed where its variables are not set."""
    numbers = job_numbers(state) or {s.value("number") for s in state.job.saw("job-number")}
    return numbers.pop() if len(numbers) == 1 else None


def read_lines(file: str, lines: Iterable[str | bytes]) -> LogReport:
    """Return the report about the lines of one file."""
    reader = LogReader()
    whole = (line if isinstance(line, bytes) else line.encode("utf-8", "replace") for line in lines)
    reader.feed(file, b"".join(line.removesuffix(b"\n") + b"\n" for line in whole))
    return reader.report()
