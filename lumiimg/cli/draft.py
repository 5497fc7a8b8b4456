"""Read a Dockerfile as it would be built up to a stage, and list its base,
arguments and steps, what the catalogue has already, and what a layer cannot
carry over. With -o, write a draft of a layer. Nothing is run.

examples:
  lumiimg draft Dockerfile.rocm
  lumiimg draft rocm.Dockerfile --arg GPU_ARCH=gfx942 -o layers/sgl-draft
  lumiimg show --layers layers sgl-draft

exit codes: 0 it was read · 2 not a Dockerfile, or no such stage
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from lumiimg.cli.options import add_json, add_output, add_repeated
from lumiimg.errors import BadInputError, ExitCode


def configure_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="DOCKERFILE", type=Path, help="the file")
    parser.add_argument("--target", metavar="STAGE", help="a stage by its name or number (default: the last)")
    what = "argument to set: an ARG, as docker build --build-arg does (may be repeated)"
    add_repeated(parser, "--arg", "NAME=VALUE", what)
    add_output(parser, "the folder of the new layer; its name becomes the layer's", "DIR")
    add_json(parser)


def execute(arguments: argparse.Namespace) -> int:
    from lumiimg.catalog.catalogue import open_catalogue
    from lumiimg.definition.docker.draft import make_draft, write_draft
    from lumiimg.report.draft import print_draft

    given: dict[str, str] = {}
    for word in arguments.arg:
        name, equals, value = word.partition("=")
        if not (name and equals and value.isprintable()):
            raise BadInputError("not of the form NAME=VALUE", where=f"--arg {word}", hint="argument of the Dockerfile")
        given[name] = value
    catalogue = open_catalogue(os.environ)
    draft = make_draft(arguments.file, arguments.target, given, catalogue)
    if arguments.output is not None:
        write_draft(draft, arguments.output, catalogue)
    print_draft(draft, arguments.output, as_json=arguments.json)
    return ExitCode.GOOD
