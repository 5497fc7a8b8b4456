"""What a node offers otherwise than an earlier one of its kind: what an update of the machine changed.

Another node of the same kind compares as the same: its name, the time, PCI addresses and the numbers of its devices
are no change. Nodes of different kinds are told from each other, and not compared: what differs is no drift.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lumiimg.host.library_diff import LibraryIndex, library_changes
from lumiimg.host.library_search import ASKED
from lumiimg.host.node_change import ChangeKind, NodeChange, Subject
from lumiimg.host.scan import fabric_entry

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lumiimg.host.snapshot import Nic, Snapshot

_KFD = "/dev/kfd"
_DECIDES_BINDS = ("enable overlay", "enable underlay", "mount dev", "user bind control")
"""Settings of the engine that `host/engine_constraints.py` looks at."""
_DIGITS = re.compile(r"[0-9]+")


@dataclass(frozen=True, slots=True)
class Drift:
    """Two snapshots side by side."""

    before: Snapshot
    now: Snapshot
    kinds: tuple[NodeChange, ...]
    """In what the nodes are of different kinds; then there are no changes."""
    changes: tuple[NodeChange, ...]
    """In the order in which they bear on images."""
    notes: tuple[str, ...]
    """What makes two scans differ without a change of the machine."""

    @property
    def lost_fabric(self) -> bool:
        """Whether only the earlier snapshot has a libfabric that reaches Slingshot: an update, or a scan elsewhere."""
        return fabric_entry(self.before) is not None and fabric_entry(self.now) is None

    @property
    def driver_changed(self) -> bool:
        """Whether the GPU driver is another one: which ROCm runs is open again."""
        return self.before.gpu_driver != self.now.gpu_driver


def compare(before: Snapshot, now: Snapshot) -> Drift:
    """Return what is not as it was; nothing is judged here."""
    kinds = tuple(_kinds(before, now))
    changes = () if kinds else tuple(sorted(_changes(before, now), key=lambda change: _ORDER[change.subject]))
    return Drift(before, now, kinds, changes, tuple(_notes(before, now)))


_ORDER = {subject: number for number, subject in enumerate(Subject)}


def _kinds(before: Snapshot, now: Snapshot) -> Iterator[NodeChange]:
    """Yield what an update of a node cannot change, or would leave it without what its jobs are for."""
    yield from _value(Subject.SYSTEM, "architecture", before.architecture, now.architecture)
    if before.cpu is not None and now.cpu is not None:
        yield from _value(Subject.SYSTEM, "CPU", before.cpu, now.cpu)
    yield from _value(Subject.GPU, "GPUs of AMD", *(_yes(_has_gpu(snapshot)) for snapshot in (before, now)))
    yield from _value(Subject.NICS, "Slingshot NICs", *(_yes(bool(snapshot.nics)) for snapshot in (before, now)))


def _has_gpu(snapshot: Snapshot) -> bool:
    return _KFD in snapshot.devices or snapshot.gpu_driver is not None


def _yes(has: bool) -> str:
    return "yes" if has else "none"


def _changes(before: Snapshot, now: Snapshot) -> Iterator[NodeChange]:
    old, new = LibraryIndex(before), LibraryIndex(now)
    yield from _c_library(old, new)
    yield from library_changes(old, new)
    yield from _first_fabric(before, now)
    yield from _nic_changes(before.nics, now.nics)
    yield from _value(Subject.GPU, "driver", before.gpu_driver, now.gpu_driver, may_break=True)
    for version in before.rocm:
        if version not in now.rocm:
            details = ("a list of binds with its folder: the engine goes past it with a warning, or does not start",)
            yield NodeChange(
                Subject.GPU, ChangeKind.GONE, f"ROCm {version}", "under /opt", None, details, may_break=True
            )
    for version in now.rocm:
        if version not in before.rocm:
            yield NodeChange(Subject.GPU, ChangeKind.NEW, f"ROCm {version}", None, "under /opt")
    yield from _engine_changes(before, now)
    yield from _system_changes(before, now)


def _value(
    subject: Subject, what: str, before: str | None, now: str | None, *, may_break: bool = False
) -> Iterator[NodeChange]:
    if before != now:
        kind = ChangeKind.NEW if before is None else ChangeKind.GONE if now is None else ChangeKind.CHANGED
        yield NodeChange(subject, kind, what, before, now, may_break=may_break)


def _c_library(before: LibraryIndex, now: LibraryIndex) -> Iterator[NodeChange]:
    """Yield one change for all files of the C library: they come and go together."""
    version, version_now = before.snapshot.glibc, now.snapshot.glibc
    if version != version_now:
        details = ("what the host's libraries ask of an image's C library stands below",)
        yield NodeChange(Subject.GLIBC, ChangeKind.CHANGED, "glibc", version, version_now, details)
    elif version is not None and before.c_library() != now.c_library():
        yield NodeChange(Subject.GLIBC, ChangeKind.REBUILT, "glibc", version, version_now)


def _first_fabric(before: Snapshot, now: Snapshot) -> Iterator[NodeChange]:
    """Yield that another one of several libfabrics, all of which were there before, is tried first."""
    old, new = fabric_entry(before), fabric_entry(now)
    if old is not None and new is not None and old.path != new.path:
        paths = {entry.path for entry in before.entries}, {entry.path for entry in now.entries}
        if new.path in paths[0] or old.path in paths[1]:
            yield NodeChange(Subject.FABRIC, ChangeKind.CHANGED, "libfabric that is tried first", old.path, new.path)


def _nic_changes(before: tuple[Nic, ...], now: tuple[Nic, ...]) -> Iterator[NodeChange]:
    """Yield what the NICs have otherwise, all together: which of them is which, is the node's own business."""
    yield from _value(Subject.NICS, "number", str(len(before)), str(len(now)))
    up, up_now = (str(sum(nic.link_is_up is not False for nic in nics)) for nics in (before, now))
    if len(before) == len(now):
        yield from _value(Subject.NICS, "links that are up", up, up_now)
    for what, field in (("chip", "chip"), ("firmware", "firmware"), ("driver", "driver"), ("Mb/s", "speed_mbit_s")):
        yield from _value(Subject.NICS, what, *(_all_of(nics, field) for nics in (before, now)))


