"""Mutations of inputs: bytes, lines and trees, changed in ways that break readers."""

from __future__ import annotations

import json
import tomllib
from typing import TYPE_CHECKING, Any

import tomli_w

from tests.fuzz.target import INPUT_LIMIT_BYTES

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    from tests.fuzz.target import Target

_NEAR_POWERS = {(1 << bits) - less for bits in (2, 3, 6, 7, 8, 9, 12, 15, 16, 31, 32, 63) for less in (0, 1)}
_NUMBERS = sorted(_NEAR_POWERS | {0, 1, 2, 16, 1 << 62, (1 << 64) - 1})
WORDS: tuple[bytes, ...] = (
    *(b"", b"\0", b"\r", b"\t", b" ", b"\\", b"'", b'"', b"$", b"`", b"%", b"{{", b"}}", b"#", b"=", b":", b",", b";"),
    *(b"\x1b[2J", b"\xe2\x80\xae", b"\xc2\x85", b"\xe2\x80\xa8", b"\xff", b"\xed\xa0\x80", b"\xef\xbb\xbf"),
    *(b"\xc2\xb2", b"\xd9\xa3", b"\xe2\x84\xaa", b"\x0b", b"\x0c", b"\x1c"),
    *(b"..", b"/", b"//", b"/../..", b"~", b"*", b"[", b"]"),
    *(b"0", b"-1", b"1e999", b"NaN", b"0x", b"0x1f", b"00", b"4294967296", b"18446744073709551616"),
    *(b"9" * 400, b"0x" + b"f" * 6000, b"9" * 5000),
    *(b"[" * 3000, b"{" * 3000, b"(" * 3000, b"<" * 3000, b"a" * 5000, b"a:" * 2000, b"${" * 1000, b"\n" * 3000),
    *(b"none", b"true", b"null", b"None", b"$(id)", b"%post\n", b"\nBootstrap: docker\n", b"<script>", b"&amp;"),
)
_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, 10**30, 1.5, 1e300, -0.0, "", " ", "x", "/", "..", "../../etc/passwd"),
    *("\0", "\n", "\x1b[2J", "\u202e", "\ud800", "²", 10**400, "9" * 5000, "x" * 5000, "sha256:", "0" * 64),
    *([], {}, [[]], [None], {"": ""}, {"x": {}}, ["x", "x"], [1, "x"]),
    *("$(id)", "{{x}}", "%post", "http://", "https://[", "file:///x", "a@b"),
)


def mutated(target: Target, chance: random.Random, corpus: Sequence[bytes]) -> bytes:
    """Return a new input."""
    data = chance.choice(corpus)
    ways = {"json": (_json, _lines, _bytes), "toml": (_toml, _lines, _bytes), "lines": (_lines, _lines, _bytes)}
    for _ in range(chance.choice((1, 1, 1, 2, 3, 6))):
        way = chance.choice(ways.get(target.form, (_bytes,)))
        data = way(data, chance, corpus)[:INPUT_LIMIT_BYTES]
    return target.repair(data) if target.repair is not None and chance.random() < 0.8 else data


def _bytes(data: bytes, chance: random.Random, corpus: Sequence[bytes]) -> bytes:
    changed = bytearray(data)
    at = chance.randrange(len(changed) + 1)
    size = chance.choice((1, 1, 2, 4, 8, 16, chance.randrange(1, 64)))
    match chance.randrange(8):
        case 0 if changed:
            changed[at % len(changed)] ^= 1 << chance.randrange(8)
        case 1:
            changed[at : at + size] = chance.randbytes(size)
        case 2:  # a number of the format, usually at an aligned offset
            width = chance.choice((1, 2, 4, 8))
            at -= at % chance.choice((1, width))
            order = chance.choice(("little", "little", "big"))
            number = chance.choice(_NUMBERS) if chance.random() < 0.7 else len(data) + chance.randrange(-8, 9)
            changed[at : at + width] = (number % (1 << 8 * width)).to_bytes(width, order)  # type: ignore[arg-type]
        case 3:
            del changed[at : at + size]
        case 4:
            changed[at:at] = changed[at - size : at] * chance.choice((1, 2, 50))
        case 5:
            other = chance.choice(corpus)
            start = chance.randrange(len(other) + 1)
            changed[at:] = other[start:]
        case 6:
            del changed[at:]
        case _:
            changed[at:at] = chance.choice(WORDS)
    return bytes(changed)


def _lines(data: bytes, chance: random.Random, corpus: Sequence[bytes]) -> bytes:
    lines = data.splitlines(keepends=True) or [b""]
    at = chance.randrange(len(lines))
    line = lines[at]
    match chance.randrange(8):
        case 0:
            del lines[at]
        case 1:
            lines.insert(chance.randrange(len(lines) + 1), line * chance.choice((1, 1, 100)))
        case 2:
            lines.insert(at, lines.pop(chance.randrange(len(lines))))
        case 3:
            other = chance.choice(corpus).splitlines(keepends=True) or [b""]
            start = chance.randrange(len(other))
            lines[at:at] = other[start : start + chance.choice((1, 3, 30))]
        case 4:
            lines[at] = line.rstrip(b"\n")
        case 5:  # replace a word
            words = line.split(b" ")
            words[chance.randrange(len(words))] = chance.choice(WORDS)
            lines[at] = b" ".join(words)
        case 6:
            cut = chance.randrange(len(line) + 1)
            lines[at] = line[:cut] + chance.choice(WORDS) + line[cut:]
        case _:
            start = chance.randrange(len(line) + 1)
            lines[at] = line[:start] + line[start + chance.choice((1, 2, 5, 20)) :]
    return b"".join(lines)


def _json(data: bytes, chance: random.Random, corpus: Sequence[bytes]) -> bytes:
    head, newline, rest = data.partition(b"\n") if chance.random() < 0.3 else (data, b"", b"")
    try:
        tree = json.loads(head)
    except (ValueError, RecursionError):
        return _lines(data, chance, corpus)
    return json.dumps(_grafted(tree, chance)).encode() + newline + rest


def _toml(data: bytes, chance: random.Random, corpus: Sequence[bytes]) -> bytes:
    try:
        tree = _grafted(tomllib.loads(data.decode()), chance)
        return tomli_w.dumps(tree).encode("utf-8", "surrogatepass")
    except (ValueError, RecursionError, TypeError, AttributeError):
        return _lines(data, chance, corpus)


def _grafted(tree: Any, chance: random.Random) -> Any:
    """Return a tree in which a value or key somewhere is replaced, repeated or removed."""
    if isinstance(tree, dict) and tree and chance.random() < 0.85:
        key = chance.choice(list(tree))
        match chance.randrange(10):
            case 0:
                return {name: value for name, value in tree.items() if name != key}
            case 1:
                return {**tree, str(chance.choice(_VALUES)): tree[key]}
            case _:
                return {**tree, key: _grafted(tree[key], chance)}
    if isinstance(tree, list) and tree and chance.random() < 0.85:
        at = chance.randrange(len(tree))
        match chance.randrange(8):
            case 0:
                return tree[:at] + tree[at + 1 :]
            case 1:
                return tree[:at] + [tree[at]] * chance.choice((2, 3, 200)) + tree[at:]
            case _:
                return [*tree[:at], _grafted(tree[at], chance), *tree[at + 1 :]]
    if isinstance(tree, str) and tree and chance.random() < 0.5:
        at = chance.randrange(len(tree) + 1)
        return tree[:at] + chance.choice(WORDS).decode("utf-8", "replace") + tree[at:]
    return chance.choice(_VALUES)
