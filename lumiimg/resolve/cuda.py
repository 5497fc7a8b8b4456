"""Python packages that are for NVIDIA's GPUs, by their names: beside ROCm they mean that a wrong wheel came in."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from lumiimg.core.toml import package_toml


@cache
def _facts() -> dict[str, Any]:
    return package_toml("lumiimg.resolve", "cuda.toml")


@cache
def _names(*, of_index: bool) -> re.Pattern[str]:
    return re.compile("|".join([*_facts()["names"], *(_facts()["of_index"] if of_index else ())]))


def is_of_cuda(name: str, *, of_index: bool = False) -> bool:
    """Whether a project is of CUDA's, by its name as PEP 503 writes it; `of_index`: that of the general index."""
    return _names(of_index=of_index).fullmatch(name) is not None


def is_in_the_way(name: str, version: str) -> bool:
    """Whether an installed distribution is of CUDA's, by its name or version, and not harmless."""
    return name not in _facts()["harmless"] and (is_of_cuda(name) or bool(re.search(_facts()["local"], version)))


def instead_of(name: str) -> str | None:
    """Return the project that does the same without CUDA, where one is known."""
    found: dict[str, str] = _facts()["instead"]
    return found.get(name)
