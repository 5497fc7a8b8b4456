"""Where layers, recipes and sites are, and their names; lightweight, because each TAB needs them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from lumiimg.core.files import read_beginning
from lumiimg.core.toml import TomlError, parse_toml

_PACKAGE = Path(__file__).resolve().parents[1]
_KIND = re.compile(r"""^kind\s*=\s*["'](base|layer)["']""", re.MULTILINE)
_MEMBER = re.compile(r"""^\[\[variant\]\]\s*name\s*=\s*["']([^"']+)["']""", re.MULTILINE)
_MAX_FILE_BYTES = 1 << 20


class UnparsedLayer(NamedTuple):
    """A base or a layer from a quick look at its layer.toml; nothing is validated."""

    kind: str | None
    """`base` or `layer`; None if that is not found."""
    folder: Path
    """Its folder; for a member of a family, that of the family."""
    text: str


def user_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder of a user's layers, recipes and settings (XDG Base Directory Specification)."""
    base = environment.get("XDG_CONFIG_HOME") or Path(environment.get("HOME", "/")) / ".config"
    return Path(base) / "lumiimg"


def shipped_layers() -> Path:
    """Return the folder of the layers included in lumiimg; it also contains the sources of the probes."""
    return _shipped("layers")


def layer_folders(environment: Mapping[str, str], extra_layers: Sequence[Path] = ()) -> tuple[Path, ...]:
    """Return the folders of layer folders, nearest first."""
    return (*extra_layers, user_folder(environment) / "layers", shipped_layers())


def recipe_folders(environment: Mapping[str, str]) -> tuple[Path, Path]:
    """Return the folders of recipes, nearest first."""
    return user_folder(environment) / "recipes", _shipped("recipes")


def site_folders(environment: Mapping[str, str]) -> tuple[Path, Path]:
    """Return the folders of sites, nearest first."""
    return user_folder(environment) / "sites", _PACKAGE / "catalog" / "sites"


def file_names(folders: Sequence[Path]) -> list[str]:
    """Return the names of all recipes or sites in some folders."""
    return sorted({file.stem for folder in folders for file in folder.glob("*.toml")})


def unparsed_layers(folders: Sequence[Path]) -> dict[str, UnparsedLayer]:
    """Return all bases and layers by their names, for a family of bases its members; the nearest folder wins."""
    found: dict[str, UnparsedLayer] = {}
    for folder in folders:
        for name, one in _unparsed_layers_in(folder):
            found.setdefault(name, one)
    return found


def _unparsed_layers_in(folder: Path) -> Iterator[tuple[str, UnparsedLayer]]:
    for file in sorted(folder.glob("*/layer.toml")):
        try:
            text = read_beginning(file, _MAX_FILE_BYTES).decode("utf-8", "replace")
        except OSError:
            text = ""  # reading it by its name reports the error
        kind = _KIND.search(text)
        members = _MEMBER.findall(text)
        if len(members) != text.count("variant"):  # there are other ways to write a family
            members = _members(text)
        found = UnparsedLayer(kind[1] if kind else None, file.parent, text)
        yield from ((name, found) for name in members or [file.parent.name])


def _members(text: str) -> list[str]:
    try:
        variants = parse_toml(text).get("variant")
    except TomlError:
        return []
    entries = variants if isinstance(variants, list) else []
    return [name for entry in entries if isinstance(entry, dict) and isinstance(name := entry.get("name"), str)]


def _shipped(name: str) -> Path:
    # In the wheel the data is inside the package; in a checkout, beside it.
    inside = _PACKAGE / name
    return inside if inside.is_dir() else _PACKAGE.parent / name
