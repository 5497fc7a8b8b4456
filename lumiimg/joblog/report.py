"""The answer about a log: which network carried the traffic, how sure that is, the lines that show it, the causes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from lumiimg.core.findings import Remedy, Severity
from lumiimg.core.text import count, hostlist, size
from lumiimg.joblog.flight import RankProgress, Stall, ranks_word


class Verdict(StrEnum):
    """Which network, or why the plugin gave none."""

    OFI_CXI = "ofi-cxi"
    """libfabric on Slingshot."""
    OFI_EFA = "ofi-efa"
    """libfabric on AWS EFA."""
    OFI_OTHER = "ofi-other"
    """libfabric on another provider (tcp, sockets, verbs), or on one that the log does not name."""
    SOCKET = "socket"
    """The library's own TCP transport."""
    IB = "ib"
    """Verbs: built in, or an InfiniBand/RoCE plugin."""
    PLUGIN_MISSING = "plugin-missing"
    PLUGIN_LOAD_ERROR = "plugin-load-error"
    PLUGIN_INIT_ERROR = "plugin-init-error"
    INTRA_NODE_ONLY = "intra-node-only"
    """Shared memory and peer-to-peer only: nothing crosses a network."""
    NONE = "none"
    """Nothing in the log decides it."""
    MIXED = "mixed"
    """Processes of the job differ."""


FAST = frozenset({Verdict.OFI_CXI, Verdict.OFI_EFA})
TRANSPORTS = FAST | {Verdict.OFI_OTHER, Verdict.SOCKET, Verdict.IB}
"""Verdicts that name a network."""


class Confidence(StrEnum):
    """How well the log supports the verdict."""

    PROVED = "proved"
    LIKELY = "likely"
    UNKNOWN = "unknown"


def weakest(confidences: Iterable[Confidence]) -> Confidence:
    """Return the least sure of several."""
    return max(confidences, key=list(Confidence).index)


def severity_of(verdict: Verdict, provider: str | None, confidence: Confidence) -> Severity:
    """Return ok for a fast network that is proved, a problem for a slow path or a failure, else unknown."""
    match verdict:
        case Verdict.NONE:
            return Severity.UNKNOWN
        case Verdict.OFI_OTHER if provider is None:
            return Severity.UNKNOWN  # cxi and tcp look the same where the provider is not named
        case Verdict.OFI_CXI | Verdict.OFI_EFA | Verdict.IB | Verdict.INTRA_NODE_ONLY:
            # a network that was selected is not yet one that carried traffic
            return Severity.OK if confidence is Confidence.PROVED else Severity.UNKNOWN
        case _:
            return Severity.PROBLEM


def _part_of(number: int, total: int | None, noun: str) -> str:
    return f"{number} of {total} {noun}s" if total else count(number, noun)


@dataclass(frozen=True, slots=True)
class Evidence:
    """One line of a log, printable and cut."""

    file: str
    """As it was named on the command line."""
    line: int
    """Counted from 1."""
    text: str
    """The line."""

    def __str__(self) -> str:
        """Return the line with where it stands."""
        return f"{self.file}:{self.line}: {self.text}"


@dataclass(frozen=True, slots=True)
class Cause:
    """A known trouble that the log shows (an entry of the knowledge base, filled in)."""

    id: str
    """Of the signature (`lumiimg log --signatures`)."""
    summary: str
    """What the line means."""
    because: tuple[str, ...]
    """What leads to it, most likely first."""
    remedy: tuple[Remedy, ...]
    """What to do."""
    source: str
    """Where that is from."""
    evidence: tuple[Evidence, ...]
    """The lines that show it."""


