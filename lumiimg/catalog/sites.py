"""Sites: what is true of a machine, `sites/<name>.toml`; a user's own are searched first."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.specifiers import SpecifierSet

from lumiimg.catalog.catalogue import UnknownNameError, user_folder
from lumiimg.catalog.layers import NAME
from lumiimg.catalog.needs import Need, read_needs
from lumiimg.catalog.table import Table, read_toml

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Mapping

_SHIPPED = Path(__file__).with_name("sites")


@dataclass(frozen=True, slots=True)
class SiteBind:
    """A path that containers get at the same place, and why."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class SiteBandwidth:
    """What a test of the network gives on a machine that is well."""

    test: str
    """Name of the program: `all_reduce_perf`, `osu_bw`."""
    nodes: int
    ranks: int
    from_bytes: int
    """Size of the message from which on the network is full."""
    gb_s: float
    """Bus bandwidth for collectives, else the largest bandwidth; 1e9 bytes a second."""
    least_gb_s: float
    """Below this something is wrong."""
    remedy: tuple[str, ...]
    """What to look at then."""
    source: str


@dataclass(frozen=True, slots=True)
class SiteDriver:
    """The GPU driver of the nodes, and the user space that it serves."""

    name: str
    """`amdgpu 6.3.60300`."""
    rocm: Need
    """The releases of ROCm that run on it."""
    doubtful: Need | None
    """Of these, the releases that are known to give trouble."""
    trouble: str
    """Which; empty where there are none."""
    source: str
    date: dt.date


@dataclass(frozen=True, slots=True)
class SiteFabric:
    """The host's side of the fast network."""

    slingshot: str | None
    """Release of the Slingshot host software; this and the next are None where a node was seen, and did not tell."""
    libfabric: str | None
    glibc: str
    """The newest version of the C library that the host's libfabric and libcxi ask for."""
    source: str
    date: dt.date


@dataclass(frozen=True, slots=True)
class Site:
    """One machine."""

    name: str
    title: str
    arch: str | None
    """Of its GPUs, as compilers name it: `gfx90a`; None where it is not AMD's."""
    vendor: str | None
    """Who makes its GPUs, where that is not AMD."""
    driver: SiteDriver | None
    """None where the project does not know it."""
    fabric: SiteFabric | None
    binds: tuple[SiteBind, ...]
    bandwidths: tuple[SiteBandwidth, ...]
    source: str
    date: dt.date


def read_site(path: Path) -> Site:
    """Read and validate a site. Raises CatalogError, which names the file and every wrong key."""
    table = Table(read_toml(path), path)
    site = Site(
        name=path.stem,
        title=table.string("title"),
        arch=table.optional_string("arch"),
        vendor=table.optional_string("vendor"),
        driver=_driver(table.table("driver")) if "driver" in table.keys() else None,  # noqa: SIM118 - no mapping
        fabric=_fabric(table.table("fabric")) if "fabric" in table.keys() else None,  # noqa: SIM118
        binds=tuple(_bind(entry) for entry in table.tables("bind")),
        bandwidths=tuple(_bandwidth(entry) for entry in table.tables("bandwidth")),
        source=table.string("source"),
        date=table.date("date"),
    )
    table.finish()
    return site


def _driver(entry: Table) -> SiteDriver:
    (rocm, *_), doubtful = read_needs(entry, "rocm") or (Need("rocm", SpecifierSet()),), read_needs(entry, "doubtful")
    return SiteDriver(
        name=entry.string("name"),
        rocm=rocm,
        doubtful=doubtful[0] if doubtful else None,
        trouble=entry.string("trouble") if doubtful else "",
        source=entry.string("source"),
        date=entry.date("date"),
    )


def _fabric(entry: Table) -> SiteFabric:
    return SiteFabric(
        slingshot=entry.string("slingshot"),
        libfabric=entry.string("libfabric"),
        glibc=entry.string("glibc"),
        source=entry.string("source"),
        date=entry.date("date"),
    )


def _bind(entry: Table) -> SiteBind:
    bind = SiteBind(entry.string("path"), entry.string("reason"))
    if bind.path and not bind.path.startswith("/"):
        entry.fault("path", f"is {bind.path!r}, no absolute path")
    return bind


def _bandwidth(entry: Table) -> SiteBandwidth:
    return SiteBandwidth(
        test=entry.string("test"),
        nodes=int(entry.number("nodes")),
        ranks=int(entry.number("ranks")),
        from_bytes=int(entry.number("from_bytes")),
        gb_s=entry.number("gb_s"),
        least_gb_s=entry.number("least_gb_s"),
        remedy=entry.strings("remedy"),
        source=entry.string("source"),
    )


def find_site(name: str, environment: Mapping[str, str]) -> Site:
    """Return a site by its name, or by the path of its file.

    Raises UnknownNameError, or CatalogError if it is there and wrong.
    """
    if name.endswith(".toml"):
        return read_site(Path(name))
    folders = (user_folder(environment) / "sites", _SHIPPED)
    for folder in folders:
        if NAME.fullmatch(name) and (folder / f"{name}.toml").is_file():
            return read_site(folder / f"{name}.toml")
    raise UnknownNameError("site", name, sorted({file.stem for folder in folders for file in folder.glob("*.toml")}))
