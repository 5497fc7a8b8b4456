"""`lumiimg.lock`: what the catalogue does not determine about an image, as types that map directly to TOML.

    request          what it was made from, so that it can be made again
    base, layer      names, digests of their folders, releases, wheels by address
    first-download   unpublished digests, by address
    rule             results of the compatibility rules

A layer is found in the catalogue by name and must have the same digest; its arguments, and the addresses and digests
of its sources, follow from the catalogue and the request. An image carries the same document as JSON.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from itertools import starmap
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import tomli_w
from msgspec import Struct, structs

from lumiimg import __version__
from lumiimg.catalog.layers import AGENTS, NAME
from lumiimg.catalog.releases import Release
from lumiimg.core.decode import DecodeError, Sha256, Text, decode_toml, encode, matching, read_text, refuse
from lumiimg.core.errors import BadInputError, shortened
from lumiimg.core.files import read_beginning
from lumiimg.core.redact import redact
from lumiimg.core.toml import TomlError, parse_toml
from lumiimg.fabric.path import Fabric
from lumiimg.fetch.git import git_address
from lumiimg.fetch.mirrors import validated_url
from lumiimg.resolve.image_base import LOCAL_AGENTS
from lumiimg.resolve.lock import MADE_HERE, Lock, LockedLayer, LockedSource, layer_digest, locked_commit, locked_wheel
from lumiimg.resolve.request import LockedRequest, Request
from lumiimg.resolve.requirements import requirement_of
from lumiimg.resolve.rules import RuleResult

FORMAT: Literal[3] = 3
"""Format of the file; raised when an older lumiimg could not read a newer file correctly."""
AGAIN = "write it again with `lumiimg lock`, and the options that it was made with"
_SIZE_LIMIT_BYTES = 2 * 1024 * 1024
_HEAD_BYTES = 1024
_FORMAT_LINE = re.compile(rb"^format = ([0-9]{1,9})$", re.MULTILINE)
_BEGINS = "# Written by `lumiimg lock`;"
_HEAD = f"{_BEGINS} to change it, change the request and write it again.\n"

_Name = Annotated[str, matching(NAME.pattern, "a name of lower-case letters, digits, dots and dashes")]
_Digest = Annotated[str, matching("sha256:[0-9a-f]{64}", "sha256: and 64 hexadecimal digits")]
_AGENTS = sorted({*AGENTS, *LOCAL_AGENTS})
_Agent = Annotated[str, matching("|".join(_AGENTS), f"one of {', '.join(_AGENTS)}")]


class _Written(Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """A table of the file."""


class LockedCommit(_Written, frozen=True):
    """A Python project at a git commit."""

    address: Text
    """`git+https://…@COMMIT`, without a mirror."""
    sha256: Sha256
    """Digest of the tar that is made of it."""
    version: Annotated[str, matching(r"[A-Za-z0-9.!+]{1,100}", "a version")]
    """Version that the project states; `0+g` and the commit if it is known only when it is built."""

    def __post_init__(self) -> None:
        address = git_address(self.address)
        is_one = address is not None and address.is_pinned and f"{address}" == self.address
        refuse({"address": None if is_one else f"is {shortened(self.address)!r}, which is not the address of a commit"})


class LockedEntry(_Written, frozen=True):
    """A base or a layer: what the catalogue leaves open about it."""

    name: _Name
    """Name in the catalogue."""
    layer: _Digest | None = None
    """Digest of its folder; null for an image, which is in no catalogue."""
    release: str = ""
    """Empty for a layer without releases."""
    row: Release | None = None
    """Row that was used for a release that no layer.toml has."""
    wheels: dict[str, Sha256] = {}
    """Digests of its Python distributions by address, without mirrors."""
    wheel_bytes: Annotated[int, msgspec.Meta(ge=0, lt=1 << 50)] | None = None
    """Total size of the wheels; null if their index did not state it."""
    commits: dict[_Name, LockedCommit] = {}
    """Projects that it builds from git commits, by name."""

    def __post_init__(self) -> None:
        refuse({"wheels": next(filter(None, map(_wheel_fault, self.wheels)), None)})

    @property
    def locked_wheels(self) -> tuple[LockedSource, ...]:
        """Its Python distributions, those built from commits last."""
        commits = (locked_commit(name, one.version, one.address, one.sha256) for name, one in self.commits.items())
        return (*starmap(locked_wheel, self.wheels.items()), *commits)


class LockedImage(_Written, frozen=True):
    """Contents that were read in a base image that is in no catalogue."""

    has: dict[str, str] = {}
    """Versions by component."""
    provides: tuple[str, ...] = ()
    """Components without a version."""
    sha256: Sha256 | None = None
    """Digest of a file; a folder has none."""


class LockedBase(LockedEntry, frozen=True, kw_only=True):
    """The layer of the base, and where its image is from."""

    agent: _Agent
    """Bootstrap agent, as in a definition file."""
    origin: Text = msgspec.field(name="from")
    """Where it is from, in the form that the agent reads."""
    digest: _Digest | None = None
    """Digest of an image in a registry."""
    image: LockedImage | None = None
    """Contents of an image that is in no catalogue."""


class LockFile(_Written, frozen=True, kw_only=True):
    """The contents of a lock, and of the plan that an image carries."""

    format: Literal[3] = FORMAT
    """Format of the file."""
    lumiimg: str = __version__
    """Version of lumiimg that wrote it."""
    digest: _Digest | None = None
    """Digest of the text below the head; null in an image."""
    fabric: Fabric = Fabric.NONE
    """Where the image gets libfabric with the cxi provider from."""
    site: str = ""
    """The machine that it is for; empty if none was named."""
    gpu: str = ""
    """The GPU of that machine; empty if it is not known."""
    request: LockedRequest
    """The request that it was made from."""
    base: LockedBase
    """The base below the layers."""
    layer: tuple[LockedEntry, ...] = ()
    """Layers in build order."""
    first_download: dict[str, Sha256] = {}
    """Unpublished digests of sources, by address: those of the first download."""
    rule: tuple[RuleResult, ...] = ()
    """Results of the compatibility rules."""

    @property
    def stack(self) -> tuple[LockedEntry, ...]:
        """Base first."""
        return (self.base, *self.layer)


def _wheel_fault(url: str) -> str | None:
    """Return why an address is not that of a wheel; None if it is."""
    try:
        locked_wheel(validated_url(url, "a wheel"), None)
    except (BadInputError, ValueError):
        return f"has {shortened(url)!r}, which is not a plain address that ends in the name of a wheel"
    return None


# -- writing --


def to_text(lock: Lock) -> str:
    """Return the text of a lock file. Raises BadInputError for a value that is not UTF-8, or looks like a secret."""
    document = encode(document_of(lock))
    head = {key: document.pop(key) for key in ("format", "lumiimg")}
    body = tomli_w.dumps(document, multiline_strings=False)
    if not_text := re.search(r"[^\n]*[\ud800-\udfff]", body):
        value = not_text[0].encode("utf-8", "backslashreplace").decode()[:200]
        raise BadInputError(f"a lock can contain only UTF-8: {value}", hint="write it in UTF-8, or leave it out")
    for line in body.splitlines():
        if (plain := redact(line)) != line:
            raise BadInputError(f"a lock cannot contain a secret: {plain[:200]}", hint="locks are shared; leave it out")
    if len(body.encode()) > _SIZE_LIMIT_BYTES - _HEAD_BYTES:
        raise BadInputError(f"the lock would be larger than {_SIZE_LIMIT_BYTES} bytes", hint="leave something out")
    return f"{_HEAD}{tomli_w.dumps({**head, 'digest': _digest(body)})}\n{body}"


def to_record(lock: Lock) -> bytes:
    """Return the lock as an image carries it: JSON, without what only its machine can use. Raises as `to_text` does."""
    lock = replace(lock, request=structs.replace(lock.request, host=""))
    to_text(lock)  # for the values that it refuses
    return json.dumps(encode(document_of(lock)), indent=1, default=str).encode()


def document_of(lock: Lock) -> LockFile:
    """Return the document of a lock. Raises ValueError if the lock is not complete."""
    if lock.missing_digests:
        raise ValueError(lock.missing_digests[0])
    bootstrap, base = lock.bootstrap, lock.base.layer
    sources = (source for layer in lock.stack for source in layer.sources)
    return LockFile(
        fabric=lock.fabric,
        site=lock.site or "",
        gpu=lock.gpu or "",
        request=_request(lock),
        base=LockedBase(
            **_entry(lock.base),
            agent=bootstrap.agent,
            origin=bootstrap.origin,
            digest=bootstrap.image.digest if bootstrap.image else None,
            image=LockedImage(dict(base.has), base.provides, bootstrap.sha256) if base.is_foreign else None,
        ),
        layer=tuple(LockedEntry(**_entry(layer)) for layer in lock.layers),
        first_download={one.location: one.sha256 for one in sources if one.sha256 and one.note == MADE_HERE},
        rule=lock.rules,
    )


def _request(lock: Lock) -> LockedRequest:
    """Return the request with absolute paths, so that it can be repeated in another folder."""
    request, origin = lock.request, lock.bootstrap.origin
    fields = {name: getattr(request, name) for name in LockedRequest.__struct_fields__}
    return structs.replace(
        LockedRequest(**fields),
        base=origin if _whole(request.base) == origin else request.base,
        own_files=tuple(map(_whole, request.own_files)),
        arguments=dict(sorted(request.arguments.items())),
        sources=dict(sorted(request.sources.items())),
        site=_whole(request.site) if request.site.endswith(".toml") else request.site,
        host=_whole(request.host) if request.host else "",
    )


def _whole(path: str) -> str:
    return str(Path(path).absolute())


def _entry(layer: LockedLayer) -> dict[str, Any]:
    release = layer.release
    return {
        "name": layer.name,
        "layer": None if layer.layer.is_foreign else layer_digest(layer.layer),
        "release": release.version if release else "",
        "row": release if layer.is_unlisted else None,
        "wheel_bytes": layer.wheel_bytes or None,
        "wheels": {wheel.location: wheel.sha256 for wheel in layer.wheels if not wheel.is_commit},
        "commits": {
            one.name: LockedCommit(one.location, f"{one.sha256}", one.version) for one in layer.wheels if one.is_commit
        },
    }


def _digest(text: str) -> str:
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


# -- reading --


def read_document(path: Path) -> LockFile:
    """Return the document in a lock file. Raises BadInputError if it was changed by hand, or has another format."""
    if not path.exists():
        raise BadInputError("there is no such lock", where=str(path), hint="`lumiimg lock` writes one")
    try:
        text = read_text(path, _SIZE_LIMIT_BYTES)
        head, _, body = text.partition("\n\n")
        header = parse_toml(head)
    except (DecodeError, TomlError) as error:
        what = error.what if isinstance(error, DecodeError) else f"is not a lock: it {error}"
        raise BadInputError(what, where=str(path), hint=AGAIN) from error
    refuse_format(header, path, "write it again with `lumiimg lock`, and the options that its [request] names")
    if header.keys() - {"format", "lumiimg", "digest"} or header.get("digest") != _digest(body):
        raise BadInputError("was changed after it was written: its digest does not match", where=str(path), hint=AGAIN)
    return decode_toml(text, LockFile, where=str(path), hint=AGAIN)


def refuse_format(document: Mapping[str, Any], path: Path, hint: str) -> None:
    """Raise BadInputError for the format of an older or a newer lumiimg; `hint` is what to do with an older one."""
    written = document.get("format")
    if type(written) is not int:
        raise BadInputError("is not a lock: key 'format' is missing", where=str(path), hint=hint)
    if written != FORMAT:
        what = f"has format {str(written)[:20]}, written by lumiimg {document.get('lumiimg')}; this one reads {FORMAT}"
        raise BadInputError(what, where=str(path), hint=f"use that lumiimg, or {hint}")


def request_of(document: LockFile) -> Request:
    """Return the request that a lock was made from. Raises BadInputError for an invalid requirement."""
    for one in document.request.own:
        requirement_of(one.text, one.where)
    return Request(**structs.asdict(document.request))


def refuse_other_file(path: Path) -> None:
    """Raise BadInputError if there is a file that neither its name nor its first line shows to be a lock.

    Also for the lock of a newer lumiimg, because this one would write less in its place.
    """
    if not path.is_file():
        return
    try:
        data = read_beginning(path, _HEAD_BYTES)
    except OSError as error:
        raise BadInputError(f"cannot be read: {error.strerror}", where=str(path)) from error
    if path.suffix != ".lock" and not data.startswith(_BEGINS.encode()):
        raise BadInputError("is not a lock, and would be lost", where=str(path), hint="name another file, or remove it")
    written = _FORMAT_LINE.search(data.partition(b"\n\n")[0])
    if written is not None and int(written[1]) > FORMAT:
        raise BadInputError(
            f"has format {int(written[1])}, but this lumiimg writes {FORMAT}; it would be lost",
            where=str(path),
            hint="use the lumiimg that wrote it, name another file, or remove it",
        )
