"""How a job ended: what ended it, whom that hit first, how sure it is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from lumiimg.joblog.flight import ranks_word


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
