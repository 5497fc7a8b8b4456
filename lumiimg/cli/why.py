"""What `build --why LAYER` does: whether a layer is in the cache and, if not, how it differs from the nearest there."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from lumiimg.errors import BadInputError, ExitCode

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from lumiimg.definition.definition import Definition


def refuse_other_layer(name: str, chain: Sequence[Definition]) -> None:
    """Raise BadInputError for a layer that an image does not have; before anything of it is asked of a server."""
    from lumiimg.build.choice import machine_for_builds
    from lumiimg.build.steps import steps_of
    from lumiimg.catalog.settings import read_settings

    names = [
        step.layers[0] for step in steps_of(chain, machine_for_builds(os.environ, read_settings(os.environ).cache))
    ]
    if name not in names:
        raise BadInputError(f"{name!r} is not a layer of this image", hint=f"it has: {', '.join(names)}")


def answer_why(arguments: argparse.Namespace, chain: Sequence[Definition]) -> int:
    """Print why a layer of the definitions would be built again; return the exit code."""
    from lumiimg.build.cache import LayerCache
    from lumiimg.build.cache_miss import why
    from lumiimg.build.choice import machine_for_builds
    from lumiimg.build.keys import layer_keys
    from lumiimg.build.steps import content_below, steps_of
    from lumiimg.catalog.settings import read_settings
    from lumiimg.report.cache import print_why

    cache = LayerCache(read_settings(os.environ).cache)
    machine = machine_for_builds(os.environ, cache.root)
    steps = steps_of(chain, machine)
    names = [step.layers[0] for step in steps]
    keys = layer_keys(steps, machine)
    at = names.index(arguments.why)
    answer = why(cache, keys[: at + 1], steps[at].layers, content_below(chain[0]))
    print_why(answer, names[at - 1] if at else None, as_json=arguments.json, quiet=arguments.quiet)
    return ExitCode.GOOD if answer.entry else ExitCode.NO
