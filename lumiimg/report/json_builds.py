"""What builds, the cache and the catalogue print as JSON beyond a single value of a room.

Docstrings are the descriptions in the schema. Modules of rooms are imported for the types alone: printing one
kind loads no room that its command has no use for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from lumiimg import __version__

if TYPE_CHECKING:
    from pathlib import Path

    from lumiimg.build.builder import BuiltImage
    from lumiimg.definition.definition import Definition
    from lumiimg.engine.engine import Engine
    from lumiimg.fabric.path import Fabric
    from lumiimg.image.compare import FileDifference
    from lumiimg.resolve.bootstrap import LockedBootstrap
    from lumiimg.resolve.lock import Lock, LockedSource

FabricChoice = Literal["auto", "host", "bundled", "none"]

# -- builds and locks


@dataclass(frozen=True, slots=True)
class Stack:
    """What is built: base, layers, and where each thing comes from."""

    lock: Lock
    lumiimg: str = __version__
    """Version of lumiimg."""


@dataclass(frozen=True, slots=True)
class BuildPlan:
    """What would be built."""

    plan: Stack
    """What would be built."""
    definitions: tuple[Definition, ...]
    """The chain, in order."""


@dataclass(frozen=True, slots=True)
class WrittenDefinitions:
    """Which definition files were written."""

    folder: Path
    """Where they are."""
    definitions: tuple[Definition, ...]
    """The chain in order, then one that does it all."""
    fetch: Path | None
    """The script that gets, elsewhere, the sources that could not be reached from here; null where all are there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildResult:
    """What was built."""

    built: BuiltImage
    engine: Engine
    """What ran the scripts."""
    plan: Stack
    """What it was built of."""

    @property
    def seconds(self) -> float:
        """That it took."""
        return round(self.built.seconds, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildResult(BuildResult):
    """What was built again, and in which files it differs."""

    plan: None = None  # type: ignore[assignment]
    """Always null: the plan is the one in the image (`lumiimg show`)."""
    differences: tuple[FileDifference, ...] | None
    """In which files it differs; null: the same bytes."""


@dataclass(frozen=True, slots=True)
class NothingToAdapt:
    """Why nothing is built on an image: it lacks nothing, it cannot be judged, or its own settings stand against it."""

    answer: str
    """A sentence; the exit code says the same."""
    doubts: tuple[str, ...]
    """What is not known, and what the image sets that stands against it, a sentence each."""


@dataclass(frozen=True, slots=True)
class PlannedLayer:
    """The base first, then each layer."""

    name: str
    """In the catalogue."""
    version: str | None
    """Of the release; null for a layer without releases."""
    arguments: dict[str, str]
    """Values by the argument's name."""
    requirements: tuple[str, ...]
    """Of `own-packages`, what the user asked for, as in PEP 508; empty for any other."""
    sources: tuple[LockedSource, ...]
    """Archives and wheels that it is made of."""


@dataclass(frozen=True, slots=True)
class PlanInImage:
    """What an image was asked to be: base, layers, lock."""

    lumiimg: str
    """Version that built it."""
    site: str | None
    """The machine that it is for; null: none was named."""
    fabric: Fabric
    """Where it gets libfabric with the cxi provider from."""
    base: LockedBootstrap
    """Where the base came from."""
    layers: tuple[PlannedLayer, ...]
    """The stack."""
    lock: str | None
    """The text of lumiimg.lock (TOML); null where not all was settled when it was built."""
    request: tuple[str, ...]
    """The options of `lumiimg build` that it was built with, but those that only its machine has a use for."""


# -- requests and the catalogue


@dataclass(frozen=True, slots=True)
class SchemaEntry:
    """One."""

    name: str
    """For `lumiimg schema NAME`."""
    number: int
    """Of the schema: the `schema` of its output."""
    of: str
    """The command, or the file."""
    summary: str
    """What it says."""


@dataclass(frozen=True, slots=True)
class Schemas:
    """The names of all schemas."""

    schemas: tuple[SchemaEntry, ...]
    """By name."""
