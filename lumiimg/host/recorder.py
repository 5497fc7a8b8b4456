"""Collects what the scan has met: each library once, with the links on the way to it."""

from __future__ import annotations

import contextlib
import hashlib
import time
from typing import TYPE_CHECKING

from lumiimg.elf.facts import exported_symbols, read_elf
from lumiimg.errors import BadInputError, one_line
from lumiimg.fabric.names import NET_SYMBOL, net_api, net_symbol
from lumiimg.host.root_queries import trace
from lumiimg.host.snapshot import HostLibrary

if TYPE_CHECKING:
    from lumiimg.image import RootFileSystem
    from lumiimg.image.tree import OpenFile

MAX_LIBRARY_BYTES = 2 << 30
MAX_SECONDS = 300.0
_MAX_LIBRARIES = 4096
_CHUNK_BYTES = 4 << 20


class Recorder:
    """Libraries, links and directories of one scan over one root."""

    def __init__(self, root: RootFileSystem) -> None:
        self.libraries: dict[str, HostLibrary] = {}
        self.links: dict[str, str] = {}
        self.directories: set[str] = set()
        self.gaps: list[str] = []
        self._root = root
        self._deadline = time.monotonic() + MAX_SECONDS
        self._refused: set[str] = set()

    def add(self, path: str, *, is_entry: bool = False) -> bool:
        """Record the library at a path and what leads to it; tell whether it could be.

        Of an entry the symbols of a net plugin are looked for too, so it has to come before the libraries that need it.
        """
        at = path
        try:
            at, links, left = trace(self._root, path)
            if at in self._refused:
                return False
            if at not in self.libraries:
                with contextlib.closing(self._root.open(at)) as file:
                    self._check_limits(file)
                    self.libraries[at] = _read(file, at, is_entry=is_entry)
        except (OSError, BadInputError) as error:
            why = getattr(error, "strerror", None) or str(error)
            self._refused.add(at)
            self.gaps.append(one_line(f"{at} is not recorded: {why}"))
            return False
        self.links |= links
        self.directories |= left
        return True

    def _check_limits(self, file: OpenFile) -> None:
        if file.size > MAX_LIBRARY_BYTES:
            raise BadInputError(f"it has {file.size} bytes, more than {MAX_LIBRARY_BYTES}")
        if len(self.libraries) >= _MAX_LIBRARIES:
            raise BadInputError(f"{_MAX_LIBRARIES} libraries are recorded already")
        if time.monotonic() > self._deadline:
            raise BadInputError(f"the scan had taken {MAX_SECONDS:.0f} s by then")


def _read(file: OpenFile, path: str, *, is_entry: bool) -> HostLibrary:
    facts = read_elf(file)
    symbols = exported_symbols(file, NET_SYMBOL) if is_entry else frozenset[str]()
    digest = hashlib.sha256()
    for offset in range(0, file.size, _CHUNK_BYTES):
        digest.update(file.read_at(offset, _CHUNK_BYTES))
    return HostLibrary(
        path=path,
        size_bytes=file.size,
        sha256=digest.hexdigest(),
        facts=facts,
        net_symbols=tuple(sorted(map(net_symbol, net_api(symbols)))),
    )
