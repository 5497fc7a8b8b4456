"""The answer about a log: which network carried the traffic, how sure that is, the lines that show it, the causes."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from enum import StrEnum

from lumiimg.errors import ExitCode
from lumiimg.nccl.nodes import folded

SCHEMA = 1
"""Version of the JSON that `to_json` makes."""


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


class Confidence(StrEnum):
    """How well the log supports the verdict."""

    PROVED = "proved"
    LIKELY = "likely"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Evidence:
    """One line of a log, printable and cut."""

    file: str
    line: int
    text: str


@dataclass(frozen=True, slots=True)
class Cause:
    """A known trouble that the log shows (an entry of signatures.toml, filled in)."""

    id: str
    summary: str
    because: tuple[str, ...]
    """What leads to it, most likely first."""
    remedy: tuple[str, ...]
    source: str
    evidence: tuple[Evidence, ...]


@dataclass(frozen=True, slots=True)
class Component:
    """A library or plugin that names itself: `RCCL 2.22.3`, `aws-ofi-nccl 1.18.0`."""

    name: str
    version: str


@dataclass(frozen=True, slots=True)
class RankResult:
    """What one rank of the job used; a process that tells no rank has one result of its own."""

    process: str
    """`host:pid`, or `task N` or the file's name where lines carry no host."""
    rank: int | None
    """Number in the process's largest communicator; None where the log does not tell."""
    verdict: Verdict
    confidence: Confidence
    network: str | None
    """As the library names it: `AWS Libfabric`, `Socket`."""
    provider: str | None
    """libfabric's provider."""


@dataclass(frozen=True, slots=True)
class Communicator:
    """A communicator, put together from the lines of all its ranks."""

    id: str
    """`commId` where printed, else process and address."""
    ranks: int
    nodes: int | None
    verdict: Verdict

    @property
    def crosses_network(self) -> bool | None:
        """Whether it spans nodes; None where the log does not tell (`nNodes` is printed from 2.21 on)."""
        if self.ranks == 1:
            return False
        return None if self.nodes is None else self.nodes > 1


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """Nodes whose ranks all came to the same."""

    verdict: Verdict
    network: str | None
    provider: str | None
    cause: str | None
    """Id of the likeliest cause on these nodes; None where none was seen there."""
    nodes: tuple[str, ...]
    """Host names as printed, sorted."""


@dataclass(frozen=True, slots=True)
class Told:
    """How much of the job the log speaks of: ranks and nodes that told their network, out of those that there are."""

    ranks: int
    of_ranks: int | None
    nodes: int
    of_nodes: int | None


@dataclass(frozen=True, slots=True)
class Transport:
    """How the network was used; None, or nothing, where the log does not tell or ranks differ."""

    gdr: bool | None
    """Whether the NIC reads GPU memory (GPUDirect RDMA)."""
    pxn: bool | None
    """Whether ranks send through the NIC of a neighbour's GPU (NCCL's PXN)."""
    protocol: str | None
    """Of the OFI plugin: `SENDRECV`, `RDMA`."""
    nics: int | None
    """That the plugin found."""
    interfaces: tuple[str, ...]
    """Network interfaces of NET/Socket, in its order: `hsn0`, `nmn0`."""
    bootstrap: tuple[str, ...]
    """Interfaces over which the ranks met; says nothing about the traffic."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """What a benchmark of the network printed in the log: rccl-tests, nccl-tests, OSU."""

    name: str
    """The program with its test, as far as it is told: `rccl-tests all_reduce_perf`."""
    test: str | None
    ranks: int | None
    nodes: int | None
    best_gb_s: float | None
    """The largest bus bandwidth (OSU: bandwidth), 1e9 bytes a second."""
    best_size: int | None
    """Bytes of the message that gave it."""
    average_gb_s: float | None
    latency_us: float | None
    """OSU latency tests: of the smallest message."""
    wrong: int | None
    """Wrong results; None where they were not looked for."""
    file: str
    line: int
    """Of the table's head."""
    wrong_line: int | None


