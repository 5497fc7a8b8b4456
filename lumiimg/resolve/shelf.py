"""Entries of the catalogue for one site and one request: each is read once, layers as they are for the site's GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumiimg.catalog.toml_table import CatalogError
from lumiimg.resolve.arguments import for_gpu

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from lumiimg.catalog.catalogue import Catalogue
    from lumiimg.catalog.layers import Layer


class Shelf:
    """Bases, images as bases among them, and layers. Each method raises as the catalogue's does."""

    def __init__(self, catalogue: Catalogue, images: Mapping[str, Layer], arch: str | None) -> None:
        self._arch = arch
        self._catalogue = catalogue
        self._kept: dict[str, Layer] = dict(images)

    def base(self, name: str) -> Layer:
        return self._kept.get(name) or self._kept.setdefault(name, self._catalogue.base(name))

    def layer(self, name: str) -> Layer:
        kept = self._kept.get(name)
        if kept is not None and not kept.is_base:
            return kept
        return self._kept.setdefault(name, for_gpu(self._catalogue.layer(name), self._arch))

    def layers(self) -> Iterator[tuple[str, Layer]]:
        """Yield every layer that can be read, by its name."""
        for name in self._catalogue.layer_names():
            try:
                entry = self._kept.get(name) or self._catalogue.entry(name)
            except CatalogError:
                continue  # a broken folder of the user's must not hide the others
            if not entry.is_base:
                yield name, self.layer(name)
