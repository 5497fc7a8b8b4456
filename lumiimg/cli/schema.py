"""Print the JSON Schema of a kind of output."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Collection

from lumiimg.cli.output import Output
from lumiimg.core.errors import BadInputError, ExitCode
from lumiimg.report.json_output import KINDS, Schemas, strict_json
from lumiimg.report.schema import schema_of
from lumiimg.report.views.catalogue import schemas_document


def execute(arguments: argparse.Namespace) -> int:
    if arguments.name is None:
        listed = Schemas()
        return Output.from_arguments(arguments).deliver(schemas_document(listed), "schemas", listed)
    if arguments.name not in KINDS:
        raise BadInputError(f"there is no schema {arguments.name!r}", hint=_hint(arguments.name, KINDS))
    sys.stdout.write(f"{strict_json(schema_of(arguments.name))}\n")
    return ExitCode.GOOD


def _hint(name: str, names: Collection[str]) -> str:
    word = name.partition("-")[0]
    near = [known for known in names if known.partition("-")[0] == word]
    near = near or difflib.get_close_matches(name, names, n=3, cutoff=0.6)
    return f"did you mean {' or '.join(near)}?" if near else "`lumiimg schema` lists them"
