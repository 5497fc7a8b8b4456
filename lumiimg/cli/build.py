"""Build an image, write its definitions, or print its plan."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from lumiimg.cli import inputs
from lumiimg.cli.arguments import LOCK
from lumiimg.cli.request import mirrors_of, planned, sources_of
from lumiimg.errors import BadInputError, ExitCode, printable
from lumiimg.files import read_beginning

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from lumiimg.build.builder import BuiltImage
    from lumiimg.build.progress import Progress
    from lumiimg.definition.definition import Definition
    from lumiimg.engine.engine import Engine
    from lumiimg.host.wanted import KnownMachine
    from lumiimg.resolve.lock import Lock
    from lumiimg.resolve.request import Request
    from lumiimg.resolve.store import Store

_SHOWN = 5
"""Of what a refusal names."""


def check_result(arguments: argparse.Namespace) -> None:
    """Refuse options that do not go together. Raises BadInputError."""
    if arguments.html and (getattr(arguments, "dry_run", False) or getattr(arguments, "definitions", None)):
        raise BadInputError("reports what a build took, and nothing is built", where="--html", hint="leave it out")
    if arguments.manifest and getattr(arguments, "dry_run", False):
        raise BadInputError("is read from the image, and nothing is built", where="--manifest", hint="leave it out")
    inputs.refuse_places(
        {"--html": arguments.html, "--manifest": arguments.manifest},
        (getattr(arguments, "lock", None), arguments.output, getattr(arguments, "host", None)),
    )


def execute(arguments: argparse.Namespace) -> int:
    from lumiimg.resolve.decide import locked

    if arguments.why:
        _refuse_beside_why(arguments)
    check_options(arguments)
    if arguments.locked:
        return make(arguments, *_read_lock(arguments))
    request, plan = planned(arguments)
    return make(arguments, locked(plan), request)


def _refuse_beside_why(arguments: argparse.Namespace) -> None:
    """Refuse options of a build, where nothing is built. Raises BadInputError."""
    for option in ("output", "dry-run", "definitions", "fresh", "force", "html", "manifest"):
        if getattr(arguments, option.replace("-", "_")):
            raise BadInputError(f"--why and --{option}", hint="--why only prints an answer; leave the other out")
    if arguments.lock and not arguments.locked:
        raise BadInputError("--why and --lock", hint="add --locked, to ask of what the lock says")


def check_options(arguments: argparse.Namespace) -> None:
    """Refuse what does not go together, and what would be lost. Raises BadInputError."""
    if getattr(arguments, "trust_lock", False) and not arguments.locked:
        raise BadInputError("--trust-lock needs --locked", hint="add --locked, or leave --trust-lock out")
    if arguments.lock and arguments.dry_run and not arguments.locked:
        raise BadInputError("--dry-run and --lock", hint="`lumiimg lock` only writes the lock")
    if arguments.definitions is not None:
        _check_folder(arguments.definitions, force=arguments.force)
    elif not (arguments.dry_run or vars(arguments).get("why")):
        may_be_the_same = arguments.lock is None or arguments.locked
        check_output(_output_of(arguments), force=arguments.force, may_be_the_same=may_be_the_same)
    check_result(arguments)
    if arguments.lock and not arguments.locked:
        from lumiimg.resolve.lockfile import refuse_other_file

        refuse_other_file(arguments.lock)


def _output_of(arguments: argparse.Namespace) -> Path:
    return arguments.output or Path(f"{Path(arguments.recipe).stem if arguments.recipe else 'image'}.sif")


def make(arguments: argparse.Namespace, lock: Lock, request: Request) -> int:
    """Settle what only the network can tell, and build, unless something less is asked for."""
    from lumiimg.definition.writer import write_chain

    if arguments.dry_run:
        from lumiimg.cli.output import Output
        from lumiimg.report.json_builds import BuildPlan, Stack
        from lumiimg.report.views.request import plan_document

        chain = write_chain(lock)
        value = BuildPlan(Stack(lock), tuple(chain))
        return Output.of(arguments).deliver(plan_document(lock, chain), "build-plan", value, ExitCode.GOOD)
    if lock.bootstrap.image is not None:
        lock.bootstrap.image.refuse_unproved()
    why = vars(arguments).get("why")
    if why:
        from lumiimg.cli.why import refuse_other_layer

        refuse_other_layer(why, write_chain(lock))
    sources = sources_of(arguments)
    if lock.unsettled or arguments.lock:
        from lumiimg.resolve.pin import settle

        lock = settle(lock, sources, pin_base=arguments.lock is not None, until=request.until)
    if arguments.lock and not arguments.locked:
        from lumiimg.files import write_text
        from lumiimg.resolve import lockfile

        write_text(arguments.lock, lockfile.to_text(lock, request))
    if arguments.definitions is not None:
        _write_definitions(arguments, sources.store, lock, request)
        return ExitCode.GOOD
    if why:
        from lumiimg.cli.why import answer_why

        return answer_why(arguments, _chain_of(arguments, lock, request)[1])
    return _build(arguments, sources.store, lock, request)


def _write_definitions(arguments: argparse.Namespace, store: Store, lock: Lock, request: Request) -> None:
    from lumiimg.build.builder import write_definitions
    from lumiimg.build.unfetched import unreachable, write_fetch
    from lumiimg.definition.writer import with_manifest, write_chain, write_flat
    from lumiimg.files import write_text
    from lumiimg.host.carried_manifest import to_text
    from lumiimg.host.wanted import planned
    from lumiimg.report import build as report

    folder, progress = arguments.definitions, progress_of(arguments)
    manifest = planned(lock.fabric, _runs_on(arguments, request, progress))
    *below, last = write_chain(lock)
    definitions = [*below, with_manifest(last, manifest), with_manifest(write_flat(lock), manifest)]
    missing = unreachable(definitions, store, progress.line)
    write_definitions(definitions, folder, store, progress.line, missing)
    fetch = write_fetch(definitions, missing, folder) if missing else None
    if arguments.manifest:
        write_text(arguments.manifest, to_text(manifest))
    report.print_definitions(definitions, folder, fetch, as_json=arguments.json, quiet=arguments.quiet)


def _read_lock(arguments: argparse.Namespace) -> tuple[Lock, Request]:
    """Read the lock. Raises BadInputError where the command line asks for something else beside it."""
    from lumiimg.catalog.catalogue import open_catalogue
    from lumiimg.catalog.sites import find_site
    from lumiimg.resolve.lock_trust import beyond_catalogue
    from lumiimg.resolve.lockfile import read_lock

    for option in ("base", "recipe", "add", "requirements", "arg", "source", "fabric", "host", "exclude-newer"):
        given = getattr(arguments, option.replace("-", "_"))
        if given and given != "auto":
            raise BadInputError(f"--{option} and --locked", hint="the lock decides what is built; write it again first")
    catalogue = open_catalogue(os.environ, arguments.layers)
    path = arguments.lock or Path(LOCK)
    mirrors = mirrors_of(arguments)
    lock, request = read_lock(path, catalogue, mirrors, os.environ.get("PATH"))
    if arguments.site is not None and find_site(arguments.site, os.environ).name != lock.site:
        raise BadInputError(
            f"is for {lock.site or 'no site'}, not for {arguments.site}",
            where=str(path),
            hint="write one for it: lumiimg lock",
        )
    _refuse_others(beyond_catalogue(lock, mirrors), path, trusted=arguments.trust_lock)
    return lock, request


def _refuse_others(found: list[str], path: Path, *, trusted: bool) -> None:
    """Say what a lock takes sources that are not from the catalogue. Raises BadInputError where nobody trusts it."""
    if found and not trusted:
        more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        raise BadInputError(
            f"takes sources that are not from the catalogue: {'; '.join(found[:_SHOWN])}{more}",
            where=str(path),
            hint="if you trust who wrote it: --trust-lock",
        )
    for one in found:
        print(f"lumiimg: by the lock, not by the catalogue: {printable(one)}", file=sys.stderr)


def _chain_of(
    arguments: argparse.Namespace, lock: Lock, request: Request
) -> tuple[Lock, Sequence[Definition], KnownMachine]:
    """Return the lock with the digest of its base, its definitions, and the machine that they are for."""
    from lumiimg.build.local_base import lock_base
    from lumiimg.catalog.settings import read_settings
    from lumiimg.definition.writer import write_chain

    progress = progress_of(arguments)
    lock = lock_base(lock, read_settings(os.environ).cache, progress.notice)
    runs_on = _runs_on(arguments, request, progress)
    return lock, write_chain(lock, runs_on.site.arch if runs_on.site else None), runs_on


def _build(arguments: argparse.Namespace, store: Store, lock: Lock, request: Request) -> int:
    from lumiimg.build.builder import build_image
    from lumiimg.build.choice import choose_way, machine_for_builds
    from lumiimg.build.provenance import PLAN, plan_document
    from lumiimg.catalog.settings import read_settings
    from lumiimg.engine.engine import clean_environment
    from lumiimg.report import build as report

    cache, output = read_settings(os.environ).cache, _output_of(arguments)
    machine = machine_for_builds(os.environ, cache)
    engine = machine.engine
    way, because = choose_way(machine, arguments.strategy)
    if not arguments.quiet:
        report.print_start(lock, engine, output, f"{way}: {because}")
    lock, chain, runs_on = _chain_of(arguments, lock, request)
    progress = progress_of(arguments)
    try:
        built = build_image(
            chain,
            output,
            machine=machine,
            way=way,
            documents={PLAN: plan_document(lock, request)},
            environment=clean_environment(os.environ),
            cache=cache,
            downloads=store,
            log_path=log_of(output),
            progress=progress,
            replaces=arguments.force,
            again=arguments.force,
            fresh=getattr(arguments, "fresh", False),
            runs_on=runs_on,
        )
    finally:
        progress.stop()
    write_page(arguments, built, lock, engine)
    write_manifest(arguments.manifest, output)
    report.print_built(built, lock, engine, as_json=arguments.json, quiet=arguments.quiet)
    return ExitCode.GOOD


def write_page(arguments: argparse.Namespace, built: BuiltImage, lock: Lock | None, engine: Engine) -> None:
    """Write what the build took as a page, where that was asked for."""
    if arguments.html:
        from lumiimg.files import write_text
        from lumiimg.report.html.build import build_page

        write_text(arguments.html, build_page(built, lock, engine))


def machine_of(site: str | None, host: Path | None) -> KnownMachine:
    """Return what is known of the machine that an image is for. Raises BadInputError."""
    from lumiimg.catalog.sites import find_site
    from lumiimg.host.snapshot_file import read_snapshot
    from lumiimg.host.wanted import KnownMachine

    return KnownMachine(read_snapshot(host) if host else None, find_site(site, os.environ) if site else None)


def _runs_on(arguments: argparse.Namespace, request: Request, progress: Progress) -> KnownMachine:
    host = request.host
    if arguments.locked and host is not None and not host.is_file():
        progress.notice(f"{host}, which the lock names, is not here: the bind manifest is settled without it")
        host = None
    return machine_of(request.site, host)


def write_manifest(path: Path | None, built: Path) -> None:
    """Write the bind manifest that an image carries, where that was asked for."""
    if path:
        from lumiimg.files import write_text
        from lumiimg.host.carried_manifest import read_manifest, to_text
        from lumiimg.image import open_image

        with open_image(built) as image:
            if (manifest := read_manifest(image.root)) is not None:
                write_text(path, to_text(manifest))


def check_output(output: Path, *, force: bool, may_be_the_same: bool) -> None:
    """Refuse what would be lost, before anything is fetched or written. Raises BadInputError.

    `may_be_the_same`: an image of lumiimg may be the very one that is asked for; the builder sees.
    """
    from lumiimg.build.provenance import is_ours
    from lumiimg.files import refuse_bad_name

    refuse_bad_name(output)
    if output.is_dir():
        raise BadInputError("is a folder", where=str(output), hint="-o names the image file")
    if not output.parent.is_dir():
        raise BadInputError("no such folder", where=str(output.parent), hint="make it first")
    if output.exists() and not output.is_file():
        raise BadInputError("is not a file, and would be replaced by one", where=str(output))
    if output.exists() and not force and not (may_be_the_same and is_ours(output)):
        raise BadInputError("exists already", where=str(output), hint="--force replaces it")
    log = log_of(output)
    refuse_bad_name(log)
    if log.exists() and not log.is_file():
        raise BadInputError("is not a file, and the log would be written there", where=str(log), hint="remove it")
    if log.exists() and not force and not _is_ours(log):
        raise BadInputError("exists already, and is not a build log", where=str(log), hint="--force replaces it")


def log_of(output: Path) -> Path:
    """Return where the engine's output of a build goes."""
    return output.with_name(output.name + ".log")


def _is_ours(log: Path) -> bool:
    return read_beginning(log, 3) in {b"== ", b""}


def _check_folder(folder: Path, *, force: bool) -> None:
    if folder.exists() and not folder.is_dir():
        raise BadInputError("is not a folder", where=str(folder))
    if folder.is_dir() and any(folder.iterdir()) and not force:
        raise BadInputError("is not empty", where=str(folder), hint="--force writes into it anyway")


def progress_of(arguments: argparse.Namespace) -> Progress:
    """Return who reports what happens, in the way that was asked for."""
    from lumiimg.build.progress import Progress
    from lumiimg.report import progress

    if arguments.quiet:
        return Progress()
    if arguments.verbose:
        return progress.VerboseProgress()
    return progress.TerminalProgress() if sys.stderr.isatty() else progress.LineProgress()
