"""What `refresh` prints."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

from lumiimg.report.outputs.shape import Output, Shape, Text


class ReadRelease(Shape):
    """One release, as it was read."""

    version: str
    """Of it."""
    date: dt.date | None
    """When it was uploaded, ISO 8601; null where the index does not say."""
    requires: tuple[Text, ...]
    """What must be below it. As `name>=1.2`."""
    expects: tuple[Text, ...]
    """What its project builds it with: another is a doubt."""
    wheels: tuple[str, ...]
    """Python distributions that it comes as; empty for one that is compiled."""
    doubts: tuple[str, ...]
    """What was seen against it."""
    source: str
    """What was read."""
    read: dt.date
    """The day on which it was read, ISO 8601."""


class ReadLayer(Shape):
    """What was read of one layer."""

    name: str
    """In the catalogue."""
    newest: str
    """Version of the newest release in the index that can be read."""
    releases: tuple[ReadRelease, ...]
    """The newest first; a version may have several, one for each ROCm."""
    faults: tuple[str, ...]
    """Why a version could not be read, each in one line."""


class Refresh(Output):
    """Releases that the catalogue has no row for, as the package index has them."""

    printed_by = "lumiimg refresh --json"

    cache: Path
    """The folder that they are kept in."""
    layers: tuple[ReadLayer, ...]
    """Those that could be read."""
