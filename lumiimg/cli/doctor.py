"""Try what a build needs."""

from __future__ import annotations

import argparse
import os

from lumiimg.build.choice import builds_here, faults_of, try_engines
from lumiimg.build.disk_space import room_at
from lumiimg.build.lacking import next_step
from lumiimg.catalog.settings import read_settings
from lumiimg.cli.output import Output
from lumiimg.engine.engine import engines_here
from lumiimg.errors import ExitCode, MissingHereError
from lumiimg.files import temporary_folder
from lumiimg.report.json_images import DoctorResult
from lumiimg.report.views.doctor import doctor_document, no_engine_document


def execute(arguments: argparse.Namespace) -> int:
    output, settings = Output.of(arguments), read_settings(os.environ)
    try:
        engines = [*engines_here(os.environ)]
    except MissingHereError as error:
        if arguments.json:
            raise
        output.show(no_engine_document(error, next_step(None, os.environ)))
        return error.exit_code
    machine, trials = try_engines(engines, os.environ, settings.cache)
    rooms = room_at(settings.cache), room_at(temporary_folder())
    result = DoctorResult(machine.engine, tuple(trials), faults_of(machine), rooms, next_step(machine, os.environ))
    code = {True: ExitCode.GOOD, False: ExitCode.NO, None: ExitCode.UNDECIDED}[builds_here(machine)]
    return output.deliver(doctor_document(result, settings.cache), "doctor", result, code)
