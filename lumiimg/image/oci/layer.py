"""One layer as a tar that any part can be read of: where it lies, or unpacked once, if it is compressed.

All of it is read and its digest verified before a word of it is believed. The digest is that of the blob as it is
stored, or (`docker save`, which records no other) that of the content.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from lumiimg.core.errors import MissingHereError
from lumiimg.core.files import temporary_folder
from lumiimg.image.byte_source import ByteSource
from lumiimg.image.oci.decoding import is_compressed, unpack
from lumiimg.image.oci.kept import find_layer, new_layer, unnamed_file
from lumiimg.image.tree import ImageError

if TYPE_CHECKING:
    from lumiimg.image.oci.document import Digest

Cache = Callable[[], Path]
"""Where the cache is; asked only where something is put there."""
_READ_BYTES = 1 << 20
# what layers of zeros may unpack to, whatever their size; beyond, a ratio that no real software has
_FREE_BYTES = 4 << 30
_MAX_RATIO = 200
_MAX_SECONDS = 3600.0
# what is left free on a disk: this, or a twentieth of a small one
_SPARE_BYTES = 1 << 30
_LOOK_BYTES = 64 << 20
"""Bytes after which the free space of the disk is asked again."""


@dataclass(frozen=True, slots=True)
class Blob:
    """A layer as it is stored."""

    source: ByteSource
    digest: Digest
    digest_is_of_content: bool = False


class Unpacking:
    """What the layers of one image have together: a place for their tars, and bounds."""

    def __init__(self, stored_bytes: int, cache: Cache | None) -> None:
        self._cache = cache
        self._left = _FREE_BYTES + _MAX_RATIO * stored_bytes
        self._until = time.monotonic() + _MAX_SECONDS

    def open(self, blob: Blob) -> ByteSource:
        """Return the tar of a layer, its digest verified; to be closed. Raises ImageError, MissingHereError."""
        if not is_compressed(blob.source):
            _Hashed(blob.source, blob.digest).check()
            return blob.source.slice(0, blob.source.size)
        tar = self._find(blob) or self._unpack(blob)
        self._refuse_more(tar.size, blob.source.name)
        self._left -= tar.size
        return tar

    def _find(self, blob: Blob) -> ByteSource | None:
        """Return what was unpacked before."""
        tar = find_layer(self._cache(), blob.digest) if self._cache is not None else None
        if tar is None:
            return None
        try:
            _Hashed(tar if blob.digest_is_of_content else blob.source, blob.digest).check()
        except ImageError:
            tar.close()
            if not blob.digest_is_of_content:
                raise
            return None  # it is the tar that is damaged
        return tar

    def _unpack(self, blob: Blob) -> ByteSource:
        """Unpack into the cache, or where that has no room, into a file that has no name."""
        places, reasons = [], []
        if self._cache is not None:
            cache = self._cache()
            places.append((cache, partial(new_layer, cache, blob.digest)))
        try:
            temporary = temporary_folder()
            places.append((temporary, partial(unnamed_file, temporary)))
        except MissingHereError as error:
            reasons.append(error.sentence)
        for folder, new_file in places:
            try:
                with new_file() as descriptor:
                    self._write(blob, descriptor)
            except OSError as error:
                reasons.append(f"{folder}: {error.strerror or error}")
                continue
            size = os.fstat(descriptor).st_size
            return ByteSource(descriptor, name=blob.source.name, start=0, size=size, owns=True)
        raise MissingHereError(
            f"a compressed layer cannot be unpacked: {'; '.join(reasons)}",
            where=blob.source.name,
            hint="let LUMIIMG_CACHE or TMPDIR name a folder with room for the whole image",
        )

    def _write(self, blob: Blob, descriptor: int) -> None:
        """Write the content of a layer, and verify its digest. Raises ImageError, OSError."""
        stored = _Hashed(blob.source, blob.digest)
        content = blob.digest.new_hash()
        written = looked = 0
        try:
            for data in unpack(stored):
                written += len(data)
                self._refuse_more(written, blob.source.name)
                if written - looked > _LOOK_BYTES:
                    looked = written
                    _refuse_full_disk(descriptor)
                if blob.digest_is_of_content:
                    content.update(data)
                _write_all(descriptor, data)
        except ImageError:
            # of other content nothing that it says matters
            if not blob.digest_is_of_content:
                stored.check()
            raise
        if blob.digest_is_of_content:
            blob.digest.check(content, blob.source.name)
        else:
            stored.check()

    def _refuse_more(self, size: int, where: str) -> None:
        if size > self._left:
            raise ImageError(f"layers that unpack to more than {_MAX_RATIO} times their size", where=where)
        if time.monotonic() > self._until:
            raise ImageError(f"layers that take more than {_MAX_SECONDS / 60:.0f} minutes to unpack", where=where)


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
        data = self._source.read_exactly(offset, size)
        self._hash.update(data)
        self._next = offset + size
        return data

    def check(self) -> None:
        """Hash what is left and compare. Raises ImageError."""
        while self._next < self.size:
            self.read_at(self._next, min(_READ_BYTES, self.size - self._next))
        self._digest.check(self._hash, self.name)


def _write_all(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _refuse_full_disk(descriptor: int) -> None:
    seen = os.fstatvfs(descriptor)
    if seen.f_bavail * seen.f_frsize < min(_SPARE_BYTES, seen.f_blocks * seen.f_frsize // 20):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
