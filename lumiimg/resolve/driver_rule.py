"""Rule 2: whether the nodes' driver supports the ROCm of an image, by facts that have a date and may disagree; and a
site with the facts of a scanned node, which count more.

The newest fact of the highest rank decides; if facts disagree, the answer is a doubt. The day on which a fact was last
confirmed is only a note: no answer changes with today's date. Driver updates move the supported window up: a ROCm that
is too old stays too old. A ROCm that is too new is a doubt, unless the window was seen on a node.
"""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from msgspec import structs
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from lumiimg.catalog.drivers import Rank, SiteDriver, modules_of, release_of
from lumiimg.catalog.needs import Need, version_of
from lumiimg.catalog.sites import Site, SiteFabric
from lumiimg.core.errors import BadInputError
from lumiimg.core.text import numbers_of
from lumiimg.fabric.path import LIBCXI
from lumiimg.resolve.rules import RuleOutcome, RuleResult

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lumiimg.host.snapshot import Snapshot
    from lumiimg.resolve.stack import Stack

_WHOSE_ROCM = (("rocm", "of the image"), ("torch-rocm", "in torch's wheel"), ("wheel-rocm", "in a wheel"))
_ID = "driver-window"
_VERSION_IN_PATH = re.compile(r"/libfabric/v?(\d+(?:\.\d+)+)/")
_OLDEST_GLIBC = "2.2"
"""Used if no library requires a version."""


@dataclass(frozen=True, slots=True)
class _Claim:
    """What one fact states about one ROCm release."""

    serves: bool
    rank: Rank
    date: dt.date
    text: str
    source: str

    @property
    def weight(self) -> tuple[int, dt.date]:
        return self.rank.strength, self.date

    @property
    def with_date(self) -> str:
        return f"{self.text} ({self.rank}, {self.date})"


def driver_window(stack: Stack, site: Site) -> Iterator[RuleResult]:
    """Rule 2: the nodes' driver must support the ROCm of the image, and the one that a wheel includes."""
    any_rocm = next((component for component, _ in _WHOSE_ROCM if component in stack.offers), None)
    if site.vendor is not None and any_rocm is not None:
        because = f"{site.name} has {site.vendor} GPUs, which ROCm does not support"
        have = f"ROCm {stack.version(any_rocm) or '?'}"
        yield RuleResult(_ID, RuleOutcome.REFUSED, "AMD GPUs", have, because, site.source)
    elif site.driver is not None or site.arch is not None:
        driver = site.driver or unknown_driver(f"the driver of {site.name}", site.source)
        yield from window_of(driver, stack)


def window_on_node(stack: Stack, site: Site | None, snapshot: Snapshot | None) -> Iterator[RuleResult]:
    """Rule 2 for a machine, by its site and a node that was seen there, if these are known."""
    driver = site.driver if site else None
    driver = driver_of_node(driver, snapshot) if snapshot else driver
    if site is not None:
        yield from driver_window(stack, structs.replace(site, driver=driver))
    elif driver is not None:
        yield from window_of(driver, stack)


def window_of(driver: SiteDriver, stack: Stack) -> Iterator[RuleResult]:
    """Rule 2 with only a driver."""
    results: dict[tuple[RuleOutcome, str], RuleResult] = {}
    for component, whose in _WHOSE_ROCM:
        if component in stack.offers:
            result = _judge(driver, stack.version(component), whose)
            key = (result.outcome, result.because)
            results[key] = replace(result, have=f"{results[key].have}, {result.have}") if key in results else result
    yield from results.values()


def unknown_driver(name: str, source: str, day: dt.date = dt.date.min) -> SiteDriver:
    """Return a driver whose supported ROCm is not known."""
    return SiteDriver(name=name, rocm=None, rank=Rank.MEASURED, source=source, date=day)


def driver_of_node(driver: SiteDriver | None, snapshot: Snapshot) -> SiteDriver | None:
    """Return the driver that was seen on a node; if none was, that of its site.

    If neither the site (by version or kernel) nor AMD names a driver, the ROCm that it supports is not known.
    """
    module = snapshot.gpu_driver
    if module is None:
        return driver
    seen, day = f"amdgpu {module} of {snapshot.host}", snapshot.day
    if driver is not None and _is_named(driver, snapshot):
        seen = f"{driver.name}, seen on {snapshot.host},"
        return structs.replace(driver, name=seen, rank=Rank.MEASURED, date=day)
    evidence = driver.evidence if driver else ()
    if (release := release_of(module)) is not None:
        name, source = f"{seen} (AMD's {release.release})", f"{release.source}; the snapshot"
        return SiteDriver(name=name, rocm=release.rocm, rank=Rank.MEASURED, evidence=evidence, source=source, date=day)
    of_site = f"; the site's is {driver.name} of {driver.date} ({driver.source})" if driver else ""
    return unknown_driver(seen, f"the snapshot{of_site}", day)


def _is_named(driver: SiteDriver, snapshot: Snapshot) -> bool:
    if driver.version is not None and snapshot.gpu_driver in modules_of(driver.version):
        return True
    # a driver can be replaced under the same kernel: one that AMD has in another release is not this one
    is_another = driver.version is not None and release_of(snapshot.gpu_driver or "") is not None
    return driver.kernel is not None and driver.kernel == snapshot.kernel and not is_another


