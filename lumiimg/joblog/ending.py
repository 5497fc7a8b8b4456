"""How a job ended: what ended it, which rank or node it hit first, and how certain that is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from lumiimg.joblog.flight import ranks_word


class How(StrEnum):
    """How a job ended."""

    COMPLETED = "completed"
    """Slurm reports that it completed."""
    RUNNING = "running"
    """It is being followed while it runs, and nothing shows that it ended."""
    DIED = "died"
    TIME_LIMIT = "time-limit"
    CANCELLED = "cancelled"
    """Somebody cancelled it, or Slurm preempted it."""
    UNKNOWN = "unknown"
    """The log does not show how, or whether, it ended."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How the job ended, and what ended it."""

    how: How = How.UNKNOWN
    """Whether it ran to its own end, and if not, what happened."""
    cause: str | None = None
    """Id of what ended it, or may have: a signature, or general advice if no signature fits. Null: nothing was seen."""
    summary: str = ""
    """What it was; for a failure without a signature, the library's own words."""
    ranks: str | None = None
    """The rank or ranks (`0-3,7`) that it hit first; null if the log does not say."""
    node: str | None = None
    """The node that it hit first; null if the log does not say."""
    is_likely: bool = False
    """Whether it is only inferred to have ended the job: no later line shows that the job continued or died."""
    by_network: bool = False
    """Whether the network itself ended the job, as the verdict says: it could not start, and there is no fallback."""

    @property
    def sentence(self) -> str:
        """What it was, and which rank or node it hit."""
        where = " on ".join(filter(None, (ranks_word(self.ranks) if self.ranks else "", self.node)))
        said = ", ".join(filter(None, (where, "likely" if self.is_likely else "")))
        return f"{self.summary} ({said})" if said else self.summary

    @property
    def is_failure(self) -> bool:
        """Whether the job did not run to its own end."""
        return self.how in {How.DIED, How.TIME_LIMIT, How.CANCELLED}

    @property
    def leads(self) -> bool:
        """Whether the report states it first, before the network."""
        return self.cause is not None and not self.by_network
