"""The JSON that commands print: of a value of a room, the keys that its kind has (json_kinds.toml), without secrets."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

from lumiimg.report.json_kinds import AS_TEXT, KINDS, Keys, fields_of
from lumiimg.secret import HIDDEN, hidden, is_secret_name, secrets_here

_AS_IT_IS = frozenset({"script"})
"""Of a job: it is run, and says what its user said."""
_NOT_ASCII = re.compile("[^\0-~]")


def write_json(kind: str, value: object) -> None:
    """Print a result for machines."""
    print(json_text(kind, value))


def write_json_line(kind: str, value: object) -> None:
    """Print a result for machines in one line, as one of several (JSON Lines)."""
    print(json_text(kind, value).replace("\n", " "), flush=True)  # a line break in a text is an escape


def json_text(name: str, value: object) -> str:
    """Return a value of a kind's type as JSON, with the kind's number."""
    kind = KINDS[name]
    plain = cache(partial(hidden, known=secrets_here()))  # names and paths stand there many times
    return strict_json({kind.number_key: kind.number, **_builtins(value, kind.keys, "", plain)})


def _builtins(value: Any, keys: Keys | None, name: str, plain: Callable[[str], str]) -> Any:  # noqa: ANN401 - JSON
    """Return what `json` can write, with the secrets in texts replaced, and the variables that are called like one."""
    if value is None or isinstance(value, int | float):
        return value
    if dataclasses.is_dataclass(value) and value.__class__.__name__ not in AS_TEXT:
        made = {}
        for key, chosen in (keys or fields_of(value.__class__)).items():
            inner: Any = value
            for part in chosen.path:
                inner = None if inner is None else getattr(inner, part)
            if inner or not chosen.may_be_absent:
                made[key] = _builtins(inner, chosen.keys, key, plain)
        return made
    if isinstance(value, Mapping):
        return {plain(str(key)): _builtins(inner, keys, str(key), plain) for key, inner in value.items()}
    if isinstance(value, tuple | list):
        return [_builtins(inner, keys, name, plain) for inner in value]
    text = str(value)  # as a path, a version, a day are
    is_named = text and name.isupper() and is_secret_name(name)
    return text if name in _AS_IT_IS else HIDDEN if is_named else plain(text)


def strict_json(data: Mapping[str, Any]) -> str:
    r"""Return JSON that every parser takes and every terminal survives (RFC 8259, RFC 7493).

    In ASCII: valid in whatever encoding standard output has, and no direction mark or C1 control out of a hostile file
    reaches the terminal. A byte of a name that is not UTF-8, half a surrogate here, is spelled out in six letters
    (`\udcff`): as an escape it would stand for no character. Raises ValueError for NaN and infinity, which no output
    has.
    """
    return _NOT_ASCII.sub(_escaped, json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False))


def _escaped(letter: re.Match[str]) -> str:
    code = ord(letter[0])
    if 0xD800 <= code < 0xE000:
        return f"\\\\u{code:04x}"
    if code < 0x10000:
        return f"\\u{code:04x}"
    return f"\\u{0xD800 + (code - 0x10000 >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"
