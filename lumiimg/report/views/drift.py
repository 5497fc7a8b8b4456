"""Answers of `drift`: what an update of a machine does to images, and how nodes changed."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from lumiimg.check.drift import Fate
from lumiimg.check.images import ImageAnswers
from lumiimg.cluster.nodes.drift import Change
from lumiimg.core.findings import Answer, Remedy, Severity
from lumiimg.core.text import count
from lumiimg.report.document import Document, Item, Section
from lumiimg.report.views.binds import attempts
from lumiimg.report.views.check import on_nodes
from lumiimg.report.views.images import first_step, image_items, loop_over_images
from lumiimg.resolve.rules import RuleOutcome

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lumiimg.check.drift import DriftResult, ImageDrift
    from lumiimg.cluster.nodes.drift import ChangedNodes, NodesDrift
    from lumiimg.core.findings import Finding
    from lumiimg.host.drift import Drift
    from lumiimg.host.snapshot import Snapshot

_FATES = {
    Fate.BREAKS: (Severity.PROBLEM, "BREAKS"),
    Fate.STALE_BINDS: (Severity.PROBLEM, "NEEDS NEW BINDS: with them, no obstacle is found"),
    Fate.UNKNOWN: (Severity.UNKNOWN, "CANNOT TELL"),
    Fate.BROKEN_BEFORE: (Severity.INFO, "already broken before the update"),
    Fate.MENDED: (Severity.OK, "did not load before; with new binds, no obstacle is found"),
    Fate.FINE: (Severity.OK, "no obstacle found: what it loads is unchanged, or still fits"),
}
_SEVERITIES = {"fine": Severity.OK, "breaks": Severity.PROBLEM, "undecided": Severity.UNKNOWN}
_OF_ONE_KIND = "take both snapshots on nodes of one kind: of one partition, with its drivers loaded"


def drift_document(result: DriftResult) -> Document:
    """Return the answer of `drift` for each image, the worst first."""
    drift = result.drift
    images = (*_items(result.images), *image_items(ImageAnswers.from_answers(result.unread)))
    return Document(
        command="drift",
        subject=f"{drift.before.host} and {drift.now.host}",
        severity=_SEVERITIES[result.answer],
        sentence=result.sentence,
        advice=first_step(images),
        summary=(f"before: {_node(drift, drift.before)}", f"now:    {_node(drift, drift.now)}"),
        sections=(
            Section("The images", images),
            Section("Nodes of different kinds", _kinds(drift), is_headed=True),
            Section("Not known", (Item(Severity.UNKNOWN, note) for note in drift.notes)),
        ),
    )


def _node(drift: Drift, snapshot: Snapshot) -> str:
    driver = f"amdgpu {snapshot.gpu_driver or '?'}" if drift.driver_changed else None
    taken, glibc = snapshot.taken[:16].replace("T", " "), f"glibc {snapshot.glibc or '?'}"
    return " · ".join(filter(None, (snapshot.host, taken, snapshot.os.name, glibc, driver)))


def _kinds(drift: Drift) -> Iterator[Item]:
    if drift.kinds:
        shows = "the differences show two kinds of nodes"
        yield Item(Severity.UNKNOWN, shows, notes=drift.kinds, remedies=(Remedy(_OF_ONE_KIND),))


# -- images --


def _items(images: Sequence[ImageDrift]) -> Iterator[Item]:
    """Yield images with the same fate together, the worst first."""
    for _, alike in itertools.groupby(sorted(images, key=_group_key), _group_key):
        same = list(alike)
        image, names = same[0], tuple(each.image for each in same)
        ways = zip(*(one.remedies for one in same), strict=False)
        is_one = len(same) == 1
        yield Item(
            _FATES[image.fate][0],
            f"{image.image if is_one else count(len(same), 'image')}: {_fate(image)}",
            names=() if is_one else names,
            why=tuple(text for text, _ in _reasons(image)),
            evidence=tuple(line for _, lines in _reasons(image) for line in lines),
            notes=tuple(f"note: {note}" for note in image.notes),
            remedies=tuple(itertools.chain.from_iterable(loop_over_images(names, each) for each in ways)),
            any_one=True,
        )


def _group_key(image: ImageDrift) -> tuple[object, ...]:
    """Return the key of images that are shown together; the worst sorts first."""
    return list(Fate).index(image.fate), _fate(image), tuple(_reasons(image)), image.notes


def _fate(image: ImageDrift) -> str:
    if image.fate is Fate.STALE_BINDS and image.now.answer is Answer.UNDECIDED:
        return "NEEDS NEW BINDS: they load, and something else is not known"
    return _FATES[image.fate][1]


def _findings(image: ImageDrift) -> tuple[Finding, ...]:
    """Return the findings that determine the image's fate."""
    if image.fate in {Fate.BREAKS, Fate.BROKEN_BEFORE}:
        return image.refused
    is_open = image.fate in {Fate.UNKNOWN, Fate.STALE_BINDS}
    return tuple(each for each in image.now.against if is_open and each.severity is Severity.UNKNOWN)


def _reasons(image: ImageDrift) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the reasons for the image's fate, each with its evidence."""
    for found in _findings(image):
        chain = (" -> ".join(found.chain),) if found.chain else ()
        yield f"{found.summary}  [{found.id}]", (*found.evidence, *chain)
    if image.fate is Fate.UNKNOWN:
        yield from ((attempt.text, attempt.evidence) for attempt in attempts(image.now))
    for rule in image.driver:
        if rule.outcome is not RuleOutcome.OK:
            yield f"needs {rule.need}: {rule.have}  [{rule.id}]", (rule.because,)
    if image.fate is Fate.STALE_BINDS:
        saved = image.saved_binds
        for path in saved.gone:
            text = f"names {path}, not in today's snapshot: the engine skips it with a warning, or does not start"
            yield text, ()
        yield from ((f"lacks {target}, which the engine hides now", ()) for target in saved.lack)
        if saved.refusal is not None and not saved.gone:
            yield f"{saved.refusal}", ()


# -- nodes --


_CHANGES = {
    Change.WORSE: Severity.PROBLEM,
    Change.NOT_COMPARABLE: Severity.UNKNOWN,
    Change.BETTER: Severity.OK,
    Change.NEW: Severity.OK,
}


def nodes_drift_document(result: NodesDrift) -> Document:
    """Return the answer of `drift` for two reports on nodes, the worst first."""
    different = " and ".join(result.images) if len(result.images) > 1 else ""
    return Document(
        command="drift",
        subject=result.images[0],
        severity=result.answer.severity,
        sentence=result.sentence,
        summary=(f"note: these are reports of different images: {different}",) if different else (),
        sections=(Section("The nodes", map(_changed, result.changed)),),
    )


def _changed(of: ChangedNodes) -> Item:
    then = () if of.before == of.now else (f"before: {of.before or 'not asked'}",)
    return Item(
        _CHANGES.get(of.change, Severity.INFO),
        *on_nodes(of.nodes, f"{of.change.words}: {of.now}" if of.now else of.change.words),
        notes=(*then, *(f"differs: {difference}" for difference in of.differs)),
    )