class How(StrEnum):
    """How a job ended."""

    COMPLETED = "completed"
    """Slurm says that it completed."""
    RUNNING = "running"
    """It is followed while it runs, and nothing shows that it ended."""
    DIED = "died"
    TIME_LIMIT = "time-limit"
    CANCELLED = "cancelled"
    """Somebody cancelled it, or Slurm took its nodes back."""
    UNKNOWN = "unknown"
    """The log does not show how, or whether, it ended."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How the job ended, and what ended it."""

    how: How = How.UNKNOWN
    """Whether it came to its own end."""
    cause: str | None = None
    """Id of what ended it, or may have: of a signature, or of what is said where none is known. Null: nothing seen."""
    summary: str = ""
    """What it was; of a failure that no signature knows the library's own words."""
    ranks: str | None = None
    """The rank, or ranks (`0-3,7`), that it hit first; null where the log does not say."""
    node: str | None = None
    """The node that it hit first; null where the log does not say."""
    is_likely: bool = False
    """Whether that it ended the job is inferred: no line after it shows that the job went on, and none that it died."""
    by_network: bool = False
    """Whether the network itself ended it, as the verdict says: it could not be started, and nothing replaces it."""

    @property
    def sentence(self) -> str:
        """What it was, and whom it hit."""
        where = " on ".join(filter(None, (ranks_word(self.ranks) if self.ranks else "", self.node)))
        said = ", ".join(filter(None, (where, "likely" if self.is_likely else "")))
        return f"{self.summary} ({said})" if said else self.summary

    @property
    def is_failure(self) -> bool:
        """Whether the job did not come to its own end."""
        return self.how in {How.DIED, How.TIME_LIMIT, How.CANCELLED}

    @property
    def leads(self) -> bool:
        """Whether it is the first thing to be said of the job, before its network."""
        return self.cause is not None and not self.by_network


@dataclass(frozen=True, slots=True)
class LoggedLibrary:
    """A library or plugin that names itself: `RCCL 2.22.3`, `aws-ofi-nccl 1.18.0`."""

    name: str
    """`RCCL`, `aws-ofi-nccl`."""
    version: str
    """As it says itself."""


@dataclass(frozen=True, slots=True)
class RankResult:
    """What one rank of the job used; a process that names no rank has one result of its own."""

    process: str
    """`host:pid`, or `task N`, or the file's name where lines carry no host."""
    verdict: Verdict
    """Of this rank."""
    confidence: Confidence
    """Of this rank."""
    network: str | None
    """As the library names it: `AWS Libfabric`, `Socket`."""
    provider: str | None
    """Of libfabric: `cxi`."""
    rank: int | None
    """Number in the process's largest communicator; null where the log does not say."""


@dataclass(frozen=True, slots=True)
class Communicator:
    """A communicator, put together from the lines of all its ranks."""

    id: str
    """`commId` where printed, else process and address."""
    ranks: int
    """That it has."""
    nodes: int | None
    """That it spans; null where the log does not say."""
    crosses_network: bool | None
    """Whether it spans nodes; null where the log does not say."""
    verdict: Verdict
    """Of its ranks."""


@dataclass(frozen=True, slots=True)
class VerdictGroup:
    """Nodes whose ranks all came to the same."""

    verdict: Verdict
    """Of these nodes."""
    network: str | None
    """As the library names it: `AWS Libfabric`, `Socket`."""
    provider: str | None
    """Of libfabric: `cxi`."""
    cause: str | None
    """Id of the likeliest cause on these nodes; null where none was seen there."""
    confidence: Confidence
    """That of the least sure of their ranks."""
    nodes: tuple[str, ...]
    """Host names as printed, sorted."""

    @property
    def count(self) -> int:
        """How many nodes."""
        return len(self.nodes)

    @property
    def names(self) -> str:
        """Their names, folded as Slurm does: `nid[005000-005002]`."""
        return hostlist(self.nodes)

    @property
    def severity(self) -> Severity:
        """Whether it is a fast network that is proved."""
        return severity_of(self.verdict, self.provider, self.confidence)


@dataclass(frozen=True, slots=True)
class Coverage:
    """How much of the job the log speaks of: ranks and nodes that say their network, out of those that there are."""

    ranks: int
    """Ranks that say their network."""
    of_ranks: int | None
    """Ranks that there are; null where the log does not say."""
    nodes: int
    """Nodes that say their network."""
    of_nodes: int | None
    """Nodes that there are; null where the log does not say."""

    @property
    def is_part(self) -> bool:
        """Whether some ranks or nodes do not say it."""
        return self.ranks < (self.of_ranks or 0) or self.nodes < (self.of_nodes or 0)

    @property
    def of_all_ranks(self) -> str:
        """`3 of 8 ranks`; `3 ranks` where nobody knows of how many."""
        return _part_of(self.ranks, self.of_ranks, "rank")

    @property
    def sentence(self) -> str:
        """`3 of 8 ranks, 1 of 2 nodes`; of nodes where lines name any."""
        nodes = f", {_part_of(self.nodes, self.of_nodes, 'node')}" if self.nodes else ""
        return f"{self.of_all_ranks}{nodes}"


