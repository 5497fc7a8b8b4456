"""What `check` prints."""

from __future__ import annotations

from msgspec import field

from lumiimg.check.answer import Answer, LevelsTaken
from lumiimg.check.run.collective import CollectiveOutcome
from lumiimg.cluster.nodes.check import NodesReport
from lumiimg.fabric.path import FabricPath
from lumiimg.findings import Advice, Finding, Level
from lumiimg.report.outputs.gpu import CodeOnGpu
from lumiimg.report.outputs.shape import Output, Shape


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


class Check(Output):
    """Whether RCCL in an image would use the fast network, with the evidence."""

    printed_by = "lumiimg check IMAGE --json"

    image: str
    """As it was named."""
    answer: Answer
    """The exit code says the same: `no-obstacle` 0, `no` 1, `undecided` 3."""
    sentence: str
    """The answer for a person."""
    advice: Advice
    """Why, and what to do."""
    level: Level
    """The highest level that was taken."""
    levels: LevelsTaken
    """What became of each level: `done`, or why it was not taken."""
    path: FabricPath
    """The path that a collective's bytes take."""
    findings: tuple[Finding, ...]
    """What was found, as it bears on the answer."""
    runs: tuple[Probe, ...] = field(name="probes")
    """What the probes said; empty below level `probe`."""
    collective: CollectiveOutcome | None
    """What the collective of level run came to."""
    gpu: CodeOnGpu | None
    """Whether the GPU of --host, else of --site, takes the image's code; null where none of AMD's is known."""


class CheckNodes(Output):
    """The same on N nodes of a job; identical nodes are reported as one group."""

    printed_by = "lumiimg check IMAGE --nodes N --json"
    made_of = NodesReport
