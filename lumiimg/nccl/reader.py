"""The log reader: blocks of lines in, in any order of processes; a report out, at any time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumiimg.nccl import causes, summary
from lumiimg.nccl.events import Sighting, position
from lumiimg.nccl.job import FileChunk, JobState
from lumiimg.nccl.job_verdict import judge_job
from lumiimg.nccl.lines import evidence_text, messages
from lumiimg.nccl.prefilter import Prefilter, announces_table
from lumiimg.nccl.report import Confidence, Evidence, LogReport
from lumiimg.nccl.verdict import dead_of, job_of, judge_process
from lumiimg.nccl.vocabulary import Effect, vocabulary

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lumiimg.nccl.bandwidth import BandwidthReader
    from lumiimg.nccl.lines import Message
    from lumiimg.nccl.vocabulary import MessagePattern


class LogReader:
    """Reads the log of one job, from one file or several, into a JobState."""

    def __init__(self) -> None:
        self._vocabulary = vocabulary()
        self._gate = Prefilter(self._vocabulary)
        self._values: dict[tuple[tuple[str, str], ...], tuple[tuple[str, str], ...]] = {}
        self._piece = -1
        self.state = JobState()
        self.changes = 0
        """Grows when something new was seen."""

    def restart(self) -> None:
        """Forget what was read: the log was written again."""
        self._piece = -1
        self.state = JobState()
        self.changes += 1

    def begin(self, file: str, piece: int | None = None) -> None:
        """Start with a piece of a file; `piece` is its number in the order of the job's log, by default the next."""
        self._piece = self._piece + 1 if piece is None else piece
        self.state.pieces[self._piece] = FileChunk(file)

    def feed(self, file: str, block: bytes) -> None:
        """Take in the next lines of a file, each whole; never raises, whatever the bytes."""
        piece = self.state.pieces.get(self._piece)
        if piece is None or piece.file != file:
            self.begin(file)
            piece = self.state.pieces[self._piece]
        start = piece.lines
        if tables := self._tables_in(block):
            tables.feed(file, block, lambda index: position(self._piece, start + index, 0))
        count, hits = self._gate.select(block)
        for index, line, entries in hits:
            for number, message in enumerate(messages(line)):
                if message.process is not None:
                    self.state.own(message.process, message.task, file)
                self._take(message, entries, file, position(self._piece, start + index, number))
        piece.lines += count

    def _tables_in(self, block: bytes) -> BandwidthReader | None:
        if self.state.bandwidth is None and announces_table(block):
            from lumiimg.nccl.bandwidth import BandwidthReader  # 10 ms for patterns that few logs need

            self.state.bandwidth = BandwidthReader()
        return self.state.bandwidth

    def _take(self, message: Message, entries: Sequence[MessagePattern], file: str, at: int) -> None:
        text = message.text
        found = [(e, m) for e in entries if any(h in text for h in e.hints) and (m := e.match(text)) is not None]
        if not found or self._vocabulary.foreign.search(text) is not None:
            return
        process = self.state.process(message.process, message.task, file)
        for entry, match in found:
            groups = match.groupdict(default="")
            if entry.id == "communicator":
                process.see_communicator(groups)
                groups = {}
            elif entry.id == "coordinates":
                process.see_coordinates(groups)
            values = tuple(groups.items())
            home = self.state.job if entry.of_job else process
            known = home.known(entry.id, values)
            if known is not None:
                known.last = max(known.last, at)
                continue
            values = self._values.setdefault(values, values) if len(self._values) < 65_536 else values
            home.see(Sighting(entry.id, values, evidence_text(text, match.span()), at, at))
            self.changes += 1

    def report(self) -> LogReport:
        """Return the answer about all lines so far."""
        processes = self.state.settled()
        seen = causes.job_events([*processes, self.state.job])
        job_seen = job_of(processes, self.state.job, self.state.same_file)
        of_job = self.state.job.events
        troubles = [causes.troubles(p, seen, of_job) for p in processes]
        findings = [judge_process(p, t, job_seen) for p, t in zip(processes, troubles, strict=True)]
        dead = [bool(dead_of(p, t, job_seen)) for p, t in zip(processes, troubles, strict=True)]
        job = judge_job(processes, findings, dead)
        everywhere = [*troubles, causes.troubles(self.state.job, seen, ())]
        single_node = summary.is_single_node(processes)
        told = summary.told(processes, findings, self.state.job)
        return LogReport(
            verdict=job.verdict,
            confidence=job.confidence,
            proof=tuple(map(self._evidence, job.proof)),
            ranks=summary.rank_results(processes, findings),
            nodes=summary.node_groups(processes, findings, troubles),
            told=told,
            single_node=single_node,
            failed_running=any(t.signature.effect is Effect.RUN_ERROR for found in everywhere for t in found),
            communicators=summary.communicators(processes, findings),
            library=summary.component(processes, "library") or summary.component(processes, "oneccl-library", "oneCCL"),
            plugin=summary.component(processes, "plugin"),
            provider=job.provider or (job_seen.provider.value("provider") if job_seen.provider else None),
            transport=summary.transport(processes, self.state.job),
            environment=summary.environment(self.state.job),
            measurements=self.state.bandwidth.measurements(self.state.place) if self.state.bandwidth else (),
            causes=causes.ranked(
                [trouble for found in everywhere for trouble in found],
                job.verdict,
                proved=job.confidence is Confidence.PROVED,
                single_node=single_node,
                apart=single_node and max(told.nodes, told.of_nodes or 0) > 1,
                several_runs=summary.has_several_runs(processes, self.state.same_file),
                evidence=self._evidence,
            ),
        )

    def _evidence(self, sighting: Sighting) -> Evidence:
        file, line = self.state.place(sighting.first)
        return Evidence(file, line, sighting.text)


def read_lines(file: str, lines: Iterable[str | bytes]) -> LogReport:
    """Return the report about the lines of one file."""
    reader = LogReader()
    for line in lines:
        whole = line if isinstance(line, bytes) else line.encode("utf-8", "replace")
        reader.feed(file, whole.removesuffix(b"\n") + b"\n")
    return reader.report()
