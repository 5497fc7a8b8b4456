"""Values of a layer's arguments: the user's, the release's, the layer's; and that of its GPU, which is the site's."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lumiimg.catalog.layers import Argument, Layer, Release

LONGEST = 4096
"""Characters of a value: beyond 128 KiB no program starts with it among its variables."""
ARCH = "ARCH"
"""The argument of layers that are compiled for a GPU."""


def values_of(layer: Layer, release: Release | None, arguments: Mapping[tuple[str, str], str]) -> dict[str, str]:
    """Return the values of a layer's arguments: the user's (by layer and argument), the release's, the layer's."""
    values = {argument.name: argument.default for argument in layer.arguments.values()}
    if release is not None:
        values |= {"VERSION": release.version, **release.arguments}
    values |= {name: value for (of, name), value in arguments.items() if of == layer.name}
    return {name: value for name, value in values.items() if name in layer.arguments}


def for_gpu(layer: Layer, arch: str | None) -> Layer:
    """Return a layer as it is where the GPU is known: what is compiled for one is compiled for that, if nobody says."""
    argument = layer.arguments.get(ARCH)
    if arch is None or argument is None or not is_gpu(argument.default) or not _takes(argument, arch):
        return layer
    return replace(layer, arguments={**layer.arguments, ARCH: replace(argument, default=arch)})


def is_gpu(value: str) -> bool:
    """Return whether it is a GPU, or several, as ROCm's compilers name them; an ARCH can be a processor's, too."""
    return value.startswith("gfx")


def _takes(argument: Argument, value: str) -> bool:
    return argument.pattern is None or argument.pattern.fullmatch(value) is not None
