"""The file of a host snapshot: `lumiimg host scan` writes it, other commands read it.

The file is JSON, sorted and in ASCII: the same node gives the same bytes, `taken` aside, so that two files can be
compared by `diff`. A key that is absent has its default (empty as a rule); an unknown key is ignored.
`schema` counts up when a reader of the old one would be misled. docs/reference/host-snapshot.md has the table.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from lumiimg.errors import BadInputError
from lumiimg.files import read_beginning, write_text
from lumiimg.host.codec import FormError, count_of_values, decode, encode
from lumiimg.host.snapshot import Snapshot
from lumiimg.host.snapshot_tree import SnapshotTree
from lumiimg.image import RootFileSystem

SCHEMA = 1
MAX_FILE_BYTES = 16 << 20
_MAX_VALUES = 1 << 18
_MAX_PATH_BYTES = 4095
_MAX_NAME_BYTES = 255
_MAX_ENTRIES = 4096
_MAX_WEIGHT = 1 << 28
"""Of all paths with all directories above them, in characters: what a tree of them may take."""
_SHA256 = re.compile(r"[0-9a-f]{64}")
_GLIBC = re.compile(r"[0-9]{1,3}\.[0-9]{1,3}")
_HINT = "take a new one on a compute node: `lumiimg host scan -o host.json`"


class SnapshotError(BadInputError):
    """A file that is not a host snapshot, or one that contradicts itself; `where` is the file and the key."""


def to_text(snapshot: Snapshot) -> str:
    """Return the text of a snapshot's file."""
    return json.dumps(encode(snapshot), indent=1, sort_keys=True, ensure_ascii=True) + "\n"


def write_snapshot(snapshot: Snapshot, path: Path) -> None:
    """Write a snapshot; whoever reads meanwhile sees the old file or the new one, never a part.

    Raises SnapshotError if the name is that of something other than a file, FailedError if it cannot be written.
    """
    if path.exists() and not path.is_file():
        raise SnapshotError("is not a file", where=str(path), hint="`-o -` writes to standard output")
    write_text(path, to_text(snapshot))


def read_snapshot(path: Path) -> Snapshot:
    """Return the snapshot in a file. Raises SnapshotError, whatever the bytes."""
    data = _read_json(path)
    schema = data.get("schema") if isinstance(data, dict) else None
    if type(schema) is not int or schema < 1:
        raise SnapshotError("is not a host snapshot", where=str(path), hint=_HINT)
    if schema > SCHEMA:
        raise SnapshotError(
            f"was written by a newer lumiimg (schema {schema}, this one reads {SCHEMA})",
            where=str(path),
            hint="update lumiimg, or take the snapshot again with this one",
        )
    try:
        snapshot = decode(Snapshot, data)
        _check(snapshot)
    except FormError as error:
        raise SnapshotError(error.what, where=f"{path}: {error.key[:200]}", hint=_HINT) from error
    return snapshot


def _read_json(path: Path) -> object:
    try:
        data = read_beginning(path, MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        what = getattr(error, "strerror", None) or str(error)
        raise SnapshotError(f"cannot be read: {what}", where=str(path), hint=_HINT) from error
    if len(data) > MAX_FILE_BYTES:
        raise SnapshotError(f"has more than {MAX_FILE_BYTES} bytes, which no snapshot has", where=str(path))
    if count_of_values(data) > _MAX_VALUES:
        raise SnapshotError(f"has more than {_MAX_VALUES} values, which no snapshot has", where=str(path))
    try:
        return json.loads(data.decode("utf-8"), parse_constant=_refuse)
    except RecursionError as error:
        raise SnapshotError("is nested too deeply", where=str(path)) from error
    except ValueError as error:
        raise SnapshotError(f"is not JSON: {str(error)[:200]}", where=str(path), hint=_HINT) from error


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON number")


def _check(snapshot: Snapshot) -> None:
    """Raise FormError for what the types allow and no scan writes: the loader model relies on it."""
    if snapshot.glibc is not None and not _GLIBC.fullmatch(snapshot.glibc):
        raise FormError("glibc", "should be a version like 2.38")
    if not snapshot.system_directories or not all(d.startswith("/") for d in snapshot.system_directories):
        raise FormError("system_directories", "should be absolute paths, one at least")
    _check_path("loader", snapshot.loader)
    for key, text in _texts(snapshot):
        try:
            os.fsencode(text)
        except UnicodeEncodeError as error:
            raise FormError(key, "holds a character that no path has") from error
    for index, library in enumerate(snapshot.libraries):
        key = f"libraries[{index}]"
        if not _SHA256.fullmatch(library.sha256):
            raise FormError(f"{key}.sha256", "should be 64 hexadecimal digits")
        if library.facts.elf_class not in (32, 64):
            raise FormError(f"{key}.facts.elf_class", "should be 32 or 64")
    _check_paths(snapshot)


def _check_paths(snapshot: Snapshot) -> None:
    """Raise FormError where the recorded paths are not those of one tree of files."""
    if len(snapshot.entries) > _MAX_ENTRIES:
        raise FormError("entries", f"should be {_MAX_ENTRIES} at most")
    kinds: dict[str, str] = {}
    weight = 0
    for key, path, kind in _recorded(snapshot):
        _check_path(key, path)
        weight += len(path) * path.count("/")
        if weight > _MAX_WEIGHT:
            raise FormError(key, "is one path more than any host has")
        if path in kinds:
            raise FormError(key, "is recorded twice")
        kinds[path] = kind
    for key, path, _ in _recorded(snapshot):
        above = path
        while above := above.rpartition("/")[0]:
            if kinds.get(above, "directory") != "directory":
                raise FormError(key, "lies below something that is not a directory")
    root = RootFileSystem(SnapshotTree(snapshot))
    for index, entry in enumerate(snapshot.entries):
        if not root.is_file(entry.path):
            raise FormError(f"entries[{index}].path", "leads to no recorded library")


def _texts(snapshot: Snapshot) -> Iterator[tuple[str, str]]:
    """Yield key and text of all that is looked up as a path, or followed to one."""
    yield from ((f"links.{path}", text) for path, text in snapshot.links.items())
    yield from (("system_directories", path) for path in snapshot.system_directories)
    yield from ((f"cache.{name}", text) for name, path in snapshot.cache.items() for text in (name, path))
    yield "library_path", snapshot.library_path or ""
    for index, entry in enumerate(snapshot.entries):
        for name, path in entry.closure.items():
            yield f"entries[{index}].closure", name
            yield f"entries[{index}].closure", path or ""


def _recorded(snapshot: Snapshot) -> Iterator[tuple[str, str, str]]:
    """Yield key, path and kind of all that has a place in the file system."""
    for index, library in enumerate(snapshot.libraries):
        yield f"libraries[{index}].path", library.path, "library"
    for path in snapshot.links:
        yield f"links.{path}", path, "link"
    for index, path in enumerate(snapshot.directories):
        yield f"directories[{index}]", path, "directory"


def _check_path(key: str, path: str) -> None:
    parts = path.split("/")
    try:
        data = os.fsencode(path)
    except UnicodeEncodeError as error:
        raise FormError(key, "holds a character that no path has") from error
    if parts[0] or len(parts) < 2 or any(part in ("", ".", "..") for part in parts[1:]) or b"\0" in data:
        raise FormError(key, "should be an absolute path without dots")
    if len(data) > _MAX_PATH_BYTES or any(len(part) > _MAX_NAME_BYTES for part in data.split(b"/")):
        raise FormError(key, "is longer than a path can be")
