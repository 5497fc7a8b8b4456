"""The objects of a modelled process by name, and the results of a load, with the loader's own messages."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from enum import StrEnum
from errno import EACCES, ENOENT
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

    from lumiimg.elf.facts import ElfFacts


class FoundBy(StrEnum):
    """The rule that found an object."""

    PROGRAM = "program"
    """File that the process was started with."""
    INTERPRETER = "interpreter"
    """The loader itself, in the process from the start."""
    PRELOAD = "preload"
    """LD_PRELOAD or /etc/ld.so.preload, whichever rule then found the file."""
    PATH = "path"
    """Name with a slash, which is not searched."""
    RPATH = "rpath"
    LD_LIBRARY_PATH = "ld_library_path"
    RUNPATH = "runpath"
    CACHE = "cache"
    DEFAULT = "default"

    @property
    def words(self) -> str:
        """Common name of the rule; empty for the program itself."""
        return _WORDS.get(self, self.value.upper())


_WORDS = {
    FoundBy.PROGRAM: "",
    FoundBy.INTERPRETER: "the loader itself",
    FoundBy.PRELOAD: "preloaded",
    FoundBy.PATH: "its own path",
    FoundBy.CACHE: "ld.so.cache",
    FoundBy.DEFAULT: "default folder",
}


@dataclass(frozen=True, slots=True, eq=False)
class LoadedObject:
    """One file in a process."""

    name: str
    """Name by which it was first requested."""
    path: str
    """Path as built by the loader: symlinks are not resolved, and it may be relative."""
    facts: ElfFacts
    found_by: FoundBy
    requested_by: LoadedObject | None
    origin: str
    """$ORIGIN for its own search paths."""
    by_dlopen: bool = False
    """Whether a dlopen requested it rather than another object's need."""
    is_recorded: bool = False
    """Whether only its facts are available, from a snapshot."""

    @property
    def chain(self) -> tuple[str, ...]:
        """Names from the first object to this one, each requested by the previous one."""
        names = [self.name]
        above = self.requested_by
        while above is not None:
            names.append(above.name)
            above = above.requested_by
        return tuple(reversed(names))

    @property
    def filter_note(self) -> str | None:
        """A sentence if other libraries answer for its symbols (DT_FILTER, DT_AUXILIARY; glibc elf/dl-deps.c)."""
        names = ", ".join(self.facts.filters)
        return f"{self.path}: filters {names}, which lumiimg does not model" if names else None

    @property
    def load_root(self) -> LoadedObject:
        """Object whose start or dlopen loaded this object."""
        loaded = self
        while loaded.requested_by is not None and not loaded.by_dlopen:
            loaded = loaded.requested_by
        return loaded


@dataclass(frozen=True, slots=True)
class MissingLibrary:
    """A name for which no rule found a file."""

    name: str
    requested_by: LoadedObject | None

    @property
    def chain(self) -> tuple[str, ...]:
        """Names from the first object to the missing one."""
        return (*(self.requested_by.chain if self.requested_by else ()), self.name)


@dataclass(frozen=True, slots=True)
class MissingVersion:
    """A version that one library requires and the loaded provider does not define."""

    provider: str
    """Path of the library that should define it."""
    version: str
    """Name of the version, such as `GLIBC_2.38`."""
    required_by: str
    """Path of the library that needs it."""

    def __str__(self) -> str:
        return f"{self.provider}: version `{self.version}' not found (required by {self.required_by})"


def duplicate_libraries(objects: Iterable[LoadedObject]) -> dict[str, tuple[str, ...]]:
    """Return the paths of each library that is loaded more than once, by its name up to `.so`.

    The loader distinguishes libraries by soname, so two major versions (libjson-c.so.3 and .so.5) can be loaded; a
    symbol without a version is still bound to the first that defines it (glibc `elf/dl-lookup.c:do_lookup_x`).
    """
    by_stem: dict[str, list[str]] = {}
    for loaded in objects:
        by_stem.setdefault(loaded.path.rpartition("/")[2].partition(".so")[0], []).append(loaded.path)
    return {stem: tuple(paths) for stem, paths in by_stem.items() if len(paths) > 1}


