"""What a command answers for several images: equal fates together, the worst first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumiimg.core.errors import ExitCode
from lumiimg.core.findings import Remedy
from lumiimg.core.text import as_operand, count, shell_quote
from lumiimg.report.document import Document, Item, Row, Section, Shown, Table, severity_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lumiimg.check.images import ImageAnswer, ImageAnswers

_LONGEST = 240
"""Characters of a command that names all images of one fate: three lines of a terminal."""
_TAKE_SEVERAL = ("check", "explain")


def images_document(command: str, found: ImageAnswers) -> Document:
    """Return what a command says of several images."""
    severity = severity_of(found.exit_code)
    sections = (
        Section("The images", image_items(found)),
        Section("Image by image", (_table(found),), Shown.PAGE),
    )
    return Document(command, count(len(found.answers), "image"), found.sentence, severity, sections=sections)


def image_items(found: ImageAnswers) -> Iterator[Item]:
    """Yield images of one fate together, the worst first."""
    for same in found.alike:
        first = same[0]
        why, command = (None, None) if first.exit_code is ExitCode.GOOD else (first.advice.why, first.advice.next)
        yield Item(
            severity_of(first.exit_code),
            f"{count(len(same), 'image')}: {first.sentence}",
            names=tuple(answer.image for answer in same),
            why=(why,) if why else (),
            remedies=(_remedy(same, command),) if command else (),
        )


def _remedy(same: Sequence[ImageAnswer], command: str) -> Remedy:
    """Return one command: for all images of a fate where it takes several, else for the first."""
    where = same[0].advice.where
    names = [shell_quote(as_operand(answer.image)) for answer in same]
    for verb in _TAKE_SEVERAL:
        one = f"lumiimg {verb} {names[0]} "
        longer = command.replace(one, f"lumiimg {verb} {' '.join(names)} ")
        if command.count(one) == 1 and "--nodes" not in command and len(longer) <= _LONGEST:
            return Remedy(command=longer, where=where)
    return for_first(Remedy(command=command, where=where), len(same))


def for_first(remedy: Remedy, number: int) -> Remedy:
    """Return a remedy of the first of several that are alike, saying so."""
    if number == 1:
        return remedy
    where = ", ".join(filter(None, (remedy.where, f"for the first of {number}")))
    return Remedy(remedy.text, remedy.command, where)


def _table(found: ImageAnswers) -> Table:
    rows = (
        Row((one.image, one.sentence, one.advice.why or "", one.advice.next or ""), severity_of(one.exit_code))
        for one in found.answers
    )
    return Table(("image", "answer", "why", "next"), tuple(rows), "Each image")
