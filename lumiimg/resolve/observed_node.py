"""A site as one of its nodes was seen: what a snapshot says counts more than what is believed of the site."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec.structs import replace

from lumiimg.catalog.sites import Site, SiteFabric
from lumiimg.elf.versions import numbers_of
from lumiimg.errors import BadInputError
from lumiimg.fabric.names import LIBCXI
from lumiimg.host.margins import newest_needs
from lumiimg.host.snapshot_file import read_snapshot
from lumiimg.host.snapshot_tree import HostFiles
from lumiimg.resolve.driver_rule import driver_of_node

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from lumiimg.host.snapshot import HostLibrary, Snapshot

_VERSION_IN_PATH = re.compile(r"/libfabric/v?(\d+(?:\.\d+)+)/")
_OLDEST_GLIBC = "2.2"
"""Where no library asks for a version."""


def site_on_node(site: Site, host: Path) -> Site:
    """Return the site as a node of it was seen, by the file of its snapshot. Raises BadInputError."""
    return site_as_observed(site, read_snapshot(host), str(host))


def site_as_observed(site: Site, snapshot: Snapshot, where: str) -> Site:
    """Return the site with the driver and the fabric of a snapshot; `where` names that in messages.

    Raises BadInputError for a node without Slingshot's libfabric.
    """
    libfabric, libcxi = _fabric_of(snapshot, where)
    glibc = _glibc_of([libfabric, *([libcxi] if libcxi else [])])
    version = _VERSION_IN_PATH.search(libfabric.path)
    believed = site.fabric
    day = snapshot.day
    if believed is not None and believed.glibc == glibc:
        day = max(day, believed.date)  # a newer fact says the same
    return replace(
        site,
        arch=snapshot.gpu or site.arch,
        driver=driver_of_node(site.driver, snapshot),
        fabric=SiteFabric(
            slingshot=believed.slingshot if believed else None,
            libfabric=version[1] if version else believed.libfabric if believed else None,
            glibc=glibc,
            source=f"{where}: {snapshot.host}, {libfabric.path} and libcxi",
            date=day,
        ),
    )


def _fabric_of(snapshot: Snapshot, where: str) -> tuple[HostLibrary, HostLibrary | None]:
    """Return the libfabric that the node uses with Slingshot, and its libcxi."""
    files = HostFiles(snapshot)
    entry = files.fabric
    library = files.library(entry.path) if entry else None
    if entry is None or library is None:
        raise BadInputError(
            "has no libfabric that loads with libcxi: no node of a Slingshot network, or its module was not loaded",
            where=where,
            hint="on a compute node, with the module of libfabric loaded: lumiimg host scan -o host.json",
        )
    return library, files.library(entry.closure.get(LIBCXI))


def _glibc_of(libraries: Iterable[HostLibrary]) -> str:
    """Return the newest version of the C library that one of them asks for: `2.38`."""
    needs = (need for library in libraries for need in newest_needs(library.facts).items())
    versions = (number for (_, family), number in needs if family == "GLIBC")
    return ".".join(max(versions, key=numbers_of, default=_OLDEST_GLIBC).split(".")[:2])
