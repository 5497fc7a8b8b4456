"""Try what a build needs: the engine and what is known of its version, a
container, debootstrap, user namespaces, overlays, FUSE, squashfs-tools, proot;
room on disk and in memory.
What was found is kept for builds on this machine until it is started again.

exit codes: 0 images can be built here
            1 they cannot, as what is needed does not work
            3 that is not known: no container was seen to start, for a reason
              that lumiimg does not know
            4 there is no container engine
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

from lumiimg.cli.options import add_json, add_quiet
from lumiimg.errors import ExitCode


def configure_parser(parser: argparse.ArgumentParser) -> None:
    add_quiet(parser)
    add_json(parser)


def execute(arguments: argparse.Namespace) -> int:
    from lumiimg.build.builder import WAYS, against
    from lumiimg.build.capabilities import CONTAINER, was_seen
    from lumiimg.build.capability_cache import look_again
    from lumiimg.build.disk_space import room_at
    from lumiimg.catalog.settings import read_settings
    from lumiimg.engine.engine import clean_environment, find_engine
    from lumiimg.report.machine import print_doctor

    engine = find_engine(os.environ)
    settings = read_settings(os.environ)
    machine = look_again(engine, clean_environment(os.environ), settings.cache)
    no_container = [] if machine.starts else ["no container is started"]
    faults = {way: [*no_container, *against(machine, way)] for way in WAYS}
    rooms = [room_at(settings.cache), room_at(Path(tempfile.gettempdir()))]
    print_doctor(engine, machine.trials, faults, rooms, settings.cache, as_json=arguments.json, quiet=arguments.quiet)
    usable = [way for way in WAYS if not faults[way]]
    if not usable or not machine.trials[0].works:
        return ExitCode.NO
    return ExitCode.GOOD if was_seen(machine.trials, CONTAINER) else ExitCode.UNDECIDED
