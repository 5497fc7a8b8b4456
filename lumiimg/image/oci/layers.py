"""Layers as tars that any part can be read of: where they lie, or, of compressed ones, in a folder of the cache.

<cache>/oci/<hex>.tar    the layer whose content has this sha256

The config of an image has the digest of each layer's unpacked content, which is verified before a word of it is
believed. A tar gets its name when it is whole and verified, and is then used as it is: a folder of this user that
nobody else may write to, or others would decide what an image holds.
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import os
import re
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, BinaryIO

from lumiimg.core.access import OpenFile, RandomAccess, stream_of, zstd
from lumiimg.core.errors import BadInputError, FailedError, MissingHereError
from lumiimg.core.files import file_sha256, replaced, temporary_folder
from lumiimg.image.host_files import HostFile
from lumiimg.image.tree import ImageError

if TYPE_CHECKING:
    from io import BufferedIOBase

Cache = Callable[[], Path]
"""Where the cache is; asked only where something is put there."""
FOLDER = "oci"
"""Of the cache."""
FETCH_AGAIN = "fetch the image again"
_NAME = re.compile(r"[0-9a-f]{64}\.tar")
_CHUNK_BYTES = 1 << 20
# what layers of zeros may unpack to, whatever their size; beyond, a ratio that no real software has
_FREE_BYTES = 4 << 30
_MAX_RATIO = 200
_SPARE_BYTES = 256 << 20
"""What is left free on the disk."""
_END = bytes(1024)
"""Of a tar, as good as always; one without it is unpacked each time."""
_ABANDONED_S = 24 * 3600.0
"""A file that nobody wrote to for so long is that of a process that is gone."""
_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18")
"""Of a frame, or of one that is skipped (RFC 8878)."""
_ZSTD_WINDOW_LOG = 27
"""What the reference decoder allows where nobody says more: a window of 128 MiB."""


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer as it is stored."""

    source: OpenFile
    sha256: str
    """Of its content, unpacked, in hexadecimal."""
    where: str
    """The image that it is of."""


@dataclass(frozen=True, slots=True)
class UnpackedLayer:
    """The tar of one layer in the cache."""

    path: Path
    key: str
    """The sha256 of its content, as the config of the image has it."""
    size_bytes: int
    """Of the tar."""
    used_ns: int
    """When it was used the last time, in nanoseconds since 1970."""

    @property
    def is_intact(self) -> bool:
        """Whether its content is what it was; False too where it has just been removed."""
        try:
            return file_sha256(self.path) == self.key
        except BadInputError:
            return False

    def remove(self) -> None:
        """Remove it; who reads it just now can go on. Raises FailedError."""
        try:
            self.path.unlink(missing_ok=True)
        except OSError as error:
            raise FailedError(f"cannot be removed: {error.strerror}", where=str(self.path)) from error


def unpacked_layers(cache: Path) -> list[UnpackedLayer]:
    """Return the layers of a cache; abandoned files of unfinished ones are removed."""
    found = []
    for path in sorted((cache / FOLDER).glob("*")):
        with suppress(OSError):  # another has just removed it
            seen = path.lstat()
            if _NAME.fullmatch(path.name):
                found.append(UnpackedLayer(path, path.stem, seen.st_size, seen.st_mtime_ns))
            elif path.name.startswith(".") and time.time() - seen.st_mtime > _ABANDONED_S:
                path.unlink()  # an error where it is a folder
    return found


def open_layers(layers: Sequence[Layer], cache: Cache | None, held: ExitStack) -> Iterator[RandomAccess]:
    """Yield the tar of each layer, verified; `held` closes them. Without a cache, what is unpacked has no name.

    Raises ImageError, MissingHereError where a compressed layer cannot be unpacked.
    """
    left_bytes = _FREE_BYTES + _MAX_RATIO * sum(layer.source.size for layer in layers)
    for layer in layers:
        held.callback(layer.source.close)
        if (unpacking := _decoder(layer.source)) is None:
            _verify(layer, _chunks(layer.where, stream_of(layer.source)))
            yield layer.source
            continue
        content = _chunks(layer.where, *unpacking)
        with nullcontext(cache()) if cache else TemporaryDirectory(prefix="lumiimg-", dir=temporary_folder()) as folder:
            path = Path(folder, FOLDER, f"{layer.sha256}.tar")
            tar = held.enter_context(closing(_find(path) or _unpack(layer, content, path, left_bytes)))
        left_bytes -= tar.size
        yield tar


