"""Images whose names say what they have: the next one of a family is a base on the day it appears.

`lumi-multitorch-u24r72f21m50t211-20260929_104918` has Ubuntu 24.04, ROCm 7.2, libfabric 2.1, MPICH 5.0 and torch 2.11.
How the names of a family are read is `[named]` of its layer.toml.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from msgspec import structs

from lumiimg.catalog.layers import Bootstrap, Layer
from lumiimg.catalog.releases import expand


def name_of_image(text: str) -> str:
    """Return what an image is called as a base: by the path of its file, or by its place in a registry."""
    text = Path(text).name.removesuffix(".sif") if text.endswith(".sif") else text.removeprefix("docker.io/")
    return re.sub(r"[/:_]", "-", text)


def image_by_name(family: Layer, text: str) -> Layer | None:
    """Return the base that an image of a family is, by its name alone; None where the name is none of the family's."""
    names, name = family.named, name_of_image(text)
    found = names.pattern.fullmatch(name) if names else None
    if names is None or found is None:
        return None
    groups = found.groupdict("")
    places = {"localimage": names.file, "docker": names.tag}
    bootstraps = tuple(Bootstrap(agent, expand(place, groups)) for agent, place in places.items() if place)
    for variant in family.variants:
        if variant.origin in {one.origin for one in bootstraps}:
            return family.member(variant.name)  # of it more is known
    return structs.replace(
        family,
        name=name,
        summary=f"{expand(names.summary, groups)}: by its name",
        source=names.source,
        has={**family.has, **{component: expand(text, groups) for component, text in names.has.items()}},
        bootstraps=bootstraps,
        variants=(),
        named=None,
        by_name=True,
    )


def completed(image: Layer, others: Iterable[Mapping[str, str]]) -> Layer:
    """Return a base with what follows from its name: of the distribution glibc and Python, of ROCm its RCCL.

    `others` are what other bases have.
    """
    has = dict(image.has)
    for other in others:
        if other.get("os") == has.get("os") is not None:
            has |= {key: other[key] for key in ("glibc", "python") if key in other and key not in has}
        if _series(other.get("rocm")) == _series(has.get("rocm")) is not None and "rccl" in other:
            has.setdefault("rccl", other["rccl"])
    # what each image with ROCm, or with a plugin, has, in whatever version
    more = {"rccl": "rocm" in has, "net-api": "net-plugin" in image.provides}
    provides = (*image.provides, *(name for name, there in more.items() if there and name not in has))
    return structs.replace(image, has=has, provides=provides)


def _series(version: str | None) -> tuple[str, ...] | None:
    return tuple(version.split(".")[:2]) if version else None
