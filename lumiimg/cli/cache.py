"""Manage the layers that were built before, and images that were unpacked where
there is no FUSE. The cache may be deleted at any time. LUMIIMG_CACHE, or
`cache` in config.toml, names its folder.

examples:
  lumiimg cache ls
  lumiimg cache prune --keep 20G          # the longest unused go first
  lumiimg cache rm "vllm (compiled)"      # it is compiled again the next time
  lumiimg cache export layers.tar && rsync layers.tar other:

exit codes: 0 done · 1 `verify` found an entry that is not what it was
            2 no such entry, or not an archive of a cache
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from lumiimg.cli.options import add_json, add_quiet
from lumiimg.errors import BadInputError, ExitCode

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
    export = actions.add_parser("export", help="write layers to an archive for another machine")
    export.add_argument("file", metavar="FILE", type=Path, help="archive to write")
    export.add_argument("layers", metavar="LAYER", nargs="*", help="layers to write, by name or key (default: all)")
    load = actions.add_parser("import", help="read layers from an archive")
    load.add_argument("file", metavar="FILE", type=Path, help="archive written by `cache export`")
    for action in (listing, verify, prune, rm, export, load):
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
    from lumiimg.build.cache_archive import chosen, read_archive, write_archive

    if arguments.action == "rm":
        going = chosen(cache, arguments.layers)
        for entry in going:
            cache.remove(entry.key)
        freed = sum(entry.size_bytes for entry in going)
        report.print_removed([entry.key for entry in going], freed, as_json=arguments.json, quiet=arguments.quiet)
        return ExitCode.GOOD
    if arguments.action == "export":
        entries = write_archive(cache, arguments.file, arguments.layers)
    else:
        entries = read_archive(cache, arguments.file)
    report.print_entries(entries, arguments.file, as_json=arguments.json, quiet=arguments.quiet)
    return ExitCode.GOOD


def _bytes(text: str) -> int:
    """Return a size as people write it. Raises BadInputError."""
    number, unit = (text[:-1], text[-1].upper()) if text[-1:].upper() in _UNITS else (text, "")
    if not number.isascii() or not number.isdigit() or len(number) > 9:
        raise BadInputError("is not a valid size", where=f"--keep {text}", hint="20G, 500M, or a number of bytes")
    return int(number) << _UNITS.get(unit, 0)
