"""Values of a layer's arguments: the user's, the release's, the layer's; and that of its GPU, which is the site's."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from lumiimg.catalog.layers import Argument, Layer, own_values
from lumiimg.catalog.releases import Release, placeholders

LONGEST = 4096
"""Characters of a value: beyond 128 KiB no program starts with it among its variables."""
ARCH = "ARCH"
"""The argument of layers that are compiled for a GPU."""


def values_of(layer: Layer, release: Release | None, arguments: Mapping[tuple[str, str], str]) -> dict[str, str]:
    """Return the values of a layer's arguments: the user's (by layer and argument), the release's, the layer's."""
    given = {name: value for (of, name), value in arguments.items() if of == layer.name}
    return {**own_values(layer, release), **{name: value for name, value in given.items() if name in layer.arguments}}


def overridden_sources(layer: Layer, release: Release | None, values: Mapping[str, str]) -> tuple[str, ...]:
    """Return the arguments by which other sources are named than those that the layer's facts are of.

    They choose a source, and tell no version themselves.
    """
    versions = (*layer.has.values(), *(release.has.values() if release else ()))
    telling = {name for version in versions for name in placeholders(version)}
    choosing = [name for source in layer.sources for name in placeholders(source.key) if name not in telling]
    usual = own_values(layer, release)
    return tuple(name for name in dict.fromkeys(choosing) if values[name] != usual[name])


def for_gpu(layer: Layer, arch: str | None) -> Layer:
    """Return a layer as it is where the GPU is known: what is compiled for one is compiled for that, if nobody says.

    What was tried for another GPU is not known of it.
    """
    argument = layer.arguments.get(ARCH)
    if arch is None or argument is None or not is_gpu(argument.default) or not _takes(argument, arch):
        return layer
    return replace(layer, arguments={**layer.arguments, ARCH: replace(argument, default=arch)})


def is_gpu(value: str) -> bool:
    """Return whether it is a GPU, or several, as ROCm's compilers name them; an ARCH can be a processor's, too."""
    return value.startswith("gfx")


def gpus_of(values: Mapping[str, str]) -> tuple[str, ...]:
    """Return the GPUs that a layer with such arguments is compiled for."""
    value = values.get(ARCH, "")
    return tuple(value.split(";")) if is_gpu(value) else ()


def _takes(argument: Argument, value: str) -> bool:
    return argument.pattern is None or argument.pattern.fullmatch(value) is not None
