"""What each generation of RCCL does with a net plugin (rule 3: accepted API, file name)."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from packaging.version import InvalidVersion, Version


@dataclass(frozen=True, slots=True)
class Generation:
    """A range of RCCL versions that treat plugins alike."""

    since: Version
    rocm: str
    accepts: tuple[int, ...]
    """Versions of the net API, in the order in which they are tried."""
    files: tuple[str, ...]
    """File names that are looked for when NCCL_NET_PLUGIN is not set."""
    variable_is_suffix_only: bool
    """Whether NCCL_NET_PLUGIN is only ever a part of the name."""
    unique_id_loads_plugin: bool
    """Whether ncclGetUniqueId opens the plugin on a machine without a GPU."""
    basis: str


@cache
def _data() -> dict[str, Any]:
    return tomllib.loads(resources.files(__package__).joinpath("rccl.toml").read_text("utf-8"))


def remedy_for_old_api() -> str:
    """Return what to do about a plugin whose API this RCCL does not take."""
    return str(_data()["remedy_for_old_api"])


@cache
def generations() -> tuple[Generation, ...]:
    """Return the table, oldest first."""
    return tuple(
        Generation(
            since=Version(entry["since"]),
            rocm=entry["rocm"],
            accepts=tuple(entry["accepts"]),
            files=tuple(entry["files"]),
            variable_is_suffix_only=entry["variable"] == "suffix",
            unique_id_loads_plugin=entry["unique_id"] == "loads",
            basis=entry["basis"],
        )
        for entry in _data()["generation"]
    )


def generation_of(version: str) -> Generation | None:
    """Return the generation of an RCCL version ("2.13.4"), or None for one that the table does not reach."""
    try:
        wanted = Version(version)
    except InvalidVersion:
        return None
    return next((entry for entry in reversed(generations()) if entry.since <= wanted), None)


def names_by_variable(value: str, files: tuple[str, ...], generation: Generation | None) -> tuple[str, ...]:
    """Return what RCCL gives to dlopen when NCCL_NET_PLUGIN is `value`; `files` are its names without the variable."""
    stems = dict.fromkeys(file.removesuffix(".so") for file in files)
    names: list[str] = []
    for word in value.split(","):
        if generation is None or not generation.variable_is_suffix_only:
            names.append(word)
        names += [f"{stem}-{word}.so" for stem in stems]
    return tuple(dict.fromkeys(names))


def version_of_code(code: int) -> str:
    """Return the dotted form of what ncclGetVersion gives: 21304 is 2.13.4 (10000 a major from 2.9 on, nccl.h)."""
    return f"{code // 10000}.{code // 100 % 100}.{code % 100}"
