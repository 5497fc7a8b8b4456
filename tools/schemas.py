"""Make the page on the commands' JSON, docs/reference/json.md, from the schemas."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from lumiimg.report.json_output import KINDS
from lumiimg.report.schema import schema_of
from tools.reference import cell

_HEAD = """\
# The JSON of `--json`

*For developers of programs that read it.* Written by `make docs` from the schemas.

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
- **`[hidden]` replaces a secret** that has a known name or shape ([security](../security.md#secrets)).
- **Each kind has a number**, in the key `schema` (of `plan`: `format`). While it stays the same, only keys and words of a closed set (a new verdict, a new id) are added;
  names, types, units and meanings stay. Skip keys that you do not know, and take an unknown word for "cannot tell". From the first release on
  the number counts up when a key goes, gets another name or meaning, or can be null where it could not. {numbers}
- **A schema is closed**: an older one refuses what was added since. Validate with the schema of the same version; to read many versions, take
  only the keys you need.
- Units are in the names: `_bytes`, `_s` and `seconds`, `_ms`, `_us` microseconds, `_gb_s` 1e9 bytes a second. Times of day are UTC, ISO 8601.
- Sentences (`sentence`, `summary`, `because`, `notes`, …) are for people and change freely; ids and closed sets are for programs.
- The text is strict JSON in ASCII, with `\\u` for other letters, without NaN. A byte of a name that is not UTF-8 is spelled out in six letters,
  `\\udcXX` with XX the byte (in `host.json` it is an escape, as the file is read again).

Two kinds are files: `host` is what `--host` takes, `plan` lies in an image. `lumiimg.lock` is TOML, and no output. What lumiimg keeps for
itself (its cache, the answers of nodes, the origin of a module) has no schema and changes freely. The bill of materials in an image is that of CycloneDX.

## Notation
A key without a type is a string. `key[]` is an array, `key?` can be null, `key*` may be absent; any other key is in every output. Null, where no sentence
says otherwise, means that there is none, or that it is not known. The whole schema (`lumiimg schema NAME`, on the site `schemas/NAME.json`) also describes
the keys of inner objects and the words of closed sets. Each heading is followed by the command, which takes `--json`.
"""


def page() -> Iterator[str]:
    others = [f"`{name}` is at {kind.number}" for name, kind in KINDS.items() if kind.number != 1]
    yield _HEAD.format(numbers=f"{', '.join(others)}, all others at 1." if others else "All are at 1.")
    for name, kind in KINDS.items():
        schema = schema_of(name)
        command = cell(schema["title"]).replace("lumiimg ", "").replace(" --json", "")
        printed_by = command if command.startswith("/") else f"`{command}`"
        yield f"\n## {name}\n\n{printed_by}: {cell(schema['description'])}\n"
        for key, inner in schema["properties"].items():
            if key != kind.number_key:
                marks, of = _type(inner)
                absent = "" if key in schema["required"] else "*"
                text = cell(inner.get("description", "")).rstrip(".")
                yield f"- `{key}{marks}{absent}`{of and f' {of}'}{text and f': {text}'}"


def _type(schema: dict[str, Any]) -> tuple[str, str]:
    """Return a key's marks and its type in words; a string gets no words."""
    if "anyOf" in schema:
        kinds = [_type(each) for each in schema["anyOf"] if each.get("type") != "null"]
        may_be_null = len(kinds) < len(schema["anyOf"])
        return kinds[0][0] + ("?" if may_be_null else ""), " or ".join(filter(None, (kind for _, kind in kinds)))
    if "items" in schema:
        marks, kind = _type(schema["items"])
        return f"[]{marks}", kind
    if "$ref" in schema:
        return "", f"({schema['$ref'].rpartition('/')[2]})"
    if "enum" in schema:
        words = "/".join(f"`{word}`" for word in schema["enum"] if word is not None)
        return "?" if None in schema["enum"] else "", words
    kind = str(schema.get("type", "anything"))
    return "", "" if kind == "string" else kind


PAGES: dict[str, Callable[[], Iterator[str]]] = {"json.md": page}
