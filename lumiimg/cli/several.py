"""Several images in one command: one after the other, then all answers together."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from lumiimg.errors import LumiimgError, printable

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable
    from pathlib import Path

    from lumiimg.report.images import ImageAnswer

_SOON_S = 5.0
"""Between two lines that say how far it is."""


def answer_each(command: str, arguments: argparse.Namespace, answer: Callable[[Path], ImageAnswer]) -> int:
    """Print what came of each image, and return the exit code of the worst.

    One that cannot be read does not keep the others from it.
    """
    from lumiimg.report.images import of_error, print_images, worst

    answers: list[ImageAnswer] = []
    told_at = time.monotonic()
    for image in arguments.images:
        try:
            answers.append(answer(image))
        except LumiimgError as error:
            answers.append(of_error(image, error))
        if time.monotonic() - told_at > _SOON_S:
            told_at = time.monotonic()
            print(printable(f"{len(answers)} of {len(arguments.images)} images are read"), file=sys.stderr, flush=True)
    if arguments.html:
        from lumiimg.files import write_text
        from lumiimg.report.html.images import images_page

        write_text(arguments.html, images_page(command, answers))
    print_images(answers, verbose=arguments.verbose, quiet=arguments.quiet, stderr=arguments.json)
    return worst(answers)
