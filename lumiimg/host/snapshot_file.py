"""The file of a host snapshot: `lumiimg host scan` writes it, other commands read it.

The file is JSON, sorted and in ASCII: the same node gives the same bytes, `taken` aside, so that two files can be
compared by `diff`. A key that is absent has its default (empty as a rule); an unknown key is ignored.
`schema` counts up when a reader of the old one would be misled. docs/reference/host-snapshot.md has the table.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from lumiimg.decode import DecodeError, decode, encode, parse_json, read_whole
from lumiimg.errors import BadInputError, shortened
from lumiimg.files import write_text
from lumiimg.host.snapshot import Snapshot
from lumiimg.host.snapshot_tree import HostFiles

SCHEMA = 1
MAX_FILE_BYTES = 16 << 20
_MAX_WEIGHT = 1 << 28
"""Of all paths with all directories above them, in characters: what a tree of them may take."""
_HINT = "take a new one on a compute node: `lumiimg host scan -o host.json`"


def to_text(snapshot: Snapshot) -> str:
    """Return the text of a snapshot's file."""
    return json.dumps(encode(snapshot), indent=1, sort_keys=True, ensure_ascii=True) + "\n"


def write_snapshot(snapshot: Snapshot, path: Path) -> None:
    """Write a snapshot; whoever reads meanwhile sees the old file or the new one, never a part.

    Raises BadInputError if the name is that of something other than a file, FailedError if it cannot be written.
    """
    if path.exists() and not path.is_file():
        raise BadInputError("is not a file", where=str(path), hint="`-o -` writes to standard output")
    write_text(path, to_text(snapshot))


def read_snapshot(path: Path) -> Snapshot:
    """Return the snapshot in a file. Raises DecodeError, whatever the bytes."""
    where = str(path)
    data = parse_json(read_whole(path, MAX_FILE_BYTES, hint=_HINT), where=where, hint=_HINT)
    schema = data.get("schema") if isinstance(data, dict) else None
    if type(schema) is not int or schema < 1:
        raise DecodeError("is not a host snapshot", where=where, hint=_HINT)
    if schema > SCHEMA:
        what = f"was written by a newer lumiimg (schema {schema}, this one reads {SCHEMA})"
        raise DecodeError(what, where=where, hint="update lumiimg, or take the snapshot again with this one")
    snapshot = decode(data, Snapshot, where=where, hint=_HINT)
    if fault := next(_faults(snapshot), None):
        raise DecodeError(f"key {shortened(fault[0])!r} {fault[1]}", where=where, hint=_HINT)
    return snapshot


def _faults(snapshot: Snapshot) -> Iterator[tuple[str, str]]:
    """Yield key and fault of what the types allow and no scan writes; what comes later relies on all before it."""
    try:
        dt.date.fromisoformat(snapshot.taken[:10])
    except ValueError:
        yield "taken", "should be a time like 2026-01-24T10:00:00Z"
    for index, library in enumerate(snapshot.libraries):
        if library.facts.elf_class not in (32, 64):
            yield f"libraries[{index}].facts.elf_class", "should be 32 or 64"
    kinds: dict[str, str] = {}
    weight = 0
    for key, path, kind in _recorded(snapshot):
        weight += len(path) * path.count("/")
        if weight > _MAX_WEIGHT:
            yield key, "is one path more than any host has"
        if path in kinds:
            yield key, "is recorded twice"
        kinds[path] = kind
    for key, path, _ in _recorded(snapshot):
        if any(kinds.get(above, "directory") != "directory" for above in map(str, PurePosixPath(path).parents)):
            yield key, "lies below something that is not a directory"
    files = HostFiles(snapshot)
    for index, entry in enumerate(snapshot.entries):
        if files.library(entry.path) is None:
            yield f"entries[{index}].path", "leads to no recorded library"


def _recorded(snapshot: Snapshot) -> Iterator[tuple[str, str, str]]:
    """Yield key, path and kind of all that has a place in the file system."""
    for index, library in enumerate(snapshot.libraries):
        yield f"libraries[{index}].path", library.path, "library"
    for path in snapshot.links:
        yield f"links.{path}", path, "link"
    for index, path in enumerate(snapshot.directories):
        yield f"directories[{index}]", path, "directory"
