"""Members of a family of bases that nobody wrote down: images whose names say what they have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from lumiimg.catalog.layers import Bootstrap, Layer
from lumiimg.catalog.named_images import NamedImage, completed, named_image


def member_of(family: Layer, image: NamedImage) -> str | None:
    """Return the member that an image is, which says more of it than its name; None where it is none."""
    origins = {origin for _, origin in image.origins}
    return next((one.name for one in family.variants if one.bootstrap.origin in origins), None)


def known_by_name(family: Layer) -> Iterator[str]:
    """Yield the names of images that are known and no member."""
    for known in family.named.known if family.named else ():
        image = named_image(family.named, known.name) if family.named else None
        if image is not None and member_of(family, image) is None:
            yield image.name


def member_by_name(family: Layer, image: NamedImage, siblings: Iterable[Mapping[str, str]]) -> Layer:
    """Return the base that an image of a family is, by its name and what other bases have."""
    has = completed({**family.has, **image.has}, siblings)
    # what each image with ROCm, or with a plugin, has, in whatever version
    more = {"rccl": "rocm" in has, "net-api": "net-plugin" in family.provides}
    return replace(
        family,
        name=image.name,
        summary=image.summary,
        source=family.named.source if family.named else family.source,
        status="documented",
        provides=(*family.provides, *(name for name, there in more.items() if there and name not in has)),
        has=has,
        bootstraps=tuple(Bootstrap(agent, origin) for agent, origin in image.origins),
        variants=(),
        named=None,
        by_name=True,
    )
