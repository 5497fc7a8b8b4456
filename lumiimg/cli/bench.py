"""Count what programs ask of file systems."""

from __future__ import annotations

import argparse
import os

from lumiimg.check.startup import MODULE, kind_of, measure
from lumiimg.cli.output import Output
from lumiimg.errors import BadInputError, ExitCode
from lumiimg.report.json_images import ImportBench
from lumiimg.report.views.bench import import_document


def execute(arguments: argparse.Namespace) -> int:
    if not MODULE.fullmatch(arguments.module):
        raise BadInputError("is not a valid module name", where=f"--module {arguments.module}")
    for place in arguments.paths:
        kind_of(place)  # before the first of them takes its time
    startups = [measure(place, arguments.module, os.environ, arguments.python) for place in arguments.paths]
    code = ExitCode.GOOD if all(startup.shared for startup in startups) else ExitCode.UNDECIDED
    value = ImportBench(arguments.module, tuple(startups))
    return Output.of(arguments).deliver(import_document(startups, arguments.module), "bench-import", value, code)
