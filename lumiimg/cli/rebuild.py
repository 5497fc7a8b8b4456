"""Build an image of lumiimg again from the image alone."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from lumiimg.cli import build
from lumiimg.cli.request import sources_of
from lumiimg.errors import BadInputError, ExitCode

if TYPE_CHECKING:
    import argparse

    from lumiimg.image.compare import FileDifference


def execute(arguments: argparse.Namespace) -> int:
    from lumiimg.build.builder import build_image
    from lumiimg.build.choice import choose_way, machine_for_builds
    from lumiimg.build.local_base import check_mirror, give_base
    from lumiimg.build.provenance import PLAN, plan_of, read_chain
    from lumiimg.catalog.settings import read_settings
    from lumiimg.engine.engine import clean_environment
    from lumiimg.engine.workspace import scratch_folder
    from lumiimg.report import build as report
    from lumiimg.report.console import console, say

    build.check_result(arguments)
    _keep_inputs(arguments)
    build.check_output(arguments.output, force=arguments.force, may_be_the_same=True)
    cache, sources = read_settings(os.environ).cache, sources_of(arguments)
    machine = machine_for_builds(os.environ, cache)
    engine = machine.engine
    way, because = choose_way(machine, arguments.strategy)
    progress = build.progress_of(arguments)
    with scratch_folder(cache / "work") as scratch:
        chain = read_chain(arguments.image, scratch, has=sources.store.has)
        check_mirror(chain, sources.mirrors)
        chain = give_base(chain, arguments.base, arguments.image, cache, progress.notice)
        if not arguments.quiet:
            names = " + ".join(", ".join(definition.layers) for definition in chain)
            say(console(stderr=True), f"building {names} → {arguments.output}  ({engine.name}, {way}: {because})")
        try:
            built = build_image(
                chain,
                arguments.output,
                machine=machine,
                way=way,
                documents={PLAN: plan_of(arguments.image)},
                environment=clean_environment(os.environ),
                cache=scratch / "cache" if arguments.fresh else cache,
                downloads=sources.store,
                log_path=build.log_of(arguments.output),
                progress=progress,
                replaces=arguments.force,
                again=arguments.force or arguments.fresh,
                keeps_compiled=False,  # what a stranger's script leaves there would go into other images
                runs_on=build.machine_of(_site_of(arguments.image), arguments.host),
            )
        finally:
            progress.stop()
    build.write_manifest(arguments.manifest, arguments.output)
    differences = _differences(arguments.image, arguments.output)
    build.write_page(arguments, built, None, engine)
    report.print_built(built, None, engine, as_json=arguments.json, quiet=arguments.quiet, differences=differences)
    return ExitCode.NO if arguments.fresh and differences else ExitCode.GOOD


def _site_of(image: Path) -> str | None:
    """Return the site that an image says it is for, where that is known by its name: a path is not followed."""
    from lumiimg.build.provenance import PLAN, read_document
    from lumiimg.catalog.sites import site_names

    site = (read_document(image, PLAN) or {}).get("site")
    return next((name for name in site_names(os.environ) if name == site), None)


def _keep_inputs(arguments: argparse.Namespace) -> None:
    """Raise BadInputError where what is read would be written over, by whatever name."""
    for path in (arguments.output, build.log_of(arguments.output)):
        for source in (arguments.image, arguments.base, arguments.host):
            if source is not None and path.exists() and source.exists() and path.samefile(source):
                raise BadInputError(f"is {source} itself", where=str(path), hint="-o names another file")


def _differences(old: Path, new: Path) -> list[FileDifference] | None:
    """Return in which files two images differ; None where they are the same bytes."""
    from lumiimg.image import open_image
    from lumiimg.image.compare import compare
    from lumiimg.resolve.lock import file_sha256

    if old.stat().st_size == new.stat().st_size and file_sha256(old) == file_sha256(new):
        return None
    with open_image(old) as before, open_image(new) as after:
        return list(compare(before.root, after.root))
