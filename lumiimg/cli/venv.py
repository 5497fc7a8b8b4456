"""Make a Python environment over an image, with packages of your own: a squashfs
file that jobs bind, or a folder. What the image has stays as it is: torch,
triton, all of it. A requirement that would replace any is refused.

examples:
  lumiimg venv image.sif -r requirements.txt -o env.sqsh
  lumiimg venv image.sif optuna 'datasets>=3' -o env.sqsh
  lumiimg job image.sif --venv env.sqsh --site lumi -o job.sh -- python x.py
Also for `lumiimg check` and `lumiimg module`: --venv env.sqsh

exit codes: 0 made
            1 the packages do not go together with the image, or cannot be had
            2 not an image, a requirement that is not followed, wrong usage
            4 no engine, no mksquashfs, or no package index
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from lumiimg.cli.options import OFFLINE, add_image, add_jobs, add_json, add_quiet
from lumiimg.cli.request import add_mirror, add_newest, add_requirements, sources_of
from lumiimg.errors import BadInputError, ExitCode


def configure_parser(parser: argparse.ArgumentParser) -> None:
    add_image(parser, "a SIF, squashfs file or sandbox folder")
    parser.add_argument(
        "packages", metavar="PACKAGE", nargs="*", help="package, with a version if need be: optuna==4.5"
    )
    add_requirements(parser)
    parser.add_argument(
        "-o", "--output", metavar="FILE|DIR/", required=True, help="output: a squashfs file; with a slash, a new folder"
    )
    parser.add_argument("--force", action="store_true", help="overwrite: the output file")
    add_newest(parser)
    add_mirror(parser)
    parser.add_argument("--offline", action="store_true", help=OFFLINE)
    add_jobs(parser)
    add_quiet(parser)
    add_json(parser)


def execute(arguments: argparse.Namespace) -> int:
    from lumiimg.build.venv import make_venv, plan_venv
    from lumiimg.catalog.catalogue import open_catalogue
    from lumiimg.report.console import print_json
    from lumiimg.report.venv import json_keys, print_venv
    from lumiimg.resolve.own_requirements import read_own
    from lumiimg.secret import hidden

    output, as_folder = Path(arguments.output), arguments.output.endswith("/")
    _check_output(output, arguments.image, as_folder=as_folder, force=arguments.force)
    own = read_own(arguments.requirements, arguments.packages, "the command line")
    if not own.requirements:
        raise BadInputError("no packages", hint="name them, or a file of them: -r requirements.txt")
    if like_secret := next((one for one in own.requirements if hidden(one.text) != one.text), None):
        what = "looks like a secret, which all who have the environment could read"
        raise BadInputError(what, where=like_secret.where, hint="leave it out")
    sources = sources_of(arguments)
    plan = plan_venv(arguments.image, own, open_catalogue(os.environ, ()), sources, arguments.exclude_newer)
    record = make_venv(plan, output, sources, os.environ, as_folder=as_folder)
    if arguments.json:
        print_json("venv", record, **json_keys(output))
    print_venv(record, arguments.image, output, plan.doubt, quiet=arguments.quiet, stderr=arguments.json)
    return ExitCode.GOOD


def _check_output(output: Path, image: Path, *, as_folder: bool, force: bool) -> None:
    """Refuse what would be lost, before anything is fetched. Raises BadInputError."""
    from lumiimg.cli.options import refuse_places

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
