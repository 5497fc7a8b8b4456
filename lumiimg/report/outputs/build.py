"""What builds and locks print."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from msgspec import field

from lumiimg import __version__
from lumiimg.build.progress import BuildStage
from lumiimg.catalog.ledger import Reach
from lumiimg.fabric.path import Fabric
from lumiimg.host.carried_manifest import CarriedManifest
from lumiimg.image.compare import FileDifference
from lumiimg.report.outputs.machine import Engine
from lumiimg.report.outputs.shape import Output, Shape
from lumiimg.resolve.lock_diff import LockChange
from lumiimg.resolve.rules import RuleOutcome


class Bootstrap(Shape):
    """Where the base comes from."""

    agent: str
    """Of the definition file: `docker`, `localimage`, `debootstrap`, …"""
    origin: str = field(name="from")
    """Image or release, as the agent takes it."""
    mirror_url: str | None = field(name="mirror")
    """Address of the mirror, for agents that want one; else null."""
    because: str
    """Why it comes from there."""


class Source(Shape):
    """One file that the build fetches."""

    file: str
    """Its name beside the definition."""
    sha256: str | None
    """In hexadecimal; null as long as nobody has published or measured it."""
    location: str
    """Address, or path of a file that was given."""


class Layer(Shape):
    """The base first, then each layer in order."""

    name: str
    """In the catalogue."""
    status: Reach | Literal["read", "derived", "unlisted"]
    """How far it was tried. Of a release that no row has: `read` from a package index, `derived` from the nearest row,
    or `unlisted`, with no facts about it."""
    arguments: dict[str, str]
    """Values by the argument's name."""
    sources: tuple[Source, ...]
    """Files that the layer is made of."""


class Doubt(Shape):
    """A rule that warns or could not decide."""

    id: str
    """Of the rule."""
    outcome: RuleOutcome
    """What it says: `warning` or `unknown`."""
    because: str
    """Why, a sentence."""


class Stack(Shape, kw_only=True):
    """What is built: base, layers, and where each thing comes from."""

    lumiimg: str = __version__
    """Version of lumiimg."""
    site: str | None
    """The machine that it is for; null: none was named."""
    fabric: Fabric
    """Where it gets libfabric with the cxi provider from."""
    bootstrap: Bootstrap
    """Where the base comes from."""
    stack: tuple[Layer, ...] = field(name="layers")
    """The stack."""
    doubts: tuple[Doubt, ...]
    """What the compatibility rules leave open."""


class Definition(Shape):
    """One Singularity definition file."""

    name: str
    """Of the file, without `.def`."""
    layers: tuple[str, ...]
    """Of the catalogue, that it makes."""
    text: str
    """The file itself."""


class BuildPlan(Output):
    """What would be built."""

    printed_by = "lumiimg build … --dry-run --json, lumiimg adapt … --dry-run --json"

    plan: Stack
    """What would be built."""
    definitions: tuple[Definition, ...]
    """The chain, in order."""


class BuildDefinitions(Output):
    """Which definition files were written."""

    printed_by = "lumiimg build … --definitions DIR --json, lumiimg adapt … --definitions DIR --json"

    folder: Path
    """Where they are."""
    definitions: tuple[Definition, ...]
    """The chain in order, then one that does it all."""
    fetch: Path | None
    """The script that gets, elsewhere, the sources that could not be reached from here; null where all are there."""


class Built(Output):
    """What building something came to."""

    image: Path
    """The file."""
    key: str
    """The image's number: of all that it was made from, sha256 in hexadecimal."""
    size_bytes: int
    """Of the file."""
    seconds: float
    """That it took."""
    steps: int
    """Of the build."""
    reused_steps: int
    """Of these, taken from the cache."""
    way: Literal["overlay", "sandbox"] = field(name="strategy")
    """Which of the ways to build it was."""
    is_new: bool
    """False: the file was this image already, and nothing was built."""
    stages: tuple[BuildStage, ...]
    """What it took, part by part."""
    engine: Engine
    """What ran the scripts."""


