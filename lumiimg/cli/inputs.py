"""What the options say that commands share: the site, the snapshot, the environment, the files to write."""

from __future__ import annotations

import argparse
import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from lumiimg.errors import BadInputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from lumiimg.catalog.site_choice import ChosenSite
    from lumiimg.catalog.sites import Site
    from lumiimg.host.container_view import ContainerView
    from lumiimg.host.snapshot import Snapshot
    from lumiimg.resolve.venv import Venv


def venv_of(arguments: argparse.Namespace) -> Venv | None:
    """Return the environment that --venv names, if it is given. Raises BadInputError."""
    if arguments.venv is None:
        return None
    from lumiimg.resolve.venv import open_venv

    return open_venv(arguments.venv)


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
