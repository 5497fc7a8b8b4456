"""Words of a Dockerfile. bash replaces variables when the layer is built; what is replaced here is read, never run."""

from __future__ import annotations

import re
from collections.abc import Mapping

_WORD = re.compile(r"(?:\\(?:.|$)|'[^']*'|\"(?:\\.|[^\"\\])*+\"|[^\s'\"\\])+", re.DOTALL)
_NAME = r"[A-Za-z_]\w*"
_PLAIN = r"[^$`\"'\\{}]"
_INNER = rf"(?:{_PLAIN}|\${_NAME}|\$\{{{_NAME}(?::?[-+]{_PLAIN}*+)?\}})*+"
_OPEN = rf"(?:{_PLAIN}|\${_NAME}|\$\{{{_NAME}(?::?[-+]{_INNER})?\}})*+"
"""What Docker and bash, inside double quotes, read alike; at most one `${A:-word}` inside another."""
_VALUE = re.compile(rf"({_OPEN})|\"({_OPEN})\"|'({_PLAIN}*+)'", re.ASCII)
_NAMED = re.compile(rf"\$(?:({_NAME})|\{{({_NAME})(\}}?))", re.ASCII)


def split_words(text: str) -> list[str] | None:
    """Split at blanks, but not inside quotes; quotes and escapes stay. None where a quote has no end."""
    return None if _WORD.sub("", text).strip() else _WORD.findall(text)


def value_of(text: str) -> str | None:
    """Return a value without its quotes, as bash takes it between double ones; None if it may not."""
    found = _VALUE.fullmatch(text) if text.isprintable() else None
    return found and next((value for value in found.groups() if value is not None), "")


def variables(text: str) -> set[str]:
    """Return the names that a text has as $NAME or ${NAME…}."""
    return {match[1] or match[2] for match in _NAMED.finditer(text)}


def with_values(text: str, values: Mapping[str, str]) -> str:
    """Replace $A and ${A} by what is known."""
    return _NAMED.sub(lambda m: m[0] if m[2] and not m[3] else values.get(m[1] or m[2], m[0]), text)
