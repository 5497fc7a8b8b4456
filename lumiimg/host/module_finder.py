"""Find the file that an `import` loads: importlib's path finder, applied to the files of an image.

Sources: CPython Lib/importlib/_bootstrap_external.py (PathFinder, FileFinder, SourceLoader.get_code), Lib/zipimport.py.
Built-in and frozen modules precede these; a program's own hooks (sys.meta_path) are not known here.
"""

from __future__ import annotations

import contextlib
import struct
import zipfile
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING

from lumiimg.core.access import read_exactly, stream_of
from lumiimg.core.errors import BadInputError
from lumiimg.host.root_queries import names_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from lumiimg.image import RootFileSystem

_MAX_ARCHIVE_BYTES, _MAX_ARCHIVES = 16 << 20, 100
_NOT_AN_ARCHIVE = (OSError, BadInputError, EOFError, ValueError, NotImplementedError, struct.error, zipfile.BadZipFile)
_IMPLIED_FOLDERS_SINCE = (3, 14)
"""First version in which a file in a zip implies the folders above it."""
_MAX_DEPTH = 32
_PYC_HEAD = struct.Struct("<2s2sIII")
_HASHED = 1
_MAGIC = {(3, 9): 3425, (3, 10): 3439, (3, 11): 3495, (3, 12): 3531, (3, 13): 3571, (3, 14): 3627}
"""Magic number of compiled code in the final releases of each version (Lib/importlib/_bootstrap_external.py)."""
_NOTHING = MappingProxyType[str, str]({})


class SpecKind(StrEnum):
    """How a module is loaded."""

    SOURCE = "source"
    BYTECODE = "bytecode"
    EXTENSION = "extension"
    NAMESPACE = "namespace"
    ZIP = "zip"
    """Inside a zip on sys.path: its code is not read."""


@dataclass(frozen=True, slots=True)
class ModuleSpec:
    """Where a module comes from, like importlib.machinery.ModuleSpec."""

    name: str
    kind: SpecKind
    origin: str | None
    """Path; None for a namespace."""
    locations: tuple[str, ...]
    """submodule_search_locations; empty: not a package."""


