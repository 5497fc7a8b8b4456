"""The fabric path: RCCL → net plugin → libfabric → cxi provider → libcxi → NIC."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumiimg.findings import Level, Severity
from lumiimg.report.document import PathSteps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumiimg.fabric.path import FabricPath, Step

PATH = "The path to the fast network"


def path_steps(steps: Sequence[Step], of: str = "") -> PathSteps:
    """Return a fabric path as a block."""
    return PathSteps(tuple(steps), path_sentence(steps), of)


def path_line(path: FabricPath) -> str:
    """Return a fabric path in one line."""
    api = f" (API v{path.plugin_api})" if path.plugin_api else ""
    parts = [
        f"RCCL {path.rccl_version or '?'}" if path.rccl else "no RCCL",
        f"{path.plugin}{api}" if path.plugin else "no plugin",
    ]
    if path.plugin:
        parts += [path.libfabric or "libfabric: none in the image", f"provider {path.provider or 'not known yet'}"]
    return " -> ".join(parts)


def path_sentence(steps: Sequence[Step]) -> str:
    """Return what the picture of a path shows."""
    broken = [step for step in steps if step.severity is Severity.PROBLEM]
    unknown = [step.title for step in steps if step.severity is Severity.UNKNOWN]
    if broken:
        return f"The path is broken at {broken[0].title}, step {list(steps).index(broken[0]) + 1} of {len(steps)}."
    if unknown:
        return f"No step is known to be broken; not known: {', '.join(unknown)}."
    level = min((step.level for step in steps if step.level), key=list(Level).index, default=Level.STATIC)
    return f"Every step holds, each with evidence of at least level {level.value}."
