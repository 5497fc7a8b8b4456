"""Try what a build needs: the engine and what is known of its version, a
container, debootstrap, user namespaces, overlays, FUSE, squashfs-tools, proot;
room on disk and in memory.
What was found is kept for builds on this machine until it is started again.

exit codes: 0 images can be built here
            1 they cannot, as what is needed does not work
            3 that is not known: no container was seen to start, for a reason
              that lumiimg does not know
            4 there is no container engine, and Linux makes no containers here
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

from lumiimg.cli.options import add_json, add_quiet
from lumiimg.errors import ExitCode

WITHOUT_ENGINE = "a container without that engine"


def configure_parser(parser: argparse.ArgumentParser) -> None:
    add_quiet(parser)
    add_json(parser)


def execute(arguments: argparse.Namespace) -> int:
    from lumiimg.build.builder import WAYS, against
    from lumiimg.build.capabilities import CONTAINER, CapabilityTrial, was_seen
    from lumiimg.build.capability_cache import look_again
    from lumiimg.build.disk_space import room_at
    from lumiimg.catalog.settings import read_settings
    from lumiimg.engine.engine import EngineKind, clean_environment, find_engine, of_kernel
    from lumiimg.report.machine import print_doctor

    settings, environment = read_settings(os.environ), clean_environment(os.environ)
    machine = look_again(find_engine(os.environ), environment, settings.cache)
    trials = machine.trials
    if machine.engine.kind is not EngineKind.NAMESPACES:
        other = look_again(of_kernel(), environment, settings.cache)
        by_kernel = next(trial for trial in other.trials if trial.name == CONTAINER)
        trials += (CapabilityTrial(WITHOUT_ENGINE, by_kernel.works, f"{other.engine.name}: {by_kernel.said}"),)
        if not machine.starts and by_kernel.works:  # what a build takes then (`this_machine`)
            machine, trials = other, (*other.trials, *(trial for trial in trials if not trial.works))
    engine = machine.engine
    no_container = [] if machine.starts else ["no container is started"]
    faults = {way: [*no_container, *against(machine, way)] for way in WAYS}
    rooms = [room_at(settings.cache), room_at(Path(tempfile.gettempdir()))]
    print_doctor(engine, trials, faults, rooms, settings.cache, as_json=arguments.json, quiet=arguments.quiet)
    usable = [way for way in WAYS if not faults[way]]
    if not usable or not trials[0].works:
        return ExitCode.NO
    return ExitCode.GOOD if was_seen(trials, CONTAINER) else ExitCode.UNDECIDED
