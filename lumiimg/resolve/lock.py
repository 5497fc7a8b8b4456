"""The lock: every name, argument, URL and digest of an image, resolved before anything is built."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from packaging.utils import canonicalize_name, parse_wheel_filename

from lumiimg import __version__
from lumiimg.catalog.releases import expand
from lumiimg.core.errors import BadInputError
from lumiimg.core.files import open_regular
from lumiimg.core.findings import Severity
from lumiimg.fabric.path import Fabric
from lumiimg.fetch.git import SCHEME
from lumiimg.fetch.mirrors import is_address
from lumiimg.resolve.bootstrap import in_registry
from lumiimg.resolve.rules import NO_MACHINE, RuleResult
from lumiimg.resolve.stack import PLUGIN_COMPONENT, ReleasedLayer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from lumiimg.catalog.layers import Layer
    from lumiimg.fetch.mirrors import Mirrors
    from lumiimg.resolve.bootstrap import LockedBootstrap
    from lumiimg.resolve.request import Request

MADE_HERE = "no digest is published: that of the first download is used from then on"
"""Note of a source without a published digest."""
STAGED_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_@+=:,.-]{0,250}")
"""Valid names of files in the build."""


@dataclass(frozen=True, slots=True)
class LockedSource:
    """An archive that a layer is built from, with its location and digest."""

    name: str
    """Name in the layer."""
    variable: str
    file: str
    """File name beside the definition."""
    sha256: str | None
    """In hexadecimal; null until it is published or computed."""
    location: str
    """Address, or path of a file given by the user."""
    note: str = ""
    """Note for people on where the digest is from."""
    version: str = ""
    """Version of a wheel."""
    size_bytes: int | None = field(default=None, compare=False)
    """Size that its index states; null if it states none."""

    @property
    def is_local(self) -> bool:
        """Whether it is a file on this machine."""
        return not is_address(self.location.removeprefix("git+"))

    @property
    def is_commit(self) -> bool:
        """Whether it is a Python project at a git commit, which is built in the image."""
        return self.location.startswith(SCHEME)


def locked_wheel(url: str, sha256: str | None, size_bytes: int | None = None) -> LockedSource:
    """Return a wheel by its address, whose last part names project and version (PEP 427, 503). Raises ValueError."""
    file = unquote(urlsplit(url).path).rpartition("/")[2]
    name, version, _, _ = parse_wheel_filename(file)
    if not STAGED_FILE.fullmatch(file):
        raise ValueError(f"{file!r} is not a plain file name")
    return LockedSource(name, "", file, sha256, url, version=str(version), size_bytes=size_bytes)


def locked_commit(name: str, version: str, address: str, sha256: str, size_bytes: int | None = None) -> LockedSource:
    """Return a Python project at a commit as a source of a layer."""
    return LockedSource(name, "", f"{name}-{version}.tar", sha256, address, version=version, size_bytes=size_bytes)


@dataclass(frozen=True, slots=True)
class LockedLayer(ReleasedLayer):
    """A layer with its arguments and sources resolved."""

    sources: tuple[LockedSource, ...]
    """Files that the layer is built from."""
    wheels: tuple[LockedSource, ...] = ()
    """Python distributions, those that it names and all that they require; `name` and `version` identify each."""
    wheel_bytes: int | None = field(default=None, compare=False)
    """Total size of the wheels, as their index states; null if it does not state each."""

    @property
    def versions(self) -> dict[str, str]:
        """Versions of the components that it provides, with arguments filled in; those of an image are unchanged."""
        if self.layer.is_foreign:
            return dict(self.layer.has)
        found = self.layer.has_of(self.release)
        return {name: expand(version, self.arguments) for name, version in found.items()}

    def with_wheels(self, wheels: Sequence[LockedSource]) -> LockedLayer:
        """Return the layer with these Python distributions, as an index offers them."""
        sizes = [one.size_bytes for one in wheels if one.size_bytes is not None]
        return replace(self, wheels=tuple(wheels), wheel_bytes=sum(sizes) if len(sizes) == len(wheels) else None)

    def with_digests(self, known: Mapping[str, str]) -> LockedLayer:
        """Return the layer with missing digests of its sources filled in from those known by address."""
        sources = (replace(one, sha256=one.sha256 or known[one.location]) for one in self.sources)
        return replace(self, sources=tuple(sources))

    @property
    def is_unlisted(self) -> bool:
        """Whether its release was read from an index, or derived, because the catalogue has no row for it."""
        return self.release is not None and self.release.is_unlisted

    @property
    def pins(self) -> tuple[str, ...]:
        """Python distributions that its release pins, each to one version."""
        return self.release.wheels if self.release else ()

    @property
    def without(self) -> tuple[str, ...]:
        """Python projects that its release leaves out, whatever requires them; normalized names (PEP 503)."""
        return tuple(map(canonicalize_name, self.release.without if self.release else ()))

    @property
    def set_environment(self) -> dict[str, str]:
        """Variables that the layer sets, with arguments filled in."""
        return {name: expand(value, self.arguments) for name, value in self.layer.environment.set.items()}

    @property
    def prepend_environment(self) -> dict[str, str]:
        """Paths that the layer puts first, with arguments filled in."""
        return {name: expand(value, self.arguments) for name, value in self.layer.environment.prepend.items()}


@dataclass(frozen=True, slots=True)
class Lock:
    """A base and its layers, in build order."""

    request: Request
    """The request that it was made from."""
    bootstrap: LockedBootstrap
    """Where the base comes from."""
    base: LockedLayer
    layers: tuple[LockedLayer, ...]
    fabric: Fabric = Fabric.NONE
    """Where the image gets libfabric with the cxi provider from."""
    site: str | None = None
    """The machine that it is for; null if none was named."""
    gpu: str | None = None
    """The GPU of that machine, for which layers are compiled by default; null if it is not known."""
    rules: tuple[RuleResult, ...] = ()
    """Results of the compatibility rules."""
    resolved: bool = False
    """Whether all wheels have been resolved; a layer without wheels may then need none of its own."""

    @property
    def lumiimg(self) -> str:
        """Version of lumiimg."""
        return __version__

    @property
    def stack(self) -> tuple[LockedLayer, ...]:
        """Base first."""
        return (self.base, *self.layers)

    @property
    def versions(self) -> dict[str, str]:
        """Versions of the components that base and layers provide."""
        return {name: version for layer in self.stack for name, version in layer.versions.items()}

    @property
    def doubts(self) -> tuple[RuleResult, ...]:
        """Warnings and open questions of the rules, and a warning if GPU software is for no named machine."""
        found = tuple(rule for rule in self.rules if rule.outcome.severity is Severity.UNKNOWN)
        there = {name for layer in self.stack for name in (*layer.layer.provides, *layer.layer.has)}
        for_none = self.site in {None, "generic"} and "rocm" in there and PLUGIN_COMPONENT not in there
        return (*found, NO_MACHINE) if for_none else found

    @property
    def missing_digests(self) -> tuple[str, ...]:
        """What is still missing and only the network has: digests of the base and of sources, wheels."""
        missing = [f"the digest of {self.bootstrap.origin}"] if self.bootstrap.is_open else []
        for layer in self.stack:
            missing += [f"the digest of {source.location}" for source in layer.sources if source.sha256 is None]
            if not self.resolved and not layer.wheels and wants_python(layer):
                missing.append(f"the wheels of {layer.name}")
        return tuple(missing)


def from_registry(lock: Lock, mirrors: Mirrors) -> Lock:
    """Return the lock with its base as an image from a registry; unchanged if the base is in none."""
    return replace(lock, bootstrap=in_registry(lock.base.layer, mirrors) or lock.bootstrap)


def wants_python(layer: LockedLayer) -> bool:
    """Return whether a layer requires Python distributions from a package index."""
    own = layer.layer
    return bool(layer.pins or own.packages) or any(one.requirements for one in own.sources_of(layer.release))


def layer_digest(layer: Layer) -> str:
    """Return the digest of the facts, scripts and files of a layer of the catalogue. Raises BadInputError."""
    digest = hashlib.sha256()
    for name, path in layer_files(layer).items():
        try:
            with open_regular(path) as file:
                digest.update(f"{len(name)}:{name}{os.fstat(file.fileno()).st_size}:".encode())
                hashlib.file_digest(file, lambda: digest)  # in pieces
        except OSError as error:
            raise BadInputError(f"cannot be read: {error.strerror}", where=str(path)) from error
    return f"sha256:{digest.hexdigest()}"


def layer_files(layer: Layer) -> dict[str, Path]:
    """Return the files of a layer of the catalogue by name, its own and shared ones."""
    names = ["layer.toml", "post.sh", *(["test.sh"] if layer.test is not None else [])]
    return {name: layer.folder / name for name in names} | {**layer.staged}
