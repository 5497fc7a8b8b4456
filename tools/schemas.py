"""Writes docs/reference/json.md from the schemas: `make docs`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator
from typing import Any

from lumiimg.report.schema import kind_of, names, schema_of
from tools.reference import REFERENCE, cell, text

_WORDS = re.compile(r"`[^`]+`: .*")
_HEAD = """\
# The JSON of `--json`

For whoever writes programs that read it. Written by `make docs` from the schemas; a test fails when it is old.

With `--json` a command prints one JSON object on standard output, and its text for people on standard error. What it can hold
has a JSON Schema (draft 2020-12), which is part of lumiimg:

<!-- run: with image.sif; exit 3 -->
```sh
lumiimg schema                                # the names, a line each
lumiimg schema check > check.schema.json      # one of them, which needs no other file
lumiimg check image.sif --json > check.json
```

<!-- run: no, a validator of your own; the tests have one of theirs -->
```sh
check-jsonschema --schemafile check.schema.json check.json      # or any other
```

The tests of lumiimg hold every JSON that they see it print against these schemas.

## How to read it
- **The exit code is the answer**; the JSON says why. Where standard output is empty there is no result: the command could not do its work (a
  wrong word, no engine, a build step that failed), and a line on standard error says what was in the way.
- **`[hidden]` stands in the place of a secret**, as far as name or shape shows it ([security](../security.md#secrets)).
- **`schema` is the number of the kind of output**, each kind has its own. While it stays the same, keys are only added, and words
  to a closed set (a new verdict, a new id); what is there keeps its name, its type, its unit and its meaning. A reader passes over
  keys that it does not know, and takes a word that it does not know for "cannot tell". The number counts up when a key goes, is called
  otherwise, can be null where it could not, or means something else.
- **A schema is that of the lumiimg that prints it**: it is closed, so a validator with the schema of an older one refuses what
  was added since. Validate with the schema of the same version (`lumiimg schema`); to go with many versions, read what you need.
- Every key is there in every output, null where there is nothing to say, but where a table says *may be absent*.
- Units are in the names: `_bytes` bytes, `_s` and `seconds` seconds, `_ms` milliseconds, `_us` microseconds, `_gb_s` 1e9 bytes a second. Times
  of the clock are UTC, ISO 8601.
- Sentences (`sentence`, `summary`, `because`, `notes`, …) are for people and change freely; ids and closed sets are for programs.
- The text is strict JSON in ASCII, with `\\u` for other letters: valid in any encoding, and nothing in it moves a cursor. There is no NaN. A byte of
  a name that is not UTF-8 is spelled out in six letters, `\\udcXX` with XX the byte (in `host.json` it is an escape, as the file
  is read again).

Two kinds are files: `host` is what `--host` takes, `plan` lies in an image. `lumiimg.lock` is TOML, and no output. What lumiimg keeps for
itself (its cache, the answers of nodes, the origin of a module) has no schema and changes freely. The JSON of `bind --format cdi` is
that of the Container Device Interface, the bill of materials in an image that of CycloneDX.
"""


def main() -> None:
    for name, lines in PAGES.items():
        (REFERENCE / name).write_text(text(lines))


def page() -> Iterator[str]:
    yield _HEAD
    yield "| schema | printed by | what it says |\n|---|---|---|"
    schemas = {name: schema_of(name) for name in names()}
    for name, schema in schemas.items():
        yield f"| [{name}](#{name}) | {cell(schema['title'])} | {cell(schema['description'])} |"
    shared = _shared(schemas.values())
    for name, schema in schemas.items():
        yield f"\n## {name}\n\nSchema {kind_of(name).number}. {cell(schema['title'])}: {cell(schema['description'])}\n"
        yield from table(_inlined(schema, schema.get("$defs", {}), shared.keys()))
    yield "\n## Shapes that are in several places"
    for name, (shape, shapes) in sorted(shared.items()):
        yield f"\n### {name}\n\n{cell(shape['description'])}\n"
        shape = {key: _inlined(inner, shapes, shared.keys()) for key, inner in shape.items()}  # noqa: PLW2901
        yield from table(shape) if "properties" in shape else [f"One of {type_of(shape)}."]


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
            yield shape_name(schema)
        yield from _references(list(schema.values()))


def _inlined(schema: Any, shapes: dict[str, Any], kept: Container[str]) -> Any:
    """Return a schema with the shapes that only it has in their places."""
    if isinstance(schema, list):
        return [_inlined(inner, shapes, kept) for inner in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema and shape_name(schema) not in kept:
        own, shape = {key: value for key, value in schema.items() if key != "$ref"}, shapes[shape_name(schema)]
        if "enum" in shape and "description" in own:
            own["description"] = f"{own['description']} {_words(shape)}".strip()
        return _inlined(shape | own, shapes, kept)
    return {key: _inlined(inner, shapes, kept) for key, inner in schema.items() if key != "$defs"}


def _words(shape: dict[str, Any]) -> str:
    """Return what the words of a closed set mean, as far as its description says so."""
    found = _WORDS.search(shape["description"])
    return found[0] if found else ""


def shape_name(schema: dict[str, Any]) -> str:
    return str(schema["$ref"].rpartition("/")[2])


def table(schema: dict[str, Any]) -> Iterator[str]:
    yield "| key | type | what |\n|---|---|---|"
    yield from rows(schema, "")


def rows(schema: dict[str, Any], above: str) -> Iterator[str]:
    """Yield a row for each key, and below an object one for each of its own."""
    for key, inner in schema.get("properties", {}).items():
        absent = "" if key in schema["required"] else " May be absent."
        yield f"| `{above}{key}` | {type_of(inner)} | {cell(inner.get('description', ''))}{absent} |"
        yield from below(inner, f"{above}{key}")


def below(schema: dict[str, Any], path: str) -> Iterator[str]:
    inner = next(iter(schema.get("anyOf", [schema])))
    if inner.get("items"):
        yield from below(inner["items"], f"{path}[]")
    elif isinstance(inner.get("additionalProperties"), dict):
        yield from below(inner["additionalProperties"], f"{path}.*")
    else:
        yield from rows(inner, f"{path}.")


def type_of(schema: dict[str, Any]) -> str:
    if "anyOf" in schema:
        return " or ".join(map(type_of, schema["anyOf"]))
    if "$ref" in schema:
        return f"[{shape_name(schema)}](#{shape_name(schema).lower()})"
    if "const" in schema:
        return f"{schema['const']}"
    if "enum" in schema:
        return " ".join("null" if word is None else f'`"{word}"`' for word in schema["enum"])
    kind: str = schema.get("type", "anything")
    items = schema.get("items") or next(iter(schema.get("prefixItems", ())), None)
    if items:
        return f"{kind} of {type_of(items)}"
    values = schema.get("additionalProperties")
    return f"{kind} of {type_of(values)}" if isinstance(values, dict) and values else kind


PAGES: dict[str, Callable[[], Iterator[str]]] = {"json.md": page}

if __name__ == "__main__":
    main()
