"""`lumiimg build`."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from lumiimg.cli.options import add_json, add_layers, add_site
from lumiimg.errors import BadInputError, ExitCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumiimg.build.builder import Progress
    from lumiimg.catalog.catalogue import Catalogue
    from lumiimg.catalog.settings import Settings
    from lumiimg.definition.writer import Definition
    from lumiimg.resolve.lock import Lock, Request

_EPILOG = """\
examples:
  lumiimg build --base debian-13 --add netprobe -o demo.sif
  lumiimg build --recipe demo --dry-run
  lumiimg build --base debian-13 --add aws-ofi-nccl \\
      --source aws-ofi-nccl=aws-ofi-nccl-1.21.1.tar.gz -o plugin.sif
  lumiimg build --recipe demo --definitions defs/   # files for another machine
"""


def configure_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "build",
        help="build an image from a base and layers",
        description="Build an image: a base, and layers on it, each by its definition file.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    what = parser.add_argument_group("what")
    what.add_argument("--base", metavar="NAME", help="what to start from (`lumiimg list`)")
    what.add_argument(
        "--add", metavar="LAYER", action="append", default=[], help="a layer to add, in this order (may be repeated)"
    )
    what.add_argument("--recipe", metavar="NAME|FILE", help="a named stack; --base and --add change or extend it")
    what.add_argument(
        "--arg", metavar="LAYER.NAME=VALUE", action="append", default=[], help="an argument of a layer (`lumiimg show`)"
    )
    what.add_argument(
        "--source",
        metavar="NAME=FILE|URL",
        action="append",
        default=[],
        help="take a source archive from here; #sha256=HEX behind it says what it must be",
    )
    what.add_argument(
        "--mirror",
        metavar="FROM=TO",
        action="append",
        default=[],
        help="fetch from TO instead: debian=URL, docker.io=HOST, https://github.com=URL (may be repeated)",
    )
    add_site(what)  # type: ignore[arg-type]
    add_layers(what)  # type: ignore[arg-type]  # a group takes options as a parser does
    how = parser.add_argument_group("how")
    how.add_argument("-o", "--output", metavar="FILE", type=Path, help="the image to write (default: <recipe>.sif)")
    how.add_argument("--force", action="store_true", help="replace the output file if it exists")
    how.add_argument("--dry-run", action="store_true", help="only say what would be built; needs no engine")
    how.add_argument(
        "--definitions", metavar="DIR", type=Path, help="only write the definition files and what they need, to DIR"
    )
    how.add_argument("--quiet", action="store_true", help="say nothing but errors")
    how.add_argument("--verbose", action="store_true", help="show what the engine prints")
    add_json(how)  # type: ignore[arg-type]
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Plan, and build unless asked not to."""
    from lumiimg.catalog.catalogue import open_catalogue  # noqa: PLC0415
    from lumiimg.catalog.settings import read_settings  # noqa: PLC0415
    from lumiimg.catalog.sites import find_site  # noqa: PLC0415
    from lumiimg.definition.writer import write_chain, write_flat  # noqa: PLC0415
    from lumiimg.report import build as report  # noqa: PLC0415
    from lumiimg.resolve.lock import resolve  # noqa: PLC0415
    from lumiimg.resolve.mirrors import parse_mirrors  # noqa: PLC0415

    settings = read_settings(os.environ)
    catalogue = open_catalogue(os.environ, arguments.layers)
    request = _request(arguments, catalogue)
    site = find_site(arguments.site, os.environ) if arguments.site else None
    mirrors = parse_mirrors(settings.mirrors, arguments.mirror)
    lock = resolve(request, catalogue, mirrors, os.environ.get("PATH"), site)
    chain = write_chain(lock)
    if arguments.dry_run:
        report.print_plan(lock, chain, as_json=arguments.json)
        return ExitCode.GOOD
    if arguments.definitions is not None:
        from lumiimg.build.builder import write_definitions  # noqa: PLC0415

        definitions = [*chain, write_flat(lock)]
        folder = _new_folder(arguments.definitions, force=arguments.force)
        write_definitions(definitions, folder, settings.cache / "sources", _progress(arguments).line)
        report.print_definitions(definitions, folder, as_json=arguments.json)
        return ExitCode.GOOD
    output = arguments.output or Path(f"{Path(arguments.recipe).stem if arguments.recipe else 'image'}.sif")
    return _build(arguments, settings, lock, chain, output)


