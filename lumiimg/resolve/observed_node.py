"""A site as one of its nodes was seen: what a snapshot says counts more than what is believed of the site."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec.structs import replace

from lumiimg.catalog.sites import Site, SiteFabric
from lumiimg.core.errors import BadInputError
from lumiimg.core.text import numbers_of
from lumiimg.fabric.names import LIBCXI
from lumiimg.host.manifest import newest_needs
from lumiimg.host.snapshot import HostFiles
from lumiimg.resolve.driver_rule import driver_of_node

if TYPE_CHECKING:
    from lumiimg.host.snapshot import Snapshot

_VERSION_IN_PATH = re.compile(r"/libfabric/v?(\d+(?:\.\d+)+)/")
_OLDEST_GLIBC = "2.2"
"""Where no library asks for a version."""


def site_as_observed(site: Site, snapshot: Snapshot, where: str) -> Site:
    """Return the site with the driver and the fabric of a snapshot; `where` names that in messages.

    Raises BadInputError for a node without Slingshot's libfabric.
    """
    files = HostFiles(snapshot)
    entry = files.fabric
    libfabric = files.library(entry.path) if entry else None
    if entry is None or libfabric is None:
        raise BadInputError(
            "has no libfabric that loads with libcxi: no node of a Slingshot network, or its module was not loaded",
            where=where,
            hint="on a compute node, with the module of libfabric loaded: lumiimg host scan -o host.json",
        )
    libcxi = files.library(entry.closure.get(LIBCXI))
    needs = [need for one in (libfabric, libcxi) if one for need in newest_needs(one.facts).items()]
    versions = (number for (_, family), number in needs if family == "GLIBC")
    glibc = ".".join(max(versions, key=numbers_of, default=_OLDEST_GLIBC).split(".")[:2])
    in_path, believed, day = _VERSION_IN_PATH.search(libfabric.path), site.fabric, snapshot.day
    if believed is not None and believed.glibc == glibc:
        day = max(day, believed.date)  # a newer fact says the same
    fabric = SiteFabric(
        slingshot=believed.slingshot if believed else None,
        libfabric=in_path[1] if in_path else believed.libfabric if believed else None,
        glibc=glibc,
        source=f"{where}: {snapshot.host}, {libfabric.path} and libcxi",
        date=day,
    )
    return replace(site, arch=snapshot.gpu or site.arch, driver=driver_of_node(site.driver, snapshot), fabric=fabric)
