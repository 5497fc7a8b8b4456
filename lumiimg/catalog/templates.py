"""Texts of a layer in which `{NAME}` stands for the value of an argument, or of a fact."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from lumiimg.catalog.toml_table import Table

_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")


def expand(template: str, values: Mapping[str, str]) -> str:
    """Replace `{NAME}` by its value."""
    return _PLACEHOLDER.sub(lambda match: values[match[1]], template)


def placeholders(template: str) -> list[str]:
    """Return the names that stand in a template."""
    return _PLACEHOLDER.findall(template)


def check_placeholders(
    table: Table, key: str, template: str, names: Collection[str], what: str = "an argument of this layer"
) -> None:
    """Remember each name that a template may not hold as a fault."""
    for name in placeholders(template):
        if name not in names:
            known = ", ".join(f"{{{one}}}" for one in names) or "none, it has no arguments"
            table.fault(key, f"holds {{{name}}}, which is not {what}; known: {known}")
