"""Suggestions for mistyped options, file names and addresses."""

from __future__ import annotations

import difflib
import os
import re
import shlex
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path

from lumiimg.core.errors import LumiimgError
from lumiimg.core.files import free_name
from lumiimg.core.text import as_operand, shell_quote
from lumiimg.engine.engine import engine_word

_OF_ALL_TOOLS = ("--verbose", "--quiet")
_OTHERS = 3
"""Maximum number of commands that are named."""
_RELEASE = re.compile(r"\d+(\.\d+)+\S*")
_IN_REGISTRY = re.compile(r"[a-z0-9][a-z0-9._-]*(/[a-z0-9._-]+)+(:[\w.-]+|@sha256:[0-9a-f]{64})?", re.ASCII)
_ADDRESS = re.compile(r"(docker|oras|library|shub|https?):/(?!/)(.+)")
"""An address that became a path, with one slash instead of two."""
_TRANSPORT = re.compile(r"(?:docker-daemon|docker-archive|oci-archive|oci):.+")
"""An address prefixed with a transport, in the syntax of engines and skopeo."""
_TAKE_ADDRESSES = "only check, explain, show, adapt and --base accept docker:// and docker-daemon:"
_IMAGES = (".sif", ".img", ".sqsh", ".sqfs", ".squashfs", ".tar")
_NUMBER = re.compile(r"\d+")
_MAX_NAMES = 4096
"""Maximum number of names read from a folder."""


def did_you_mean(word: str, names: Iterable[str], others: Sequence[str] = ()) -> str:
    """Return a question with the nearest spelling, or with the only option that a single letter can mean.

    If other commands have the option, only a spelling that differs by about a letter is suggested; else they are named.
    """
    names = list(names)
    if len(word) == 2 and word[0] == "-":
        close = [name for name in names if name.startswith(f"--{word[1]}")]
        close = [name for name in close if name in _OF_ALL_TOOLS] or (close if len(close) == 1 else [])
    else:
        close = difflib.get_close_matches(word[:60], names, n=1, cutoff=0.9 if others else 0.7)
    if others and not close:
        return f", an option of {', '.join(others[:_OTHERS])}{' and others' if len(others) > _OTHERS else ''}"
    return f", did you mean {close[0]}?" if close else ""


def for_extra_words(words: Sequence[str], before: Sequence[str], options: Collection[str]) -> str | None:
    """Return what to type instead of words that a command does not accept.

    `before` is the whole command line, `options` are the command's.
    """
    first = words[0]
    if first.startswith("-"):
        return None
    left = before[before.index(first) - 1] if first in before[1:] else ""
    if _RELEASE.fullmatch(first) and not left.startswith("-") and "--add" in options:
        return f"a version follows ==: --add {shlex.quote(f'{left}=={first}')}"
    if first.endswith(".sif") and "--image" in options:
        images = [one for one in before if one.endswith(".sif")]
        return f"images follow --image: --image {shlex.join(images[:3])}{' …' if len(images) > 3 else ''}"
    if "--add" in options:
        return f"software is named with --add: --add {shlex.quote(first)}"
    return None


def add_suggestion(error: LumiimgError) -> None:
    """Add a hint to an error about a missing file, based on the other files in its folder."""
    if error.hint is None and error.where and not os.path.lexists(error.where):
        from lumiimg.image import NoImageError  # imported only for this error

        if isinstance(error, NoImageError):
            error.hint = suggest_image(error.where)
        elif isinstance(error.__cause__, FileNotFoundError) and str(error.__cause__.filename) == error.where:
            error.hint = suggest_file(error.where)


def suggest_image(name: str) -> str:
    """Return a hint for an image name that does not exist as a file or folder."""
    path = Path(name)
    address = _ADDRESS.sub(r"\1://\2", name)
    if address != name or _TRANSPORT.fullmatch(name):
        return f"{engine_word()} pull {free_name('image.sif')} {shlex.quote(address)}; {_TAKE_ADDRESSES}"
    siblings = _names_in_folder(path, _IMAGES)
    there = _first(path, siblings) or "none; `lumiimg build --recipe demo -o image.sif` makes a small one"
    if re.search(r"[*?\[]", name):
        return f"no file has such a name; the images here: {there}"
    near = [name for name in siblings if name in {path.name + end for end in _IMAGES}]
    if near := near or _near(path, siblings):
        return f"did you mean {_first(path, near)}?"
    if _IN_REGISTRY.fullmatch(name) and not path.parent.exists():
        return f"if it is an image in a registry: {engine_word()} pull {free_name('image.sif')} docker://{name}"
    return f"the images there: {there}"


def suggest_file(name: str) -> str | None:
    """Return a hint for the name of a missing file: a similar name in its folder, else files of its kind.

    A name that differs only in a number belongs to another job.
    """
    path = Path(name)
    siblings = _names_in_folder(path, (path.suffix,))
    near = _near(path, siblings)
    if near and _NUMBER.sub("", near[0]) != _NUMBER.sub("", path.name):
        return f"did you mean {_first(path, near)}?"
    return f"files there with {path.suffix}: {_first(path, siblings)}" if path.suffix and siblings else None


def _names_in_folder(path: Path, ends: tuple[str, ...]) -> list[str]:
    """Return the names in a file's folder that have one of these suffixes."""
    with suppress(OSError), os.scandir(path.parent) as entries:
        return sorted(entry.name for entry in islice(entries, _MAX_NAMES) if entry.name.endswith(ends))
    return []


def _near(path: Path, names: Sequence[str]) -> list[str]:
    return difflib.get_close_matches(path.name[:80], names, n=1, cutoff=0.7)


def _first(path: Path, names: Sequence[str]) -> str:
    """Return the first names as paths in a file's folder, quoted for a shell."""
    shown = [shell_quote(as_operand(str(path.with_name(name)))) for name in names[:3]]
    return ", ".join([*shown, *(["…"] if len(names) > len(shown) else [])])
