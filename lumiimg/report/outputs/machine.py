"""What is printed of this machine: its engine, its keys, what an import costs on it."""

from __future__ import annotations

from pathlib import Path

from lumiimg.build.capabilities import CapabilityTrial
from lumiimg.build.disk_space import FreeSpace
from lumiimg.check.startup import ImportSource
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


class Counts(Shape):
    """Calls of one process and its children on some files."""

    metadata: int
    """All calls that a server of metadata may be asked for: opens, stats, readlinks, lists, others."""
    opens: int
    """Calls of open."""
    stats: int
    """Calls of stat and access."""
    readlinks: int
    """Calls of readlink."""
    lists: int
    """Reads of directories; one directory takes two or more."""
    others: int
    """Other calls that name a file."""
    failed: int
    """Of all these, those that found nothing."""
    files: int
    """Different names that were opened."""
    reads: int
    """Calls of read."""
    read_bytes: int
    """Bytes that these calls gave."""
    mapped_bytes: int
    """Bytes of files that are mapped; no call shows how much of it is then read."""


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


class Arithmetic(Shape):
    """Not measured: for this number of processes."""

    nodes: int
    """Of the job."""
    ranks_per_node: int
    """Processes of a node."""
    metadata_every_rank: int | None
    """Metadata operations where each process asks for itself; null where they cannot be counted."""
    metadata_once_a_node: int | None
    """Metadata operations where one process of each node asks."""


class ImportPlace(Shape):
    """One place."""

    path: str
    """As it was named."""
    kind: ImportSource
    """What modules are imported from."""
    module_file: str
    """The file that was imported."""
    version: str
    """Of the module; empty where it does not say."""
    python: str
    """Its version."""
    program: Counts
    """All that the program asks, of whatever file system."""
    shared: Counts | None
    """What of it, and of the engine, reaches the file system that the place is on; null where that cannot be seen."""
    why_not: str | None
    """Why it cannot be seen; null where it can."""
    arithmetic: Arithmetic
    """Not measured: for this number of processes."""


class BenchImport(Output):
    """What an import asks of file systems, in calls and bytes."""

    printed_by = "lumiimg bench import PLACE… --json"

    module: str
    """That was imported."""
    places: tuple[ImportPlace, ...]
    """In the order of the command line."""
