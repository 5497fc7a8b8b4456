"""`--html` of several images: those of one fate together, the worst first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumiimg.report.html.findings import block
from lumiimg.report.html.page import element, left_out, lines, listed
from lumiimg.report.images import groups_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from xml.etree import ElementTree as ET

    from lumiimg.findings import Advice
    from lumiimg.report.views.images import ImageAnswer

_NAMES, _GROUPS = 1000, 200


def image_groups(answers: Sequence[ImageAnswer]) -> Iterator[ET.Element]:
    """Yield images of one fate together."""
    groups = groups_of(answers)
    for group in groups[:_GROUPS]:
        content = images_part(group.names, [group.advice.why] if group.advice.why else [], group.advice)
        yield block(kind=group.kind, summary=group.sentence, is_open=True, content=content)
    yield from left_out(len(groups), _GROUPS, "groups")


def images_part(
    names: Sequence[str], reasons: Sequence[str], advice: Advice, others: Sequence[str] = ()
) -> list[ET.Element]:
    """Return images of one fate: why it is theirs, what to do (else one of the others), and their names."""
    return [*_rows(reasons, advice, others), *lines(names, _NAMES, "images")]


def _rows(reasons: Sequence[str], advice: Advice, others: Sequence[str]) -> Iterator[ET.Element]:
    if reasons:
        yield element("p", "why: ", *([reasons[0]] if len(reasons) == 1 else [listed(reasons)]))
    if advice.next:
        yield element("p", f"next, {advice.where}:" if advice.where else "next:")
        yield listed([advice.next], "remedy")
    if others:
        yield element("p", "or:")
        yield listed(others, "remedy")
