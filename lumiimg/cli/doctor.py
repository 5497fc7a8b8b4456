"""Test the requirements of a build."""

from __future__ import annotations

import argparse
import os

from lumiimg.build.doctor import examine, next_step
from lumiimg.catalog.settings import read_settings
from lumiimg.cli.output import Output
from lumiimg.core.errors import MissingHereError
from lumiimg.engine.engine import available_engines
from lumiimg.fetch.http import Http
from lumiimg.fetch.mirrors import Mirrors
from lumiimg.fetch.store import Sources, Store
from lumiimg.report.views.doctor import doctor_document, no_engine_document


def execute(arguments: argparse.Namespace) -> int:
    output, settings = Output.from_arguments(arguments), read_settings(os.environ)
    mirrors, web = Mirrors(settings.mirrors), Http(retry=False)
    try:
        engines = [*available_engines(os.environ)]
    except MissingHereError as error:
        if arguments.json:
            raise
        output.show(no_engine_document(error, next_step(None, os.environ)))
        return error.exit_code
    sources = Sources(web, Store(settings.cache / "sources", web, mirrors), mirrors, settings.cache, lambda _: None)
    result = examine(engines, os.environ, sources)
    return output.deliver(doctor_document(result), "doctor", result, result.exit_code)
