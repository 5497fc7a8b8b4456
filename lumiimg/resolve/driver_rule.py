"""Rule 2: whether the driver of the nodes serves the ROCm of an image, by facts that have a day and may disagree.

The newest fact of the highest rank decides, and where facts disagree the answer is a doubt. That a fact is old is a
note: no answer changes with the day. Updates of a driver move its window up, so a ROCm that is too old for it stays too
old, and one that is too new for a window that was only announced is a doubt.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from msgspec import structs
from packaging.version import Version

from lumiimg.catalog.age import age_of
from lumiimg.catalog.drivers import DriverEvidence, Rank, SiteDriver, modules_of, release_of
from lumiimg.catalog.needs import Need, version_of
from lumiimg.resolve.rules import RuleOutcome, RuleResult

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lumiimg.catalog.sites import Site
    from lumiimg.host.snapshot import Snapshot
    from lumiimg.resolve.stack import Stack

_WHOSE_ROCM = (("rocm", "of the image"), ("torch-rocm", "in torch's wheel"), ("wheel-rocm", "in a wheel"))
_ID = "driver-window"
_BY_SCAN = "a snapshot of a node decides"
_SCAN_SHOWS = "a snapshot of a node shows whether it still holds"


@dataclass(frozen=True, slots=True)
class _Claim:
    """What one fact says of one release of ROCm."""

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
    """Rule 2: the driver of the nodes serves the ROCm of the image, and the one that a wheel brings."""
    any_rocm = next((component for component, _ in _WHOSE_ROCM if component in stack.offers), None)
    if site.vendor is not None and any_rocm is not None:
        because = f"{site.name} has GPUs of {site.vendor}, where ROCm finds none"
        have = f"ROCm {stack.version(any_rocm) or '?'}"
        yield RuleResult(_ID, RuleOutcome.REFUSED, "GPUs of AMD", have, because, site.source)
        return
    if site.driver is not None:
        yield from _window(stack, site.driver, site.date)
        return
    for component, whose in _WHOSE_ROCM if site.arch is not None else ():
        if component in stack.offers:
            because = f"the project does not know which ROCm the driver of {site.name} supports"
            need, have = "a ROCm that the driver supports", f"ROCm {stack.version(component) or '?'} {whose}"
            yield RuleResult(_ID, RuleOutcome.UNKNOWN, need, have, because, site.source)


def window_on_node(stack: Stack, site: Site | None, snapshot: Snapshot | None) -> Iterator[RuleResult]:
    """Rule 2 on a machine by its site and a node that was seen there, where these are known."""
    driver = site.driver if site else None
    driver = driver_of_node(driver, snapshot) if snapshot else driver
    if site is not None:
        yield from driver_window(stack, structs.replace(site, driver=driver))
    elif driver is not None:
        yield from _window(stack, driver, dt.date.min)


def _window(stack: Stack, driver: SiteDriver, known: dt.date) -> Iterator[RuleResult]:
    results: dict[tuple[RuleOutcome, str], RuleResult] = {}
    for component, whose in _WHOSE_ROCM:
        if component in stack.offers:
            version = stack.version(component)
            have = f"ROCm {version or '?'} {whose}"
            result = _judge(driver, version, have, whose, known)
            key = (result.outcome, result.because)
            results[key] = replace(result, have=f"{results[key].have}, {have}") if key in results else result
    yield from results.values()


def unknown_driver(stack: Stack, driver: str, because: str, source: str) -> Iterator[RuleResult]:
    """Rule 2 where no site is named: open, where the image has a ROCm that the driver would have to serve."""
    for component, whose in _WHOSE_ROCM:
        if component in stack.offers:
            need, have = f"a ROCm that {driver} supports", f"ROCm {stack.version(component) or '?'} {whose}"
            yield RuleResult(_ID, RuleOutcome.UNKNOWN, need, have, because, source)
            return


def driver_of_node(driver: SiteDriver | None, snapshot: Snapshot) -> SiteDriver | None:
    """Return the driver that was seen on a node; that of its site where none was.

    It is the one that the site names (by its version, or by the kernel), or one that AMD says the window of. Of any
    other, which ROCm it serves is not known, and what is known of the site says nothing about it.
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
    return SiteDriver(name=seen, rocm=None, rank=Rank.MEASURED, source=f"the snapshot{of_site}", date=day)


