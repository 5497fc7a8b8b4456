"""Logs of containers as JSON, a record a line: what each record holds, with the escapes of JSON undone."""

from __future__ import annotations

import json
from functools import cache

from lumiimg.toml import own_table

_INSPECTED = b'{"header"'
"""Objects that inspector.py reads."""


def unpacked(block: bytes) -> bytes:
    """Return whole lines of a log, each record among them replaced with its message, so that none is added or lost.

    A message of several lines stays one line, whose parts are separated as those of a progress bar are (CR).
    """
    if not block.startswith(b"{") and b"\n{" not in block:
        return block
    return b"\n".join(_message(line) if line.startswith(b"{") else line for line in block.split(b"\n"))


def _message(line: bytes) -> bytes:
    """Return the message of a record; the line as it is where it is none: a program may print JSON of its own."""
    try:
        record = {} if line.startswith(_INSPECTED) else json.loads(line)
    except (ValueError, RecursionError):
        return line
    for text, beside in _keys():
        if text in record and not beside.isdisjoint(record):
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
    records = own_table(__package__, "prefixes.toml")["record"]
    return tuple((table["text"], frozenset(table["beside"])) for table in records)
