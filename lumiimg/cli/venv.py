"""Make a Python environment on top of an image."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from lumiimg.build.venv import make_venv, plan_venv, refuse_venv, request_for_venv
from lumiimg.catalog.catalogue import open_catalogue
from lumiimg.cli.output import Output
from lumiimg.cli.request import index_of, naming_commits, open_sources
from lumiimg.report.views.made import venv_document


def execute(arguments: argparse.Namespace) -> int:
    output, as_folder = Path(arguments.output), arguments.output.endswith("/")
    refuse_venv(output, arguments.image, as_folder=as_folder, force=arguments.force)
    with naming_commits(arguments):
        asked = request_for_venv(
            arguments.image,
            arguments.requirements,
            arguments.packages,
            replaced=arguments.replace,
            has_project=index_of(arguments),
        )
    sources = open_sources(arguments)
    plan = plan_venv(arguments.image, asked, open_catalogue(os.environ, ()), sources, arguments.exclude_newer)
    made = make_venv(plan, output, sources, os.environ, as_folder=as_folder)
    return Output.from_arguments(arguments).deliver(venv_document(made, arguments.image, output), "venv", made)
