"""The page of the JSON that commands print, from the schemas: docs/reference/json.md."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from lumiimg.report.schema import kind_of, names, schema_of
from tools.reference import cell

_WORDS = re.compile(r"`[^`]+`: .*")
_EMPTY = re.compile(r"\b(?:null|None|empty)\b", re.IGNORECASE)
_LINE = re.compile(rf"{_EMPTY.pattern}|`|(?:\S+\s+){{11}}")
_NOT_KNOWN = re.compile(
    r"(?:^|[;.,]? )(?:may be absent|(?:null|none)(?: where|:) [^;:.]*\b(?:not|none|nobody|unless|only|without|no)\b[^;:.]*)$",
    re.IGNORECASE,
)
"""Sentences worth their room: what an empty value means; of a key with a line of its own also a value, or more than eleven words."""
_HEAD = """\
# The JSON of `--json`

For whoever writes programs that read it. Written by `make docs` from the schemas.

With `--json` a command prints one JSON object on standard output, and its text for people on standard error. Each kind of output has a JSON Schema
(draft 2020-12), which describes every key and is complete in itself:

<!-- run: with image.sif; exit 3 -->
```sh
lumiimg schema                                # the names, a line each
lumiimg schema check > check.schema.json
lumiimg check image.sif --json > check.json
```

<!-- run: no, a validator of your own; the tests have one of theirs -->
```sh
check-jsonschema --schemafile check.schema.json check.json      # or any other
```

The tests of lumiimg hold every JSON that they see it print against these schemas.

## How to read it
- **The exit code is the answer**; the JSON says why. Where standard output is empty there is no result: the command could not do its work, and
  a line on standard error says why ([exit codes](exit-codes.md)).
