"""What `list`, `show` of the catalogue and `schema` print."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Literal

from msgspec import field

from lumiimg.catalog.drivers import DriverEvidence, Rank
from lumiimg.catalog.launch import SiteAnnotation, SiteModule, SiteOption
from lumiimg.catalog.ledger import Reach, Trial
from lumiimg.catalog.named_images import KnownImage
from lumiimg.catalog.questions import Question
from lumiimg.catalog.sites import MeasuredVariable, SiteAdvice, SiteBind, SiteFabric, SiteIdentity, TimeLimit
from lumiimg.report.outputs.request import WantedVariable
from lumiimg.report.outputs.shape import Output, Shape, Text


class Entry(Shape):
    """One entry."""

    kind: Literal["base", "layer", "recipe", "site", "broken"]
    """What it is."""
    name: str
    """As for --base, --add, --recipe, --site, and `show`."""
    status: Reach | Literal["broken", ""]
    """How far it was tried; of several releases, the one that got furthest. Empty for a recipe, and where a site does
    not state it."""
    summary: str
    """One sentence; of a broken one, its fault."""
    old: Text | None
    """Of a site or of images, what is old of what is known, and how old; null where nothing is."""


class ReadRelease(Shape):
    """One release, as it was read."""

    version: str
    """Of it."""
    date: dt.date | None
    """When it was uploaded, ISO 8601; null where the index does not say."""
    requires: tuple[Text, ...]
    """What must be below it. As `name>=1.2`."""
    expects: tuple[Text, ...]
    """What its project builds it with: another is refused."""
    wheels: tuple[str, ...]
    """Python distributions that it comes as; empty for one that is compiled."""
    doubts: tuple[str, ...]
    """What was seen against it."""
    source: str
    """What was read."""
    read: dt.date
    """The day on which it was read, ISO 8601."""


class List(Output):
    """Every base, layer, recipe and site."""

    printed_by = "lumiimg list --json"

    entries: tuple[Entry, ...]
    """Bases and layers, then recipes, then sites."""


class Release(Shape):
    """One release."""

    version: str
    """Of it."""
    status: Reach
    """How far this release was tried."""
    requires: tuple[Text, ...]
    """What must be below it. As `name>=1.2`."""
    source: str
    """Where that is from."""


class Argument(Shape):
    """One argument."""

    default: str
    """Value where none is given."""
    help: str
    """What it does."""


class Source(Shape):
    """One archive."""

    url: str
    """Where it is fetched; may hold the layer's arguments."""
    sha256: dict[str, str]
    """In hexadecimal, by the version that it is of."""


class Environment(Shape):
    """What it does to the environment of the image."""

    set: dict[str, str]
    """Variables that are set."""
    prepend: dict[str, str]
    """Variables that something is put in front of."""


class ShowLayer(Output):
    """A layer or a base of the catalogue."""

    printed_by = "lumiimg show LAYER --json"

    name: str
    """In the catalogue."""
    kind: Literal["base", "layer"]
    """What it is."""
    status: Reach
    """How far it was tried; of several releases, the one that got furthest."""
    summary: str
    """One sentence."""
    source: str
    """Where its recipe comes from."""
    date: dt.date
    """When that was looked up, ISO 8601."""
    folder: Path
    """Where its files are."""
    requires: tuple[Text, ...]
    """What must be below it. As `name>=1.2`."""
    has: dict[str, str]
    """What it brings: version by component."""
    provides: tuple[str, ...]
    """Components that it brings without a version."""
    releases: tuple[Release, ...]
    """The preferred first."""
    read: tuple[ReadRelease, ...]
    """Releases without a row that were read from a package index and are kept."""
    images: tuple[KnownImage, ...]
    """Of a family whose images have names that say what they have: those that are known."""
    conflicts: tuple[str, ...]
    """Layers that it cannot be built with."""
    arguments: dict[str, Argument]
    """By name (`--arg LAYER.NAME=VALUE`)."""
    sources: dict[str, Source]
    """By name (`--source NAME=FILE`)."""
    environment: Environment
    """What it does to the environment of the image."""
    trials: tuple[Trial, ...]
    """What is known of how far it, its releases and its members were tried."""