class ModuleFinder:
    """The path finder of one Python."""

    def __init__(self, root: RootFileSystem, suffixes: Sequence[str], version: tuple[int, int]) -> None:
        """Take a root as users see it (`for_users`), and the suffixes of extension modules, in order."""
        self._root, self.suffixes, self.version = root, suffixes, version
        self._loaders = [
            *((suffix, SpecKind.EXTENSION) for suffix in suffixes),
            (".py", SpecKind.SOURCE),
            (".pyc", SpecKind.BYTECODE),
        ]
        self._names: dict[str, frozenset[str]] = {}
        self._archives: dict[str, frozenset[str] | None] = {}

    def find_spec(self, name: str, path: Iterable[str], mapped: Mapping[str, str] = _NOTHING) -> ModuleSpec | None:
        """Return the spec of a module; a dotted name is searched in the locations of its parent packages.

        `mapped`: paths by name from the finders of editable installs, which come after this one.
        """
        spec: ModuleSpec | None = None
        parts = name.split(".")
        for count in range(1, min(len(parts), _MAX_DEPTH) + 1):
            part = ".".join(parts[:count])
            spec = self._find_in(part, path) or self._at(part, mapped.get(part))
            if spec is None:
                return None
            path = spec.locations
        return spec

    def _at(self, name: str, place: str | None) -> ModuleSpec | None:
        """Return what the finder of an editable install finds: a package's folder, else a file named without suffix."""
        if place is None:
            return None
        if self._root.is_file(origin := f"{place}/__init__.py"):
            return ModuleSpec(name, SpecKind.SOURCE, origin, (place,))
        folder, _, tail = place.rpartition("/")
        found = self._in_folder(folder, tail)
        return replace(found, name=name) if found is not None and found.kind is not SpecKind.NAMESPACE else None

    def code_file(self, spec: ModuleSpec) -> str | None:
        """Return the file whose code runs for a module; None for a namespace, and where users may not read any.

        Compiled code of an unreadable source counts if its header matches that source.
        """
        if spec.origin is None or spec.kind is SpecKind.ZIP:
            return spec.origin  # the directory of a zip has been read already
        folder, _, name = spec.origin.rpartition("/")
        compiled = f"{folder}/__pycache__/{name.removesuffix('.py')}.cpython-{self.version[0]}{self.version[1]}.pyc"
        with contextlib.suppress(OSError, BadInputError):
            self._root.open(spec.origin).close()
            return spec.origin
        return compiled if spec.kind is SpecKind.SOURCE and self._is_fresh(compiled, spec.origin) else None

    def is_of_another_python(self, path: str) -> bool:
        """Return whether a .pyc is of another Python: importlib refuses its magic number (_classify_pyc)."""
        try:
            with contextlib.closing(self._root.open(path)) as file:
                magic, end, *_ = _PYC_HEAD.unpack(read_exactly(file, 0, _PYC_HEAD.size))
        except (OSError, BadInputError, EOFError):
            return True
        number = int.from_bytes(magic, "little")
        return end != b"\r\n" or number != _MAGIC.get(self.version, number)

    def _is_fresh(self, compiled: str, source: str) -> bool:
        """Return whether compiled code matches its current source (SourceLoader.get_code, _validate_timestamp_pyc)."""
        try:
            status = self._root.stat(source)
            with contextlib.closing(self._root.open(compiled)) as file:
                _, end, flags, mtime_s, size_bytes = _PYC_HEAD.unpack(read_exactly(file, 0, _PYC_HEAD.size))
        except (OSError, BadInputError, EOFError):
            return False
        if flags & _HASHED:
            return bool(flags == _HASHED)  # unchecked; else importlib reads the source to compare it
        same = (status.mtime_s & 0xFFFFFFFF, status.size_bytes & 0xFFFFFFFF) == (mtime_s, size_bytes)
        return end == b"\r\n" and same

    def _find_in(self, name: str, path: Iterable[str]) -> ModuleSpec | None:
        portions: list[str] = []
        for entry in path:
            found = self._in_folder(entry, name) if self._root.is_dir(entry) else self._in_archive(entry, name)
            if found is not None and found.kind is not SpecKind.NAMESPACE:
                return found
            portions += found.locations if found is not None else ()
        return ModuleSpec(name, SpecKind.NAMESPACE, None, tuple(portions)) if portions else None

    def _in_folder(self, folder: str, name: str) -> ModuleSpec | None:
        """Return what a FileFinder of a folder finds."""
        tail = name.rpartition(".")[2]
        names = self._names_in(folder)
        base = f"{folder.rstrip('/')}/{tail}"
        if tail in names:
            for suffix, kind in self._loaders:
                if self._root.is_file(file := f"{base}/__init__{suffix}"):
                    return ModuleSpec(name, kind, file, (base,))
        for suffix, kind in self._loaders:
            if tail + suffix in names and self._root.is_file(file := base + suffix):
                return ModuleSpec(name, kind, file, ())
        is_portion = tail in names and self._root.is_dir(base)
        return ModuleSpec(name, SpecKind.NAMESPACE, None, (base,)) if is_portion else None

    def _in_archive(self, entry: str, name: str) -> ModuleSpec | None:
        """Return what a zipimporter finds for an entry that is not a folder: an archive, or a folder inside one."""
        archive, inner = entry, ""
        while not self._root.exists(archive):
            above, _, last = archive.rpartition("/")
            if not above:
                return None
            archive, inner = above, f"{last}/{inner}"
        files = self._files_in(archive)
        if files is None:
            return None
        base = inner + name.rpartition(".")[2]
        for end in ("/__init__.pyc", "/__init__.py", ".pyc", ".py"):
            if base + end in files:
                locations = (f"{archive}/{base}",) if end.startswith("/") else ()
                return ModuleSpec(name, SpecKind.ZIP, f"{archive}/{base}{end}", locations)
        implies = self.version >= _IMPLIED_FOLDERS_SINCE
        is_portion = f"{base}/" in files or (implies and any(name.startswith(f"{base}/") for name in files))
        return ModuleSpec(name, SpecKind.NAMESPACE, None, (f"{archive}/{base}",)) if is_portion else None

    def _names_in(self, folder: str) -> frozenset[str]:
        if folder not in self._names:
            self._names[folder] = frozenset(names_in(self._root, folder))
        return self._names[folder]

    def _files_in(self, archive: str) -> frozenset[str] | None:
        """Return the names in a zip, folders with a trailing slash; None if it is not a zip."""
        if archive not in self._archives:
            self._archives[archive] = None
            if len(self._archives) <= _MAX_ARCHIVES and self._root.is_file(archive):
                with contextlib.suppress(*_NOT_AN_ARCHIVE), contextlib.closing(self._root.open(archive)) as file:
                    if file.size <= _MAX_ARCHIVE_BYTES:
                        self._archives[archive] = frozenset(zipfile.ZipFile(stream_of(file)).namelist())
        return self._archives[archive]
