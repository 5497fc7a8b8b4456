"""What a command answers for several images: equal fates together, the worst first."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from lumiimg.core.errors import ExitCode
from lumiimg.core.findings import Remedy
from lumiimg.core.text import address_of, as_operand, count, shell_join, shell_quote
from lumiimg.report.document import Document, Item, Row, Section, Shown, Table, severity_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lumiimg.check.images import ImageAnswer, ImageAnswers

_LONGEST = 800
"""Characters of a command that names all images of one fate: ten lines of a terminal."""
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
    """Return one command for all images of a fate, where there is one."""
    names = [shell_quote(as_operand(answer.image)) for answer in same]
    for verb in _TAKE_SEVERAL:
        one = f"lumiimg {verb} {names[0]} "
        longer = command.replace(one, f"lumiimg {verb} {' '.join(names)} ")
        if command.count(one) == 1 and "--nodes" not in command and len(longer) <= _LONGEST:
            return Remedy(command=longer, where=same[0].advice.where)
    return for_all(
        [answer.image for answer in same],
        [Remedy(command=answer.advice.next, where=answer.advice.where) for answer in same],
    )


def for_all(images: Sequence[str], remedies: Sequence[Remedy]) -> Remedy:
    """Return the remedies of images that are alike as one: a loop of the shell, else that of the first, saying so."""
    first = remedies[0]
    if len(images) == 1:
        return first
    bodies = {_in_loop(one.command or "", image) for one, image in zip(remedies, images, strict=True)}
    names = " ".join(shell_quote(_with_folder(image)) for image in images)
    (body, *others) = bodies
    loop = f"for image in {names}; do {body}; done"
    if body and not others and len(loop) <= _LONGEST:
        return Remedy(first.text, loop, first.where)
    where = ", ".join(filter(None, (first.where, f"for the first of {len(images)}")))
    return Remedy(first.text, first.command, where)


def _in_loop(command: str, image: str) -> str:
    """Return a command with `$image` for its image and a file of its own to write; empty: not that simple."""
    words = shlex.split(command)
    places = [number for number, word in enumerate(words) if word in {image, _with_folder(image)}]
    if shell_join(words) != command or len(places) != 1 or address_of(image):
        return ""
    parts = [shell_quote(word) for word in words]
    parts[places[0]] = '"$image"'
    if "-o" in words:
        number = words.index("-o") + 1
        parts[number] = f'"$(basename "$image" .sif)"-{parts[number]}'
    return " ".join(parts)


def _with_folder(image: str) -> str:
    """Return the path of an image as all commands take it, also where a name alone is one of the catalogue."""
    return image if "/" in image else f"./{image}"


def _table(found: ImageAnswers) -> Table:
    rows = (
        Row((one.image, one.sentence, one.advice.why or "", one.advice.next or ""), severity_of(one.exit_code))
        for one in found.answers
    )
    return Table(("image", "answer", "why", "next"), tuple(rows), "Each image")
