"""One layer, read once from its front: its members are found, its digest is verified, its places are noted.

Nothing of its content is kept. The digest is that of the blob as it is stored, or (`docker save`, which records no
other) that of the content.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lumiimg.image.oci.decoding import Decoder, decoder_of
from lumiimg.image.oci.tar import Member, read_members
from lumiimg.image.oci.unpacking import Unpacked, Workspace
from lumiimg.image.tree import ImageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lumiimg.image.byte_source import ByteSource
    from lumiimg.image.oci.document import Digest

_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Blob:
    """A layer as it is stored."""

    source: ByteSource
    digest: Digest
    digest_is_of_content: bool = False


class OciLayer:
    """A layer whose members can be read once, and its content as often as one likes."""

    def __init__(self, blob: Blob, number: int, workspace: Workspace) -> None:
        self._blob = blob
        self._decoder = decoder_of(blob.source)
        self._unpacked = Unpacked(blob.source, number, workspace)
        self.content = blob.source if self._decoder is Decoder else self._unpacked
        """What the members say where they are in."""

    def members(self) -> Iterator[Member]:
        """Yield the members, then verify the digest. Raises ImageError."""
        blob = self._blob
        stored = _Hashed(blob.source, blob.digest)
        reader = _Front(self._decoder(stored), self._unpacked, blob)
        try:
            for member in read_members(reader, blob.source.name):
                # what is passed over is unpacked, too: seconds for each GiB
                self._unpacked.workspace.refuse_more(member.size_bytes, blob.source.name)
                yield member
            if blob.digest_is_of_content:
                reader.drain()
        except ImageError:
            # of other content nothing that it says matters
            if not blob.digest_is_of_content:
                stored.check()
            raise
        if blob.digest_is_of_content:
            blob.digest.check(reader.seen, blob.source.name)
        else:
            stored.check()


class _Hashed:
    """A blob that is hashed while it is read from front to back."""

    def __init__(self, source: ByteSource, digest: Digest) -> None:
        self.name = source.name
        self.size = source.size
        self._source = source
        self._digest = digest
        self._hash = digest.new_hash()
        self._next = 0

    def read_at(self, offset: int, size: int) -> bytes:
        data = self._source.read_at(offset, size)
        self._hash.update(data)
        self._next = offset + size
        return data

    def check(self) -> None:
        """Hash what is left and compare. Raises ImageError."""
        while self._next < self.size:
            self.read_at(self._next, min(_READ_BYTES, self.size - self._next))
        self._digest.check(self._hash, self.name)


class _Front:
    """The content of a layer, from the front to the back."""

    def __init__(self, decoder: Decoder, unpacked: Unpacked, blob: Blob) -> None:
        self.position = 0
        self.seen = blob.digest.new_hash()
        self._hashes = blob.digest_is_of_content
        self._decoder = decoder
        self._unpacked = unpacked
        self._where = blob.source.name
        self._data = b""
        self._at = 0
        self._read = 0

    def take(self, size: int) -> bytes:
        at = self._at
        if at + size <= len(self._data):
            self._at += size
            self.position += size
            return self._data[at : at + size]
        parts: list[bytes] = []
        while size and (self._at < len(self._data) or self._fill()):
            part = self._data[self._at : self._at + size]
            parts.append(part)
            self._at += len(part)
            size -= len(part)
            self.position += len(part)
        return b"".join(parts)

    def skip(self, size: int) -> None:
        self.position += size
        while size and (self._at < len(self._data) or self._fill()):
            step = min(size, len(self._data) - self._at)
            self._at += step
            size -= step
        if size:
            raise ImageError("a layer that is cut off inside a member", where=self._where)

    def drain(self) -> None:
        """Read what follows the end mark."""
        while self._fill():
            pass

    def _fill(self) -> bool:
        self._unpacked.offer(self._read, self._decoder)
        self._data = self._decoder.read(_READ_BYTES)
        self._at = 0
        self._read += len(self._data)
        self._unpacked.workspace.count(len(self._data), self._where)
        if self._hashes:
            self.seen.update(self._data)
        return bool(self._data)
