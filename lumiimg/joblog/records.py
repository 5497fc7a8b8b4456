"""Logs of containers as JSON, a record a line: what each record holds, with the escapes of JSON undone.

A collector writes all lines so. Records among other lines are what a program printed: a data set, a model's answers.
"""

from __future__ import annotations

import json
from functools import cache

from lumiimg.core.toml import package_toml

_FOREIGN_SHARE = 100
"""One other line may stand among this number of records: a record that was cut, a line of tail(1) between files."""
_STREAMS = ("stdout", "stderr")


def unpacked(block: bytes, records: int = 0, others: int = 0) -> tuple[bytes, int]:
    """Return whole lines of a log, each record among them replaced with its message, so that none is added or lost.

    `records` and `others`: lines of the file before them that begin as one, and that do not. The number of the latter
    comes back as it is with these lines. A message of several lines stays one line, whose parts are separated as those
    of a progress bar are (CR).
    """
    # one byte is found ten times as fast as two
    here = block.startswith(b"{") + block.count(b"\n{") if b"{" in block else 0
    if not here:
        return block, others + block.count(b"\n")
    lines = block.split(b"\n")
    others += sum(1 for line in lines if line.strip() and not line.startswith(b"{"))
    if others > 1 + (records + here) // _FOREIGN_SHARE:
        return block, others
    return b"\n".join(_message(line) if line.startswith(b"{") else line for line in lines), others


def _message(line: bytes) -> bytes:
    """Return the message of a record; the line as it is where it is none: a program may print JSON of its own."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return line
    for text, beside in _keys():
        if text in record and not beside.isdisjoint(record) and record.get("stream", "stdout") in _STREAMS:
            return _encoded(record[text])
    return line


def _encoded(message: object) -> bytes:
    """Return a message as bytes; journald gives those that are not UTF-8 as numbers."""
    if isinstance(message, list) and all(type(byte) is int and 0 <= byte < 256 for byte in message):
        raw = bytes(message)
    else:
        raw = message.encode("utf-8", "replace") if isinstance(message, str) else b""
    return raw.rstrip(b"\r\n").replace(b"\n", b"\r")


@cache
def _keys() -> tuple[tuple[str, frozenset[str]], ...]:
    """Return the keys of a message, each with keys of which a collector writes one beside it."""
    records = package_toml(__package__, "prefixes.toml")["record"]
    return tuple((table["text"], frozenset(table["beside"])) for table in records)
