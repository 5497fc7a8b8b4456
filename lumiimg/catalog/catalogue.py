"""Where bases, layers and recipes are found: the user's own folders first, then those that come with lumiimg."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from packaging.version import Version

from lumiimg.catalog.folders import file_names, layer_folders, names_at_a_glance, recipe_folders
from lumiimg.catalog.layers import NAME, Bootstrap, Layer, read_layer, variant_names
from lumiimg.catalog.ledger import judged
from lumiimg.catalog.named_images import NamedImage, completed, named_image, newest_here, newest_named
from lumiimg.catalog.toml_table import CatalogError, Table, read_toml
from lumiimg.errors import LONG, BadInputError, shortened

FABRICS = ("host", "bundled", "none")
"""Where libfabric and libcxi come from, as for `--fabric`."""
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


@dataclass(frozen=True, slots=True)
class Recipe:
    """A base with layers, and the arguments that differ from the layers' own."""

    name: str
    """In the catalogue."""
    summary: str
    """One sentence."""
    base: str
    """As for --base."""
    add: tuple[str, ...]
    """As for --add."""
    arguments: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """Value by (layer, argument)."""
    site: str | None = None
    """As for --site; null where it names none."""
    fabric: str | None = None
    """One of FABRICS; None: as the base and the machine allow."""


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Folders to search, nearest first."""

    layer_folders: tuple[Path, ...]
    recipe_folders: tuple[Path, ...]
    _names: list[str] = field(default_factory=list, init=False, repr=False, compare=False)
    _read: dict[str, Layer] = field(default_factory=dict, init=False, repr=False, compare=False)
    _members: dict[str, Path] = field(default_factory=dict, init=False, repr=False, compare=False)
    """The folder of the family by the name of each of its members, once it was looked for."""
    _all_families: list[Layer] = field(default_factory=list, init=False, repr=False, compare=False)
    """All families, once they were read."""
    _by_folder: dict[Path, Layer] = field(default_factory=dict, init=False, repr=False, compare=False)
    """A family has many members, and is read once."""

    def layer_names(self) -> list[str]:
        """Return the names of all bases and layers; of a family of bases those of its members."""
        if not self._names:
            names = {file.parent.name for folder in self.layer_folders for file in folder.glob("*/layer.toml")}
            families = self._families()
            self._names.extend(sorted((names - {folder.name for folder in families.values()}) | families.keys()))
        return [*self._names]

    def base_names(self) -> list[str]:
        """Return the names of all bases that can be read."""
        return self._names_of_kind(is_base=True)

    def recipe_names(self) -> list[str]:
        """Return the names of all recipes, without reading them."""
        return file_names(self.recipe_folders)

    def entry(self, name: str) -> Layer:
        """Read a base or a layer by its name.

        Raises UnknownNameError, or CatalogError if it is there and wrong.
        """
        if name not in self._read:
            self._read[name] = judged(self._entry(name))
        return self._read[name]

    def _entry(self, name: str) -> Layer:
        is_path = Path(name).name in {"", ".."} or Path(name).name != name
        for folder in () if is_path else self.layer_folders:
            if os.path.lexists(folder / name / "layer.toml"):
                return read_layer(folder / name)
        if (found_in := self._families().get(name)) is not None:
            family = self._family(found_in)
            if any(variant.name == name for variant in family.variants):
                return family.member(name)
        if (found := self._named(name)) is not None:
            of_family, image = found
            has = [variant.has for family in self._all_families for variant in reversed(family.variants)]
            return member_by_name(of_family, image, has)
        raise UnknownNameError("base or layer", name, self.layer_names())

    def _families(self) -> dict[str, Path]:
        """Return the folder of the family by the name of each of its members; the nearest folder wins."""
        if not self._members:
            for folder in self.layer_folders:
                for file in sorted(folder.glob("*/layer.toml")):
                    for name in variant_names(file):
                        self._members.setdefault(name, file.parent)
            for family in self._with_names():
                for name in known_by_name(family):
                    self._members.setdefault(name, family.folder)
        return self._members

    def images_here(self) -> tuple[Path, ...]:
        """Return the images of all families that lie on this machine, of each release of ROCm the newest."""
        self._families()
        return tuple(path for family in self._with_names() if family.named for path in newest_here(family.named))

    def base(self, name: str) -> Layer:
        """Read a base by its name. Raises as `entry` does, and BadInputError if the name is a layer's."""
        return self._of_kind(name, is_base=True)

    def meant_by(self, name: str) -> str:
        """Return the base that a name means.

        `rocm-7.2` is the newest of that version; an image that is not here but whose name says what it has, by its path
        or its place in a registry, is the base of that name. Any other name is returned as it is.
        """
        known = self.layer_names()
        if name in known or Path(name).exists():
            return name
        if (found := self._named(name)) is not None:
            family, image = found
            return member_of(family, image) or image.name
        members = {other.removeprefix(f"{name}."): other for other in known if other.startswith(f"{name}.")}
        versions = {Version(rest): other for rest, other in members.items() if _VERSION.fullmatch(rest)}
        return versions[max(versions)] if versions and _ENDS_IN_VERSION.search(name) else name

    def said_by(self, name: str) -> Mapping[str, str]:
        """Return the versions that the name of an image says, by component; nothing where it is of no family."""
        found = self._named(name) or (self._named(os.path.realpath(name)) if Path(name).is_symlink() else None)
        return found[1].has if found else {}

    def _named(self, name: str) -> tuple[Layer, NamedImage] | None:
        """Return the family, and what the name of an image says, where it is one of a family."""
        self._families()
        for family in self._with_names():
            if family.named is not None:
                image = named_image(family.named, name) or newest_named(family.named, name)
                if image is not None:
                    return family, image
        return None

    def _family(self, folder: Path) -> Layer:
        if folder not in self._by_folder:
            self._by_folder[folder] = read_layer(folder)
        return self._by_folder[folder]

    def _with_names(self) -> list[Layer]:
        """Return the families whose images have names that say what they have; one that is broken is none."""
        if not self._all_families:
            for folder in dict.fromkeys(self._members.values()):
                with suppress(CatalogError):
                    self._all_families.append(self._family(folder))
        return [family for family in self._all_families if family.named is not None]

    def layer(self, name: str) -> Layer:
        """Read a layer by its name. Raises as `entry` does, and BadInputError if the name is a base's."""
        return self._of_kind(name, is_base=False)

    def _of_kind(self, name: str, *, is_base: bool) -> Layer:
        kind = "base" if is_base else "layer"
        if name not in self.layer_names():
            if is_base and self._named(name) is not None:
                return self.entry(name)
            raise UnknownNameError(kind, name, self._names_of_kind(is_base=is_base))
        entry = self.entry(name)
        if entry.is_base != is_base:
            right = f"--base {name}" if entry.is_base else f"--add {name}"
            raise BadInputError(f"{name!r} is not a {kind}", hint=f"write {right}")
        return entry

    def _names_of_kind(self, *, is_base: bool) -> list[str]:
        names, wanted = [], "base" if is_base else "layer"
        kinds = names_at_a_glance(self.layer_folders)
        for name in self.layer_names():
            if kinds.get(name, wanted) != wanted:
                continue  # most of them need not be read for that
            try:
                if self.entry(name).is_base == is_base:
                    names.append(name)
            except CatalogError:
                continue  # a broken folder of the user's must not hide the answer to another question
        return names

    def recipe(self, name: str) -> Recipe:
        """Read a recipe by its name, or by the path of its file.

        Raises UnknownNameError, or CatalogError if it is there and wrong.
        """
        return read_recipe(find_file("recipe", name, self.recipe_folders))


