"""Typed reading of a TOML file that collects every fault before it complains.

A person who wrote a layer should hear of all three typing errors at once, each with its key and what is allowed there.
Keys and strings are printable, and so of one line: what is written of them is read by lines. `any_text` is quoted.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import difflib
import re
import warnings
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, TypeVar

from lumiimg.decode import DecodeError
from lumiimg.errors import LONG, one_line, shortened
from lumiimg.files import read_beginning
from lumiimg.toml import TomlError, parse_toml

T = TypeVar("T")
FILE_LIMIT_BYTES = 256 * 1024
_MOST_ENTRIES = 4096
"""Of one array."""
_MOST_TOLD = 8
"""Faults of one file."""
LONG_FAULT = 800
"""Characters of a whole fault."""
_NOT_PRINTABLE = "holds a character that cannot be printed, or more than one line"


def read_toml(path: Path) -> dict[str, Any]:
    """Return the parsed file.

    Raises DecodeError if it cannot be read, is not UTF-8 or TOML, or is more than anybody writes.
    """
    text = read_text(path, FILE_LIMIT_BYTES)
    try:
        return parse_toml(text)
    except TomlError as error:
        raise DecodeError(str(error), where=str(path)) from error


def read_text(path: Path, limit_bytes: int) -> str:
    """Return a whole file. Raises DecodeError if it cannot be read, is larger, or is not UTF-8."""
    data = read_limited(path, limit_bytes + 1)
    if len(data) > limit_bytes:
        raise DecodeError(f"is larger than {limit_bytes} bytes", where=str(path))
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DecodeError("is not UTF-8", where=str(path)) from error


def read_limited(path: Path, limit_bytes: int) -> bytes:
    """Return the beginning of a regular file.

    Raises DecodeError if it is something else, or cannot be read.
    """
    try:
        return read_beginning(path, limit_bytes)
    except OSError as error:
        raise DecodeError(f"cannot be read: {error.strerror}", where=str(path)) from error


class Table:
    """A table of a TOML file; asks for keys by type, and remembers what was wrong and what nobody asked for."""

    def __init__(self, data: dict[str, Any], path: Path, key: str = "", faults: list[str] | None = None) -> None:
        self._data = data
        self._path = path
        self._key = key
        self._asked: list[str] = []
        self._children: list[Table] = []
        self.faults: list[str] = [] if faults is None else faults

    def _full(self, key: str) -> str:
        return f"{self._key}.{key}" if self._key else key

    @property
    def data(self) -> dict[str, Any]:
        """The table itself."""
        return self._data

    @property
    def told(self) -> str:
        """What was wrong, in one line."""
        more = len(self.faults) - _MOST_TOLD
        return "; ".join([*map(one_line, self.faults[:_MOST_TOLD]), *([f"and {more} more"] if more > 0 else [])])

    def fault(self, key: str, what: str) -> None:
        """Remember that `key` is wrong."""
        self.faults.append(f"key {shortened(self._full(key))!r} {shortened(what, LONG_FAULT)}")

    def _take(self, key: str, kind: type | tuple[type, ...], article: str, *, required: bool) -> Any:  # noqa: ANN401
        self._asked.append(key)
        if not key.isprintable():
            self.fault(key, _NOT_PRINTABLE)
        if key not in self._data:
            if required:
                self.fault(key, f"is missing ({article})")
            return None
        value = self._data[key]
        if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
            self.fault(key, f"should be {article}, is {_shown(value)}")
            return None
        return value

    def fill(self, kind: type[T], **read: Any) -> T:  # noqa: ANN401 - of any field
        """Return a dataclass whose fields are keys of the table, each read by its type; `read` are those read already.

        A key that may be absent has a default in the dataclass, or None among its types.
        """
        for field in dataclasses.fields(kind):  # type: ignore[arg-type]
            if field.name in read:
                continue
            if field.default is not dataclasses.MISSING and field.name not in self._data:
                self._asked.append(field.name)
            else:
                read[field.name] = _BY_TYPE[str(field.type)](self, field.name)
        return kind(**read)

    def match(self, key: str, pattern: re.Pattern[str], fault: str) -> None:
        """Remember a string that is not of a pattern as a fault."""
        value = self._data.get(key)
        if isinstance(value, str) and value and not pattern.fullmatch(value):
            self.fault(key, f"is {shortened(value)!r}, {fault}")

    def string(self, key: str, *, may_be_empty: bool = False, any_text: bool = False) -> str:
        """Return a string that must be there, and say something unless it may be empty."""
        value = self._take(key, str, "a string", required=True)
        if value is not None and not value.strip() and not may_be_empty:
            self.fault(key, "is empty")
        return (value if any_text else self._printable(key, value)) or ""

    def optional_string(self, key: str) -> str | None:
        """Return a string, or None."""
        return self._printable(key, self._take(key, str, "a string", required=False))

    def _printable(self, key: str, value: str | None) -> str | None:
        if value is not None and not value.isprintable():
            self.fault(key, _NOT_PRINTABLE)
        return value

    def strings(self, key: str) -> tuple[str, ...]:
        """Return an array of strings; an absent one is empty."""
        found = self._array(key, "strings", lambda item: isinstance(item, str))
        self._printable(key, "".join(found))
        return found

    def _array(self, key: str, of: str, fits: Callable[[Any], bool]) -> tuple[Any, ...]:
        value = self._listed(key, of)
        if all(map(fits, value)):
            return tuple(value)
        self.fault(key, f"should be an array of {of}")
        return ()

    def _listed(self, key: str, of: str) -> list[Any]:
        value: list[Any] = self._take(key, list, f"an array of {of}", required=False) or []
        if len(value) <= _MOST_ENTRIES:
            return value
        self.fault(key, f"has {len(value)} entries; at most {_MOST_ENTRIES} are allowed")
        return []

    def flag(self, key: str) -> bool:
        """Return true or false; an absent one is false."""
        return bool(self._take(key, bool, "true or false", required=False))

    def integers(self, key: str) -> tuple[int, ...]:
        """Return an array of whole numbers from 0 on; an absent one is empty."""
        return self._array(key, "whole numbers", lambda item: type(item) is int and 0 <= item < 1_000_000)

    def choice(self, key: str, allowed: Collection[str], *, required: bool = True) -> str:
        """Return one of the allowed words; nothing where it is none of them."""
        value = self.string(key) if required or key in self._data else self.optional_string(key)
        if value and value not in allowed:
            self.fault(key, f"is {shortened(value)!r}; allowed: {', '.join(allowed)}")
        return value if value and value in allowed else ""

    def number(self, key: str) -> float:
        """Return a number above 0 that must be there."""
        return float(self._above_0(key, (int, float), "a number", required=True) or 1)

    def whole(self, key: str, default: int | None = None) -> int:
        """Return a whole number above 0 that must be there unless it has a default."""
        return self._above_0(key, int, "a whole number", required=default is None) or default or 1

    def _above_0(self, key: str, kind: type | tuple[type, ...], article: str, *, required: bool) -> Any:  # noqa: ANN401
        value = self._take(key, kind, article, required=required)
        if value is None or 0 < value < 1_000_000_000:
            return value
        self.fault(key, f"is {_shown(value)}; it should be above 0")
        return 1

    def optional_whole(self, key: str) -> int | None:
        """Return a whole number above 0, or None."""
        value = self.whole(key, default=1)
        return value if key in self._data else None

    def date(self, key: str) -> dt.date:
        """Return a date that must be there."""
        value = self._date(key, required=True)
        return value or dt.date.min

    def optional_date(self, key: str) -> dt.date | None:
        """Return a date, or None."""
        return self._date(key, required=False)

    def _date(self, key: str, *, required: bool) -> dt.date | None:
        value = self._take(key, dt.date, "a date like 2026-11-21, without quotes", required=required)
        if isinstance(value, dt.datetime):
            self.fault(key, "should be a date like 2026-11-21, has a time")
            return None
        return value if isinstance(value, dt.date) else None

    def pattern(self, key: str) -> re.Pattern[str] | None:
        """Return a compiled regular expression, or None."""
        value = self.optional_string(key)
        return None if value is None else self._compiled(key, value)

    def patterns(self, key: str) -> tuple[re.Pattern[str], ...]:
        """Return an array of regular expressions; an absent one is empty."""
        return tuple(filter(None, (self._compiled(key, value) for value in self.strings(key))))

    def _compiled(self, key: str, value: str) -> re.Pattern[str] | None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)  # of `[[`, which later Pythons may read as a set
                return re.compile(value)
        except (re.error, OverflowError, RecursionError) as error:
            self.fault(key, f"is not a valid regular expression: {error}")
            return None

    def table(self, key: str) -> Table:
        """Return a table; an absent one is empty."""
        value = self._take(key, dict, "a table", required=False)
        return self._child(value or {}, key)

    def has_table(self, key: str) -> bool:
        """Whether there is a table, which another reader takes as it is."""
        return self._take(key, dict, "a table", required=False) is not None

    def optional(self, key: str, read: Callable[[Table], T]) -> T | None:
        """Return what `read` makes of a table; None where it is absent."""
        table = self.table(key)
        return read(table) if key in self._data else None

    def tables(self, key: str) -> Iterator[Table]:
        """Yield the tables of an array of tables, `[[key]]`."""
        value = self._listed(key, "tables")
        for index, item in enumerate(value):
            if isinstance(item, dict):
                yield self._child(item, f"{key}[{index}]")
            else:
                self.fault(key, "should be an array of tables")

    def named_tables(self, key: str) -> Iterator[tuple[str, Table]]:
        """Yield name and table of each `[key.name]`."""
        group = self.table(key)
        for name in group._data:  # noqa: SLF001 - its own class
            yield name, group.table(name)

    def string_values(self, *, may_be_empty: bool = False, any_text: bool = False) -> dict[str, str]:
        """Return the whole table as strings by key."""
        return {key: self.string(key, may_be_empty=may_be_empty, any_text=any_text) for key in self._data}

    def _child(self, data: dict[str, Any], key: str) -> Table:
        child = Table(data, self._path, self._full(key), self.faults)
        self._children.append(child)
        return child

    def finish(self) -> None:
        """Complain about everything at once.

        Raises DecodeError if a key was wrong, missing, or not known.
        """
        self._unknown()
        if self.faults:
            raise DecodeError(self.told, where=str(self._path))

    def _unknown(self) -> None:
        allowed = dict.fromkeys(self._asked)
        for key in self._data:
            if key not in allowed:
                near = difflib.get_close_matches(key[:LONG], allowed, n=1)
                hint = f"did you mean {shortened(near[0])!r}? " if near else ""
                self.fault(key, f"is not known; {hint}allowed: {', '.join(allowed)}")
        for child in self._children:
            child._unknown()  # noqa: SLF001 - its own class


_BY_TYPE: dict[str, Callable[[Table, str], Any]] = {
    "str": Table.string,
    "str | None": Table.optional_string,
    "bool": Table.flag,
    "int": Table.whole,
    "int | None": Table.optional_whole,
    "float": Table.number,
    "dt.date": Table.date,
    "dt.date | None": Table.optional_date,
    "tuple[str, ...]": Table.strings,
    "tuple[int, ...]": Table.integers,
}
"""How a field is read, by its type as it is written."""


def _shown(value: object) -> str:
    return repr(value)[:LONG]
