"""Where layers, recipes and sites lie, and how they are called: light, as each TAB asks for it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from lumiimg.files import read_beginning

_PACKAGE = Path(__file__).resolve().parents[1]
_KIND = re.compile(r"""^kind\s*=\s*["'](base|layer)["']""", re.MULTILINE)
_MEMBER = re.compile(r"""^\[\[variant\]\]\s*name\s*=\s*["']([^"']+)["']""", re.MULTILINE)
_MOST_BYTES = 1 << 20


def user_folder(environment: Mapping[str, str]) -> Path:
    """Return where a user keeps layers, recipes and settings (XDG Base Directory Specification)."""
    base = environment.get("XDG_CONFIG_HOME") or Path(environment.get("HOME", "/")) / ".config"
    return Path(base) / "lumiimg"


def shipped_layers() -> Path:
    """Return the folder of the layers that come with lumiimg; the sources of the probes lie there."""
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
    """Return the names of all recipes, or sites, of some folders."""
    return sorted({file.stem for folder in folders for file in folder.glob("*.toml")})


def names_at_a_glance(folders: Sequence[Path]) -> dict[str, str]:
    """Return what is `base` or `layer` by its name, of a family its members, as far as a glance at the text shows.

    For completion only: nothing is validated, and a folder that cannot be read is left out.
    """
    return {name: kind for folder in reversed(folders) for name, kind in _glance(folder)}


def _glance(folder: Path) -> Iterator[tuple[str, str]]:
    for file in folder.glob("*/layer.toml"):
        try:
            text = read_beginning(file, _MOST_BYTES).decode("utf-8", "replace")
        except OSError:
            continue
        if kind := _KIND.search(text):
            names = _MEMBER.findall(text)
            if len(names) != text.count("variant"):  # a family can be written in another way, too
                from lumiimg.catalog.layers import variant_names  # what TAB need not wait for

                names = variant_names(file)
            yield from ((name, kind[1]) for name in names or [file.parent.name])


def _shipped(name: str) -> Path:
    # In the wheel the data lie inside the package; in a checkout, beside it.
    inside = _PACKAGE / name
    return inside if inside.is_dir() else _PACKAGE.parent / name
