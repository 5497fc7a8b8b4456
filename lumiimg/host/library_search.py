"""Where the fabric's libraries are on this host: every way that leads to one, in the order in which they count.

First what the user names, then as the loader searches (LD_LIBRARY_PATH of loaded modules; the loader's cache; its
default directories), last the places that sites are known to use, the newest first. All that is found is given back:
which of it fits an image is not decided here.
"""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from lumiimg.core.errors import BadInputError
from lumiimg.elf import abi_at
from lumiimg.fabric.process import read_provider_path
from lumiimg.host.root_queries import by_version, matches, names_in
from lumiimg.host.scan_facts import Role, scan_facts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from lumiimg.elf import Process
    from lumiimg.image import RootFileSystem

ASKED = "asked for"
OTHER_ROLE = "other"
"""Of a library that the user names and that no role is known for."""
_BELOW_ASKED = ("", "/lib64", "/lib", "/lib64/libfabric", "/lib/libfabric")


@dataclass(slots=True)
class Candidate:
    """A library that was found, and all ways that led to it."""

    role: str
    path: str
    ways: list[str] = field(default_factory=list)
    aliases: list[str] = field(default_factory=list)
    """Other paths of the same file and name."""


@dataclass(frozen=True, slots=True)
class LibrarySearch:
    """Where to search."""

    root: RootFileSystem
    process: Process
    """One with nothing but the loader of this machine."""
    library_path: tuple[str, ...]
    variables: Mapping[str, str]
    """Those that a role names."""
    is_private: Callable[[str], bool]
    include: tuple[str, ...] = ()

    def run(self) -> list[Candidate]:
        """Return what is there, by role. Raises BadInputError for a path of the user's that offers nothing."""
        found: dict[tuple[str, str], Candidate] = {}
        asked: set[str] = set()
        for role in scan_facts().role:
            wanted_by = [candidate for candidate in found.values() if candidate.role == role.wanted_by]
            for path, how in self._of_role(role, wanted_by):
                key = self.root.resolve(path), path.rpartition("/")[2]
                candidate = found.setdefault(key, Candidate(role.name, path))
                if how not in candidate.ways:
                    candidate.ways.append(how)
                if path != candidate.path:
                    candidate.aliases.append(path)
                asked |= {path, *map(str, PurePosixPath(path).parents)} if how == ASKED else set()
        others = [path for path in self.include if path not in asked]
        for path in others:
            if not self._is_library(path):
                what = "is not a library that this machine's loader can load, nor a folder with one of the fabric"
                raise BadInputError(what, where=path, hint="name the library itself, or a folder with lib or lib64")
        return [*found.values(), *(Candidate(OTHER_ROLE, path, [ASKED]) for path in others)]

    def _of_role(self, role: Role, wanted_by: Sequence[Candidate]) -> Iterator[tuple[str, str]]:
        """Yield path and way of every file of a role."""
        for path in self.include:
            name = path.rpartition("/")[2]
            if any(fnmatch.fnmatchcase(name, pattern) for pattern in role.files) and self._is_library(path):
                yield path, ASKED
        for how, folder, files in self._ways(role, wanted_by):
            if how == ASKED or not (self.is_private(folder) or (role.wanted_by and not wanted_by)):
                yield from ((path, how) for path in self._in_folder(folder, files))

    def _in_folder(self, folder: str, patterns: tuple[str, ...]) -> Iterator[str]:
        listed = names_in(self.root, folder) if any("*" in pattern for pattern in patterns) else []
        for pattern in patterns:
            for name in fnmatch.filter(listed, pattern) if "*" in pattern else (pattern,):
                path = f"{folder.rstrip('/')}/{name}"
                if self._is_library(path):
                    yield path

    def _is_library(self, path: str) -> bool:
        """Whether it is a file that the loader of this machine takes."""
        abi = abi_at(self.root, path)
        return abi is not None and abi.is_modelled and abi.machine == self.process.machine

    def _ways(self, role: Role, wanted_by: Sequence[Candidate]) -> Iterator[tuple[str, str, tuple[str, ...]]]:
        """Yield how a folder was found, the folder, and which files are looked for in it."""
        for asked in self.include:
            for below in _BELOW_ASKED:
                yield ASKED, asked.rstrip("/") + below, role.files
        if role.variable:
            named = read_provider_path(self.variables.get(role.variable))
            places = [(folder, role.files) for folder in named.folders]
            places += [(folder, (name,)) for folder, _, name in (file.rpartition("/") for file in named.preferred)]
            yield from ((role.variable, folder, files) for folder, files in places if folder.startswith("/"))
        for candidate in wanted_by if role.beside else ():
            for path in dict.fromkeys((candidate.path, self.root.resolve(candidate.path))):
                yield f"beside {candidate.path}", f"{path.rpartition('/')[0]}/{role.beside}", role.files
        for folder in self.library_path:
            yield "LD_LIBRARY_PATH", folder, role.files
        for name in role.files:
            cached = None if "*" in name else self.process.cached(name)
            if cached is not None:
                folder, _, name_there = cached.rpartition("/")
                yield "ldconfig", folder or "/", (name_there,)
        for folder in self.process.loader.directories:
            yield "default directory", folder, role.files
        for prefix in role.prefixes:
            folders = sorted(matches(self.root, prefix), key=by_version, reverse=True)
            # the link `default` leads to the version that the site has chosen
            chosen = {self.root.resolve(folder) for folder in folders if "/default/" in folder}
            folders.sort(key=lambda folder: (self.root.resolve(folder) not in chosen, "/default/" in folder))
            yield from ((f"known prefix {prefix}", folder, role.files) for folder in folders)
