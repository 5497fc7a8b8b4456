"""Writes the rooms as they are: docs/architecture.svg, and the table of imports in CONTRIBUTING.md (`make docs`)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "lumiimg"
PICTURE = ROOT / "docs" / "architecture.svg"
CONTRIBUTING = ROOT / "CONTRIBUTING.md"

# From the ground up; rooms on one floor do not know each other (docs/architecture.md).
FLOORS: list[set[str]] = [
    {"errors", "findings", "secret", "toml", "wording"},
    {"files"},
    {"elf", "image", "catalog", "nccl", "gpu"},
    {"engine"},
    {"fabric"},
    {"host"},
    {"resolve"},
    {"definition"},
    {"build", "check"},
    {"cluster"},
    {"report"},
    {"cli"},
]
KNOWS = {
    "elf": "what ld.so would load",
    "image": "files of an image",
    "catalog": "layers, sites, recipes",
    "nccl": "what logs say",
    "gpu": "which GPU takes code",
    "engine": "the one gate to programs",
    "fabric": "RCCL → plugin → NIC",
    "host": "what a node offers, binds",
    "resolve": "rules; request → lock",
    "definition": "lock → definitions",
    "build": "definitions → image",
    "check": "evidence → answer",
    "cluster": "jobs, modules, many nodes",
    "report": "text, JSON, JUnit, HTML",
    "cli": "a module a command",
}
VALUES = (
    ("request", "--base --add"),
    ("lock", "lumiimg.lock"),
    ("definitions", "*.def"),
    ("image", "image.sif"),
    ("findings", "--json"),
    ("answer", "0 1 3"),
)
STEPS = ("resolve", "definition", "build", "check", "report")
_WIDTH, _ROW = 960, 62
_COMMONS = "shared by all: errors · findings · secret · wording · files · toml"

_LAYOUT = """
text { font: 15px system-ui, sans-serif; text-anchor: middle }
.quiet { font-size: 12.5px }
.left { text-anchor: start }
.value, .step { stroke-width: 1.5 }
.arrow { stroke-width: 1.8; fill: none; marker-end: url(#tip) }
"""
# written out twice, since not every program that shows SVG knows variables of CSS
_COLOURS = """
.paper {{ fill: {paper} }}
text {{ fill: {ink} }}
.quiet {{ fill: {quiet} }}
.value {{ fill: {value}; stroke: {value_line} }}
.room {{ fill: {room}; stroke: {room_line} }}
.step {{ fill: {step}; stroke: {step_line} }}
.arrow {{ stroke: {line} }}
.tip {{ fill: {line} }}
.by {{ stroke: {step_line}; stroke-dasharray: 3 3 }}
"""
_LIGHT = {
    "paper": "#ffffff",
    "ink": "#1c2733",
    "quiet": "#566573",
    "line": "#7b8a97",
    "value": "#e3eefb",
    "value_line": "#2f6fb3",
    "room": "#f4f6f8",
    "room_line": "#b4bec7",
    "step": "#fdf0d5",
    "step_line": "#b7791f",
}
_DARK = {
    "paper": "#14181d",
    "ink": "#e8edf2",
    "quiet": "#a7b3be",
    "line": "#8796a4",
    "value": "#17324f",
    "value_line": "#6aa8e8",
    "room": "#20272e",
    "room_line": "#4b5863",
    "step": "#43310f",
    "step_line": "#e0a94a",
}


@dataclass(frozen=True, slots=True)
class Room:
    """A room as its files are today."""

    name: str
    imports: tuple[str, ...]
    longest: str
    longest_lines: int


def main() -> None:
    PICTURE.write_text(picture())
    CONTRIBUTING.write_text(with_table(CONTRIBUTING.read_text()))


@cache
def rooms() -> tuple[Room, ...]:
    """Return the rooms, the highest first."""
    return tuple(_room(name) for floor in reversed(FLOORS) for name in sorted(floor) if (PACKAGE / name).is_dir())


def _room(name: str) -> Room:
    files = sorted((PACKAGE / name).rglob("*.py"))
    imported = {part for file in files for part in _imports(file)}
    lengths = {file: len(file.read_text().splitlines()) for file in files}
    longest = max(files, key=lambda file: lengths[file])
    order = [room for floor in reversed(FLOORS) for room in sorted(floor)]
    return Room(
        name,
        tuple(sorted(imported - {name}, key=order.index)),
        str(longest.relative_to(PACKAGE)),
        lengths[longest],
    )


@cache
def syntax(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(syntax(path)))


def _imports(path: Path) -> Iterator[str]:
    """Yield the parts of the package that a module imports."""
    known = set().union(*FLOORS)
    for node in nodes(path):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
        for name in names:
            parts = name.split(".")
            if parts[0] == "lumiimg" and len(parts) > 1 and parts[1] in known:
                yield parts[1]


def with_table(text: str) -> str:
    """Return CONTRIBUTING.md with the table of today between its two marks."""
    lines = ["| room | imports | its longest module | lines, fewer than |", "|---|---|---|---:|"]
    for room in rooms():
        imports = ", ".join(name for name in room.imports if (PACKAGE / name).is_dir()) or "none"
        # in steps of fifty, so that the table is not another one with each line that is written
        lines.append(f"| `{room.name}/` | {imports} | `{room.longest}` | {room.longest_lines // 50 * 50 + 50} |")
    table = "\n".join(lines)
    return re.sub(r"(?s)(<!-- rooms -->\n).*?(\n<!-- /rooms -->)", lambda m: f"{m[1]}{table}{m[2]}", text)


def picture() -> str:
    """Return the picture: the values that are passed on, and under them the floors."""
    shown = [sorted(floor) for floor in FLOORS if any((PACKAGE / name).is_dir() for name in floor)]
    height = 215 + _ROW * len(shown) + 40
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" aria-labelledby="title desc">',
        '<title id="title">How lumiimg is built</title>',
        f'<desc id="desc">{escape(description())}</desc>',
        f"<style>{_LAYOUT}{_COLOURS.format(**_LIGHT)}",
        f"@media (prefers-color-scheme: dark) {{{_COLOURS.format(**_DARK)}}}</style>",
        (
            '<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto">'
            '<path class="tip" d="M0 0L10 5L0 10z"/></marker></defs>'
        ),
        f'<rect width="{_WIDTH}" height="{height}" rx="10" class="paper"/>',
        '<text class="left" x="24" y="34" style="font-weight:600">Each box is a value that can be written to a file; a room makes it of the one before</text>',
    ]
    parts += _flow()
    parts.append(
        '<text class="left" x="24" y="196" style="font-weight:600">A room imports only from rooms below it</text>'
    )
    for number, names in enumerate(reversed(shown)):
        parts += _floor(names, 215 + number * _ROW)
    parts.append(f'<text class="quiet" x="{_WIDTH / 2}" y="{height - 18}">{_COMMONS}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _flow() -> Iterator[str]:
    box, gap = 106, 55
    for number, (name, example) in enumerate(VALUES):
        x = 24 + number * (box + gap)
        yield f'<rect class="value" x="{x}" y="82" width="{box}" height="56" rx="8"/>'
        yield f'<text x="{x + box / 2}" y="106">{name}</text>'
        yield f'<text class="quiet" x="{x + box / 2}" y="126">{escape(example)}</text>'
        if number < len(STEPS):
            middle = x + box + gap / 2
            yield f'<path class="arrow" d="M{x + box + 4} 110H{x + box + gap - 3}"/>'
            yield f'<rect class="step" x="{middle - 40}" y="52" width="80" height="23" rx="11"/>'
            yield f'<text style="font-size:13px" x="{middle}" y="68">{STEPS[number]}</text>'
            yield f'<path d="M{middle} 75V106" class="by"/>'


def _floor(names: list[str], y: int) -> Iterator[str]:
    whole = _WIDTH - 48
    width = (whole - 10 * (len(names) - 1)) / len(names)
    for number, name in enumerate(names):
        x = 24 + number * (width + 10)
        kind = "step" if name in STEPS else "room"
        yield f'<rect class="{kind}" x="{x:.1f}" y="{y}" width="{width:.1f}" height="{_ROW - 10}" rx="6"/>'
        yield f'<text x="{x + width / 2:.1f}" y="{y + 22}" style="font-weight:600">{name}</text>'
        yield f'<text class="quiet" x="{x + width / 2:.1f}" y="{y + 41}">{escape(KNOWS[name])}</text>'


def description() -> str:
    """Return the picture in words."""
    flow = ", ".join(
        f"{step} makes of the {before} the {after}"
        for step, (before, _), (after, _) in zip(STEPS, VALUES, VALUES[1:], strict=False)
    )
    floors = "; ".join(
        " and ".join(f"{name} ({KNOWS[name]})" for name in sorted(floor))
        for floor in FLOORS
        if any(name in KNOWS for name in floor)
    )
    return f"{flow}. Floors from the ground up: {floors}."


if __name__ == "__main__":
    main()
