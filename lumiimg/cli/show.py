"""Show a base or a layer (arguments, releases, sources, what it requires,
provides and sets), a recipe, a site (driver, fabric, partitions, cores,
environment, advice), or what an image says about how it was built.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from lumiimg.cli.options import add_json, add_layers
from lumiimg.errors import BadInputError, ExitCode


def configure_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name", metavar="NAME", help="a base, layer, recipe or site (`lumiimg list`), or an image, image.sif"
    )
    add_layers(parser)
    add_json(parser)


def execute(arguments: argparse.Namespace) -> int:
    from lumiimg.catalog.catalogue import open_catalogue
    from lumiimg.catalog.sites import find_site, site_names
    from lumiimg.report.catalogue import print_entry, print_recipe
    from lumiimg.report.site import print_site

    catalogue = open_catalogue(os.environ, arguments.layers)
    if arguments.name.endswith(".sif") or ("/" in arguments.name and not arguments.name.endswith(".toml")):
        from lumiimg.report.image import print_image

        print_image(Path(arguments.name), as_json=arguments.json)
        return ExitCode.GOOD
    is_site = arguments.name.endswith(".toml") or arguments.name in site_names(os.environ)
    if is_site and arguments.name not in catalogue.layer_names():
        print_site(find_site(arguments.name, os.environ), as_json=arguments.json)
        return ExitCode.GOOD
    if arguments.name in catalogue.recipe_names() and arguments.name not in catalogue.layer_names():
        print_recipe(catalogue.recipe(arguments.name), as_json=arguments.json)
        return ExitCode.GOOD
    if arguments.name not in catalogue.layer_names() and Path(arguments.name).exists():
        raise BadInputError(f"no entry is called {arguments.name!r}", hint=f"an image: show ./{arguments.name}")
    print_entry(catalogue.entry(arguments.name), as_json=arguments.json)
    return ExitCode.GOOD
