"""What a trial is made of: claims that were written down before it, steps that measure, and what came of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from lumiimg.core.errors import ExitCode
from lumiimg.core.text import count

SCHEMA = 1
NOT_YET, LEFT = "not done yet", "left for the next job: "
"""Why a claim is open that the next job may still measure; the second begins the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialStep:
    """One command of lumiimg that measures something; what it prints is kept."""

    name: str
    """`image-1.run`: a word, and the name of the file that its record is in."""
    about: str
    """What it does, for a person."""
    words: tuple[str, ...]
    """Of lumiimg, behind its name."""
    nodes: int
    """That it runs on; 0: where the trial is started."""
    minutes: int
    """That it takes as a rule."""
    limit: int
    """Minutes after which it is ended."""
    sets: dict[str, str] = field(default_factory=dict)
    """Variables that it has beside those of the job."""
    everywhere: bool = False
    """Whether each node runs it by itself, in one step of the job."""
    after: str | None = None
    """A step without whose collective this one would show nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Something that lumiimg says, and a step can show."""

    id: str
    """`site.libfabric`, `image-1.network`, `site.bind:/pfs`."""
    about: str
    """The same for a person."""
    predicted: str | None
    """None: nothing is predicted, what is measured is news."""
    least: float | None = None
    """Where a number is predicted that may be larger."""
    ranks: int | None = None
    """Of which that number is; with others nothing is said."""
    also: tuple[str, ...] = ()
    """The same in other words: a path without symlinks."""
    source: str
    """Where the claim is from."""
    date: str = ""
    """When that was looked up, ISO 8601; empty where it was computed from the image."""
    step: str
    """What measures it."""


@dataclass(frozen=True, slots=True)
class TriedRow:
    """A row of the catalogue that an image was built of."""

    name: str
    """Of the base, as `--base` takes it, or of the layer."""
    release: str
    """Empty for a base, and for a layer without releases."""
    content: str
    """The first 16 hexadecimal digits of the digest of what was tried, as the ledger has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialImage:
    """One of the images."""

    path: str
    """Absolute."""
    content: str
    """The first 16 hexadecimal digits of a digest of the sizes, beginnings and ends of its file systems."""
    rows: tuple[TriedRow, ...]
    """What it was built from, where lumiimg built it; else nothing."""
    rocm: str | None = None
    """Release of its ROCm, where it is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialPlan:
    """What a trial would do, and all that it predicts."""

    schema: int
    """Number of this format."""
    id: str
    """A random word, in the names of its jobs."""
    made: str
    """When, UTC, ISO 8601."""
    tool: str
    """Version of lumiimg."""
    site: str
    """Its name."""
    nodes: int
    """Of its jobs."""
    node_minutes: int
    """That its jobs may take at most, all of them together."""
    images: tuple[TrialImage, ...]
    """In the order of their numbers."""
    steps: tuple[TrialStep, ...]
    """In their order: those that decide most come first."""
    claims: tuple[Claim, ...]
    """All that is predicted."""


class Ending(StrEnum):
    """How a step ended."""

    DONE = "done"
    """It printed its result."""
    FAILED = "failed"
    """It ended without one."""
    TIMED_OUT = "timed-out"
    """It was ended at its limit."""
    SKIPPED = "skipped"
    """It would have shown nothing."""
    WAITS = "waits"
    """The job had too few nodes for it, or too little time: the next one does it."""
    CUT_OFF = "cut-off"
    """The job died in it, each time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What one step came to."""

    step: str
    ending: Ending
    job: str = ""
    """Empty outside of one."""
    began: str = ""
    """UTC, ISO 8601."""
    seconds: float = 0.0
    code: int | None = None
    """Its exit code; None where a signal ended it."""
    engine: str | None = None
    """The container engine at that time: it may change in the middle of a trial."""
    said: tuple[str, ...] = ()
    """The last lines that it printed for people; why it was skipped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What one node shows of itself, as far as claims are about it."""

    node: str
    clock: float
    """Seconds since 1970, by its own clock."""
    processors: str
    """As `uname -m`."""
    kernel: str
    gpu_driver: str | None = None
    gpus: tuple[str, ...] = ()
    """Each as compilers name it."""
    near: tuple[str, ...] = ()
    """For each GPU, in the order of HIP, the cores of its NUMA node: `48-63`."""
    cores: int = 0
    """Without SMT."""
    engine: str | None = None
    """`SingularityCE 4.1.3`."""
    libfabric: str | None = None
    """Version, by the path of the one that has the cxi provider."""
    glibc: str | None = None
    """What that and libcxi need."""
    no_fabric: str | None = None
    """Why there is none."""
    interfaces: tuple[str, ...] = ()
    """Network devices of Slingshot NICs whose link is up."""
    paths: dict[str, bool | None] = field(default_factory=dict)
    """The site's paths, and whether they are there; None where the node does not say."""
    variables: dict[str, bool] = field(default_factory=dict)
    """The site's own variables (`NAME=VALUE`), and whether they are set so."""
    strangers: tuple[int, ...] = ()
    """User ids from 1000 on, not one's own, that have processes there."""
    set_already: tuple[str, ...] = ()
    """Variables of the network that the job had from elsewhere."""


