"""Compare two images."""

from __future__ import annotations

import argparse

from lumiimg.catalog.settings import user_cache
from lumiimg.cli.output import Output
from lumiimg.core.errors import ExitCode
from lumiimg.image import open_image
from lumiimg.image.compare import compare
from lumiimg.report.read_progress import ReadProgress
from lumiimg.report.views.image import differences_document


def execute(arguments: argparse.Namespace) -> int:
    """Compare the images and print the differences; the exit code is 1 if they differ, as with diff(1)."""
    progress = ReadProgress(quiet=arguments.quiet, what="compared files:", shown="{:,}".format)
    with open_image(arguments.old, user_cache) as old, open_image(arguments.new, user_cache) as new:
        try:
            found = compare(old.root, new.root, progress)
        finally:
            progress.close()
    answer = ExitCode.NO if found.files else ExitCode.GOOD
    return Output.from_arguments(arguments).deliver(differences_document(found), "diff-images", found, answer)
