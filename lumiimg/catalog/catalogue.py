"""Where bases, layers and recipes are found: the user's own folders first, then those included in lumiimg.

Images of a family have their versions in their names, so a new one can be used as a base at once:
`lumi-multitorch-u24r72f21m50t211-20260929_104918` has Ubuntu 24.04, ROCm 7.2, libfabric 2.1, MPICH 5.0 and torch 2.11.
How the names of a family are read is defined by `[named]` in its layer.toml.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Literal

from msgspec import Struct, structs
from packaging.version import Version

from lumiimg.catalog.folders import UnparsedLayer, file_names, layer_folders, recipe_folders, unparsed_layers
from lumiimg.catalog.layers import NAME, Bootstrap, Layer, read_layer
from lumiimg.catalog.releases import expand
from lumiimg.core.decode import AnyText, DecodeError, Text, read_toml
from lumiimg.core.errors import LONG, BadInputError, shortened

FabricOption = Literal["auto", "host", "bundled", "none"]
"""Values of --fabric."""
_ENDS_IN_VERSION = re.compile(r"-\d{1,4}(\.\d{1,5})*\Z")
_VERSION = re.compile(r"\d{1,5}(\.\d{1,5})*")
_MAX_LISTED_NAMES = 8
"""Number of names that fit on one line of an error."""
_MAX_IMAGES = 4096
"""Maximum number of files that are examined to find the images of a machine."""


class UnknownNameError(BadInputError):
    """A name that is not in the catalogue; suggests similar names, or the recipe (from `recipes`) that is meant."""

    def __init__(self, kind: str, name: str, known: Collection[str], recipes: Collection[str] = ()) -> None:
        same = [other for other in known if other.lower() == name.lower()]
        near = same or difflib.get_close_matches(name[:LONG], known, n=3, cutoff=0.6)
        meant = [recipe for recipe in recipes if name == recipe or (not near and name in recipe.split("-"))]
        all_of_them = f"known: {', '.join(sorted(known)) or 'none'}" if len(known) <= _MAX_LISTED_NAMES else ""
        hint = f"did you mean {' or '.join(near)}?" if near else all_of_them
        listed = "" if all_of_them and not near else "`lumiimg list` shows all"
        if len(meant) == 1:
            hint, listed = f"{'it is a recipe' if meant == [name] else 'a recipe has it'}: --recipe {meant[0]}", ""
        super().__init__(f"there is no {kind} {shortened(name)!r}", hint=" ".join(filter(None, (hint, listed))))


class _RecipeFile(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    summary: Text
    """One sentence."""
    base: Text
    """The base, as for --base."""
    add: tuple[Text, ...] = ()
    """The layers, as for --add."""
    arguments: Mapping[str, Mapping[str, AnyText]] = {}
    """Values by layer and argument."""
    site: Text | None = None
    """The site, as for --site; null if it does not name one."""
    fabric: FabricOption = "auto"
    """Where libfabric and libcxi come from, as for --fabric."""


class Recipe(_RecipeFile, frozen=True, kw_only=True):
    """A recipe of the catalogue: a base with layers, and the arguments that differ from the layers' own."""

    name: str
    """Name in the catalogue."""

    @property
    def kind(self) -> Literal["recipe"]:
        """Kind of entry."""
        return "recipe"

    @property
    def options(self) -> dict[str, str]:
        """Values of arguments by `LAYER.NAME`."""
        return {f"{layer}.{name}": value for layer, values in self.arguments.items() for name, value in values.items()}


