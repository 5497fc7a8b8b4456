"""Bind specifications in the syntax of container engines."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from lumiimg.core.errors import BadInputError

_FLAGS, _VALUES = frozenset({"ro", "rw"}), ("id=", "image-src=")
_UNESCAPED = {",": re.compile(r"(?<!\\),"), ":": re.compile(r"(?<!\\):")}


@dataclass(frozen=True, slots=True)
class BindSpec:
    """One `--bind`: a path of the host, and where it is mounted."""

    source: str
    target: str
    read_only: bool = False

    def __str__(self) -> str:
        escaped = [re.sub(r"([,:])", r"\\\1", path) for path in (self.source, self.target)]
        if self.read_only:
            return ":".join([*escaped, "ro"])
        return escaped[0] if self.source == self.target else ":".join(escaped)


def parse_binds(text: str) -> tuple[BindSpec, ...]:
    r"""Parse `SRC[:DST[:OPTIONS]]`, separated by commas, like engines (`\:` and `\,` are not separators).

    Rules: apptainer `pkg/runtime/engine/apptainer/config/bind.go` ParseBindPath, singularity `pkg/util/bind/bind.go`.

    Raises BadInputError for text that engines refuse, and for `image-src=`, which binds a part of another image.
    """
    parts: list[str] = []
    for part in _UNESCAPED[","].split(text):
        is_option = part in _FLAGS or part.startswith(_VALUES)
        if is_option and parts and _UNESCAPED[":"].search(parts[-1]):
            parts[-1] += f",{part}"  # an option of the preceding bind, if that has a target; else it is a source
        elif part:
            parts.append(part)
    return tuple(_parse_bind(part, text) for part in parts)


def _parse_bind(part: str, text: str) -> BindSpec:
    source, *rest = (re.sub(r"\\([,:])", r"\1", field) for field in _UNESCAPED[":"].split(part))
    if len(rest) > 2:
        raise BadInputError("more than SRC:DST:OPTIONS", where=f"--bind {text}")
    if len(rest) == 2 and "image-src=" in rest[1]:
        raise BadInputError(
            "binds from another image are not supported", where=f"--bind {text}", hint="name that image"
        )
    options = rest[1].split(",") if len(rest) == 2 else []
    if wrong := [one for one in options if one not in _FLAGS and not one.startswith(_VALUES)]:
        raise BadInputError(f"{wrong[0]!r} is not an option of a bind", where=f"--bind {text}", hint="ro or rw")
    if not source:
        raise BadInputError("no source", where=f"--bind {text}", hint="SRC[:DST]")
    source = os.path.abspath(source)  # noqa: PTH100 - the root in which it is looked up resolves symlinks
    target = rest[0] if rest else source
    if not target.startswith("/"):
        raise BadInputError("the target is not an absolute path", where=f"--bind {text}")
    return BindSpec(source, target, "ro" in options)


def binds_of(environment: Mapping[str, str]) -> Iterator[tuple[str, tuple[BindSpec, ...]]]:
    """Yield the variables from which the engine takes binds, each with its binds."""
    for name in ("APPTAINER_BIND", "APPTAINER_BINDPATH", "SINGULARITY_BIND", "SINGULARITY_BINDPATH"):
        try:
            yield name, parse_binds(environment.get(name, ""))
        except BadInputError:
            continue  # the engine itself refuses it with a message