def _unpack(layer: Layer, content: Iterator[bytes], path: Path, most_bytes: int) -> HostFile:
    """Write a tar; after an error nothing of it stays."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replaced(path) as file:
            os.fchmod(file.fileno(), 0o600)
            _verify(layer, _written(content, file, most_bytes, layer.where))
            file.flush()
            os.fsync(file.fileno())  # a name that outlives a crash must not be that of half a file
            # by its name it could be another, or none: others may write to the folder, or prune the cache
            tar = HostFile(f"/proc/self/fd/{file.fileno()}")
    except (OSError, FailedError) as error:
        why = error.what if isinstance(error, FailedError) else error.strerror
        hint = "set LUMIIMG_CACHE to a folder with space for the whole image"
        what = f"has no space for an unpacked layer: {why}"
        raise MissingHereError(what, where=str(path.parent), hint=hint) from error
    tar.name = str(path)
    return tar


def _find(path: Path) -> HostFile | None:
    """Return what was unpacked before; None where it is not there, or cannot be trusted."""
    with suppress(OSError):
        file = HostFile(path, follow=False)
        seen = os.fstat(file.fileno())
        end = file.read_at(max(0, file.size - len(_END)), len(_END))  # a copy of a cache may have been cut off
        if seen.st_uid == os.getuid() and not seen.st_mode & 0o022 and end == _END:
            with suppress(OSError):
                os.utime(file.fileno())  # the longest unused is pruned first
            return file
        file.close()
    return None


def _verify(layer: Layer, content: Iterator[bytes]) -> None:
    """Raise ImageError for other content than the config of the image names."""
    digest = hashlib.sha256(usedforsecurity=False)
    for chunk in content:
        digest.update(chunk)
    if digest.hexdigest() != layer.sha256:
        what = f"the content of layer {layer.sha256} does not match its digest"
        raise ImageError(what, where=layer.where, hint=FETCH_AGAIN)


def _written(content: Iterator[bytes], file: BinaryIO, most_bytes: int, where: str) -> Iterator[bytes]:
    """Write content and yield it. Raises ImageError for more than there may be, OSError for more than has room."""
    for chunk in content:
        if file.tell() + len(chunk) > most_bytes:
            raise ImageError(f"layers that unpack to more than {_MAX_RATIO} times their size", where=where)
        disk = os.fstatvfs(file.fileno())
        if disk.f_bavail * disk.f_frsize < _SPARE_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        file.write(chunk)
        yield chunk


def _chunks(where: str, stream: BufferedIOBase, error_of_decoder: type[Exception] = OSError) -> Iterator[bytes]:
    """Yield the content of a layer. Raises ImageError where it cannot be read, or is damaged."""
    try:
        yield from iter(partial(stream.read, _CHUNK_BYTES), b"")
    except (OSError, EOFError, MemoryError, error_of_decoder) as error:
        raise ImageError(f"a layer is damaged: {error}", where=where, hint=FETCH_AGAIN) from error


def _decoder(source: RandomAccess) -> tuple[BufferedIOBase, type[Exception]] | None:
    """Return what unpacks a layer, and the error that it raises; None where it is not compressed."""
    head = source.read_at(0, min(4, source.size))
    if head.startswith(_GZIP_MAGIC):
        return gzip.GzipFile(fileobj=stream_of(source), mode="rb"), zlib.error
    if not _ZSTD_MAGIC.fullmatch(head):
        return None
    options = {zstd().DecompressionParameter.window_log_max: _ZSTD_WINDOW_LOG}
    return zstd().ZstdFile(stream_of(source), options=options), zstd().ZstdError