@dataclass(frozen=True, slots=True)
class Transport:
    """How the network was used; None, or nothing, where the log does not say or ranks differ."""

    gdr: bool | None
    """Whether the NIC reads GPU memory (GPUDirect RDMA); null where the log does not say, or ranks differ."""
    nics: int | None
    """NICs that the plugin found."""
    interfaces: tuple[str, ...]
    """Network interfaces of NET/Socket, in its order: `hsn0`, `nmn0`."""

    @property
    def words(self) -> str:
        """How the network was used, for a person; nothing where the log does not say."""
        parts = [f"{self.nics} NICs"] if self.nics else []
        parts += [] if self.gdr is None else ["GPUDirect RDMA" if self.gdr else "no GPUDirect RDMA"]
        parts += [f"sockets on {', '.join(self.interfaces)}"] if self.interfaces else []
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class Measurement:
    """What a benchmark of the network printed in a log."""

    test: str | None
    """`all_reduce_perf`; null where the log does not say."""
    ranks: int | None
    """That took part; null where the log does not say."""
    nodes: int | None
    """That took part; null where the log does not say."""
    average_gb_s: float | None
    """Average bus bandwidth as the program says it, 1e9 bytes a second."""
    wrong: int | None
    """Wrong results; null where they were not looked for."""
    file: str
    """The log that holds the table."""
    line: int
    """Of the table's head, counted from 1."""
    wrong_line: int | None
    """Line of the first wrong result."""
    points: tuple[tuple[int, float], ...] = ()
    """Bytes of a message and its best bus bandwidth (1e9 bytes a second), by size; of many sizes the largest 256."""

    @property
    def name(self) -> str:
        """The test, for a person."""
        return self.test or "collective test"

    @property
    def best_gb_s(self) -> float | None:
        """The largest bus bandwidth, 1e9 bytes a second; null where no row was seen."""
        return max((speed for _, speed in self.points), default=None)

    @property
    def best_size(self) -> int | None:
        """Bytes of the message that gave the best."""
        return next((size for size, speed in self.points if speed == self.best_gb_s), None)

    @property
    def largest_size(self) -> int | None:
        """Bytes of the largest message whose bandwidth was measured."""
        return self.points[-1][0] if self.points else None

    @property
    def sentence(self) -> str:
        """What it gave, for a person."""
        nodes = "" if self.nodes is None else f" on {count(self.nodes, 'node')}"
        if self.best_gb_s is None or self.best_size is None:
            return f"{self.name}{nodes}: no result"
        average = "" if self.average_gb_s is None else f", {self.average_gb_s:.4g} on average"
        return f"{self.name}{nodes}: {self.best_gb_s:.4g} GB/s at {size(self.best_size)}{average}"


# -- the answer

_SENTENCES = {
    Verdict.OFI_CXI: "the traffic went over Slingshot (libfabric, provider cxi)",
    Verdict.OFI_EFA: "the traffic went over EFA (libfabric, provider efa)",
    Verdict.OFI_OTHER: "libfabric was used, but not on Slingshot",
    Verdict.SOCKET: "the traffic went over TCP sockets, not over the fast network",
    Verdict.IB: "the traffic went over InfiniBand or RoCE verbs",
    Verdict.PLUGIN_MISSING: "the net plugin was not found; the log ends before a network is chosen",
    Verdict.PLUGIN_LOAD_ERROR: "the net plugin could not be loaded",
    Verdict.PLUGIN_INIT_ERROR: "the net plugin, or the provider under it, was loaded and failed to start",
    Verdict.INTRA_NODE_ONLY: "nothing crossed a network: each communicator stays on one node",
    Verdict.NONE: "this log does not say which network was used",
    Verdict.MIXED: "ranks used different networks",
}
_SELECTED = {
    Verdict.OFI_CXI: "Slingshot, it seems: this log does not prove that traffic went over it",
    Verdict.OFI_EFA: "EFA, it seems: this log does not prove that traffic went over it",
    Verdict.OFI_OTHER: "libfabric was used; the log does not name its provider",
    Verdict.IB: "InfiniBand or RoCE verbs, it seems: this log does not prove that traffic went over them",
}
_CHOSEN = {
    _SENTENCES[Verdict.SOCKET]: "TCP sockets were chosen, not the fast network",
    _SELECTED[Verdict.IB]: "InfiniBand or RoCE verbs were chosen",
    _SENTENCES[Verdict.OFI_OTHER]: "libfabric was chosen, but not on Slingshot",
    _SELECTED[Verdict.OFI_OTHER]: "libfabric was chosen; the log does not name its provider",
    _SENTENCES[Verdict.MIXED]: "ranks chose different networks",
}
"""What is said in place of a sentence where no line shows that any rank was connected."""
_CONFIDENCE = {Confidence.PROVED: "proved by the log", Confidence.LIKELY: "likely", Confidence.UNKNOWN: "not certain"}


