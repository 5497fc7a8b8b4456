"""What a node offers otherwise than an earlier one of its kind: what an update of the machine changed.

Another node of the same kind compares as the same: its name, the time, PCI addresses and the numbers of its devices
do not count as changes. Nodes of different kinds are recognised and not compared: what differs is not drift.

Of libraries names are compared, not files: a bind is made for a name that a library needs (DT_NEEDED), and what is
behind the name may be another file after every update.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from lumiimg.elf.c_library import of_c_library
from lumiimg.elf.versions import numbers_of
from lumiimg.host.library_search import ASKED
from lumiimg.host.margins import newest_needs
from lumiimg.host.snapshot import fabric_entry
from lumiimg.host.snapshot_tree import HostFiles

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lumiimg.host.snapshot import FoundLibrary, HostLibrary, Snapshot

_KFD = "/dev/kfd"
_FABRIC_ROLES = ("libfabric", "libfabric-provider", "libcxi", "net-plugin")
_HELPER_ROLE = "cxi-helper"
"""Libraries that libfabric may be linked with, or open: listed as what it needs."""
_DIGITS = re.compile(r"[0-9]+")
_NAMED = 4
"""Names of versions that one detail lists."""


class Subject(StrEnum):
    """What a change is about, in the order in which it bears on images."""

    GLIBC = "glibc"
    FABRIC = "fabric"
    """libfabric, its providers, libcxi and net plugins."""
    LIBRARIES = "libraries"
    """What these need."""
    OTHER = "other libraries"
    """Of what is recorded beside the fabric: xpmem, PMI, PALS, what `--include` named."""
    NICS = "NICs"
    GPU = "GPU"
    ENGINE = "engine"
    SYSTEM = "system"


_MAY_BREAK = {
    (Subject.GPU, "driver"),
    # settings that `host/engine_constraints.py` looks at
    *(
        (Subject.ENGINE, f"`{name}`")
        for name in ("enable overlay", "enable underlay", "mount dev", "user bind control")
    ),
}
"""What may have been good before and not be any more."""


class ChangeKind(StrEnum):
    """What became of it."""

    GONE = "gone"
    NEW = "new"
    CHANGED = "changed"


@dataclass(frozen=True, slots=True)
class NodeChange:
    """One thing that a node offers otherwise than before."""

    subject: Subject
    """What it is about."""
    what: str
    """A name: `libjson-c.so.3`, `driver`, `kernel`."""
    before: str | None
    """Null where there was nothing."""
    now: str | None
    """Null where there is nothing."""
    details: tuple[str, ...] = ()
    """More of it, a line each."""
    may_break: bool = False
    """Whether an image, or a list of binds, that was good before may not be any more."""

    @property
    def kind(self) -> ChangeKind:
        """What became of it."""
        if self.before is None:
            return ChangeKind.NEW
        return ChangeKind.GONE if self.now is None else ChangeKind.CHANGED


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
    changes = () if kinds else sorted(_changes(before, now), key=lambda change: [*Subject].index(change.subject))
    return Drift(before, now, kinds, tuple(changes), tuple(_notes(before, now)))


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
    yield from _library_changes(before, now)
    old, new = dict(_values(before, now)), dict(_values(now, before))
    for key in old | new:
        yield from _value(*key, old.get(key), new.get(key))


# -- what can be compared word by word --


def _values(snapshot: Snapshot, other: Snapshot) -> Iterator[tuple[tuple[Subject, str], str | None]]:
    """Yield subject and name, then the value; what one of two snapshots does not say is left out.

    Of NICs it is what they have all together: which of them is which, is the node's own business.
    """
    yield (Subject.GLIBC, "glibc"), snapshot.glibc
    nics = snapshot.nics
    yield (Subject.NICS, "number"), str(len(nics))
    if len(nics) == len(other.nics):
        yield (Subject.NICS, "links that are up"), str(sum(nic.link_is_up is not False for nic in nics))
    for what, field in (("chip", "chip"), ("firmware", "firmware"), ("driver", "driver"), ("Mb/s", "speed_mbit_s")):
        found = {str(value) for nic in nics if (value := getattr(nic, field)) is not None}
        yield (Subject.NICS, what), ", ".join(sorted(found)) or None
    yield (Subject.GPU, "driver"), snapshot.gpu_driver
    if snapshot.gpu and other.gpu:
        yield (Subject.GPU, "processor"), snapshot.gpu
    yield from (((Subject.GPU, f"ROCm {version}"), "under /opt") for version in snapshot.rocm)
    engine = snapshot.engine
    yield (Subject.ENGINE, "engine"), f"{engine.name} {engine.version}" if engine else None
    if engine and engine.settings and other.engine and other.engine.settings is not None:
        yield from (((Subject.ENGINE, f"`{name}`"), value) for name, value in sorted(engine.settings.items()))
    yield (Subject.SYSTEM, "OS"), snapshot.os.name or None
    yield (Subject.SYSTEM, "kernel"), snapshot.kernel
    yield (Subject.SYSTEM, "Slurm"), snapshot.slurm
    for name, number in sorted(Counter(_DIGITS.sub("<n>", name) for name in snapshot.devices).items()):
        yield (Subject.SYSTEM, name), str(number)


def _value(subject: Subject, what: str, before: str | None, now: str | None) -> Iterator[NodeChange]:
    if before == now:
        return
    if what.startswith("ROCm ") and now is None:
        details = ("a list of binds with its folder: the engine goes past it with a warning, or does not start",)
        yield NodeChange(subject, what, before, now, details, may_break=True)
    else:
        yield NodeChange(subject, what, before, now, may_break=(subject, what) in _MAY_BREAK)


# -- libraries: what is behind each name that the fabric, or another library, needs --


@dataclass(frozen=True, slots=True)
class _Named:
    """What a host serves for one name."""

    subject: Subject
    path: str
    library: HostLibrary
    errors: tuple[str, ...] = ()
    """Why the host itself cannot load it."""


def _libraries(snapshot: Snapshot) -> dict[str, _Named]:
    """Return the libraries by name, without the C library; the first of a name counts, as for a bind."""
    files = HostFiles(snapshot)
    found: dict[str, _Named] = {}

    def add(subject: Subject, name: str, path: str | None, errors: tuple[str, ...] = ()) -> None:
        library = files.library(path)
        if path is not None and library is not None and not of_c_library(library.facts):
            found.setdefault(name, _Named(subject, path, library, errors))

    entries = sorted(snapshot.entries, key=lambda entry: not _is_of_fabric(entry))
    for entry in entries:
        own = Subject.FABRIC if entry.role in _FABRIC_ROLES else Subject.OTHER
        subject = Subject.LIBRARIES if entry.role == _HELPER_ROLE else own
        add(subject, entry.path.rpartition("/")[2], entry.path, entry.errors)
    for entry in entries:
        for name, path in entry.closure.items():
            add(Subject.LIBRARIES if _is_of_fabric(entry) else Subject.OTHER, name, path)
    return found


def _is_of_fabric(entry: FoundLibrary) -> bool:
    return entry.role in _FABRIC_ROLES or entry.role == _HELPER_ROLE


def _library_changes(before: Snapshot, now: Snapshot) -> Iterator[NodeChange]:
    old, new = _libraries(before), _libraries(now)
    files = HostFiles(now)
    for name, was in old.items():
        if name not in new:
            yield NodeChange(was.subject, name, was.path, None, may_break=was.subject is not Subject.OTHER)
    for name, found in new.items():
        if name not in old:
            yield NodeChange(found.subject, name, None, found.path)
            continue
        was = old[name]
        details = tuple(_demands(was.library, found.library))
        if found.errors and not was.errors:
            details += (f"the host itself cannot load it: {found.errors[0]}",)
        if details or was.path != found.path:
            may_break = found.subject is not Subject.OTHER and bool(details or files.library(was.path) is None)
            yield NodeChange(found.subject, name, was.path, found.path, details, may_break=may_break)


def _demands(old: HostLibrary, new: HostLibrary) -> Iterator[str]:
    """Yield what a newer library asks for beside what the older one did, and what it does not give any more."""
    if old.facts.soname != new.facts.soname:
        yield f"soname {old.facts.soname} -> {new.facts.soname}"
    before = newest_needs(old.facts)
    for (file, family), number in newest_needs(new.facts).items():
        known = before.get((file, family))
        if numbers_of(number) > numbers_of(known or ""):
            yield f"needs {family}_{number} of {file}{f', before {family}_{known}' if known else ''}"
    for words, names, others in (
        ("no longer defines", old.facts.version_definitions, new.facts.version_definitions),
        ("also needs", new.facts.needed, old.facts.needed),
        ("no longer has of the net API", old.net_symbols, new.net_symbols),
    ):
        if only := sorted(set(names) - set(others)):
            rest = f" and {len(only) - _NAMED} more" if len(only) > _NAMED else ""
            yield f"{words}: {', '.join(only[:_NAMED])}{rest}"


# -- what makes two scans differ --


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
