"""What `lock` and `diff` say."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING

from lumiimg.errors import one_line
from lumiimg.report.build import print_doubts
from lumiimg.report.console import print_json
from lumiimg.wording import count

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from lumiimg.resolve.changes import Change
    from lumiimg.resolve.lock import Lock


def print_lock(lock: Lock, changes: Sequence[Change] | None, path: Path, *, as_json: bool) -> None:
    """Say what was locked; `changes` against the lock that was there, None where there was none."""
    if as_json:
        print_json("lock", {"lock": str(path), "changes": [change._asdict() for change in changes or ()]})
        return
    wheels = sum(len(layer.wheels) for layer in lock.stack)
    sources = sum(len(layer.sources) for layer in lock.stack)
    parts = [count(len(lock.layers), "layer"), count(sources, "source"), count(wheels, "Python distribution")]
    print(one_line(f"{path}: {lock.base.layer.name} with {', '.join(parts)}, fabric {lock.fabric.value}"))
    if changes is not None:
        print_changes(changes, as_json=False)
    if (lock.bootstrap.image is None or lock.bootstrap.image.digest is None) and not lock.bootstrap.sha256:
        print(f"  the base has no digest: it is what {lock.bootstrap.agent} finds when it is built")
    print_doubts(lock, sys.stdout)
    named = "" if str(path) == "lumiimg.lock" else f" --lock {shlex.quote(str(path))}"
    print(one_line(f"build it: lumiimg build --locked{named} -o image.sif"))


def print_changes(changes: Sequence[Change], *, as_json: bool) -> None:
    """Print differences, one a line."""
    if as_json:
        print_json("diff-locks", {"changes": [change._asdict() for change in changes]})
        return
    for change in changes:
        print(one_line(f"  {change.what}: {change.old or '(not there)'} -> {change.new or '(gone)'}"))
    if not changes:
        print("no difference")
