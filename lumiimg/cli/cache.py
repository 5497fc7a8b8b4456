"""List, verify and remove what the cache has."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from lumiimg.build.cache import CacheEntry, LayerCache
from lumiimg.catalog.settings import read_settings
from lumiimg.engine.namespaces.unpacked import unpacked_images
from lumiimg.errors import BadInputError, ExitCode
from lumiimg.report import cache as report
from lumiimg.wording import count

_LEAST_DIGITS = 6
"""Of a key."""
_UNITS = {"K": 10, "M": 20, "G": 30, "T": 40}


def execute(arguments: argparse.Namespace) -> int:
    cache = LayerCache(read_settings(os.environ).cache)
    if arguments.action in {"ls", "verify", "prune"} and (newer := len(cache.newer())):
        print(
            f"lumiimg: skipped, and left to the newer lumiimg that wrote it: {count(newer, 'layer')}",
            file=sys.stderr,
        )
    if arguments.action == "ls":
        images = unpacked_images(cache.root)
        report.print_entries(list(cache.entries()), cache.root, images, as_json=arguments.json, quiet=arguments.quiet)
        return ExitCode.GOOD
    if arguments.action == "verify":
        checked = len(list(cache.entries()))
        faults = list(cache.verify())
        report.print_faults(faults, checked, as_json=arguments.json, quiet=arguments.quiet)
        return ExitCode.NO if faults else ExitCode.GOOD
    if arguments.action == "prune":
        removed, unpacked, freed = cache.prune(None if arguments.keep is None else _bytes(arguments.keep))
        report.print_removed(removed, freed, unpacked, as_json=arguments.json, quiet=arguments.quiet)
        return ExitCode.GOOD
    going = _chosen(cache, arguments.layers)
    for entry in going:
        cache.remove(entry.key)
    freed = sum(entry.size_bytes for entry in going)
    report.print_removed([entry.key for entry in going], freed, as_json=arguments.json, quiet=arguments.quiet)
    return ExitCode.GOOD


def _chosen(cache: LayerCache, wanted: Sequence[str]) -> list[CacheEntry]:
    """Return the entries whose layer or key (six digits or more of it) is wanted.

    Raises BadInputError for a name that nothing has.
    """
    entries = list(cache.entries())
    for name in wanted:
        if not any(_is_called(entry, name) for entry in entries):
            raise BadInputError(f"the cache has no {name!r}", hint="lumiimg cache ls")
    return [entry for entry in entries if any(_is_called(entry, name) for name in wanted)]


def _is_called(entry: CacheEntry, name: str) -> bool:
    return name in entry.layers or (len(name) >= _LEAST_DIGITS and entry.key.startswith(name))


def _bytes(text: str) -> int:
    """Return a size as people write it. Raises BadInputError."""
    number, unit = (text[:-1], text[-1].upper()) if text[-1:].upper() in _UNITS else (text, "")
    if not number.isascii() or not number.isdigit() or len(number) > 9:
        raise BadInputError("is not a valid size", where=f"--keep {text}", hint="20G, 500M, or a number of bytes")
    return int(number) << _UNITS.get(unit, 0)
