"""The sizes in PyTorch's out-of-memory error: whether the request exceeds the GPU, or others use its memory."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_OTHERS_SHARE = 0.25
"""Share of a GPU's memory above which other processes must be using it; driver and communicators take less."""


def _bytes(match: re.Match[str], name: str) -> float:
    """Return a size such as `1.25 GiB` in bytes; 0 if the message does not contain it."""
    number, _, unit = (match[name] or "").partition(" ")
    return float(number) * _UNITS.get(unit, 0) if re.fullmatch(r"\d+(?:\.\d+)?", number) else 0


def _is_larger_than_the_gpu(match: re.Match[str]) -> bool:
    return _bytes(match, "tried") > _bytes(match, "total") > 0


def _is_used_by_others(match: re.Match[str]) -> bool:
    """Return whether memory is neither free nor used by this process (c10/cuda/CUDACachingAllocator.cpp)."""
    own = _bytes(match, "own") + _bytes(match, "unused")
    total = _bytes(match, "total")
    return own > 0 and total - _bytes(match, "free") - own > _OTHERS_SHARE * total


RELATIONS: Mapping[str, Callable[[re.Match[str]], bool]] = {
    "larger-than-the-gpu": _is_larger_than_the_gpu,
    "used-by-others": _is_used_by_others,
}
"""Relations by their name in the knowledge base."""
