"""What a command says of several images: how many of each fate, then equal fates together, the worst first."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING

from lumiimg.errors import ExitCode, LumiimgError, printable
from lumiimg.findings import NO_ADVICE, Advice
from lumiimg.report.boundary import sentence
from lumiimg.report.console import INDENT, Console, Priority, cut, detail, headline, marked, next_step, say, screen
from lumiimg.wording import count, operand, word

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from lumiimg.check.answer import CheckReport
    from lumiimg.check.static.boundary import Boundary

_WORST_FIRST = (ExitCode.NO, ExitCode.BAD_INPUT, ExitCode.MISSING_HERE, ExitCode.UNDECIDED, ExitCode.GOOD)
_KINDS = {ExitCode.NO: "problem", ExitCode.GOOD: "ok"}
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
    exit_code: ExitCode
    sentence: str
    advice: Advice = NO_ADVICE
    """Why, and what to do."""

    @property
    def fate(self) -> tuple[int, str, str]:
        """What images have in common that are shown together; the worst sorts first."""
        return _WORST_FIRST.index(self.exit_code), self.sentence, self.advice.why or ""


@dataclass(frozen=True, slots=True)
class ImageGroup:
    """Images of one fate."""

    answers: tuple[ImageAnswer, ...]

    @property
    def kind(self) -> str:
        """The key of its mark."""
        return kind_of(self.answers[0].exit_code)

    @property
    def sentence(self) -> str:
        """How many there are, and what came of them."""
        return f"{count(len(self.answers), 'image')}: {self.answers[0].sentence}"

    @property
    def names(self) -> tuple[str, ...]:
        """The images, as they were named."""
        return tuple(answer.image for answer in self.answers)

    @property
    def advice(self) -> Advice:
        """Why, and one command: for all of them where it takes several and is not too long, else for the first."""
        first = self.answers[0]
        if first.exit_code is ExitCode.GOOD:
            return NO_ADVICE
        if len(self.answers) == 1 or first.advice.next is None:
            return first.advice
        for verb in _TAKE_SEVERAL:
            one, of_all = (
                f"lumiimg {verb} {' '.join(word(operand(name)) for name in names)}"
                for names in ([first.image], self.names)
            )
            command = first.advice.next.replace(f"{one} ", f"{of_all} ")
            if first.advice.next.count(f"{one} ") == 1 and "--nodes" not in command and len(command) <= _LONGEST:
                return replace(first.advice, next=command)
        where = f"for the first of {len(self.answers)}"
        return replace(first.advice, where=f"{first.advice.where}, {where}" if first.advice.where else where)


def of_check(report: CheckReport) -> ImageAnswer:
    """Return what came of an image that was checked."""
    return ImageAnswer(report.image, report.answer.exit_code, report.sentence, report.advice)


def of_boundary(boundary: Boundary) -> ImageAnswer:
    """Return what came of an image that was looked at beside a machine."""
    return ImageAnswer(boundary.image, boundary.decision.exit_code, sentence(boundary), boundary.advice)


def of_error(image: Path, error: LumiimgError) -> ImageAnswer:
    """Return what came of an image that cannot be read, or not here."""
    return ImageAnswer(str(image), error.exit_code, "; ".join(filter(None, (error.what, error.hint))))


def worst(answers: Sequence[ImageAnswer]) -> ExitCode:
    """Return the exit code of the worst: a no before what cannot be read, checked or told."""
    return min((answer.exit_code for answer in answers), key=_WORST_FIRST.index)


def kind_of(code: ExitCode) -> str:
    """Return the key of the mark of an answer."""
    return _KINDS.get(code, "unknown")


def groups_of(answers: Sequence[ImageAnswer]) -> tuple[ImageGroup, ...]:
    """Return images by their fate, the worst first."""
    ordered = sorted(answers, key=lambda answer: answer.fate)
    return tuple(ImageGroup(tuple(same)) for _, same in groupby(ordered, key=lambda answer: answer.fate))


def print_images(answers: Sequence[ImageAnswer], *, verbose: bool, quiet: bool = False, stderr: bool = False) -> None:
    with screen(verbose=verbose, quiet=quiet, stderr=stderr) as out:
        headline(out, counted(answers), kind_of(worst(answers)))
        print_groups(out, answers, verbose=verbose)


def print_groups(out: Console, answers: Sequence[ImageAnswer], *, verbose: bool) -> None:
    """Print images of one fate together."""
    for group in groups_of(answers):
        out.print()
        marked(out, group.kind, group.sentence, priority=Priority.SENTENCE)
        if group.advice.why:
            detail(out, f"why: {group.advice.why}")
        names = printable(", ".join(group.names))
        say(out, names if verbose else cut(out, names, INDENT), first=INDENT)
        next_step(out, group.advice)


def counted(answers: Sequence[ImageAnswer]) -> str:
    """Return how many images had which answer, of how many."""
    codes = [answer.exit_code for answer in answers]
    parts = [
        _COUNTED[code].format(count(codes.count(code), "image") if number == 0 else codes.count(code))
        for number, code in enumerate(code for code in _WORST_FIRST if code in codes)
    ]
    return f"{', '.join(parts)} (of {len(answers)})"
