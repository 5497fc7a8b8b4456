"""Answer of `explain IMAGE`: the check of its files, and where each library comes from and with what margin."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lumiimg.core.findings import Answer
from lumiimg.fabric.path import LIBFABRIC, Side
from lumiimg.report.document import Block, Document, Meter, Paragraph, Row, Section, Shown, Table, Tree, trees_of
from lumiimg.report.views.binds import attempts
from lumiimg.report.views.check import check_document

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lumiimg.check.pipeline import CheckReport
    from lumiimg.check.static.files import HostFit
    from lumiimg.host.manifest import Loaded, Margin


def compatibility_document(report: CheckReport) -> Document:
    """Return the answer of the check of an image's files, with the origin of each library."""
    checked, fit = check_document(report), report.files
    return replace(
        checked,
        command="explain",
        summary=(_sides(fit), *checked.summary[1:]),  # the tree shows the path
        sections=(
            Section("The libraries of the path", _tree(fit)),
            Section("Versions at the boundary", _margins(fit), is_headed=True),
            *checked.sections,
            Section("What was tried", attempts(fit), Shown.VERBOSE),
            Section("Where each library comes from", _files(fit), Shown.PAGE),
        ),
        closing=(),
        case="",
    )


def _sides(fit: HostFit) -> str:
    """Return the versions on each side, in one line."""
    parts = [f"image: glibc {fit.glibc or '?'}"]
    parts += [f"RCCL {fit.static.path.rccl_version or '?'}"] if fit.static.path.rccl else []
    parts += [f"torch {fit.torch}"] if fit.torch else []
    parts += [f"host {fit.host}: glibc {fit.host_glibc or '?'}"] if fit.host else []
    return " · ".join(parts)


def _tree(fit: HostFit) -> tuple[Tree, ...]:
    """Return what is opened, and below it each library where it was first requested."""
    path = fit.static.path
    below: dict[str | None, list[Loaded]] = {}
    for item in fit.loaded:
        above = item.object.requested_by
        below.setdefault(above.path if above else None, []).append(item)

    rows = [(0, _branch(item)) for item in fit.loaded if item.object.path == path.rccl]
    opened = [item for item in fit.loaded if item.object.name in (*path.plugin_files, LIBFABRIC)][:1]
    pending = [(0, item) for item in opened]
    while pending:
        depth, item = pending.pop()
        rows.append((depth, _branch(item)))
        pending += [(depth + 1, child) for child in reversed(below.get(item.object.path, []))]
    return trees_of(rows)


def _branch(item: Loaded) -> Tree:
    side = "HOST " if item.host_path else "image"
    return Tree(f"{side}  {item.soname}", item.host_path or item.object.path)


def _margins(fit: HostFit) -> Iterator[Block]:
    """Yield the pairs of versions across the boundary, smallest margin first."""
    crossing = sorted(fit.margins, key=lambda margin: margin.spare)
    yield from map(_meter, crossing)
    of_libc = (margin for margin in crossing if margin.provider.soname.startswith("libc.so."))
    gate = next((margin for margin in of_libc if margin.library.side is Side.HOST), None)
    if gate is not None and fit.answer is not Answer.NO:
        limit = f"libraries that need more than {gate.offered}"
        yield Paragraph(f"After a system update to {limit}, this image cannot load them.")


def _meter(margin: Margin) -> Meter:
    if margin.minors is None:
        return Meter(margin.library.title, margin.sentence, None)
    severity, left = margin.left
    need, have = margin.minors
    return Meter(margin.library.title, f"{margin.sentence}; {left}", need / have if need < have else 1.0, severity)


def _files(fit: HostFit) -> Iterator[Block]:
    rows = tuple(Row((item.soname, item.side, item.host_path or item.path)) for item in fit.loaded)
    caption = "The libraries that the loader would put into the process of RCCL and its plugin"
    yield Table(("library", "of the", "file"), rows, caption)
    if fit.missing:
        yield Paragraph(f"Not in the image: {', '.join(fit.missing)}")
