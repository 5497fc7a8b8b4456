"""Compare two locks or two images."""

from __future__ import annotations

import argparse
from pathlib import Path

from lumiimg.catalog.settings import user_cache
from lumiimg.errors import ExitCode
from lumiimg.files import read_beginning
from lumiimg.image import open_image
from lumiimg.image.compare import compare, compared
from lumiimg.report.build import print_changes
from lumiimg.report.image import print_differences
from lumiimg.resolve.lock_diff import changes, entries
from lumiimg.resolve.lockfile import read_document


def execute(arguments: argparse.Namespace) -> int:
    """Compare, print, and answer by the exit code: 1 where they differ, as diff(1) does."""
    if any(is_image(path) for path in (arguments.old, arguments.new)):
        with open_image(arguments.old, user_cache) as old, open_image(arguments.new, user_cache) as new:
            differences = list(compare(old.root, new.root))
            told = compared(old.root, new.root)
        print_differences(differences, told, as_json=arguments.json, quiet=arguments.quiet)
        return ExitCode.NO if differences else ExitCode.GOOD
    found = changes(*(entries(read_document(path), path) for path in (arguments.old, arguments.new)))
    print_changes(found, as_json=arguments.json, quiet=arguments.quiet)
    return ExitCode.NO if found else ExitCode.GOOD


def is_image(path: Path) -> bool:
    """Whether a path is an image, by what it begins with: a lock is text."""
    if path.is_dir():
        return True
    try:
        return b"\0" in read_beginning(path, 4096)
    except OSError:  # whoever reads it says so
        return False
