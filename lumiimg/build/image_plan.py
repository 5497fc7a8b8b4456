"""The plan that an image carries: what was asked for, with the lock."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lumiimg import __version__
from lumiimg.resolve.lockfile import to_text
from lumiimg.resolve.request import Request, options_of
from lumiimg.resolve.stack import OWN_PACKAGES

if TYPE_CHECKING:
    from lumiimg.fabric.path import Fabric
    from lumiimg.resolve.bootstrap import LockedBootstrap
    from lumiimg.resolve.lock import Lock, LockedSource

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class PlannedLayer:
    """The base first, then each layer."""

    name: str
    """In the catalogue."""
    version: str | None
    """Of the release; null for a layer without releases."""
    arguments: dict[str, str]
    """Values by the argument's name."""
    requirements: tuple[str, ...]
    """Of `own-packages`, what the user asked for, as in PEP 508; empty for any other."""
    sources: tuple[LockedSource, ...]
    """Archives and wheels that it is made of."""


@dataclass(frozen=True, slots=True)
class PlanInImage:
    """What an image was asked to be: base, layers, lock."""

    lumiimg: str
    """Version that built it."""
    site: str | None
    """The machine that it is for; null: none was named."""
    fabric: Fabric
    """Where it gets libfabric with the cxi provider from."""
    base: LockedBootstrap
    """Where the base came from."""
    layers: tuple[PlannedLayer, ...]
    """The stack."""
    lock: str | None
    """The text of lumiimg.lock (TOML); null where not all was settled when it was built."""
    request: tuple[str, ...]
    """The options of `lumiimg build` that it was built with, but those that only its machine has a use for."""


def plan_document(lock: Lock, request: Request) -> bytes:
    """Return what was asked for: the base, every layer with its arguments and sources; and the lock, if all is settled.

    A base that is named by a tag is pinned only by `lumiimg lock`, or `build --lock`.
    """
    is_open = lock.unsettled or lock.bootstrap.is_open
    plan = {
        "format": _FORMAT,
        "lumiimg": __version__,
        "site": lock.site,
        "fabric": lock.fabric.value,
        "base": {
            "agent": lock.bootstrap.agent,
            "from": f"{lock.bootstrap.image or lock.bootstrap.origin}",
            "sha256": lock.bootstrap.sha256 or None,  # of a file
        },
        "layers": [
            {
                "name": layer.name,
                "version": layer.release.version if layer.release else None,
                "arguments": dict(layer.arguments),
                "requirements": lock.own.texts if lock.own and layer.name == OWN_PACKAGES else (),
                "sources": [
                    {"name": source.name, "file": source.file, "sha256": source.sha256, "from": source.location}
                    for source in (*layer.sources, *layer.wheels)
                ],
            }
            for layer in lock.stack
        ],
        "lock": None if is_open else to_text(lock, request),
        "request": shlex.split(options_of(replace(request, mirrors=(), host=None))),
    }
    return json.dumps(plan, indent=1, sort_keys=True).encode()
