"""The host's own loader, modelled from a snapshot: what is recorded is enough to know what the host itself would load."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from lumiimg.elf.cache import parse_cache
from lumiimg.elf.files import Files
from lumiimg.elf.hwcaps import platform
from lumiimg.elf.rules import LoaderSettings
from lumiimg.elf.system import System
from lumiimg.host.snapshot_tree import SnapshotTree, host_native
from lumiimg.image import RootFileSystem
from tests.shared.elf_builder import loader_cache

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lumiimg.elf.reader import Native
    from lumiimg.host.snapshot import Snapshot

_FLAG_ELF = 1
_MAX_NAME_BYTES = 1024
_NUMBER_OR_OTHER = re.compile(rb"([0-9]+)|([^0-9])")


class _HostFiles(Files):
    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__(RootFileSystem(SnapshotTree(snapshot)))
        self._own = host_native(snapshot)
        self._system = System(
            loader=snapshot.loader,
            directories=snapshot.system_directories,
            lib=snapshot.lib_token,
            platform=platform(self._own.machine, (), intel=False),
            glibc_minor=int(snapshot.glibc.partition(".")[2]) if snapshot.glibc else None,
            cache=parse_cache(cache_file(snapshot.cache)),
        )

    def system(self, native: Native, interpreter: str | None) -> System:
        if native != self._own:
            return super().system(native, interpreter)
        return replace(self._system, loader=interpreter or self._system.loader)


def host_files(snapshot: Snapshot) -> Files:
    """Return the files for `Process(files.fs, host_settings(snapshot), files=files)`: a process of the host."""
    return _HostFiles(snapshot)


def host_settings(snapshot: Snapshot) -> LoaderSettings:
    """Return what reached the host's loader when the snapshot was taken."""
    return LoaderSettings(library_path=snapshot.library_path, hwcaps=snapshot.hwcaps, intel=snapshot.intel)


def cache_file(paths: Mapping[str, str]) -> bytes:
    """Return a loader's cache with these names and paths, in the new format (glibc `sysdeps/generic/dl-cache.h`).

    Its entries are for every machine and every CPU: what the host's own loader takes was settled by the scan.
    """
    # a name that no loader could find in a cache would end the search for others
    names = [
        name for name, path in paths.items() if max(len(os.fsencode(each)) for each in (name, path)) < _MAX_NAME_BYTES
    ]
    names.sort(key=lambda name: _cache_order(os.fsencode(name)), reverse=True)
    return loader_cache([(name, paths[name], 0) for name in names], flags=_FLAG_ELF)


def _cache_order(name: bytes) -> tuple[tuple[int, int], ...]:
    """Order names as `_dl_cache_libcmp`: numbers by their value and after any other character, those as signed."""
    return tuple(
        (1, int(number[-18:])) if number else (0, other[0] - 256 if other[0] > 127 else other[0])
        for number, other in _NUMBER_OR_OTHER.findall(name)
    )
