"""Print the plan of an image; code that builds it or writes its definitions is imported only when needed."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from lumiimg.catalog.settings import read_settings
from lumiimg.cli.choices import mirrors_of
from lumiimg.cli.output import Output, output_of
from lumiimg.cli.request import resolve_request
from lumiimg.core.errors import BadInputError, ExitCode, write_note
from lumiimg.core.files import refuse_places
from lumiimg.definition.writer import write_chain
from lumiimg.report.views.request import plan_document
from lumiimg.resolve.lock import Lock, from_registry


def execute(arguments: argparse.Namespace) -> int:
    if arguments.why:
        _refuse_build_options(arguments)
    check_options(arguments)
    if arguments.locked:
        from lumiimg.cli.locked import read_lock

        return make(arguments, read_lock(arguments))
    plan = resolve_request(arguments)
    lock = plan.require_lock()
    if plan.newer is not None and not (arguments.quiet or arguments.why):
        write_note(plan.newer.sentence)
    return make(arguments, lock)


def make(arguments: argparse.Namespace, lock: Lock) -> int:
    """Build, unless the options request only a part of that."""
    if arguments.dry_run:
        from lumiimg.build.build_host import BuildHost
        from lumiimg.build.cost import BuildPlan, cost_of

        is_final = arguments.locked or arguments.definitions
        if not (is_final or BuildHost((), os.environ).can_bootstrap(lock.bootstrap.agent)):
            lock = from_registry(lock, mirrors_of(arguments))
        chain = write_chain(lock)
        plan = BuildPlan(lock, chain, cost_of(lock, chain, read_settings(os.environ).cache, output_of(arguments)))
        code = ExitCode.GOOD if plan.cost.lacking is None else ExitCode.NO
        return Output.from_arguments(arguments).deliver(plan_document(plan), "build-plan", plan, code)
    from lumiimg.cli import image_build  # downloads and engines

    return image_build.make(arguments, lock)


def check_options(arguments: argparse.Namespace) -> None:
    """Refuse conflicting options, and outputs that would overwrite something. Raises BadInputError."""
    if arguments.trust_lock and not arguments.locked:
        raise BadInputError("--trust-lock needs --locked", hint="add --locked, or leave --trust-lock out")
    if arguments.lock and arguments.dry_run and not arguments.locked:
        raise BadInputError("--dry-run and --lock", hint="`lumiimg lock` only writes the lock")
    if arguments.form and arguments.definitions is None:
        raise BadInputError("--as needs --definitions", hint="--definitions DIR")
    is_named = arguments.output or arguments.definitions
    if is_named if arguments.dry_run else not arguments.why:
        _refuse_places(arguments)
    check_result(arguments)
    if arguments.lock and not arguments.locked:
        from lumiimg.resolve.lock_file import refuse_other_file

        refuse_other_file(arguments.lock)


def _refuse_places(arguments: argparse.Namespace) -> None:
    """Refuse to overwrite files that would be lost. Raises BadInputError."""
    from lumiimg.build.places import refuse_folder, refuse_output  # what images carry

    if arguments.definitions is not None:
        refuse_folder(arguments.definitions, force=arguments.force)
    else:
        if arguments.base and (output := output_of(arguments)).is_file():
            refuse_places({"-o": output}, (Path(arguments.base),))
        may_be_the_same = arguments.lock is None or arguments.locked
        refuse_output(output_of(arguments), force=arguments.force, may_be_the_same=may_be_the_same)


def check_result(arguments: argparse.Namespace) -> None:
    """Refuse conflicting options for the output. Raises BadInputError."""
    if arguments.html and (arguments.dry_run or arguments.definitions):
        raise BadInputError("reports the cost of a build, but nothing is built", where="--html", hint="leave it out")
    refuse_places({"--html": arguments.html}, (arguments.lock, arguments.output, arguments.host))


def _refuse_build_options(arguments: argparse.Namespace) -> None:
    """Refuse build options when nothing is built. Raises BadInputError."""
    for option in ("output", "dry-run", "definitions", "fresh", "force", "html"):
        if getattr(arguments, option.replace("-", "_")):
            raise BadInputError(f"--why and --{option}", hint="--why only prints an answer; leave the other out")
    if arguments.lock and not arguments.locked:
        raise BadInputError("--why and --lock", hint="add --locked to ask about the lock")
