"""What the loaders of two hosts serve for a name: which libraries are gone, new, elsewhere, or ask for more.

Names are compared, not files: a bind is made for a name that a library needs (DT_NEEDED), and what is behind the name
may be another file after every update.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumiimg.elf.c_library import of_c_library
from lumiimg.elf.versions import numbers_of
from lumiimg.host.node_change import ChangeKind, NodeChange, Subject
from lumiimg.host.snapshot_tree import SnapshotTree
from lumiimg.image import RootFileSystem

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from lumiimg.host.snapshot import FoundLibrary, HostLibrary, Snapshot

FABRIC_ROLES = ("libfabric", "libfabric-provider", "libcxi", "net-plugin")
_HELPER_ROLE = "cxi-helper"
"""Libraries that libfabric may be linked with, or open: told by their names, as what it needs."""
_NAMED = 4
"""Names of versions that one detail lists."""


class LibraryIndex:
    """The libraries of one snapshot, by path and by name."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self._root = RootFileSystem(SnapshotTree(snapshot))
        self._libraries = {library.path: library for library in snapshot.libraries}
        self.of_fabric = self._names(of_fabric=True)
        others = self._names(of_fabric=False)
        self.others = {name: path for name, path in others.items() if name not in self.of_fabric}

    def library(self, path: str) -> HostLibrary | None:
        """Return what a path, perhaps of a link, leads to; None where nothing is recorded."""
        return self._libraries.get(self._root.resolve(path)) if self._root.is_file(path) else None

    def _names(self, *, of_fabric: bool) -> dict[str, str]:
        """Return the path for each name in the closures of the entries; the first one counts, as for a bind."""
        entries = [entry for entry in self.snapshot.entries if entry.role != _HELPER_ROLE]
        own = {_file_name(entry) for entry in entries}
        found: dict[str, str] = {}
        for entry in self.snapshot.entries:
            is_helper = entry.role == _HELPER_ROLE
            if (is_helper or entry.role in FABRIC_ROLES) is of_fabric:
                itself = {_file_name(entry): entry.path} if is_helper else {}
                for name, path in (itself | entry.closure).items():
                    library = self.library(path) if path is not None else None
                    if path is not None and library is not None and name not in own and not of_c_library(library.facts):
                        found.setdefault(name, path)
        return found


def library_changes(before: LibraryIndex, now: LibraryIndex) -> Iterator[NodeChange]:
    """Yield what became of the entries of two snapshots, then of what they need."""
    yield from _entry_changes(before, now)
    yield from _name_changes(Subject.LIBRARIES, before, now, before.of_fabric, now.of_fabric)
    yield from _name_changes(Subject.OTHER, before, now, before.others, now.others)


# -- entries: each is a file that the scan looked for --


def _entry_changes(before: LibraryIndex, now: LibraryIndex) -> Iterator[NodeChange]:
    for old, new in _pairs(before.snapshot.entries, now.snapshot.entries):
        entry = new or old
        if entry is None or entry.role == _HELPER_ROLE:
            continue
        subject = Subject.FABRIC if entry.role in FABRIC_ROLES else Subject.OTHER
        name = _file_name(entry)
        change = _change(subject, name, before, now, old.path if old else None, new.path if new else None)
        words = f"the host itself cannot load it: {new.errors[0]}" if new and new.errors else None
        if words is not None and old is not None and not old.errors:
            details = (*(change.details if change else ()), words)
            yield NodeChange(subject, ChangeKind.CHANGED, name, old.path, entry.path, details, may_break=True)
        elif change is not None:
            yield change


