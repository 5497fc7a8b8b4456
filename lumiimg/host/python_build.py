"""Facts about a Python build from its binary: version, suffixes of extension modules, and compiled-in folders.

Read from the strings of the program, or of the libpython that it needs, and not from file names, which are often
just `python`. Sources: CPython Python/dynload_shlib.c (_PyImport_DynLoadFiletab), Modules/getpath.c (PREFIX),
Python/initconfig.c (PLATLIBDIR).
"""

from __future__ import annotations

import contextlib
import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lumiimg.core.errors import BadInputError, one_safe_line
from lumiimg.elf import LoaderConfig, Process, Segments, exported_at, facts_at
from lumiimg.host.snapshot import MACHINES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lumiimg.image import RootFileSystem

_NAME = re.compile(r"(?:.*/)?(?:python|libpython)3\.([0-9]{1,2})(t?)(?:\.so.*)?")
_LIBRARY = re.compile(r"(?:.*/)?libpython3\.[0-9]+[a-z]*\.so\..*")
_TAG = re.compile(rb"\0\.(cpython-3[0-9]{1,2}[a-z]*-[\w-]+)\.so(?=\0)")
_VERSION = re.compile(r"cpython-3([0-9]{1,2})([a-z]*)-")
_STABLE = re.compile(rb"\0(\.abi3[\w-]*\.so)(?=\0)")
_PREFIX = re.compile(rb"\0(/[^\0]{0,300})\0(?:(?:lib(?:64)?/)?python3\.[0-9]+|EXEC_PREFIX)\0")
_LIB64 = (b"\0lib64\0", "lib64/python00.zip".encode("utf-32-le"))
_PIECE_BYTES, _MAX_BYTES = 4 << 20, 64 << 20
_OVERLAP_BYTES, _HEAD_BYTES = 512, 256
_INIT = "PyInit_"
_WITHOUT_INIT = {
    *("sys", "builtins", "marshal", "_warnings", "zipimport", "__main__"),
    *("_frozen_importlib", "_frozen_importlib_external", "distutils"),
}
"""Modules that are built in, frozen or created at start-up; setuptools provides distutils (_distutils_hack)."""


class NoPythonError(Exception):
    """A program is not a Python, or files do not show which one it is; the message says why."""


@dataclass(frozen=True, slots=True)
class PythonBuild:
    """One build of CPython."""

    version: tuple[int, int]
    is_free_threaded: bool
    suffixes: tuple[str, ...]
    """Suffixes of extension modules, in importlib's order."""
    lib: str
    """sys.platlibdir: `lib`, or `lib64`."""
    prefix: str
    """PREFIX, as configured."""
    prefers_base: bool
    """Whether getpath of this build searches beside the program that created an environment (gh-106045)."""
    builtins: frozenset[str]
    """Modules of the standard library that need no file; all of them where the binary does not show which."""


def read_build(root: RootFileSystem, path: str, environment: Mapping[str, str]) -> PythonBuild:
    """Return the Python build of a program.

    Raises NoPythonError for a script, which may start any other program, and for a program without a Python in it.
    """
    try:
        with contextlib.closing(root.open(path)) as file:
            head = file.read_at(0, min(file.size, _HEAD_BYTES))
    except (OSError, BadInputError) as error:
        raise NoPythonError(f"{path} is a broken link in the image, or cannot be read") from error
    if head[:2] == b"#!":
        shown = one_safe_line(head.split(b"\n")[0].decode("utf-8", "replace"))
        raise NoPythonError(f"{path} is a script ({shown}): which program it starts is not known")
    facts = facts_at(root, path)
    if facts is None:
        raise NoPythonError(f"{path} is not a program")
    needed = next(filter(_LIBRARY.fullmatch, facts.needed), None)
    library = _library(root, path, environment) if needed else None
    strings = _Strings(root, library or path)
    names = (needed, root.resolve_where_possible(path))
    named = next(filter(None, (_NAME.fullmatch(name) for name in names if name)), None)
    tag = strings.tag
    if tag is None and named is not None:  # the binary does not show it
        tag = f"cpython-3{named[1]}{named[2]}-{MACHINES.get(facts.machine, '')}-linux-gnu"
    of_tag = _VERSION.match(tag) if tag is not None else None
    if of_tag is None:
        raise NoPythonError(f"{path} is not a Python")
    is_free_threaded = "t" in of_tag[2]
    stable = strings.stable or (() if is_free_threaded else (".abi3.so",))
    return PythonBuild(
        version=(3, int(of_tag[1])),
        is_free_threaded=is_free_threaded,
        suffixes=(f".{tag}.so", *sorted(stable, key=lambda suffix: (suffix != ".abi3.so", suffix)), ".so"),
        lib="lib64" if strings.has_lib64 else "lib",
        prefix=strings.prefix or "/usr/local",
        prefers_base=strings.prefers_base,
        builtins=_builtins(exported_at(root, library or path, _INIT)),
    )


def _builtins(inits: frozenset[str]) -> frozenset[str]:
    """Return the modules built into a binary that exports these functions (Modules/config.c, PyMODINIT_FUNC)."""
    compiled = {name.removeprefix(_INIT) for name in inits}
    return frozenset(compiled | _WITHOUT_INIT) if "posix" in compiled else sys.stdlib_module_names


def _library(root: RootFileSystem, path: str, environment: Mapping[str, str]) -> str | None:
    """Return the libpython that a program loads."""
    process = Process(root, LoaderConfig(library_path=environment.get("LD_LIBRARY_PATH")))
    process.start(path, exec_start=True)
    loaded = (one.path for one in process.objects)
    return next((path for path in loaded if _LIBRARY.fullmatch(path)), None)


class _Strings:
    """Results of a search in the strings of a binary; only mapped segments are read, not debug information."""

    def __init__(self, root: RootFileSystem, path: str) -> None:
        self.tag: str | None = None
        self.stable: set[str] = set()
        self.prefix: str | None = None
        self.has_lib64 = self.prefers_base = False
        with contextlib.suppress(OSError, BadInputError), contextlib.closing(root.open(path)) as file:
            loads = Segments(file).loads
            end = min(max((load.offset + load.file_bytes for load in loads), default=0), _MAX_BYTES)
            for offset in range(0, end, _PIECE_BYTES):
                self._look(file.read_at(offset, min(_PIECE_BYTES + _OVERLAP_BYTES, end - offset)))

    def _look(self, data: bytes) -> None:
        if self.tag is None and (found := _TAG.search(data)):
            self.tag = found[1].decode()
        if self.prefix is None and (found := _PREFIX.search(data)):
            self.prefix = found[1].decode("utf-8", "surrogateescape")
        self.stable |= {found[1].decode() for found in _STABLE.finditer(data)}
        self.has_lib64 = self.has_lib64 or any(each in data for each in _LIB64)
        self.prefers_base = self.prefers_base or b"base_executable_dir" in data
