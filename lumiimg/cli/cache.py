"""List, verify and remove what the cache has."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from lumiimg.build.cache import CacheEntry, LayerCache
from lumiimg.catalog.settings import read_settings
from lumiimg.cli.output import Output
from lumiimg.engine.namespaces.unpacked import unpacked_images
from lumiimg.errors import BadInputError, ExitCode
from lumiimg.report.json_builds import CacheContent, CacheFault, CacheRemoved, CacheVerified
from lumiimg.report.views.cache import entries_document, faults_document, removed_document
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
    output = Output.of(arguments)
    if arguments.action == "ls":
        entries, images = tuple(cache.entries()), tuple(unpacked_images(cache.root))
        total = sum(each.size_bytes for each in entries) + sum(each.size_bytes for each in images)
        content = CacheContent(cache.root, total, entries, images)
        return output.deliver(entries_document(content), "cache", content, ExitCode.GOOD)
    if arguments.action == "verify":
        verified = CacheVerified(len(list(cache.entries())), tuple(CacheFault(*fault) for fault in cache.verify()))
        code = ExitCode.NO if verified.faults else ExitCode.GOOD
        return output.deliver(faults_document(verified), "cache-verify", verified, code)
    if arguments.action == "prune":
        keys, images_gone, freed = cache.prune(None if arguments.keep is None else _bytes(arguments.keep))
        removed = CacheRemoved(tuple(keys), tuple(images_gone), freed)
    else:
        going = _chosen(cache, arguments.layers)
        for entry in going:
            cache.remove(entry.key)
        removed = CacheRemoved(tuple(entry.key for entry in going), (), sum(entry.size_bytes for entry in going))
    return output.deliver(removed_document(removed), "cache-removed", removed, ExitCode.GOOD)


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
