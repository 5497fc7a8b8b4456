"""Run a build and report it; shared by `build`, `adapt` and `rebuild`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

from lumiimg.build.build_host import host_for_builds
from lumiimg.build.builder import BuildResult, ImageBuild, build_image
from lumiimg.build.cache import LayerCache
from lumiimg.build.cost import BuildCost
from lumiimg.build.definition_files import WrittenDefinitions, write_docker_context, write_with_sources
from lumiimg.build.keys import require_layer, steps_of, why_rebuilt
from lumiimg.build.progress import Progress
from lumiimg.catalog.settings import read_settings
from lumiimg.cli.output import Output, output_of
from lumiimg.cli.request import open_sources
from lumiimg.core.errors import ExitCode
from lumiimg.core.files import write_text
from lumiimg.definition.writer import write_chain, write_flat
from lumiimg.engine.engine import without_passwords
from lumiimg.fetch.store import Store
from lumiimg.host.snapshot import Snapshot, read_snapshot
from lumiimg.report.progress import LineProgress, TerminalProgress, VerboseProgress
from lumiimg.report.terminal import takes_codes
from lumiimg.report.text import show
from lumiimg.report.views.build import built_document, definitions_document, start_document
from lumiimg.report.views.cache import why_document
from lumiimg.resolve.complete_lock import BaseDigest, complete_lock
from lumiimg.resolve.lock import Lock, from_registry
from lumiimg.resolve.lock_file import to_text as lock_text

DOCKERFILE = "dockerfile"
"""Value of --as for a Dockerfile."""


def make(arguments: argparse.Namespace, lock: Lock) -> int:
    """Complete the lock from the network and build, unless the options request only a part of that."""
    cache = read_settings(os.environ).cache
    sources = open_sources(arguments)
    machine = host_for_builds(os.environ, sources) if arguments.definitions is None else None
    can_bootstrap = machine is None or machine.can_bootstrap(lock.bootstrap.agent)
    if not arguments.locked and (arguments.form == DOCKERFILE or not can_bootstrap):
        lock = from_registry(lock, sources.mirrors)
    # refusals and missing programs are reported before any server is contacted
    chain = write_chain(lock)
    if arguments.why:
        require_layer(arguments.why, chain)
    if not arguments.locked:
        lock = complete_lock(lock, sources, base=_base_digest(arguments), until=lock.request.until)
        if arguments.lock:
            write_text(arguments.lock, lock_text(lock))
    with progress_of(arguments) as progress:
        if machine is None:
            return _write_definitions(arguments, sources.store, lock, progress)
        node, chain = _node(arguments, lock, progress), write_chain(lock)
        if arguments.why:
            found = why_rebuilt(arguments.why, steps_of(chain, machine), LayerCache(cache))
            return Output.from_arguments(arguments).deliver(why_document(found), "why", found, found.exit_code)
        built = build_image(
            ImageBuild(
                lock=lock,
                chain=chain,
                output=output_of(arguments),
                machine=machine,
                strategy=arguments.strategy,
                on_start=start_of(arguments, lock, output_of(arguments)),
                environment=without_passwords(os.environ) if lock.bootstrap.is_mirrored else os.environ,
                cache=cache,
                downloads=sources.store,
                progress=progress,
                node=node,
                replaces=arguments.force,
                fresh=arguments.fresh,
            )
        )
    report_built(arguments, BuildResult(built, lock))
    return ExitCode.GOOD


def start_of(arguments: argparse.Namespace, lock: Lock, output: Path) -> Callable[[str, BuildCost], None]:
    """Return a function that reports the start of a build with its strategy and cost."""

    def print_start(way: str, cost: BuildCost) -> None:
        if not arguments.quiet:
            show(start_document(lock, output, way, cost), stderr=True)

    return print_start


def report_built(arguments: argparse.Namespace, result: BuildResult) -> None:
    """Print the result of a build, and write its page."""
    kind = "rebuild" if result.plan is None else "build"
    Output.from_arguments(arguments).deliver(built_document(result), kind, result)


def _write_definitions(arguments: argparse.Namespace, store: Store, lock: Lock, progress: Progress) -> int:
    folder, chain = arguments.definitions, write_chain(lock)
    written: WrittenDefinitions
    if arguments.form == DOCKERFILE:
        written = write_docker_context(lock, chain, folder, store, progress.line)
    else:
        written = write_with_sources((*chain, write_flat(lock)), folder, store, progress.line)
    return Output.from_arguments(arguments).deliver(definitions_document(written), "build-definitions", written)


def _base_digest(arguments: argparse.Namespace) -> BaseDigest:
    """Return how to get the digest of the base: in definitions, which are used elsewhere, a tag stays a tag.

    The record of an image, which accompanies a Dockerfile, must be complete.
    """
    if arguments.lock or arguments.fresh:
        return "asked"
    return "open" if arguments.definitions is not None and arguments.form != DOCKERFILE else "noted"


def _node(arguments: argparse.Namespace, lock: Lock, progress: Progress) -> Snapshot | None:
    """Return the node's snapshot; with --locked only --host names it, as locks may be foreign. Raises BadInputError."""
    host = arguments.host if arguments.locked else lock.request.host
    if not host and lock.request.host:
        progress.notice(f"the image gets no bind manifest: the lock names {lock.request.host} (--host FILE)")
    return read_snapshot(Path(host)) if host else None


def progress_of(arguments: argparse.Namespace) -> Progress:
    """Return the progress reporter for the requested verbosity."""
    if arguments.quiet:
        return Progress()
    if arguments.verbose:
        return VerboseProgress()
    return TerminalProgress() if takes_codes(sys.stderr) else LineProgress()
