"""What is known of a GPU driver: the releases of ROCm that it serves, each fact with its date and its rank."""

from __future__ import annotations

import datetime as dt  # noqa: TC003 - schemas are made from the types of the fields
import re
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path

from packaging.specifiers import SpecifierSet

from lumiimg.catalog.needs import Need, read_needs
from lumiimg.catalog.toml_table import Table, read_toml

_RELEASE = re.compile(r"\d{1,3}(\.\d{1,3}){1,2}")
_VERSION, _KERNEL = re.compile(r"\d{1,3}(\.\d{1,9}){1,3}", re.ASCII), re.compile(r"[\w.+~-]{1,100}", re.ASCII)
_ANY = Need("rocm", SpecifierSet())
_TABLE = Path(__file__).with_name("drivers.toml")


class Rank(StrEnum):
    """How a fact came about, the surest first."""

    MEASURED = "measured"
    """Seen on a node."""
    PUBLISHED = "published"
    """By the site, for its own machine: what it ships there is evidence that it runs."""
    ANNOUNCED = "announced"
    """In words."""
    INFERRED = "inferred"
    """From other facts."""

    @property
    def strength(self) -> int:
        """Of two facts, which counts: the larger."""
        return -list(Rank).index(self)


@dataclass(frozen=True, slots=True)
class DriverEvidence:
    """Something that runs, or ran, on the nodes, whatever their driver is."""

    rocm: str
    """The release that it has, as far as it is known: `7.2`."""
    text: str
    """What it is, in a few words."""
    rank: Rank
    """How that is known."""
    source: str
    """Where that is from."""
    date: dt.date
    """When it ran there, ISO 8601."""


@dataclass(frozen=True, slots=True)
class SiteDriver:
    """The GPU driver of the nodes, and the user space that it serves."""

    name: str
    """With its version."""
    rocm: Need | None
    """Releases of ROCm that it serves: `rocm>=6.1,<7.1`."""
    doubtful: Need | None
    """Of these, the releases that are known to give trouble."""
    trouble: str
    """Which; empty where there are none."""
    rank: Rank
    """Of this; that of a node's snapshot is `measured`."""
    evidence: tuple[DriverEvidence, ...]
    """What runs on the nodes, whatever their driver is."""
    source: str
    """Where that is from."""
    date: dt.date
    """When that was looked up, ISO 8601."""
    version: str | None = None
    """By AMD's number, or that of its kernel module: `6.3.60300`, `6.16.13`."""
    kernel: str | None = None
    """Release of the kernel that it came with, as `uname -r`."""

    @property
    def serves(self) -> str:
        """What it serves, and what of that gives trouble, in words."""
        doubt = f"; {self.doubtful}: {self.trouble}" if self.doubtful else ""
        return f"{self.name} serves {self.rocm}{doubt}"


@dataclass(frozen=True, slots=True)
class DriverRelease:
    """A release of AMD's driver, and what AMD says that it serves."""

    release: str
    """As AMD calls it: `30.30`."""
    modules: tuple[str, ...]
    """Versions of its kernel module, as `/sys/module/amdgpu/version` has them."""
    rocm: Need
    source: str


def read_driver(entry: Table) -> SiteDriver:
    (rocm, *_), doubtful = read_needs(entry, "rocm") or (_ANY,), read_needs(entry, "doubtful")
    for key, needs in (("rocm", (rocm,)), ("doubtful", doubtful)):
        _check(entry, key, needs)
    entry.match("version", _VERSION, "no version of the driver like 6.3.60300")
    entry.match("kernel", _KERNEL, "no release of a kernel, as `uname -r` prints it")
    return entry.fill(
        SiteDriver,
        rocm=rocm,
        doubtful=doubtful[0] if doubtful else None,
        trouble=entry.string("trouble") if doubtful else "",
        rank=_rank(entry, Rank.ANNOUNCED),
        evidence=tuple(_evidence(one) for one in entry.tables("evidence")),
        version=entry.optional_string("version"),
        kernel=entry.optional_string("kernel"),
    )


def _evidence(entry: Table) -> DriverEvidence:
    entry.match("rocm", _RELEASE, "no release of ROCm like 7.2")
    return entry.fill(DriverEvidence, rank=_rank(entry, Rank.PUBLISHED))


def _rank(entry: Table, usual: Rank) -> Rank:
    return Rank(entry.choice("rank", tuple(Rank), required=False) or usual)


def _check(entry: Table, key: str, needs: tuple[Need, ...]) -> None:
    if any(need.component != "rocm" or not need.versions for need in needs):
        entry.fault(key, "should be releases of ROCm: ['rocm>=6.1,<7.1']")


@cache
def driver_releases() -> tuple[DriverRelease, ...]:
    """Return the releases of AMD's driver of which it is known what they serve."""
    table = Table(read_toml(_TABLE), _TABLE)
    found = []
    for entry in table.tables("driver"):
        (rocm, *_) = read_needs(entry, "rocm")
        found.append(entry.fill(DriverRelease, rocm=rocm))
    table.finish()
    return tuple(found)


def release_of(module: str) -> DriverRelease | None:
    """Return the release of the driver by the version of its kernel module."""
    return next((one for one in driver_releases() if module in one.modules), None)


def modules_of(version: str) -> tuple[str, ...]:
    """Return what `/sys/module/amdgpu/version` may say of a driver: the version itself, or that of AMD's release."""
    of_release = (one.modules for one in driver_releases() if f"{version}.".startswith(f"{one.release}."))
    return (version, *(module for modules in of_release for module in modules))
