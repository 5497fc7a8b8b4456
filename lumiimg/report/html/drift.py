"""`drift --html`: the images of each fate, and what changed on the node."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from lumiimg.findings import Advice, first_command
from lumiimg.report.drift import OF_ONE_KIND, Words, groups_of, lines_of, nodes_of, sentence_of, whole
from lumiimg.report.html.findings import block, unsaid
from lumiimg.report.html.images import image_groups, images_part
from lumiimg.report.html.page import Node, Section, element, left_out, listed, page

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lumiimg.check.answer import Answer
    from lumiimg.check.drift import ImageDrift
    from lumiimg.host.drift import Drift
    from lumiimg.report.views.images import ImageAnswer

_GROUPS, _CHANGES = 200, 200


def drift_page(
    drift: Drift, images: Sequence[ImageDrift], answer: Answer, words: Words, unread: Sequence[ImageAnswer]
) -> str:
    """Return what an update changed, and what that does to images, as a page."""
    kinds: list[Node] = [f"{one.what}: {one.before or 'none'} → {one.now or 'none'}" for one in drift.kinds]
    parts = [
        Section("The images", [*_images(images, words), *image_groups(unread)]),
        Section("Nodes of different kinds", [listed(map(str, kinds)), element("p", OF_ONE_KIND)] if kinds else []),
        Section("What changed", list(_changes(drift))),
    ]
    subject = f"{drift.before.host} and {drift.now.host}"
    sentence = sentence_of(drift, images, answer, unread)
    return page("drift", subject, whole(answer, unread).severity, sentence, nodes_of(drift), parts)


def _images(images: Sequence[ImageDrift], words: Words) -> Iterator[Node]:
    groups = list(groups_of(images, words))
    for group in groups[:_GROUPS]:
        notes = [f"note: {note}" for note in group.notes]
        command = first_command(group.remedies)
        advice, others = Advice(None, command, group.whose), unsaid(group.remedies, command)
        names = group.names if group.whose else ()
        content = images_part(names, [*_joined(group.reasons), *notes], advice, others)
        yield block(kind=group.kind, summary=group.sentence, is_open=True, content=content)
    yield from left_out(len(groups), _GROUPS, "groups")


def _joined(reasons: Sequence[str]) -> list[str]:
    """Return reasons with what stands behind each in the same line."""
    found: list[str] = []
    for line in reasons:
        if line.startswith(" ") and found:
            found[-1] += f"; {line.strip()}"
        else:
            found.append(line)
    return found


def _changes(drift: Drift) -> Iterator[Node]:
    for subject, group in itertools.groupby(drift.changes, lambda change: change.subject):
        changes = sorted(group, key=lambda change: not change.may_break)
        yield element("h3", subject.value)
        for change in changes[:_CHANGES]:
            first, *details = lines_of(change)
            kind = "problem" if change.may_break else "info"
            word = "can break images" if change.may_break else None
            yield block(
                kind=kind, word=word, summary=first, is_open=False, content=[listed(details)] if details else []
            )
        yield from left_out(len(changes), _CHANGES, "changes")
    yield from (element("p", f"Not known: {note}") for note in drift.notes)
