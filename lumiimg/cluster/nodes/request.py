"""What is to be checked on nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

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

    def words(self, image: Path, program: str | None, venv: Path | None) -> tuple[str, ...]:
        """Return the words of `lumiimg check` that ask for this from any folder, with its answer as JSON."""
        options = {
            "--nodes": self.nodes,
            "--level": self.level,
            "--leave-out": self.without,
            "--program": program,
            "--venv": venv and venv.absolute(),
        }
        given = (f"{option}={value}" for option, value in options.items() if value)
        return ("check", str(image.absolute()), *given, *(["--simulate-gpu"] if self.simulate else []), "--json")