class ShowRecipe(Output, kw_only=True):
    """A recipe of the catalogue."""

    printed_by = "lumiimg show RECIPE --json"

    name: str
    """In the catalogue."""
    kind: Literal["recipe"] = "recipe"
    """What it is."""
    summary: str
    """One sentence."""
    base: str
    """As for --base."""
    add: tuple[str, ...]
    """As for --add."""
    site: str | None
    """As for --site; null where it names none."""
    fabric: Literal["auto", "host", "bundled", "none"]
    """As for --fabric; `auto` where it names none."""
    arguments: dict[str, str]
    """Values by `LAYER.NAME`."""


class Driver(Shape):
    """The GPU driver of the nodes; null where it is not known."""

    name: str
    """With its version."""
    rocm: Text
    """Releases of ROCm that it serves: `rocm>=6.1,<7.1`."""
    doubtful: Text | None
    """Of these, the releases that are known to give trouble."""
    rank: Rank
    """How that is known."""
    evidence: tuple[DriverEvidence, ...]
    """What runs on the nodes, whatever their driver is."""
    source: str
    """Where that is from."""
    date: dt.date
    """When that was looked up, ISO 8601."""


class Partition(Shape):
    """One partition."""

    name: str
    """Of the scheduler."""
    nodes: int
    """The most that one job may have."""
    least_nodes: int
    """The fewest that one job may have."""
    hours: float
    """The longest that one job may run."""
    steps: tuple[TimeLimit, ...]
    """Longest times by the number of nodes, where they differ."""
    whole_nodes: bool
    """Whether a job has its nodes for itself."""
    debug: bool
    """Whether it is for tests."""


class SiteVariable(WantedVariable):
    """A variable that jobs on a site want, and when they do."""

    given: tuple[Text, ...]
    """Only where the image has these. As `name>=1.2`."""
    unless: tuple[Text, ...]
    """Not where the image has these. As `name>=1.2`."""


class ShowSite(Output, kw_only=True):
    """What is known of a machine."""

    printed_by = "lumiimg show SITE --json"

    name: str
    """As for --site."""
    kind: Literal["site"] = "site"
    """What it is."""
    title: str
    """For a person."""
    arch: str | None
    """Of its GPUs, as compilers name it: `gfx90a`; null where it is not AMD's."""
    vendor: str | None
    """Who makes its GPUs, where that is not AMD."""
    processors: str | None
    """Of its nodes, as `uname -m` says; null where it is not known."""
    status: Literal["documented", "run"] | None
    """`documented`: written down from what others publish; `run`: something ran there; null where it is not stated."""
    scheduler: str | None
    """`Slurm`, `PBS`."""
    engine: str | None
    """The container engine of the nodes."""
    identity: SiteIdentity | None
    """By what the machine is known; null where nothing certain is known."""
    driver: Driver | None
    """The GPU driver of the nodes; null where it is not known."""
    fabric: SiteFabric | None
    """The fast network; null where it is not known."""
    partitions: tuple[Partition, ...]
    """Partitions with GPUs."""
    cores: tuple[tuple[int, ...], ...] | None
    """Cores beside each GPU, in the order of the GPUs; null where it is not known."""
    cores_sparing: tuple[tuple[int, ...], ...] | None
    """The same with some left to helpers of the framework."""
    binds: tuple[SiteBind, ...]
    """File systems and devices to bind."""
    variables: tuple[SiteVariable, ...] = field(name="environment")
    """Variables that jobs want."""
    modules: tuple[SiteModule, ...]
    """Modules that jobs want."""
    questions: tuple[Question, ...]
    """Where a trial there measured something else than stands here."""
    options: tuple[SiteOption, ...]
    """Options of the scheduler that jobs want."""
    annotations: tuple[SiteAnnotation, ...]
    """Annotations for the Container Engine."""
    domain: str | None
    """What follows a node's short name, where ranks shall meet over the fast network; null: the name does as it is."""
    measured: tuple[MeasuredVariable, ...]
    """Variables that were tried there, and did nothing, or harm."""
    advice: tuple[SiteAdvice, ...]
    """What else to know."""


class Schema(Shape):
    """One."""

    name: str
    """For `lumiimg schema NAME`."""
    number: int
    """Of the schema: the `schema` of its output."""
    of: str
    """The command, or the file."""
    summary: str
    """What it says."""


class Schemas(Output):
    """The names of all schemas."""

    printed_by = "lumiimg schema --json"

    schemas: tuple[Schema, ...]
    """By name."""
