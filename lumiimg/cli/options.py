"""Options that several commands share."""

from __future__ import annotations

import argparse
import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lumiimg.errors import BadInputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from lumiimg.catalog.site_choice import ChosenSite
    from lumiimg.catalog.sites import Site
    from lumiimg.host.container_view import ContainerView
    from lumiimg.host.snapshot import Snapshot
    from lumiimg.resolve.venv import Venv

Options = argparse._ActionsContainer  # noqa: SLF001 - a parser, or a group of its options
JSON = "print the result as JSON on standard output; text for people on stderr"
OFFLINE = "use earlier downloads and ask no server; the layers' own scripts may still do so"
IMAGES = "a SIF, squashfs file, sandbox folder, OCI layout, OCI or docker archive"
_MACHINE = "machine, by name (lumi) or file"
_SNAPSHOT = "node snapshot written by `lumiimg host scan -o FILE`"
_DEFAULT_JOBS = 4
_MOST_JOBS = 16
"""A server may refuse who opens more connections at once."""


def add_repeated(parser: Options, option: str, metavar: str, what: str, kind: Callable[[str], object] = str) -> None:
    """Add an option that may be given several times."""
    parser.add_argument(option, metavar=metavar, type=kind, action="append", default=[], help=what)


def add_output(parser: Options, what: str, metavar: str = "FILE", **more: Any) -> None:  # noqa: ANN401 - argparse's
    parser.add_argument("-o", "--output", metavar=metavar, type=Path, help=f"output: {what}", **more)


def add_json(parser: Options) -> None:
    parser.add_argument("--json", action="store_true", help=JSON)


def add_quiet(parser: Options) -> None:
    parser.add_argument("--quiet", action="store_true", help="print only the answer, in one line, and errors")


def add_verbose(parser: Options, more: str) -> None:
    """Add --verbose, which prints `more`."""
    parser.add_argument("--verbose", action="store_true", help=f"print more: {more}")


def add_image(parser: Options, kinds: str = IMAGES) -> None:
    parser.add_argument("image", metavar="IMAGE", type=Path, help=kinds)


def add_machine(parser: Options, what: str) -> None:
    """Add --site of a command that is about an image that is there: `what` a site is good for."""
    parser.add_argument("--site", metavar="NAME", help=f"{_MACHINE}: {what}")


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


def venv_of(arguments: argparse.Namespace) -> Venv | None:
    """Return the environment that --venv names, if it is given. Raises BadInputError."""
    if arguments.venv is None:
        return None
    from lumiimg.resolve.venv import open_venv

    return open_venv(arguments.venv)


def add_page(parser: Options) -> None:
    parser.add_argument("--html", metavar="FILE", type=Path, help="also write the result as an HTML page")


def add_junit(parser: Options) -> None:
    parser.add_argument("--junit", metavar="FILE", type=Path, help="also write the result as JUnit XML")


def refuse_places(places: Mapping[str, Path | None], inputs: Iterable[Path | None]) -> None:
    """Refuse, before any work, to write a result where there is no folder for it, or over what is read.

    `places` are files to be written by the option that names them. Raises BadInputError.
    """
    from lumiimg.files import refuse_bad_name  # of use to those alone that write

    for option, place in places.items():
        if place is None:
            continue
        refuse_bad_name(place)
        if not place.parent.is_dir():
            raise BadInputError("no such folder", where=str(place.parent), hint=f"make it first ({option})")
        if not os.access(place.parent, os.W_OK):
            raise BadInputError("is a folder that is not writable", where=str(place.parent), hint=f"for {option}")
        if place.is_dir():
            raise BadInputError("is a folder", where=str(place), hint=f"{option} names a file")
        for source in inputs:
            if source is not None and place.exists() and source.exists() and place.samefile(source):
                raise BadInputError("is what is read", where=str(place), hint=f"{option} names another file")


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


def add_layers(parser: Options) -> None:
    what = "folder with layer folders of your own, searched first (may be repeated)"
    add_repeated(parser, "--layers", "DIR", what, Path)


def add_host(parser: Options, more: str = "", *, required: bool = False) -> None:
    """Add --host; `more`: what it is good for."""
    parser.add_argument("--host", metavar="FILE", type=Path, required=required, help=f"{_SNAPSHOT}{more}")


def add_site(parser: Options) -> None:
    """Add --site and --fabric: the machine that an image is for."""
    parser.add_argument(
        "--site",
        metavar="NAME",
        help=f"{_MACHINE}: its driver and fabric decide what fits (default: settings, this machine, lumi)",
    )
    parser.add_argument(
        "--fabric",
        choices=("auto", "host", "bundled", "none"),
        default="auto",
        help="use libfabric and libcxi of the host, or the image's own; auto: by the recipe, else by the base",
    )


