"""List the contents of the catalogue, or show one entry, a site or an image."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from lumiimg.build.provenance import read_record
from lumiimg.catalog.catalogue import open_catalogue
from lumiimg.catalog.settings import user_cache
from lumiimg.catalog.shown import listing_of, shown_layer
from lumiimg.catalog.sites import find_site, site_names
from lumiimg.cli.inputs import image_here
from lumiimg.cli.output import Output
from lumiimg.core.errors import BadInputError, ExitCode
from lumiimg.core.text import address_of
from lumiimg.gpu import node_gpu
from lumiimg.image import open_image
from lumiimg.inventory.components import Inventory
from lumiimg.inventory.gpu_code import ImageGpuCode
from lumiimg.report.views.catalogue import (
    layer_document,
    listing_document,
    recipe_document,
    site_document,
)
from lumiimg.report.views.gpu_code import gpu_code_document
from lumiimg.report.views.image import record_document


def execute(arguments: argparse.Namespace) -> int:
    output = Output.from_arguments(arguments)
    if arguments.gpu and arguments.name is None:
        raise BadInputError("--gpu is for an image", hint="lumiimg show --gpu image.sif")
    if arguments.gpu:
        return _gpu_code(arguments, output)
    if arguments.site:
        raise BadInputError(
            "--site has no effect without --gpu", hint=f"to see the site: lumiimg show {arguments.site}"
        )
    catalogue = open_catalogue(os.environ, arguments.layers)
    if arguments.name is None:
        listing = listing_of(catalogue, os.environ)
        return output.deliver(listing_document(listing), "list", listing)
    if address_of(arguments.name) or _is_image(arguments.name):
        record = read_record(*image_here(arguments.name, arguments))
        return output.deliver(record_document(record), "show-image", record)
    is_site = arguments.name.endswith(".toml") or arguments.name in site_names(os.environ)
    if is_site and not catalogue.knows(arguments.name):
        machine = find_site(arguments.name, os.environ)
        return output.deliver(site_document(machine), "show-site", machine)
    if arguments.name in catalogue.recipe_names() and not catalogue.knows(arguments.name):
        recipe = catalogue.recipe(arguments.name)
        return output.deliver(recipe_document(recipe), "show-recipe", recipe)
    if not catalogue.knows(arguments.name) and Path(arguments.name).exists():
        raise BadInputError(f"there is no entry {arguments.name!r}", hint=f"an image: show ./{arguments.name}")
    entry = catalogue.entry(catalogue.resolve_base_name(arguments.name))
    layer = shown_layer(entry)
    return output.deliver(layer_document(layer), "show-layer", layer)


def _is_image(name: str) -> bool:
    return name.endswith(".sif") or ("/" in name and not name.endswith(".toml"))


def _gpu_code(arguments: argparse.Namespace, output: Output) -> int:
    site = find_site(arguments.site, os.environ) if arguments.site else None
    if site and not site.arch:
        raise BadInputError("has no known AMD GPU", where=f"--site {arguments.site}")
    gpu = node_gpu(site.arch) if site and site.arch else None
    with open_image(image_here(arguments.name, arguments)[0], user_cache) as image:
        found = ImageGpuCode(arguments.name, gpu, Inventory(image).gpu_code.with_fit(gpu))
    code = ExitCode.UNDECIDED if found.code.unreadable else ExitCode.GOOD
    return output.deliver(gpu_code_document(found), "show-gpu", found, code)
