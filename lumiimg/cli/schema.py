"""Print the JSON Schema of a kind of output."""

from __future__ import annotations

import argparse
import difflib
import sys
import textwrap
from collections.abc import Collection

from lumiimg.errors import BadInputError, ExitCode
from lumiimg.report.json_builds import SchemaEntry, Schemas
from lumiimg.report.json_kinds import KINDS
from lumiimg.report.json_output import print_json, strict_json
from lumiimg.report.schema import schema_of


def execute(arguments: argparse.Namespace) -> int:

    if arguments.name is None:
        _list(as_json=arguments.json)
        return ExitCode.GOOD
    if arguments.name not in KINDS:
        raise BadInputError(f"there is no schema {arguments.name!r}", hint=_hint(arguments.name, KINDS))
    sys.stdout.write(f"{strict_json(schema_of(arguments.name))}\n")
    return ExitCode.GOOD


def _list(*, as_json: bool) -> None:

    listed = tuple(SchemaEntry(name, kind.number, kind.printed_by, kind.summary) for name, kind in KINDS.items())
    if as_json:
        print_json("schemas", Schemas(listed))
        return
    for kind in listed:
        print(textwrap.fill(kind.summary, 80, initial_indent=f"{kind.name:<19}", subsequent_indent=" " * 19))
    print("\none of them: lumiimg schema NAME    as tables: docs/reference/json.md")


def _hint(name: str, names: Collection[str]) -> str:
    word = name.partition("-")[0]
    near = [known for known in names if known.partition("-")[0] == word]
    near = near or difflib.get_close_matches(name, names, n=3, cutoff=0.6)
    return f"did you mean {' or '.join(near)}?" if near else "`lumiimg schema` lists them"
