"""Build an image on someone else's image, with the layers that it lacks."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable
from pathlib import Path

from lumiimg.catalog.catalogue import open_catalogue
from lumiimg.catalog.sites import target_site
from lumiimg.check.adaptation import nothing_added, objections_of
from lumiimg.check.static.commands import with_plugin_on_base
from lumiimg.cli import build
from lumiimg.cli.inputs import Inputs
from lumiimg.cli.output import Output
from lumiimg.cli.request import context_with_servers, fetch_image, read_request, resolve_request
from lumiimg.core.errors import RefusedError
from lumiimg.fabric.path import Fabric
from lumiimg.report.document import Item
from lumiimg.report.text import show_items
from lumiimg.report.views.build import has_item, nothing_document, objection_items
from lumiimg.resolve.image_base import read_foreign


def execute(arguments: argparse.Namespace) -> int:
    catalogue = open_catalogue(os.environ, arguments.layers)
    # report faults of the request first, as `build` does
    context_with_servers(arguments, read_request(arguments, catalogue), catalogue)
    inputs = Inputs.from_arguments(arguments, target_site)
    site = inputs.target
    read: list[Path] = []

    def fetch(name: str) -> Path:
        read.append(fetch_image(name, arguments))
        return read[-1]

    base = read_foreign(arguments.base, fetch, site)
    plan = resolve_request(arguments, images={arguments.base: base})
    _note(arguments, [has_item(arguments.base, base)])
    objections = objections_of(read[-1] if read else Path(arguments.base), inputs.snapshot)
    sets = "; an image built on it sets that, too"
    _note(arguments, objection_items(objections.settings, arguments.base, site.name, sets))
    try:
        lock = plan.require_lock()
    except RefusedError as error:
        other = with_plugin_on_base(arguments.base, inputs.words())
        error.hint = f"{other}" if plan.nearest is None and other.command else error.hint
        raise
    left = objections.left_by(lock, base)
    _note(arguments, objection_items(left.files, arguments.base, site.name))
    if lock.layers and not left.binds_refused:
        build.check_options(arguments)
        return build.make(arguments, lock)
    result = nothing_added(lock, left, wants_fabric=arguments.fabric != Fabric.NONE.value)
    document = nothing_document(arguments.base, result, lock)
    return Output.from_arguments(arguments).deliver(document, "adapt", result, result.answer.exit_code)


def _note(arguments: argparse.Namespace, items: Iterable[Item]) -> None:
    if not arguments.quiet:
        show_items(items)
