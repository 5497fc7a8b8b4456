"""The answer about a log: which network carried the traffic, how certain that is, the proof, the causes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from lumiimg.core.findings import Remedy, Severity
from lumiimg.core.text import count, hostlist, size
from lumiimg.joblog.ending import Ending  # noqa: TC001 - schemas are made from the types of the fields
from lumiimg.joblog.flight import RankProgress, Stall  # noqa: TC001
from lumiimg.joblog.verdict import (
    CHOSEN,
    CONFIDENCE_WORDS,
    SELECTED,
    SENTENCES,
    SHORT,
    TRANSPORTS,
    Confidence,
    Verdict,
    severity_of,
)


def _part_of(number: int, total: int | None, noun: str) -> str:
    return f"{number} of {total} {noun}s" if total else count(number, noun)


@dataclass(frozen=True, slots=True)
class Evidence:
    """One line of a log, made printable and truncated."""

    file: str
    """File name as given on the command line."""
    line: int
    """Line number, counted from 1."""
    text: str
    """Text of the line."""

    def __str__(self) -> str:
        """Return the line with its file and line number."""
        return f"{self.file}:{self.line}: {self.text}"


@dataclass(frozen=True, slots=True)
class Cause:
    """A known trouble that the log shows: an entry of the knowledge base with its placeholders filled in."""

    id: str
    """Id of the signature (`lumiimg log --signatures`)."""
    summary: str
    """What the line means."""
    because: tuple[str, ...]
    """Possible reasons, most likely first."""
    remedy: tuple[Remedy, ...]
    """What to do."""
    source: str
    """Source of this knowledge."""
    evidence: tuple[Evidence, ...]
    """Log lines that show it."""


@dataclass(frozen=True, slots=True)
class LoggedLibrary:
    """A library or plugin that prints its name: `RCCL 2.22.3`, `aws-ofi-nccl 1.18.0`."""

    name: str
    """`RCCL`, `aws-ofi-nccl`."""
    version: str
    """Version that it prints."""


@dataclass(frozen=True, slots=True)
class RankResult:
    """What one rank of the job used; a process that names no rank has a result of its own."""

    process: str
    """`host:pid`, or `task N`, or the file name if the lines name no host."""
    verdict: Verdict
    """Verdict for this rank."""
    confidence: Confidence
    """Confidence for this rank."""
    network: str | None
    """Network as the library names it: `AWS Libfabric`, `Socket`."""
    provider: str | None
    """libfabric provider: `cxi`."""
    rank: int | None
    """Rank in the largest communicator of the process; null if the log does not say."""


@dataclass(frozen=True, slots=True)
class Communicator:
    """A communicator, assembled from the lines of all its ranks."""

    id: str
    """`commId` if it was printed, otherwise process and address."""
    ranks: int
    """Number of ranks in it."""
    nodes: int | None
    """Number of nodes that it spans; null if the log does not say."""
    crosses_network: bool | None
    """Whether it spans more than one node; null if the log does not say."""
    verdict: Verdict
    """Verdict for its ranks."""


@dataclass(frozen=True, slots=True)
class VerdictGroup:
    """Nodes whose ranks all have the same verdict."""

    verdict: Verdict
    """Verdict for these nodes."""
    network: str | None
    """Network as the library names it: `AWS Libfabric`, `Socket`."""
    provider: str | None
    """libfabric provider: `cxi`."""
    cause: str | None
    """Id of the most likely cause on these nodes; null if none was seen there."""
    confidence: Confidence
    """Confidence of the least certain node; for a node, its surest rank counts: not every rank has its own channel."""
    nodes: tuple[str, ...]
    """Host names as printed, sorted."""

    @property
    def count(self) -> int:
        """Number of nodes."""
        return len(self.nodes)

    @property
    def names(self) -> str:
        """Node names, folded as Slurm does it: `nid[005000-005002]`."""
        return hostlist(self.nodes)

    @property
    def severity(self) -> Severity:
        """Severity: ok only for a fast network that is proved."""
        return severity_of(self.verdict, self.provider, self.confidence)


@dataclass(frozen=True, slots=True)
class Coverage:
    """How much of the job the log covers: the ranks and nodes that report their network, out of all."""

    ranks: int
    """Ranks that report their network."""
    of_ranks: int | None
    """Ranks in the job; null if the log does not say."""
    nodes: int
    """Nodes that report their network."""
    of_nodes: int | None
    """Nodes in the job; null if the log does not say."""

    @property
    def is_part(self) -> bool:
        """Whether some ranks or nodes do not report their network."""
        return self.ranks < (self.of_ranks or 0) or self.nodes < (self.of_nodes or 0)

    @property
    def of_all_ranks(self) -> str:
        """`3 of 8 ranks`; `3 ranks` if the total is not known."""
        return _part_of(self.ranks, self.of_ranks, "rank")

    @property
    def sentence(self) -> str:
        """`3 of 8 ranks, 1 of 2 nodes`; nodes only if the lines name any."""
        nodes = f", {_part_of(self.nodes, self.of_nodes, 'node')}" if self.nodes else ""
        return f"{self.of_all_ranks}{nodes}"


@dataclass(frozen=True, slots=True)
class Transport:
    """How the network was used; None or empty if the log does not say or ranks differ."""

    gdr: bool | None
    """Whether the NIC reads GPU memory (GPUDirect RDMA); null if the log does not say, or ranks differ."""
    nics: int | None
    """Number of NICs that the plugin found."""
    interfaces: tuple[str, ...]
    """Network interfaces of NET/Socket, in the order in which it lists them: `hsn0`, `nmn0`."""

    @property
    def words(self) -> str:
        """How the network was used, in words; empty if the log does not say."""
        parts = [f"{self.nics} NICs"] if self.nics else []
        parts += [] if self.gdr is None else ["GPUDirect RDMA" if self.gdr else "no GPUDirect RDMA"]
        parts += [f"sockets on {', '.join(self.interfaces)}"] if self.interfaces else []
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class Measurement:
    """Result of a network benchmark, as printed in a log."""

    test: str | None
    """Name of the test, such as `all_reduce_perf`; null if the log does not say."""
    ranks: int | None
    """Ranks that took part; null if the log does not say."""
    nodes: int | None
    """Nodes that took part; null if the log does not say."""
    average_gb_s: float | None
    """Average bus bandwidth as the program reports it, 1e9 bytes per second."""
    wrong: int | None
    """Number of wrong results; null if the program did not check."""
    file: str
    """The log that contains the table."""
    line: int
    """Line of the table's header, counted from 1."""
    wrong_line: int | None
    """Line of the first wrong result."""
    points: tuple[tuple[int, float], ...] = ()
    """Message size in bytes and its best bus bandwidth (1e9 bytes per second), by size; the 256 largest sizes."""

    @property
    def name(self) -> str:
        """Name of the test, in words."""
        return self.test or "collective test"

    @property
    def best_gb_s(self) -> float | None:
        """The largest bus bandwidth, 1e9 bytes per second; null if no row was seen."""
        return max((speed for _, speed in self.points), default=None)

    @property
    def best_size(self) -> int | None:
        """Message size in bytes that gave the best bandwidth."""
        return next((size for size, speed in self.points if speed == self.best_gb_s), None)

    @property
    def largest_size(self) -> int | None:
        """Size in bytes of the largest message whose bandwidth was measured."""
        return self.points[-1][0] if self.points else None

    @property
    def sentence(self) -> str:
        """The result, in words."""
        nodes = "" if self.nodes is None else f" on {count(self.nodes, 'node')}"
        if self.best_gb_s is None or self.best_size is None:
            return f"{self.name}{nodes}: no result"
        average = "" if self.average_gb_s is None else f", {self.average_gb_s:.4g} on average"
        return f"{self.name}{nodes}: {self.best_gb_s:.4g} GB/s at {size(self.best_size)}{average}"


