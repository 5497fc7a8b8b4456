"""TOML, compared with bounds before it is parsed: the one place that calls tomllib.

tomllib notes each key of a text, and each beginning of a dotted key, in dictionaries of its own: 1 to 3 KB
for a part of a key, and time that grows with the square of its parts. A text of 2 MB could ask for gigabytes.
"""

from __future__ import annotations

import re
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

_MOST_SIGNS = 150_000
"""Of `. [ { = ,` beside texts and comments, so of keys, tables and values: at most 200 MiB. Ours have 5,000 at most."""
_MOST_PARTS = 8
"""Of a dotted key; real ones have 6."""
_LONGEST_WORD = 1_000
"""Characters of a bare key or a number. Python reads hexadecimal integers of any length, but prints 4,300 digits."""
_LONGEST = 300
"""Characters of a complaint of tomllib, which repeats keys."""
_TEXT_OR_COMMENT = re.compile(
    r""" "{3} | '{3}.*?(?:'{3,5}|\Z) | "(?:[^"\\\n]|\\.)*+"? | '[^'\n]*+'? | \#[^\n]*+ """, re.DOTALL | re.VERBOSE
)
"""Of a text between three quotation marks only these: as one pattern, its escapes would take 120 bytes each."""
_ESCAPE_OR_END = re.compile(r'\\.|"{3,5}|\Z', re.DOTALL)
_LONG_WORD = re.compile(rf"\w{{{_LONGEST_WORD + 1}}}")
_DEEP_KEY = re.compile(rf"(?<![\w-])(?:[\w-]++[ \t]*+\.[ \t]*+){{{_MOST_PARTS}}}")


class TomlError(ValueError):
    """A text that is not TOML, or more than anybody writes; where it is from, the caller says."""


def parse_toml(text: str) -> dict[str, Any]:
    """Return what a text of others holds. Raises TomlError."""
    bare = _without_texts(text)
    if _DEEP_KEY.search(bare):
        raise TomlError(f"has a key of more than {_MOST_PARTS} parts")
    if sum(map(bare.count, ".[{=,")) > _MOST_SIGNS:
        raise TomlError(f"has more than {_MOST_SIGNS} keys, tables and values")
    if _LONG_WORD.search(bare):
        raise TomlError(f"has a key or a number of more than {_LONGEST_WORD} characters")
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise TomlError("is nested too deeply") from error
    except ValueError as error:
        raise TomlError(f"is not TOML: {str(error)[:_LONGEST]}") from error


def package_toml(package: str, name: str) -> dict[str, Any]:
    """Return what is in a TOML file of ours, which lies in a package."""
    (folder,) = import_module(package).__path__  # importlib.resources would take longer to import than to read it
    return tomllib.loads(Path(folder, name).read_text("utf-8"))


def _without_texts(text: str) -> str:
    """Return what is beside texts and comments, each a `_`: cut as tomllib cuts, up to where it gives up."""
    parts, start = [], 0
    while found := _TEXT_OR_COMMENT.search(text, start):
        parts.append(text[start : found.start()])
        start = found.end()
        if found[0] == '"""':
            start = next(e.end() for e in _ESCAPE_OR_END.finditer(text, start) if not e[0].startswith("\\"))
    return "_".join([*parts, text[start:]])
