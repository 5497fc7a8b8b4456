"""List, verify and remove the contents of the cache."""

from __future__ import annotations

import argparse
import os

from lumiimg.build.cache import LayerCache, cache_content, prune, remove, verify
from lumiimg.catalog.settings import read_settings
from lumiimg.cli.output import Output
from lumiimg.core.errors import BadInputError, write_note
from lumiimg.core.text import count
from lumiimg.report.views.cache import entries_document, faults_document, removed_document

_UNITS = {"K": 10, "M": 20, "G": 30, "T": 40}


def execute(arguments: argparse.Namespace) -> int:
    cache = LayerCache(read_settings(os.environ).cache)
    if arguments.action in {"ls", "verify", "prune"} and (newer := len(cache.newer())):
        write_note(f"skipped, as a newer lumiimg wrote them: {count(newer, 'layer')}")
    output = Output.from_arguments(arguments)
    if arguments.action == "ls":
        content = cache_content(cache)
        return output.deliver(entries_document(content), "cache", content)
    if arguments.action == "verify":
        verified = verify(cache)
        return output.deliver(faults_document(verified), "cache-verify", verified, verified.exit_code)
    if arguments.action == "prune":
        removed = prune(cache, None if arguments.keep is None else _bytes(arguments.keep))
    else:
        removed = remove(cache, arguments.layers)
    return output.deliver(removed_document(removed), "cache-removed", removed)


def _bytes(text: str) -> int:
    """Return the number of bytes for a size such as 20G. Raises BadInputError."""
    number, unit = (text[:-1], text[-1].upper()) if text[-1:].upper() in _UNITS else (text, "")
    if not number.isascii() or not number.isdigit() or len(number) > 9:
        raise BadInputError("is not a valid size", where=f"--keep {text}", hint="20G, 500M, or a number of bytes")
    return int(number) << _UNITS.get(unit, 0)
