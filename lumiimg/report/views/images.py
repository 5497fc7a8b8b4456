"""What a command answers for several images: how many of each fate, then equal fates together, the worst first."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from lumiimg.errors import ExitCode, LumiimgError
from lumiimg.findings import NO_ADVICE, Advice, Remedy, Severity
from lumiimg.report.document import Document, Item, Row, Section, Shown, Table, severity_of
from lumiimg.wording import count, operand, word

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from lumiimg.check.pipeline import CheckReport

_WORST_FIRST = (ExitCode.NO, ExitCode.BAD_INPUT, ExitCode.MISSING_HERE, ExitCode.UNDECIDED, ExitCode.GOOD)
_COUNTED = {
    ExitCode.NO: "NO for {}",
    ExitCode.BAD_INPUT: "{} cannot be read",
    ExitCode.MISSING_HERE: "{} cannot be checked here",
    ExitCode.UNDECIDED: "CANNOT TELL for {}",
    ExitCode.GOOD: "no obstacle found for {}",
}
_LONGEST = 240
"""Characters of a command that names all images of one fate: three lines of a terminal."""
_TAKE_SEVERAL = ("check", "explain")


@dataclass(frozen=True, slots=True)
class ImageAnswer:
    """What came of one of several images."""

    image: str
    """As it was named."""
    exit_code: ExitCode
    sentence: str
    """What is wrong with it."""
    advice: Advice = NO_ADVICE
    """Why, and what to do."""

    @property
    def fate(self) -> tuple[int, str, str]:
        """What images have in common that are shown together; the worst sorts first."""
        return _WORST_FIRST.index(self.exit_code), self.sentence, self.advice.why or ""

    @property
    def severity(self) -> Severity:
        """How it is marked where it is shown."""
        return severity_of(self.exit_code)


def of_check(report: CheckReport) -> ImageAnswer:
    """Return what came of an image that was checked."""
    return ImageAnswer(report.image, report.answer.exit_code, report.sentence, report.advice)


def of_error(image: Path, error: LumiimgError) -> ImageAnswer:
    """Return what came of an image that cannot be read, or not here."""
    return ImageAnswer(str(image), error.exit_code, "; ".join(filter(None, (error.what, error.hint))))


def worst(answers: Sequence[ImageAnswer]) -> ExitCode:
    """Return the exit code of the worst: a no before what cannot be read, checked or decided."""
    return min((answer.exit_code for answer in answers), key=_WORST_FIRST.index)


def images_document(command: str, answers: Sequence[ImageAnswer]) -> Document:
    """Return what a command says of several images."""
    return Document(
        command=command,
        subject=count(len(answers), "image"),
        severity=severity_of(worst(answers)),
        sentence=counted(answers),
        sections=(
            Section("The images", image_items(answers)),
            Section("Image by image", (_table(answers),), Shown.PAGE),
        ),
    )


def image_items(answers: Sequence[ImageAnswer]) -> tuple[Item, ...]:
    """Return images of one fate together, the worst first."""
    ordered = sorted(answers, key=lambda answer: answer.fate)
    return tuple(_item(tuple(same)) for _, same in groupby(ordered, key=lambda answer: answer.fate))


def counted(answers: Sequence[ImageAnswer]) -> str:
    """Return how many images had which answer, of how many."""
    codes = [answer.exit_code for answer in answers]
    parts = [
        _COUNTED[code].format(count(codes.count(code), "image") if number == 0 else codes.count(code))
        for number, code in enumerate(code for code in _WORST_FIRST if code in codes)
    ]
    return f"{', '.join(parts)} (of {len(answers)})"


def _item(same: Sequence[ImageAnswer]) -> Item:
    first = same[0]
    is_good = first.exit_code is ExitCode.GOOD
    return Item(
        first.severity,
        f"{count(len(same), 'image')}: {first.sentence}",
        names=tuple(answer.image for answer in same),
        why=(first.advice.why,) if first.advice.why and not is_good else (),
        remedies=(_remedy(same, first.advice.next),) if first.advice.next and not is_good else (),
    )


def _remedy(same: Sequence[ImageAnswer], command: str) -> Remedy:
    """Return one command: for all images of a fate where it takes several, else for the first."""
    found = Remedy(command=command, where=same[0].advice.where)
    for verb in _TAKE_SEVERAL:
        names = [word(operand(answer.image)) for answer in same]
        one, of_all = f"lumiimg {verb} {names[0]} ", f"lumiimg {verb} {' '.join(names)} "
        longer = command.replace(one, of_all)
        if command.count(one) == 1 and "--nodes" not in command and len(longer) <= _LONGEST:
            return Remedy(command=longer, where=found.where)
    return for_first(found, len(same))


def for_first(remedy: Remedy, number: int) -> Remedy:
    """Return a remedy of the first of several that are alike, saying so."""
    where = f"for the first of {number}"
    if number == 1:
        return remedy
    return Remedy(remedy.text, remedy.command, f"{remedy.where}, {where}" if remedy.where else where)


def _table(answers: Sequence[ImageAnswer]) -> Table:
    rows = (
        Row((one.image, one.sentence, one.advice.why or "", one.advice.next or ""), one.severity)
        for one in sorted(answers, key=lambda answer: answer.fate)
    )
    return Table(("image", "answer", "why", "next"), tuple(rows), "Each image", what="images")