class Build(Built):
    """What was built."""

    printed_by = "lumiimg build … -o image.sif --json, lumiimg adapt … -o image.sif --json"

    plan: Stack
    """What it was built of."""


class Rebuild(Built):
    """What was built again, and in which files it differs."""

    printed_by = "lumiimg rebuild image.sif -o again.sif --json"

    plan: None
    """Always null: the plan is the one in the image (`lumiimg show`)."""
    differences: tuple[FileDifference, ...] | None
    """In which files it differs; null: the same bytes."""


class Adapt(Output):
    """Why nothing is built on an image: it lacks nothing, it cannot be judged, or its own settings stand against it."""

    printed_by = "lumiimg adapt IMAGE --site S --json, where nothing is built"

    answer: str
    """A sentence; the exit code says the same."""
    doubts: tuple[str, ...]
    """What is not known, and what the image sets that stands against it, a sentence each."""


class Lock(Output):
    """What was locked, beside the lock that was there."""

    printed_by = "lumiimg lock … --json"

    lock: Path
    """The file."""
    changes: tuple[LockChange, ...]
    """Against the lock that was there; empty where there was none."""


class DiffLocks(Output):
    """What two locks settle otherwise."""

    printed_by = "lumiimg diff OLD NEW --json, of locks"

    changes: tuple[LockChange, ...]
    """In the order of the newer; what it has no more comes last."""


class DiffImages(Output):
    """In which files two images differ."""

    printed_by = "lumiimg diff OLD NEW --json, of images"

    files: tuple[FileDifference, ...]
    """By path; empty where there is no difference."""
    compared: tuple[str, ...]
    """What was compared of each file, as both images have it."""


class ShowImage(Output):
    """What an image says of how it was made."""

    printed_by = "lumiimg show image.sif --json"
    number = 2

    image: Path
    """As it was named."""
    plan: dict[str, Any] | None
    """As it stands in the image, whoever wrote it; schema `plan` is what lumiimg writes. Null where it has none: an
    engine built it from definition files."""
    sbom: dict[str, Any] | None
    """Bill of materials, as it stands in the image: CycloneDX 1.6 where lumiimg wrote it; null where it has none."""
    bind_manifest: CarriedManifest | None
    """What it wants of a machine's fabric; null where it carries no manifest."""


class PlannedBase(Shape):
    """Where the base came from."""

    agent: str
    """Of the definition file: `docker`, `localimage`, `debootstrap`, …"""
    origin: str = field(name="from")
    """Image or release, as the agent takes it."""
    sha256: str | None
    """Of a file, in hexadecimal; null for anything but a file."""


class PlannedFile(Shape):
    """One file."""

    name: str
    """In the layer."""
    file: str
    """Its name beside the definition."""
    sha256: str | None
    """In hexadecimal; null where it was not settled."""
    from_: str = field(name="from")
    """Address, or path of a file that was given."""


class PlannedLayer(Shape):
    """The base first, then each layer."""

    name: str
    """In the catalogue."""
    version: str | None
    """Of the release; null for a layer without releases."""
    arguments: dict[str, str]
    """Values by the argument's name."""
    requirements: tuple[str, ...]
    """Of `own-packages`, what the user asked for, as in PEP 508; empty for any other."""
    sources: tuple[PlannedFile, ...]
    """Archives and wheels that it is made of."""


class Plan(Output):
    """What an image was asked to be: base, layers, lock."""

    printed_by = "/.lumiimg/lumiimg.json in an image, a JSON object of the SIF too"
    number_key = "format"

    lumiimg: str
    """Version that built it."""
    site: str | None
    """The machine that it is for; null: none was named."""
    fabric: Fabric
    """Where it gets libfabric with the cxi provider from."""
    base: PlannedBase
    """Where the base came from."""
    layers: tuple[PlannedLayer, ...]
    """The stack."""
    lock: str | None
    """The text of lumiimg.lock (TOML); null where not all was settled when it was built."""
    request: tuple[str, ...]
    """The options of `lumiimg build` that it was built with, but those that only its machine has a use for."""
