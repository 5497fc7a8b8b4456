"""A pickle as PyTorch's C++ writes one, read as data: nothing that it names is looked up, imported or called.

torch/csrc/jit/serialization/pickler.cpp, as the flight recorder calls it (c10d/TraceUtils.h, pickle_str), writes
protocol 2 of numbers, texts, lists, tuples and dictionaries. What else a pickle can say, such as to call something
(GLOBAL, REDUCE, BUILD), is refused. Codes: https://docs.python.org/3/library/pickletools.html
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from lumiimg.core.errors import BadInputError

PICKLE_LIMIT_BYTES = 32 << 20
_CODES, _VALUES = 8_000_000, 1_000_000
"""Codes that are read, and values that they may make: 20,000 collectives with their call stacks are half of it."""
_HEAD = b"\x80\x02"
_PLAIN = {0x4E: None, 0x88: True, 0x89: False}
"""None, and the two truths."""
_NUMBERS = {0x4B: struct.Struct("<B"), 0x4D: struct.Struct("<H"), 0x4A: struct.Struct("<i"), 0x47: struct.Struct(">d")}
"""Numbers of 1, 2 and 4 bytes, and those with a point."""
_SIZE = struct.Struct("<I")
_TUPLES = {0x85: 1, 0x86: 2, 0x87: 3}
_GET, _PUT = 0x68, 0x71
"""With a number of one byte."""
_MANY = {0x72: False, 0x6A: True}
"""Put and get with a number of four bytes; get is True."""
_MARK, _STOP, _TEXT, _LONG = 0x28, 0x2E, 0x58, 0x8A
_EMPTY: dict[int, Callable[[], object]] = {0x7D: dict, 0x5D: list, 0x29: tuple}
_APPEND, _SET, _TUPLE = 0x65, 0x75, 0x74


def unpickled(data: bytes, where: str) -> object:
    """Return what a pickle of these few kinds of values holds.

    Texts that are not UTF-8 are mended. Raises BadInputError for any other pickle, and for one that is cut off.
    """
    if len(data) > PICKLE_LIMIT_BYTES:
        raise BadInputError(f"is a pickle of more than {PICKLE_LIMIT_BYTES >> 20} MiB", where=where)
    if not data.startswith(_HEAD):
        raise _refused("another protocol than the flight recorder's", where)
    try:
        return _Reader(data, where).value()
    except (IndexError, KeyError, TypeError, ValueError, struct.error) as error:
        raise _refused("it is cut off, or damaged", where) from error


def _refused(what: str, where: str) -> BadInputError:
    return BadInputError(f"is not a pickle that is read here: {what}", where=where, hint="nothing of it was executed")


class _Reader:
    """A stack of values, and the places in it that are marked."""

    def __init__(self, data: bytes, where: str) -> None:
        self._data, self._where = data, where
        self._at = len(_HEAD)
        self._stack: list[object] = []
        self._marks: list[int] = []
        self._memo: dict[int, object] = {}
        self._values = 0

    def value(self) -> object:
        for _ in range(_CODES):
            code = self._data[self._at]
            self._at += 1
            if code == _GET:  # most of them, by far
                self._stack.append(self._memo[self._data[self._at]])
                self._at += 1
                continue
            if code == _STOP:
                (value,) = self._stack
                return value
            self._obey(code)
        raise _refused(f"more than {_CODES:,} codes", self._where)

    def _obey(self, code: int) -> None:
        if code in _PLAIN:
            self._stack.append(_PLAIN[code])
        elif code == _PUT:
            self._memo[self._data[self._skip(1)]] = self._stack[-1]
        elif code in _MANY:
            self._remember(_SIZE.unpack_from(self._data, self._skip(4))[0], get=_MANY[code])
        elif code == _MARK:
            self._marks.append(len(self._stack))
        elif code in {_APPEND, _SET}:
            self._fill(code)
        else:
            self._values += 1
            if self._values > _VALUES:
                raise _refused(f"more than {_VALUES:,} values", self._where)
            self._stack.append(self._made(code))

    def _made(self, code: int) -> object:
        if code in _EMPTY:
            return _EMPTY[code]()
        if code in _NUMBERS:
            form = _NUMBERS[code]
            return form.unpack_from(self._data, self._skip(form.size))[0]
        if code == _TEXT:
            return self._bytes(_SIZE.unpack_from(self._data, self._skip(4))[0]).decode("utf-8", "replace")
        if code == _LONG:
            size = self._data[self._skip(1)]
            if size > 8:
                raise _refused("a number of more than 64 bits", self._where)
            return int.from_bytes(self._bytes(size), "little", signed=True)
        if code in _TUPLES:
            return tuple([self._stack.pop() for _ in range(_TUPLES[code])][::-1])
        if code == _TUPLE:
            return tuple(self._since_mark())
        raise _refused(f"code {code:#04x} at byte {self._at - 1}", self._where)

    def _fill(self, code: int) -> None:
        """Put what stands behind the mark into the list or dictionary before it; keys are texts or numbers."""
        items = self._since_mark()
        into = self._stack[-1]
        if code == _APPEND and isinstance(into, list):
            into += items
        elif code == _SET and isinstance(into, dict):
            keys = items[::2]
            if not all(isinstance(key, str | int) for key in keys):  # the hash of a deep tuple would end the process
                raise _refused("a key that is neither text nor a number", self._where)
            into.update(zip(keys, items[1::2], strict=True))
        else:
            raise _refused("values without a place", self._where)

    def _remember(self, number: int, *, get: bool) -> None:
        if get:
            self._stack.append(self._memo[number])
        else:
            self._memo[number] = self._stack[-1]

    def _since_mark(self) -> list[object]:
        start = self._marks.pop()
        items = self._stack[start:]
        del self._stack[start:]
        return items

    def _bytes(self, size: int) -> bytes:
        start = self._skip(size)
        return self._data[start : self._at]

    def _skip(self, size: int) -> int:
        """Go on by a number of bytes, and return where they begin."""
        start, self._at = self._at, self._at + size
        if self._at > len(self._data):
            raise IndexError
        return start
