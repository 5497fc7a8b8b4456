"""What `lumiimg host scan` says: what was found, by which way, and what could not be seen from here."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from lumiimg.fabric.names import LIBCXI
from lumiimg.host.snapshot import fabric_entry
from lumiimg.host.snapshot_tree import SnapshotTree
from lumiimg.image import RootFileSystem
from lumiimg.report.console import Console, console, detail, evidence, fact, headline, marked, say
from lumiimg.wording import size

if TYPE_CHECKING:
    from pathlib import Path

    from lumiimg.host.snapshot import FoundLibrary, Nic, Snapshot

_VERSION = re.compile(r"\d+(?:\.\d+)+")
_ERRORS_SHOWN = 3


def print_snapshot(snapshot: Snapshot, written: Path | None, *, quiet: bool = False, stderr: bool = False) -> None:
    """Print a snapshot for a person; `written` is the file that it went to."""
    out = console(stderr=stderr, quiet=quiet)
    fabric = fabric_entry(snapshot)
    if fabric is not None:
        headline(out, f"{snapshot.host}: Slingshot's libfabric is here: {fabric.path}", "ok")
    else:
        headline(out, f"{snapshot.host}: no libfabric for Slingshot was found here", "unknown")
    out.print()
    for name, text in _facts(snapshot):
        fact(out, name, text)
    root = RootFileSystem(SnapshotTree(snapshot))
    for entry in snapshot.entries:
        _print_entry(out, entry, snapshot, root)
    if snapshot.gaps:
        out.print()
    for gap in snapshot.gaps:
        marked(out, "unknown", gap)
    out.print()
    total = sum(library.size_bytes for library in snapshot.libraries)
    what = f"{len(snapshot.libraries)} libraries ({size(total)}) are described"
    say(out, f"{what} in {written}" if written else f"{what}; -o FILE keeps them", style="dim")


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
        known.append(("LD_LIBRARY_PATH", f"  {snapshot.library_path.replace(':', ' : ')}"))
    return known


def _nic(nic: Nic) -> str:
    parts = [nic.netdev, f"{nic.speed_mbit_s // 1000} Gb/s" if nic.speed_mbit_s else None]
    if nic.link_is_up is not None:
        parts.append("up" if nic.link_is_up else "down")
    if nic.firmware:
        parts.append(f"firmware {nic.firmware}")
    return f"{nic.device} ({', '.join(filter(None, parts))})" if any(parts) else nic.device


def _print_entry(out: Console, entry: FoundLibrary, snapshot: Snapshot, root: RootFileSystem) -> None:
    is_plain = entry.role == "libfabric" and not entry.closure.get(LIBCXI)
    kind = "problem" if entry.errors else "info" if is_plain else "ok"
    real = root.resolve(entry.path)
    library = snapshot.library(real)
    symbols = f": {' '.join(library.net_symbols)}" if library is not None and library.net_symbols else ""
    folder = next((found[0] for part in entry.path.split("/")[-2::-1] if (found := _VERSION.search(part))), None)
    version = f" {folder}" if folder else ""
    out.print()
    marked(out, kind, f"{entry.role}{version} ({real.rpartition('/')[2]}){symbols}")
    detail(out, entry.path)
    loaded = f"{len(entry.closure)} more to load with it" if entry.closure else "needs no other"
    detail(out, f"{entry.how}; {loaded}{'; libcxi is not among them' if is_plain else ''}", style="dim")
    for error in entry.errors[:_ERRORS_SHOWN]:
        evidence(out, error)
    if len(entry.errors) > _ERRORS_SHOWN:
        detail(out, f"and {len(entry.errors) - _ERRORS_SHOWN} more, in the file", style="dim")
