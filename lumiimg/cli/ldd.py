"""List what ld.so would load for files of an image, without running anything.

A program is given to ld.so, as by `ld.so --list PROGRAM`. If the kernel starts
it by its name, $ORIGIN may be another folder, and the libraries may differ:
then both are shown.

Not counted: variables of your shell, and what is on the host where engines
mount unasked (your home, /tmp, /dev): files of the image there are not seen.
Name what your job has by --env and --bind. With --all, files with the names of
text files (x.py, x.h, x.json) are not opened.

exit codes: 0 everything would be loaded, in the versions that are needed
            1 something is missing, or does not fit
            2 not an image, or no such file in it
            3 cannot be decided (musl has another loader than the one modelled)
"""

from __future__ import annotations

import argparse

from lumiimg.cli.options import add_container, add_image, add_json, add_quiet, add_verbose, open_inside
from lumiimg.errors import BadInputError, ExitCode


def configure_parser(parser: argparse.ArgumentParser) -> None:
    add_image(parser)
    parser.add_argument("paths", metavar="PATH", nargs="*", help="programs and libraries, by their paths in the image")
    parser.add_argument("--all", action="store_true", help="every program and library of the image")
    add_container(parser)
    parser.add_argument("--cwd", metavar="DIR", default="/", help="working directory of the process (default: /)")
    add_quiet(parser)
    add_verbose(parser, "with --all or many files, also those that load")
    add_json(parser)


def execute(arguments: argparse.Namespace) -> int:
    from lumiimg.host.ldd import elf_files, list_libraries, notes_of_covers, refusal
    from lumiimg.image.permissions import barred
    from lumiimg.report.console import print_json
    from lumiimg.report.ldd import print_ldd

    if arguments.all == bool(arguments.paths):
        what = "both --all and files" if arguments.all else "no file to look at"
        raise BadInputError(what, where="ldd", hint="name files of the image, or add --all")
    if not arguments.cwd.startswith("/"):
        raise BadInputError("not an absolute path", where=f"--cwd {arguments.cwd}")
    with open_inside(arguments) as inside:
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
    if arguments.json:
        unknown = {"by_kernel": by_kernel, "undecided": undecided, "notes": doubts}
        print_json("ldd", files=outcomes, **{key: value for key, value in unknown.items() if value})
    print_ldd(
        outcomes, by_kernel, undecided, doubts, verbose=arguments.verbose, quiet=arguments.quiet, stderr=arguments.json
    )
    if undecided:
        return ExitCode.UNDECIDED
    return ExitCode.GOOD if all(outcome.ok for outcome in (*outcomes.values(), *by_kernel.values())) else ExitCode.NO
