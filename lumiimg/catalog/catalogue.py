"""Where bases, layers and recipes are found: the user's own folders first, then those that come with lumiimg."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal

from msgspec import Struct, structs
from packaging.version import Version

from lumiimg.catalog.folders import Glance, file_names, glances, layer_folders, recipe_folders
from lumiimg.catalog.layers import NAME, Bootstrap, Layer, read_layer
from lumiimg.catalog.named_images import ImageNames, NamedImage, completed, named_image, newest_here, newest_named
from lumiimg.decode import AnyText, DecodeError, Text, read_toml
from lumiimg.errors import LONG, BadInputError, shortened

FabricOption = Literal["auto", "host", "bundled", "none"]
"""As for --fabric."""
_ENDS_IN_VERSION = re.compile(r"-\d{1,4}(\.\d{1,5})*\Z")
_VERSION = re.compile(r"\d{1,5}(\.\d{1,5})*")
_FEW = 8
"""Names that fit into one line of an error."""


class UnknownNameError(BadInputError):
    """A name that no folder of the catalogue has; says which come near."""

    def __init__(self, kind: str, name: str, known: Collection[str]) -> None:
        same = [other for other in known if other.lower() == name.lower()]
        near = same or difflib.get_close_matches(name[:LONG], known, n=3, cutoff=0.6)
        all_of_them = f"known: {', '.join(sorted(known)) or 'none'}" if len(known) <= _FEW else ""
        hint = f"did you mean {' or '.join(near)}?" if near else all_of_them
        listed = "" if all_of_them and not near else "`lumiimg list` shows all"
        super().__init__(f"there is no {kind} {shortened(name)!r}", hint=" ".join(filter(None, (hint, listed))))


class _RecipeFile(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    summary: Text
    """One sentence."""
    base: Text
    """As for --base."""
    add: tuple[Text, ...] = ()
    """As for --add."""
    arguments: Mapping[str, Mapping[str, AnyText]] = {}
    """Value by layer and argument."""
    site: Text | None = None
    """As for --site; null where it names none."""
    fabric: Literal["host", "bundled", "none"] | None = None
    """Where libfabric and libcxi come from; None: as the base and the machine allow."""


class Recipe(_RecipeFile, frozen=True, kw_only=True):
    """A recipe of the catalogue: a base with layers, and the arguments that differ from the layers' own."""

    name: str
    """In the catalogue."""

    @property
    def kind(self) -> Literal["recipe"]:
        """What it is."""
        return "recipe"

    @property
    def fabric_option(self) -> FabricOption:
        """As for --fabric; `auto` where it names none."""
        return self.fabric or "auto"

    @property
    def given(self) -> dict[tuple[str, str], str]:
        """Values by layer and argument."""
        return {(layer, name): value for layer, values in self.arguments.items() for name, value in values.items()}

    @property
    def options(self) -> dict[str, str]:
        """Values by `LAYER.NAME`."""
        return {".".join(key): value for key, value in self.given.items()}


