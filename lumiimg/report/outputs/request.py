"""What `explain` prints of a request."""

from __future__ import annotations

from typing import Literal

from lumiimg.catalog.launch import Jobs
from lumiimg.catalog.ledger import Reach
from lumiimg.fabric.path import Fabric
from lumiimg.report.outputs.shape import Output, Shape
from lumiimg.resolve.rules import RuleResult


class WantedVariable(Shape):
    """A variable that jobs on a site want."""

    name: str
    """Of the variable."""
    value: str
    """As a shell reads it; may name other variables."""
    nodes: Jobs
    """For which jobs it is."""
    because: str
    """Why, a sentence."""
    source: str
    """Where that is from."""


class Asked(Shape):
    """A request."""

    base: str
    """For --base."""
    add: tuple[str, ...]
    """For --add, each."""
    fabric: Literal["auto", "host", "bundled", "none"]
    """For --fabric."""


class ChosenLayer(Shape):
    """One layer."""

    name: str
    """In the catalogue."""
    version: str | None
    """Of the release that was chosen; null for a layer without releases."""
    status: Reach | Literal["read", "derived", "unlisted"]
    """How far it was tried. Of a release that no row has: `read` from a package index, `derived` from the nearest row,
    or `unlisted`, with no facts about it."""


class ExplainRequest(Output):
    """What a request would be built of, by which rule; or why not, and the nearest that works."""

    printed_by = "lumiimg explain --base B --add L --json"

    decision: Literal["ok", "refused"]
    """The exit code says the same: `ok` 0, `refused` 1."""
    fabric: Fabric
    """Where the image gets libfabric with the cxi provider from; `none`: no site is named, or it has none."""
    plugin: str | None
    """Net plugin, with its version; null where there is none."""
    torch: str | None
    """Version with the local part: `2.7.1+rocm6.2.4`; null where there is none."""
    rules: tuple[RuleResult, ...]
    """All that were applied."""
    nearest: Asked | None
    """The nearest request that works, where this one is refused; null where there is none."""
    base: str
    """Name in the catalogue, or the image."""
    layers: tuple[ChosenLayer, ...]
    """In the order in which they are built; empty where the request is refused."""
    environment: tuple[WantedVariable, ...]
    """What jobs with such an image want on the site."""


class PossibleBase(Shape):
    """One base."""

    base: str
    """Name in the catalogue."""
    doubts: bool
    """Whether a rule warns or could not decide."""
    answer: str
    """What comes out, in a few words."""


class ExplainBases(Output):
    """On which bases layers can be put."""

    printed_by = "lumiimg explain --add L --json"

    bases: tuple[PossibleBase, ...]
    """Those without doubts first."""
