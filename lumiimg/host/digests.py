"""Which files of a host its fabric is made of, each with its digest: what tells that a node is no longer as it was."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from lumiimg.host.snapshot_tree import SnapshotTree
from lumiimg.image import RootFileSystem

if TYPE_CHECKING:
    from lumiimg.host.snapshot import Snapshot

_ROLES = ("libfabric", "libfabric-provider", "libcxi", "net-plugin")
_OF_C_LIBRARY = "GLIBC_PRIVATE"
_SHOWN_DIGITS = 12


def fabric_digests(snapshot: Snapshot) -> dict[str, str]:
    """Return the sha256 of each file that the host's fabric loads, by the path that it is looked up under.

    By that path, not its real one: after an update a link may lead to another file, while the old one is still there.
    The C library is left out, as it is never bound.
    """
    root = RootFileSystem(SnapshotTree(snapshot))
    found: dict[str, str] = {}
    for entry in (entry for entry in snapshot.entries if entry.role in _ROLES):
        for path in (entry.path, *filter(None, entry.closure.values())):
            library = snapshot.library(root.resolve(path)) if root.is_file(path) else None
            if library is None:
                continue
            versions = (*library.facts.version_definitions, *(need.name for need in library.facts.version_needs))
            if _OF_C_LIBRARY not in versions:
                found[path] = library.sha256
    return dict(sorted(found.items()))


def fingerprint(snapshot: Snapshot) -> str | None:
    """Return a short name for the fabric's files, the same on nodes with the same ones; None where there are none."""
    digests = fabric_digests(snapshot)
    text = "".join(f"{digest}  {path}\n" for path, digest in digests.items())
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:_SHOWN_DIGITS] if digests else None
