"""Two snapshots of one kind of node, before and after an update of the machine; images are judged with both.

They may be of two nodes of one kind. Nodes of different kinds are recognised: their differences are not drift.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lumiimg.host.scan import ASKED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lumiimg.host.snapshot import Snapshot

_KFD = "/dev/kfd"


@dataclass(frozen=True, slots=True)
class Drift:
    """Two snapshots side by side."""

    before: Snapshot
    """The older snapshot."""
    now: Snapshot
    """The newer snapshot, or this machine."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """Differences that no update makes, which show nodes of different kinds; one clause each."""
        before, now = _kind_of(self.before), _kind_of(self.now)
        differing = (what for what, old in before.items() if old and now[what] and old != now[what])
        return tuple(f"{what}: {before[what]} -> {now[what]}" for what in differing)

    @property
    def driver_changed(self) -> bool:
        """Whether the GPU driver changed: which ROCm runs is an open question again."""
        return self.before.gpu_driver != self.now.gpu_driver

    @property
    def notes(self) -> tuple[str, ...]:
        """Reasons why the scans may differ although the machine did not change."""
        return tuple(_notes(self.before, self.now))


def _kind_of(snapshot: Snapshot) -> dict[str, str | None]:
    """Return the properties that an update cannot change, or not without making the node useless for its jobs."""
    has_gpus = _KFD in snapshot.devices or snapshot.gpu_driver is not None
    return {
        "architecture": snapshot.architecture,
        "CPU": snapshot.cpu,
        "AMD GPUs": "yes" if has_gpus else "none",
        "Slingshot NICs": "yes" if snapshot.nics else "none",
    }


def _notes(before: Snapshot, now: Snapshot) -> Iterator[str]:
    if before.taken > now.taken:
        yield f"the first snapshot is the newer one ({before.taken}, {now.taken}): are they in the right order?"
    if before.library_path != now.library_path:
        yield (
            "LD_LIBRARY_PATH differed between the scans: some differences may come from other loaded modules "
            f"(before: {before.library_path or 'empty'}; now: {now.library_path or 'empty'})"
        )
    here = {entry.path for entry in now.entries}
    if asked := [entry.path for entry in before.entries if ASKED in entry.how and entry.path not in here]:
        yield f"the first scan had --include {asked[0]}; the second did not, or the path is gone"
    if before.tool != now.tool:
        yield f"lumiimg {before.tool} and {now.tool} made the snapshots: they may not record the same things"
    yield from (f"the newer snapshot reports: {gap}" for gap in now.gaps if gap not in before.gaps)
