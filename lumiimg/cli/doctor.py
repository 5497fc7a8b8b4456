"""Try what a build needs."""

from __future__ import annotations

import argparse
import os

from lumiimg.build.choice import builds_here, faults_of, try_engines
from lumiimg.build.disk_space import room_at
from lumiimg.build.lacking import next_step
from lumiimg.catalog.settings import read_settings
from lumiimg.engine.engine import engines_here
from lumiimg.errors import ExitCode, MissingHereError
from lumiimg.files import temporary_folder
from lumiimg.report.machine import print_doctor, print_no_engine


def execute(arguments: argparse.Namespace) -> int:
    settings = read_settings(os.environ)
    try:
        engines = [*engines_here(os.environ)]
    except MissingHereError as error:
        if arguments.json:
            raise
        print_no_engine(error, next_step(None, os.environ), quiet=arguments.quiet)
        return error.exit_code
    machine, trials = try_engines(engines, os.environ, settings.cache)
    rooms = [room_at(settings.cache), room_at(temporary_folder())]
    faults = faults_of(machine)
    print_doctor(
        machine.engine,
        trials,
        faults,
        rooms,
        settings.cache,
        next_step(machine, os.environ),
        as_json=arguments.json,
        quiet=arguments.quiet,
    )
    return {True: ExitCode.GOOD, False: ExitCode.NO, None: ExitCode.UNDECIDED}[builds_here(machine)]
