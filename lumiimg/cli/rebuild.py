"""Build an image of lumiimg again from the image alone."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from lumiimg.build.choice import choose_way, machine_for_builds
from lumiimg.build.local_base import check_mirror, give_base
from lumiimg.build.places import log_path, refuse_output
from lumiimg.build.provenance import PLAN, plan_of, read_chain, read_document
from lumiimg.catalog.settings import read_settings
from lumiimg.catalog.sites import site_names
from lumiimg.cli.build import check_result
from lumiimg.cli.image_build import carry_out, known_machine, progress_of, report_built
from lumiimg.cli.request import open_sources
from lumiimg.engine.workspace import scratch_folder
from lumiimg.errors import BadInputError, ExitCode, printable
from lumiimg.image import open_image
from lumiimg.image.compare import FileDifference, compare
from lumiimg.resolve.lock import file_sha256


def execute(arguments: argparse.Namespace) -> int:
    check_result(arguments)
    _keep_inputs(arguments)
    refuse_output(arguments.output, force=arguments.force, may_be_the_same=True)
    cache, sources = read_settings(os.environ).cache, open_sources(arguments)
    machine = machine_for_builds(os.environ, cache)
    way, because = choose_way(machine, arguments.strategy)
    with scratch_folder(cache / "work") as scratch:
        chain = read_chain(arguments.image, scratch, has=sources.store.has)
        check_mirror(chain, sources.mirrors)
        chain = give_base(chain, arguments.base, arguments.image, cache, progress_of(arguments).notice)
        if not arguments.quiet:
            names = " + ".join(", ".join(definition.layers) for definition in chain)
            start = f"building {names} → {arguments.output}  ({machine.engine.name}, {way}: {because})"
            print(printable(start), file=sys.stderr, flush=True)
        built = carry_out(
            arguments,
            chain,
            machine=machine,
            way=way,
            documents={PLAN: plan_of(arguments.image)},
            cache=scratch / "cache" if arguments.fresh else cache,
            downloads=sources.store,
            again=arguments.force or arguments.fresh,
            keeps_compiled=False,  # what a stranger's script leaves there would go into other images
            runs_on=known_machine(_site_of(arguments.image), arguments.host),
        )
    differences = _differences(arguments.image, arguments.output)
    report_built(arguments, built, None, machine, differences)
    return ExitCode.NO if arguments.fresh and differences else ExitCode.GOOD


def _site_of(image: Path) -> str | None:
    """Return the site that an image says it is for, where that is known by its name: a path is not followed."""
    site = (read_document(image, PLAN) or {}).get("site")
    return next((name for name in site_names(os.environ) if name == site), None)


def _keep_inputs(arguments: argparse.Namespace) -> None:
    """Raise BadInputError where what is read would be written over, by whatever name."""
    for path in (arguments.output, log_path(arguments.output)):
        for source in (arguments.image, arguments.base, arguments.host):
            if source is not None and path.exists() and source.exists() and path.samefile(source):
                raise BadInputError(f"is {source} itself", where=str(path), hint="-o names another file")


def _differences(old: Path, new: Path) -> list[FileDifference] | None:
    """Return in which files two images differ; None where they are the same bytes."""
    if old.stat().st_size == new.stat().st_size and file_sha256(old) == file_sha256(new):
        return None
    with open_image(old) as before, open_image(new) as after:
        return list(compare(before.root, after.root))
