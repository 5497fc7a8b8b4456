"""What two locks differ in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lumiimg.errors import BadInputError


@dataclass(frozen=True, slots=True)
class LockChange:
    """One thing that one lock has otherwise than the other; None where it has it not."""

    what: str
    """A name for people."""
    old: str | None
    """In the older lock; null where it has it not."""
    new: str | None
    """In the newer lock; null where it has it not."""


def entries(document: Mapping[str, Any], path: Path) -> dict[str, str]:
    """Return what a lock settles, each thing by a name for people. Raises BadInputError for what is not a lock."""
    try:
        return dict(_entries(document))
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise BadInputError(f"is not a lock: {error} is missing or wrong", where=str(path)) from error


def changes(old: Mapping[str, str], new: Mapping[str, str]) -> tuple[LockChange, ...]:
    """Return the differences, in the order of the newer lock; what it has no more comes last."""
    names = [*new, *(name for name in old if name not in new)]
    return tuple(LockChange(name, old.get(name), new.get(name)) for name in names if old.get(name) != new.get(name))


def _entries(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    base = document["base"]
    yield "site", document["site"] or "none"
    yield "fabric", document["fabric"]
    yield "base", f"{base['name']} ({base['agent']} {base['from']})"
    if digest := base.get("digest") or base.get("sha256"):
        yield "digest of the base", digest
    for name, version in base.get("has", {}).items():
        yield f"{name} of the base", version
    for layer in (base, *document.get("layer", ())):
        name = layer["name"]
        yield f"layer {name}", layer["release"] or layer["layer"][:19]
        yield f"scripts of {name}", layer["layer"][:19]
        for argument, value in layer["arguments"].items():
            yield f"argument {name}.{argument}", value
        for source in layer["source"]:
            yield f"source {source['name']} of {name}", f"{source['url']} sha256 {source['sha256'][:12]}"
    for package in document.get("python", {}).get("packages", ()):
        digest = package["wheels"][0]["hashes"]["sha256"][:12]
        layer = package["tool"]["lumiimg"]["layer"]
        yield f"python {package['name']} of {layer}", f"{package['version']} sha256 {digest}"