# -- the answer


@dataclass(frozen=True, slots=True)
class LogReport:
    """The answer about one log, or about a set of files from one job."""

    verdict: Verdict
    """Which network, or why the plugin provided none; `lumiimg log --signatures` lists the messages behind it."""
    confidence: Confidence
    """How well the log supports the verdict."""
    proof: tuple[Evidence, ...]
    """The lines that decide the verdict, strongest first."""
    ranks: tuple[RankResult, ...]
    nodes: tuple[VerdictGroup, ...]
    """Nodes grouped by verdict: those without a fast network first, then by size."""
    coverage: Coverage
    """How much of the job the log covers."""
    runs: int
    """Number of runs in the log, of the same job or of others; the answer is about the last one."""
    first_line: int
    """First line of the run that the answer is about; 1 if it is the only one."""
    excerpt: bool
    """Whether no line that decides the verdict names its process; such lines alone prove nothing."""
    single_node: bool
    """Whether the log proves that nothing crossed a network, so that it does not matter which one was chosen."""
    failed_running: bool
    """Whether a transfer or a collective failed after the ranks were connected."""
    connected: bool
    """Whether a line shows that ranks were connected over a network."""
    ended: Ending
    """How the job ended; if that is not known and a cause is named, the answer is never `good`."""
    stall: Stall | None
    """Which ranks a stall began with; null if there was none, or the log does not show it."""
    progress: tuple[RankProgress, ...]
    """How far each rank got, if there are dumps of PyTorch's flight recorder."""
    communicators: tuple[Communicator, ...]
    """Communicators, in the order of the log."""
    library: LoggedLibrary | None
    """The collective library; null if it does not print its name."""
    plugin: LoggedLibrary | None
    """The net plugin; null if none prints its name."""
    provider: str | None
    """libfabric provider: `cxi`; null if the log does not say, or ranks differ."""
    transport: Transport
    environment: Mapping[str, str]
    """Variables of NCCL, Slurm and Slingshot that the log shows, each with its first value."""
    measurements: tuple[Measurement, ...]
    """Benchmark results in the log."""
    causes: tuple[Cause, ...]
    """Causes, most likely first."""

    @property
    def ranks_by_name(self) -> dict[str, RankResult]:
        """Ranks by number; by number and process if several claim the same number; by process if no number is known."""
        taken = Counter(one.rank for one in self.ranks)

        def name(one: RankResult) -> str:
            number = "" if one.rank is None else str(one.rank)
            return number if taken[one.rank] == 1 and number else f"{number} {one.process}".strip()

        return {name(one): one for one in self.ranks}

    @property
    def nothing_crossed(self) -> bool:
        """Whether no network was needed, so that it does not matter which one was chosen."""
        return self.single_node and self.verdict in TRANSPORTS | {Verdict.INTRA_NODE_ONLY}

    @property
    def other_nodes_silent(self) -> bool:
        """Whether the job has more nodes than reported, so that it is not known what their ranks did."""
        return self.coverage.of_nodes not in {None, self.coverage.nodes}

    @property
    def severity(self) -> Severity:
        """Whether a fast network carried the traffic to the end, or none was needed: ok, unknown or a problem."""
        if self.failed_running or (self.ended.is_failure and not self.ended.is_likely):
            return Severity.PROBLEM
        is_open = self.ended.cause is not None or self.stall is not None or any(one.waits_in for one in self.progress)
        found = self.network_severity
        return Severity.UNKNOWN if is_open and found is Severity.OK else found

    @property
    def network_severity(self) -> Severity:
        """Whether it was a fast network, or none was needed, however the job ended."""
        if self.nothing_crossed:
            return Severity.UNKNOWN if self.other_nodes_silent else Severity.OK
        return severity_of(self.verdict, self.provider, self.confidence)

    @property
    def headline(self) -> str:
        """The answer in one line: what ended the job, if that is known, otherwise the network."""
        if self.ended.leads:
            began = f"; it began with {self.stall.who}, which {self.stall.reason}" if self.stall else ""
            return f"{self.ended.cause}: {self.ended.sentence}{began}"
        if self.verdict is Verdict.NONE and self.progress and self.stall:
            return f"stalled: {self.stall.who} {self.stall.reason}"
        return self.network_line

    @property
    def network_line(self) -> str:
        """Which network the job used, in one line."""
        failed = "; then a transfer or a collective failed" if self.failed_running and not self.ended.leads else ""
        if self.nothing_crossed:
            unsure = "; the log does not show what other nodes did" if self.other_nodes_silent else ""
            return f"{self.verdict.value}: {SENTENCES[Verdict.INTRA_NODE_ONLY]}{failed}{unsure}"
        sentence = SENTENCES[self.verdict]
        if severity_of(self.verdict, self.provider, self.confidence) is Severity.UNKNOWN:
            sentence = SELECTED.get(self.verdict, sentence)
        if not self._shows_traffic and (chosen := CHOSEN.get(sentence)):
            sentence = f"{chosen}; no line shows traffic"
        if self.verdict is Verdict.NONE:
            return f"Unknown: {sentence}{failed}"
        is_part = self.confidence is Confidence.PROVED and self.coverage.ranks < (self.coverage.of_ranks or 0)
        of_which = f" of {self.coverage.of_all_ranks}" if is_part else ""
        return f"{self.verdict.value}: {sentence}{failed} ({CONFIDENCE_WORDS[self.confidence]}{of_which})"

    @property
    def network_in_short(self) -> str:
        """Which network the job used, in a few words, for use after the line about what ended it."""
        if self.nothing_crossed:
            return SHORT[Verdict.INTRA_NODE_ONLY]
        if self.verdict is Verdict.OFI_OTHER and self.provider is None:
            return "libfabric, its provider is not named"
        used = "" if self.verdict not in TRANSPORTS or self._shows_traffic else ", chosen; no line shows traffic"
        if self.verdict is not Verdict.MIXED or len(self.nodes) < 2:
            return f"{SHORT[self.verdict]}{used}"
        every = sum(group.count for group in self.nodes)
        return "; ".join(f"{SHORT[group.verdict]} on {group.count} of {every} nodes" for group in self.nodes)

    @property
    def _shows_traffic(self) -> bool:
        """Whether anything shows that ranks were connected; what proves libfabric shows that, too."""
        proved = self.verdict is Verdict.OFI_OTHER and self.confidence is Confidence.PROVED
        measured = any(one.points for one in self.measurements)
        return proved or measured or self.connected