def add_container(parser: Options) -> None:
    """Add what says how a container would be started: --host, --bind, --env."""
    add_host(parser)
    add_bind(parser, "of the --host snapshot, or else of this machine")
    add_repeated(parser, "--env", "K=V", "variable to set, as by the engine's --env (may be repeated)")


def add_bind(parser: Options, more: str) -> None:
    """Add --bind; `more`: of what."""
    what = f"file or folder to bind, as by the engine's --bind: {more} (may be repeated)"
    add_repeated(parser, "--bind", "SRC[:DST]", what)


def named_site(arguments: argparse.Namespace) -> Site | None:
    """Return the site that --site names, if it is given. Raises BadInputError."""
    if not arguments.site:
        return None
    from lumiimg.catalog.sites import find_site

    return find_site(arguments.site, os.environ)


def site_of(arguments: argparse.Namespace) -> Site | None:
    """Return the site that what is there is judged for: of --site, the settings, or the machine that this is.

    None where none of them names one: what holds on LUMI may not hold elsewhere. Raises BadInputError.
    """
    from lumiimg.catalog.site_choice import site_here

    if not arguments.site:
        _choose_site(arguments, site_here)
    return named_site(arguments)


def site_to_make_for(arguments: argparse.Namespace) -> str:
    """Return the site that something is made for: as `site_of`, else LUMI. Raises BadInputError."""
    from lumiimg.catalog import site_choice

    if not arguments.site:
        _choose_site(arguments, site_choice.site_to_make_for)
    return str(arguments.site)


def _choose_site(arguments: argparse.Namespace, choose: Callable[..., ChosenSite | None]) -> None:
    """Take a site as if --site named it; `main` says which and why, once it is known that there is an answer."""
    snapshot = snapshot_of(arguments)
    node = snapshot.host if snapshot else os.uname().nodename
    chosen = choose(os.environ, node, elsewhere=snapshot is not None)
    if chosen is not None:
        arguments.site, arguments.site_because = chosen.name, chosen.because


def machine_options(arguments: argparse.Namespace, *, anywhere: bool = True) -> tuple[str, ...]:
    """Return --site and --host as they are in force: as they are found from any folder, else from this one."""
    words = ["--site", site] if (site := site_in_force(arguments)) else []
    words += ["--host", str(arguments.host.absolute() if anywhere else arguments.host)] if arguments.host else []
    return tuple(words)


def site_in_force(arguments: argparse.Namespace) -> str | None:
    """Return the site as --site takes it in any folder: a name, or the path of a file."""
    is_file = (arguments.site or "").endswith(".toml")
    return str(Path(arguments.site).absolute()) if is_file else arguments.site


def snapshot_of(arguments: argparse.Namespace) -> Snapshot | None:
    """Return the snapshot that --host names, if it is given. Raises BadInputError."""
    if not vars(arguments).get("host"):
        return None
    from lumiimg.host.snapshot_file import read_snapshot

    return read_snapshot(arguments.host)


@contextmanager
def open_inside(arguments: argparse.Namespace) -> Iterator[ContainerView]:
    """Open an image as a process in a container has it that is started with the options of `add_container`.

    Raises BadInputError.
    """
    from lumiimg.catalog.settings import user_cache
    from lumiimg.engine.binds import parse_binds
    from lumiimg.host.container_view import LoaderMachine, see_inside, told_to_engine
    from lumiimg.host.engine_mounts import as_run
    from lumiimg.host.node_facts import cpu
    from lumiimg.image import RootFileSystem, open_image

    variables: dict[str, str] = {}
    for text in arguments.env:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise BadInputError("not of the form K=V", where=f"--env {text}")
        variables[name] = value
    binds = tuple(bind for text in arguments.bind for bind in parse_binds(text))
    if (snapshot := snapshot_of(arguments)) is not None:
        from lumiimg.host.snapshot_tree import SnapshotTree

        host, of_host = RootFileSystem(SnapshotTree(snapshot)), LoaderMachine.of(snapshot)
    else:
        host = open_image(Path("/")).root
        _, intel, levels = cpu(host)
        of_host = LoaderMachine(levels, intel, os.uname().release)
    with open_image(arguments.image, user_cache) as image:
        yield see_inside(
            as_run(image, os.environ, snapshot),
            told_to_engine(variables),
            binds=binds,
            host=host,
            cwd=arguments.cwd,
            machine=of_host,
        )
