"""What `doctor` says: what the engine can do here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumiimg.build.capabilities import CONTAINER, CapabilityTrial, was_seen
from lumiimg.report.console import console, detail, headline, marked, next_step, print_json, say
from lumiimg.wording import size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from lumiimg.build.disk_space import FreeSpace
    from lumiimg.engine.engine import Engine
    from lumiimg.errors import MissingHereError
    from lumiimg.findings import Advice


def print_doctor(
    engine: Engine,
    trials: Sequence[CapabilityTrial],
    faults: Mapping[str, Sequence[str]],
    rooms: Sequence[FreeSpace],
    cache: Path,
    advice: Advice,
    *,
    as_json: bool,
    quiet: bool = False,
) -> None:
    """Print what was tried, and what follows for each way to build."""
    if as_json:
        print_json("doctor", engine=engine, trials=trials, strategies=faults, room=rooms, advice=advice)
        return
    out = console(quiet=quiet)
    usable = [way for way, against in faults.items() if not against]
    lacking = [trial for trial in trials if trial.remedy]
    told = f"builds here by {', '.join(usable)}" if usable else "no way to build works here"
    if usable and lacking:
        told += f", but no {', no '.join(trial.name for trial in lacking)}"
    kind = "ok" if usable else "problem"
    if kind == "ok" and not was_seen(trials, CONTAINER):
        told, kind = "whether builds work here is not known, as no container was seen to start", "unknown"
    headline(out, f"{told}: {engine.name} ({engine.path})", kind)
    for trial in trials:
        said = f": {trial.said}" if trial.said else ""
        marked(out, "ok" if trial.works else "problem" if trial.remedy else "unknown", f"{trial.name}{said}")
        if trial.remedy:
            detail(out, f"do:  {trial.remedy}")
    out.print("\nways to build, the quickest first:")
    for way, against in faults.items():
        why = f": {', '.join(against)}" if against else ""
        marked(out, "problem" if against else "ok", f"{way}{why}")
    out.print()
    for name, room in zip(("cache", "temporary files"), rooms, strict=False):
        place = " of memory: it is a tmpfs, and counts against a job" if room.in_memory else " free"
        say(out, f"{name}: {size(room.free_bytes)}{place} ({room.folder})")
    say(out, f"layers are kept in {cache} (LUMIIMG_CACHE)", style="dim")
    next_step(out, advice)


def print_no_engine(error: MissingHereError, advice: Advice, *, quiet: bool = False) -> None:
    """Print that nothing starts a container here, and what to do."""
    out = console(quiet=quiet)
    headline(out, f"no way to build works here: {error}", "problem")
    next_step(out, advice)
