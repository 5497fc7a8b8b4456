"""What `build --why LAYER` does: whether a layer is in the cache and, if not, how it differs from the nearest there."""

from __future__ import annotations

import argparse
import os

from lumiimg.cli.request import planned
from lumiimg.errors import BadInputError, ExitCode


def answer_why(arguments: argparse.Namespace) -> int:
    """Print why a layer of the image that is asked for would be built again; return the exit code.

    Raises BadInputError where the image has no such layer.
    """
    from lumiimg.build.cache import LayerCache
    from lumiimg.build.cache_miss import why
    from lumiimg.build.choice import machine_for_builds
    from lumiimg.build.keys import layer_keys
    from lumiimg.build.steps import content_below, steps_of
    from lumiimg.catalog.settings import read_settings
    from lumiimg.definition.writer import write_chain
    from lumiimg.report.cache import print_why
    from lumiimg.resolve.decide import locked

    _, plan = planned(arguments)
    chain = write_chain(locked(plan))
    cache = LayerCache(read_settings(os.environ).cache)
    machine = machine_for_builds(os.environ, cache.root)
    steps = steps_of(chain, machine)
    names = [step.layers[0] for step in steps]
    if arguments.why not in names:
        raise BadInputError(f"{arguments.why!r} is not a layer of this image", hint=f"it has: {', '.join(names)}")
    keys = layer_keys(steps, machine)
    at = names.index(arguments.why)
    answer = why(cache, keys[: at + 1], steps[at].layers, content_below(chain[0]))
    print_why(answer, names[at - 1] if at else None, as_json=arguments.json, quiet=arguments.quiet)
    return ExitCode.GOOD if answer.entry else ExitCode.NO
