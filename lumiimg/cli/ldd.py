"""List what ld.so would load for files of an image."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lumiimg.catalog.settings import user_cache
from lumiimg.cli.output import Output
from lumiimg.engine.binds import parse_binds
from lumiimg.errors import BadInputError, ExitCode
from lumiimg.host.container_view import ContainerView, LoaderMachine, see_inside, told_to_engine
from lumiimg.host.engine_mounts import as_run
from lumiimg.host.ldd import elf_files, list_libraries, notes_of_covers, refusal
from lumiimg.host.node_facts import cpu
from lumiimg.host.snapshot_file import read_snapshot
from lumiimg.host.snapshot_tree import SnapshotTree
from lumiimg.image import RootFileSystem, open_image
from lumiimg.image.permissions import barred
from lumiimg.report.json_images import Libraries
from lumiimg.report.views.ldd import ldd_document


def execute(arguments: argparse.Namespace) -> int:
    if arguments.all == bool(arguments.paths):
        what = "both --all and files" if arguments.all else "no file to look at"
        raise BadInputError(what, where="ldd", hint="name files of the image, or add --all")
    if not arguments.cwd.startswith("/"):
        raise BadInputError("not an absolute path", where=f"--cwd {arguments.cwd}")
    with _open_inside(arguments) as inside:
        undecided = refusal(inside.root)
        paths = elf_files(inside.root) if arguments.all else dict.fromkeys(arguments.paths)
        listings = {} if undecided else dict(list_libraries(inside, paths))
        outcomes = {path: listing.outcome for path, listing in listings.items()}
        by_kernel = {path: listing.by_kernel for path, listing in listings.items() if listing.by_kernel is not None}
        # of the files that were named: an image has programs that are for root alone, and is none the worse for it
        named = () if arguments.all else outcomes.values()
        loaded = dict.fromkeys(inside.settings.absolute(file.path) for outcome in named for file in outcome.objects)
        closed = dict.fromkeys(way for _, way in barred(inside.root, loaded))
        doubts = [*inside.doubts, *notes_of_covers(inside, outcomes.values())]
        doubts += dict.fromkeys(doubt for listing in listings.values() for doubt in listing.doubts)
    doubts += (f"not everybody can load all of this: {path} is closed to others" for path in closed)
    found = Libraries(outcomes, by_kernel, undecided or "", tuple(doubts))
    is_good = all(outcome.ok for outcome in (*outcomes.values(), *by_kernel.values()))
    code = ExitCode.UNDECIDED if undecided else ExitCode.GOOD if is_good else ExitCode.NO
    return Output.of(arguments).deliver(ldd_document(str(arguments.image), found), "ldd", found, code)


@contextmanager
def _open_inside(arguments: argparse.Namespace) -> Iterator[ContainerView]:
    """Open an image as a process in a container has it that is started with --env, --bind and --cwd.

    Raises BadInputError.
    """
    variables: dict[str, str] = {}
    for text in arguments.env:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise BadInputError("not of the form K=V", where=f"--env {text}")
        variables[name] = value
    binds = tuple(bind for text in arguments.bind for bind in parse_binds(text))
    snapshot = read_snapshot(arguments.host) if arguments.host else None
    if snapshot is not None:
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
