"""`explain --html`: an image beside a machine, or a request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumiimg.check.static.comparisons import Outcome
from lumiimg.elf.versions import numbers_of
from lumiimg.report.boundary import KINDS, margin_left, sentence, sides_line
from lumiimg.report.html.bars import Bar, bars_figure
from lumiimg.report.html.findings import block, findings_list, unsaid
from lumiimg.report.html.gpu_code import GPU_CODE, gpu_boxes
from lumiimg.report.html.page import Node, Section, element, left_out, listed, page, table
from lumiimg.report.html.picture import path_figure
from lumiimg.report.views.check import FOUND as FINDINGS
from lumiimg.report.views.check import PATH

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lumiimg.check.static.boundary import Boundary
    from lumiimg.fabric.path import Step
    from lumiimg.host.margins import Margin

_BARS = 40
_RULES = 100
_FILES = 400
_SUBJECTS = {"plugin-name": "RCCL", "plugin-api": "RCCL"}
_NEEDS_IT = " needs it"


def boundary_page(boundary: Boundary, steps: Sequence[Step]) -> str:
    """Return the account of an image as a page."""
    said = boundary.advice.next
    parts = [
        Section(PATH, [path_figure(steps, "path", said=said), *_remedies(boundary, steps)]),
        Section(GPU_CODE, gpu_boxes(boundary.gpu)),
        Section("Versions at the boundary", list(_margins(boundary))),
        Section("Rules", list(_rules(boundary))),
        Section(FINDINGS, findings_list(boundary.static.findings, said)),
        Section("Whose file each library is", list(_files(boundary))),
    ]
    kind = KINDS[boundary.decision]
    return page("explain", boundary.image, kind, sentence(boundary), [sides_line(boundary)], parts, boundary.advice)


def _remedies(boundary: Boundary, steps: Sequence[Step]) -> Iterator[Node]:
    """Yield what to do, unless the picture says it all."""
    in_picture = {remedy for step in steps for remedy in step.remedy}
    if more := [one for one in unsaid(boundary.remedies, boundary.advice.next) if one not in in_picture]:
        yield element("p", "Other ways, the nearest first:")
        yield listed(more, "remedy")


def _margins(boundary: Boundary) -> Iterator[Node]:
    crossing = sorted((m for m in boundary.margins if m.crosses), key=_spare)
    if not crossing:
        words = (
            "No library of one side asks for a version of the other."
            if boundary.manifest
            else ("Without a snapshot of a node (--host) there is no other side to compare with.")
        )
        yield element("p", words)
        return
    yield bars_figure(
        [_bar(margin) for margin in crossing[:_BARS]],
        "Filled: what is needed, as far as it is offered. Outlined behind it: what is offered beyond that, the margin. "
        "Dashed: what is lacking. The tightest first.",
    )
    yield from left_out(len(crossing), _BARS, "pairs")


def _spare(margin: Margin) -> tuple[float, str]:
    need, have = numbers_of(margin.need), numbers_of(margin.have)
    return (_minor(have) - _minor(need) if need[:1] == have[:1] else float("inf"), margin.library)


def _minor(numbers: tuple[int, ...]) -> int:
    return numbers[1] if len(numbers) > 1 else 0


def _bar(margin: Margin) -> Bar:
    need, have = numbers_of(margin.need), numbers_of(margin.have)
    left = f": {margin_left(margin)}" if margin_left(margin) else ""
    words = (
        f"needs {margin.family}_{margin.need} of {margin.provider_side}, which offers up to "
        f"{margin.family}_{margin.have}{left}"
    )
    if need[:1] != have[:1]:
        return Bar(margin.library_side, words, 0.0, 0.0)
    whole = max(_minor(need), _minor(have), 1)
    solid, beyond = min(_minor(need), _minor(have)) / whole, (_minor(have) - _minor(need)) / whole
    kind = "problem" if need > have else "ok" if have > need else "unknown"
    return Bar(margin.library_side, words, 0.0, max(solid, 0.01), max(beyond, 0.0), max(-beyond, 0.0), kind)


def _rules(boundary: Boundary) -> Iterator[Node]:
    ordered = sorted(boundary.rules, key=lambda rule: list(KINDS)[::-1].index(rule.outcome))
    for rule in ordered[:_RULES]:
        yield block(
            kind=KINDS[rule.outcome],
            summary=f"{_SUBJECTS.get(rule.id) or rule.because.removesuffix(_NEEDS_IT)} {rule}"
            if rule.id in _SUBJECTS or rule.because.endswith(_NEEDS_IT)
            else str(rule),
            identity=rule.id,
            is_open=rule.outcome is not Outcome.OK,
            reasons=(rule.because,) if rule.because else (),
            source=rule.source,
        )
    yield from left_out(len(ordered), _RULES, "rules")
    yield from (element("p", f"Note: {note}") for note in (boundary.manifest.notes if boundary.manifest else ()))


def _files(boundary: Boundary) -> Iterator[Node]:
    if boundary.loaded:
        rows = (
            (
                item.object.facts.soname or item.object.name,
                "host" if item.host_path else "image",
                element("code", item.host_path or item.object.path),
            )
            for item in boundary.loaded[:_FILES]
        )
        caption = "The process of RCCL and its plugin, as the loader would fill it"
        yield table(caption, ("library", "of the", "file"), rows)
        yield from left_out(len(boundary.loaded), _FILES, "libraries")
    if boundary.missing:
        yield element("p", f"Not in the image: {', '.join(boundary.missing[:_BARS])}")
