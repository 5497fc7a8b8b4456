"""Say whether a layer of an image is in the cache and, if not, how it differs
from the nearest layer there.

examples:
  lumiimg why vllm --recipe lumi-vllm
  lumiimg why pytorch --base rocm-6.4.4 --add pytorch --site lumi

exit codes: 0 it is in the cache
            1 it is not; what differs is printed
            2 no such layer in the image that is asked for
"""

from __future__ import annotations

import argparse
import os

from lumiimg.cli.options import add_json, add_quiet
from lumiimg.cli.request import add_request, planned
from lumiimg.errors import BadInputError, ExitCode


def configure_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("layer", metavar="LAYER", help="layer or base of the image that the options name")
    add_request(parser)
    add_quiet(parser)
    add_json(parser)
    parser.set_defaults(offline=False)


def execute(arguments: argparse.Namespace) -> int:
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
    if arguments.layer not in names:
        raise BadInputError(f"{arguments.layer!r} is not a layer of this image", hint=f"it has: {', '.join(names)}")
    keys = layer_keys(steps, machine)
    at = names.index(arguments.layer)
    answer = why(cache, keys[: at + 1], steps[at].layers, content_below(chain[0]))
    print_why(answer, names[at - 1] if at else None, as_json=arguments.json, quiet=arguments.quiet)
    return ExitCode.GOOD if answer.entry else ExitCode.NO