@dataclass(frozen=True)
class Catalogue:
    """Folders to search, nearest first. A file is read when it is asked for, and once."""

    layer_folders: tuple[Path, ...]
    recipe_folders: tuple[Path, ...]
    _read: dict[Path, Layer] = field(default_factory=dict, init=False, repr=False, compare=False)

    @cached_property
    def _glances(self) -> Mapping[str, Glance]:
        return glances(self.layer_folders)

    @cached_property
    def _named_families(self) -> tuple[tuple[Layer, ImageNames], ...]:
        """The families whose images have names that say what they have; one that is broken is none."""
        return tuple((family, family.named) for family in self._families("named") if family.named is not None)

    @cached_property
    def _known(self) -> frozenset[str]:
        """The names of the images that are known and no member of a family."""
        found = (
            (family, named_image(names, one.name)) for family, names in self._named_families for one in names.known
        )
        return frozenset(image.name for family, image in found if image and _member_of(family, image) is None)

    def _families(self, mentioned: str = "variant") -> Iterator[Layer]:
        """Yield the families of bases that can be read and whose files hold a word."""
        bases = (one for one in self._glances.values() if one.kind != "layer" and mentioned in one.text)
        for folder in dict.fromkeys(one.folder for one in bases):
            with suppress(DecodeError):
                if (layer := self._in(folder)).variants:
                    yield layer

    def _in(self, folder: Path) -> Layer:
        if folder not in self._read:
            self._read[folder] = read_layer(folder)
        return self._read[folder]

    def layer_names(self) -> list[str]:
        """Return the names of all bases and layers; of a family of bases those of its members."""
        return sorted({*self._glances, *self._known})

    def knows(self, name: str) -> bool:
        """Whether there is a base or a layer of that name."""
        return name in self._glances or name in self._known

    def base_names(self) -> list[str]:
        """Return the names of all bases that can be read."""
        return self._names_of_kind("base")

    def recipe_names(self) -> list[str]:
        """Return the names of all recipes, without reading them."""
        return file_names(self.recipe_folders)

    def may_bring(self, component: str) -> list[str]:
        """Return the names of the layers whose files have a component as a key, or in `provides`.

        Among them are all that bring it; most others need not be read to know that they do not.
        """
        word = re.escape(component)
        key, provided = rf"""(?<![\w+-]){word}["']?\s*=(?!=)""", rf"""^provides\s*=\s*\[[^\]]*["']{word}["']"""
        sign = re.compile(f"{key}|{provided}", re.MULTILINE)
        layers = ((name, one) for name, one in self._glances.items() if one.kind != "base")
        return sorted(name for name, one in layers if component == name or sign.search(one.text))

    def entry(self, name: str) -> Layer:
        """Read a base or a layer by its name.

        Raises UnknownNameError, or DecodeError if it is there and wrong.
        """
        is_path = Path(name).name in {"", ".."} or Path(name).name != name
        for folder in () if is_path else self.layer_folders:
            if os.path.lexists(folder / name / "layer.toml"):
                return self._in(folder / name)
        if (glance := self._glances.get(name)) is not None:
            family = self._in(glance.folder)
            if any(variant.name == name for variant in family.variants):
                return family.member(name)
        if (found := self._by_name(name)) is not None:
            siblings = [variant.has for family in self._families() for variant in reversed(family.variants)]
            return _member_by_name(*found, siblings)
        raise UnknownNameError("base or layer", name, self.layer_names())

    def base(self, name: str) -> Layer:
        """Read a base by its name. Raises as `entry` does, and BadInputError if the name is a layer's."""
        return self._of_kind("base", name)

    def layer(self, name: str) -> Layer:
        """Read a layer by its name. Raises as `entry` does, and BadInputError if the name is a base's."""
        return self._of_kind("layer", name)

    def _of_kind(self, kind: Literal["base", "layer"], name: str) -> Layer:
        if not self.knows(name) and (kind == "layer" or self._by_name(name) is None):
            raise UnknownNameError(kind, name, self._names_of_kind(kind))
        entry = self.entry(name)
        if entry.kind != kind:
            right = f"--base {name}" if entry.is_base else f"--add {name}"
            raise BadInputError(f"{name!r} is not a {kind}", hint=f"write {right}")
        return entry

    def _names_of_kind(self, kind: Literal["base", "layer"]) -> list[str]:
        names = [*self._known] if kind == "base" else []
        for name, glance in self._glances.items():
            if glance.kind in {kind, None}:  # most of the others need not be read for that
                with suppress(DecodeError):  # a broken folder of the user's must not hide the others
                    if self.entry(name).kind == kind:
                        names.append(name)
        return sorted(names)

    def meant_by(self, name: str) -> str:
        """Return the base that a name means.

        `rocm-7.2` is the newest of that version; an image that is not here but whose name says what it has, by its path
        or its place in a registry, is the base of that name. Any other name is returned as it is.
        """
        if name in self._glances or Path(name).exists():
            return name
        if (found := self._by_name(name)) is not None:
            family, image = found
            return _member_of(family, image) or image.name
        rests = {other.removeprefix(f"{name}."): other for other in self._glances if other.startswith(f"{name}.")}
        versions = {Version(rest): other for rest, other in rests.items() if _VERSION.fullmatch(rest)}
        return versions[max(versions)] if versions and _ENDS_IN_VERSION.search(name) else name

    def said_by(self, name: str) -> Mapping[str, str]:
        """Return the versions that the name of an image says, by component; nothing where it is of no family."""
        found = self._by_name(name) or (self._by_name(os.path.realpath(name)) if Path(name).is_symlink() else None)
        return found[1].has if found else {}

    def images_here(self) -> tuple[Path, ...]:
        """Return the images of all families that lie on this machine, of each release of ROCm the newest."""
        return tuple(path for _, names in self._named_families for path in newest_here(names))

    def _by_name(self, name: str) -> tuple[Layer, NamedImage] | None:
        """Return the family, and what the name of an image says, where it is one of a family."""
        for family, names in self._named_families:
            if (image := named_image(names, name) or newest_named(names, name)) is not None:
                return family, image
        return None

    def recipe(self, name: str) -> Recipe:
        """Read a recipe by its name, or by the path of its file.

        Raises UnknownNameError, or DecodeError if it is there and wrong.
        """
        return read_recipe(find_file("recipe", name, self.recipe_folders))


