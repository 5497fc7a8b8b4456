"""Texts of a layer in which `{NAME}` stands for the value of an argument, or of a fact."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")


def expand(template: str, values: Mapping[str, str]) -> str:
    """Replace `{NAME}` by its value."""
    return _PLACEHOLDER.sub(lambda match: values[match[1]], template) if "{" in template else template


def placeholders(template: str) -> list[str]:
    """Return the names that stand in a template."""
    return _PLACEHOLDER.findall(template)


def unknown_placeholder(template: str, names: Collection[str], what: str = "an argument of this layer") -> str | None:
    """Return what is wrong with a template that holds another name; None where it holds only known ones."""
    found = next((name for name in placeholders(template) if name not in names), None) if "{" in template else None
    if found is None:
        return None
    known = ", ".join(f"{{{one}}}" for one in names) or "none, it has no arguments"
    return f"holds {{{found}}}, which is not {what}; known: {known}"
