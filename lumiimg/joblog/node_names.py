"""Names of nodes, folded as Slurm writes them: nid005000, nid005001, nid005003 -> nid[005000-005001,005003]."""

from __future__ import annotations

import re
from collections.abc import Iterable

_NUMBERED = re.compile(r"(.*?)(\d{1,9})((?:[.-]\D.*)?)")
"""Prefix, number, domain: `nid005000.hsn.example`."""


def folded(names: Iterable[str]) -> str:
    """Return all names in one line, in order; those that differ in their number only are written once."""
    families: dict[tuple[str, int, str], set[int]] = {}
    plain: set[str] = set()
    for name in names:
        match = _NUMBERED.fullmatch(name)
        if match is None:
            plain.add(name)
        else:
            families.setdefault((match[1], len(match[2]), match[3]), set()).add(int(match[2]))
    parts = sorted(plain)
    for (prefix, width, suffix), numbers in sorted(families.items()):
        spans = _spans(sorted(numbers), width)
        one = len(numbers) == 1
        parts.append(f"{prefix}{spans}{suffix}" if one else f"{prefix}[{spans}]{suffix}")
    return ",".join(parts)


def _spans(numbers: list[int], width: int) -> str:
    """Return `005000-005003,005007` of the sorted numbers."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(f"{a:0{width}}" if a == b else f"{a:0{width}}-{b:0{width}}" for a, b in spans)
