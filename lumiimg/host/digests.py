"""Which files of a host its fabric is made of, each with its digest: what shows that a node is no longer as it was."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from lumiimg.elf.c_library import of_c_library
from lumiimg.host.library_diff import FABRIC_ROLES, LibraryIndex

if TYPE_CHECKING:
    from lumiimg.host.snapshot import Snapshot

_SHOWN_DIGITS = 12


def fabric_digests(snapshot: Snapshot) -> dict[str, str]:
    """Return the sha256 of each file that the host's fabric loads, by the path that it is looked up under.

    By that path, not its real one: after an update a link may lead to another file, while the old one is still there.
    The C library is left out, as it is never bound.
    """
    index = LibraryIndex(snapshot)
    found: dict[str, str] = {}
    for entry in snapshot.entries:
        for path in (entry.path, *filter(None, entry.closure.values())) if entry.role in FABRIC_ROLES else ():
            library = index.library(path)
            if library is not None and not of_c_library(library.facts):
                found[path] = library.sha256
    return dict(sorted(found.items()))


def fingerprint(snapshot: Snapshot) -> str | None:
    """Return a short name for the fabric's files, the same on nodes with the same ones; None where there are none."""
    digests = fabric_digests(snapshot)
    text = "".join(f"{digest}  {path}\n" for path, digest in digests.items())
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:_SHOWN_DIGITS] if digests else None