@dataclass(frozen=True)
class Catalogue:
    """Folders to search, nearest first. Each file is read on demand, and once."""

    layer_folders: tuple[Path, ...]
    recipe_folders: tuple[Path, ...]
    _read: dict[Path, Layer] = field(default_factory=dict, init=False, repr=False, compare=False)
    _possible_providers: dict[str, list[str]] = field(default_factory=dict, init=False, repr=False, compare=False)

    @cached_property
    def _unparsed(self) -> Mapping[str, UnparsedLayer]:
        return unparsed_layers(self.layer_folders)

    @cached_property
    def _known(self) -> frozenset[str]:
        """The names of the images that are known by their names alone."""
        return frozenset(name for family in self._families("[named]") if family.named for name in family.named.known)

    def _families(self, mentioned: str = "variant") -> Iterator[Layer]:
        """Yield the families of bases that can be read and whose files contain a word."""
        bases = (one for one in self._unparsed.values() if one.kind != "layer" and mentioned in one.text)
        for folder in dict.fromkeys(one.folder for one in bases):
            with suppress(DecodeError):
                if (layer := self._layer_in(folder)).variants:
                    yield layer

    def _layer_in(self, folder: Path) -> Layer:
        if folder not in self._read:
            self._read[folder] = read_layer(folder)
        return self._read[folder]

    def layer_names(self) -> list[str]:
        """Return the names of all bases and layers; for a family of bases, those of its members."""
        return sorted({*self._unparsed, *self._known})

    def knows(self, name: str) -> bool:
        """Return whether there is a base or a layer of that name."""
        return name in self._unparsed or name in self._known

    def base_names(self) -> list[str]:
        """Return the names of all bases that can be read."""
        return self._names_of_kind("base")

    def recipe_names(self) -> list[str]:
        """Return the names of all recipes, without reading them."""
        return file_names(self.recipe_folders)

    def possible_providers(self, component: str) -> list[str]:
        """Return the names of the layers whose files have a component as a key, or in `provides`.

        All layers that provide it are among them; most others need not be read to rule them out.
        """
        if component in self._possible_providers:
            return self._possible_providers[component]
        word = re.escape(component)
        key, provided = rf"""(?<![\w+-]){word}["']?\s*=(?!=)""", rf"""^provides\s*=\s*\[[^\]]*["']{word}["']"""
        sign = re.compile(f"{key}|{provided}", re.MULTILINE)
        layers = ((name, one) for name, one in self._unparsed.items() if one.kind != "base")
        found = sorted(name for name, one in layers if component == name or sign.search(one.text))
        return self._possible_providers.setdefault(component, found)

    def entry(self, name: str) -> Layer:
        """Read a base or a layer by its name. Raises UnknownNameError, or DecodeError if it is invalid."""
        is_path = Path(name).name in {"", ".."} or Path(name).name != name
        for folder in () if is_path else self.layer_folders:
            if os.path.lexists(folder / name / "layer.toml"):
                return self._layer_in(folder / name)
        if (unparsed := self._unparsed.get(name)) is not None:
            family = self._layer_in(unparsed.folder)
            if any(variant.name == name for variant in family.variants):
                return family.member(name)
        if (found := self._by_name(name)) is not None:
            others = (variant.has for family in self._families() for variant in reversed(family.variants))
            return with_derived_versions(found, others) if found.by_name else found
        raise UnknownNameError("base or layer", name, self.layer_names())

    def base(self, name: str) -> Layer:
        """Read a base by its name. Raises as `entry` does, and BadInputError if the name is a layer's."""
        return self._of_kind("base", name)

    def layer(self, name: str) -> Layer:
        """Read a layer by its name. Raises as `entry` does, and BadInputError if the name is a base's."""
        return self._of_kind("layer", name)

    def _of_kind(self, kind: Literal["base", "layer"], name: str) -> Layer:
        if not self.knows(name) and (kind == "layer" or self._by_name(name) is None):
            raise UnknownNameError(kind, name, self._names_of_kind(kind), file_names(self.recipe_folders))
        entry = self.entry(name)
        if entry.kind != kind:
            right = f"--base {name}" if entry.is_base else f"--add {name}"
            raise BadInputError(f"{name!r} is not a {kind}", hint=f"write {right}")
        return entry

    def _names_of_kind(self, kind: Literal["base", "layer"]) -> list[str]:
        names = [*self._known] if kind == "base" else []
        for name, unparsed in self._unparsed.items():
            if unparsed.kind in {kind, None}:  # most others need not be read for that
                with suppress(DecodeError):  # a broken folder of the user must not hide the others
                    if self.entry(name).kind == kind:
                        names.append(name)
        return sorted(names)

    def resolve_base_name(self, name: str) -> str:
        """Return the name of the base that a user's name refers to.

        `rocm-7.2` is the newest of that version; an image that is not here is the base of its name, if its path says
        what it contains. Any other name is returned unchanged.
        """
        if name in self._unparsed or Path(name).exists():
            return name
        if (found := self._by_name(name)) is not None:
            return found.name
        rests = {other.removeprefix(f"{name}."): other for other in self._unparsed if other.startswith(f"{name}.")}
        versions = {Version(rest): other for rest, other in rests.items() if _VERSION.fullmatch(rest)}
        return versions[max(versions)] if versions and _ENDS_IN_VERSION.search(name) else name

    def images_here(self) -> list[Path]:
        """Return the images of all families in the places where their machine has them, newest first."""
        files = [family.named.file for family in self._families("[named]") if family.named and family.named.file]
        patterns = (re.sub(r"(\{\w+\})+", "*", file).lstrip("/") for file in files)
        found: dict[Path, float] = {}
        for path in islice((path for pattern in patterns for path in Path("/").glob(pattern)), _MAX_IMAGES):
            with suppress(OSError):  # it disappeared, or access is denied
                if path.is_file():
                    found[path] = path.stat().st_mtime
        return sorted(found, key=found.__getitem__, reverse=True)

    def _by_name(self, name: str) -> Layer | None:
        """Return the base for an image of a family, by its name; None if no family has such a name."""
        return next(filter(None, (image_by_name(family, name) for family in self._families("[named]"))), None)

    def recipe(self, name: str) -> Recipe:
        """Read a recipe by its name, or by the path of its file.

        Raises UnknownNameError, or DecodeError if it is invalid.
        """
        return read_recipe(find_file("recipe", name, self.recipe_folders))


