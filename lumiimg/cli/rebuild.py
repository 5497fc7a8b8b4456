"""Rebuild an image that lumiimg built, using only that image."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path

from lumiimg.build.build_host import host_for_builds
from lumiimg.build.builder import BuildResult, ImageBuild, build_image
from lumiimg.build.places import log_path, refuse_output
from lumiimg.build.provenance import read_carried, refuse_files, with_base
from lumiimg.catalog.catalogue import open_catalogue
from lumiimg.catalog.settings import read_settings
from lumiimg.cli.build import check_result
from lumiimg.cli.image_build import progress_of, report_built, start_of
from lumiimg.cli.locked import note_what_is_from_elsewhere
from lumiimg.cli.request import open_sources
from lumiimg.core.errors import ExitCode
from lumiimg.core.files import file_sha256, refuse_places
from lumiimg.definition.writer import write_chain
from lumiimg.engine.engine import without_passwords
from lumiimg.engine.workspace import scratch_folder
from lumiimg.fetch.store import Sources
from lumiimg.host.snapshot import read_snapshot
from lumiimg.image import open_image
from lumiimg.image.compare import ImageDiff, compare
from lumiimg.resolve.lock import Lock
from lumiimg.resolve.lock_check import lock_of, outside_catalogue


def execute(arguments: argparse.Namespace) -> int:
    check_result(arguments)
    for place in (arguments.output, log_path(arguments.output)):
        refuse_places({"-o": place}, (arguments.image, arguments.base, arguments.host))
    refuse_output(arguments.output, force=arguments.force, may_be_the_same=True)
    cache, sources = read_settings(os.environ).cache, open_sources(arguments)
    with scratch_folder(cache / "work") as scratch, progress_of(arguments) as progress:
        lock = _read_lock(arguments, scratch / "layers", cache, sources, progress.notice)
        chain = write_chain(lock)
        built = build_image(
            ImageBuild(
                lock=lock,
                chain=chain,
                output=arguments.output,
                machine=host_for_builds(os.environ, sources),
                strategy=arguments.strategy,
                on_start=start_of(arguments, lock, arguments.output),
                environment=without_passwords(os.environ),  # only the image names the registry
                cache=scratch / "cache" if arguments.fresh else cache,
                downloads=sources.store,
                progress=progress,
                node=read_snapshot(arguments.host) if arguments.host else None,
                replaces=arguments.force,
                fresh=arguments.fresh,
                keeps_compiled=False,  # leftovers of a stranger's script would get into other images
            )
        )
    differences = _differences(arguments.image, arguments.output)
    report_built(arguments, BuildResult(built, diff=differences))
    return ExitCode.NO if arguments.fresh and differences is not None and differences.files else ExitCode.GOOD


def _read_lock(
    arguments: argparse.Namespace, folder: Path, cache: Path, sources: Sources, on_notice: Callable[[str], None]
) -> Lock:
    """Return the lock of the image, with layers from the catalogue if they are identical, else from the image itself.

    Raises BadInputError for entries that are not from the catalogue, unless the author of the image is trusted.
    """
    plan, carried = read_carried(arguments.image, folder)
    plan = with_base(plan, arguments.base, arguments.image, cache, on_notice)
    catalogues = [open_catalogue(os.environ, arguments.layers), carried]
    lock = lock_of(plan, catalogues, sources.mirrors, os.environ.get("PATH"), arguments.image)
    found = outside_catalogue(lock, sources.mirrors, carried=folder, given=arguments.base)
    note_what_is_from_elsewhere(found, arguments.image, trusted=arguments.trust_lock)
    refuse_files(lock, sources.store, folder)
    return lock


def _differences(old: Path, new: Path) -> ImageDiff | None:
    """Return the files in which two images differ; None if the images are byte-identical."""
    if old.stat().st_size == new.stat().st_size and file_sha256(old) == file_sha256(new):
        return None
    with open_image(old) as before, open_image(new) as after:
        return compare(before.root, after.root)
