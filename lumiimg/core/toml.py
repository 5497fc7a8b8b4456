"""TOML, checked for its size before it is parsed: the only place that calls tomllib.

tomllib records each key of a text, and each prefix of a dotted key, in separate dictionaries: this takes 1 to 3 KB per
part of a key, and time that grows with the square of its parts. A text of 2 MB could require gigabytes.
"""

from __future__ import annotations

import re
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

_MAX_SIGNS = 150_000
"""Limit on `. [ { = ,` outside strings and comments, so on keys, tables and values: 200 MiB. Ours have up to 5,000."""
_MAX_PARTS = 8
"""Limit on the parts of a dotted key; real ones have 6."""
_MAX_WORD = 1_000
"""Limit on a bare key or a number. Python reads hexadecimal integers of any length, but prints 4,300 digits."""
_MAX_MESSAGE = 300
"""Limit on an error message of tomllib, which repeats keys."""
_TEXT_OR_COMMENT = re.compile(
    r""" "{3} | '{3}.*?(?:'{3,5}|\Z) | "(?:[^"\\\n]|\\.)*+"? | '[^'\n]*+'? | \#[^\n]*+ """, re.DOTALL | re.VERBOSE
)
"""Only the opening of a string in triple double quotes: in one pattern, its escapes would take 120 bytes each."""
_ESCAPE_OR_END = re.compile(r'\\.|"{3,5}|\Z', re.DOTALL)
_LONG_WORD = re.compile(rf"\w{{{_MAX_WORD + 1}}}")
_DEEP_KEY = re.compile(rf"(?<![\w-])(?:[\w-]++[ \t]*+\.[ \t]*+){{{_MAX_PARTS}}}")


class TomlError(ValueError):
    """A text that is not TOML, or is larger than anybody writes; the caller adds where it is from."""


def parse_toml(text: str) -> dict[str, Any]:
    """Return the data in a text of others. Raises TomlError."""
    bare = _without_texts(text)
    if _DEEP_KEY.search(bare):
        raise TomlError(f"has a key of more than {_MAX_PARTS} parts")
    if sum(map(bare.count, ".[{=,")) > _MAX_SIGNS:
        raise TomlError(f"has more than {_MAX_SIGNS} keys, tables and values")
    if _LONG_WORD.search(bare):
        raise TomlError(f"has a key or a number of more than {_MAX_WORD} characters")
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise TomlError("is nested too deeply") from error
    except ValueError as error:
        raise TomlError(f"is not TOML: {str(error)[:_MAX_MESSAGE]}") from error


def package_toml(package: str, name: str) -> dict[str, Any]:
    """Return the data in a TOML file of ours in a package."""
    (folder,) = import_module(package).__path__  # importing importlib.resources would take longer than reading the file
    return tomllib.loads(Path(folder, name).read_text("utf-8"))


def _without_texts(text: str) -> str:
    """Return a text with `_` for each string and comment, delimited as by tomllib, up to where that gives up."""
    parts, start = [], 0
    while found := _TEXT_OR_COMMENT.search(text, start):
        parts.append(text[start : found.start()])
        start = found.end()
        if found[0] == '"""':
            start = next(e.end() for e in _ESCAPE_OR_END.finditer(text, start) if not e[0].startswith("\\"))
    return "_".join([*parts, text[start:]])
