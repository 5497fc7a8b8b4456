"""In which objects of a process a symbol is looked up.

First in those that all see: what the process was started with, and what was opened with RTLD_GLOBAL. Then in the
object that dlopen was asked for, and all that it needs, whoever brought that: its own list, which other loads do not
see (glibc `elf/dl-open.c`, `elf/dl-scope.c`; dlopen(3), RTLD_LOCAL).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lumiimg.elf.objects import LoadedObject


class SymbolScopes:
    """Which objects serve the needs of which, and what all see."""

    def __init__(self) -> None:
        self._needs: dict[LoadedObject, dict[LoadedObject, None]] = {}
        self._for_all: dict[LoadedObject, None] = {}

    def link(self, loaded: LoadedObject, dependency: LoadedObject) -> None:
        """Note that an object needs another."""
        self._needs.setdefault(loaded, {})[dependency] = None

    def give_to_all(self, objects: Iterable[LoadedObject]) -> None:
        """Let all see some objects, and what these need."""
        for loaded in objects:
            self._for_all |= self.list_of(loaded)

    def of(self, loaded: LoadedObject) -> list[LoadedObject]:
        """Return where symbols of an object are looked up, in this order."""
        return [*(self._for_all | self.list_of(root_of(loaded)))]

    def list_of(self, root: LoadedObject) -> dict[LoadedObject, None]:
        """Return an object and all that it needs, directly or not."""
        found = {root: None}
        todo = [root]
        for loaded in todo:
            new = [each for each in self._needs.get(loaded, ()) if each not in found]
            found |= dict.fromkeys(new)
            todo += new
        return found


def root_of(loaded: LoadedObject) -> LoadedObject:
    """Return what was started, or opened, and brought an object into the process."""
    while loaded.requested_by is not None and not loaded.by_dlopen:
        loaded = loaded.requested_by
    return loaded
