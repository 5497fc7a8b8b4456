"""JSON documents of an image, read with a bound and taken apart with a check of each value; digests, and the config.

Sources: OCI image-spec `descriptor.md` (digests) and `config.md`; Docker's config has the same fields.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeGuard, TypeVar

from lumiimg.image.tree import ImageError

if TYPE_CHECKING:
    from hashlib import _Hash

    from lumiimg.image.byte_source import ByteSource

# registries take manifests of 4 MiB; a config with a long history is of the same order
_MAX_BYTES = 8 << 20
_KINDS: dict[type, str] = {dict: "a JSON object", list: "a JSON list", str: "text"}
T = TypeVar("T", dict[str, Any], list[Any], str)
# the registered algorithms
_DIGEST = re.compile(r"(sha256):([0-9a-f]{64})|(sha512):([0-9a-f]{128})")


@dataclass(frozen=True, slots=True)
class Digest:
    """What some content must have."""

    algorithm: str
    hexadecimal: str

    @classmethod
    def parse(cls, text: object, where: str) -> Self:
        """Return a checked digest. Raises ImageError."""
        found = _DIGEST.fullmatch(text) if isinstance(text, str) else None
        if found is None:
            raise ImageError(f"{str(text)[:100]!r} is not a valid sha256 or sha512 digest", where=where)
        return cls(found[1] or found[3], found[2] or found[4])

    def __str__(self) -> str:
        return f"{self.algorithm}:{self.hexadecimal}"

    def new_hash(self) -> _Hash:
        """Return what the content is fed to."""
        return hashlib.new(self.algorithm, usedforsecurity=False)

    def check(self, seen: _Hash, where: str) -> None:
        """Compare with content that was fed. Raises ImageError."""
        if seen.hexdigest() != self.hexadecimal:
            raise ImageError(f"blob {self} has other content", where=where, hint="fetch the image again")


@dataclass(frozen=True, slots=True)
class Config:
    """What an image says of itself, the parts that are about what is in it."""

    definition: ClassVar[None] = None
    warnings: ClassVar[tuple[str, ...]] = ()
    doubts: ClassVar[dict[str, str]] = {}
    lost: ClassVar[str] = ""

    architecture: str | None
    """As Go calls it: `amd64`."""
    environment: dict[str, str]
    labels: dict[str, str]
    entrypoint: tuple[str, ...]
    """What `run` starts, with its arguments."""
    layers: tuple[Digest, ...]
    """Of their unpacked content, the lowest first."""


def read_document(data: ByteSource, name: str) -> Any:  # noqa: ANN401, JSON is anything
    """Return what a document says. Raises ImageError."""
    if data.size > _MAX_BYTES:
        raise ImageError(f"{name} has {data.size} bytes, {_MAX_BYTES} are the limit", where=data.name)
    try:
        return json.loads(data.read_exactly(0, data.size))
    except (ValueError, RecursionError) as error:
        raise ImageError(f"{name} is not JSON", where=data.name) from error


def typed(value: object, kind: type[T], name: str, where: str) -> T:
    """Return a JSON value of a kind in _KINDS; an empty one for null. Raises ImageError for anything else."""
    if value is None:
        return kind()
    if not isinstance(value, kind):
        raise ImageError(f"{name} is not {_KINDS[kind]}", where=where)
    return value


def _is_text(value: object) -> TypeGuard[str]:
    return isinstance(value, str)


def config_of(document: dict[str, Any], where: str) -> Config:
    """Return the checked config. Raises ImageError."""
    run = typed(document.get("config"), dict, "config", where)
    variables = (
        typed(item, str, "config.Env", where).partition("=") for item in typed(run.get("Env"), list, "Env", where)
    )
    labels = typed(run.get("Labels"), dict, "config.Labels", where)
    root = typed(document.get("rootfs"), dict, "rootfs", where)
    return Config(
        architecture=typed(document.get("architecture"), str, "architecture", where) or None,
        environment={name: value for name, equals, value in variables if name and equals},
        labels={name: typed(value, str, "config.Labels", where) for name, value in labels.items()},
        entrypoint=tuple(filter(_is_text, words)) if isinstance(words := run.get("Entrypoint"), list) else (),
        layers=tuple(Digest.parse(item, where) for item in typed(root.get("diff_ids"), list, "diff_ids", where)),
    )
