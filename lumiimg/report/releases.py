"""What `lumiimg refresh` read."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from lumiimg.errors import LumiimgError, printable
from lumiimg.report.console import INDENT, console, detail, headline, print_json, say
from lumiimg.wording import count

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from lumiimg.catalog.layers import Layer
    from lumiimg.resolve.releases.refresh import Refreshed


def print_fault(layer: Layer, fault: LumiimgError) -> None:
    """Print why nothing of a layer was read."""
    print(f"lumiimg: {printable(f'{layer.name}: {fault}')}", file=sys.stderr)


def print_refreshed(found: Sequence[Refreshed], cache: Path, *, as_json: bool, quiet: bool = False) -> None:
    """Print the rows of each layer."""
    if as_json:
        layers = [
            {
                "name": one.layer.name,
                "newest": one.newest,
                "releases": one.rows,
                "faults": [printable(f"{fault}") for fault in (*one.faults, *filter(None, [one.lost]))],
            }
            for one in found
        ]
        print_json("refresh", cache=cache / "releases", layers=layers)
        return
    out = console(quiet=quiet)
    for one in found:
        headline(out, f"{one.layer.name}: {count(len(one.rows), 'row')} read; the newest release is {one.newest}")
        for row in one.rows:
            needs = ", ".join([*map(str, row.requires), *(f"made for {need}" for need in row.expects)])
            first = f"{INDENT}{row.version:<10}  {row.date!s:<10}  "
            say(out, "; ".join([needs or "nothing of its own", *row.doubts]), first=first, rest=" " * len(first))
        for fault in one.faults:
            detail(out, f"not read: {fault}", style="yellow")
        if one.lost:
            detail(out, f"not kept: {one.lost}", style="yellow")
    if not all(one.lost for one in found):
        say(out, f"kept in {cache / 'releases'}", style="dim")
