"""List bases, layers, recipes and sites: yours first, then those that come with
lumiimg.
"""

from __future__ import annotations

import argparse
import os

from lumiimg.cli.options import add_json, add_layers
from lumiimg.errors import ExitCode


def configure_parser(parser: argparse.ArgumentParser) -> None:
    add_layers(parser)
    add_json(parser)


def execute(arguments: argparse.Namespace) -> int:
    """Print the catalogue; a broken entry is shown as broken."""
    from lumiimg.catalog.catalogue import open_catalogue
    from lumiimg.report.catalogue import print_list

    print_list(open_catalogue(os.environ, arguments.layers), os.environ, as_json=arguments.json)
    return ExitCode.GOOD
