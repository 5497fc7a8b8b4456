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
from typing import TYPE_CHECKING

from lumiimg.elf.c_library import of_c_library
from lumiimg.elf.versions import numbers_of
from lumiimg.host.library_search import ASKED
from lumiimg.host.margins import newest_needs
from lumiimg.host.snapshot import fabric_entry
from lumiimg.host.snapshot_tree import HostFiles

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lumiimg.host.snapshot import HostLibrary, Snapshot

_KFD = "/dev/kfd"
_FABRIC_ROLES = ("libfabric", "libfabric-provider", "libcxi", "net-plugin", "cxi-helper")
"""Of `scan_facts.toml`: a library of these, or one that they need, may be bound into an image."""
_DIGITS = re.compile(r"[0-9]+")
_NAMED = 4
"""Names of versions that one detail lists."""
_MAY_BREAK = {
    "GPU driver",
    # settings that `host/engine_constraints.py` looks at
    *(f"engine `{name}`" for name in ("enable overlay", "enable underlay", "mount dev", "user bind control")),
}
"""What may have been good before and not be any more."""


@dataclass(frozen=True, slots=True)
class NodeChange:
    """One thing that a node offers otherwise than before."""

    what: str
    """A name: `libjson-c.so.3`, `GPU driver`, `kernel`."""
    before: str | None
    """Null where there was nothing."""
    now: str | None
    """Null where there is nothing."""
    details: tuple[str, ...] = ()
    """More of it, a line each."""
    may_break: bool = False
    """Whether an image, or a list of binds, that was good before may not be any more."""


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
    """Libraries first, then what else a node says of itself."""
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
    kinds = tuple(_differing(_kind_of(before, now), _kind_of(now, before)))
    changes = () if kinds else (*_library_changes(before, now), *_differing(_values(before, now), _values(now, before)))
    return Drift(before, now, kinds, changes, tuple(_notes(before, now)))


# -- what can be compared word by word: name to value --


def _kind_of(snapshot: Snapshot, other: Snapshot) -> Iterator[tuple[str, str | None]]:
    """Yield what an update of a node cannot change, or would leave it without what its jobs are for."""
    yield "architecture", snapshot.architecture
    yield "CPU", snapshot.cpu if other.cpu else None
    yield "GPUs of AMD", "yes" if _KFD in snapshot.devices or snapshot.gpu_driver is not None else "none"
    yield "Slingshot NICs", "yes" if snapshot.nics else "none"


def _values(snapshot: Snapshot, other: Snapshot) -> Iterator[tuple[str, str | None]]:
    """Yield what else is compared; what the other snapshot does not say is left out.

    Of NICs it is what they have all together: which of them is which, is the node's own business.
    """
    yield "glibc", snapshot.glibc
    nics = snapshot.nics
    yield "NICs", str(len(nics))
    if len(nics) == len(other.nics):
        yield "NIC links that are up", str(sum(nic.link_is_up is not False for nic in nics))
    for what, field in (("chip", "chip"), ("firmware", "firmware"), ("driver", "driver"), ("Mb/s", "speed_mbit_s")):
        found = {str(value) for nic in nics if (value := getattr(nic, field)) is not None}
        yield f"NIC {what}", ", ".join(sorted(found)) or None
    yield "GPU driver", snapshot.gpu_driver
    yield "GPU processor", snapshot.gpu if other.gpu else None
    yield from ((f"ROCm {version}", "under /opt") for version in snapshot.rocm)
    engine = snapshot.engine
    yield "engine", f"{engine.name} {engine.version}" if engine else None
    if other.engine is not None and other.engine.settings is not None:
        yield from ((f"engine `{name}`", value) for name, value in sorted(snapshot.engine_settings.items()))
    yield "OS", snapshot.os.name or None
    yield "kernel", snapshot.kernel
    yield "Slurm", snapshot.slurm
    devices = Counter(_DIGITS.sub("<n>", name) for name in snapshot.devices)
    yield from ((name, str(number)) for name, number in sorted(devices.items()))


def _differing(before: Iterator[tuple[str, str | None]], now: Iterator[tuple[str, str | None]]) -> Iterator[NodeChange]:
    """Yield the names that have another value."""
    old, new = dict(before), dict(now)
    for what in old | new:
        values = old.get(what), new.get(what)
        if values[0] == values[1]:
            continue
        if what.startswith("ROCm ") and values[1] is None:
            details = ("a list of binds with its folder: the engine goes past it with a warning, or does not start",)
            yield NodeChange(what, *values, details, may_break=True)
        else:
            yield NodeChange(what, *values, may_break=what in _MAY_BREAK)


# -- libraries: what is behind each name that the fabric, or another library, needs --


@dataclass(frozen=True, slots=True)
class _Named:
    """What a host serves for one name."""

    path: str
    library: HostLibrary
    of_fabric: bool
    """Whether the fabric is, or needs, this; else it is xpmem, PMI, PALS, or what `--include` named."""
    errors: tuple[str, ...] = ()
    """Why the host itself cannot load it."""


def _libraries(snapshot: Snapshot) -> dict[str, _Named]:
    """Return the libraries by name, without the C library; the first of a name counts, as for a bind."""
    files = HostFiles(snapshot)
    entries = sorted(snapshot.entries, key=lambda entry: entry.role not in _FABRIC_ROLES)
    own = ((entry, entry.path.rpartition("/")[2], entry.path, entry.errors) for entry in entries)
    needed = ((entry, name, path, ()) for entry in entries for name, path in entry.closure.items())
    found: dict[str, _Named] = {}
    for entry, name, path, errors in (*own, *needed):
        library = files.library(path)
        if path is not None and library is not None and not of_c_library(library.facts):
            found.setdefault(name, _Named(path, library, entry.role in _FABRIC_ROLES, errors))
    return found


def _library_changes(before: Snapshot, now: Snapshot) -> Iterator[NodeChange]:
    old, new, files = _libraries(before), _libraries(now), HostFiles(now)
    for name in old | new:
        was, found = old.get(name), new.get(name)
        if was is None or found is None:
            paths = was.path if was else None, found.path if found else None
            yield NodeChange(name, *paths, may_break=was is not None and was.of_fabric)
            continue
        details = tuple(_demands(was.library, found.library))
        if found.errors and not was.errors:
            details += (f"the host itself cannot load it: {found.errors[0]}",)
        if details or was.path != found.path:
            may_break = found.of_fabric and bool(details or files.library(was.path) is None)
            yield NodeChange(name, was.path, found.path, details, may_break=may_break)


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
