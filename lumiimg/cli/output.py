"""Output of answers, the same for all commands: text for people, JSON, an HTML page, JUnit."""

from __future__ import annotations

import contextlib
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lumiimg.core.errors import ExitCode, LumiimgError, say
from lumiimg.core.files import refuse_places, write_text
from lumiimg.report.text import show

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Collection, Iterator, Sequence

    from lumiimg.check.pipeline import CheckReport
    from lumiimg.check.run.log_answer import LogAnswer
    from lumiimg.report.document import Document


_SOON_S = 5.0
"""Interval between progress lines."""


@dataclass(frozen=True, slots=True)
class Output:
    """The requested forms of an answer, and their destinations."""

    json: bool = False
    """Whether JSON goes to standard output; text then goes to standard error."""
    quiet: bool = False
    """Whether the text is only the answer's sentence."""
    verbose: bool = False
    html: Path | None = None
    junit: Path | None = None

    @classmethod
    def from_arguments(cls, arguments: argparse.Namespace, reads: Collection[Path | None] = ()) -> Output:
        """Return the output that a command's options request; it must not overwrite files that the command `reads`.

        Raises BadInputError for a path that cannot be written.
        """
        given = vars(arguments)
        html, junit = given.get("html"), given.get("junit")
        refuse_places({"--html": html, "--junit": junit}, reads)
        return cls(
            json=given.get("json", False),
            quiet=given.get("quiet", False),
            verbose=given.get("verbose", False),
            html=html,
            junit=junit,
        )

    def deliver(self, document: Document, kind: str, value: object, code: ExitCode = ExitCode.GOOD) -> ExitCode:
        """Write an answer in all requested forms, with `kind` naming the kind of its JSON; return the exit code."""
        self.write_files(document)
        self.as_json(kind, value)
        self.show(document)
        return code

    def as_json(self, kind: str, value: object) -> bool:
        """Print JSON of this kind if requested; return whether it was."""
        if self.json:
            from lumiimg.report.json_output import write_json  # imported only if needed

            write_json(kind, value)
        return self.json

    def show(self, document: Document) -> None:
        """Print the text; with JSON, which is complete, a full or closed standard error is ignored."""
        with contextlib.suppress(OSError) if self.json else contextlib.nullcontext():
            show(document, verbose=self.verbose, quiet=self.quiet, stderr=self.json)

    def write_files(self, document: Document) -> None:
        """Write the page and JUnit, if requested."""
        if self.html is not None:
            from lumiimg.report.page import to_page

            write_text(self.html, to_page(document))
        if self.junit is not None:
            from lumiimg.report.junit import junit_text

            write_text(self.junit, junit_text(document))

    def each(
        self,
        command: str,
        kind: str,
        images: Sequence[Path],
        check: Callable[[Path], CheckReport] | Callable[[Path], LogAnswer],
        noun: str = "image",
    ) -> ExitCode:
        """Answer for several images or jobs one by one, and return the exit code of the worst.

        Each result of `check` is printed as one line of JSON of this kind.
        An unreadable image or job does not prevent answers for the others.
        """
        from lumiimg.check.images import ImageAnswer, ImageAnswers
        from lumiimg.cli.suggestions import add_suggestion
        from lumiimg.report.views.images import images_document

        answers: list[ImageAnswer] = []
        for image in how_far(images, noun):
            try:
                report = check(image)
                if self.json:
                    from lumiimg.report.json_output import write_json_line

                    write_json_line(kind, report)
                answers.append(ImageAnswer.from_report(image, report))
            except LumiimgError as error:
                add_suggestion(error)
                answers.append(ImageAnswer.from_error(image, error))
        found = ImageAnswers.from_answers(answers, noun)
        document = images_document(command, found)
        self.write_files(document)
        self.show(document)
        return found.exit_code


def how_far(images: Sequence[Path], noun: str = "image") -> Iterator[Path]:
    """Yield images or jobs; on a terminal, print now and then how many have been read."""
    is_watched, printed_at = sys.stderr.isatty(), time.monotonic()
    for number, image in enumerate(images):
        if is_watched and number and time.monotonic() - printed_at > _SOON_S:
            printed_at = time.monotonic()
            say(f"{number} of {len(images)} {noun}s are read")
        yield image


def output_of(arguments: argparse.Namespace) -> Path:
    """Return the path of the image that a build writes."""
    recipe = vars(arguments).get("recipe")
    return vars(arguments).get("output") or Path(f"{Path(recipe).stem if recipe else 'image'}.sif")
