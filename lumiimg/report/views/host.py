"""Answer of `host scan`: what was found, and how, and what could not be seen from here."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from lumiimg.core.findings import Severity
from lumiimg.core.text import count, size
from lumiimg.host.snapshot import HostFiles
from lumiimg.report.document import Document, Item, Section, facts_section

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from lumiimg.host.snapshot import Snapshot

_ERRORS_SHOWN = 3


def snapshot_document(snapshot: Snapshot, written: Path | None) -> Document:
    """Return a snapshot for people; `written` is the file that it was written to."""
    files = HostFiles(snapshot)
    fabric = files.fabric
    total = size(sum(library.size_bytes for library in snapshot.libraries))
    described = f"described: {count(len(snapshot.libraries), 'library')} ({total})"
    return Document(
        "host scan",
        snapshot.host,
        f"Slingshot's libfabric is here: {fabric.path}" if fabric else "no libfabric for Slingshot was found here",
        Severity.OK if fabric else Severity.UNKNOWN,
        sections=(
            facts_section("The machine", _facts(snapshot)),
            Section("Its libraries", _entries(snapshot, files)),
            Section("Gaps", (Item(Severity.UNKNOWN, gap) for gap in snapshot.gaps)),
        ),
        closing=(f"{described}, in {written}" if written else f"{described}; -o FILE writes them",),
        is_list=True,
        is_named=True,
    )


def _facts(snapshot: Snapshot) -> Iterator[tuple[str, str]]:
    levels = f" ({', '.join(snapshot.hwcaps)})" if snapshot.hwcaps else ""
    engine = snapshot.engine
    yield "system", f"{snapshot.os.name or 'not known'}, kernel {snapshot.kernel}, {snapshot.architecture}"
    yield "CPU", f"{snapshot.cpu or 'not known'}{levels}"
    yield "glibc", snapshot.glibc or "not known"
    yield "NICs", "; ".join(map(str, snapshot.nics)) or "none"
    yield "devices", " ".join(snapshot.devices) or "none of cxi, kfd, dri, xpmem"
    yield "GPUs", ", ".join(f"{n} {gpu}" for gpu, n in sorted(Counter(snapshot.gpus).items())) or "none of AMD's"
    yield "amdgpu", snapshot.gpu_driver or "none"
    yield "engine", f"{engine.name} {engine.version}" if engine else "none"
    yield "LD_LIBRARY_PATH", (snapshot.library_path or "").replace(":", " : ")


def _entries(snapshot: Snapshot, files: HostFiles) -> Iterator[Item]:
    of_slingshot = [libfabric for libfabric, _ in files.fabrics()]
    for entry in snapshot.entries:
        library = files.library(entry.path)
        symbols = f": {' '.join(library.net_symbols)}" if library is not None and library.net_symbols else ""
        version = f" {entry.version}" if entry.version else ""
        loaded = f"{len(entry.closure)} more to load with it" if entry.closure else "needs no other"
        is_plain = entry.role == "libfabric" and entry not in of_slingshot
        lacks = "; libcxi is not among them" if is_plain else ""
        more = len(entry.errors) - _ERRORS_SHOWN
        yield Item(
            Severity.PROBLEM if entry.errors else Severity.INFO if is_plain else Severity.OK,
            f"{entry.role}{version} ({files.root.resolve(entry.path).rpartition('/')[2]}){symbols}",
            evidence=entry.errors[:_ERRORS_SHOWN],
            notes=(
                entry.path,
                f"{entry.how}; {loaded}{lacks}",
                *([f"and {count(more, 'error')} more, in the file"] if more > 0 else []),
            ),
        )
