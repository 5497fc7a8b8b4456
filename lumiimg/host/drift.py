"""What a node offers otherwise than an earlier one of its kind: what an update of the machine changed.

Another node of the same kind compares as the same: its name, the time, PCI addresses and the numbers of its devices
do not count as changes. Nodes of different kinds are recognised and not compared: what differs is not drift.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lumiimg.host.library_diff import LibraryIndex, library_changes
from lumiimg.host.library_search import ASKED
from lumiimg.host.node_change import ChangeKind, NodeChange, Subject
from lumiimg.host.snapshot import fabric_entry

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lumiimg.host.snapshot import Snapshot

_KFD = "/dev/kfd"
_MAY_BREAK = {
    (Subject.GPU, "driver"),
    # settings that `host/engine_constraints.py` looks at
    *(
        (Subject.ENGINE, f"`{name}`")
        for name in ("enable overlay", "enable underlay", "mount dev", "user bind control")
    ),
}
"""What may have been good before and not be any more."""
_DIGITS = re.compile(r"[0-9]+")


@dataclass(frozen=True, slots=True)
class Drift:
    """Two snapshots side by side."""

    before: Snapshot
    """The older snapshot."""
    now: Snapshot
    """The newer snapshot, or this machine."""
    kinds: tuple[NodeChange, ...]
    """What shows that these are nodes of different kinds, and no drift."""
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
    gpus = (_yes(_KFD in node.devices or node.gpu_driver is not None) for node in (before, now))
    yield from _value(Subject.GPU, "GPUs of AMD", *gpus)
    yield from _value(Subject.NICS, "Slingshot NICs", *(_yes(bool(snapshot.nics)) for snapshot in (before, now)))


def _yes(has: bool) -> str:
    return "yes" if has else "none"


def _changes(before: Snapshot, now: Snapshot) -> Iterator[NodeChange]:
    old, new = LibraryIndex(before), LibraryIndex(now)
    yield from _value(Subject.GLIBC, "glibc", before.glibc, now.glibc)
    yield from library_changes(old, new)
    yield from _first_fabric(before, now)
    values, values_now = dict(_values(before, now)), dict(_values(now, before))
    for subject, what in values | values_now:
        key = subject, what
        yield from _value(*key, values.get(key), values_now.get(key), may_break=key in _MAY_BREAK)
    for version in before.rocm:
        if version not in now.rocm:
            details = ("a list of binds with its folder: the engine goes past it with a warning, or does not start",)
            yield NodeChange(
                Subject.GPU, ChangeKind.GONE, f"ROCm {version}", "under /opt", None, details, may_break=True
            )
    for version in now.rocm:
        if version not in before.rocm:
            yield NodeChange(Subject.GPU, ChangeKind.NEW, f"ROCm {version}", None, "under /opt")


def _values(snapshot: Snapshot, other: Snapshot) -> Iterator[tuple[tuple[Subject, str], str | None]]:
    """Yield what can be compared with another snapshot word by word: subject and name, then the value.

    Of NICs it is what they have all together: which of them is which, is the node's own business.
    """
    nics = snapshot.nics
    yield (Subject.NICS, "number"), str(len(nics))
    if len(nics) == len(other.nics):
        yield (Subject.NICS, "links that are up"), str(sum(nic.link_is_up is not False for nic in nics))
    for what, field in (("chip", "chip"), ("firmware", "firmware"), ("driver", "driver"), ("Mb/s", "speed_mbit_s")):
        found = {str(value) for nic in nics if (value := getattr(nic, field)) is not None}
        yield (Subject.NICS, what), ", ".join(sorted(found)) or None
    yield (Subject.GPU, "driver"), snapshot.gpu_driver
    yield (Subject.GPU, "processor"), snapshot.gpu if other.gpu else None  # an older snapshot does not say
    engine = snapshot.engine
    yield (Subject.ENGINE, "engine"), f"{engine.name} {engine.version}" if engine else None
    if engine and engine.settings is not None and other.engine and other.engine.settings is not None:
        for name in sorted(engine.settings.keys() | other.engine.settings.keys()):
            yield (Subject.ENGINE, f"`{name}`"), engine.settings.get(name)
    yield (Subject.SYSTEM, "OS"), snapshot.os.name or None
    yield (Subject.SYSTEM, "kernel"), snapshot.kernel
    yield (Subject.SYSTEM, "Slurm"), snapshot.slurm
    yield (Subject.SYSTEM, "levels of the CPU"), ", ".join(snapshot.hwcaps) or None
    yield (Subject.SYSTEM, "loader"), snapshot.loader
    yield (Subject.SYSTEM, "folders of the loader"), " ".join(snapshot.system_directories)
    counts, counts_there = (Counter(_DIGITS.sub("<n>", name) for name in s.devices) for s in (snapshot, other))
    for name in sorted(counts.keys() | counts_there.keys()):
        yield (Subject.SYSTEM, name), str(counts[name]) if counts[name] else None


def _value(
    subject: Subject, what: str, before: str | None, now: str | None, *, may_break: bool = False
) -> Iterator[NodeChange]:
    if before != now:
        kind = ChangeKind.NEW if before is None else ChangeKind.GONE if now is None else ChangeKind.CHANGED
        yield NodeChange(subject, kind, what, before, now, may_break=may_break)


def _first_fabric(before: Snapshot, now: Snapshot) -> Iterator[NodeChange]:
    """Yield that another one of several libfabrics, all of which were there before, is tried first."""
    old, new = fabric_entry(before), fabric_entry(now)
    if old is not None and new is not None and old.path != new.path:
        paths = {entry.path for entry in before.entries}, {entry.path for entry in now.entries}
        if new.path in paths[0] or old.path in paths[1]:
            yield NodeChange(Subject.FABRIC, ChangeKind.CHANGED, "libfabric that is tried first", old.path, new.path)


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
        yield f"the first scan had {asked[0]} by --include, the second had not, or it is gone"
    if before.tool != now.tool:
        yield f"lumiimg {before.tool} and {now.tool} made the snapshots: they may not look at the same things"
    for gap in now.gaps:
        if gap not in before.gaps:
            yield f"the newer snapshot says: {gap}"