def _is_named(driver: SiteDriver, snapshot: Snapshot) -> bool:
    if driver.version is not None and snapshot.gpu_driver in modules_of(driver.version):
        return True
    # a driver can be exchanged under the same kernel: one that AMD has in another release is not this one
    is_another = driver.version is not None and release_of(snapshot.gpu_driver or "") is not None
    return driver.kernel is not None and driver.kernel == snapshot.kernel and not is_another


def _judge(driver: SiteDriver, version: str | None, have: str, whose: str, known: dt.date) -> RuleResult:
    need = str(driver.rocm) if driver.rocm else f"a ROCm that {driver.name} supports"
    if driver.rocm is None:
        because = f"which ROCm {driver.name} supports is not known"
        return RuleResult(_ID, RuleOutcome.UNKNOWN, need, have, because, driver.source)
    claims = list(_claims(driver, version))
    if not claims or version is None:
        because = f"the version of the ROCm {whose} is not known"
        return RuleResult(_ID, RuleOutcome.UNKNOWN, need, have, because, f"{driver.source} ({driver.date})")
    deciding = max(claims, key=lambda claim: claim.weight)
    against = [claim for claim in claims if claim.serves is not deciding.serves]
    source = f"{deciding.source} ({deciding.date})"
    decides = _BY_SCAN if driver.rank is not Rank.MEASURED else "a job with it decides"
    if against:
        other = max(against, key=lambda claim: claim.weight)
        because = f"{deciding.with_date}, but {other.with_date}: {decides}"
        source += f"; {other.source} ({other.date})"
        return RuleResult(_ID, RuleOutcome.UNKNOWN, need, have, because, source)
    if not deciding.serves and _is_below(driver.rocm, version):
        because = f"{driver.name} does not support it: expect crashes, or wrong results"
        return RuleResult(_ID, RuleOutcome.REFUSED, need, have, because, source)
    if driver.doubtful is not None and driver.doubtful.holds_for(version):
        need += f", better not {driver.doubtful}"
        return RuleResult(_ID, RuleOutcome.WARNING, need, have, driver.trouble, source)
    newest = max(claims, key=lambda claim: claim.date)
    old = age_of(newest.date, known)
    note = f"; that is {old}: {_SCAN_SHOWS}" if old else ""
    if not deciding.serves and driver.rank.strength < Rank.PUBLISHED.strength:
        because = f"{deciding.with_date}, and updates move a driver's window up: {_BY_SCAN}"
        return RuleResult(_ID, RuleOutcome.UNKNOWN, need, have, because, source)
    if not deciding.serves:
        because = f"{driver.name} does not support it: expect crashes, or wrong results{note}"
        return RuleResult(_ID, RuleOutcome.REFUSED, need, have, because, source)
    since = f"; since then {newest.text} ({newest.date})" if newest.date > deciding.date else ""
    return RuleResult(_ID, RuleOutcome.OK, need, have, f"{deciding.text} ({deciding.date}){since}{note}", source)


def _claims(driver: SiteDriver, version: str | None) -> Iterator[_Claim]:
    """Yield what each fact says of a release of ROCm, the window of the driver first."""
    wanted = _release(version)
    holds = driver.rocm.holds_for(version) if driver.rocm else None
    if holds is not None:
        text = f"{driver.name} serves {'it' if holds else f'{driver.rocm} alone'}"
        yield _Claim(holds, driver.rank, driver.date, text, driver.source)
    if wanted is None:
        return
    below: list[DriverEvidence] = []
    above: list[DriverEvidence] = []
    for seen in driver.evidence:
        release = _release(seen.rocm) or ()
        if wanted[: len(release)] == release:
            yield _Claim(True, seen.rank, seen.date, f"{seen.text} runs there with ROCm {seen.rocm}", seen.source)
        else:
            (below if release < wanted else above).append(seen)
    if below and above:
        nearest = (max(below, key=lambda one: one.date), max(above, key=lambda one: one.date))
        text = " and ".join(f"{one.text} (ROCm {one.rocm})" for one in nearest)
        date = min(one.date for one in nearest)
        source = "; ".join(dict.fromkeys(one.source for one in nearest))
        yield _Claim(True, Rank.INFERRED, date, f"{text} run there, and a driver supports the releases between", source)


def _is_below(window: Need, version: str) -> bool:
    """Whether a release is too old for a window, not too new."""
    return any(
        spec.operator in {">=", ">", "~=", "=="} and Version(version) < Version(spec.version.removesuffix(".*"))
        for spec in window.versions
    )


def _release(version: str | None) -> tuple[int, ...] | None:
    found = version_of(version)
    return found.release if found is not None else None