- **`[hidden]` stands in the place of a secret**, as far as name or shape shows it ([security](../security.md#secrets)).
- **Each kind has a number**, in the key `schema` (of `plan`: `format`). While it stays the same, only keys and words of a closed set (a new verdict, a new id) are added;
  names, types, units and meanings stay. Skip keys that you do not know, and take an unknown word for "cannot tell". The number counts
  up when a key goes, gets another name or meaning, or can be null where it could not. {numbers}
- **A schema is closed**: an older one refuses what was added since. Validate with the schema of the same version; to read many versions, take
  only the keys you need.
- Units are in the names: `_bytes`, `_s` and `seconds`, `_ms`, `_us` microseconds, `_gb_s` 1e9 bytes a second. Times of day are UTC, ISO 8601.
- Sentences (`sentence`, `summary`, `because`, `notes`, …) are for people and change freely; ids and closed sets are for programs.
- The text is strict JSON in ASCII, with `\\u` for other letters, without NaN. A byte of a name that is not UTF-8 is spelled out in six letters,
  `\\udcXX` with XX the byte (in `host.json` it is an escape, as the file is read again).

Two kinds are files: `host` is what `--host` takes, `plan` lies in an image. `lumiimg.lock` is TOML, and no output. What lumiimg keeps for
itself (its cache, the answers of nodes, the origin of a module) has no schema and changes freely. The bill of materials in an image is that of CycloneDX.

## Notation
A key without a type is a string. `key[]` is an array, `key{{}}` an object with keys of its own, `key?` can be null, `key*` may be absent; any other key is in
every output. Parentheses hold the keys of an inner object. `lumiimg schema NAME` (on the site `schemas/NAME.json`) has a sentence for each key; here are those that the names do not say. Null, where no sentence says otherwise, means that there is none, or that it is not known. Each heading is followed
by the command, which takes `--json`.
"""


def page() -> Iterator[str]:
    schemas = {name: schema_of(name) for name in names()}
    others = [f"`{name}` is at {kind_of(name).number}" for name in schemas if kind_of(name).number != 1]
    yield _HEAD.format(numbers=f"{', '.join(others)}, all others at 1." if others else "All are at 1.")
    shared = _shared(schemas.values())
    for name, schema in schemas.items():
        command = cell(schema["title"]).replace("lumiimg ", "").replace(" --json", "")
        printed_by = command if command.startswith("/") else f"`{command}`"
        yield f"\n## {name}\n\n{printed_by}: {cell(schema['description'])}\n"
        yield from _Kind(schema.get("$defs", {}), frozenset(shared)).lines(schema, kind_of(name).number_key)
    yield "\n## Shapes that are in several places"
    for name, (shape, shapes) in sorted(shared.items()):
        yield f"\n### {name}\n\n{cell(shape['description'])}"
        if "properties" in shape:
            yield f"\n{_Kind(shapes, frozenset(shared)).in_one(shape)}"
        elif name == "Code":
            yield "[Findings](findings.md) has the ids."
        elif words := [word for word in shape["enum"] if f"`{word}`: " not in shape["description"]]:
            yield f"Words: {_quoted(words)}."


class _Kind:
    """The keys of one kind of output, in words."""

    def __init__(self, shapes: dict[str, Any], shared: frozenset[str]) -> None:
        self._shapes = shapes
        self._shared = shared

    def lines(self, schema: dict[str, Any], number_key: str = "") -> Iterator[str]:
        """Yield the keys but the number; those that say enough by their names side by side."""
        silent: list[str] = []
        for key, inner in schema["properties"].items():
            if key == number_key:
                continue
            line = self._key(key, inner, schema["required"])
            more = _said(inner, _LINE) + self._below(inner)
            if not more:
                silent.append(line)
                continue
            yield from _together(silent)
            silent = []
            yield f"- {line}{more}"
        yield from _together(silent)

    def _key(self, key: str, schema: dict[str, Any], required: list[str]) -> str:
        marks, kind = self._type(schema)
        absent = "" if key in required else "*"
        return f"`{key}{marks}{absent}`{f' {kind}' if kind else ''}"

    def _type(self, schema: dict[str, Any]) -> tuple[str, str]:
        """Return a key's marks, and its type in words; no words for a string."""
        if "anyOf" in schema:
            inner, *others = [each for each in schema["anyOf"] if each.get("type") != "null"]
            marks, kind = self._type(inner)
            words = " or ".join([kind, *(self._type(other)[1] for other in others)]) if others else kind
            return (f"{marks}?" if len(schema["anyOf"]) > 1 + len(others) else marks), words
        if (name := _name_of(schema)) in self._shared:
            return "", f"[{name}](#{name.lower()})"
        schema = self._shapes.get(name, schema)
        if "enum" in schema:
            return ("?" if None in schema["enum"] else ""), "" if _meanings(schema) else _quoted(schema["enum"], "/")
        if "const" in schema:
            return "", str(schema["const"])
        if items := schema.get("items") or next(iter(schema.get("prefixItems", ())), None):
            marks, kind = self._type(items)
            return f"[]{marks}", kind
        if isinstance(values := schema.get("additionalProperties"), dict) and values:
            marks, kind = self._type(values)
            return f"{{}}{marks}", kind
        kind = schema.get("type", "anything")
        return "", "" if kind == "string" or "properties" in schema else kind

    def _below(self, schema: dict[str, Any]) -> str:
        """Return the keys of an inner object that only this kind has, or what the words of a closed set mean."""
        inner = next(iter(schema.get("anyOf", [schema])))
        name = _name_of(inner)
        if name in self._shared:
            return ""
        inner = self._shapes.get(name, inner)
        if items := inner.get("items"):
            return self._below(items)
        if isinstance(values := inner.get("additionalProperties"), dict):
            return self._below(values)
        if "properties" not in inner:
            meanings = _meanings(inner)
            return f" {meanings}" if meanings else ""
        return f" ({self.in_one(inner)})"

    def in_one(self, schema: dict[str, Any]) -> str:
        """Return the keys of an object side by side."""
        return "; ".join(
            f"{self._key(key, inner, schema['required'])}{_said(inner, _EMPTY)}{self._below(inner)}"
            for key, inner in schema["properties"].items()
        )


def _together(keys: list[str]) -> Iterator[str]:
    if keys:
        yield f"- {', '.join(keys)}"


def _said(schema: dict[str, Any], wanted: re.Pattern[str]) -> str:
    """Return the sentence about a key, where it says more than the name."""
    what = _NOT_KNOWN.sub("", cell(schema.get("description", "")).rstrip("."))
    return f": {what}" if wanted.search(what) else ""


def _meanings(shape: dict[str, Any]) -> str:
    """Return what the words of a closed set mean, as far as its description says so."""
    found = _WORDS.search(shape.get("description", "")) if "enum" in shape else None
    return found[0] if found else ""


def _quoted(words: Iterable[str | None], between: str = " ") -> str:
    return between.join(f"`{word}`" for word in words if word is not None)


def _name_of(schema: dict[str, Any]) -> str:
    return str(schema.get("$ref", "")).rpartition("/")[2]


def _shared(schemas: Iterable[dict[str, Any]]) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Return the shapes that several keys have, by their names, each with those that it may refer to."""
    used = Counter(name for schema in schemas for name in _references(schema))
    found: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {}
    namesakes = set()
    for schema in schemas:
        for name, shape in schema.get("$defs", {}).items():
            if found.setdefault(name, (shape, schema["$defs"]))[0] != shape:
                namesakes.add(name)
    return {
        name: shape for name, shape in found.items() if used[name] > 1 and name not in namesakes and "." not in name
    }


def _references(schema: object) -> Iterator[str]:
    """Yield the name of each shape, each time that a schema refers to it."""
    if isinstance(schema, list):
        for inner in schema:
            yield from _references(inner)
    if isinstance(schema, dict):
        if "$ref" in schema:
            yield _name_of(schema)
        yield from _references(list(schema.values()))


PAGES: dict[str, Callable[[], Iterator[str]]] = {"json.md": page}
