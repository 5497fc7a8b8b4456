"""Results of several images or jobs: how many had each result, then equal results together, worst first."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from lumiimg.check.run.log_answer import LogAnswer
from lumiimg.core.errors import ExitCode, LumiimgError
from lumiimg.core.findings import NO_ADVICE, Advice
from lumiimg.core.text import address_of, as_operand, count, shell_quote

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from lumiimg.check.pipeline import CheckReport

_COUNTED = {
    ExitCode.NO: "NO for {}",
    ExitCode.BAD_INPUT: "{} cannot be read",
    ExitCode.MISSING_HERE: "{} cannot be checked here",
    ExitCode.UNDECIDED: "CANNOT TELL for {}",
    ExitCode.GOOD: "no obstacle found for {}",
    None: "no RCCL in {}",
}
"""Worst first: a no, then what cannot be read, checked or decided; images that are not for RCCL come last."""
_WORST_FIRST = tuple(_COUNTED)


@dataclass(frozen=True, slots=True)
class ImageAnswer:
    """Result of one of several images."""

    image: str
    """Name as the user gave it."""
    exit_code: ExitCode
    sentence: str
    """The answer as a sentence, or the error."""
    advice: Advice = NO_ADVICE
    """The reason, and what to do."""
    is_without_rccl: bool = False
    """Whether the question does not apply to it; it counts as a no if it is the only image, or all are like it."""

    @classmethod
    def from_report(cls, name: Path, report: CheckReport | LogAnswer) -> ImageAnswer:
        """Return the result of an image that was checked, or of a job whose log was read."""
        if isinstance(report, LogAnswer):
            return cls(str(name), report.exit_code, report.sentence, report.advice)
        is_without = any(found.id == "rccl.absent" and found.where is None for found in report.findings)
        return cls(report.image, report.answer.exit_code, report.sentence, report.advice, is_without)

    @classmethod
    def from_error(cls, image: Path, error: LumiimgError) -> ImageAnswer:
        """Return the result of an image that cannot be read, or cannot be checked here."""
        name = address_of(str(image)) or str(image)
        # a hint that names the file would separate it from equal results
        hint = error.hint and error.hint.replace(shell_quote(as_operand(str(image))), "FILE")
        return cls(name, error.exit_code, "; ".join(filter(None, (error.what, hint))))

    @property
    def fate(self) -> tuple[int, str, str]:
        """The key by which equal results are shown together; the worst sorts first."""
        return _WORST_FIRST.index(self.counted_as), self.sentence, self.advice.why or ""

    @property
    def counted_as(self) -> ExitCode | None:
        """Its exit code among several; None for an image that is not for RCCL."""
        return None if self.is_without_rccl else self.exit_code


@dataclass(frozen=True, slots=True)
class ImageAnswers:
    """Results of several images."""

    answers: tuple[ImageAnswer, ...]
    """Worst first."""
    noun: str = "image"
    """What each answer is about: an image or a job."""

    @classmethod
    def from_answers(cls, answers: Iterable[ImageAnswer], noun: str = "image") -> ImageAnswers:
        """Return the answers, sorted worst first."""
        return cls(tuple(sorted(answers, key=lambda answer: answer.fate)), noun)

    @property
    def exit_code(self) -> ExitCode:
        """Exit code of the worst answer."""
        return self.answers[0].exit_code

    @property
    def sentence(self) -> str:
        """The number of images with each answer, and the total."""
        codes = [answer.counted_as for answer in self.answers]
        first, *others = (code for code in _WORST_FIRST if code in codes)
        counted = _COUNTED | ({ExitCode.GOOD: "yes for {}"} if self.noun == "job" else {})
        parts = [counted[first].format(count(codes.count(first), self.noun))]
        parts += (counted[code].format(codes.count(code)) for code in others)
        return f"{', '.join(parts)} (of {len(codes)})"

    @property
    def alike(self) -> list[tuple[ImageAnswer, ...]]:
        """The answers, grouped by equal fate."""
        return [tuple(same) for _, same in groupby(self.answers, key=lambda answer: answer.fate)]
