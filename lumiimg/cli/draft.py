"""Read a Dockerfile and write a draft of a layer."""

from __future__ import annotations

import argparse
import os

from lumiimg.catalog.catalogue import open_catalogue
from lumiimg.cli.output import Output
from lumiimg.core.errors import BadInputError
from lumiimg.definition.docker.draft import make_draft, write_draft
from lumiimg.report.views.draft import draft_document


def execute(arguments: argparse.Namespace) -> int:
    given: dict[str, str] = {}
    for word in arguments.arg:
        name, equals, value = word.partition("=")
        if not (name and equals and value.isprintable()):
            raise BadInputError("not of the form NAME=VALUE", where=f"--arg {word}", hint="argument of the Dockerfile")
        given[name] = value
    catalogue = open_catalogue(os.environ)
    draft = make_draft(arguments.file, arguments.target, given, catalogue)
    if arguments.output is not None:
        draft = write_draft(draft, arguments.output, catalogue)
    return Output.from_arguments(arguments).deliver(draft_document(draft), "draft", draft)
