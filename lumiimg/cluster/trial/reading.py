"""One measurement, as it stands beside its claim."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lumiimg.core.text import count

if TYPE_CHECKING:
    from collections.abc import Iterable

NOT_KNOWN = "this lumiimg does not know the claim"
_NONE = "none"


@dataclass(frozen=True, slots=True)
class ClaimReading:
    """What was measured."""

    value: str | None
    """None where nothing was."""
    why: str = ""
    """Why not, or what else was seen."""
    number: float | None = None
    """The same as a number, where it is one."""
    same: bool | None = None
    """Whether it is as predicted, where that is more than the same words."""
    partial: bool = False
    """Whether some nodes said nothing, or a log is not sure: that can contradict a claim, and not prove it."""


def joined(found: Iterable[tuple[str | None, int]], nothing: str) -> ClaimReading:
    """Return what nodes say: one value, or each with how many of them say so; `nothing` where none says anything.

    `found`: values, each with a number of nodes.
    """
    numbers: dict[str, int] = {}
    for value, nodes in found:
        numbers[value or _NONE] = numbers.get(value or _NONE, 0) + nodes
    if not numbers.keys() - {_NONE}:
        return ClaimReading(None, nothing)
    silent = numbers.pop(_NONE, 0)
    if len(numbers) == 1:
        why = f"{count(silent, 'node')} did not show it" if silent else ""
        return ClaimReading(next(iter(numbers)), why, partial=bool(silent))
    told = (f"{value} on {count(nodes, 'node')}" for value, nodes in sorted(numbers.items(), key=lambda one: -one[1]))
    return ClaimReading("; ".join(told), "the nodes differ", same=False)
