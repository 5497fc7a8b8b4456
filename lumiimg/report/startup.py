"""What `lumiimg bench import` says: calls by place, what of them leaves the node, and what N nodes make of it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lumiimg.check.startup import ImportSource, Startup
from lumiimg.errors import one_line
from lumiimg.report.bars import TerminalBar, bars_svg
from lumiimg.report.console import WIDEST, console, heading, headline, marked, say
from lumiimg.wording import size

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import Console

    from lumiimg.check.strace import Counts

_LABEL, _COLUMN, _LONGEST_NAME = 33, 15, 14
_BAR = 50
_ROWS: tuple[tuple[str, Callable[[Counts], int], bool], ...] = (
    ("metadata operations", lambda counts: counts.metadata, False),
    ("  opens", lambda counts: counts.opens, False),
    ("  stats and accesses", lambda counts: counts.stats, False),
    ("  reads of directories", lambda counts: counts.lists, False),
    ("  readlinks and others", lambda counts: counts.readlinks + counts.others, False),
    ("  of these, nothing was there", lambda counts: counts.failed, False),
    ("different files opened", lambda counts: counts.files, False),
    ("reads", lambda counts: counts.reads, False),
    ("bytes read", lambda counts: counts.read_bytes, True),
    ("bytes of files that are mapped", lambda counts: counts.mapped_bytes, True),
)


@dataclass(frozen=True, slots=True)
class Scale:
    """For how many processes the arithmetic is done."""

    nodes: int
    ranks: int
    """Of a node."""

    def every_rank(self, startup: Startup) -> int | None:
        """Metadata operations where each process asks for itself."""
        return None if startup.shared is None else startup.shared.metadata * self.nodes * self.ranks

    def once_a_node(self, startup: Startup) -> int | None:
        """Metadata operations where the node answers all its processes but the first from its cache."""
        return None if startup.shared is None else startup.shared.metadata * self.nodes


def json_keys(startups: Sequence[Startup], module: str, scale: Scale) -> dict[str, Any]:
    """Return the keys of the JSON."""
    return {
        "module": module,
        "places": [
            {
                **{part.name: getattr(startup, part.name) for part in fields(startup)},
                "kind": startup.place,
                "arithmetic": {
                    "nodes": scale.nodes,
                    "ranks_per_node": scale.ranks,
                    "metadata_every_rank": scale.every_rank(startup),
                    "metadata_once_a_node": scale.once_a_node(startup),
                },
            }
            for startup in startups
        ],
    }


def print_startups(startups: Sequence[Startup], module: str, scale: Scale, *, stderr: bool = False) -> None:
    """Print them for a person."""
    out = console(stderr=stderr)
    headline(out, f"import {module}: calls counted with strace; no times")
    fitting = max((min(out.width, WIDEST) - _LABEL) // _COLUMN, 1)
    for first in range(0, len(startups), fitting):
        if first:
            out.print()
        _print_table(out, startups[first : first + fitting], module, scale)
    out.print()
    _print_bars(out, startups)
    for startup in startups:
        if startup.why_not:
            marked(out, "unknown", f"{_named(startup)}: not counted: {startup.why_not}")
    for note in _notes(startups):
        say(out, note, style="dim")


def _print_table(out: Console, startups: Sequence[Startup], module: str, scale: Scale) -> None:
    """Print a column a place."""
    _row(out, "", [_named(startup) for startup in startups])
    _row(out, "", [startup.place.value for startup in startups])
    _row(out, "Python", [startup.python for startup in startups])
    _row(out, module, [startup.version or "-" for startup in startups])
    heading(out, "the program asks, of whatever file system")
    _row(out, "  metadata operations", [_number(startup.program.metadata) for startup in startups])
    _row(out, "    of these, nothing was there", [_number(startup.program.failed) for startup in startups])
    heading(out, "this reaches the file system that the place is on")
    for label, value, is_size in _ROWS:
        show = size if is_size else _number
        values = [show(value(startup.shared)) if startup.shared else "?" for startup in startups]
        _row(out, f"  {label}", values, strong=label == "metadata operations")
    out.print()
    processes = f"{scale.nodes:,} nodes x {scale.ranks} ranks = {scale.nodes * scale.ranks:,} processes"
    say(out, f"arithmetic, not measured: metadata operations of {processes}", style="bold")
    _row(out, "  every process asks", [_number(scale.every_rank(startup)) for startup in startups])
    _row(out, "  one of each node asks", [_number(scale.once_a_node(startup)) for startup in startups])


def _notes(startups: Sequence[Startup]) -> list[str]:
    notes = ["opens, stats, readlinks and reads of directories are counted; a stat of an open file is not"]
    if any(startup.place is ImportSource.IMAGE for startup in startups):
        notes.append(
            "image: what the engine asks of the image's file, of the folders above it and of the home, what is read of "
            "the image (compressed), and what the program asks of paths that are bound; once a container"
        )
    return notes


def _row(out: Console, label: str, values: Sequence[str], *, strong: bool = False) -> None:
    text = f"{one_line(label):<{_LABEL}}" + "".join(f"{one_line(value):>{_COLUMN}}" for value in values)
    out.print(text.rstrip(), style="bold" if strong else None, soft_wrap=True)


def _number(value: int | None) -> str:
    return "?" if value is None else f"{value:,}"


def _named(startup: Startup) -> str:
    name = Path(startup.path).name
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 3]}..."


def _print_bars(out: Console, startups: Sequence[Startup]) -> None:
    counted = [(startup, startup.shared.metadata) for startup in startups if startup.shared]
    longest = max((metadata for _, metadata in counted), default=0) or 1
    full = "█" if out.encoding.startswith("utf") else "#"
    for startup, metadata in counted:
        bar = full * max(round(_BAR * metadata / longest), 1 if metadata else 0)
        out.print(one_line(f"{_named(startup):>{_LONGEST_NAME}} {bar} {metadata:,}"), soft_wrap=True)
    if counted:
        out.print()


def svg(startups: Sequence[Startup], module: str, scale: Scale) -> str:
    """Return the picture: what reaches the file system of each place, and the arithmetic in words."""
    bars = []
    for startup in startups:
        name = _named(startup)
        label = name if name == startup.place.value else f"{startup.place.value} {name}"
        shared = startup.shared
        if shared is None:
            bars.append(TerminalBar(label, 0, 0, "not counted"))
            continue
        read = size(shared.read_bytes + shared.mapped_bytes)
        text = f"{shared.metadata:,} metadata operations, {shared.files:,} files, {read} read or mapped"
        bars.append(TerminalBar(label, shared.metadata - shared.failed, shared.failed, text))
    every = f"{scale.nodes:,} nodes x {scale.ranks} ranks, each number times {scale.nodes * scale.ranks:,}"
    notes = [
        f"Counted with strace, before any cache of a node. In all the program asks {_range(startups)} times.",
        f"Arithmetic, not measured: with {every}.",
    ]
    version = next((startup.version for startup in startups if startup.version), "")
    title = " ".join(filter(None, ("import", module, version))) + ": what one process asks of the shared file system"
    return bars_svg(title, ("something was there", "nothing was there"), bars, notes)


def _range(startups: Sequence[Startup]) -> str:
    numbers = [startup.program.metadata for startup in startups]
    least, most = min(numbers), max(numbers)
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"
