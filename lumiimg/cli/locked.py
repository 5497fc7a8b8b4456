"""The lock for `build --locked` and `rebuild`, and its entries that are not from the catalogue."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from lumiimg.catalog.catalogue import open_catalogue
from lumiimg.catalog.settings import read_settings
from lumiimg.catalog.sites import find_site
from lumiimg.cli.choices import mirrors_of
from lumiimg.cli.commands import LOCK
from lumiimg.cli.request import options_of
from lumiimg.core.errors import BadInputError, write_note
from lumiimg.resolve.lock import Lock
from lumiimg.resolve.lock_check import lock_of, outside_catalogue, refuse_untrusted
from lumiimg.resolve.lock_file import read_document


def read_lock(arguments: argparse.Namespace) -> Lock:
    """Read a lock. Raises BadInputError if the command line also makes a request of its own."""
    named = ("base", "recipe", "add", "requirements", "replace", "arg", "source", "fabric", "exclude_newer")
    if given := options_of(arguments).given(*named):
        raise BadInputError(f"{given} and --locked", hint="the lock decides what is built; write it again first")
    path, mirrors = arguments.lock or Path(LOCK), mirrors_of(arguments)
    catalogue = open_catalogue(os.environ, arguments.layers)
    lock = lock_of(read_document(path), [catalogue], mirrors, os.environ.get("PATH"), path)
    if arguments.site is not None and find_site(arguments.site, os.environ).name != lock.site:
        what = f"is for {lock.site or 'no site'}, not for {arguments.site}"
        raise BadInputError(what, where=str(path), hint="write one for it: lumiimg lock")
    note_what_is_from_elsewhere(outside_catalogue(lock, mirrors), path, trusted=arguments.trust_lock)
    lock.bootstrap.refuse_other_file(read_settings(os.environ).cache, write_note)
    return lock


def note_what_is_from_elsewhere(found: Sequence[str], where: Path, *, trusted: bool) -> None:
    """Report entries that are not from the catalogue, if the author is `trusted`. Raises BadInputError otherwise."""
    if not trusted:
        refuse_untrusted(found, where)
    for one in found:
        write_note(f"not from the catalogue, but from {where}: {one}")
