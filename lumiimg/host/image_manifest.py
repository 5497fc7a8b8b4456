"""The bind manifest that an image carries: the answer of `bind` at build time, for the node of `--host`.

It is the file `/.lumiimg/bind-manifest.json` in the image, which a label names. The builder of the image wrote it, so
it never improves an answer: what the files of the image and the node show counts. Without a snapshot of a node, jobs
use its binds, with a doubt.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lumiimg.core.decode import DecodeError, decode, encode, parse_json
from lumiimg.core.errors import BadInputError
from lumiimg.fabric.path import HOST_LIB_DIR, Fabric
from lumiimg.fabric.process import PROVIDER_PATH
from lumiimg.host.bind import solve
from lumiimg.host.bind_trial import ProcessDemand, attempt
from lumiimg.host.container_view import loader_on, view_of_container, why_not_modelled
from lumiimg.host.engine_rules import with_engine_mounts
from lumiimg.host.manifest import BindManifest
from lumiimg.host.rccl_process import demands_of
from lumiimg.host.snapshot import snapshot_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lumiimg.elf import LoaderConfig
    from lumiimg.host.snapshot import Snapshot
    from lumiimg.image import Image, RootFileSystem

MANIFEST = "bind-manifest.json"
"""Name of the file in `/.lumiimg` of an image, and of the JSON object in a SIF."""
MANIFEST_PATH = f"/.lumiimg/{MANIFEST}"
MANIFEST_LABEL = "lumiimg.bind-manifest"
"""Label whose value is the path of the manifest."""
SCHEMA = 2
_LIMIT_BYTES = 1 << 20
_NAME = re.compile(r"(libfabric/)?[A-Za-z0-9_+.-]{1,200}\.so[A-Za-z0-9_.-]{0,50}", re.ASCII)
_SOURCE = re.compile(r"(/[A-Za-z0-9_+.@~-]{1,255}){1,60}", re.ASCII)
_VARIABLES = ("LD_LIBRARY_PATH", PROVIDER_PATH)


def make_manifest(image: Image, snapshot: Snapshot) -> BindManifest:
    """Return what `bind` answers for a finished image on a node."""
    try:
        image = with_engine_mounts(image, {}, snapshot)
        settings = view_of_container(image, {}, loader_on(snapshot)).settings
        demands = [] if why_not_modelled(image.root) else [*demands_of(image, settings)]
        found = [solve(image.root, settings, demand, snapshot).without_process() for demand in demands]
    except (OSError, BadInputError) as error:
        return BindManifest(Fabric.NONE, notes=(f"the image's needs cannot be read from its files: {error}",))
    nothing = BindManifest(Fabric.NONE, notes=("the image has no loader that lumiimg knows",))
    return next((each for each in found if each.fabric is Fabric.HOST), next(iter(found), nothing))


def snapshot_key(snapshot: Snapshot | None) -> bytes:
    """Return what a manifest depends on apart from its image: equal bytes give an equal manifest."""
    return snapshot_text(replace(snapshot, taken="")).encode() if snapshot else b""


# -- as a file --


def to_text(manifest: BindManifest) -> str:
    """Return a manifest as the text of its file; equal values give equal bytes."""
    return json.dumps({**encode(manifest), "schema": SCHEMA}, indent=1, sort_keys=True, ensure_ascii=True) + "\n"


def read_manifest(root: RootFileSystem) -> BindManifest | None:
    """Return the manifest that an image carries; None without one. Raises only DecodeError, whatever the file has."""
    if not root.exists(MANIFEST_PATH):
        return None
    try:
        data = root.read_bytes(MANIFEST_PATH, _LIMIT_BYTES)
    except (OSError, BadInputError) as error:
        raise DecodeError(f"cannot be read: {error}", where=MANIFEST_PATH) from error
    return from_bytes(data)


def from_bytes(data: bytes) -> BindManifest:
    """Return the manifest in the bytes of a file. Raises DecodeError."""
    read = parse_json(data, where=MANIFEST_PATH)
    schema = read.get("schema") if isinstance(read, dict) else None
    if type(schema) is not int or schema != SCHEMA:
        what = f"has schema {str(schema)[:20]}, but this lumiimg reads {SCHEMA}"
        raise DecodeError(what, where=MANIFEST_PATH, hint="`lumiimg bind IMAGE --host FILE` creates a current manifest")
    manifest = decode(read, BindManifest, where=MANIFEST_PATH)
    if faults := "; ".join(_faults(manifest)):
        raise DecodeError(faults, where=MANIFEST_PATH)
    return manifest


def _faults(manifest: BindManifest) -> Iterator[str]:
    """Yield faults that no build writes: a job may take its binds from this file."""
    if manifest.binds and not manifest.machine:
        yield "key 'machine' is missing: binds belong to a node"
    if len(manifest.libraries) != len(manifest.binds):
        yield f"key 'binds' should list each library once, in {HOST_LIB_DIR}"
    for index, bind in enumerate(manifest.binds):
        if not _NAME.fullmatch(bind.target.removeprefix(f"{HOST_LIB_DIR}/")):
            yield f"key 'binds[{index}].target' should be a shared library in {HOST_LIB_DIR}"
        parts = bind.source.split("/")
        if not _SOURCE.fullmatch(bind.source) or ".." in parts or not _NAME.fullmatch(parts[-1]) or bind.of_image:
            yield f"key 'binds[{index}].source' should be the absolute path of a shared library"
    for index, variable in enumerate(manifest.variables):
        if variable.name not in _VARIABLES or not f"{variable.value}/".startswith(
            (f"{HOST_LIB_DIR}/", f"{HOST_LIB_DIR}:")
        ):
            yield f"key 'variables[{index}]' should be a search path that begins in {HOST_LIB_DIR}"


# -- as jobs use it without a snapshot of a node --


@dataclass(frozen=True, slots=True)
class CarriedManifest:
    """The manifest that an image carries, and why it is not used."""

    manifest: BindManifest | None
    """The manifest; None where the image carries none, or one that cannot be read."""
    unusable_because: str | None = None
    """Why it cannot be read, or how the files of the image contradict it."""

    @property
    def for_jobs(self) -> BindManifest | None:
        """Manifest whose binds jobs use without a snapshot; None without one, or where the files contradict it."""
        return self.manifest if self.manifest and self.manifest.binds and not self.unusable_because else None

    @property
    def sentence(self) -> str | None:
        """Message about a manifest that is not used; None for any other."""
        return (
            f"the bind manifest that the image carries is not used: {self.unusable_because}"
            if self.unusable_because
            else None
        )

    @property
    def doubt(self) -> str | None:
        """Message for an answer without a snapshot of a node."""
        if self.for_jobs is None:
            return self.sentence
        return (
            "no snapshot of a node was given: the bound libraries are those of the image's bind manifest, "
            f"made for {self.for_jobs.machine}. Use --host FILE for a current node"
        )


def carried_by(
    root: RootFileSystem, settings: LoaderConfig, demand: ProcessDemand | None, *, has_node: bool
) -> CarriedManifest:
    """Return an image's manifest, compared with its files; `has_node`: not compared, as results for a node count."""
    try:
        carried = read_manifest(root)
    except DecodeError as error:
        return CarriedManifest(None, str(error))
    if carried is None or demand is None or has_node or not carried.binds:
        return CarriedManifest(carried)
    alone = attempt(root, settings, demand)
    if alone.provider is not None:
        return CarriedManifest(carried, "the image's own libfabric reaches Slingshot")
    names = (lost.name for lost in alone.outcome.missing if lost.name not in carried.libraries)
    lacking = [f"{name} is needed, but is not in it" for name in names]
    return CarriedManifest(carried, "; ".join(lacking) or None)
