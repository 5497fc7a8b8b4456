"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add --json."""
    parser.add_argument(
        "--json", action="store_true", help="print the result as JSON on standard output; text for people on stderr"
    )


def add_layers(parser: argparse.ArgumentParser) -> None:
    """Add --layers."""
    parser.add_argument(
        "--layers",
        metavar="DIR",
        type=Path,
        action="append",
        default=[],
        help="a folder of layer folders of your own, searched first (may be repeated)",
    )
