"""The shell text by which a program in a container gets its variables."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from contextlib import suppress
from importlib.resources import files

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_OF_ENGINES = ("APPTAINER_NAME", "APPTAINER_CONTAINER", "SINGULARITY_NAME", "SINGULARITY_CONTAINER")
_KEPT = ("PWD", "HOME", "UID", "GID", "OPTIND", *_OF_ENGINES)
"""What a script of the image sees of variables before it. Source: action_script.sh of Apptainer 1.4.5, clear_env."""
_LIBRARIES = "LD_LIBRARY_PATH"
_OF_BASH = "PATH _ SHLVL TERM SHELL HOSTNAME HOSTTYPE MACHTYPE OSTYPE COLUMNS LINES"
"""Variables that a shell may set by itself, without exporting them: the user's would count as set."""
_ENDING = "INT TERM HUP QUIT"
DESCRIPTOR = 9
"""Where the shell reads the text; more than one digit is not known to every shell."""
_TEXT = (files("lumiimg.engine.namespaces") / "environment.sh").read_text(encoding="utf-8")
_FOLDER = "/.singularity.d/env"


def script(environment: Mapping[str, str], injected: Mapping[str, str]) -> bytes:
    """Return the text that a shell of the image reads, with the program and its arguments as its own arguments.

    The shell stays as the first process of the container, hears no signal, and waits for all that ends in it.
    """
    names = ""
    with suppress(OSError):  # as engines take it
        scripts = sorted(os.fsencode(f"{_FOLDER}/{name}") for name in os.listdir(_FOLDER) if name.endswith(".sh"))  # noqa: PTH208
        names = " ".join(shlex.quote(os.fsdecode(path)) for path in scripts)
    injected_lines = "".join(
        f'    export {name}="{_escaped(value)}"\n' for name, value in injected.items() if _NAME.match(name)
    )
    if injected.get(_LIBRARIES):
        injected_lines += f'    {_LIBRARIES}="${_LIBRARIES}:/.singularity.d/libs"\n'
    kept = "".join(
        f'    if [ -z "${{{name}+set}}" ]; then export {name}={shlex.quote(value)}; '
        f'elif [ -z "${name}" ]; then unset {name}; fi\n'
        for name, value in environment.items()
        if _NAME.match(name) and name not in _KEPT
    )
    return (
        f"exec {DESCRIPTOR}<&-\ntrap '' {_ENDING}\n(\ntrap - {_ENDING}\nunset {_OF_BASH}\n{_TEXT}\n"
        f"lumiimg_sorted() {{ printf '%s\\n' {names}; }}\n"
        f"lumiimg_injected() {{\n    :\n{injected_lines}}}\n"
        f"lumiimg_restored() {{\n    :\n{kept}}}\n"
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


def kept(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what the shell starts with."""
    return {name: value for name, value in environment.items() if name in _KEPT}


def _escaped(value: str) -> str:
    """Return a value for double quotes, in which engines leave everything but these to the shell."""
    escaped = value.replace('"', '\\"')
    trailing = len(escaped) - len(escaped.rstrip("\\"))
    return escaped + "\\" * (trailing % 2)  # Apptainer's script breaks on it
