"""The objects of a modelled process, by their names, and what a load of it gives back: in the loader's own words."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

    from lumiimg.elf.facts import ElfFacts


class FoundBy(StrEnum):
    """The rule that found an object."""

    PROGRAM = "program"
    """The file that the process was started with."""
    INTERPRETER = "interpreter"
    """The loader itself, in the process from its first moment."""
    PRELOAD = "preload"
    """LD_PRELOAD or /etc/ld.so.preload, by whatever further rule."""
    PATH = "path"
    """Its name has a slash: no search."""
    RPATH = "rpath"
    LD_LIBRARY_PATH = "ld_library_path"
    RUNPATH = "runpath"
    CACHE = "cache"
    DEFAULT = "default"

    @property
    def words(self) -> str:
        """What people call the rule; nothing for the program itself."""
        return _RULES[self]


_RULES = {
    FoundBy.PROGRAM: "",
    FoundBy.INTERPRETER: "the loader itself",
    FoundBy.PRELOAD: "preloaded",
    FoundBy.PATH: "its own path",
    FoundBy.RPATH: "RPATH",
    FoundBy.LD_LIBRARY_PATH: "LD_LIBRARY_PATH",
    FoundBy.RUNPATH: "RUNPATH",
    FoundBy.CACHE: "ld.so.cache",
    FoundBy.DEFAULT: "default folder",
}


@dataclass(frozen=True, slots=True, eq=False)
class LoadedObject:
    """One file in a process."""

    name: str
    """The name that it was first asked for by."""
    path: str
    """As the loader built it: symlinks are not resolved, and it may be relative."""
    facts: ElfFacts
    found_by: FoundBy
    requested_by: LoadedObject | None
    origin: str
    """$ORIGIN for its own search paths."""
    by_dlopen: bool = False
    """Whether a dlopen asked for it, not another object's need."""

    @property
    def chain(self) -> tuple[str, ...]:
        """Names from the first object to this one, each asked for by the one before."""
        names = [self.name]
        above = self.requested_by
        while above is not None:
            names.append(above.name)
            above = above.requested_by
        return tuple(reversed(names))


@dataclass(frozen=True, slots=True)
class MissingLibrary:
    """A name that no rule found a file for."""

    name: str
    requested_by: LoadedObject | None

    @property
    def chain(self) -> tuple[str, ...]:
        """Names from the first object to the missing one."""
        return (*(self.requested_by.chain if self.requested_by else ()), self.name)


@dataclass(frozen=True, slots=True)
class MissingVersion:
    """A version that a loaded library does not define and that another one must have."""

    provider: str
    """Path of the library that should define it."""
    version: str
    """`GLIBC_2.38`."""
    required_by: str
    """Path of the library that needs it."""

    def __str__(self) -> str:
        return f"{self.provider}: version `{self.version}' not found (required by {self.required_by})"


@dataclass(frozen=True, slots=True)
class LoadOutcome:
    """What starting a program, or one dlopen, does."""

    root: LoadedObject | None
    """The program, or the object that dlopen returns; None where it cannot be loaded."""
    objects: tuple[LoadedObject, ...]
    """Newly loaded, in the order of the loader's list (breadth first)."""
    missing: tuple[MissingLibrary, ...] = ()
    missing_versions: tuple[MissingVersion, ...] = ()
    """Symbol versions that are not there."""
    errors: tuple[str, ...] = ()
    """In ld.so's words: why it would not start."""
    warnings: tuple[str, ...] = ()
    """In ld.so's words: what it would print and go on."""
    closure: dict[str, str | None] = field(default_factory=dict)
    """Needed name to path in the image, as ld.so prints them; null where nothing serves it."""

    @property
    def ok(self) -> bool:
        """Whether the load succeeds."""
        return not self.errors

    @property
    def is_static(self) -> bool:
        """Whether the program needs no loader."""
        return self.root is not None and not self.root.facts.is_dynamic

    def finds_nothing(self, name: str) -> bool:
        """Whether a dlopen of this name met no file at all: neither one that loads nor one that cannot be loaded."""
        absent = f"{name}: cannot open shared object file: No such file or directory"
        return self.root is None and all(error == absent for error in self.errors)


@dataclass(slots=True)
class Report:
    """What one load has met so far: objects in the order of the loader's list, and everything that went wrong."""

    order: list[LoadedObject] = field(default_factory=list)
    missing: list[MissingLibrary] = field(default_factory=list)
    missing_names: set[str] = field(default_factory=set)
    """Every name that found no object that can be loaded, as written and as expanded."""
    missing_versions: list[MissingVersion] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    closure: dict[str, str | None] = field(default_factory=dict)

    def outcome(self, root: LoadedObject | None, already: frozenset[LoadedObject] = frozenset()) -> LoadOutcome:
        """Return it as a value, without the objects that were there before."""
        return LoadOutcome(
            root=root,
            objects=tuple(loaded for loaded in self.order if loaded not in already),
            missing=tuple(self.missing),
            missing_versions=tuple(self.missing_versions),
            errors=tuple(dict.fromkeys(self.errors)),
            warnings=tuple(dict.fromkeys(self.warnings)),
            closure=self.closure,
        )


def second_copies(objects: Iterable[LoadedObject]) -> dict[str, tuple[str, ...]]:
    """Return the paths of each library that is there twice, by its name without `.so` and what follows.

    The loader distinguishes libraries by their SONAME, so two majors (libjson-c.so.3 and .so.5) do not collide by name;
    a symbol without a version is still bound to the first of them that has it (glibc `elf/dl-lookup.c:do_lookup_x`).
    """
    by_stem: dict[str, list[str]] = {}
    for loaded in objects:
        by_stem.setdefault(loaded.path.rpartition("/")[2].partition(".so")[0], []).append(loaded.path)
    return {stem: tuple(paths) for stem, paths in by_stem.items() if len(paths) > 1}


@dataclass(slots=True)
class LoadedNames:
    """The objects of a process in the order in which they came, by name, soname and file.

    glibc `elf/dl-load.c`: `_dl_lookup_map`, `_dl_name_match_p`, `add_name_to_object`, `_dl_map_object_from_fd`. The
    program has no name but its soname, and neither the program nor the loader itself is known by its file: the same
    file under another name is loaded again.
    """

    objects: list[LoadedObject] = field(default_factory=list)
    _names: dict[str, LoadedObject] = field(default_factory=dict)
    _sonames: dict[str, LoadedObject] = field(default_factory=dict)
    _identities: dict[Hashable, LoadedObject] = field(default_factory=dict)

    def copy(self) -> LoadedNames:
        """Return the same objects, to come back to."""
        return LoadedNames(self.objects.copy(), self._names.copy(), self._sonames.copy(), self._identities.copy())

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