@dataclass(slots=True)
class LoadResult:
    """The result of starting a program, or of one dlopen, filled while it runs."""

    root: LoadedObject | None = None
    """The program, or the object that dlopen returns; None if it cannot be loaded."""
    objects: list[LoadedObject] = field(default_factory=list)
    """Newly loaded objects, in the order of the loader's list (breadth first)."""
    missing: list[MissingLibrary] = field(default_factory=list)
    missing_versions: list[MissingVersion] = field(default_factory=list)
    """Required symbol versions that the loaded libraries do not define."""
    errors: list[str] = field(default_factory=list)
    """Errors in ld.so's words: reasons why it would not start."""
    warnings: list[str] = field(default_factory=list)
    """Warnings in ld.so's words, after which it would continue."""
    closure: dict[str, str | None] = field(default_factory=dict)
    """Path in the image by needed name, as ld.so prints them; null if no object was found."""
    missing_names: set[str] = field(default_factory=set)
    """Every name for which no loadable object was found, as written and as expanded."""

    @property
    def ok(self) -> bool:
        """Whether the load succeeds."""
        return not self.errors

    @property
    def is_static(self) -> bool:
        """Whether the program needs no loader."""
        return self.root is not None and not self.root.facts.is_dynamic

    def without_repetitions(self) -> Self:
        """Remove repeated errors and warnings, and return this result."""
        self.errors, self.warnings = [*dict.fromkeys(self.errors)], [*dict.fromkeys(self.warnings)]
        return self

    def finds_nothing(self, name: str) -> bool:
        """Return whether a dlopen of this name found no file that can be opened, loadable or not."""
        absent = [f"{name}: cannot open shared object file: {os.strerror(each)}" for each in (ENOENT, EACCES)]
        return self.root is None and all(error in absent for error in self.errors)


class SymbolScopes:
    """The scopes in which symbols of a process are looked up.

    First the global scope: the objects loaded at the start, and those opened with RTLD_GLOBAL. Then the local scope:
    the object opened by dlopen and all its dependencies, including those already loaded; other loads do not search it
    (glibc `elf/dl-open.c`, `elf/dl-scope.c`; dlopen(3), RTLD_LOCAL).
    """

    def __init__(self) -> None:
        self._needs: dict[LoadedObject, dict[LoadedObject, None]] = {}
        self._global: dict[LoadedObject, None] = {}

    def link(self, loaded: LoadedObject, dependency: LoadedObject) -> None:
        """Record that an object needs another."""
        self._needs.setdefault(loaded, {})[dependency] = None

    def add_global(self, objects: Iterable[LoadedObject]) -> None:
        """Add objects to the global scope."""
        self._global |= dict.fromkeys(objects)

    def of(self, loaded: LoadedObject) -> list[LoadedObject]:
        """Return the objects in which symbols of an object are looked up, in order."""
        return [*(self._global | self.local_scope_of(loaded.load_root))]

    def local_scope_of(self, root: LoadedObject) -> dict[LoadedObject, None]:
        """Return an object and all its direct and indirect dependencies."""
        found = {root: None}
        todo = [root]
        for loaded in todo:
            new = [each for each in self._needs.get(loaded, ()) if each not in found]
            found |= dict.fromkeys(new)
            todo += new
        return found


@dataclass(slots=True)
class LoadedNames:
    """The objects of a process in load order, by name, soname and file.

    glibc `elf/dl-load.c`: `_dl_lookup_map`, `_dl_name_match_p`, `add_name_to_object`, `_dl_map_object_from_fd`. The
    program has no name except its soname, and neither the program nor the loader itself is recognized by its file: the
    same file under another name is loaded again.
    """

    objects: list[LoadedObject] = field(default_factory=list)
    _names: dict[str, LoadedObject] = field(default_factory=dict)
    _sonames: dict[str, LoadedObject] = field(default_factory=dict)
    _identities: dict[Hashable, LoadedObject] = field(default_factory=dict)

    def copy(self) -> LoadedNames:
        """Return a copy that can be restored later."""
        return LoadedNames(self.objects.copy(), self._names.copy(), self._sonames.copy(), self._identities.copy())

    def add(self, loaded: LoadedObject, *names: str, identity: Hashable = None) -> None:
        """Append an object to the list."""
        self.objects.append(loaded)
        for name in names:
            self._names.setdefault(name, loaded)
        if loaded.facts.soname is not None:
            self._sonames.setdefault(loaded.facts.soname, loaded)
        if identity is not None:
            self._identities.setdefault(identity, loaded)

    def lookup(self, name: str) -> LoadedObject | None:
        """Return the object that satisfies a need; a matching soname becomes one of the object's names."""
        found = self.find(name)
        if found is not None:
            self._names.setdefault(name, found)
        return found

    def find(self, name: str) -> LoadedObject | None:
        """Return the object with a name or soname."""
        named, by_soname = self._names.get(name), self._sonames.get(name)
        if named is None or by_soname is None:
            return named or by_soname
        return named if named is by_soname else min(named, by_soname, key=self.objects.index)

    def named(self, name: str) -> LoadedObject | None:
        """Return the object that was requested by this name: a soname alone is not enough for the version check."""
        return self._names.get(name)

    def same_file(self, identity: Hashable, name: str) -> LoadedObject | None:
        """Return the object already loaded from a file, after adding this name to it."""
        same = self._identities.get(identity)
        if same is not None:
            self._names.setdefault(name, same)
        return same
