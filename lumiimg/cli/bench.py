"""Count what programs ask of file systems."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from lumiimg.cli.options import add_json
from lumiimg.errors import BadInputError, ExitCode

_EPILOG = """\
examples:
  lumiimg bench import image.sif
  lumiimg bench import /project/me/site-packages venv image.sif

exit codes: 0 counted
            2 no such place, or the module cannot be imported there
            3 a part cannot be counted here: the engine is set-user-id
            4 no strace, no Python or no engine here, or it starts no container
"""


def configure_parser(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="commands", metavar="COMMAND", dest="action", required=True)
    imports = actions.add_parser(
        "import",
        help="count the metadata operations of an import from a folder, a venv or an image",
        description="Count the system calls of `import torch` with strace: opens, stats, failed\n"
        "lookups; and how many of them reach the file system that holds the folder\n"
        "of packages, virtual environment or image. It prints no times: the counts\n"
        "hold on any machine. The module is imported once before, which may leave\n"
        "bytecode behind.",
        epilog=_EPILOG,
    )
    imports.add_argument(
        "paths", metavar="PLACE", type=Path, nargs="+", help="a folder of packages, a virtual environment, or an image"
    )
    imports.add_argument("--module", metavar="NAME", default="torch", help="module to import (default: torch)")
    imports.add_argument(
        "--python", metavar="PROGRAM", help="Python interpreter for folders of packages (default: python3)"
    )
    add_json(imports)
    imports.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    from lumiimg.check.startup import MODULE, kind_of, measure
    from lumiimg.report.console import print_json
    from lumiimg.report.startup import print_startups

    if not MODULE.fullmatch(arguments.module):
        raise BadInputError("is not a valid module name", where=f"--module {arguments.module}")
    for place in arguments.paths:
        kind_of(place)  # before the first of them takes its time
    startups = [measure(place, arguments.module, os.environ, arguments.python) for place in arguments.paths]
    if arguments.json:
        print_json("bench-import", module=arguments.module, places=startups)
    print_startups(startups, arguments.module, stderr=arguments.json)
    return ExitCode.GOOD if all(startup.shared for startup in startups) else ExitCode.UNDECIDED
