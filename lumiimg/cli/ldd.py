"""List what ld.so would load for files of an image."""

from __future__ import annotations

import argparse

from lumiimg.cli.inputs import open_inside
from lumiimg.errors import BadInputError, ExitCode


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
        print_json("ldd", files=outcomes, by_kernel=by_kernel, undecided=undecided or "", notes=doubts)
    print_ldd(
        outcomes, by_kernel, undecided, doubts, verbose=arguments.verbose, quiet=arguments.quiet, stderr=arguments.json
    )
    if undecided:
        return ExitCode.UNDECIDED
    return ExitCode.GOOD if all(outcome.ok for outcome in (*outcomes.values(), *by_kernel.values())) else ExitCode.NO
