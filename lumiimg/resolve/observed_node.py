"""A node of the site, as it was seen: what its snapshot says counts more than what is believed of the site."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lumiimg.catalog.sites import Site, SiteFabric
from lumiimg.errors import BadInputError, MissingHereError
from lumiimg.host.devel_archive import fabric_of, headers_beside, write_archive
from lumiimg.resolve.driver_rule import driver_of_node
from lumiimg.resolve.stack import HEADERS

if TYPE_CHECKING:
    from pathlib import Path

    from lumiimg.host.snapshot import HostLibrary, Snapshot

_VERSION_IN_PATH = re.compile(r"/libfabric/v?(\d+(?:\.\d+)+)/")


@dataclass(frozen=True, slots=True)
class ObservedNode:
    """One node."""

    site: Site
    """Its site, with the driver and the fabric that were seen in place of those that are believed."""
    library: HostLibrary
    no_headers: MissingHereError | None
    """Why nothing can be compiled against its libfabric on this machine; None where it can."""

    def archive(self, folder: Path) -> Path:
        """Put the node's libfabric and headers into an archive in `folder`, and return that.

        Raises MissingHereError, BadInputError.
        """
        path = folder / f"{HEADERS}-{self.library.sha256[:16]}.tar"
        folder.mkdir(parents=True, exist_ok=True)
        write_archive(self.library, path)
        return path


def seen(site: Site, snapshot: Snapshot, where: str) -> ObservedNode:
    """Return the node of a snapshot as one of the site.

    Raises BadInputError for a node without Slingshot's libfabric.
    """
    fabric = fabric_of(snapshot, where)
    version = _VERSION_IN_PATH.search(fabric.library.path)
    believed = site.fabric
    day = _day(snapshot, where)
    if believed is not None and believed.glibc == fabric.glibc:
        day = max(day, believed.date)  # a newer fact says the same
    replaced = replace(
        site,
        arch=snapshot.gpu or site.arch,
        driver=driver_of_node(site.driver, snapshot),
        fabric=SiteFabric(
            slingshot=believed.slingshot if believed else None,
            libfabric=version[1] if version else believed.libfabric if believed else None,
            glibc=fabric.glibc,
            source=f"{where}: {snapshot.host}, {fabric.library.path} and libcxi",
            date=day,
        ),
    )
    try:
        headers_beside(fabric.library)
        no_headers = None
    except MissingHereError as error:
        no_headers = error
    return ObservedNode(replaced, fabric.library, no_headers)


def _day(snapshot: Snapshot, where: str) -> dt.date:
    try:
        return dt.date.fromisoformat(snapshot.taken[:10])
    except ValueError as error:
        raise BadInputError("key 'taken' is not a valid date", where=where) from error
