"""Print the JSON Schema of a kind of output."""

from __future__ import annotations

import argparse
import difflib
import sys
import textwrap
from collections.abc import Sequence

from lumiimg.errors import BadInputError, ExitCode


def execute(arguments: argparse.Namespace) -> int:
    from lumiimg.report import schema

    names = schema.names()
    if arguments.name is None:
        _list(names, as_json=arguments.json)
        return ExitCode.GOOD
    if arguments.name not in names:
        raise BadInputError(f"there is no schema {arguments.name!r}", hint=_hint(arguments.name, names))
    sys.stdout.write(f"{schema.strict_json(schema.schema_of(arguments.name))}\n")
    return ExitCode.GOOD


def _list(names: Sequence[str], *, as_json: bool) -> None:
    from lumiimg.report.console import print_json
    from lumiimg.report.schema import kind_of

    kinds = {name: kind_of(name) for name in names}
    if as_json:
        listed = [
            {"name": name, "number": kind.number, "of": kind.printed_by, "summary": kind.__doc__}
            for name, kind in kinds.items()
        ]
        print_json("schemas", schemas=listed)
        return
    for name, kind in kinds.items():
        print(textwrap.fill(kind.__doc__ or "", 80, initial_indent=f"{name:<19}", subsequent_indent=" " * 19))
    print("\none of them: lumiimg schema NAME    as tables: docs/reference/json.md")


def _hint(name: str, names: Sequence[str]) -> str:
    word = name.partition("-")[0]
    near = [known for known in names if known.partition("-")[0] == word]
    near = near or difflib.get_close_matches(name, names, n=3, cutoff=0.6)
    return f"did you mean {' or '.join(near)}?" if near else "`lumiimg schema` lists them"
