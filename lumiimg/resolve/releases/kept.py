"""Rows that were read, in the user's cache: `releases/LAYER.toml`, in the form of a layer.toml.

They say what is built, so a cache that others may write to is passed over, as is what cannot be read.
"""

from __future__ import annotations

import hashlib
from dataclasses import fields
from typing import TYPE_CHECKING

import tomli_w
from packaging.version import Version

from lumiimg.catalog.layers import Layer, Release, read_release, row_of
from lumiimg.catalog.needs import is_version, version_of
from lumiimg.catalog.settings import open_to_others
from lumiimg.catalog.toml_table import FILE_LIMIT_BYTES, CatalogError, Table, read_toml
from lumiimg.errors import LumiimgError
from lumiimg.files import write_text

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterable
    from pathlib import Path


_MOST_ROWS = 200
_HEAD = "# Read from a package index by lumiimg, which reads it again when it is old; it may be deleted.\n"


def kept_rows(cache: Path, layer: Layer, today: dt.date) -> tuple[tuple[Release, ...], str | None]:
    """Return the rows that are kept of a layer, and why those that are there are passed over, if they are.

    A row from a day that is still to come was read by a clock that was wrong, and counts as none.
    """
    path = _path(cache, layer)
    if not path.is_file():
        return (), None
    for place in (cache, path.parent, path):
        if others := open_to_others(place):
            return (), f"{place} {others}: what was read from a package index is not taken from there"
    try:
        table = Table(read_toml(path), path)
        rule = table.string("rule")
        rows = tuple(read_release(entry, layer.arguments) for entry in table.tables("release"))
        if any(row.read is None or row.derived or not is_version(row.version) for row in rows):
            table.fault("release", "has a row without a version, or without the day on which it was read")
        table.finish()
    except CatalogError as error:
        return (), f"{error}; it is read again where the package index answers"
    if rule != rule_digest(layer):
        return (), None
    return tuple(row for row in rows if row.read is not None and row.read <= today), None


def keep_rows(cache: Path, layer: Layer, rows: Iterable[Release], today: dt.date) -> str | None:
    """Add rows to those that are kept, in the place of others of their versions; return why they could not be kept."""
    rows = [*rows]
    new = {row.version for row in rows}
    kept = [row for row in kept_rows(cache, layer, today)[0] if row.version not in new]
    text = rows_text(layer, sorted([*rows, *kept], key=_order, reverse=True))
    path = _path(cache, layer)
    if len(text.encode()) > FILE_LIMIT_BYTES:
        return f"{path} would be larger than {FILE_LIMIT_BYTES} bytes"
    try:
        if others := open_to_others(cache):
            return f"{cache} {others}"
        path.parent.mkdir(0o700, exist_ok=True)
        if others := open_to_others(path.parent):
            return f"{path.parent} {others}"
        write_text(path, text)
    except LumiimgError as error:
        return str(error)
    except OSError as error:
        return f"{path}: {error.strerror}"
    return None


def rows_text(layer: Layer, rows: Iterable[Release]) -> str:
    """Return the file of a layer's rows."""
    return f'{_HEAD}rule = "{rule_digest(layer)}"\n\n{rows_alone([*rows][:_MOST_ROWS])}'


def rows_alone(rows: Iterable[Release]) -> str:
    """Return rows as they stand in a file."""
    return tomli_w.dumps({"release": [row_of(row) for row in rows]}, multiline_strings=False)


def rule_digest(layer: Layer) -> str:
    """Return the digest of the rule by which rows are read: after a change they are read again."""
    rule = layer.unlisted
    words = [f"{field.name}={getattr(rule, field.name)}" for field in fields(rule)] if rule else []
    return hashlib.sha256("\n".join(words).encode()).hexdigest()[:16]


def _path(cache: Path, layer: Layer) -> Path:
    return cache / "releases" / f"{layer.name}.toml"


def _order(row: Release) -> tuple[Version, str]:
    return version_of(row.version) or Version("0"), row.source
