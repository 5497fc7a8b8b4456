"""What `log` prints."""

from __future__ import annotations

from typing import Literal

from lumiimg.check.run.job_log import ImageOfJob
from lumiimg.findings import Advice, Finding
from lumiimg.nccl import report
from lumiimg.nccl.vocabulary import ReturnCode, Signature
from lumiimg.report.outputs.shape import Output, Shape


class Node(Shape):
    """Nodes whose ranks all came to the same."""

    verdict: report.Verdict
    """Of these nodes."""
    network: str | None
    """As the library names it: `AWS Libfabric`, `Socket`."""
    provider: str | None
    """Of libfabric: `cxi`."""
    cause: str | None
    """Id of the likeliest cause on these nodes; null where none was seen there."""
    confidence: report.Confidence
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
    advice: Advice
    """Why, and what to do first."""
    verdict: report.Verdict
    """Which network, or why the plugin gave none; `lumiimg log --signatures` has what is behind it."""
    confidence: report.Confidence
    """How well the log supports the verdict."""
    proof: tuple[report.Evidence, ...]
    """The lines that decide the verdict, strongest first."""
    ranks: dict[str, report.RankUse]
    """By number; by number and process where several say to be the same; by process where no number is known."""
    nodes: tuple[Node, ...]
    """The largest group first."""
    told: report.Told
    """How much of the job the log speaks of."""
    runs_before: tuple[report.RunBefore, ...]
    """Other runs in the log, of the same job or of others; the answer is about the last one."""
    first_line: int
    """Where the run begins that the answer is about; 1 where it is the only one."""
    excerpt: bool
    """Whether no line that decides the verdict names its process: such lines prove nothing alone."""
    single_node: bool
    """Whether the log proves that nothing crossed a network: then it does not matter which one was chosen."""
    failed_running: bool
    """Whether a transfer or a collective failed after the ranks were connected."""
    connected: bool
    """Whether a line shows that ranks were connected, over whichever network."""
    ended: report.Death | None
    """What ended the job, where it was not the network; null where the log does not show it."""
    end_unclear: bool
    """Whether an error stands so near the end of the log that it may have ended the job; then no answer is `good`."""
    stall: report.Stall | None
    """With which ranks a stall began; null where none is seen, or the log does not show it."""
    progress: tuple[report.RankProgress, ...]
    """How far each rank came, where there are dumps of PyTorch's flight recorder."""
    differing: tuple[report.DifferentValue, ...]
    """Values of variables of NCCL, libfabric and the loader that are not the same in all processes."""
    channels: tuple[report.Channels, ...]
    """How ranks were connected, the most frequent way first."""
    communicators: tuple[report.Communicator, ...]
    """In the order of the log."""
    library: report.LoggedLibrary | None
    """The collective library; null where it does not name itself."""
    plugin: report.LoggedLibrary | None
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
    measurements: tuple[report.Measurement, ...]
    """Tables of benchmarks in the log."""
    causes: tuple[report.Cause, ...]
    """Most likely first."""
    findings: tuple[Finding, ...]
    """What measured bandwidth and wrong results come to."""
    image: ImageOfJob | None
    """With --image: what the model of the image adds; else null."""


class Signatures(Output):
    """The messages of logs that are known, with their source."""

    printed_by = "lumiimg log --signatures --json"

    signatures: tuple[Signature, ...]
    """Most likely cause first."""
    return_codes: tuple[ReturnCode, ...]
    """By their numbers."""
