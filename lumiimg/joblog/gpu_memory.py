"""The sizes in PyTorch's words of a full GPU: whether one request was larger than it, or others hold its memory."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_OF_OTHERS = 0.25
"""Part of a GPU that others hold where the GPU is shared: less is taken by the driver and by communicators."""


def _bytes(match: re.Match[str], name: str) -> float:
    """Return a size such as `1.25 GiB` in bytes; 0 where the message does not have it."""
    number, _, unit = (match[name] or "").partition(" ")
    return float(number) * _UNITS.get(unit, 0) if re.fullmatch(r"\d+(?:\.\d+)?", number) else 0


def _is_larger_than_the_gpu(match: re.Match[str]) -> bool:
    return _bytes(match, "tried") > _bytes(match, "total") > 0


def _is_used_by_others(match: re.Match[str]) -> bool:
    """Whether neither this process has the GPU's memory nor anything is free (c10/cuda/CUDACachingAllocator.cpp)."""
    own = _bytes(match, "own") + _bytes(match, "unused")
    total = _bytes(match, "total")
    return own > 0 and total - _bytes(match, "free") - own > _OF_OTHERS * total


RELATIONS: Mapping[str, Callable[[re.Match[str]], bool]] = {
    "larger-than-the-gpu": _is_larger_than_the_gpu,
    "used-by-others": _is_used_by_others,
}
"""By the name that the knowledge base has for them."""