def _judge(driver: SiteDriver, version: str | None, whose: str) -> RuleResult:
    result = partial(RuleResult, _ID, have=f"ROCm {version or '?'} {whose}")
    unknown = partial(result, RuleOutcome.UNKNOWN)
    if driver.rocm is None:
        need, because = f"a ROCm that {driver.name} supports", f"which ROCm {driver.name} supports is not known"
        return unknown(need=need, because=because, source=driver.source)
    need, release = str(driver.rocm), version_of(version)
    if release is None:
        because = f"the version of the ROCm {whose} is not known"
        return unknown(need=need, because=because, source=f"{driver.source} ({driver.date})")
    claims = sorted(_claims(driver, driver.rocm, release), key=lambda claim: claim.weight, reverse=True)
    deciding, is_below = claims[0], _is_below(driver.rocm, release)
    source = f"{deciding.source} ({deciding.date})"
    is_seen = driver.rank is Rank.MEASURED
    decides = "a job with it decides" if is_seen else "a snapshot that shows the driver decides"
    if others := [claim for claim in claims if claim.serves is not deciding.serves]:
        other = others[0]
        because = f"{deciding.with_date}, but {other.with_date}: {decides}"
        return unknown(need=need, because=because, source=f"{source}; {other.source} ({other.date})")
    if not deciding.serves and not is_below and not is_seen:
        because = f"{deciding.with_date}, and updates move a driver's window up: {decides}"
        return unknown(need=need, because=because, source=source)
    if not deciding.serves:
        because = f"{driver.name} does not support it: expect crashes, or wrong results"
        return result(RuleOutcome.REFUSED, need=need, because=because, source=source)
    confirmed = f"last confirmed on {max(claim.date for claim in claims)}"
    to_be_sure = "" if is_seen else ". To be sure, add --host with a snapshot of `lumiimg host scan` from a GPU node"
    because = f"{deciding.text}; {confirmed}{to_be_sure}"
    return result(RuleOutcome.OK, need=need, because=because, source=source)


def _claims(driver: SiteDriver, window: Need, release: Version) -> Iterator[_Claim]:
    """Yield what each fact states about one ROCm release, the window of the driver first."""
    serves, is_below = window.versions.contains(release, prereleases=True), _is_below(window, release)
    text = f"{driver.name} supports {'it' if serves else f'only {window}'}"
    yield _Claim(serves, driver.rank, driver.date, text, driver.source)
    for seen in driver.evidence:
        text = f"{seen.text} runs there with ROCm {seen.rocm}"
        if SpecifierSet(f"=={seen.rocm}.*").contains(release, prereleases=True):
            yield _Claim(True, seen.rank, seen.date, text, seen.source)
        elif not serves and not is_below and release < Version(seen.rocm):
            yield _Claim(True, Rank.INFERRED, seen.date, text, seen.source)  # support for a newer one may include this


def _is_below(window: Need, release: Version) -> bool:
    """Return whether a release is too old for a window, not too new."""
    return any(
        spec.operator in {">=", ">", "~=", "=="} and release < Version(spec.version.removesuffix(".*"))
        for spec in window.versions
    )


def site_as_observed(site: Site, snapshot: Snapshot, where: str) -> Site:
    """Return the site with the driver and the fabric of a snapshot, from `where`. Raises BadInputError."""
    from lumiimg.host.manifest import newest_needs  # both read ELF data, which no other request needs
    from lumiimg.host.snapshot import HostFiles, scan_command

    files = HostFiles(snapshot)
    entry = files.fabric
    libfabric = files.library(entry.path) if entry else None
    if entry is None or libfabric is None:
        raise BadInputError(
            "has no libfabric that loads with libcxi: it is not a Slingshot node, or the module was not loaded",
            where=where,
            hint=f"on a compute node, with the module of libfabric loaded: {scan_command()}",
        )
    libcxi = files.library(entry.closure.get(LIBCXI))
    needs = [need for one in (libfabric, libcxi) if one for need in newest_needs(one.facts).items()]
    versions = (number for (_, family), number in needs if family == "GLIBC")
    glibc = ".".join(max(versions, key=numbers_of, default=_OLDEST_GLIBC).split(".")[:2])
    in_path, believed, day = _VERSION_IN_PATH.search(libfabric.path), site.fabric, snapshot.day
    if believed is not None and believed.glibc == glibc:
        day = max(day, believed.date)  # a newer fact says the same
    release = (
        f"Slingshot {believed.slingshot}: {believed.source}, {believed.date}; "
        if believed and believed.slingshot
        else ""
    )
    fabric = SiteFabric(
        slingshot=believed.slingshot if believed else None,
        libfabric=in_path[1] if in_path else believed.libfabric if believed else None,
        glibc=glibc,
        source=f"{release}{where}: {snapshot.host}, {libfabric.path} and libcxi",
        date=day,
    )
    return structs.replace(
        site, arch=snapshot.gpu or site.arch, driver=driver_of_node(site.driver, snapshot), fabric=fabric
    )
