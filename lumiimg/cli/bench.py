"""Count what programs ask of file systems."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from lumiimg.cli.options import add_json, number_to
from lumiimg.errors import BadInputError, ExitCode

_NODES, _RANKS = 2978, 8
"""Of LUMI-G, and GPUs (GCDs) of a node: LUMI docs, hardware/lumig."""
_EPILOG = """\
examples:
  lumiimg bench import image.sif
  lumiimg bench import /project/me/site-packages venv image.sif --svg import.svg

exit codes: 0 counted
            2 no such place, or the module cannot be imported there
            3 a part cannot be counted here: the kernel reads the image, or
              the engine is set-user-id
            4 no strace, no Python or no engine here, or it starts no container
"""


def configure_parser(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="commands", metavar="COMMAND", dest="action", required=True)
    imports = actions.add_parser(
        "import",
        help="count the metadata operations and bytes of an import from a folder, a venv or an image",
        description="Count the system calls of `import torch` with strace: opens, stats, failed\n"
        "lookups, bytes; and how many of them reach the file system that holds the\n"
        "folder of packages, virtual environment or image. It prints no times: the\n"
        "counts hold on any machine. The module is imported once before, which may\n"
        "leave bytecode behind.",
        epilog=_EPILOG,
    )
    imports.add_argument(
        "paths", metavar="PLACE", type=Path, nargs="+", help="a folder of packages, a virtual environment, or an image"
    )
    imports.add_argument("--module", metavar="NAME", default="torch", help="module to import (default: torch)")
    imports.add_argument(
        "--python", metavar="PROGRAM", help="Python interpreter for folders of packages (default: python3)"
    )
    imports.add_argument(
        "--nodes",
        metavar="N",
        type=number_to(9_999_999, "positive number"),
        default=_NODES,
        help=f"number of nodes: for the arithmetic (default: {_NODES:,}, LUMI-G)",
    )
    imports.add_argument(
        "--ranks",
        metavar="N",
        type=number_to(9_999_999, "positive number"),
        default=_RANKS,
        help=f"processes per node (default: {_RANKS})",
    )
    imports.add_argument("--svg", metavar="FILE", type=Path, help="write the picture")
    add_json(imports)
    imports.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    from lumiimg.check.startup import MODULE, kind_of, measure
    from lumiimg.files import write_text
    from lumiimg.report.console import print_json
    from lumiimg.report.startup import Scale, json_keys, print_startups, svg

    if not MODULE.fullmatch(arguments.module):
        raise BadInputError("is not a valid module name", where=f"--module {arguments.module}")
    places = [Path(path) for path in arguments.paths]
    for place in places:
        kind_of(place)  # before the first of them takes its time
    startups = [measure(place, arguments.module, os.environ, arguments.python) for place in places]
    scale = Scale(arguments.nodes, arguments.ranks)
    if arguments.svg is not None:
        write_text(arguments.svg, svg(startups, arguments.module, scale))
    if arguments.json:
        print_json("bench-import", **json_keys(startups, arguments.module, scale))
    print_startups(startups, arguments.module, scale, stderr=arguments.json)
    return ExitCode.GOOD if all(startup.shared for startup in startups) else ExitCode.UNDECIDED