def read_recipe(path: Path) -> Recipe:
    """Read and validate a recipe. Raises DecodeError, which names the file and every wrong key."""
    return Recipe(name=path.stem, **structs.asdict(read_toml(path, _RecipeFile)))


def find_file(kind: str, name: str, folders: Sequence[Path]) -> Path:
    """Return the file of a recipe or a site, by its name or by its own path.

    Raises UnknownNameError, or DecodeError for a file with an invalid name.
    """
    if name.endswith(".toml"):
        return Path(name)
    for folder in folders:
        if name in {file.stem for file in folder.glob("*.toml")}:
            if not NAME.fullmatch(name):
                what = f"its name {name!r} should consist of lower-case letters, digits, dots, dashes"
                raise DecodeError(what, where=str(folder))
            return folder / f"{name}.toml"
    raise UnknownNameError(kind, name, file_names(folders))


def open_catalogue(environment: Mapping[str, str], extra_layers: Sequence[Path] = ()) -> Catalogue:
    """Return the catalogue: `extra_layers`, then the user's folders, then those included in lumiimg.

    Raises BadInputError if a folder of `extra_layers` does not exist.
    """
    for folder in extra_layers:
        if not folder.is_dir():
            raise BadInputError("is not a folder", where=str(folder), hint="--layers needs a folder of layer folders")
    return Catalogue(layer_folders=layer_folders(environment, extra_layers), recipe_folders=recipe_folders(environment))


# -- images whose names say what they contain --


def name_of_image(text: str) -> str:
    """Return the name of an image as a base, from the path of its file or its place in a registry."""
    text = Path(text).name.removesuffix(".sif") if text.endswith(".sif") else text.removeprefix("docker.io/")
    return re.sub(r"[/:_]", "-", text)


def image_by_name(family: Layer, text: str) -> Layer | None:
    """Return the base for an image of a family, by its name alone; None if it is not a name of the family."""
    names, name = family.named, name_of_image(text)
    found = names.pattern.fullmatch(name) if names else None
    if names is None or found is None:
        return None
    groups = found.groupdict("")
    places = {"localimage": names.file, "docker": names.tag}
    bootstraps = tuple(Bootstrap(agent, expand(place, groups)) for agent, place in places.items() if place)
    for variant in family.variants:
        if variant.origin in {one.origin for one in bootstraps}:
            return family.member(variant.name)  # more is known about this one
    return structs.replace(
        family,
        name=name,
        summary=f"{expand(names.summary, groups)}: by its name",
        source=names.source,
        has={**family.has, **{component: expand(text, groups) for component, text in names.has.items()}},
        bootstraps=bootstraps,
        variants=(),
        named=None,
        by_name=True,
    )


def with_derived_versions(image: Layer, others: Iterable[Mapping[str, str]]) -> Layer:
    """Return a base with what follows from its name: from the distribution glibc and Python, from ROCm its RCCL.

    `others`: the versions of components in other bases.
    """
    has = dict(image.has)
    for other in others:
        if other.get("os") == has.get("os") is not None:
            has |= {key: other[key] for key in ("glibc", "python") if key in other and key not in has}
        if _series(other.get("rocm")) == _series(has.get("rocm")) is not None and "rccl" in other:
            has.setdefault("rccl", other["rccl"])
    # what every image with ROCm, or with a plugin, has in some version
    more = {"rccl": "rocm" in has, "net-api": "net-plugin" in image.provides}
    provides = (*image.provides, *(name for name, there in more.items() if there and name not in has))
    return structs.replace(image, has=has, provides=provides)


def _series(version: str | None) -> tuple[str, ...] | None:
    return tuple(version.split(".")[:2]) if version else None
