"""The bind manifest that an image carries: what it wants of the fabric of the machine that it runs on.

It lies in the image as `/.lumiimg/bind-manifest.json`, which a label names. Whoever built the image wrote it: what the
files of the image and the node show counts, and where it says something else, that is reported.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from lumiimg.errors import BadInputError
from lumiimg.fabric.names import PRIVATE
from lumiimg.fabric.path import Fabric
from lumiimg.host.codec import FormError, count_of_values, decode, encode
from lumiimg.host.margins import Margin  # noqa: TC001 - as above
from lumiimg.wording import count

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lumiimg.image import RootFileSystem

MANIFEST = "bind-manifest.json"
"""Its name in `/.lumiimg` of an image, and of the JSON object of a SIF."""
MANIFEST_PATH = f"/.lumiimg/{MANIFEST}"
MANIFEST_LABEL = "lumiimg.bind-manifest"
"""The label that names it; the value is its path."""
SCHEMA = 1
_LIMIT_BYTES = 1 << 20
_MAX_VALUES = 1 << 14
_NAME = re.compile(r"(libfabric/)?[A-Za-z0-9_+.-]{1,200}\.so[A-Za-z0-9_.-]{0,50}", re.ASCII)
_HOST_PATH = re.compile(r"(/[A-Za-z0-9_+.@~-]{1,255}){1,60}", re.ASCII)


class ManifestError(BadInputError):
    """A file that is not a valid bind manifest; `where` is its path and the key."""


class Basis(StrEnum):
    """How the manifest knows what the image wants."""

    IMAGE = "image"
    """Read from the files of the finished image."""
    PLAN = "plan"
    """Planned before the build, from the layers: less than what the files show."""

    @property
    def words(self) -> str:
        """The same for a person."""
        return "planned before it was built" if self is Basis.PLAN else "read from the files of the image"


class SettledBy(StrEnum):
    """What the manifest knows of the machine."""

    HOST = "host"
    """The snapshot of a node: the libraries are those that load with the image there."""
    SITE = "site"
    """What is published of the site: names and versions, no paths."""
    NOTHING = "nothing"
    """No machine was named, or nothing is known of its fabric."""


@dataclass(frozen=True, slots=True)
class WantedLibrary:
    """One library of the host's fabric that the image wants at run time."""

    soname: str
    """The name by which it is needed."""
    target: str
    """Where it must be in the container."""
    reason: str
    """Why it is the host's."""
    chain: tuple[str, ...] = ()
    """Names from the program to this library, each needed by the one before."""
    host_path: str | None = None
    """Where the snapshot has it on the host; may be absent."""


@dataclass(frozen=True, slots=True)
class NeededDevice:
    """Device files that must be in the container."""

    path: str
    """`*` stands for a number."""
    reason: str
    """Why."""


@dataclass(frozen=True, slots=True)
class NeededVariable:
    """A variable that must be set in the container."""

    name: str
    """Of the variable."""
    reason: str
    """Why."""
    value: str | None = None
    """What it must be; may be absent: the scheduler sets it."""


@dataclass(frozen=True, slots=True)
class CarriedManifest:
    """What an image wants of a machine's fabric at run time."""

    fabric: Fabric
    """Where libfabric with the cxi provider comes from at run time."""
    because: str
    """Why, a sentence."""
    basis: Basis
    """How it is known what the image wants."""
    settled_by: SettledBy = SettledBy.NOTHING
    """What is known of the machine."""
    machine: str = ""
    """The node or the site, and its versions; may be absent."""
    libraries: tuple[WantedLibrary, ...] = ()
    """To be bound from the host; none for a fabric of the image's own."""
    versions: tuple[Margin, ...] = ()
    """Symbol versions that a library of one side needs of one of the other side."""
    devices: tuple[NeededDevice, ...] = ()
    """Device files that the fabric needs, whoever brings its libraries."""
    variables: tuple[NeededVariable, ...] = ()
    """Variables that the fabric needs."""
    doubts: tuple[str, ...] = ()
    """What is open, or stands against it: sentences."""
    schema: int = SCHEMA
    """Number of this schema."""

    @property
    def sentence(self) -> str:
        """How many libraries are wanted, and how that is known."""
        number = len(self.libraries)
        wanted = f"{count(number, 'library') if number else 'no libraries'} of the host"
        refused = ", which do not load in it" if number and self.fabric is Fabric.NONE else ""
        return f"{wanted}{refused}, {self.basis.words}"

    @property
    def about_machine(self) -> str:
        """What is known of the machine, for a person."""
        if self.settled_by is SettledBy.NOTHING:
            return "no machine's fabric was known"
        known = "the snapshot" if self.settled_by is SettledBy.HOST else "what is published"
        return f"settled with {known} of {self.machine}"


