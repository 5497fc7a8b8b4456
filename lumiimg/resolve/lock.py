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
"""The note of such a source."""
STAGED_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_@+=:,.-]{0,250}")
"""The name of a file in the build."""


@dataclass(frozen=True, slots=True)
class LockedSource:
    """An archive that a layer is built from: where from, and what it must be."""

    name: str
    """In the layer."""
    variable: str
    file: str
    """Its name beside the definition."""
    sha256: str | None
    """In hexadecimal; null as long as nobody has published or measured it."""
    location: str
    """Address, or path of a file that was given."""
    note: str = ""
    """What a person should know of where the digest is from."""
    version: str = ""
    """Of a wheel."""
    size_bytes: int | None = field(default=None, compare=False)
    """That its index says; null: none does."""

    @property
    def is_local(self) -> bool:
        """Whether it is a file of this machine."""
        return not is_address(self.location.removeprefix("git+"))

    @property
    def is_commit(self) -> bool:
        """Whether it is a project of Python at a commit of git, which is built in the image."""
        return self.location.startswith(SCHEME)


def locked_wheel(url: str, sha256: str | None, size_bytes: int | None = None) -> LockedSource:
    """Return a wheel by its address, whose last part names project and version (PEP 427, 503). Raises ValueError."""
    file = unquote(urlsplit(url).path).rpartition("/")[2]
    name, version, _, _ = parse_wheel_filename(file)
    if not STAGED_FILE.fullmatch(file):
        raise ValueError(f"{file!r} is not a plain file name")
    return LockedSource(name, "", file, sha256, url, version=str(version), size_bytes=size_bytes)


def locked_commit(name: str, version: str, address: str, sha256: str, size_bytes: int | None = None) -> LockedSource:
    """Return a project of Python at a commit, as a layer gets it."""
    return LockedSource(name, "", f"{name}-{version}.tar", sha256, address, version=version, size_bytes=size_bytes)


@dataclass(frozen=True, slots=True)
class LockedLayer(ReleasedLayer):
    """A layer with its arguments and sources resolved."""

    sources: tuple[LockedSource, ...]
    """Files that the layer is made of."""
    wheels: tuple[LockedSource, ...] = ()
    """Python distributions, those that it names and all that they require; `name` and `version` identify each."""
    wheel_bytes: int | None = field(default=None, compare=False)
    """Of all of them together, as their index says; null: it does not say of each."""

    @property
    def versions(self) -> dict[str, str]:
        """Versions of components that it brings, with arguments filled in; of an image, as it names them."""
        if self.layer.is_foreign:
            return dict(self.layer.has)
        found = self.layer.has_of(self.release)
        return {name: expand(version, self.arguments) for name, version in found.items()}

    def with_wheels(self, wheels: Sequence[LockedSource]) -> LockedLayer:
        """Return the layer with these Python distributions, as an index offers them."""
        sizes = [one.size_bytes for one in wheels if one.size_bytes is not None]
        return replace(self, wheels=tuple(wheels), wheel_bytes=sum(sizes) if len(sizes) == len(wheels) else None)

    def with_digests(self, known: Mapping[str, str]) -> LockedLayer:
        """Return the layer with a digest for each source that has none, from those that are known by address."""
        sources = (replace(one, sha256=one.sha256 or known[one.location]) for one in self.sources)
        return replace(self, sources=tuple(sources))

    @property
    def is_unlisted(self) -> bool:
        """Whether its release was read, or derived: the catalogue has no row of it."""
        return self.release is not None and self.release.is_unlisted

    @property
    def pins(self) -> tuple[str, ...]:
        """The Python distributions that its release names, each in one version."""
        return self.release.wheels if self.release else ()

    @property
    def without(self) -> tuple[str, ...]:
        """Python projects that its release leaves out, whoever requires them, as PEP 503 writes them."""
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
    """A base and its layers, in the order in which they are built."""

    request: Request
    """What it was made from."""
    bootstrap: LockedBootstrap
    """Where the base comes from."""
    base: LockedLayer
    layers: tuple[LockedLayer, ...]
    fabric: Fabric = Fabric.NONE
    """Where it gets libfabric with the cxi provider from."""
    site: str | None = None
    """The machine that it is for; null: none was named."""
    gpu: str | None = None
    """The GPU of that machine, which layers are compiled for where nobody names another; null where it is not known."""
    rules: tuple[RuleResult, ...] = ()
    """Results of the compatibility rules."""
    resolved: bool = False
    """Whether the wheels are all that the layers require: some of them may need none of their own."""

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
        """Versions of components that base and layers bring."""
        return {name: version for layer in self.stack for name, version in layer.versions.items()}

    @property
    def doubts(self) -> tuple[RuleResult, ...]:
        """What the rules warn of, or could not decide; and where software for GPUs is for no machine."""
        found = tuple(rule for rule in self.rules if rule.outcome.severity is Severity.UNKNOWN)
        there = {name for layer in self.stack for name in (*layer.layer.provides, *layer.layer.has)}
        for_none = self.site in {None, "generic"} and "rocm" in there and PLUGIN_COMPONENT not in there
        return (*found, NO_MACHINE) if for_none else found

    @property
    def missing_digests(self) -> tuple[str, ...]:
        """What only the network has, and is still open: digests of the base and of sources, wheels."""
        missing = [f"the digest of {self.bootstrap.origin}"] if self.bootstrap.is_open else []
        for layer in self.stack:
            missing += [f"the digest of {source.location}" for source in layer.sources if source.sha256 is None]
            if not self.resolved and not layer.wheels and wants_python(layer):
                missing.append(f"the wheels of {layer.name}")
        return tuple(missing)


def from_registry(lock: Lock, mirrors: Mirrors) -> Lock:
    """Return the lock on the image of a registry that its base is, too; itself where it is none."""
    return replace(lock, bootstrap=in_registry(lock.base.layer, mirrors) or lock.bootstrap)


def wants_python(layer: LockedLayer) -> bool:
    """Whether a layer wants Python distributions of a package index."""
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
    """Return the files that a layer of the catalogue is made of, its own and those that it shares, by their names."""
    names = ["layer.toml", "post.sh", *(["test.sh"] if layer.test is not None else [])]
    return {name: layer.folder / name for name in names} | {**layer.staged}
