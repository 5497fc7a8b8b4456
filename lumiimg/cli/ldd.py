"""List the libraries that ld.so would load for files of an image."""

from __future__ import annotations

import argparse
import os

from lumiimg.cli.output import Output
from lumiimg.core.errors import BadInputError
from lumiimg.host.ldd import libraries_of
from lumiimg.host.snapshot import read_snapshot
from lumiimg.report.views.ldd import ldd_document


def execute(arguments: argparse.Namespace) -> int:
    if arguments.all == bool(arguments.paths):
        what = "both --all and files" if arguments.all else "no file is named"
        raise BadInputError(what, where="ldd", hint="name files of the image, or add --all")
    if not arguments.cwd.startswith("/"):
        raise BadInputError("not an absolute path", where=f"--cwd {arguments.cwd}")
    snapshot = read_snapshot(arguments.host) if arguments.host else None
    found = libraries_of(
        arguments.image,
        arguments.paths,
        os.environ,
        variables=arguments.env,
        binds=arguments.bind,
        snapshot=snapshot,
        cwd=arguments.cwd,
    )
    return Output.from_arguments(arguments).deliver(
        ldd_document(str(arguments.image), found), "ldd", found, found.exit_code
    )
