"""Compare two locks or two images."""

from __future__ import annotations

import argparse
from pathlib import Path

from lumiimg.catalog.settings import user_cache
from lumiimg.cli.output import Output
from lumiimg.core.errors import ExitCode
from lumiimg.core.files import read_beginning
from lumiimg.image import open_image
from lumiimg.image.compare import compare
from lumiimg.report.views.build import changes_document
from lumiimg.report.views.image import differences_document
from lumiimg.resolve.lock_diff import diff_locks


def execute(arguments: argparse.Namespace) -> int:
    """Compare, print, and answer by the exit code: 1 where they differ, as diff(1) does."""
    output = Output.of(arguments)
    if any(is_image(path) for path in (arguments.old, arguments.new)):
        with open_image(arguments.old, user_cache) as old, open_image(arguments.new, user_cache) as new:
            found = compare(old.root, new.root)
        answer = ExitCode.NO if found.files else ExitCode.GOOD
        return output.deliver(differences_document(found), "diff-images", found, answer)
    changes = diff_locks(arguments.old, arguments.new)
    answer = ExitCode.NO if changes.changes else ExitCode.GOOD
    return output.deliver(changes_document(changes), "diff-locks", changes, answer)


def is_image(path: Path) -> bool:
    """Whether a path is an image, by what it begins with: a lock is text."""
    if path.is_dir():
        return True
    try:
        return b"\0" in read_beginning(path, 4096)
    except OSError:  # whoever reads it says so
        return False
