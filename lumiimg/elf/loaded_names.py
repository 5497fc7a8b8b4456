"""Which object of a process a name stands for: the list of link maps, and how the loader asks it.

glibc `elf/dl-load.c`: `_dl_lookup_map`, `_dl_name_match_p`, `add_name_to_object`, `_dl_map_object_from_fd`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable

    from lumiimg.elf.objects import LoadedObject


class LoadedNames:
    """The objects of a process in the order in which they came, by name, soname and file.

    The program has no name but its soname, and neither the program nor the loader itself is known by its file: the same
    file under another name is loaded again.
    """

    def __init__(self) -> None:
        self.objects: list[LoadedObject] = []
        self._names: dict[str, LoadedObject] = {}
        self._sonames: dict[str, LoadedObject] = {}
        self._identities: dict[Hashable, LoadedObject] = {}

    def copy(self) -> LoadedNames:
        """Return the same objects, to come back to."""
        other = LoadedNames()
        other.objects = list(self.objects)
        other._names = dict(self._names)
        other._sonames = dict(self._sonames)
        other._identities = dict(self._identities)
        return other

    def add(self, loaded: LoadedObject, *names: str, identity: Hashable = None) -> None:
        """Put an object at the end of the list."""
        self.objects.append(loaded)
        for name in names:
            self._names.setdefault(name, loaded)
        if loaded.facts.soname is not None:
            self._sonames.setdefault(loaded.facts.soname, loaded)
        if identity is not None:
            self._identities.setdefault(identity, loaded)

    def lookup(self, name: str) -> LoadedObject | None:
        """Return the object that serves a need; a soname that matched becomes one of the object's names."""
        found = self.find(name)
        if found is not None:
            self._names.setdefault(name, found)
        return found

    def find(self, name: str) -> LoadedObject | None:
        """Return the object that has a name or a soname."""
        named, by_soname = self._names.get(name), self._sonames.get(name)
        if named is None or by_soname is None:
            return named or by_soname
        return named if named is by_soname else min(named, by_soname, key=self.objects.index)

    def named(self, name: str) -> LoadedObject | None:
        """Return the object that was asked for by this name: a soname alone is not enough for the version check."""
        return self._names.get(name)

    def same_file(self, identity: Hashable, name: str) -> LoadedObject | None:
        """Return the object that a file is loaded as already, which has this name too from now on."""
        same = self._identities.get(identity)
        if same is not None:
            self._names.setdefault(name, same)
        return same