def _build(
    arguments: argparse.Namespace, settings: Settings, lock: Lock, chain: Sequence[Definition], output: Path
) -> int:
    from lumiimg.build.builder import build_image  # noqa: PLC0415
    from lumiimg.engine.engine import find_engine  # noqa: PLC0415
    from lumiimg.report import build as report  # noqa: PLC0415

    _check_output(output, force=arguments.force)
    engine = find_engine(os.environ)
    if not arguments.quiet:
        report.print_start(lock, engine, output)
    progress = _progress(arguments)
    try:
        built = build_image(
            chain,
            output,
            engine=engine,
            environment=os.environ,
            cache=settings.cache,
            log_path=log_of(output),
            progress=progress,
        )
    finally:
        progress.stop()
    report.print_built(built, lock, engine, as_json=arguments.json, quiet=arguments.quiet)
    return ExitCode.GOOD


def _request(arguments: argparse.Namespace, catalogue: Catalogue) -> Request:
    from lumiimg.resolve.lock import Request  # noqa: PLC0415
    from lumiimg.resolve.rules import Fabric  # noqa: PLC0415

    recipe = catalogue.recipe(arguments.recipe) if arguments.recipe else None
    base = arguments.base or (recipe.base if recipe else None)
    if base is None:
        raise BadInputError("no base", hint="give --base NAME or --recipe NAME; see `lumiimg list`")
    values = dict(recipe.arguments) if recipe else {}
    for word in arguments.arg:
        name, equals, value = word.partition("=")
        layer, dot, argument = name.rpartition(".")
        if not (equals and dot and layer and argument):
            raise BadInputError(
                f"--arg {word!r} is not LAYER.NAME=VALUE", hint="for example aws-ofi-nccl.PREFIX=/opt/x"
            )
        values[layer, argument] = value
    sources = {}
    for word in arguments.source:
        name, equals, location = word.partition("=")
        if not (name and equals and location):
            raise BadInputError(f"--source {word!r} is not NAME=FILE or NAME=URL")
        sources[name] = location
    fabric = None if arguments.fabric == "auto" else Fabric(arguments.fabric)
    return Request(base, (*(recipe.add if recipe else ()), *arguments.add), values, fabric, sources)


def _check_output(output: Path, *, force: bool) -> None:
    if output.is_dir():
        raise BadInputError("is a folder", where=str(output), hint="-o names the image file")
    if not output.parent.is_dir():
        raise BadInputError("no such folder", where=str(output.parent), hint="make it first")
    if output.exists() and not force:
        raise BadInputError("exists already", where=str(output), hint="--force replaces it")
    log = log_of(output)
    if log.exists() and not force and not _is_ours(log):
        raise BadInputError("exists already, and is no log of a build", where=str(log), hint="--force replaces it")


def log_of(output: Path) -> Path:
    """Return where the engine's output of a build goes."""
    return output.with_name(output.name + ".log")


def _is_ours(log: Path) -> bool:
    with log.open("rb") as stream:
        return stream.read(3) in {b"== ", b""}


def _new_folder(folder: Path, *, force: bool) -> Path:
    if folder.exists() and not folder.is_dir():
        raise BadInputError("is not a folder", where=str(folder))
    if folder.is_dir() and any(folder.iterdir()) and not force:
        raise BadInputError("is not empty", where=str(folder), hint="--force writes into it all the same")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInputError(f"cannot be made: {error.strerror}", where=str(folder)) from error
    return folder


def _progress(arguments: argparse.Namespace) -> Progress:
    from lumiimg.report import progress  # noqa: PLC0415

    if arguments.quiet:
        return progress.QuietProgress()
    if arguments.verbose:
        return progress.VerboseProgress()
    return progress.TerminalProgress() if sys.stderr.isatty() else progress.LineProgress()
