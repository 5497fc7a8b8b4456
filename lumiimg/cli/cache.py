"""Manage the layers that were built before, images that were unpacked where
there is no FUSE, and layers of OCI images that were unpacked to be read. The
cache may be deleted at any time. LUMIIMG_CACHE, or `cache` in config.toml,
names its folder.

examples:
  lumiimg cache ls
  lumiimg cache prune --keep 20G          # the longest unused go first
  lumiimg cache rm "vllm (compiled)"      # it is compiled again the next time

exit codes: 0 done · 1 `verify` found an entry that is not what it was
            2 no such entry
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from lumiimg.cli.options import add_json, add_quiet
from lumiimg.errors import BadInputError, ExitCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumiimg.build.cache import CacheEntry, LayerCache

_LEAST_DIGITS = 6
"""Of a key."""
_UNITS = {"K": 10, "M": 20, "G": 30, "T": 40}


def configure_parser(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="commands", metavar="COMMAND", dest="action", required=True)
    listing = actions.add_parser("ls", help="list its contents")
    verify = actions.add_parser("verify", help="read everything and verify the digest of each layer")
    prune = actions.add_parser("prune", help="remove damaged layers, then others until the cache is small enough")
    prune.add_argument(
        "--keep", metavar="SIZE", default=None, help="size to keep: 20G, 500M, 0 (default: all undamaged layers)"
    )
    rm = actions.add_parser("rm", help="remove layers by name or key")
    rm.add_argument(
        "layers", metavar="NAME|KEY", nargs="+", help='as `cache ls` prints them: vllm, "vllm (compiled)", 1f3a5b'
    )
    for action in (listing, verify, prune, rm):
        add_quiet(action)
        add_json(action)


def execute(arguments: argparse.Namespace) -> int:
    from lumiimg.build.cache import LayerCache
    from lumiimg.catalog.settings import read_settings
    from lumiimg.engine.namespaces.unpacked import unpacked_images
    from lumiimg.report import cache as report
    from lumiimg.wording import count

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
