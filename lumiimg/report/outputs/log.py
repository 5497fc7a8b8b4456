"""What `log` prints."""

from __future__ import annotations

from typing import Literal

from lumiimg.check.run.job_log import ImageOfJob
from lumiimg.findings import Finding
from lumiimg.nccl.report import Cause, Communicator, Confidence, Evidence, LoggedLibrary, Told, Verdict
from lumiimg.nccl.vocabulary import Effect, ReturnCode, Weight
from lumiimg.report.outputs.shape import Output, Shape


class Measurement(Shape):
    """What a benchmark of the network printed in a log."""

    name: str
    """The program with its test: `rccl-tests all_reduce_perf`."""
    program: str
    """`rccl-tests`, `nccl-tests` (also where the output does not tell them apart) or `osu`."""
    test: str | None
    """`all_reduce_perf`, `osu_bw`."""
    ranks: int | None
    """That took part; null where the log does not say."""
    nodes: int | None
    """That took part; null where the log does not say; OSU never says."""
    best_gb_s: float | None
    """The largest bus bandwidth (OSU: bandwidth), 1e9 bytes a second; null where no row was seen."""
    best_size: int | None
    """Bytes of the message that gave the best."""
    largest_size: int | None
    """Bytes of the largest message whose bandwidth was measured."""
    average_gb_s: float | None
    """Average bus bandwidth as the program says it, 1e9 bytes a second."""
    latency_us: float | None
    """OSU latency tests: of the smallest message, in microseconds."""
    wrong: int | None
    """Wrong results (OSU: sizes whose validation failed); null where they were not looked for."""
    file: str
    """The log that holds the table."""
    line: int
    """Of the table's head, counted from 1."""
    wrong_line: int | None
    """Line of the first wrong result."""


class Rank(Shape):
    """What one rank used."""

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


class Node(Shape):
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
    count: int
    """How many nodes."""
    names: str
    """Their names, folded as Slurm does: `nid[005000-005002]`."""


class Log(Output):
    """Which network carried the traffic of a job, the line that proves it, the causes of what went wrong."""

    printed_by = "lumiimg log FILE… --json"

    answer: Literal["good", "no", "undecided"]
    """As the exit code: `good` 0, `no` 1, `undecided` 3."""
    verdict: Verdict
    """Which network, or why the plugin gave none; `lumiimg log --signatures` has what is behind it."""
    confidence: Confidence
    """How well the log supports the verdict."""
    proof: tuple[Evidence, ...]
    """The lines that decide the verdict, strongest first."""
    ranks: dict[str, Rank]
    """By number; by number and process where several say to be the same; by process where no number is known."""
    nodes: tuple[Node, ...]
    """The largest group first."""
    told: Told
    """How much of the job the log speaks of."""
    single_node: bool
    """Whether the log proves that nothing crossed a network: then it does not matter which one was chosen."""
    failed_running: bool
    """Whether a transfer or a collective failed after the ranks were connected."""
    communicators: tuple[Communicator, ...]
    """In the order of the log."""
    library: LoggedLibrary | None
    """The collective library; null where it does not name itself."""
    plugin: LoggedLibrary | None
    """The net plugin; null where none names itself."""
    provider: str | None
    """Of libfabric: `cxi`; null where the log does not say, or ranks differ."""
    gdr: bool | None
    """Whether the NIC reads GPU memory (GPUDirect RDMA); null where the log does not say, or ranks differ."""
    pxn: bool | None
    """Whether ranks send through the NIC of a neighbour's GPU (NCCL's PXN). Null as above."""
    protocol: str | None
    """Of the OFI plugin: `SENDRECV`, `RDMA`."""
    nics: int | None
    """NICs that the plugin found."""
    interfaces: tuple[str, ...]
    """Network interfaces of NET/Socket, in its order: `hsn0`, `nmn0`."""
    bootstrap: tuple[str, ...]
    """Interfaces over which the ranks met; says nothing about the traffic."""
    environment: dict[str, str]
    """Variables of NCCL, Slurm and Slingshot that the log shows, each with its first value."""
    measurements: tuple[Measurement, ...]
    """Tables of benchmarks in the log."""
    causes: tuple[Cause, ...]
    """Most likely first."""
    findings: tuple[Finding, ...]
    """What measured bandwidth and wrong results come to."""
    image: ImageOfJob | None
    """With --image: what the model of the image adds; else null."""


class Signature(Shape):
    """A known trouble."""

    id: str
    """Stable name."""
    summary: str
    """What the line means; may hold `{name}` of the pattern's groups, as `because` and `remedy` may."""
    because: tuple[str, ...]
    """What leads to it, most likely first."""
    remedy: tuple[str, ...]
    """What to do."""
    source: str
    """Where that is from."""
    date: str
    """Of the entry, ISO 8601."""
    versions: str | None
    """Of the library or plugin that prints it; null for all."""
    effect: Effect
    """What it does to the plugin of the process that prints it. `missing`: no plugin of the expected name was found.
    `load-error`: the file was found and could not be loaded, or is of no use to this library. `init-error`: init()
    failed: the library goes on to IB or Socket, unless NCCL_NET forbids it. `endpoint-error`: the provider was
    selected and cannot be used: the job dies, whatever was selected before. `network-absent`: NCCL_NET asks for a
    network that no loaded plugin has: the job dies. `no-network`: no network could be started, and none is left to
    fall back to: the job dies. `run-error`: the network was chosen and connected, and a transfer or a collective
    over it failed. `none`: the choice of the network is not touched: advice, or what the job goes on with."""
    weight: Weight
    """How it ranks among the causes of one job. `symptom`: follows from something that may be in the log too; after the
    roots. `note`: worth knowing, no cause; last. `echo`: repeats an error that is shown elsewhere; dropped where there
    is a root or a symptom."""
    given: tuple[str, ...]
    """Events that the job must show as well."""
    unless: tuple[str, ...]
    """Events that, in the same process, make it harmless or say it better."""
    order: int
    """Place in the knowledge base, which is in order of likelihood."""
    sure: bool
    """Whether the line proves what its effect says."""
    pattern: str
    """Regular expression (Python's) that the message matches."""
    example: str
    """A line that it matches, as it was printed."""


class Signatures(Output):
    """The messages of logs that are known, with their source."""

    printed_by = "lumiimg log --signatures --json"

    signatures: tuple[Signature, ...]
    """Most likely cause first."""
    return_codes: tuple[ReturnCode, ...]
    """By their numbers."""
