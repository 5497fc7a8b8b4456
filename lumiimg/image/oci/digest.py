"""Digests of content, `sha256:…` (OCI image-spec `descriptor.md`)."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from lumiimg.image.tree import ImageError

if TYPE_CHECKING:
    from hashlib import _Hash

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
            raise ImageError(f"{str(text)[:100]!r} is no sha256 or sha512 digest", where=where)
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
