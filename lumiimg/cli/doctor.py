"""Try what a build needs."""

from __future__ import annotations

import argparse
import os
from contextlib import suppress

from lumiimg.build.capabilities import CONTAINER, CapabilityTrial
from lumiimg.build.capability_cache import look_again
from lumiimg.build.choice import builds_here, faults_of, first_that_works
from lumiimg.build.disk_space import room_at
from lumiimg.build.lacking import next_step
from lumiimg.catalog.settings import read_settings
from lumiimg.engine.engine import Engine, clean_environment, engines_here
from lumiimg.errors import ExitCode, MissingHereError
from lumiimg.files import temporary_folder
from lumiimg.report.machine import print_doctor, print_no_engine


def execute(arguments: argparse.Namespace) -> int:
    settings, environment = read_settings(os.environ), clean_environment(os.environ)
    try:
        engines = [*engines_here(os.environ)]
    except MissingHereError as error:
        if arguments.json:
            raise
        print_no_engine(error, next_step(None, os.environ), quiet=arguments.quiet)
        return error.exit_code
    others: list[Engine] = []
    with suppress(MissingHereError):
        unnamed = {name: value for name, value in os.environ.items() if name != "LUMIIMG_ENGINE"}
        others = [*engines_here(unnamed)]
    machines = {
        engine: look_again(engine, environment, settings.cache) for engine in dict.fromkeys((*engines, *others))
    }
    machine = first_that_works(machines[engine] for engine in engines)
    trials = [*machine.trials]
    for engine, other in machines.items():
        if other is not machine:
            trial = next(trial for trial in other.trials if trial.name == CONTAINER)
            note = "; `check` asks it anyway, as jobs do" if engine == engines[0] else ""
            trials.append(CapabilityTrial(f"{CONTAINER} by {engine.name}", trial.works, f"{trial.said}{note}"))
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
