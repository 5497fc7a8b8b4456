"""What is to be checked on nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from lumiimg.catalog.sites import Site
    from lumiimg.findings import Level
    from lumiimg.host.snapshot import Snapshot
    from lumiimg.resolve.venv import Venv


@dataclass(frozen=True, slots=True)
class NodesRequest:
    """What is to be checked, and how far."""

    image: Path
    """Absolute: nodes may be asked from elsewhere."""
    nodes: int
    level: Level | None
    """None: as far as is possible."""
    snapshot: Snapshot | None
    site: Site | None
    simulate: bool
    program: str | None = None
    """What jobs start; None for the Python on the image's PATH."""
    machine: tuple[str, ...] = ()
    """The options that name the machine, for commands that are proposed."""
    built_with: tuple[str, ...] = ()
    """The options that the image was built with, for the same."""
    venv: Venv | None = None
    """A Python environment that jobs bind."""
    without: str | None = None
    """A variable that the collective has neither of the site nor of the image."""
