"""Text as Go, the language of the engines, writes it: what they leave in an image is the same here, byte by byte."""

from __future__ import annotations

import json

_HTML = {ord(character): f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}
_SHORT = {"\a": r"\a", "\b": r"\b", "\f": r"\f", "\n": r"\n", "\r": r"\r", "\t": r"\t", "\v": r"\v"}
_SHORT |= {'"': r"\"", "\\": r"\\"}


def go_json(value: object, indent: str | None = None) -> str:
    """Return JSON as encoding/json does, with its escapes for HTML; keys of objects stay in their order."""
    separators = (",", ": ") if indent is not None else (",", ":")
    return whole(json.dumps(value, ensure_ascii=False, indent=indent, separators=separators)).translate(_HTML)


def go_quote(text: str) -> str:
    """Return text as %q has it (strconv.Quote)."""
    return f'"{"".join(map(_quoted, whole(text)))}"'


def whole(text: str) -> str:
    """Return text with U+FFFD for each byte or half of a character that Go can not read."""
    return "".join("\ufffd" if 0xD800 <= ord(character) <= 0xDFFF else character for character in text)


def _quoted(character: str) -> str:
    if character in _SHORT:
        return _SHORT[character]
    if character.isprintable():
        return character
    number = ord(character)
    if number < 0x20 or number == 0x7F:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"