def _all_of(nics: tuple[Nic, ...], field: str) -> str | None:
    values = {str(value) for nic in nics if (value := getattr(nic, field)) is not None}
    return ", ".join(sorted(values)) or None


def _engine_changes(before: Snapshot, now: Snapshot) -> Iterator[NodeChange]:
    old, new = before.engine, now.engine
    names = (f"{engine.name} {engine.version}" if engine else None for engine in (old, new))
    yield from _value(Subject.ENGINE, "engine", *names)
    if old is None or new is None or old.settings is None or new.settings is None:
        return
    for name in sorted(old.settings.keys() | new.settings.keys()):
        decides = name in _DECIDES_BINDS
        values = old.settings.get(name), new.settings.get(name)
        yield from _value(Subject.ENGINE, f"`{name}`", *values, may_break=decides)


def _system_changes(before: Snapshot, now: Snapshot) -> Iterator[NodeChange]:
    yield from _value(Subject.SYSTEM, "OS", before.os.name or None, now.os.name or None)
    yield from _value(Subject.SYSTEM, "kernel", before.kernel, now.kernel)
    yield from _value(Subject.SYSTEM, "Slurm", before.slurm, now.slurm)
    yield from _value(Subject.SYSTEM, "levels of the CPU", *(", ".join(s.hwcaps) or None for s in (before, now)))
    yield from _value(Subject.SYSTEM, "loader", before.loader, now.loader)
    folders = (" ".join(snapshot.system_directories) for snapshot in (before, now))
    yield from _value(Subject.SYSTEM, "folders of the loader", *folders)
    old, new = (Counter(_DIGITS.sub("<n>", device) for device in snapshot.devices) for snapshot in (before, now))
    for name in sorted(old.keys() | new.keys()):
        yield from _value(Subject.SYSTEM, name, *(str(counts[name]) if counts[name] else None for counts in (old, new)))


def _notes(before: Snapshot, now: Snapshot) -> Iterator[str]:
    if before.taken > now.taken:
        yield f"the first snapshot is the newer one ({before.taken}, {now.taken}): are they the right way round?"
    if before.library_path != now.library_path:
        yield (
            "LD_LIBRARY_PATH was not the same at the two scans: some of this may come from other modules that were "
            f"loaded (before: {before.library_path or 'empty'}; now: {now.library_path or 'empty'})"
        )
    asked = [e.path for e in before.entries if ASKED in e.how and e.path not in {other.path for other in now.entries}]
    if asked:
        yield f"the first scan was told of {asked[0]} by --include, the second was not, or it is gone"
    if before.tool != now.tool:
        yield f"lumiimg {before.tool} and {now.tool} made the snapshots: they may not look at the same things"
    for gap in now.gaps:
        if gap not in before.gaps:
            yield f"the newer snapshot says: {gap}"
