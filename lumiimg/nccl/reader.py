"""The log reader: lines in, one at a time and in any order of processes; a report out, at any time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumiimg.nccl import causes, summary
from lumiimg.nccl.lines import decoded, evidence_text, messages
from lumiimg.nccl.report import Evidence, LogReport
from lumiimg.nccl.sightings import Process
from lumiimg.nccl.verdict import is_dead, job_finding, named_provider, process_finding
from lumiimg.nccl.vocabulary import vocabulary

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lumiimg.nccl.lines import Message

PROCESS_LIMIT = 65_536
_BEYOND = "processes beyond the limit"
"""Processes told apart; the lines of any more are read as if they had no prefix."""


class LogReader:
    """Reads the log of one job, from one file or several; memory grows with the processes, not with the lines."""

    def __init__(self) -> None:
        self._vocabulary = vocabulary()
        self._processes: dict[str, Process] = {}
        self._bare: dict[tuple[str, str | None], Process] = {}
        """Lines without `host:pid`, by file and task."""
        self._owners: dict[tuple[str, str | None], set[str]] = {}
        """Processes seen beside them; two are enough to know that the owner is unknown."""
        self._number = 0

    def feed(self, file: str, line_number: int, text: str | bytes) -> None:
        """Take in one line of `file`; never raises, whatever the bytes."""
        line = decoded(text)
        if not self._vocabulary.candidates(line):
            return
        for message in messages(line):
            if message.process is not None:
                self._own(message, file)
            self._take(message, file, line_number)

    def report(self) -> LogReport:
        """Return the answer about all lines so far."""
        processes = self._settled()
        seen = causes.job_events(processes)
        provider = named_provider(processes)
        troubles = [causes.troubles(p, seen) for p in processes]
        findings = [process_finding(p, t, provider) for p, t in zip(processes, troubles, strict=True)]
        job = job_finding(findings, dead=any(map(is_dead, processes, troubles)))
        return LogReport(
            verdict=job.verdict,
            confidence=job.confidence,
            proof=job.proof,
            ranks=summary.rank_results(processes, findings),
            communicators=summary.communicators(processes, findings),
            library=summary.component(processes, "library"),
            plugin=summary.component(processes, "plugin"),
            provider=job.provider or (provider.value("provider") if provider else None),
            interfaces=summary.interfaces(processes),
            gdr=summary.gdr(processes),
            causes=causes.ranked(
                [trouble for found in troubles for trouble in found],
                job.verdict,
                single_node=summary.is_single_node(processes),
            ),
        )

    def _own(self, message: Message, file: str) -> None:
        for key in {(file, message.task), (file, None)}:
            if key not in self._owners and len(self._owners) >= PROCESS_LIMIT:
                continue
            owners = self._owners.setdefault(key, set())
            if len(owners) < 2 and message.process is not None:
                owners.add(message.process)

    def _process(self, message: Message, file: str) -> Process:
        name = message.process
        if name is not None and (known := self._processes.get(name)) is not None:
            return known
        if name is not None and len(self._processes) < PROCESS_LIMIT:
            return self._processes.setdefault(name, Process(name))
        if name is not None:
            # All beyond the limit are one, under the name of the first: a host's name is a hint of its network.
            return self._bare.setdefault((file, _BEYOND), Process(name, shared=True))
        key = (file, message.task)
        if message.task is None or (key not in self._bare and len(self._bare) >= PROCESS_LIMIT):
            return self._bare.setdefault((file, None), Process(file, shared=True))
        return self._bare.setdefault(key, Process(f"task {message.task}"))

    def _take(self, message: Message, file: str, line_number: int) -> None:
        candidates = [(entry, entry.match(message.text)) for entry in self._vocabulary.candidates(message.text)]
        matches = [(entry, match) for entry, match in candidates if match is not None]
        if not matches or self._vocabulary.foreign.search(message.text) is not None:
            return
        self._number += 1
        process = self._process(message, file)
        for entry, match in matches:
            evidence = Evidence(file, line_number, evidence_text(message.text, match.span()))
            groups = match.groupdict(default="")
            if entry.id == "communicator":
                process.see_communicator(groups)
                groups = {}
            process.see(entry.id, tuple(groups.items()), evidence, self._number)

    def _settled(self) -> list[Process]:
        """Return the processes, lines without a prefix given to the process whose they must be."""
        settled = dict(self._processes)
        left: list[Process] = []
        for key, bare in self._bare.items():
            owners = self._owners.get(key, set())
            if len(owners) != 1:
                left.append(bare)
                continue
            name = next(iter(owners))
            settled[name] = settled.get(name, Process(name)).joined(bare)
        return [*settled.values(), *left]


def read_lines(file: str, lines: Iterable[str | bytes]) -> LogReport:
    """Return the report about the lines of one file."""
    reader = LogReader()
    for number, line in enumerate(lines, 1):
        reader.feed(file, number, line)
    return reader.report()
