"""What `lumiimg drift` says: what changed, by how it bears on images; then each image, and what to do."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lumiimg.check.answer import Answer
from lumiimg.check.drift import Fate
from lumiimg.check.drift import remedies as remedies_of
from lumiimg.check.static.comparisons import words_of
from lumiimg.errors import printable
from lumiimg.host.node_change import ChangeKind, NodeChange, Subject
from lumiimg.report.console import (
    INDENT,
    Priority,
    cut,
    detail,
    heading,
    headline,
    marked,
    remedies,
    say,
    screen,
)
from lumiimg.report.images import print_groups
from lumiimg.report.json_images import DriftOfImage
from lumiimg.resolve.rules import RuleOutcome
from lumiimg.wording import count

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lumiimg.check.drift import ImageDrift
    from lumiimg.findings import Remedy
    from lumiimg.host.drift import Drift
    from lumiimg.host.snapshot import Snapshot
    from lumiimg.report.console import Console
    from lumiimg.report.views.images import ImageAnswer

_SEVERITIES = {
    Fate.FINE: "ok",
    Fate.STALE_BINDS: "problem",
    Fate.BREAKS: "problem",
    Fate.MENDED: "ok",
    Fate.BROKEN_BEFORE: "info",
    Fate.UNKNOWN: "unknown",
}
_SENTENCES = {
    Fate.FINE: "no obstacle found: what it loads has not changed, or still fits",
    Fate.STALE_BINDS: "THE BINDS MADE BEFORE DO NOT HOLD: with new binds no obstacle is found",
    Fate.BREAKS: "BREAKS",
    Fate.MENDED: "did not load before; with new binds no obstacle is found",
    Fate.BROKEN_BEFORE: "did not work before, and does not now",
    Fate.UNKNOWN: "CANNOT TELL",
}
_WORST_FIRST = (Fate.BREAKS, Fate.STALE_BINDS, Fate.UNKNOWN, Fate.BROKEN_BEFORE, Fate.MENDED, Fate.FINE)
OF_ONE_KIND = "take both snapshots on nodes of one kind: of one partition, with its drivers loaded"
_SHOWN = 10
"""Of the changes of one subject, without --verbose."""


@dataclass(frozen=True, slots=True)
class Words:
    """What the user called things, for the commands that are printed."""

    now: str | None
    """The file of the newer snapshot; None where this machine was read."""
    site: str | None

    @property
    def snapshot(self) -> str:
        """The file that commands can name."""
        return self.now or "now.json"


def json_parts(
    drift: Drift, images: Sequence[ImageDrift], answer: Answer, words: Words, unread: Sequence[ImageAnswer] = ()
) -> dict[str, object]:
    """Return what the JSON is made of."""
    word = {Answer.NO_OBSTACLE: "fine", Answer.NO: "breaks", Answer.UNDECIDED: "undecided"}[whole(answer, unread)]
    of_images = [DriftOfImage(image, tuple(remedies_of(image, words.snapshot, words.site))) for image in images]
    told = sentence_of(drift, images, answer, unread)
    return {"answer": word, "sentence": told, "drift": drift, "images": of_images, "unread": unread}


def print_drift(
    drift: Drift,
    images: Sequence[ImageDrift],
    answer: Answer,
    words: Words,
    unread: Sequence[ImageAnswer] = (),
    *,
    verbose: bool,
    quiet: bool = False,
    stderr: bool = False,
) -> None:
    """Print it for a person: images first, then what changed."""
    with screen(verbose=verbose, quiet=quiet, stderr=stderr) as out:
        headline(out, sentence_of(drift, images, answer, unread), whole(answer, unread).severity)
        for line in nodes_of(drift):
            detail(out, line, style="dim")
        for group in groups_of(images, words):
            _print_group(out, group, verbose=verbose)
        print_groups(out, unread, verbose=verbose)
        for change in drift.kinds:
            marked(out, "unknown", f"{change.what}: {change.before or 'none'} -> {change.now or 'none'}")
        if drift.kinds:
            remedies(out, [OF_ONE_KIND])
        for subject, of_subject in itertools.groupby(drift.changes, lambda change: change.subject):
            _print_subject(out, subject, list(of_subject), verbose=verbose)
        if drift.notes:
            out.print()
        for note in drift.notes:
            marked(out, "unknown", note)
        named = (remedy for image in images for remedy in remedies_of(image, words.snapshot, words.site))
        if words.now is None and any(words.snapshot in remedy for remedy in named):
            out.print()
            say(out, "(`lumiimg host scan -o now.json`, here, writes now.json)", style="dim")


def whole(answer: Answer, unread: Sequence[ImageAnswer]) -> Answer:
    """Return the answer for all images: those that cannot be read leave a yes open."""
    return Answer.UNDECIDED if unread and answer is Answer.NO_OBSTACLE else answer


def nodes_of(drift: Drift) -> tuple[str, str]:
    """Return which nodes are compared, in two lines."""
    return f"before: {_node(drift.before)}", f"now:    {_node(drift.now)}"


def sentence_of(drift: Drift, images: Sequence[ImageDrift], answer: Answer, unread: Sequence[ImageAnswer] = ()) -> str:
    """Return the answer for a person."""
    if unread:
        return f"{sentence_of(drift, images, answer)}; {count(len(unread), 'image')} cannot be read"
    if drift.kinds:
        return "CANNOT TELL: these are nodes of different kinds, and what differs is not drift"
    broken = [image for image in images if image.fate is Fate.BREAKS]
    stale = [image for image in images if image.fate is Fate.STALE_BINDS]
    of_all = f"of {count(len(images), 'image')}"
    if broken or stale:
        parts = []
        if broken:
            parts.append(f"{len(broken)} {of_all} {'breaks' if len(broken) == 1 else 'break'}")
        if stale:
            parts.append(f"{len(stale)} {of_all} {'needs' if len(stale) == 1 else 'need'} new binds")
        return "; ".join(parts)
    if not images and drift.lost_fabric:
        return "CANNOT TELL: the newer snapshot has no libfabric that reaches Slingshot; were its modules loaded?"
    if answer is Answer.UNDECIDED:
        unknown = sum(image.fate is Fate.UNKNOWN for image in images)
        return f"CANNOT TELL for {unknown} {of_all}"
    if not drift.changes:
        return "nothing changed in the names, versions and settings that images depend on"
    if answer is Answer.NO:
        return "the host changed in what can break images: name them with --image to know"
    return "the host changed; no image breaks by it" if images else "the host changed, in nothing that breaks images"


def _node(snapshot: Snapshot) -> str:
    parts = [snapshot.host, snapshot.taken[:16].replace("T", " "), snapshot.os.name, f"glibc {snapshot.glibc or '?'}"]
    return printable(" · ".join(filter(None, parts)))


# -- what changed --


def _print_subject(out: Console, subject: Subject, changes: list[NodeChange], *, verbose: bool) -> None:
    heading(out, subject.value)
    shown = sorted(changes, key=lambda change: not change.may_break)
    for change in shown if verbose else shown[:_SHOWN]:
        for number, line in enumerate(lines_of(change)):
            if number == 0:
                mark = "problem" if change.may_break else "info"
                marked(out, mark, line, priority=Priority.REASON if change.may_break else Priority.WELL)
            else:
                detail(out, line, priority=Priority.MORE)
    if not verbose and len(shown) > _SHOWN:
        out.print(f"  and {len(shown) - _SHOWN} more (--verbose)", style="dim", priority=Priority.WELL)


def lines_of(change: NodeChange) -> Iterator[str]:
    """Yield a change in a sentence, and its details in others."""
    what = change.what
    if change.kind in {ChangeKind.GONE, ChangeKind.NEW}:
        yield f"{change.kind.value}: {what}  {change.before or change.now}"
    elif change.before == change.now:
        yield f"{what}  {change.now}"
    else:
        yield f"{what}: {change.before or 'none'} -> {change.now or 'none'}"
    yield from change.details


# -- images --


@dataclass(frozen=True, slots=True)
class DriftGroup:
    """Images of one fate."""

    kind: str
    """The key of its mark."""
    sentence: str
    """Which image, or how many, and what becomes of it."""
    names: tuple[str, ...]
    reasons: tuple[str, ...]
    notes: tuple[str, ...]
    remedies: tuple[Remedy, ...]
    """For the first of them; one is enough."""

    @property
    def whose(self) -> str | None:
        """For which of several images the remedies are; None where there is one."""
        return f"for the first of {len(self.names)}" if len(self.names) > 1 else None


def groups_of(images: Sequence[ImageDrift], words: Words) -> Iterator[DriftGroup]:
    """Yield images of one fate together, the worst first."""
    for _, alike in itertools.groupby(sorted(images, key=_alike), _alike):
        same = list(alike)
        image = same[0]
        who = image.image if len(same) == 1 else count(len(same), "image")
        yield DriftGroup(
            _SEVERITIES[image.fate],
            f"{who}: {_fate(image)}",
            tuple(each.image for each in same),
            tuple(_reasons(image)),
            image.notes,
            tuple(remedies_of(image, words.snapshot, words.site)),
        )


def _alike(image: ImageDrift) -> tuple[int, str, tuple[str, ...]]:
    """Return what images have in common that are shown together; the worst sorts first."""
    return _WORST_FIRST.index(image.fate), _fate(image), (*_reasons(image), *image.notes)


def _print_group(out: Console, group: DriftGroup, *, verbose: bool) -> None:
    out.print()
    marked(out, group.kind, group.sentence, priority=Priority.SENTENCE)
    if len(group.names) > 1:
        names = printable(", ".join(group.names))
        say(out, names if verbose else cut(out, names, INDENT), first=INDENT)
    for line in group.reasons:
        detail(out, line, priority=Priority.MORE if line.startswith(" ") else Priority.REASON)
    for note in group.notes:
        detail(out, f"note: {note}", style="dim")
    remedies(out, group.remedies, first=f"do, {group.whose}" if group.whose else "do", then="or")


def _fate(image: ImageDrift) -> str:
    if image.fate is Fate.STALE_BINDS and image.now.answer is Answer.UNDECIDED:
        return "THE BINDS MADE BEFORE DO NOT HOLD: new binds load, and something else is not known"
    return _SENTENCES[image.fate]


def _reasons(image: ImageDrift) -> Iterator[str]:
    """Yield why it is as it is: both numbers, the chain."""
    if image.fate in {Fate.BREAKS, Fate.BROKEN_BEFORE}:
        for rule in image.refused:
            yield f"{words_of(rule)}  [{rule.id}]"
            if rule.because:
                yield f"  {rule.because}"
    if image.fate in {Fate.UNKNOWN, Fate.STALE_BINDS}:
        for unknown in image.now.rules:
            if unknown.outcome is RuleOutcome.UNKNOWN:
                yield f"{words_of(unknown)}  [{unknown.id}]"
    for rule_of_driver in image.driver:
        if rule_of_driver.outcome.value != "ok":
            yield f"needs {rule_of_driver.need}: {rule_of_driver.have}  [{rule_of_driver.id}]"
            yield f"  {rule_of_driver.because}"
    if image.fate is not Fate.STALE_BINDS:
        return
    for path in image.saved.gone:
        yield f"names {path}, not in today's snapshot: the engine goes past it with a warning, or does not start"
    for target in image.lacks:
        yield f"lacks {target}, which the engine hides now"
    if image.saved.refusal is not None and not image.saved.gone:
        yield f"{image.saved.refusal}"
