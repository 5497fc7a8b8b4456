"""Answer of a command for several images or jobs: equal results together, the worst first."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from lumiimg.core.errors import ExitCode
from lumiimg.core.findings import NO_ADVICE, Advice, Remedy, Severity
from lumiimg.core.text import address_of, as_operand, count, shell_join, shell_quote, with_folder
from lumiimg.report.document import Document, Item, Row, Section, Shown, Table, severity_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from lumiimg.check.images import ImageAnswer, ImageAnswers

_LONGEST = 800
"""Maximum length of a command that names all images with the same result: ten lines of a terminal."""
_FEW = 3
"""Maximum number of commands for images with the same result."""
_HERE = '"$(basename "$image" .sif)"'
_OUTPUT = '"${image%.sif}"'
"""Beginning of the file name that each loop iteration writes: the image's name here, or its path without `.sif`."""
_TAKE_SEVERAL = ("check", "explain")
_NOT_WELL = frozenset({Severity.PROBLEM, Severity.UNKNOWN})


def images_document(command: str, found: ImageAnswers) -> Document:
    """Return the answer of a command for several images or jobs."""
    items = tuple(image_items(found))
    return Document(
        command,
        count(len(found.answers), found.noun),
        found.sentence,
        severity_of(found.exit_code),
        first_step(items) if found.noun == "image" else NO_ADVICE,  # a command for a job does not name the job
        sections=(
            Section(f"The {found.noun}s", items),
            Section(f"{found.noun.capitalize()} by {found.noun}", (_table(found),), Shown.PAGE),
        ),
    )


def first_step(items: Iterable[Item]) -> Advice:
    """Return the first command among the remedies for images that are not well."""
    steps = (step for item in items if item.severity in _NOT_WELL for step in item.remedies if step.command)
    return next((Advice(next=step.command, where=step.where) for step in steps), NO_ADVICE)


def image_items(found: ImageAnswers) -> Iterator[Item]:
    """Yield images with the same result together, the worst first."""
    for same in found.alike:
        first = same[0]
        why, command = (None, None) if first.exit_code is ExitCode.GOOD else (first.advice.why, first.advice.next)
        yield Item(
            severity_of(first.exit_code),
            f"{count(len(same), found.noun)}: {first.sentence}",
            names=tuple(answer.image for answer in same),
            why=(why,) if why else (),
            remedies=_remedies(same, command) if command else (),
        )


def _remedies(same: Sequence[ImageAnswer], command: str) -> tuple[Remedy, ...]:
    """Return one command for all images with the same result if there is one, else as few as possible."""
    names = [shell_quote(as_operand(answer.image)) for answer in same]
    for verb in _TAKE_SEVERAL:
        one = f"lumiimg {verb} {names[0]} "
        longer = command.replace(one, f"lumiimg {verb} {' '.join(names)} ")
        if command.count(one) == 1 and "--nodes" not in command and len(longer) <= _LONGEST:
            return (Remedy(command=longer, where=same[0].advice.where),)
    return loop_over_images(
        [answer.image for answer in same],
        [Remedy(command=answer.advice.next, where=answer.advice.where) for answer in same],
    )


def loop_over_images(images: Sequence[str], remedies: Sequence[Remedy]) -> tuple[Remedy, ...]:
    """Return the remedies of similar images; those that differ only in the image's name become a shell loop.

    If there are more than a few, only the first one is returned, marked as such.
    """
    alike: dict[str, list[tuple[str, Remedy]]] = {}
    for image, remedy in zip(images, remedies, strict=True):
        command = remedy.command or ""
        alike.setdefault(_in_loop(command, image) or command, []).append((image, remedy))
    if len(alike) > _FEW:
        return (_for_the_first(len(images), remedies[0]),)
    return tuple(_for_these(body, same, len(images)) for body, same in alike.items())


def _for_these(body: str, same: Sequence[tuple[str, Remedy]], number: int) -> Remedy:
    """Return one remedy for some of `number` similar images; `body` is the body of the loop, or the command."""
    images, first = [image for image, _ in same], same[0][1]
    names = " ".join(shell_quote(with_folder(image)) for image in images)
    if body == (first.command or "") or len(images) == 1:
        return first if len(images) == number else _limited_to(", ".join(images), first)
    for turn in (body, body.replace(f" -o {_HERE}", f" -o {_OUTPUT}")):
        loop = f"for image in {names}; do {turn}; done"
        if len(loop) <= _LONGEST and _are_new(turn, images):
            return Remedy(first.text, loop, first.where)
    return _for_the_first(len(images), first)


def _for_the_first(number: int, remedy: Remedy) -> Remedy:
    return _limited_to(f"the first of {number}", remedy)


def _limited_to(which: str, remedy: Remedy) -> Remedy:
    return Remedy(remedy.text, remedy.command, ", ".join(filter(None, (remedy.where, f"for {which}"))))


def _are_new(turn: str, images: Sequence[str]) -> bool:
    """Return whether each loop iteration writes a file of its own that does not exist yet and can be created."""
    _, is_written, file = turn.partition(" -o ")
    if not is_written:
        return True
    is_beside = file.startswith(_OUTPUT)
    end = file.removeprefix(_OUTPUT if is_beside else _HERE).split()[0]
    written = {f"{with_folder(image).removesuffix('.sif') if is_beside else _stem(image)}{end}" for image in images}
    is_free = all(not os.path.lexists(one) and os.access(Path(one).parent, os.W_OK) for one in written)
    return is_free and len(written) == len(images) and not any(one.startswith("-") for one in written)


def _stem(image: str) -> str:
    return Path(image).name.removesuffix(".sif")


def _in_loop(command: str, image: str) -> str:
    """Return a command with `$image` for its image and an output file of its own; empty if it is not that simple."""
    words = shlex.split(command)
    places = [number for number, word in enumerate(words) if word in {image, with_folder(image)}]
    if shell_join(words) != command or len(places) != 1 or address_of(image):
        return ""
    parts = [shell_quote(word) for word in words]
    parts[places[0]] = '"$image"'
    if "-o" in words:
        number = words.index("-o") + 1
        parts[number] = f"{_HERE}-{shell_quote(words[number].removeprefix('./').removeprefix(f'{_stem(image)}-'))}"
    return " ".join(parts)


def _table(found: ImageAnswers) -> Table:
    rows = (
        Row((one.image, one.sentence, one.advice.why or "", one.advice.next or ""), severity_of(one.exit_code))
        for one in found.answers
    )
    return Table(("image", "answer", "why", "next"), tuple(rows), f"Each {found.noun}")
