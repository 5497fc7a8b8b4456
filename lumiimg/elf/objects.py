"""What a modelled load gives back: the objects, in their order, and what went wrong in the loader's own words."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
    ALREADY_LOADED = "already-loaded"
    """dlopen only: the name, the soname or the file belongs to an object of the process."""


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
    found_by: FoundBy | None
    """How the root was found this time: `already-loaded` where an earlier load had it."""
    objects: tuple[LoadedObject, ...]
    """Newly loaded, in the order of the loader's list (breadth first)."""
    missing: tuple[MissingLibrary, ...] = ()
    missing_versions: tuple[MissingVersion, ...] = ()
    errors: tuple[str, ...] = ()
    """Each of these alone keeps the program from starting, or makes dlopen fail."""
    warnings: tuple[str, ...] = ()
    closure: dict[str, str | None] = field(default_factory=dict)
    """Each name that the objects need to the path that serves it, None where nothing does."""

    @property
    def ok(self) -> bool:
        """Whether the load succeeds."""
        return not self.errors

    def finds_nothing(self, name: str) -> bool:
        """Whether a dlopen of this name met no file at all: neither one that loads nor one that cannot be loaded."""
        absent = f"{name}: cannot open shared object file: No such file or directory"
        return self.root is None and all(error == absent for error in self.errors)