def read_recipe(path: Path) -> Recipe:
    """Read and validate a recipe.

    Raises CatalogError, which names the file and every wrong key.
    """
    table = Table(read_toml(path), path)
    recipe = table.fill(
        Recipe,
        name=path.stem,
        fabric=table.choice("fabric", FABRICS, required=False) or None,
        arguments={
            (layer, name): value
            for layer, values in table.named_tables("arguments")
            for name, value in values.string_values(any_text=True).items()
        },
    )
    table.finish()
    return recipe


def find_file(kind: str, name: str, folders: Sequence[Path]) -> Path:
    """Return the file of a recipe, or of a site, by its name, or by its own path.

    Raises UnknownNameError, or CatalogError for a file whose name is none.
    """
    if name.endswith(".toml"):
        return Path(name)
    for folder in folders:
        if name in {file.stem for file in folder.glob("*.toml")}:
            if not NAME.fullmatch(name):
                what = f"its name {name!r} should be lower-case letters, digits, dots, dashes"
                raise CatalogError(what, where=str(folder))
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


# -- members of a family that nobody wrote down: images whose names say what they have --


def member_of(family: Layer, image: NamedImage) -> str | None:
    """Return the member that an image is, which says more of it than its name; None where it is none."""
    origins = {origin for _, origin in image.origins}
    return next((one.name for one in family.variants if one.bootstrap.origin in origins), None)


def known_by_name(family: Layer) -> Iterator[str]:
    """Yield the names of images that are known and no member."""
    for known in family.named.known if family.named else ():
        image = named_image(family.named, known.name) if family.named else None
        if image is not None and member_of(family, image) is None:
            yield image.name


def member_by_name(family: Layer, image: NamedImage, siblings: Iterable[Mapping[str, str]]) -> Layer:
    """Return the base that an image of a family is, by its name and what other bases have."""
    has = completed({**family.has, **image.has}, siblings)
    # what each image with ROCm, or with a plugin, has, in whatever version
    more = {"rccl": "rocm" in has, "net-api": "net-plugin" in family.provides}
    return replace(
        family,
        name=image.name,
        summary=image.summary,
        source=family.named.source if family.named else family.source,
        status="documented",
        provides=(*family.provides, *(name for name, there in more.items() if there and name not in has)),
        has=has,
        bootstraps=tuple(Bootstrap(agent, origin) for agent, origin in image.origins),
        variants=(),
        named=None,
        by_name=True,
    )
