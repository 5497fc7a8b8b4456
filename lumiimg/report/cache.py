"""What is said of the cache: what is in it, what went, why something is not."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

from lumiimg.report.console import Console, console, detail, headline, print_json, proposal, say, verbatim
from lumiimg.report.json_builds import CacheFault
from lumiimg.wording import count, duration, size

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from lumiimg.build.cache import CacheEntry
    from lumiimg.build.cache_miss import CacheLookup
    from lumiimg.engine.namespaces.unpacked import UnpackedImage

_SHORT = 12
_LINES = 40


def print_entries(
    entries: Sequence[CacheEntry],
    root: Path,
    unpacked: Sequence[UnpackedImage] = (),
    *,
    as_json: bool,
    quiet: bool = False,
) -> None:
    total = sum(entry.size_bytes for entry in entries) + sum(image.size_bytes for image in unpacked)
    if as_json:
        print_json("cache", cache=root, size_bytes=total, entries=entries, unpacked=unpacked)
        return
    out = console(quiet=quiet)
    images = f" and {count(len(unpacked), 'unpacked image')}" if unpacked else ""
    headline(out, f"{count(len(entries), 'layer')}{images}, {size(total)}, in {root}")
    for entry in sorted(entries, key=lambda entry: entry.layers):
        first = f"{entry.key[:_SHORT]}  {size(entry.size_bytes):>9}  {duration(entry.seconds):>12}  "
        say(out, ", ".join(entry.layers), first=first, rest=" " * len(first))

    for image in unpacked:
        first = f"{image.key[:_SHORT]}  {size(image.size_bytes):>9}  {'unpacked':>12}  "
        say(out, image.image or "(cannot be read)", first=first, rest=" " * len(first))


def print_why(answer: CacheLookup, below: str | None, *, as_json: bool, quiet: bool = False) -> None:
    """Print why a layer is not in the cache, or that it is."""
    if as_json:
        print_json("why", answer)
        return
    out = console(quiet=quiet)
    _print_lookup(out, answer, below)
    if answer.base is not None:
        made = dt.datetime.fromtimestamp(answer.base.made_s, dt.UTC)
        days = count((dt.datetime.now(dt.UTC) - made).days, "day")
        say(out, f"its base {', '.join(answer.base.layers)} is that of {made:%Y-%m-%d}, {days} old", first="  ")
        detail(out, "lumiimg build --fresh, with the same options, has it again as it is today", style="dim")


def _print_lookup(out: Console, answer: CacheLookup, below: str | None) -> None:
    name = ", ".join(answer.layers)
    if answer.entry is not None:
        took = f"it took {duration(answer.entry.seconds)}"
        headline(
            out, f"{name}: in the cache ({answer.entry.key[:_SHORT]}, {size(answer.entry.size_bytes)}; {took})", "ok"
        )
        return
    if answer.nearest is None:
        headline(out, f"{name}: never built with this cache", "problem")
        return
    beside = f"beside the one that is there ({answer.nearest.key[:_SHORT]}):"
    headline(out, f"{name}: would be built again; {beside}", "problem")
    for difference in answer.differences:
        told = difference.part
        if told == "parent" and below is not None:
            told = f"what is below it ({below}): lumiimg build --why {below}, with the same options, says why"
        if told == "content":
            told = "what is below it came out differently, or is not there any more"
        say(out, told, first="  ", style="bold")
        for line in difference.lines[:_LINES]:
            style = {"+": "green", "-": "red"}.get(line[:1], "dim")
            verbatim(out, f"    {line}", style=style)
        if len(difference.lines) > _LINES:
            detail(out, f"… and {count(len(difference.lines) - _LINES, 'line')} more; --json has all", style="dim")


def print_faults(faults: Sequence[tuple[str, str]], checked: int, *, as_json: bool, quiet: bool = False) -> None:
    """Print which entries are not what they were."""
    if as_json:
        print_json("cache-verify", checked=checked, faults=[CacheFault(*fault) for fault in faults])
        return
    out = console(quiet=quiet)
    headline(out, f"{count(checked, 'layer')} read; {count(len(faults), 'fault')}", "problem" if faults else "ok")
    for key, fault in faults:
        detail(out, f"{key[:_SHORT]}: {fault}")
    if faults:
        proposal(out, "lumiimg cache prune")


def print_removed(
    removed: Sequence[str], freed_bytes: int, unpacked: Sequence[str] = (), *, as_json: bool, quiet: bool = False
) -> None:
    if as_json:
        print_json("cache-removed", removed=removed, unpacked=unpacked, freed_bytes=freed_bytes)
        return
    images = f" and {count(len(unpacked), 'unpacked image')}" if unpacked else ""
    headline(console(quiet=quiet), f"removed {count(len(removed), 'layer')}{images}, {size(freed_bytes)}")
