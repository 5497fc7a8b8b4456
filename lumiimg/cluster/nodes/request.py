"""What is to be checked on nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lumiimg.findings import Level


@dataclass(frozen=True, slots=True)
class NodesRequest:
    """How many nodes are to be checked, and how far."""

    nodes: int
    level: Level | None = None
    """None: as far as is possible."""
    simulate: bool = False
    without: str | None = None
    """A variable that the collective has neither of the site nor of the image."""
