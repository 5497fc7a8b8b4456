"""Count the file-system calls of programs."""

from __future__ import annotations

import argparse
import os

from lumiimg.cli.output import Output
from lumiimg.host.import_calls import measure
from lumiimg.report.views.bench import import_document


def execute(arguments: argparse.Namespace) -> int:
    found = measure(arguments.paths, arguments.module, os.environ)
    return Output.from_arguments(arguments).deliver(import_document(found), "bench-import", found, found.exit_code)