def to_text(manifest: CarriedManifest) -> str:
    """Return the text of its file; the same value gives the same bytes."""
    return json.dumps({**encode(manifest), "schema": SCHEMA}, indent=1, sort_keys=True, ensure_ascii=True) + "\n"


def read_manifest(root: RootFileSystem) -> CarriedManifest | None:
    """Return the manifest that an image carries; None where it carries none. Raises ManifestError, whatever it says."""
    if not root.exists(MANIFEST_PATH):
        return None
    try:
        data = root.read_bytes(MANIFEST_PATH, _LIMIT_BYTES)
    except (OSError, BadInputError) as error:
        raise ManifestError(f"cannot be read: {error}", where=MANIFEST_PATH) from error
    return from_bytes(data)


def from_bytes(data: bytes) -> CarriedManifest:
    """Return the manifest of a file's bytes. Raises ManifestError."""
    if count_of_values(data) > _MAX_VALUES:
        raise ManifestError(f"has more than {_MAX_VALUES} values, which no manifest has", where=MANIFEST_PATH)
    try:
        read = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ManifestError("is not JSON, or is nested too deeply", where=MANIFEST_PATH) from error
    schema = read.get("schema") if isinstance(read, dict) else None
    if type(schema) is not int or schema < 1:
        raise ManifestError("is not a bind manifest", where=MANIFEST_PATH)
    if schema > SCHEMA:
        what = f"was written by a newer lumiimg (schema {str(schema)[:20]}, this one reads {SCHEMA})"
        raise ManifestError(what, where=MANIFEST_PATH, hint="update lumiimg")
    try:
        manifest = decode(CarriedManifest, read)
        _check(manifest)
    except FormError as error:
        raise ManifestError(error.what, where=f"{MANIFEST_PATH}: {error.key[:200]}") from error
    return manifest


def _check(manifest: CarriedManifest) -> None:
    """Raise FormError for what no build writes: the binds of a job may come from here."""
    names = [library.soname for library in manifest.libraries]
    if len({*names}) != len(names):
        raise FormError("libraries", "names a library twice")
    for index, library in enumerate(manifest.libraries):
        key = f"libraries[{index}]"
        if not _NAME.fullmatch(library.soname):
            raise FormError(f"{key}.soname", "should be the name of a shared library")
        if library.target != f"{PRIVATE}/{library.soname}":
            raise FormError(f"{key}.target", f"should be {PRIVATE}/ and the name")
        path = library.host_path
        if path is None:
            continue
        parts = path.split("/")
        if not _HOST_PATH.fullmatch(path) or ".." in parts or not _NAME.fullmatch(parts[-1]):
            raise FormError(f"{key}.host_path", "should be the absolute path of a shared library")


def differences(carried: CarriedManifest, found: CarriedManifest) -> Iterator[str]:
    """Yield in what an image's own manifest differs from what its files and a node show: a clause each.

    What the manifest did not know is not a difference: paths without a snapshot, all that a plan could not see.
    """
    if carried.fabric is not found.fabric:
        yield f"it says fabric {carried.fabric.value}, and {found.fabric.value} is what is found"
        return
    old = {library.soname: library for library in carried.libraries}
    new = {library.soname: library for library in found.libraries}
    of_node = found.settled_by is SettledBy.HOST
    if of_node and carried.settled_by is SettledBy.HOST and carried.basis is Basis.IMAGE:
        for name in sorted(old.keys() - new.keys()):
            yield f"it wants {name}, which is not needed from this node"
        for name in sorted(new.keys() - old.keys()):
            yield f"{name} is needed from this node, and is not in it"
    for name in sorted(old.keys() & new.keys()):
        before, now = old[name].host_path, new[name].host_path
        if of_node and before is not None and before != now:
            yield f"{name} was {before}; this node has {now}"
    needs = {(m.library, m.provider, m.family): m.need for m in carried.versions}
    for margin in found.versions:
        before = needs.get((margin.library, margin.provider, margin.family))
        if before is not None and before != margin.need:
            whose = "this node's" if margin.of_host else "the image's"
            yield f"{whose} {margin.library} needs {margin.needed} of {margin.provider}, not _{before}"
