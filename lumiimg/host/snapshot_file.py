"""The file of a host snapshot: `lumiimg host scan` writes it, other commands read it.

The file is JSON, sorted and in ASCII: the same node gives the same bytes, `taken` aside, so that two files can be
compared by `diff`. A key that is absent has its default (empty as a rule); an unknown key is ignored.
`schema` counts up when a reader of the old one would be misled. docs/reference/host-snapshot.md has the table.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from pathlib import Path

from lumiimg.core.decode import DecodeError, decode, encode, parse_json, read_whole
from lumiimg.core.errors import BadInputError
from lumiimg.core.files import write_text
from lumiimg.host.snapshot import Snapshot
from lumiimg.host.snapshot_tree import HostFiles
from lumiimg.image import ImageError

SCHEMA = 1
MAX_FILE_BYTES = 16 << 20
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
        raise DecodeError(fault, where=where, hint=_HINT)
    return snapshot


def _faults(snapshot: Snapshot) -> Iterator[str]:
    """Yield what the types allow and no scan writes; what comes later relies on all before it."""
    try:
        dt.date.fromisoformat(snapshot.taken[:10])
    except ValueError:
        yield "key 'taken' should be a time like 2026-01-24T10:00:00Z"
    try:
        files = HostFiles(snapshot)
    except ImageError as error:
        yield str(error)
        return
    for index, entry in enumerate(snapshot.entries):
        if files.library(entry.path) is None:
            yield f"key 'entries[{index}].path' leads to no recorded library"
