"""Recipes: a named stack, `recipes/<name>.toml`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lumiimg.catalog.toml_table import Table, read_toml

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

FABRICS = ("host", "bundled", "none")
"""Where libfabric and libcxi come from, as for `--fabric`."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """A base with layers, and the arguments that differ from the layers' own."""

    name: str
    summary: str
    base: str
    add: tuple[str, ...]
    arguments: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """Value by (layer, argument)."""
    site: str | None = None
    """The machine that it is for."""
    fabric: str | None = None
    """One of FABRICS; None: as the base and the machine allow."""


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
            for name, value in values.string_values().items()
        },
    )
    table.finish()
    return recipe
