"""What a benchmark measured, size by size, beside what a network that is well gives on the site."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumiimg.check.run.bandwidth import reference_of
from lumiimg.report.document import Curve, Row, Section, Shown, Table
from lumiimg.wording import size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lumiimg.catalog.sites import Site, SiteBandwidth
    from lumiimg.nccl.report import Measurement


def bandwidth_section(measured: Sequence[Measurement], site: Site | None, nodes: int | None) -> Section:
    """Return the curve and the table of each measurement of several sizes; `nodes` are those of the job."""
    blocks = (block for one in measured if len(one.points) > 1 for block in _blocks(one, site, nodes))
    return Section("Bandwidth by message size", tuple(blocks), Shown.PAGE)


def _blocks(measured: Measurement, site: Site | None, nodes: int | None) -> Iterator[Curve | Table]:
    reference = reference_of(measured, measured.nodes or nodes, site)
    named = [(measured.name, tuple((float(message), speed) for message, speed in measured.points))]
    if reference is not None and site is not None:
        named.append((f"a healthy network of {site.name}", _level(measured, reference)))
    yield Curve(measured.name, "message, bytes", "bus bandwidth, GB/s", tuple(named))
    rows = tuple(Row((size(message), f"{speed:.4g}")) for message, speed in measured.points)
    yield Table(("message", "GB/s"), rows, f"Best bus bandwidth of {measured.name}, by size", "sizes")


def _level(measured: Measurement, reference: SiteBandwidth) -> tuple[tuple[float, float], ...]:
    """Return the line of a reference: it is known from one size on."""
    largest = max(measured.points[-1][0], reference.from_bytes)
    return (float(reference.from_bytes), reference.gb_s), (float(largest), reference.gb_s)
