"""What a trial is made of: claims written before it, steps that measure, and their outcomes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Literal

import msgspec

from lumiimg.core.errors import ExitCode
from lumiimg.core.text import count

SCHEMA = 1
_AROUND = 2
"""Minutes of a job before its first step and behind its last."""
THERE, RUNS, NO_CHANGE = "there", "runs", "no change"
ALIKE, AS_FILES = "all the same", "as the files predict"
"""What is predicted in words, and read so (`readings.py`)."""
NOT_YET, LEFT = "not done yet", "left for the next job: "
"""Why a claim is unmeasured that the next job may measure; the second begins the reason."""
_VERSION = re.compile(r"(?:[A-Za-z]+ )?\d+(?:\.\d+)+")


StepKind = Literal["slurm", "nodes", "check"]
"""What a step asks: Slurm, each node for what its files show, an image by `check --nodes`."""
Reads = Literal[
    "node", "partition", "mpi", "answer", "path", "maps", "alike", "listens",
    "network", "speed", "ran", "changed",
]  # fmt: skip
"""What of a step's result a claim is about: of each node, of Slurm, of the probes, of a collective."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialStep:
    """One command of lumiimg that measures something."""

    name: str
    """`image-1.run`: a word, and the name of the files with its result and what it printed."""
    kind: StepKind = "check"
    """What it asks."""
    about: str
    """What it does, for a person."""
    words: tuple[str, ...] = ()
    """Of lumiimg, behind its name."""
    image: int = 0
    """Number of the image that it is about; 0: of none."""
    nodes: int
    """That it runs on."""
    minutes: int
    """That it takes as a rule."""
    limit: int
    """Minutes after which it is ended."""
    sets: dict[str, str] = field(default_factory=dict)
    """Variables that it has beside those of the job."""
    after: str | None = None
    """A step without whose collective this one would show nothing."""


def usual_minutes(steps: Iterable[TrialStep], nodes: int) -> int:
    """Return the node minutes that steps take as a rule, in one job of that number of nodes."""
    return (sum(step.minutes for step in steps) + _AROUND) * nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Something that lumiimg says, and a step can show."""

    id: str
    """`site.libfabric`, `image-1.network`, `site.path:/pfs`."""
    about: str
    """The same for a person."""
    predicted: str | None
    """Null: nothing is predicted."""
    least: float | None = None
    """Where a number is predicted that may be larger."""
    ranks: int | None = None
    """What the number is of; without effect for others."""
    also: tuple[str, ...] = ()
    """The same in other words: a path without symlinks."""
    source: str
    """Where the claim is from."""
    date: str
    """When that was looked up, ISO 8601; empty where it was computed from the image."""
    step: str
    """What measures it."""
    reads: Reads
    """What of that it is about."""
    what: str = ""
    """Which of several: `kernel`, `/pfs`."""


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
    """One of the images; its number is its place."""

    content: str
    """The first 16 hexadecimal digits of a digest of the sizes, beginnings and ends of its file systems."""
    rows: tuple[TriedRow, ...]
    """What it was built from, where lumiimg built it; else nothing."""
    rocm: str | None = None
    """Release of its ROCm, where it is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialHead:
    """What a trial is, in its plan and in its report."""

    id: str
    """A random word, in the names of its jobs."""
    made: str
    """When the claims were written down, UTC, ISO 8601."""
    tool: str
    """Version of lumiimg."""
    site: str
    """Its name."""
    nodes: int
    """Name of its jobs in the scheduler."""
    images: tuple[TrialImage, ...]
    """In the order of their numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialPlan(TrialHead):
    """What a trial would do, and all that it predicts."""

    schema: int
    """Number of this format."""
    node_minutes: int
    """That its jobs may take at most, all of them together."""
    site_name: str
    """The site as `--site` takes it anywhere."""
    paths: tuple[str, ...]
    """Of the images, absolute."""
    steps: tuple[TrialStep, ...]
    """In their order: those that decide most come first."""
    claims: tuple[Claim, ...]
    """All that is predicted."""

    @property
    def job_name(self) -> str:
        """Name of its jobs in the scheduler."""
        return f"lumiimg-trial-{self.id}"


class Ending(StrEnum):
    """How a step ended."""

    DONE = "done"
    """It printed its result."""
    FAILED = "failed"
    """It came to nothing, and another job would not do better."""
    PENDING = "pending"
    """The job had too few nodes for it, or too little time, or no GPUs: the next one does it."""
    BEGUN = "begun"
    """A job is at it, or has died in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What one step came to."""

    step: str
    ending: Ending
    job: str = ""
    """Its number."""
    began: str = ""
    """UTC, ISO 8601."""
    said: tuple[str, ...] = ()
    """The last lines that it printed for people, or why it came to nothing."""
    tries: int = 0
    """Jobs that have died in it, or had no node that answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTime:
    """What one job has taken, as it says itself: no more than that."""

    nodes: int
    minutes: Annotated[float, msgspec.Meta(ge=0, le=1 << 20)]
    hosts: tuple[str, ...] = ()
    """Its nodes. They, and the account, do not leave the folder of the trial."""
    account: str = ""


