"""What `lumiimg check` says of several images: how many of each fate, then equal fates together, the worst first."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from lumiimg.errors import ExitCode, printable
from lumiimg.findings import NO_ADVICE, Advice
from lumiimg.report.console import INDENT, console, cut, detail, headline, marked, next_step
from lumiimg.wording import count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumiimg.check.answer import CheckReport

_WORST_FIRST = (ExitCode.NO, ExitCode.BAD_INPUT, ExitCode.MISSING_HERE, ExitCode.UNDECIDED, ExitCode.GOOD)
_KINDS = {ExitCode.NO: "problem", ExitCode.GOOD: "ok"}
_COUNTED = {
    ExitCode.NO: "NO for {}",
    ExitCode.BAD_INPUT: "{} cannot be read",
    ExitCode.MISSING_HERE: "{} cannot be checked here",
    ExitCode.UNDECIDED: "CANNOT TELL for {}",
    ExitCode.GOOD: "no obstacle found for {}",
}


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


def answer_of(report: CheckReport) -> ImageAnswer:
    """Return what came of an image that was checked."""
    return ImageAnswer(report.image, report.answer.exit_code, report.sentence, report.advice)


def worst(answers: Sequence[ImageAnswer]) -> ExitCode:
    """Return the exit code of the worst: a no before what cannot be read, checked or told."""
    return min((answer.exit_code for answer in answers), key=_WORST_FIRST.index)


def print_images(answers: Sequence[ImageAnswer], *, verbose: bool, quiet: bool = False, stderr: bool = False) -> None:
    """Print it for a person."""
    out = console(stderr=stderr, quiet=quiet)
    code = worst(answers)
    headline(out, _counts(answers), _KINDS.get(code, "unknown"))
    for _, group in groupby(sorted(answers, key=lambda answer: answer.fate), key=lambda answer: answer.fate):
        same = list(group)
        first = same[0]
        out.print()
        marked(out, _KINDS.get(first.exit_code, "unknown"), f"{count(len(same), 'image')}: {first.sentence}")
        if first.advice.why and first.exit_code is not ExitCode.GOOD:
            detail(out, f"why: {first.advice.why}")
        names = printable(", ".join(answer.image for answer in same))
        detail(out, names if verbose else cut(out, names, INDENT))
        if first.exit_code is not ExitCode.GOOD:
            next_step(out, first.advice)


def _counts(answers: Sequence[ImageAnswer]) -> str:
    """Return how many images had which answer, of how many."""
    codes = [answer.exit_code for answer in answers]
    parts = [
        _COUNTED[code].format(count(codes.count(code), "image") if number == 0 else codes.count(code))
        for number, code in enumerate(code for code in _WORST_FIRST if code in codes)
    ]
    return f"{', '.join(parts)} (of {len(answers)})"
