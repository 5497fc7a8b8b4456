"""What depends on the code of a component: a job with that software, or only what calls it."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from lumiimg.core.toml import package_toml


class ComponentRole(NamedTuple):
    """What a component is to a job."""

    needed: bool
    """Whether each job with that software calls its code."""
    without: str
    """What happens on a GPU that takes none of it."""
    layer: str | None = None
    """What the catalogue calls the software."""
    carries: bool = False
    """Whether it has GPU code wherever it works."""
    harmless: bool = False
    """Whether nothing ends without its code: it is slower."""


_OTHER = ComponentRole(needed=False, without='what calls its kernels ends with "invalid device function"')


def role_of(component: str) -> ComponentRole:
    """Return the role of a component; of one that is not in the table, what holds for any."""
    entry = _table().get(component)
    return ComponentRole(**{"needed": False, **entry}) if entry else _OTHER


def is_needed_layer(name: str) -> bool:
    """Return whether the software that the catalogue calls so has kernels that each job with it calls."""
    return any(entry.get("needed") and entry.get("layer") == name for entry in _table().values())


@cache
def _table() -> dict[str, dict[str, Any]]:
    # in a table of their own: a file of an image may be called as a key of ours is, such as `date`
    roles: dict[str, dict[str, Any]] = package_toml(__package__, "roles.toml")["roles"]
    return roles
