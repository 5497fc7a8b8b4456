"""What a request can be made of, for one site: bases and layers, each read once, and which of them are alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from lumiimg.catalog.needs import version_of
from lumiimg.decode import DecodeError
from lumiimg.resolve.arguments import for_gpu
from lumiimg.resolve.stack import PLUGIN, PLUGIN_COMPONENT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from packaging.specifiers import SpecifierSet

    from lumiimg.catalog.catalogue import Catalogue
    from lumiimg.catalog.layers import Layer
    from lumiimg.resolve.context import FoundReleases
    from lumiimg.resolve.request import Request

_PLAIN = {"os", "glibc", "python", "rocm", "rccl"}
"""What a base has that is only there to be built on."""
_SERVER = "llm-server"
_PREFERRED = {"net-plugin": PLUGIN, "libfabric": "fabric-bundled"}
"""Component -> the layer to bring in, where several could."""


class SiteCatalogue:
    """Bases, images as bases among them, and layers. Each method raises as the catalogue's does."""

    def __init__(
        self,
        catalogue: Catalogue,
        images: Mapping[str, Layer] | None = None,
        arch: str | None = None,
        found: Mapping[str, FoundReleases] | None = None,
    ) -> None:
        """`images` and `found` are beside what the catalogue has: images as bases, and releases without a row."""
        self._catalogue = catalogue
        self._arch = arch
        self._found = found or {}
        self._read: dict[str, Layer] = dict(images or {})

    def base(self, name: str) -> Layer:
        return self._read.get(name) or self._read.setdefault(name, self._catalogue.base(name))

    def layer(self, name: str) -> Layer:
        read = self._read.get(name)
        if read is not None and not read.is_base:
            return read
        layer = for_gpu(self._catalogue.layer(name), self._arch)
        if (found := self._found.get(name)) is not None:
            layer = replace(layer, releases=(*layer.releases, *found.releases))
        return self._read.setdefault(name, layer)

    def versions_found(self, name: str) -> list[str]:
        """Return the versions of a layer that no row has, and that were looked for: those wanted, else the nearest."""
        return [row.version for row in self._found[name].releases] if name in self._found else []

    def nearest_in_index(self, name: str) -> str | None:
        """Return what the package index has of a layer, where it does not have the version that is asked for."""
        return self._found[name].nearest if name in self._found else None

    def layers(self, component: str | None = None) -> Iterator[tuple[str, Layer]]:
        """Yield every layer that can be read, by its name; `component`: all that bring it, and few others."""
        for name in self._catalogue.layer_names() if component is None else self._catalogue.may_bring(component):
            try:
                entry = self._read.get(name) or self._catalogue.entry(name)
            except DecodeError:
                continue  # a broken folder of the user's must not hide the others
            if not entry.is_base:
                yield name, self.layer(name)

    def provider_of(self, component: str) -> str | None:
        """Return the layer that brings a component: the preferred one, or the only one."""
        if component in _PREFERRED:
            return _PREFERRED[component]
        found = [name for name, layer in self.layers(component) if component in {name, *layer.provides, *layer.has}]
        return found[0] if len(found) == 1 else None

    def lacking(self, request: Request) -> Iterator[tuple[int, str]]:
        """Yield the layers without which one of a request is refused, each with that one's place."""
        for at, name in enumerate(request.unpinned):
            fatal = (trouble for trouble in self.layer(name).troubles if trouble.refused)
            wanted = {need.component for trouble in fatal for need in trouble.unless}
            found = (self.provider_of(component) for component in sorted(wanted))
            yield from ((at, layer) for layer in found if layer is not None and layer not in request.unpinned)

    def plugins(self, request: Request) -> list[str]:
        """Return the layers of a request that bring a net plugin."""
        return [name for name in request.unpinned if PLUGIN_COMPONENT in self.layer(name).provides]

    def carried(self, name: str) -> tuple[str, ...]:
        """Return the layers that would bring what an image as a base is there for: a server, else torch, else JAX."""
        base, layers = self.base(name), dict(self.layers())
        if not base.is_foreign:
            return ()
        of_servers = {layer for layer, of in layers.items() if _SERVER in of.provides}
        brings = {
            layer: {*of.has, *(key for release in of.releases for key in release.has)} for layer, of in layers.items()
        }
        for wanted, able in ((base.has.keys() & of_servers, of_servers), ({"torch"}, layers), ({"jax"}, layers)):
            found = tuple(layer for layer in sorted(able) if brings[layer] & wanted & base.has.keys())
            if found:
                return found[:1]
        return ()

    def alike(self, request: Request) -> Iterator[tuple[str, ...]]:
        """Yield the layers of a request with another in place of one that provides the same."""
        names = request.unpinned
        for at, name in enumerate(names):
            provides = set(self.layer(name).provides)
            for other, layer in self.layers():
                if other not in names and provides & set(layer.provides):
                    yield (*names[:at], other, *names[at + 1 :])

    def bases_near(self, name: str) -> list[str]:
        """Return the other bases of the same kind, then those that have nothing yet which layers bring.

        Of each, the one whose ROCm is nearest comes first; of two as near the older.
        """
        here = self.base(name)
        rocm = self.rocm(name)
        found = []
        for other in self._catalogue.base_names():
            try:
                base = self.base(other)
            except DecodeError:
                continue
            version = _number(base.has.get("rocm"))
            is_other_kind = base.folder != here.folder
            if other != name and version is not None and (not is_other_kind or base.has.keys() <= _PLAIN):
                found.append((is_other_kind, abs(version - rocm), version, other))
        return [other for *_, other in sorted(found)]

    def bases_like(self, name: str) -> list[str]:
        """Return the other bases of the same kind, in the same order."""
        folder = self.base(name).folder
        return [other for other in self.bases_near(name) if self.base(other).folder == folder]

    def rocm(self, base: str) -> float:
        """Return the release of a base's ROCm as a number, 0 where there is none."""
        return _number(self.base(base).has.get("rocm")) or 0.0


def is_listed(layer: Layer, versions: SpecifierSet) -> bool:
    """Whether the catalogue has a release of a layer among some versions."""
    rows = [row.version for row in layer.releases]
    default = layer.arguments.get("VERSION")
    own = rows or ([default.default] if default else [])
    return any(versions.contains(version, prereleases=True) for version in own)


def _number(version: str | None) -> float | None:
    """Return a release of ROCm as a number, so that 6.2.4 is nearer to 6.3 than to 7.0."""
    found = version_of(version)
    return sum((part / 100**place for place, part in enumerate(found.release[:3])), start=0.0) if found else None