def read_recipe(path: Path) -> Recipe:
    """Read and validate a recipe. Raises DecodeError, which names the file and every wrong key."""
    return Recipe(name=path.stem, **structs.asdict(read_toml(path, _RecipeFile)))


def find_file(kind: str, name: str, folders: Sequence[Path]) -> Path:
    """Return the file of a recipe, or of a site, by its name, or by its own path.

    Raises UnknownNameError, or DecodeError for a file whose name is none.
    """
    if name.endswith(".toml"):
        return Path(name)
    for folder in folders:
        if name in {file.stem for file in folder.glob("*.toml")}:
            if not NAME.fullmatch(name):
                what = f"its name {name!r} should be lower-case letters, digits, dots, dashes"
                raise DecodeError(what, where=str(folder))
            return folder / f"{name}.toml"
    raise UnknownNameError(kind, name, file_names(folders))


def open_catalogue(environment: Mapping[str, str], extra_layers: Sequence[Path] = ()) -> Catalogue:
    """Return the catalogue: `extra_layers`, then the user's folders, then those that come with lumiimg.

    Raises BadInputError if a folder of `extra_layers` is not there.
    """
    for folder in extra_layers:
        if not folder.is_dir():
            raise BadInputError("is not a folder", where=str(folder), hint="--layers takes a folder of layer folders")
    return Catalogue(layer_folders=layer_folders(environment, extra_layers), recipe_folders=recipe_folders(environment))


# -- members of a family that nobody wrote down: images whose names say what they have


def _member_of(family: Layer, image: NamedImage) -> str | None:
    """Return the member that an image is, which says more of it than its name; None where it is none."""
    origins = {origin for _, origin in image.origins}
    return next((one.name for one in family.variants if one.origin in origins), None)


def _member_by_name(family: Layer, image: NamedImage, siblings: Iterable[Mapping[str, str]]) -> Layer:
    """Return the base that an image of a family is, by its name and what other bases have."""
    has = completed({**family.has, **image.has}, siblings)
    # what each image with ROCm, or with a plugin, has, in whatever version
    more = {"rccl": "rocm" in has, "net-api": "net-plugin" in family.provides}
    return structs.replace(
        family,
        name=image.name,
        summary=image.summary,
        source=family.named.source if family.named else family.source,
        provides=(*family.provides, *(name for name, there in more.items() if there and name not in has)),
        has=has,
        bootstraps=tuple(Bootstrap(agent, origin) for agent, origin in image.origins),
        variants=(),
        named=None,
        by_name=True,
    )
