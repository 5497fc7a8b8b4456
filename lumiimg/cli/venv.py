"""Make a Python environment over an image."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from lumiimg.build.venv import make_venv, plan_venv
from lumiimg.catalog.catalogue import open_catalogue
from lumiimg.cli.output import Output
from lumiimg.cli.request import open_sources
from lumiimg.errors import BadInputError, ExitCode
from lumiimg.files import refuse_places
from lumiimg.report.json_images import WrittenVenv
from lumiimg.report.views.venv import venv_document
from lumiimg.resolve.own_requirements import read_own
from lumiimg.secret import hidden


def execute(arguments: argparse.Namespace) -> int:
    output, as_folder = Path(arguments.output), arguments.output.endswith("/")
    _check_output(output, arguments.image, as_folder=as_folder, force=arguments.force)
    own = read_own(arguments.requirements, arguments.packages, "the command line")
    if not own.requirements:
        raise BadInputError("no packages", hint="name them, or a file of them: -r requirements.txt")
    if like_secret := next((one for one in own.requirements if hidden(one.text) != one.text), None):
        what = "looks like a secret, which all who have the environment could read"
        raise BadInputError(what, where=like_secret.where, hint="leave it out")
    sources = open_sources(arguments)
    plan = plan_venv(arguments.image, own, open_catalogue(os.environ, ()), sources, arguments.exclude_newer)
    record = make_venv(plan, output, sources, os.environ, as_folder=as_folder)
    document = venv_document(record, arguments.image, output, plan.doubt)
    written = WrittenVenv(record, output.absolute())
    return Output.of(arguments).deliver(document, "venv", written, ExitCode.GOOD)


def _check_output(output: Path, image: Path, *, as_folder: bool, force: bool) -> None:
    """Refuse what would be lost, before anything is fetched. Raises BadInputError."""
    if as_folder:
        if output.exists() or output.is_symlink():
            raise BadInputError("exists already", where=str(output), hint="remove it, or name a new folder")
        if not output.absolute().parent.is_dir():
            raise BadInputError("no such folder", where=str(output.parent), hint="make it first")
        return
    if output.is_dir():
        raise BadInputError(
            "is a folder", where=str(output), hint=f"for a folder, end its name with a slash: -o {output}/"
        )
    refuse_places({"-o": output}, (image,))
    if output.exists() and not force:
        raise BadInputError("exists already", where=str(output), hint="--force replaces it")