def _pairs(
    before: Sequence[FoundLibrary], now: Sequence[FoundLibrary]
) -> Iterator[tuple[FoundLibrary | None, FoundLibrary | None]]:
    """Yield the entries of two snapshots side by side: by path, else those of one role and name in their order."""
    left = {entry.path: entry for entry in before}
    waiting: dict[tuple[str, str], list[FoundLibrary]] = {}
    paths = {entry.path for entry in now}
    for entry in before:
        if entry.path not in paths:
            waiting.setdefault((entry.role, _file_name(entry)), []).append(entry)
    for entry in now:
        old = left.get(entry.path)
        if old is None and (others := waiting.get((entry.role, _file_name(entry)))):
            old = others.pop(0)
        yield old, entry
    yield from ((entry, None) for entries in waiting.values() for entry in entries)


def _file_name(entry: FoundLibrary) -> str:
    return entry.path.rpartition("/")[2]


# -- names: what the entries need --


def _name_changes(
    subject: Subject, before: LibraryIndex, now: LibraryIndex, names: Mapping[str, str], names_now: Mapping[str, str]
) -> Iterator[NodeChange]:
    for name in sorted(names.keys() | names_now.keys()):
        change = _change(subject, name, before, now, names.get(name), names_now.get(name))
        if change is not None:
            yield change


# -- two files of one name --


def _change(
    subject: Subject, name: str, before: LibraryIndex, now: LibraryIndex, old_path: str | None, new_path: str | None
) -> NodeChange | None:
    """Return what became of a name; None where it is where it was, and no loader sees a difference."""
    counts = subject is not Subject.OTHER
    if old_path is None or new_path is None:
        kind = ChangeKind.NEW if old_path is None else ChangeKind.GONE
        return NodeChange(subject, kind, name, old_path, new_path, may_break=counts and kind is ChangeKind.GONE)
    old, new = before.library(old_path), now.library(new_path)
    if old is None or new is None:
        return None
    demands = tuple(_demands(old, new))
    gains = tuple(_losses(new, old, "also defines", "no longer needs", "also has of the net API"))
    if not demands and not gains and old_path == new_path:
        return None
    has_left = old_path != new_path and now.library(old_path) is None
    may_break = counts and bool(demands or has_left)
    return NodeChange(subject, ChangeKind.CHANGED, name, old_path, new_path, demands + gains, may_break=may_break)


def _demands(old: HostLibrary, new: HostLibrary) -> Iterator[str]:
    """Yield what a newer library asks for beside what the older one did, and what it does not give any more."""
    if old.facts.soname != new.facts.soname:
        yield f"soname {old.facts.soname} -> {new.facts.soname}"
    before = _needs(old)
    for (file, family), version in _needs(new).items():
        known = before.get((file, family))
        if known is None or numbers_of(version) > numbers_of(known):
            yield f"needs {version} of {file}{f', before {known}' if known else ''}"
    yield from _losses(old, new, "no longer defines", "also needs", "no longer has of the net API")


def _losses(old: HostLibrary, new: HostLibrary, defines: str, needs: str, has: str) -> Iterator[str]:
    """Yield what the second library does not define, what it alone needs, and what it lacks of the net API."""
    for words, names, others in (
        (defines, old.facts.version_definitions, new.facts.version_definitions),
        (needs, new.facts.needed, old.facts.needed),
        (has, old.net_symbols, new.net_symbols),
    ):
        if only := set(names) - set(others):
            yield f"{words}: {_some(only)}"


def _needs(library: HostLibrary) -> dict[tuple[str, str], str]:
    """Return the newest version that is needed of each file and family (`GLIBC`); weak needs stop nothing."""
    newest: dict[tuple[str, str], str] = {}
    for need in library.facts.version_needs:
        numbers = numbers_of(need.name)
        key = need.file, need.name.rpartition("_")[0] if numbers else need.name
        if not need.weak and (key not in newest or numbers > numbers_of(newest[key])):
            newest[key] = need.name
    return newest


def _some(names: Collection[str]) -> str:
    rest = len(names) - _NAMED
    return f"{', '.join(sorted(names)[:_NAMED])}{f' and {rest} more' if rest > 0 else ''}"
