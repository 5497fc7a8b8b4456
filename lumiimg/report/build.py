"""What a build says: the plan, the lock, the start, the result."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from lumiimg.definition.writer import FLAT
from lumiimg.errors import printable
from lumiimg.report.console import (
    STYLES,
    console,
    detail,
    headline,
    print_json,
    proposal,
    say,
    verbatim,
)
from lumiimg.report.image import print_differences
from lumiimg.report.json_builds import Stack
from lumiimg.report.reach import never_built
from lumiimg.resolve.request import Request, words_of
from lumiimg.resolve.rules import RuleOutcome
from lumiimg.wording import count, duration, engine_word, size

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from lumiimg.build.builder import BuiltImage
    from lumiimg.build.progress import BuildStage
    from lumiimg.definition.definition import Definition
    from lumiimg.engine.engine import Engine
    from lumiimg.image.compare import FileDifference
    from lumiimg.report.console import Console
    from lumiimg.resolve.lock import Lock
    from lumiimg.resolve.lock_diff import LockChange

_BELOW = " " * 7


def print_doubts(out: Console, lock: Lock) -> None:
    """Print what was never built, and what the compatibility rules warn of, or could not tell."""
    rows = [(layer.layer, layer.release.version if layer.release else None, layer.status) for layer in lock.stack]
    if note := never_built(rows):
        say(out, note, first="  ", style=STYLES["unknown"])
    for rule in lock.doubts:
        kind = "warning" if rule.outcome is RuleOutcome.WARNING else "not known"
        say(out, f"{kind}: {rule.because} ({rule.id})", first="  ", style=STYLES["unknown"])


def print_definitions(
    definitions: Sequence[Definition], folder: Path, fetch: Path | None, *, as_json: bool, quiet: bool = False
) -> None:
    """Print which files were written, and how to build from them; `fetch` is the script that gets what is not here."""
    if as_json:
        print_json("build-definitions", folder=folder, definitions=definitions, fetch=fetch)
        return
    out = console(quiet=quiet)
    headline(out, f"wrote {count(len(definitions), 'definition file')} into {folder}")
    for definition in definitions:
        verbatim(out, f"    {definition.name}.def")
    if fetch is not None:
        say(
            out,
            "sources could not be reached from here, and are not beside them; where there is a network:",
            first="  ",
        )
        verbatim(out, f"    sh {shlex.quote(str(fetch))}")
    proposal(out, f"cd {shlex.quote(str(folder))}", word="build them there")
    for definition in definitions:
        is_flat = definition.name == FLAT
        if is_flat:
            say(out, "or all at once:")
        options = "--fakeroot --no-https" if definition.plain_http else "--fakeroot"
        name = "image" if is_flat else definition.name
        verbatim(out, f"    {engine_word()} build {options} {name}.sif {definition.name}.def")


def print_start(lock: Lock, engine: Engine, output: Path, way: str) -> None:
    """Say what is about to be built, and with what."""
    out = console(stderr=True)
    say(out, f"building {_stack(lock)} → {output}  ({engine.name})")
    say(out, way, first="  ")
    say(out, f"{lock.base.layer.name} by {lock.bootstrap.agent}: {lock.bootstrap.because}", first="  ")
    for layer in lock.stack:
        for source in layer.sources:
            if source.note:
                say(out, f"{source.location}: {source.note} (sha256 {source.sha256})", first="  ")
    print_doubts(out, lock)


def print_built(
    built: BuiltImage,
    lock: Lock | None,
    engine: Engine,
    *,
    as_json: bool,
    quiet: bool,
    differences: Sequence[FileDifference] | None = None,
) -> None:
    """Say what was built, and what to do next; of a rebuild, in which files it differs (None: the same bytes)."""
    if as_json:
        if lock is None:
            print_json("rebuild", built=built, engine=engine, differences=differences)
        else:
            print_json("build", built=built, engine=engine, plan=Stack(lock))
        return
    out = console(quiet=quiet)
    name = str(built.image)
    if built.is_new:
        headline(out, f"{name}: {size(built.size_bytes)} in {duration(built.seconds)} (log: {name}.log)", "ok")
        _print_stages(out, built.stages)
    else:
        told = f"{name}: is this image already, by its number, {size(built.size_bytes)}; nothing was built"
        headline(out, told, "ok")
    if lock is None and differences is None:
        say(out, "the same bytes as the image that it was built from")
    elif lock is None and differences is not None:
        say(out, "beside the image that it was built from:")
        print_differences(differences, quiet=quiet)
    if name == printable(name):  # else the line could not be copied
        proposal(out, f"lumiimg check {'-- ' if name.startswith('-') else ''}{shlex.quote(name)}")


def _print_stages(out: Console, stages: Sequence[BuildStage]) -> None:
    """Print what a build took, part by part."""
    width = max((len(stage.name) for stage in stages), default=0)
    for stage in stages:
        took = "kept" if stage.reused else duration(stage.seconds)
        cpu = "" if stage.reused else f"cpu {duration(stage.cpu_seconds)}"
        say(out, f"{stage.name:<{width}}  {took:>9}  {cpu:>14}  {size(stage.size_bytes):>9}".rstrip(), first="  ")


def _stack(lock: Lock) -> str:
    return " + ".join(layer.layer.name for layer in lock.stack)


def print_lock(
    lock: Lock,
    request: Request,
    changes: Sequence[LockChange] | None,
    path: Path,
    *,
    beyond: Sequence[str],
    as_json: bool,
    quiet: bool = False,
) -> None:
    """Say what was locked for a request; `changes` against the lock that was there, None where there was none.

    `beyond` is what is not from where the catalogue has it.
    """
    if as_json:
        print_json("lock", lock=path, changes=changes or ())
        return
    wheels = sum(len(layer.wheels) for layer in lock.stack)
    sources = sum(len(layer.sources) for layer in lock.stack)
    parts = [count(len(lock.layers), "layer"), count(sources, "source"), count(wheels, "Python distribution")]
    out = console(quiet=quiet)
    headline(out, f"{path}: {lock.base.layer.name} with {', '.join(parts)}, fabric {lock.fabric.value}")
    if changes is not None:
        _print_changes(out, changes)
    if changes is not None and not changes:
        detail(out, "no difference to what was there")
    if (lock.bootstrap.image is None or lock.bootstrap.image.digest is None) and not lock.bootstrap.sha256:
        detail(out, f"the base has no digest: it is what {lock.bootstrap.agent} finds when it is built")
    print_doubts(out, lock)
    for one in beyond:
        detail(out, f"not by the catalogue: {one}")
    named = "" if str(path) == "lumiimg.lock" else f" --lock {shlex.quote(str(path))}"
    named += " --trust-lock" if beyond else ""
    # a lock has neither: where things are fetched from is a matter of the machine
    found_by = words_of(("--mirror", request.mirrors), ("--layers", request.layers))
    named += f" {found_by}" if found_by else ""
    proposal(out, f"lumiimg build --locked{named} -o image.sif")


def print_changes(changes: Sequence[LockChange], *, as_json: bool, quiet: bool = False) -> None:
    """Print differences, one a line."""
    if as_json:
        print_json("diff-locks", changes=changes)
        return
    out = console(quiet=quiet)
    headline(out, count(len(changes), "difference") if changes else "no difference", "info")
    _print_changes(out, changes)


def _print_changes(out: Console, changes: Sequence[LockChange]) -> None:
    for change in changes:
        detail(out, f"{change.what}: {change.old or '(not there)'} -> {change.new or '(gone)'}")
