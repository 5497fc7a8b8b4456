"""Build an image of lumiimg again from the image alone."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from lumiimg.build.builder import ImageBuild, RebuildResult, build_image
from lumiimg.build.choice import choose_way, host_for_builds
from lumiimg.build.local_base import check_mirror, give_base
from lumiimg.build.places import refuse_inputs, refuse_output
from lumiimg.build.provenance import PLAN, plan_of, read_chain
from lumiimg.catalog.settings import read_settings
from lumiimg.cli.build import check_result
from lumiimg.cli.image_build import progress_of, report_built
from lumiimg.cli.request import open_sources
from lumiimg.engine.engine import without_passwords
from lumiimg.engine.workspace import scratch_folder
from lumiimg.errors import ExitCode, say
from lumiimg.files import file_sha256
from lumiimg.host.snapshot_file import read_snapshot
from lumiimg.image import open_image
from lumiimg.image.compare import ImageDiff, compare


def execute(arguments: argparse.Namespace) -> int:
    check_result(arguments)
    refuse_inputs(arguments.output, (arguments.image, arguments.base, arguments.host))
    refuse_output(arguments.output, force=arguments.force, may_be_the_same=True)
    cache, sources = read_settings(os.environ).cache, open_sources(arguments)
    machine = host_for_builds(os.environ)
    way, because = choose_way(machine, arguments.strategy)
    with scratch_folder(cache / "work") as scratch, progress_of(arguments) as progress:
        chain = read_chain(arguments.image, scratch, has=sources.store.has)
        check_mirror(chain, sources.mirrors)
        chain = give_base(chain, arguments.base, arguments.image, cache, progress.notice)
        if not arguments.quiet:
            names = " + ".join(", ".join(definition.layers) for definition in chain)
            start = f"building {names} → {arguments.output}  ({machine.engine.name}, {way}: {because})"
            say(start)
        built = build_image(
            ImageBuild(
                chain=chain,
                output=arguments.output,
                machine=machine,
                way=way,
                documents={PLAN: plan_of(arguments.image)},
                environment=without_passwords(os.environ),  # the image names the registry, and nobody else does
                cache=scratch / "cache" if arguments.fresh else cache,
                downloads=sources.store,
                progress=progress,
                node=read_snapshot(arguments.host) if arguments.host else None,
                replaces=arguments.force,
                again=arguments.force or arguments.fresh,
                keeps_compiled=False,  # what a stranger's script leaves there would go into other images
            )
        )
    differences = _differences(arguments.image, arguments.output)
    report_built(arguments, RebuildResult(built, differences))
    return ExitCode.NO if arguments.fresh and differences is not None and differences.files else ExitCode.GOOD


def _differences(old: Path, new: Path) -> ImageDiff | None:
    """Return in which files two images differ; None where they are the same bytes."""
    if old.stat().st_size == new.stat().st_size and file_sha256(old) == file_sha256(new):
        return None
    with open_image(old) as before, open_image(new) as after:
        return compare(before.root, after.root)
