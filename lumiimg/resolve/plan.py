"""What a request is judged on, and the answer: the stack and its lock, or what stands against it and what works."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lumiimg.errors import BadInputError, MissingHereError
from lumiimg.resolve.rules import RuleOutcome, RuleResult
from lumiimg.resolve.stack import PLUGIN_COMPONENT, Stack

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from lumiimg.catalog.catalogue import Catalogue
    from lumiimg.catalog.layers import Layer
    from lumiimg.catalog.sites import Site, SiteVariable
    from lumiimg.fabric.path import Fabric
    from lumiimg.resolve.lock import Lock
    from lumiimg.resolve.network.mirrors import Mirrors
    from lumiimg.resolve.releases.indexes import Looked, ReleaseIndexes
    from lumiimg.resolve.request import Request


def _not_pulled(base: str) -> Path:
    raise BadInputError("cannot be read without asking its registry", where=base)


@dataclass(frozen=True, slots=True)
class Ground:
    """What a request is judged on."""

    catalogue: Catalogue
    mirrors: Mirrors
    path: str | None
    """The PATH in which bootstrap programs are looked for."""
    site: Site | None = None
    held: Mapping[str, str] = field(default_factory=dict)
    """Releases of layers to keep, by name, where the request does not name another."""
    images: Mapping[str, Layer] = field(default_factory=dict)
    """Bases that are images, by their names, as far as they were read."""
    indexes: ReleaseIndexes | None = None
    """Where releases are looked for that no row has; None: nowhere."""
    looked: Mapping[str, Looked] = field(default_factory=dict)
    """What was found there, by layer."""
    pull: Callable[[str], Path] = _not_pulled
    """Brings a base out of a registry here, to be read."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The answer."""

    asked: Request
    base: Layer
    stack: Stack | None
    """None where it is refused."""
    fabric: Fabric
    """Where the image gets libfabric with the cxi provider from; `none`: no site is named, or it has none."""
    rules: tuple[RuleResult, ...]
    """All that were applied."""
    nearest: Plan | None = None
    environment: tuple[SiteVariable, ...] = ()
    """Variables of the site that jobs with such an image want."""
    site: Site | None = None
    """None where no machine is named."""
    lock: Lock | None = None
    """None where it is refused, or its base cannot be had here."""
    missing: MissingHereError | None = None
    """Why the base cannot be had on this machine."""

    @property
    def refused(self) -> bool:
        return self.stack is None or any(rule.outcome is RuleOutcome.REFUSED for rule in self.rules)

    @property
    def is_doubtful(self) -> bool:
        """Whether something is known against it, or not known."""
        return any(rule.outcome in {RuleOutcome.WARNING, RuleOutcome.UNKNOWN} for rule in self.rules)

    @property
    def against(self) -> tuple[RuleResult, ...]:
        """What refuses it, is known against it, or is not known."""
        return tuple(rule for rule in self.rules if rule.outcome is not RuleOutcome.OK)

    @property
    def plugin(self) -> str | None:
        """Net plugin, with its version; null where there is none."""
        offer = self.stack.offers.get(PLUGIN_COMPONENT) if self.stack else None
        return offer.by if offer else None

    @property
    def torch(self) -> str | None:
        """Version with the local part: `2.7.1+rocm6.2.4`; null where there is none."""
        return self.stack.version("torch") if self.stack else None


def outcome_of(plan: Plan) -> str:
    """Return a plan in a line: what it chooses, or what stands against it."""
    if plan.refused or plan.stack is None:
        against = next(rule for rule in plan.rules if rule.outcome is RuleOutcome.REFUSED)
        return f"refused ({against.id}): {against.sides}"
    chosen = [f"{c.layer.name} {c.version}" for c in plan.stack.layers if c.version and c.layer.name != "pytorch"]
    parts = [f"fabric {plan.fabric.value}", *([f"torch {plan.torch}"] if plan.torch else []), *chosen]
    return ", ".join(parts) + (" (with doubts)" if plan.is_doubtful else "")
