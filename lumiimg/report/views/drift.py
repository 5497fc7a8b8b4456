"""What `drift` answers: what an update of a machine changed, and what that does to images."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from lumiimg.check.answer import Answer
from lumiimg.check.drift import Fate
from lumiimg.check.static.host_fit import words_of
from lumiimg.findings import Remedy, Severity
from lumiimg.host.node_change import ChangeKind, NodeChange
from lumiimg.report.document import Document, Item, Paragraph, Section, Tree
from lumiimg.report.views.images import for_first, image_items, of_error
from lumiimg.resolve.rules import RuleOutcome, RuleResult
from lumiimg.wording import count

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lumiimg.check.drift import DriftResult, ImageDrift
    from lumiimg.host.drift import Drift
    from lumiimg.host.snapshot import Snapshot

_SEVERITIES = {"fine": Severity.OK, "breaks": Severity.PROBLEM, "undecided": Severity.UNKNOWN}
_OF_ONE_KIND = "take both snapshots on nodes of one kind: of one partition, with its drivers loaded"


def drift_document(result: DriftResult) -> Document:
    """Return what `drift` says: images first, the worst before the others, then what changed."""
    drift, words, items = result.drift, result.words, tuple(_items(result.images))
    unread = [of_error(one.image, one.error) for one in result.unread]
    named = any(words.snapshot in remedy for item in items for remedy in item.remedies)
    return Document(
        command="drift",
        subject=f"{drift.before.host} and {drift.now.host}",
        severity=_SEVERITIES[result.answer],
        sentence=result.sentence,
        summary=(f"before: {_node(drift.before)}", f"now:    {_node(drift.now)}"),
        sections=(
            Section("The images", (*items, *image_items(unread))),
            Section("Nodes of different kinds", _kinds(drift), is_headed=True),
            *_changes(drift),
            Section("Not known", (Paragraph(note, Severity.UNKNOWN) for note in drift.notes)),
        ),
        closing=("`lumiimg host scan -o now.json`, here, writes now.json",) if words.now is None and named else (),
    )


def _node(snapshot: Snapshot) -> str:
    parts = [snapshot.host, snapshot.taken[:16].replace("T", " "), snapshot.os.name, f"glibc {snapshot.glibc or '?'}"]
    return " · ".join(filter(None, parts))


# -- what changed --


def _kinds(drift: Drift) -> Iterator[Item]:
    if drift.kinds:
        lines = tuple(f"{one.what}: {one.before or 'none'} -> {one.now or 'none'}" for one in drift.kinds)
        shows = "what differs shows two kinds of nodes"
        yield Item(Severity.UNKNOWN, shows, notes=lines, remedies=(Remedy(_OF_ONE_KIND),))


def _changes(drift: Drift) -> Iterator[Section]:
    """Yield the changes of each subject, those first that can break images."""
    for subject, changes in itertools.groupby(drift.changes, lambda change: change.subject):
        ordered = sorted(changes, key=lambda change: not change.may_break)
        yield Section(subject.value, map(_change, ordered), is_headed=True)


def _change(change: NodeChange) -> Tree:
    if change.kind in {ChangeKind.GONE, ChangeKind.NEW}:
        text = f"{change.kind.value}: {change.what}  {change.before or change.now}"
    elif change.before == change.now:
        text = f"{change.what}  {change.now}"
    else:
        text = f"{change.what}: {change.before or 'none'} -> {change.now or 'none'}"
    details = tuple(Tree(detail) for detail in change.details)
    return Tree(text, severity=Severity.PROBLEM if change.may_break else Severity.INFO, branches=details)


# -- images --


def _items(images: Sequence[ImageDrift]) -> Iterator[Item]:
    """Yield images of one fate together, the worst first."""
    for _, alike in itertools.groupby(sorted(images, key=_alike), _alike):
        same = list(alike)
        image, names = same[0], tuple(each.image for each in same)
        is_one = len(same) == 1
        yield Item(
            image.fate.severity,
            f"{image.image if is_one else count(len(same), 'image')}: {_fate(image)}",
            names=() if is_one else names,
            why=tuple(_reasons(image)),
            evidence=_because(image),
            notes=tuple(f"note: {note}" for note in image.notes),
            remedies=tuple(for_first(one, len(same)) for one in image.remedies),
            any_one=True,
        )


def _alike(image: ImageDrift) -> tuple[int, str, tuple[str, ...]]:
    """Return what images have in common that are shown together; the worst sorts first."""
    return list(Fate).index(image.fate), _fate(image), (*_reasons(image), *_because(image), *image.notes)


def _fate(image: ImageDrift) -> str:
    if image.fate is Fate.STALE_BINDS and image.now.answer is Answer.UNDECIDED:
        return "THE BINDS MADE BEFORE DO NOT HOLD: new binds load, and something else is not known"
    return image.fate.words


def _rules(image: ImageDrift) -> list[RuleResult]:
    """Return the rules that make it what it is."""
    found: list[RuleResult] = []
    if image.fate in {Fate.BREAKS, Fate.BROKEN_BEFORE}:
        found += image.refused
    if image.fate in {Fate.UNKNOWN, Fate.STALE_BINDS}:
        found += (rule for rule in image.now.rules if rule.outcome is RuleOutcome.UNKNOWN)
    return [*found, *(rule for rule in image.driver if rule.outcome is not RuleOutcome.OK)]


def _because(image: ImageDrift) -> tuple[str, ...]:
    """Return what stands behind the rules: the chain of libraries, the loader's words, the driver's source."""
    return tuple(rule.because for rule in _rules(image) if rule.because)


def _reasons(image: ImageDrift) -> Iterator[str]:
    """Yield why it is as it is: what is needed, what there is."""
    yield from (f"{words_of(rule)}  [{rule.id}]" for rule in _rules(image))
    if image.fate is Fate.STALE_BINDS:
        saved = image.saved_binds
        for path in saved.gone:
            yield f"names {path}, not in today's snapshot: the engine goes past it with a warning, or does not start"
        yield from (f"lacks {target}, which the engine hides now" for target in saved.lack)
        if saved.refusal is not None and not saved.gone:
            yield f"{saved.refusal}"
