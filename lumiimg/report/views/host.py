"""What `host scan` answers: what was found, by which way, and what could not be seen from here."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from lumiimg.fabric.names import LIBCXI
from lumiimg.findings import Severity
from lumiimg.host.snapshot import fabric_entry
from lumiimg.host.snapshot_tree import SnapshotTree
from lumiimg.image import RootFileSystem
from lumiimg.report.document import Document, Facts, Item, Section
from lumiimg.wording import count, size

if TYPE_CHECKING:
    from pathlib import Path

    from lumiimg.host.snapshot import FoundLibrary, Nic, Snapshot

_VERSION = re.compile(r"\d+(?:\.\d+)+")
_ERRORS_SHOWN = 3


def snapshot_document(snapshot: Snapshot, written: Path | None) -> Document:
    """Return a snapshot for a person; `written` is the file that it went to."""
    fabric = fabric_entry(snapshot)
    root = RootFileSystem(SnapshotTree(snapshot))
    total = size(sum(library.size_bytes for library in snapshot.libraries))
    described = f"{len(snapshot.libraries)} libraries ({total}) are described"
    return Document(
        command="host scan",
        subject=snapshot.host,
        is_named=True,
        is_list=True,
        severity=Severity.UNKNOWN if fabric is None else Severity.OK,
        sentence=f"Slingshot's libfabric is here: {fabric.path}"
        if fabric
        else "no libfabric for Slingshot was found here",
        sections=(
            Section("The machine", (Facts(tuple(_facts(snapshot))),)),
            Section("Its libraries", (_entry(one, snapshot, root) for one in snapshot.entries)),
            Section("Gaps", (Item(Severity.UNKNOWN, gap) for gap in snapshot.gaps)),
        ),
        closing=(f"{described} in {written}" if written else f"{described}; -o FILE keeps them",),
    )


def _facts(snapshot: Snapshot) -> list[tuple[str, str]]:
    levels = f" ({', '.join(snapshot.hwcaps)})" if snapshot.hwcaps else ""
    engine = f"{snapshot.engine.name} {snapshot.engine.version}" if snapshot.engine else "none"
    known = [
        ("system", f"{snapshot.os.name or 'not known'}, kernel {snapshot.kernel}, {snapshot.architecture}"),
        ("CPU", f"{snapshot.cpu or 'not known'}{levels}"),
        ("glibc", snapshot.glibc or "not known"),
        ("NICs", "; ".join(map(_nic, snapshot.nics)) or "none"),
        ("devices", " ".join(snapshot.devices) or "none of cxi, kfd, dri, xpmem"),
        ("GPUs", ", ".join(f"{n} {gpu}" for gpu, n in sorted(Counter(snapshot.gpus).items())) or "none of AMD's"),
        ("amdgpu", snapshot.gpu_driver or "none"),
        ("ROCm", ", ".join(snapshot.rocm) or "none under /opt"),
        ("Slurm", snapshot.slurm or "none"),
        ("engine", engine),
    ]
    if snapshot.library_path:
        known.append(("LD_LIBRARY_PATH", snapshot.library_path.replace(":", " : ")))
    return known


def _nic(nic: Nic) -> str:
    parts = [nic.netdev, f"{nic.speed_mbit_s // 1000} Gb/s" if nic.speed_mbit_s else None]
    if nic.link_is_up is not None:
        parts.append("up" if nic.link_is_up else "down")
    if nic.firmware:
        parts.append(f"firmware {nic.firmware}")
    return f"{nic.device} ({', '.join(filter(None, parts))})" if any(parts) else nic.device


def _entry(entry: FoundLibrary, snapshot: Snapshot, root: RootFileSystem) -> Item:
    is_plain = entry.role == "libfabric" and not entry.closure.get(LIBCXI)
    real = root.resolve(entry.path)
    library = snapshot.library(real)
    symbols = f": {' '.join(library.net_symbols)}" if library is not None and library.net_symbols else ""
    folder = next((found[0] for part in entry.path.split("/")[-2::-1] if (found := _VERSION.search(part))), None)
    version = f" {folder}" if folder else ""
    loaded = f"{len(entry.closure)} more to load with it" if entry.closure else "needs no other"
    more = len(entry.errors) - _ERRORS_SHOWN
    return Item(
        Severity.PROBLEM if entry.errors else Severity.INFO if is_plain else Severity.OK,
        f"{entry.role}{version} ({real.rpartition('/')[2]}){symbols}",
        evidence=entry.errors[:_ERRORS_SHOWN],
        notes=(
            entry.path,
            f"{entry.how}; {loaded}{'; libcxi is not among them' if is_plain else ''}",
            *([f"and {count(more, 'error')} more, in the file"] if more > 0 else []),
        ),
    )
