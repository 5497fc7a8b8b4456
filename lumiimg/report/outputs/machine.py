"""What is printed of this machine: its engine, its keys, what an import costs on it."""

from __future__ import annotations

from pathlib import Path

from lumiimg.build.capabilities import CapabilityTrial
from lumiimg.build.disk_space import FreeSpace
from lumiimg.check.startup import Startup
from lumiimg.engine.engine import EngineKind
from lumiimg.findings import Advice
from lumiimg.report.outputs.shape import Output, Shape


class Engine(Shape):
    """The container engine of this machine."""

    kind: EngineKind
    """Which family; SingularityCE is `singularity`."""
    version: str
    """As it says itself: `1.4.2`."""
    path: Path
    """Of the program."""


class Doctor(Output):
    """What the engine can do here, and which ways to build that leaves."""

    printed_by = "lumiimg doctor --json"

    engine: Engine
    """What was tried."""
    trials: tuple[CapabilityTrial, ...]
    """In the order in which they were made."""
    strategies: dict[str, tuple[str, ...]]
    """What stands against each way to build; empty: it works. The quickest first."""
    room: tuple[FreeSpace, ...]
    """Of the cache, then of temporary files."""
    advice: Advice
    """A build, where it can work; else what gets what is missing."""


class BenchImport(Output):
    """What an import asks of file systems, in calls."""

    printed_by = "lumiimg bench import PLACE… --json"

    module: str
    """That was imported."""
    places: tuple[Startup, ...]
    """In the order of the command line."""
