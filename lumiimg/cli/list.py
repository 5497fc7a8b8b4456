"""`lumiimg list`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from lumiimg.cli.options import add_json, add_layers
from lumiimg.errors import ExitCode

if TYPE_CHECKING:
    import argparse


def configure_parser(parser: argparse.ArgumentParser) -> None:
    """Say what the command does, and add what it takes."""
    parser.description = "List bases, layers, recipes and sites: yours first, then those that come with\nlumiimg."
    add_layers(parser)
    add_json(parser)
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Print the catalogue; a broken entry is shown as broken."""
    from lumiimg.catalog.catalogue import open_catalogue
    from lumiimg.report.catalogue import print_list

    print_list(open_catalogue(os.environ, arguments.layers), os.environ, as_json=arguments.json)
    return ExitCode.GOOD