@dataclass(frozen=True, slots=True)
class LogReport:
    """The answer about one log (or a set of files of one job)."""

    verdict: Verdict
    confidence: Confidence
    proof: tuple[Evidence, ...]
    """The lines that decide the verdict, strongest first."""
    ranks: tuple[RankResult, ...]
    nodes: tuple[NodeGroup, ...]
    """The largest group first."""
    told: Told
    single_node: bool
    """Whether the log proves that nothing crossed a network: then it does not matter which one was chosen."""
    communicators: tuple[Communicator, ...]
    library: Component | None
    plugin: Component | None
    provider: str | None
    transport: Transport
    environment: tuple[tuple[str, str], ...]
    """Variables of NCCL, Slurm and Slingshot that the log shows, each with its (first) value."""
    measurements: tuple[Measurement, ...]
    causes: tuple[Cause, ...]
    """Most likely first."""

    @property
    def answer(self) -> ExitCode:
        """Whether a fast network carried the traffic, as an exit code."""
        if self.single_node and self.verdict in {Verdict.SOCKET, Verdict.IB, Verdict.INTRA_NODE_ONLY}:
            return ExitCode.GOOD
        return answer_of(self.verdict, self.provider, proved=self.confidence is Confidence.PROVED)


def answer_of(verdict: Verdict, provider: str | None, *, proved: bool) -> ExitCode:
    """Return good for a fast network that is proved, no for a slow path or a failure, else undecided."""
    match verdict:
        case Verdict.NONE:
            return ExitCode.UNDECIDED
        case Verdict.OFI_OTHER if provider is None:
            return ExitCode.UNDECIDED  # cxi and tcp look the same where the provider is not named
        case Verdict.OFI_CXI | Verdict.OFI_EFA | Verdict.IB | Verdict.INTRA_NODE_ONLY:
            # A network that was selected is not yet one that carried traffic.
            return ExitCode.GOOD if proved else ExitCode.UNDECIDED
        case _:
            return ExitCode.NO


def to_json(report: LogReport) -> dict[str, object]:
    """Return the report as the JSON object that `lumiimg log --json` prints (schema 1)."""
    return {
        "schema": SCHEMA,
        "verdict": report.verdict.value,
        "confidence": report.confidence.value,
        "proof": [_evidence(e) for e in report.proof],
        "ranks": {
            key: {
                "process": r.process,
                "verdict": r.verdict.value,
                "confidence": r.confidence.value,
                "network": r.network,
                "provider": r.provider,
            }
            for key, r in _keyed(report.ranks)
        },
        "nodes": [
            {
                "verdict": g.verdict.value,
                "network": g.network,
                "provider": g.provider,
                "cause": g.cause,
                "count": len(g.nodes),
                "names": folded(g.nodes),
            }
            for g in report.nodes
        ],
        "told": asdict(report.told),
        "single_node": report.single_node,
        "communicators": [
            {
                "id": c.id,
                "ranks": c.ranks,
                "nodes": c.nodes,
                "crosses_network": c.crosses_network,
                "verdict": c.verdict.value,
            }
            for c in report.communicators
        ],
        "library": _component(report.library),
        "plugin": _component(report.plugin),
        "provider": report.provider,
        **asdict(report.transport),
        "environment": dict(report.environment),
        "measurements": [asdict(m) for m in report.measurements],
        "causes": [
            {
                "id": c.id,
                "summary": c.summary,
                "because": list(c.because),
                "remedy": list(c.remedy),
                "source": c.source,
                "evidence": [_evidence(e) for e in c.evidence],
            }
            for c in report.causes
        ],
    }


def _keyed(ranks: tuple[RankResult, ...]) -> list[tuple[str, RankResult]]:
    """Ranks by number; by number and process where several say to be the same (two jobs in one log)."""
    taken = Counter(r.rank for r in ranks)
    return [
        (r.process if r.rank is None else str(r.rank) if taken[r.rank] == 1 else f"{r.rank} {r.process}", r)
        for r in ranks
    ]


def _evidence(evidence: Evidence) -> dict[str, object]:
    return {"file": evidence.file, "line": evidence.line, "text": evidence.text}


def _component(component: Component | None) -> dict[str, str] | None:
    return None if component is None else {"name": component.name, "version": component.version}
