"""The parts of a trial: claims written before it, steps that measure, and their outcomes."""

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
"""Minutes of a job before its first step and after its last."""
THERE, RUNS, NO_CHANGE = "there", "runs", "no change"
ALIKE, AS_FILES = "all the same", "as the files predict"
"""Predictions in words, which measurements repeat (`readings.py`)."""
NOT_YET, LEFT = "not done yet", "left for the next job: "
"""Reasons why a claim is unmeasured that the next job may measure; the second is a prefix."""
_VERSION = re.compile(r"(?:[A-Za-z]+ )?\d+(?:\.\d+)+")


StepKind = Literal["slurm", "nodes", "check"]
"""The subject of a step: Slurm, the files of each node, or an image through `check --nodes`."""
Reads = Literal[
    "node", "partition", "mpi", "answer", "path", "maps", "alike", "listens",
    "network", "speed", "ran", "changed",
]  # fmt: skip
"""The part of a step's result that a claim is about: from each node, Slurm, the probes, or a collective."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialStep:
    """One command of lumiimg that measures something."""

    name: str
    """One word, such as `image-1.run`, which also names the files with its result and output."""
    kind: StepKind = "check"
    """The kind of step."""
    about: str
    """Description of the step for people."""
    words: tuple[str, ...] = ()
    """Arguments of the `lumiimg` command."""
    image: int = 0
    """Number of the image that it is about; 0: none."""
    nodes: int
    """Number of nodes that it runs on."""
    minutes: int
    """Minutes that it usually takes."""
    limit: int
    """Minutes after which it is ended."""
    sets: dict[str, str] = field(default_factory=dict)
    """Variables that it sets in addition to those of the job."""
    after: str | None = None
    """The step whose collective this one is compared with, and depends on."""


def usual_minutes(steps: Iterable[TrialStep], nodes: int) -> int:
    """Return the node minutes that steps usually take in one job on this number of nodes."""
    return (sum(step.minutes for step in steps) + _AROUND) * nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A statement of lumiimg that a step can test."""

    id: str
    """Identifier, such as `site.libfabric`, `image-1.network`, `site.path:/pfs`."""
    about: str
    """The subject of the claim for people."""
    predicted: str | None
    """The predicted value; null: nothing is predicted."""
    least: float | None = None
    """Lower bound, if a number is predicted that may be larger."""
    ranks: int | None = None
    """Number of ranks for which the bound is valid; other numbers of ranks are not judged by it."""
    also: tuple[str, ...] = ()
    """Equivalent values, such as a path without symlinks."""
    source: str
    """Source of the claim."""
    date: str
    """Date of the source, ISO 8601; empty if the claim was computed from the image."""
    step: str
    """Name of the step that measures it."""
    reads: Reads
    """The part of the step's result that the claim is about."""
    what: str = ""
    """Which of several values, such as `kernel` or `/pfs`."""


