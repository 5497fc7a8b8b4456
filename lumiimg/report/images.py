"""What a command says of several images: how many of each fate, then equal fates together, the worst first."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING

from lumiimg.errors import ExitCode, printable
from lumiimg.findings import NO_ADVICE, Advice
from lumiimg.report.console import INDENT, Console, Priority, cut, detail, marked, next_step, say
from lumiimg.wording import count, operand, word

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumiimg.report.views.images import ImageAnswer


_KINDS = {ExitCode.NO: "problem", ExitCode.GOOD: "ok"}
_LONGEST = 240
"""Characters of a command that names all images of one fate: three lines of a terminal."""
_TAKE_SEVERAL = ("check", "explain")


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


def kind_of(code: ExitCode) -> str:
    """Return the key of the mark of an answer."""
    return _KINDS.get(code, "unknown")


def groups_of(answers: Sequence[ImageAnswer]) -> tuple[ImageGroup, ...]:
    """Return images by their fate, the worst first."""
    ordered = sorted(answers, key=lambda answer: answer.fate)
    return tuple(ImageGroup(tuple(same)) for _, same in groupby(ordered, key=lambda answer: answer.fate))


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
