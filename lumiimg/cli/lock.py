"""`lumiimg lock`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from lumiimg.cli.options import add_json
from lumiimg.cli.request import add_request, puller, read_request, read_site, sources_of
from lumiimg.errors import BadInputError, ExitCode

LOCK = "lumiimg.lock"
_EPILOG = """\
examples:
  lumiimg lock --base rocm-6.2.4 --add vllm --site lumi
  lumiimg lock --upgrade numpy      # of what lumiimg.lock was made from
  lumiimg build --locked -o vllm.sif
"""


def configure_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "lock",
        help="settle every version, address and digest of an image, and write them down",
        description="Settle every version, address and digest of an image, and write them down:\n"
        "`lumiimg build --locked` builds from that alone. What a lock holds already is\n"
        "kept where it still fits.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_request(parser)
    how = parser.add_argument_group("how")
    how.add_argument("-o", "--output", metavar="FILE", type=Path, default=Path(LOCK), help=f"default: {LOCK}")
    how.add_argument(
        "--upgrade",
        metavar="NAME",
        action="append",
        default=[],
        help="take the newest of a layer or a Python distribution again; all: of everything (may be repeated)",
    )
    how.add_argument("--offline", action="store_true", help="use what was downloaded before, ask no server")
    how.add_argument("--quiet", action="store_true", help="say nothing but errors")
    add_json(how)  # type: ignore[arg-type]
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Resolve, look up, write."""
    from lumiimg.catalog.catalogue import open_catalogue  # noqa: PLC0415
    from lumiimg.catalog.settings import read_settings  # noqa: PLC0415
    from lumiimg.catalog.sites import find_site  # noqa: PLC0415
    from lumiimg.files import write_text  # noqa: PLC0415
    from lumiimg.report.lock import print_lock  # noqa: PLC0415
    from lumiimg.resolve.changes import changes, entries  # noqa: PLC0415
    from lumiimg.resolve.lockfile import read_document, read_lock, to_text  # noqa: PLC0415
    from lumiimg.resolve.mirrors import parse_mirrors  # noqa: PLC0415
    from lumiimg.resolve.request import Held, held_by, resolve  # noqa: PLC0415
    from lumiimg.resolve.settle import settle  # noqa: PLC0415

    settings = read_settings(os.environ)
    mirrors = parse_mirrors(settings.mirrors, arguments.mirror)
    catalogue = open_catalogue(os.environ, arguments.layers)
    path = os.environ.get("PATH")
    before = read_lock(arguments.output, catalogue, mirrors, path) if arguments.output.exists() else None
    if arguments.base or arguments.recipe:
        request, site = read_request(arguments, catalogue), read_site(arguments)
    elif before is not None:
        request = before[1]
        site = find_site(before[0].site, os.environ) if before[0].site else None
    else:
        raise BadInputError("no base", hint=f"give --base NAME or --recipe NAME; there is no {arguments.output} yet")
    held = held_by(before[0], arguments.upgrade) if before else Held({}, {})
    lock = resolve(request, catalogue, mirrors, path, site, held=held.layers, pull=puller(arguments))
    sources = sources_of(settings, mirrors, offline=arguments.offline, quiet=arguments.quiet)
    lock = settle(lock, sources, pin_base=True, held=held.wheels)
    old = entries(read_document(arguments.output)) if before else None
    write_text(arguments.output, to_text(lock, request))
    if not arguments.quiet or arguments.json:
        found = None if old is None else changes(old, entries(read_document(arguments.output)))
        print_lock(lock, found, arguments.output, as_json=arguments.json)
    return ExitCode.GOOD
