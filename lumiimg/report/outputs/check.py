"""What `check` prints."""

from __future__ import annotations

from msgspec import field

from lumiimg.check.answer import Answer
from lumiimg.check.run.collective import CollectiveProgram
from lumiimg.cluster.nodes.check import NodeGroup
from lumiimg.cluster.nodes.collective import CollectiveBandwidth
from lumiimg.cluster.nodes.groups import SilentNodes
from lumiimg.fabric.path import FabricPath
from lumiimg.findings import Finding, Level
from lumiimg.nccl.report import Confidence, Verdict
from lumiimg.report.outputs.log import Measurement
from lumiimg.report.outputs.shape import Output, Shape


class Levels(Shape):
    """What became of each level: `done`, or why it was not taken."""

    static: str
    """Of the files of the image, nothing run."""
    probe: str
    """Of programs run in the container, without a GPU."""
    run: str
    """Of a real collective on GPUs."""


class Probe(Shape):
    """A program that was run in the container."""

    name: str
    """Of the probe."""
    is_simulation: bool = field(name="simulation")
    """Whether it ran on a stand-in for HIP (`--simulate-gpu`)."""
    exit_code: int
    """Of the program; negative: the number of the signal that ended it."""
    timed_out: bool
    """Whether it was ended because its time was over."""
    event_words: tuple[dict[str, str], ...] = field(name="events")
    """In its order. Topics and words are internal and may change at any time."""


class Collective(Shape):
    """A collective that was run on GPUs."""

    program: CollectiveProgram
    """What was run."""
    nodes: int
    """That took part."""
    ranks: int
    """That took part."""
    verdict: Verdict
    """Which network carried it."""
    confidence: Confidence
    """How well its log supports the verdict."""
    measurements: tuple[Measurement, ...]
    """Of the bandwidth."""


class CollectiveOfNodes(Collective):
    """A collective that was run over all nodes."""

    measurements: tuple[CollectiveBandwidth, ...]  # type: ignore[assignment]
    """Of the bandwidth."""


class Check(Output):
    """Whether RCCL in an image would use the fast network, with the evidence."""

    printed_by = "lumiimg check IMAGE --json"

    image: str
    """As it was named."""
    answer: Answer
    """The exit code says the same: `no-obstacle` 0, `no` 1, `undecided` 3."""
    sentence: str
    """The answer for a person."""
    level: Level
    """The highest level that was taken."""
    levels: Levels
    """What became of each level: `done`, or why it was not taken."""
    path: FabricPath
    """The path that a collective's bytes take."""
    findings: tuple[Finding, ...]
    """What was found, as it bears on the answer."""
    runs: tuple[Probe, ...] = field(name="probes")
    """What the probes said; empty below level `probe`."""
    collective: Collective | None
    """What the collective of level run came to."""


class CheckNodes(Output):
    """The same on N nodes of a job; identical nodes are reported as one group."""

    printed_by = "lumiimg check IMAGE --nodes N --json"

    image: str
    """As it was named."""
    job: str
    """Number of the job."""
    answer: Answer
    """The exit code says the same: `no-obstacle` 0, `no` 1, `undecided` 3."""
    sentence: str
    """The answer for a person."""
    levels: dict[str, str]
    """What became of each level, by its name: `done`, or why it was not taken."""
    groups: tuple[NodeGroup, ...]
    """The largest first."""
    silent: tuple[SilentNodes, ...]
    """Nodes that gave no answer."""
    output: tuple[str, ...]
    """What the step printed at its end, where nodes are silent: for people."""
    collective: CollectiveOfNodes | None
    """What the collective of level run came to."""
