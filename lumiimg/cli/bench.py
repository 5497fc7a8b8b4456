"""Count what programs ask of file systems."""

from __future__ import annotations

import argparse
import os

from lumiimg.check.startup import MODULE, kind_of, measure
from lumiimg.errors import BadInputError, ExitCode
from lumiimg.report.console import print_json
from lumiimg.report.startup import print_startups


def execute(arguments: argparse.Namespace) -> int:
    if not MODULE.fullmatch(arguments.module):
        raise BadInputError("is not a valid module name", where=f"--module {arguments.module}")
    for place in arguments.paths:
        kind_of(place)  # before the first of them takes its time
    startups = [measure(place, arguments.module, os.environ, arguments.python) for place in arguments.paths]
    if arguments.json:
        print_json("bench-import", module=arguments.module, places=startups)
    print_startups(startups, arguments.module, stderr=arguments.json)
    return ExitCode.GOOD if all(startup.shared for startup in startups) else ExitCode.UNDECIDED