class ClaimOutcome(StrEnum):
    """What a claim came to."""

    DIFFERS = "differs"
    """What was measured is not what was predicted."""
    SAME = "same"
    """It is."""
    NEWS = "news"
    """Something was measured where nothing was predicted, or that neither supports the claim nor contradicts it."""
    OPEN = "open"
    """Nothing was measured, or not on all nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A claim beside what was measured."""

    id: str
    """Of the claim."""
    about: str
    """The same for a person."""
    predicted: str | None
    """Null: nothing was."""
    measured: str | None
    """Null: nothing was."""
    outcome: ClaimOutcome
    """What the claim came to."""
    why: str
    """Why it is open, or what else was seen; empty where there is nothing to say."""
    source: str
    """Where the claim is from."""
    date: str
    """When that was looked up, ISO 8601; empty where it was computed from the image."""
    step: str
    """What measured it."""
    gb_s: float | None
    """The bandwidth that was measured, where one was: 1e9 bytes a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedImage:
    """One of the images, without its path."""

    number: int
    """As in the names of the claims."""
    content: str
    """The first 16 hexadecimal digits of a digest of the sizes, beginnings and ends of its file systems."""
    rows: tuple[TriedRow, ...]
    """What it was built from, where lumiimg built it."""
    rocm: str | None
    """Release of its ROCm; null where it is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialReport:
    """What lumiimg claims of a machine and of images, beside what was measured."""

    id: str
    """Of the trial, a random word."""
    made: str
    """When the claims were written down, UTC, ISO 8601."""
    measured: str
    """When the last step that printed a result began, UTC, ISO 8601; empty where none has."""
    tool: str
    """Version of lumiimg."""
    site: str
    """Its name."""
    nodes: int
    """Of the plan."""
    node_minutes: float
    """That its jobs have taken."""
    node_minutes_most: int
    """That they may take."""
    stand_in: str | None
    """What was not real; such a trial proves nothing of any machine. Null for a real one."""
    images: tuple[ReportedImage, ...]
    """In the order of their numbers."""
    steps_done: int
    """That printed a result."""
    steps: int
    """In all."""
    counts: dict[str, int]
    """Claims by their outcome."""
    rows: tuple[Row, ...]
    """The differences first."""
    notes: tuple[str, ...]
    """What else a reader must know: clocks apart, others on the nodes, an engine that changed."""

    @property
    def exit_code(self) -> ExitCode:
        """1 where something differs, 3 where something is open, else 0."""
        if self.counts[ClaimOutcome.DIFFERS]:
            return ExitCode.NO
        return ExitCode.UNDECIDED if self.counts[ClaimOutcome.OPEN] else ExitCode.GOOD

    @property
    def is_unfinished(self) -> bool:
        """Whether another job would measure more."""
        return any(row.why == NOT_YET or row.why.startswith(LEFT) for row in self.rows)

    @property
    def sentence(self) -> str:
        """How many claims came to what."""
        same = self.counts[ClaimOutcome.SAME]
        judged = same + self.counts[ClaimOutcome.DIFFERS]
        first = f"{same} of {count(judged, 'claim')} as predicted" if judged else "no claim was judged"
        words = {ClaimOutcome.DIFFERS: "not", ClaimOutcome.OPEN: "not measured", ClaimOutcome.NEWS: "news"}
        return ", ".join([first, *(f"{self.counts[one]} {word}" for one, word in words.items() if self.counts[one])])
