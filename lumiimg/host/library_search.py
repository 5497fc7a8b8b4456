"""Where the fabric's libraries are on this host: every way that leads to one, in the order in which they count.

First what the user names, then as the loader searches (LD_LIBRARY_PATH of loaded modules, which also set what
pkg-config says; the loader's cache; its default directories), last the places that sites are known to use, the default
version first. All that is found is given back: which of it fits an image is not decided here.
"""

from __future__ import annotations

import fnmatch
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lumiimg.errors import BadInputError
from lumiimg.fabric.provider import read_provider_path
from lumiimg.host.root_queries import by_version, matches, names_in, read_text
from lumiimg.host.scan_facts import Role, known

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from lumiimg.elf.files import Files
    from lumiimg.elf.reader import Native
    from lumiimg.elf.system import System
    from lumiimg.image import RootFileSystem

ASKED = "asked for"
OTHER_ROLE = "other"
"""Of a library that the user names and that no role is known for."""
_BELOW_ASKED = ("", "/lib64", "/lib", "/lib64/libfabric", "/lib/libfabric")
_PC_VARIABLE = re.compile(r"([A-Za-z_][A-Za-z0-9_.]*)[ \t]*=[ \t]*(.*?)[ \t]*")
_PC_REFERENCE = re.compile(r"\$\{([^}]*)\}")
_MAX_EXPANSIONS = 16
_MAX_VALUE = 4096
_MODULE_DEFAULT = (
    re.compile(r"^\s*set\s+ModulesVersion\s+\"?([^\s\"]+)", re.MULTILINE),
    re.compile(r"module_version\(\s*\"(?:[^\"]*/)?([^\"/]+)\"\s*,\s*\"default\"\s*\)"),
    re.compile(r"^\s*module-version\s+(?:\S*/)?(\S+)\s+default\b", re.MULTILINE),
)


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

    files: Files
    root: RootFileSystem
    native: Native
    system: System
    cached: Callable[[str], str | None]
    """What the loader's cache says for a name."""
    library_path: tuple[str, ...]
    package_path: tuple[str, ...]
    """PKG_CONFIG_PATH."""
    variables: Mapping[str, str]
    """Those that a role names."""
    is_private: Callable[[str], bool]
    include: tuple[str, ...] = ()

    def run(self) -> list[Candidate]:
        """Return what is there, by role. Raises BadInputError for a path of the user's that offers nothing."""
        found: dict[tuple[str, str], Candidate] = {}
        for role in known().role:
            wanted_by = [candidate for candidate in found.values() if candidate.role == role.wanted_by]
            for path, how in self._of_role(role, wanted_by):
                key = self.root.resolve(path), path.rpartition("/")[2]
                candidate = found.setdefault(key, Candidate(role.name, path))
                if how not in candidate.ways:
                    candidate.ways.append(how)
                if path != candidate.path:
                    candidate.aliases.append(path)
        others = [Candidate(OTHER_ROLE, path, [ASKED]) for path in self._asked_of_no_role()]
        return [*found.values(), *others]

    def _of_role(self, role: Role, wanted_by: list[Candidate]) -> Iterator[tuple[str, str]]:
        """Yield path and way of every file of a role."""
        for path in self.include:
            if self.root.is_file(path) and _is_of(role, path):
                yield path, ASKED
        for how, folder, files in self._ways(role, wanted_by):
            if how != ASKED and (self.is_private(folder) or (role.wanted_by and not wanted_by)):
                continue
            for path in self._in_folder(folder, files):
                yield path, how

    def _in_folder(self, folder: str, patterns: tuple[str, ...]) -> Iterator[str]:
        listed = names_in(self.root, folder) if any("*" in pattern for pattern in patterns) else []
        for pattern in patterns:
            for name in fnmatch.filter(listed, pattern) if "*" in pattern else (pattern,):
                path = f"{folder.rstrip('/')}/{name}"
                if self.root.is_file(path) and self.files.native_of(path) == self.native:
                    yield path

    def _ways(self, role: Role, wanted_by: list[Candidate]) -> Iterator[tuple[str, str, tuple[str, ...]]]:
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
        for package in role.packages:
            folder = self._package_folder(package) or ""
            if folder:
                yield f"pkg-config {package}", folder, role.files
        for name in role.files:
            cached = None if "*" in name else self.cached(name)
            if cached is not None:
                folder, _, name_there = cached.rpartition("/")
                yield "ldconfig", folder or "/", (name_there,)
        for folder in self.system.directories:
            yield "default directory", folder, role.files
        for prefix in role.prefixes:
            for folder in self._by_preference(matches(self.root, prefix), prefix, role):
                yield f"known prefix {prefix}", folder, role.files

    def _package_folder(self, package: str) -> str | None:
        """Return `libdir` of a package's .pc file, read as text: what is in there need not be run to be known."""
        defaults = [folder for pattern in known().places.package_folders for folder in matches(self.root, pattern)]
        for folder in (*self.package_path, *defaults):
            text = read_text(self.root, f"{folder.rstrip('/')}/{package}.pc")
            if text is not None and not self.is_private(folder):
                found = package_variable(text, "libdir", folder)
                # as written, unless it goes up from where the .pc file is: nobody would call it so
                is_relative = found is not None and ".." in found.split("/") and self.root.is_dir(found)
                return self.root.resolve(found) if found and is_relative else found
        return None

    def _by_preference(self, folders: list[str], prefix: str, role: Role) -> list[str]:
        """Return the folders of a prefix, that of the default version first, then the newest."""
        depth = next((index for index, part in enumerate(prefix.split("/")) if "*" in part), None)
        if depth is None:
            return folders
        default = self._default_version(prefix.partition("*")[0].rstrip("/"), role)

        def rank(folder: str) -> tuple[bool, bool, tuple[tuple[int, int, str], ...]]:
            name = folder.split("/")[depth]
            return name == default, name != "default", by_version(name)

        return sorted(folders, key=rank, reverse=True)

    def _default_version(self, above: str, role: Role) -> str | None:
        places = [above, *(f"{folder}/{role.modules}" for folder in known().places.module_folders if role.modules)]
        for place in places:
            if self.root.exists(f"{place}/default"):
                return self.root.resolve(f"{place}/default").rpartition("/")[2].removesuffix(".lua")
        for place in places[1:]:
            for name in (".version", ".modulerc", ".modulerc.lua"):
                text = read_text(self.root, f"{place}/{name}") or ""
                for pattern in _MODULE_DEFAULT:
                    if match := pattern.search(text):
                        return match[1]
        return None

    def _asked_of_no_role(self) -> Iterator[str]:
        """Yield the user's files that are of no role. Raises BadInputError for what offers nothing at all."""
        roles = known().role
        for path in self.include:
            if self.root.is_dir(path):
                folders = [path.rstrip("/") + below for below in _BELOW_ASKED]
                if not any(True for f in folders for role in roles for _ in self._in_folder(f, role.files)):
                    raise BadInputError(
                        "no library of the fabric is in this folder, nor in lib or lib64 below it",
                        where=path,
                        hint="name the library itself",
                    )
            elif not self.root.exists(path):
                raise BadInputError("does not exist, or cannot be reached", where=path)
            elif not self.root.is_file(path) or self.files.native_of(path) != self.native:
                raise BadInputError("is not a shared library that this machine's loader can load", where=path)
            elif not any(_is_of(role, path) for role in roles):
                yield path


def _is_of(role: Role, path: str) -> bool:
    return any(fnmatch.fnmatchcase(path.rpartition("/")[2], pattern) for pattern in role.files)


def package_variable(text: str, name: str, folder: str) -> str | None:
    """Return a variable of a .pc file, with what it refers to put in (pc(5)); None where it is not an absolute path."""
    values = {"pcfiledir": folder}
    for line in text.splitlines():
        match = _PC_VARIABLE.fullmatch(line.partition("#")[0].strip())
        if match:
            values[match[1]] = match[2]
    value = values.get(name, "")
    for _ in range(_MAX_EXPANSIONS):
        if "${" not in value or len(value) > _MAX_VALUE:
            break
        value = _PC_REFERENCE.sub(lambda match: values.get(match[1], ""), value)
    return value if value.startswith("/") and "${" not in value else None
