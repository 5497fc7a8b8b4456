"""What builds, the cache and the catalogue print as JSON beyond a single value of a room.

Docstrings are the descriptions in the schema. Modules of rooms are imported for the types alone: printing one
kind loads no room that its command has no use for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast

from lumiimg import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from lumiimg.build.builder import BuiltImage
    from lumiimg.catalog.catalogue import Recipe
    from lumiimg.catalog.layers import Layer, LayerSource, Release, Status
    from lumiimg.catalog.ledger import Trial
    from lumiimg.catalog.named_images import KnownImage
    from lumiimg.catalog.questions import Question
    from lumiimg.catalog.sites import Site, SiteVariable
    from lumiimg.definition.definition import Definition
    from lumiimg.definition.docker.draft import Draft
    from lumiimg.engine.engine import Engine
    from lumiimg.fabric.path import Fabric
    from lumiimg.image.compare import FileDifference
    from lumiimg.resolve.bootstrap import LockedBootstrap
    from lumiimg.resolve.lock import Lock, LockedSource
    from lumiimg.resolve.plan import Plan
    from lumiimg.resolve.stack import Chosen

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
class NearestRequest:
    """A request."""

    base: str
    """For --base."""
    add: tuple[str, ...]
    """For --add, each."""
    fabric: FabricChoice
    """For --fabric."""


@dataclass(frozen=True, slots=True)
class ExplainedRequest:
    """What a request would be built of, by which rule; or why not, and the nearest that works."""

    plan: Plan

    @property
    def decision(self) -> Literal["ok", "refused"]:
        """The exit code says the same: `ok` 0, `refused` 1."""
        return "refused" if self.plan.refused else "ok"

    @property
    def nearest(self) -> NearestRequest | None:
        """The nearest request that works, where this one is refused; null where there is none."""
        if self.plan.nearest is None:
            return None
        asked = self.plan.nearest.asked
        return NearestRequest(asked.base, asked.add, asked.fabric.value if asked.fabric else "auto")

    @property
    def layers(self) -> tuple[Chosen, ...]:
        """In the order in which they are built; empty where the request is refused."""
        return self.plan.stack.layers if self.plan.stack else ()

    @property
    def environment(self) -> tuple[SiteVariable, ...]:
        """What jobs with such an image want on the site."""
        return () if self.plan.refused else self.plan.environment


@dataclass(frozen=True, slots=True)
class PossibleBase:
    """One base."""

    base: str
    """Name in the catalogue."""
    doubts: bool
    """Whether a rule warns or could not decide."""
    answer: str
    """What comes out, in a few words."""


@dataclass(frozen=True, slots=True)
class PossibleBases:
    """On which bases layers can be put."""

    bases: tuple[PossibleBase, ...]
    """Those without doubts first."""


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """One entry."""

    kind: Literal["base", "layer", "recipe", "site", "broken"]
    """What it is."""
    name: str
    """As for --base, --add, --recipe, --site, and `show`."""
    status: Status | Literal["broken", ""]
    """How far it was tried; of several releases, the one that got furthest. Empty for a recipe, and where a site does
    not state it."""
    summary: str
    """One sentence; of a broken one, its fault."""
    old: str | None
    """Of a site or of images, what is old of what is known, and how old; null where nothing is."""


@dataclass(frozen=True, slots=True)
class Listing:
    """Every base, layer, recipe and site."""

    entries: tuple[CatalogueEntry, ...]
    """Bases and layers, then recipes, then sites."""


@dataclass(frozen=True, slots=True)
class LayerEnvironment:
    """What it does to the environment of the image."""

    set: Mapping[str, str]
    """Variables that are set."""
    prepend: Mapping[str, str]
    """Variables that something is put in front of."""


@dataclass(frozen=True, slots=True)
class ShownLayer:
    """A layer or a base of the catalogue."""

    layer: Layer
    read: tuple[Release, ...]
    """Releases without a row that were read from a package index and are kept."""
    trials: tuple[Trial, ...]
    """What is known of how far it, its releases and its members were tried."""

    @property
    def kind(self) -> Literal["base", "layer"]:
        """What it is."""
        return "base" if self.layer.is_base else "layer"

    @property
    def images(self) -> tuple[KnownImage, ...]:
        """Of a family whose images have names that say what they have: those that are known."""
        return self.layer.named.known if self.layer.named else ()

    @property
    def sources(self) -> dict[str, LayerSource]:
        """By name (`--source NAME=FILE`)."""
        return {source.name: source for source in self.layer.sources}

    @property
    def environment(self) -> LayerEnvironment:
        """What it does to the environment of the image."""
        return LayerEnvironment(self.layer.set_environment, self.layer.prepend_environment)


@dataclass(frozen=True, slots=True)
class ShownRecipe:
    """A recipe of the catalogue."""

    recipe: Recipe
    kind: Literal["recipe"] = "recipe"
    """What it is."""

    @property
    def fabric(self) -> FabricChoice:
        """As for --fabric; `auto` where it names none."""
        return cast("FabricChoice", self.recipe.fabric or "auto")

    @property
    def arguments(self) -> dict[str, str]:
        """Values by `LAYER.NAME`."""
        return {f"{layer}.{name}": value for (layer, name), value in self.recipe.arguments.items()}


@dataclass(frozen=True, slots=True)
class ShownSite:
    """What is known of a machine."""

    site: Site
    questions: tuple[Question, ...]
    """Where a trial there measured something else than stands here."""
    kind: Literal["site"] = "site"
    """What it is."""

    @property
    def cores(self) -> tuple[tuple[int, ...], ...] | None:
        """Cores beside each GPU, in the order of the GPUs; null where it is not known."""
        return self._near(sparing=False)

    @property
    def cores_sparing(self) -> tuple[tuple[int, ...], ...] | None:
        """The same with some left to helpers of the framework."""
        return self._near(sparing=True)

    def _near(self, *, sparing: bool) -> tuple[tuple[int, ...], ...] | None:
        binding = self.site.binding
        if binding is None:
            return None
        return tuple(binding.cores_near(gpu, sparing=sparing) for gpu in range(len(binding.near)))


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


# -- drafts


@dataclass(frozen=True, slots=True)
class DraftResult:
    """What a Dockerfile does, what the catalogue has of it, what a person must see to."""

    draft: Draft
    folder: Path | None
    """That was written; null without -o."""