class ClaimOutcome(StrEnum):
    """What a claim came to."""

    DIFFERS = "differs"
    """What was measured is not what was predicted."""
    SAME = "same"
    """It is."""
    UNPREDICTED = "unpredicted"
    """Something was measured where nothing was predicted."""
    UNMEASURED = "unmeasured"
    """Nothing was measured, or not on all nodes."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured of a claim."""

    value: str | None
    """None where nothing was."""
    why: str = ""
    """Why not, or what else was seen."""
    number: float | None = None
    """The same as a number, where it is one."""
    same: bool | None = None
    """Whether it is as predicted, where that is more than the same words."""
    partial: bool = False
    """Whether some nodes gave no answer, or a log is not sure: that can contradict a claim, and not prove it."""

    def outcome(self, claim: Claim) -> ClaimOutcome:
        """Return what a claim came to by it."""
        if self.value is None:
            return ClaimOutcome.UNMEASURED
        if claim.predicted is None:
            return ClaimOutcome.UNPREDICTED
        if self.same is not None:
            same = self.same
        elif claim.least is not None:
            same = self.number is not None and self.number >= claim.least
        else:
            same = any(_agrees(self.value, value) for value in (claim.predicted, *claim.also))
        if same and self.partial:
            return ClaimOutcome.UNMEASURED
        return ClaimOutcome.SAME if same else ClaimOutcome.DIFFERS


def _agrees(value: str, predicted: str) -> bool:
    """Return whether a value is what was predicted, which of a version may be its beginning: `Apptainer 1.4`."""
    is_version = _VERSION.fullmatch(value) and not predicted.isdigit()
    return value == predicted or bool(is_version and value.startswith((f"{predicted}.", f"{predicted} ")))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportRow(Claim):
    """A claim beside what was measured."""

    measured: str | None
    """Null: nothing was."""
    outcome: ClaimOutcome
    """What the claim came to."""
    why: str
    """Why it is unmeasured, or what else was seen; empty where there is nothing to say."""
    gb_s: float | None
    """The bandwidth that was measured, where one was: 1e9 bytes a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialReport(TrialHead):
    """What lumiimg claims of a machine and of images, beside what was measured."""

    measured: str
    """When the last step that printed a result began, UTC, ISO 8601; empty where none has."""
    node_minutes: float
    """That its jobs have taken."""
    node_minutes_most: int
    """That they may take."""
    stand_in: str | None
    """What was not real; such a trial proves nothing of any machine. Null for a real one."""
    steps_done: int
    """That printed a result."""
    steps: int
    """In all."""
    counts: dict[str, int]
    """Claims by their outcome."""
    rows: tuple[ReportRow, ...]
    """The differences first."""
    notes: tuple[str, ...]
    """What else a reader must know."""

    @property
    def exit_code(self) -> ExitCode:
        """1 where something differs, 3 where something is unmeasured, else 0."""
        if self.counts[ClaimOutcome.DIFFERS]:
            return ExitCode.NO
        return ExitCode.UNDECIDED if self.counts[ClaimOutcome.UNMEASURED] else ExitCode.GOOD

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
        words = {
            ClaimOutcome.DIFFERS: "not",
            ClaimOutcome.UNMEASURED: "not measured",
            ClaimOutcome.UNPREDICTED: "without a prediction",
        }
        return ", ".join([first, *(f"{self.counts[one]} {word}" for one, word in words.items() if self.counts[one])])
