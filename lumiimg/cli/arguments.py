"""Options that several commands share. What an option asks for is read by the command that runs."""

from __future__ import annotations

import argparse
import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import Any

Options = argparse._ActionsContainer  # noqa: SLF001 - a parser, or a group of its options
LOCK = "lumiimg.lock"
JSON = "print the result as JSON on standard output; text for people on stderr"
IMAGES = "a SIF, squashfs file, sandbox folder, OCI layout, OCI or docker archive"
_QUIET = "print only the answer, in one line, and errors"
_OFFLINE = "use earlier downloads and ask no server; the layers' own scripts may still do so"
_MACHINE = "machine, by name (lumi) or file"
_SNAPSHOT = "node snapshot written by `lumiimg host scan -o FILE`"
_DEFAULT_JOBS = 4
_MOST_JOBS = 16
"""A server may refuse who opens more connections at once."""


def add_output_options(
    parser: Options, *, verbose: str = "", html: bool = False, junit: bool = False, quiet: str = _QUIET
) -> None:
    """Add what says how a command answers; `verbose` is what it prints more of."""
    if junit:
        parser.add_argument("--junit", metavar="FILE", type=Path, help="also write the result as JUnit XML")
    if html:
        parser.add_argument("--html", metavar="FILE", type=Path, help="also write the result as an HTML page")
    if quiet:
        parser.add_argument("--quiet", action="store_true", help=quiet)
    if verbose:
        parser.add_argument("--verbose", action="store_true", help=f"print more: {verbose}")
    parser.add_argument("--json", action="store_true", help=JSON)


def add_repeated(parser: Options, option: str, metavar: str, what: str, kind: Callable[[str], object] = str) -> None:
    """Add an option that may be given several times."""
    parser.add_argument(option, metavar=metavar, type=kind, action="append", default=[], help=what)


def add_output(parser: Options, what: str, metavar: str = "FILE", **more: Any) -> None:  # noqa: ANN401 - argparse's
    parser.add_argument("-o", "--output", metavar=metavar, type=Path, help=f"output: {what}", **more)


def add_image(parser: Options, kinds: str = IMAGES) -> None:
    parser.add_argument("image", metavar="IMAGE", type=Path, help=kinds)


def add_machine(parser: Options, what: str) -> None:
    """Add --site of a command that is about an image that is there: `what` a site is good for."""
    parser.add_argument("--site", metavar="NAME", help=f"{_MACHINE}: {what}")


def add_host(parser: Options, more: str = "", *, required: bool = False) -> None:
    """Add --host; `more`: what it is good for."""
    parser.add_argument("--host", metavar="FILE", type=Path, required=required, help=f"{_SNAPSHOT}{more}")


def add_program(parser: Options) -> None:
    parser.add_argument(
        "--program",
        metavar="PATH",
        dest="starts",  # `program` is what stands after `--`
        help="program that jobs start, by its path or name in the container (default: the python on the image's PATH)",
    )


def add_venv(parser: Options) -> None:
    what = "Python environment over the image: a file or folder of `lumiimg venv`, or a venv of your own"
    parser.add_argument("--venv", metavar="FILE|DIR", type=Path, help=what)


def add_offline(parser: Options) -> None:
    parser.add_argument("--offline", action="store_true", help=_OFFLINE)


def add_jobs(parser: Options) -> None:
    parser.add_argument(
        "--jobs",
        metavar="N",
        type=number_to(_MOST_JOBS),
        default=_DEFAULT_JOBS,
        help=f"number of downloads at the same time, 1 to {_MOST_JOBS} (default: {_DEFAULT_JOBS})",
    )


def number_to(most: int, what: str = "") -> Callable[[str], int]:
    """Return what reads a number from 1 to `most`; an error says that a word is not a valid `what`."""
    what = what or f"number from 1 to {most}"

    def number(text: str) -> int:
        found = int(text) if text.isascii() and text.isdigit() and len(text) < 8 else 0
        if not 1 <= found <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not a valid {what}")
        return found

    return number


def add_bind(parser: Options, more: str) -> None:
    """Add --bind; `more`: of what."""
    what = f"file or folder to bind, as by the engine's --bind: {more} (may be repeated)"
    add_repeated(parser, "--bind", "SRC[:DST]", what)


def add_sbatch(parser: Options, more: str = "") -> None:
    """Add --sbatch; `more`: of which job."""
    what = f"options for sbatch: partition, account, GPUs{more}"
    parser.add_argument("--sbatch", metavar="OPTIONS", default="", help=what)


def add_request(parser: argparse.ArgumentParser, title: str = "what") -> None:
    """Add the options that tell which image is wanted."""
    what = parser.add_argument_group(title)
    what.add_argument(
        "--base",
        metavar="NAME|IMAGE",
        help="starting point: a name (`lumiimg list`), or an image, which is read first",
    )
    what.add_argument("--recipe", metavar="NAME|FILE", help="named stack; --base and --add change or extend it")
    add_layers_and_sources(what)
    add_newest(what, " (default: that of the newest release)")


def add_layers_and_sources(what: Options) -> None:
    """Add the options that say what comes on a base, and the machine that the image is for."""
    layer = "layer to add, with an optional version: vllm==0.10.1; or a package of your own: pip:einops==0.8.1"
    add_repeated(what, "--add", "LAYER|pip:PACKAGE", f"{layer} (may be repeated)")
    add_requirements(what)
    add_repeated(what, "--arg", "LAYER.NAME=VALUE", "argument to set: of a layer (`lumiimg show` lists them)")
    source = "where to get a source archive; append #sha256=HEX to verify it"
    add_repeated(what, "--source", "NAME=FILE|URL", source)
    add_mirror(what)
    add_machine(what, "its driver and fabric decide what fits (default: settings, this machine, lumi)")
    what.add_argument(
        "--fabric",
        choices=("auto", "host", "bundled", "none"),
        default="auto",
        help="use libfabric and libcxi of the host, or the image's own; auto: by the recipe, else by the base",
    )
    add_host(what, ": it overrides the site's defaults")
    add_layers(what)


def add_requirements(what: Options) -> None:
    """Add -r."""
    own = "packages of your own: a requirements file; torch and the packages below stay"
    what.add_argument("-r", "--requirements", metavar="FILE", action="append", default=[], help=own)


def add_mirror(what: Options) -> None:
    mirror = "fetch from TO instead: debian=URL, pypi=URL, docker.io=HOST, https://github.com=URL (may be repeated)"
    add_repeated(what, "--mirror", "FROM=TO", mirror)


def add_layers(parser: Options) -> None:
    what = "folder with layer folders of your own, searched first (may be repeated)"
    add_repeated(parser, "--layers", "DIR", what, Path)


def add_newest(what: Options, otherwise: str = "") -> None:
    """Add --exclude-newer; `otherwise`: what holds without it."""
    what.add_argument(
        "--exclude-newer",
        type=_date,
        metavar="DATE",
        help=f"latest upload date of packages to use: YYYY-MM-DD{otherwise}",
    )


def _date(text: str) -> dt.date:
    try:
        return dt.date.fromisoformat(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not a valid date: {text[:40]!r}") from error