@dataclass(frozen=True, slots=True)
class LogReport:
    """The answer about one log (or a set of files of one job)."""

    verdict: Verdict
    """Which network, or why the plugin gave none; `lumiimg log --signatures` has what is behind it."""
    confidence: Confidence
    """How well the log supports the verdict."""
    proof: tuple[Evidence, ...]
    """The lines that decide the verdict, strongest first."""
    ranks: tuple[RankResult, ...]
    nodes: tuple[VerdictGroup, ...]
    """The largest group first."""
    coverage: Coverage
    """How much of the job the log speaks of."""
    runs: int
    """That the log holds, of the same job or of others; the answer is about the last one."""
    first_line: int
    """Where the run begins that the answer is about; 1 where it is the only one."""
    excerpt: bool
    """Whether no line that decides the verdict names its process: such lines prove nothing alone."""
    single_node: bool
    """Whether the log proves that nothing crossed a network: then it does not matter which one was chosen."""
    failed_running: bool
    """Whether a transfer or a collective failed after the ranks were connected."""
    connected: bool
    """Whether a line shows that ranks were connected over a network."""
    ended: Ending
    """How the job ended; where that is not known and a cause is named, no answer is `good`."""
    stall: Stall | None
    """With which ranks a stall began; null where none is seen, or the log does not show it."""
    progress: tuple[RankProgress, ...]
    """How far each rank came, where there are dumps of PyTorch's flight recorder."""
    communicators: tuple[Communicator, ...]
    """In the order of the log."""
    library: LoggedLibrary | None
    """The collective library; null where it does not name itself."""
    plugin: LoggedLibrary | None
    """The net plugin; null where none names itself."""
    provider: str | None
    """Of libfabric: `cxi`; null where the log does not say, or ranks differ."""
    transport: Transport
    environment: Mapping[str, str]
    """Variables of NCCL, Slurm and Slingshot that the log shows, each with its (first) value."""
    measurements: tuple[Measurement, ...]
    """Tables of benchmarks in the log."""
    causes: tuple[Cause, ...]
    """Most likely first."""

    @property
    def ranks_by_name(self) -> dict[str, RankResult]:
        """By number; by number and process where several say to be the same; by process where no number is known."""
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
        """Whether Slurm has more nodes for the job, so that what their ranks did is not known."""
        return self.coverage.of_nodes not in {None, self.coverage.nodes}

    @property
    def severity(self) -> Severity:
        """Whether a fast network carried the traffic to its end, or none was needed: ok, unknown or a problem."""
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
        """The answer in one line: what ended the job, where something did, else the network."""
        if self.ended.leads:
            return f"{self.ended.cause}: {self.ended.sentence}"
        if self.verdict is Verdict.NONE and self.progress and self.stall:
            return f"stalled: {self.stall.who} {self.stall.reason}"
        return self.network_line

    @property
    def network_line(self) -> str:
        """Which network the job used, in one line."""
        failed = "; then a transfer or a collective failed" if self.failed_running and not self.ended.leads else ""
        if self.nothing_crossed:
            unsure = "; what other nodes did it does not show" if self.other_nodes_silent else ""
            return f"{self.verdict.value}: {_SENTENCES[Verdict.INTRA_NODE_ONLY]}{failed}{unsure}"
        sentence = _SENTENCES[self.verdict]
        if severity_of(self.verdict, self.provider, self.confidence) is Severity.UNKNOWN:
            sentence = _SELECTED.get(self.verdict, sentence)
        if not self._shows_traffic and (chosen := _CHOSEN.get(sentence)):
            sentence = f"{chosen}; no line shows traffic"
        is_part = self.confidence is Confidence.PROVED and self.coverage.ranks < (self.coverage.of_ranks or 0)
        of_which = f" of {self.coverage.of_all_ranks}" if is_part else ""
        return f"{self.verdict.value}: {sentence}{failed} ({_CONFIDENCE[self.confidence]}{of_which})"

    @property
    def _shows_traffic(self) -> bool:
        """Whether anything shows that ranks were connected, as what proves libfabric does."""
        proved = self.verdict is Verdict.OFI_OTHER and self.confidence is Confidence.PROVED
        measured = any(one.points for one in self.measurements)
        return proved or measured or self.connected
