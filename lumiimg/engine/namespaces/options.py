"""The request for a container: the options and variables of Apptainer that lumiimg or its user gives.

Also the shell text that sets these variables for its program.

Source: apptainer-exec(1) of Apptainer 1.4.5, and its `internal/pkg/util/env/clean.go`.
"""

from __future__ import annotations

import csv
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from lumiimg.core.errors import BadInputError
from lumiimg.engine.binds import BindSpec, binds_of
from lumiimg.image import DEFAULT_PATH

_FLAGS = frozenset({"--fakeroot", "--writable", "--no-home", "--cleanenv", "--pid"})
"""Every container has what `--pid` requests."""
_VALUES = frozenset({"--no-mount", "--pwd", "--mount"})
PREFIXES = ("APPTAINER", "SINGULARITY")
_ALWAYS = frozenset(
    name for word in ("http", "https", "no", "all", "ftp") for name in (f"{word}_proxy", f"{word.upper()}_PROXY")
) | {"TERM"}
"""Variables that `--cleanenv` preserves."""
_NEVER = {"HOME": False, "PATH": False, "LD_LIBRARY_PATH": True}
"""User variables that are not passed into a container, and whether APPTAINERENV_ can set them."""
_OF_PATH = {"PREPEND_PATH", "APPEND_PATH", "PATH"}

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_OF_ENGINES = ("APPTAINER_NAME", "APPTAINER_CONTAINER", "SINGULARITY_NAME", "SINGULARITY_CONTAINER")
_PASSED_ON = ("PWD", "HOME", "UID", "GID", "OPTIND", *_OF_ENGINES)
"""Earlier variables that the image's scripts see. Source: action_script.sh of Apptainer 1.4.5, clear_env."""
_LIBRARIES = "LD_LIBRARY_PATH"
_OF_BASH = "PATH _ SHLVL TERM SHELL HOSTNAME HOSTTYPE MACHTYPE OSTYPE COLUMNS LINES"
"""Variables that a shell may set itself, without exporting them: those of the user would then count as set."""
_ENDING = "INT TERM HUP QUIT"
DESCRIPTOR = 9
"""Descriptor from which the shell reads the text; some shells support only one digit."""
_TEXT = (files("lumiimg.engine.namespaces") / "environment.sh").read_text(encoding="utf-8")
_FOLDER = "/.singularity.d/env"


@dataclass(frozen=True, slots=True)
class ContainerStart:
    """The parameters of a container: image, binds, environment, command."""

    image: Path
    argv: tuple[str, ...]
    as_root: bool
    """Whether the program runs as root with all ids of the user; else as the user."""
    writable: bool
    """Whether the program can write into the image, which is a folder; else the image cannot be changed."""
    home: bool
    cwd: str | None
    """The folder in which the program starts; None for the user's current one."""
    binds: tuple[BindSpec, ...]
    environment: Mapping[str, str]
    """The user's variables that the program gets if the image does not set them."""
    injected: Mapping[str, str]
    """Variables that are set after the image's scripts; like Apptainer's, the shell expands them in double quotes."""


def read_words(words: Sequence[str], environment: Mapping[str, str]) -> ContainerStart:
    """Parse `[OPTIONS] IMAGE PROGRAM [ARGUMENTS]`. Raises BadInputError."""
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
        raise BadInputError("an image and a program are needed")
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
    """Return the variables set by APPTAINERENV_ and SINGULARITYENV_; for a variable in both, Apptainer's counts."""
    found: dict[str, str] = {}
    for prefix in reversed(PREFIXES):
        for name, value in environment.items():
            key = name.removeprefix(f"{prefix}ENV_")
            if key in (name, "") or (not _NEVER.get(key, True) and key not in _OF_PATH):
                continue
            found[f"SING_USER_DEFINED_{key}" if key in _OF_PATH else key] = value
    return found


def _mounted(text: str) -> BindSpec:
    """Parse one `--mount type=bind,source=…,destination=…[,ro]`, fields of CSV. Raises BadInputError."""
    fields = dict(field.partition("=")[::2] for field in next(csv.reader([text], strict=True), []))
    source, target = fields.get("source"), fields.get("destination")
    if fields.get("type") != "bind" or not source or not target or not target.startswith("/"):
        raise BadInputError("not a bind with source and destination", where=f"--mount {text}")
    return BindSpec(os.path.abspath(source), target, "ro" in fields)  # noqa: PTH100 - symlinks are followed by the kernel


# -- the shell text


def script(environment: Mapping[str, str], injected: Mapping[str, str]) -> bytes:
    """Return the script for a shell of the image, whose arguments are the program and its arguments.

    The shell remains as the container's first process, ignores signals, and reaps all processes that end in it.
    """
    names = ""
    with suppress(OSError):  # like engines
        scripts = sorted(os.fsencode(f"{_FOLDER}/{name}") for name in os.listdir(_FOLDER) if name.endswith(".sh"))  # noqa: PTH208
        names = " ".join(shlex.quote(os.fsdecode(path)) for path in scripts)
    injected_lines = "".join(
        f'    export {name}="{_escaped(value)}"\n' for name, value in injected.items() if _NAME.match(name)
    )
    if injected.get(_LIBRARIES):
        injected_lines += f'    {_LIBRARIES}="${_LIBRARIES}:/.singularity.d/libs"\n'
    assignments = "".join(
        f'    if [ -z "${{{name}+set}}" ]; then export {name}={shlex.quote(value)}; '
        f'elif [ -z "${name}" ]; then unset {name}; fi\n'
        for name, value in environment.items()
        if _NAME.match(name) and name not in _PASSED_ON
    )
    return (
        f"exec {DESCRIPTOR}<&-\ntrap '' {_ENDING}\n(\ntrap - {_ENDING}\nunset {_OF_BASH}\n{_TEXT}\n"
        f"lumiimg_sorted() {{ printf '%s\\n' {names}; }}\n"
        f"lumiimg_injected() {{\n    :\n{injected_lines}}}\n"
        f"lumiimg_restored() {{\n    :\n{assignments}}}\n"
        "lumiimg_source\n"
        "lumiimg_restored\n"
        'lumiimg_require "$@"\n'
        "unset -f lumiimg_path lumiimg_runtime lumiimg_source lumiimg_sorted lumiimg_injected lumiimg_restored "
        "lumiimg_require\n"
        'export PS1="${PS1:-Apptainer> }"\n'
        'export APPTAINER_ENVIRONMENT="${APPTAINER_ENVIRONMENT:-/.singularity.d/env/91-environment.sh}"\n'
        'export SINGULARITY_ENVIRONMENT="$APPTAINER_ENVIRONMENT"\n'
        'exec "$@"\n'
        ")\nexit $?\n"
    ).encode("utf-8", "surrogateescape")


def restored_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with which the shell starts."""
    return {name: value for name, value in environment.items() if name in _PASSED_ON}


def _escaped(value: str) -> str:
    """Return a value for double quotes; like engines, escape only quotes and leave everything else to the shell."""
    escaped = value.replace('"', '\\"')
    trailing = len(escaped) - len(escaped.rstrip("\\"))
    return escaped + "\\" * (trailing % 2)  # Apptainer's script breaks on a trailing backslash
