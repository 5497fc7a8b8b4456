"""What `lock` and `diff` say."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from lumiimg.report.build import print_doubts
from lumiimg.report.console import console, detail, headline, print_json, proposal
from lumiimg.wording import count

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rich.console import Console

    from lumiimg.resolve.lock import Lock
    from lumiimg.resolve.lock_diff import LockChange


def print_lock(
    lock: Lock, changes: Sequence[LockChange] | None, path: Path, *, as_json: bool, quiet: bool = False
) -> None:
    """Say what was locked; `changes` against the lock that was there, None where there was none."""
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
    named = "" if str(path) == "lumiimg.lock" else f" --lock {shlex.quote(str(path))}"
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
