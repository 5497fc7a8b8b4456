"""Names that mean something to shells and engines, from names.toml."""

from __future__ import annotations

from lumiimg.core.toml import package_toml

_TABLES = package_toml(__package__, "names.toml")

GIVEN = frozenset[str](_TABLES["given"]["names"])
"""Variables with a value before the first script."""
MOVING = frozenset[str](_TABLES["moving"]["names"])
"""Variables that no script decides alone."""
GUARDED = frozenset[str](_TABLES["guarded"]["names"])
"""Variables that are not set as others are."""
ABLE = frozenset[str](_TABLES["commands"]["names"])
"""Commands that can change any variable, or what is run next."""
_READ = frozenset[str](_TABLES["read"]["names"])
_FAMILIES = tuple(f"{family}_" for family in _TABLES["read"]["families"])


def is_read(name: str) -> bool:
    """Whether something in this package, or a library that it speaks of, goes by a variable."""
    return name in _READ or name.startswith(_FAMILIES)
