"""What `lumiimg bench import` says: calls by place, what of them leaves the node, and what N nodes make of it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape

from lumiimg.check.startup import ImportSource, Startup
from lumiimg.errors import printable
from lumiimg.report.console import WIDEST, Console, console, heading, headline, marked, say
from lumiimg.wording import size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

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
            "the image (compressed), and what the program asks of paths that are bound; once per container"
        )
    return notes


def _row(out: Console, label: str, values: Sequence[str], *, strong: bool = False) -> None:
    text = f"{printable(label):<{_LABEL}}" + "".join(f"{printable(value):>{_COLUMN}}" for value in values)
    out.print(text.rstrip(), style="bold" if strong else None)


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
        out.print(printable(f"{_named(startup):>{_LONGEST_NAME}} {bar} {metadata:,}"))
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
            bars.append(_Bar(label, 0, 0, "not counted"))
            continue
        read = size(shared.read_bytes + shared.mapped_bytes)
        text = f"{shared.metadata:,} metadata operations, {shared.files:,} files, {read} read or mapped"
        bars.append(_Bar(label, shared.metadata - shared.failed, shared.failed, text))
    every = f"{scale.nodes:,} nodes x {scale.ranks} ranks, each number times {scale.nodes * scale.ranks:,}"
    notes = [
        f"Counted with strace, before any cache of a node. In all the program asks {_range(startups)} times.",
        f"Arithmetic, not measured: with {every}.",
    ]
    version = next((startup.version for startup in startups if startup.version), "")
    title = " ".join(filter(None, ("import", module, version))) + ": what one process asks of the shared file system"
    return _picture(title, bars, notes)


def _range(startups: Sequence[Startup]) -> str:
    numbers = [startup.program.metadata for startup in startups]
    least, most = min(numbers), max(numbers)
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"


# -- the picture: horizontal bars as SVG. Nothing is fetched; light and dark; told apart by pattern and number

_WIDTH, _LEFT, _RIGHT = 860, 24, 24
_TOP, _STEP, _THICK = 84, 62, 22
_STYLE = """\
text { font: 14px system-ui, sans-serif; fill: #1c2733 }
.title { font-size: 17px; font-weight: 600 }
.quiet { font-size: 12px; fill: #566573 }
.paper { fill: #ffffff }
.solid { fill: #2f6690 }
.hatched { fill: url(#hatch); stroke: #2f6690 }
.line { stroke: #2f6690 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 }
  .quiet { fill: #9aa7b4 }
  .paper { fill: #11161c }
  .solid { fill: #7db8e0 }
  .hatched { stroke: #7db8e0 }
  .line { stroke: #7db8e0 }
}
"""
_HATCH = (
    '<pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<line class="line" x1="0" y1="0" x2="0" y2="6" stroke-width="2"/></pattern>'
)


@dataclass(frozen=True, slots=True)
class _Bar:
    """One row: two parts of a sum."""

    label: str
    solid: int
    hatched: int
    text: str
    """Behind the bar's label: what it comes to."""


def _picture(title: str, bars: Sequence[_Bar], notes: Sequence[str]) -> str:
    height = _TOP + _STEP * len(bars) + 20 * len(notes) + 16
    box = f"0 0 {_WIDTH} {height}"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{box}" role="img" aria-labelledby="title desc">',
        f'<title id="title">{_text(title)}</title>',
        f'<desc id="desc">{_text("; ".join(f"{bar.label}: {bar.text}" for bar in bars))}</desc>',
        f"<style>\n{_STYLE}</style>",
        f"<defs>{_HATCH}</defs>",
        f'<rect class="paper" width="{_WIDTH}" height="{height}"/>',
        f'<text class="title" x="{_LEFT}" y="32">{_text(title)}</text>',
        *_legend(),
        *_drawn(bars),
    ]
    for number, note in enumerate(notes):
        y = _TOP + _STEP * len(bars) + 20 * number + 14
        lines.append(f'<text class="quiet" x="{_LEFT}" y="{y}">{_text(note)}</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"


def _legend() -> Iterator[str]:
    x = _LEFT
    for kind, words in (("solid", "something was there"), ("hatched", "nothing was there")):
        yield f'<rect class="{kind}" x="{x}" y="46" width="22" height="12"/>'
        yield f'<text class="quiet" x="{x + 28}" y="57">{_text(words)}</text>'
        x += 60 + 7 * len(words)


def _drawn(bars: Sequence[_Bar]) -> Iterator[str]:
    room = _WIDTH - _LEFT - _RIGHT
    longest = max((bar.solid + bar.hatched for bar in bars), default=0) or 1
    for number, bar in enumerate(bars):
        y = _TOP + _STEP * number
        yield f'<text x="{_LEFT}" y="{y + 14}">{_text(bar.label)}: {_text(bar.text)}</text>'
        # what is there is seen, however little it is
        solid, hatched = (
            max(round(room * part / longest, 1), 1.0) if part else 0.0 for part in (bar.solid, bar.hatched)
        )
        yield f'<rect class="solid" x="{_LEFT}" y="{y + 22}" width="{solid:g}" height="{_THICK}"/>'
        if hatched:
            yield f'<rect class="hatched" x="{_LEFT + solid:g}" y="{y + 22}" width="{hatched:g}" height="{_THICK}"/>'


def _text(text: str) -> str:
    return escape(printable(text))
