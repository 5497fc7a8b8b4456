"""Lists of directories: how the loader splits and expands a search path, and how it tries one.

glibc `elf/dl-load.c`: `fillin_rpath`, `_dl_dst_substitute`, `open_path`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lumiimg.elf.files import FileVerdict, Opened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from lumiimg.elf.system import System

# without braces a token ends where a name ends: $LIBS is no $LIB
_TOKEN = re.compile(r"\$(?:\{(ORIGIN|LIB|PLATFORM)\}|(ORIGIN|LIB|PLATFORM)(?![A-Za-z0-9_]))")


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The end of a search through one list: a path and what is there."""

    path: str
    opened: Opened


def expand(text: str, *, origin: str, system: System) -> str:
    """Replace $ORIGIN, $LIB and $PLATFORM; text with a token that has no value becomes empty, and is no path then."""
    if "$" not in text:
        return text
    values = {"ORIGIN": origin, "LIB": system.lib, "PLATFORM": system.platform}
    if any(values[match[1] or match[2]] is None for match in _TOKEN.finditer(text)):
        return ""
    return _TOKEN.sub(lambda match: values[match[1] or match[2]] or "", text)


def split_path(text: str, *, separators: str, origin: str, system: System) -> tuple[str, ...]:
    """Return the directories of a search path, each with a slash at the end, without repetitions.

    An empty element is the current directory, and stays empty: the path that is tried is the name alone. An empty
    search path is no search at all.
    """
    if not text:
        return ()
    written = re.split(f"[{separators}]", text)
    expanded = ((element, expand(element, origin=origin, system=system)) for element in written)
    return tuple(dict.fromkeys(_with_slash(value) for element, value in expanded if value or not element))


def _with_slash(directory: str) -> str:
    return directory.rstrip("/") + "/" if directory else ""


def origin_of(path: str, cwd: str) -> str:
    """Return $ORIGIN of an object: the directory of its path as it was opened, symlinks and all."""
    absolute = path if path.startswith("/") else f"{cwd.rstrip('/')}/{path}"
    return absolute.rpartition("/")[0] or "/"


def try_directories(
    name: str,
    directories: Iterable[str],
    subdirectories: tuple[str, ...],
    *,
    open_path: Callable[[str], Opened],
    is_dir: Callable[[str], bool],
    goes_past: tuple[int, ...],
) -> tuple[SearchResult | None, bool]:
    """Return (what ends the search in this list, whether a file of the other ELF class was passed over).

    Where nothing was found it is the last that could not be opened: its errno is what the loader complains of.

    An error that stops the list counts only where it is the last one that a directory gave: what a subdirectory said is
    forgotten when the directory itself is tried (`open_path` looks at errno once a directory). `goes_past` are the
    errnos that do not stop it.
    """
    other_class = False
    last: SearchResult | None = None
    for directory in directories:
        if not is_dir(directory):
            continue
        opened: Opened | None = None
        for subdirectory in subdirectories:
            if subdirectory and not is_dir(directory + subdirectory):
                continue
            path = directory + subdirectory + name
            opened = open_path(path)
            if opened.verdict in (FileVerdict.GOOD, FileVerdict.FATAL):
                return SearchResult(path, opened), other_class
            last = SearchResult(path, opened)
            other_class |= opened.verdict is FileVerdict.OTHER_CLASS
        if opened is not None and opened.errno not in goes_past:
            break
    return last, other_class
