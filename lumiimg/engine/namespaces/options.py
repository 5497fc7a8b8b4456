"""What a container is asked to be: the options and variables of Apptainer that lumiimg, or its user, gives.

Source: apptainer-exec(1) of Apptainer 1.4.5, and its `internal/pkg/util/env/clean.go`.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lumiimg.core.errors import BadInputError
from lumiimg.engine.binds import BindSpec, binds_of
from lumiimg.image import DEFAULT_PATH

_FLAGS = frozenset({"--fakeroot", "--writable", "--no-home", "--cleanenv", "--pid"})
"""Of `--pid` each container has what it asks for."""
_VALUES = frozenset({"--no-mount", "--pwd", "--mount"})
PREFIXES = ("APPTAINER", "SINGULARITY")
_ALWAYS = frozenset(
    name for word in ("http", "https", "no", "all", "ftp") for name in (f"{word}_proxy", f"{word.upper()}_PROXY")
) | {"TERM"}
"""Variables that `--cleanenv` leaves."""
_NEVER = {"HOME": False, "PATH": False, "LD_LIBRARY_PATH": True}
"""Variables of the user that do not get in, and whether APPTAINERENV_ sets them."""
_OF_PATH = {"PREPEND_PATH", "APPEND_PATH", "PATH"}


@dataclass(frozen=True, slots=True)
class ContainerStart:
    """One container that is to be started."""

    image: Path
    argv: tuple[str, ...]
    as_root: bool
    """With all ids of the user; else as the user."""
    writable: bool
    """Whether the program writes into the image, a folder; else nothing of it can be changed."""
    home: bool
    cwd: str | None
    """Where the program starts; None for where the user is."""
    binds: tuple[BindSpec, ...]
    environment: Mapping[str, str]
    """What the program gets of the user's variables, where the image does not set them."""
    injected: Mapping[str, str]
    """What is set after the image's scripts; the shell evaluates it within double quotes, as Apptainer's does."""


def read_words(words: Sequence[str], environment: Mapping[str, str]) -> ContainerStart:
    """Read `[OPTIONS] IMAGE PROGRAM [ARGUMENTS]`. Raises BadInputError."""
    flags: set[str] = set()
    values: dict[str, list[str]] = {name: [] for name in _VALUES}
    rest = list(words)
    while rest and rest[0].startswith("--"):
        word = rest.pop(0)
        if word in _FLAGS:
            flags.add(word)
        elif word in _VALUES and rest:
            values[word].append(rest.pop(0))
        else:
            raise BadInputError(f"not an option of the kernel's own engine: {word}")
    if len(rest) < 2:
        raise BadInputError("an image and a program are wanted")
    clean = "--cleanenv" in flags
    own = [] if "bind-paths" in values["--no-mount"] else [bind for _, each in binds_of(environment) for bind in each]
    injected = _injected(environment)
    passed = {
        name: value
        for name, value in environment.items()
        if name not in injected and (name in _ALWAYS or not (clean or name in _NEVER or name.startswith(PREFIXES)))
    }
    return ContainerStart(
        image=Path(os.path.realpath(rest[0])),
        argv=tuple(rest[1:]),
        as_root="--fakeroot" in flags,
        writable="--writable" in flags,
        home="--no-home" not in flags,
        cwd=values["--pwd"][-1] if values["--pwd"] else None,
        binds=(*own, *(_mounted(text) for text in values["--mount"])),
        environment=({"LANG": "C"} if clean else {}) | passed | {"PATH": DEFAULT_PATH},
        injected=injected,
    )


def _injected(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that APPTAINERENV_ names; of two names for one, Apptainer's counts."""
    found: dict[str, str] = {}
    for prefix in reversed(PREFIXES):
        for name, value in environment.items():
            key = name.removeprefix(f"{prefix}ENV_")
            if key in (name, "") or (not _NEVER.get(key, True) and key not in _OF_PATH):
                continue
            found[f"SING_USER_DEFINED_{key}" if key in _OF_PATH else key] = value
    return found


def _mounted(text: str) -> BindSpec:
    """Read one `--mount type=bind,source=…,destination=…[,ro]`, fields of CSV. Raises BadInputError."""
    fields = dict(field.partition("=")[::2] for field in next(csv.reader([text], strict=True), []))
    source, target = fields.get("source"), fields.get("destination")
    if fields.get("type") != "bind" or not source or not target or not target.startswith("/"):
        raise BadInputError("not a bind with source and destination", where=f"--mount {text}")
    return BindSpec(os.path.abspath(source), target, "ro" in fields)  # noqa: PTH100 - symlinks are followed by the kernel
