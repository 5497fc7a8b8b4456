"""What is known about a GPU driver: the releases of ROCm that it supports, each fact with its rank and its date."""

from __future__ import annotations

import datetime as dt
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Annotated

from msgspec import Struct, field

from lumiimg.catalog.needs import Need
from lumiimg.core.decode import Text, matching, read_toml, refuse

_Release = Annotated[str, matching(r"[0-9]{1,3}(\.[0-9]{1,3}){1,2}", "a release of ROCm like 7.2")]
_Version = Annotated[str, matching(r"[0-9]{1,3}(\.[0-9]{1,9}){1,3}", "a version of the driver like 6.3.60300")]
_Kernel = Annotated[str, matching(r"[A-Za-z0-9_.+~-]{1,100}", "a release of a kernel, as `uname -r` prints it,")]


class Rank(StrEnum):
    """How a fact was established, most certain first."""

    MEASURED = "measured"
    """Seen on a node."""
    PUBLISHED = "published"
    """Published by the site for its own machine: what it ships there is evidence that it runs."""
    ANNOUNCED = "announced"
    """Announced in words."""
    INFERRED = "inferred"
    """Inferred from other facts."""

    @property
    def strength(self) -> int:
        """Precedence: of two facts, the one with the larger value counts."""
        return -list(Rank).index(self)


class DriverEvidence(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Something that runs, or ran, on the nodes, whatever their driver is."""

    rocm: _Release
    """Its ROCm release, the known part: `7.2`."""
    text: Text
    """What it is, in a few words."""
    rank: Rank = Rank.PUBLISHED
    """How that is known."""
    source: Text
    """Where that is from."""
    date: dt.date
    """When it ran there, ISO 8601."""


class SiteDriver(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The GPU driver of the nodes, and the user space that it supports."""

    name: Text
    """Name with its version."""
    rocm: Need | None
    """Releases of ROCm that it supports: `rocm>=6.1,<7.1`."""
    rank: Rank = Rank.ANNOUNCED
    """Rank of this fact; that of a node's snapshot is `measured`."""
    evidence: tuple[DriverEvidence, ...] = ()
    """What runs on the nodes, whatever their driver is."""
    source: Text
    """Where that is from."""
    date: dt.date
    """When that was looked up, ISO 8601."""
    version: _Version | None = None
    """AMD's version number, or that of its kernel module: `6.3.60300`, `6.16.13`."""
    kernel: _Kernel | None = None
    """Release of the kernel that it came with, as printed by `uname -r`."""

    def __post_init__(self) -> None:
        is_range = self.rocm is None or (self.rocm.component == "rocm" and bool(self.rocm.versions))
        refuse({"rocm": not is_range and "should be releases of ROCm: 'rocm>=6.1,<7.1'"})


class DriverRelease(Struct, frozen=True, forbid_unknown_fields=True):
    """A release of AMD's driver, and what AMD says that it supports."""

    release: str
    """AMD's name for it: `30.30`."""
    modules: tuple[str, ...]
    """Versions of its kernel module, as in `/sys/module/amdgpu/version`."""
    rocm: Need
    source: str


class _Table(Struct, frozen=True, forbid_unknown_fields=True):
    drivers: tuple[DriverRelease, ...] = field(name="driver")


@cache
def _releases() -> tuple[DriverRelease, ...]:
    return read_toml(Path(__file__).with_suffix(".toml"), _Table).drivers


def release_of(module: str) -> DriverRelease | None:
    """Return the release of the driver for a version of its kernel module."""
    return next((one for one in _releases() if module in one.modules), None)


def modules_of(version: str) -> tuple[str, ...]:
    """Return what `/sys/module/amdgpu/version` may contain for a driver: its version, or those of AMD's release."""
    of_release = (one.modules for one in _releases() if f"{version}.".startswith(f"{one.release}."))
    return (version, *(module for modules in of_release for module in modules))