@dataclass(frozen=True, slots=True)
class TriedRow:
    """A row of the catalogue that an image was built from."""

    name: str
    """Name of the base, as in `--base`, or of the layer."""
    release: str
    """Release; empty for a base, and for a layer without releases."""
    content: str
    """The first 16 hexadecimal digits of the digest of the tried content, as in the ledger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialImage:
    """One of the images, numbered by its position."""

    content: str
    """The first 16 hexadecimal digits of a digest of the sizes, beginnings and ends of its file systems."""
    rows: tuple[TriedRow, ...]
    """The rows that it was built from; empty if lumiimg did not build it."""
    rocm: str | None = None
    """Release of its ROCm, if known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialHead:
    """Facts about a trial that its plan and its report share."""

    id: str
    """Random word, part of the names of its jobs."""
    made: str
    """Time at which the claims were written, UTC, ISO 8601."""
    tool: str
    """Version of lumiimg."""
    site: str
    """Name of the site."""
    nodes: int
    """Number of nodes of its jobs."""
    images: tuple[TrialImage, ...]
    """In the order of their numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialPlan(TrialHead):
    """The steps and predictions of a trial."""

    schema: int
    """Number of this format."""
    node_minutes: int
    """Maximum node minutes of all its jobs together."""
    site_name: str
    """The site as an argument of `--site` that is valid in any folder."""
    paths: tuple[str, ...]
    """Absolute paths of the images."""
    steps: tuple[TrialStep, ...]
    """Steps in order, the most decisive first."""
    claims: tuple[Claim, ...]
    """All predictions."""

    @property
    def job_name(self) -> str:
        """Name of its jobs in the scheduler."""
        return f"lumiimg-trial-{self.id}"


class Ending(StrEnum):
    """How a step ended."""

    DONE = "done"
    """It printed its result."""
    FAILED = "failed"
    """It gave no result, and another job would not do better."""
    PENDING = "pending"
    """The job had too few nodes, too little time or no GPUs for it: the next job does it."""
    BEGUN = "begun"
    """A job is running it, or died while running it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """The result of one step."""

    step: str
    ending: Ending
    job: str = ""
    """Job number."""
    began: str = ""
    """Start time, UTC, ISO 8601."""
    said: tuple[str, ...] = ()
    """The last lines that it printed for people, or why it gave no result."""
    tries: int = 0
    """Number of jobs that died in it or in which no node answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTime:
    """The time that one job has used at most, as the job itself recorded it."""

    nodes: int
    minutes: Annotated[float, msgspec.Meta(ge=0, le=1 << 20)]
    hosts: tuple[str, ...] = ()
    """Names of its nodes. These and the account do not leave the folder of the trial."""
    account: str = ""


class ClaimOutcome(StrEnum):
    """The outcome of a claim."""

    DIFFERS = "differs"
    """The measured value differs from the prediction."""
    SAME = "same"
    """The measured value is as predicted."""
    UNPREDICTED = "unpredicted"
    """Something was measured where nothing was predicted."""
    UNMEASURED = "unmeasured"
    """Nothing was measured, or not on all nodes."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The measurement for a claim."""

    value: str | None
    """Measured value; None if nothing was measured."""
    why: str = ""
    """Why nothing was measured, or other observations."""
    number: float | None = None
    """The value as a number, if it is one."""
    same: bool | None = None
    """Whether the value is as predicted, if comparing the texts does not decide that."""
    partial: bool = False
    """Whether some nodes gave no answer, or a log is not conclusive: such a value can refute a claim, not prove it."""

    def outcome(self, claim: Claim) -> ClaimOutcome:
        """Return the outcome of a claim by this measurement."""
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
    """Return whether a value equals the prediction; for a version, a prefix is enough: `Apptainer 1.4`."""
    is_version = _VERSION.fullmatch(value) and not predicted.isdigit()
    return value == predicted or bool(is_version and value.startswith((f"{predicted}.", f"{predicted} ")))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportRow(Claim):
    """A claim with its measurement."""

    measured: str | None
    """Measured value; null: nothing was measured."""
    outcome: ClaimOutcome
    """The outcome of the claim."""
    why: str
    """Why it is unmeasured, or other observations; empty if there are none."""
    gb_s: float | None
    """Measured bandwidth, if any, in 1e9 bytes per second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialReport(TrialHead):
    """lumiimg's claims about a machine and images, with the measurements."""

    measured: str
    """Start time of the last step that printed a result, UTC, ISO 8601; empty if none has."""
    node_minutes: float
    """Node minutes used by its jobs."""
    node_minutes_most: int
    """Node minutes that its jobs may use."""
    stand_in: str | None
    """What was not real in the trial, which then proves nothing about any machine; null for a real trial."""
    steps_done: int
    """Number of steps that printed a result."""
    steps: int
    """Number of all steps."""
    counts: dict[str, int]
    """Number of claims by outcome."""
    rows: tuple[ReportRow, ...]
    """Claims with their measurements, the differences first."""
    notes: tuple[str, ...]
    """Notes for the reader."""

    @property
    def exit_code(self) -> ExitCode:
        """1 if a measurement differs, else 3 if one is missing, else 0."""
        if self.counts[ClaimOutcome.DIFFERS]:
            return ExitCode.NO
        return ExitCode.UNDECIDED if self.counts[ClaimOutcome.UNMEASURED] else ExitCode.GOOD

    @property
    def is_unfinished(self) -> bool:
        """Whether another job would measure more."""
        return any(row.why == NOT_YET or row.why.startswith(LEFT) for row in self.rows)

    @property
    def sentence(self) -> str:
        """The number of claims by outcome, in words."""
        same = self.counts[ClaimOutcome.SAME]
        judged = same + self.counts[ClaimOutcome.DIFFERS]
        first = f"{same} of {count(judged, 'claim')} as predicted" if judged else "no claim was judged"
        words = {
            ClaimOutcome.DIFFERS: "not",
            ClaimOutcome.UNMEASURED: "not measured",
            ClaimOutcome.UNPREDICTED: "without a prediction",
        }
        return ", ".join([first, *(f"{self.counts[one]} {word}" for one, word in words.items() if self.counts[one])])
