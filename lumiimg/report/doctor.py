"""What `doctor` says."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from lumiimg.errors import one_line
from lumiimg.report.console import MARKS, PLAIN_MARKS, STYLES, console, print_json, wrapped
from lumiimg.wording import size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from lumiimg.build.machine import Trial
    from lumiimg.build.room import Room
    from lumiimg.engine.engine import Engine

_INDENT = "    "


def print_doctor(
    engine: Engine,
    trials: Sequence[Trial],
    faults: Mapping[str, Sequence[str]],
    rooms: Sequence[Room],
    cache: Path,
    *,
    as_json: bool,
) -> None:
    """Print what was tried, and what follows for each way to build."""
    if as_json:
        print_json(
            "doctor",
            {
                "engine": {"kind": engine.kind, "version": engine.version, "path": str(engine.path)},
                "trials": [asdict(trial) for trial in trials],
                "strategies": {way: list(against) for way, against in faults.items()},
                "room": [
                    {"folder": str(room.folder), "free_bytes": room.free_bytes, "in_memory": room.in_memory}
                    for room in rooms
                ],
            },
        )
        return
    out = console()
    marks = MARKS if out.encoding.startswith("utf") else PLAIN_MARKS
    out.print(one_line(f"{engine.name}  ({engine.path})"), style="bold", soft_wrap=True)
    for trial in trials:
        kind = "ok" if trial.works else "unknown"
        said = f": {trial.said}" if trial.said else ""
        out.print(wrapped(out, one_line(f"{marks[kind]} {trial.name}{said}"), rest=_INDENT), style=STYLES[kind])
    out.print("\nways to build, the quickest first:")
    for way, against in faults.items():
        kind = "problem" if against else "ok"
        why = f": {', '.join(against)}" if against else ""
        out.print(wrapped(out, one_line(f"{marks[kind]} {way}{why}"), rest=_INDENT), style=STYLES[kind])
    out.print()
    for name, room in zip(("cache", "temporary files"), rooms, strict=False):
        place = " of memory: it is a tmpfs, and counts against a job" if room.in_memory else " free"
        out.print(wrapped(out, one_line(f"{name}: {size(room.free_bytes)}{place} ({room.folder})"), rest=_INDENT))
    out.print(wrapped(out, one_line(f"layers are kept in {cache} (LUMIIMG_CACHE)"), rest=_INDENT), style="dim")
