"""Layers as tars with random access: uncompressed ones in place, compressed ones unpacked into a folder of the cache.

<cache>/oci/<hex>.tar    the layer whose content has this sha256

The config of an image contains the digest of each layer's unpacked content, which is verified before it is used. A tar
gets its name once it is complete and verified, and is not verified again: it must be a file of this user that nobody
else may write to, or others would decide what an image contains.
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
from lumiimg.core.files import atomic_file, file_sha256, temporary_folder
from lumiimg.image.host_files import HostFile
from lumiimg.image.tree import ImageError

if TYPE_CHECKING:
    from io import BufferedIOBase

Cache = Callable[[], Path]
"""Function that returns the cache folder; called only if something is stored there."""
FOLDER = "oci"
"""Name of the folder inside the cache."""
FETCH_AGAIN = "fetch the image again"
_NAME = re.compile(r"[0-9a-f]{64}\.tar")
_CHUNK_BYTES = 1 << 20
# layers may always unpack to this size, even if they are all zeros; above it, to a ratio that no real software reaches
_ALWAYS_ALLOWED_BYTES = 4 << 30
_MAX_RATIO = 200
_SPARE_BYTES = 256 << 20
"""Space left free on the disk."""
_END = bytes(1024)
"""End of nearly every tar; one without it is unpacked each time."""
_ABANDONED_S = 24 * 3600.0
"""Age after which an unfinished file belongs to a process that no longer exists."""
_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18")
"""Magic number of a frame or of a skippable frame (RFC 8878)."""
_ZSTD_WINDOW_LOG = 27
"""Default limit of the reference decoder: a window of 128 MiB."""


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer as stored in the image."""

    source: OpenFile
    sha256: str
    """Digest of its unpacked content, in hexadecimal."""
    where: str
    """Name of its image."""


@dataclass(frozen=True, slots=True)
class UnpackedLayer:
    """The tar of one layer in the cache."""

    path: Path
    key: str
    """The sha256 of its content, as in the config of the image."""
    size_bytes: int
    """Size of the tar."""
    used_ns: int
    """Time of the last use, in nanoseconds since 1970."""

    @property
    def is_intact(self) -> bool:
        """Whether its content is unchanged; also False if it has just been removed."""
        try:
            return file_sha256(self.path) == self.key
        except BadInputError:
            return False

    def remove(self) -> None:
        """Remove it; processes that are reading it can continue. Raises FailedError."""
        try:
            self.path.unlink(missing_ok=True)
        except OSError as error:
            raise FailedError(f"cannot be removed: {error.strerror}", where=str(self.path)) from error


def unpacked_layers(cache: Path) -> list[UnpackedLayer]:
    """Return the layers of a cache, after removing abandoned unfinished files."""
    found = []
    for path in sorted((cache / FOLDER).glob("*")):
        with suppress(OSError):  # another process has just removed it
            seen = path.lstat()
            if _NAME.fullmatch(path.name):
                found.append(UnpackedLayer(path, path.stem, seen.st_size, seen.st_mtime_ns))
            elif path.name.startswith(".") and time.time() - seen.st_mtime > _ABANDONED_S:
                path.unlink()  # raises OSError for a folder
    return found


def open_layers(layers: Sequence[Layer], cache: Cache | None, resources: ExitStack) -> Iterator[RandomAccess]:
    """Yield the tar of each layer, verified; `resources` closes them. Without a cache, unpacked tars are unnamed files.

    Raises ImageError, and MissingHereError if there is no space to unpack a compressed layer.
    """
    left_bytes = _ALWAYS_ALLOWED_BYTES + _MAX_RATIO * sum(layer.source.size for layer in layers)
    for layer in layers:
        resources.callback(layer.source.close)
        if (unpacking := _decoder(layer.source)) is None:
            _verify(layer, _chunks(layer.where, stream_of(layer.source)))
            yield layer.source
            continue
        content = _chunks(layer.where, *unpacking)
        with nullcontext(cache()) if cache else TemporaryDirectory(prefix="lumiimg-", dir=temporary_folder()) as folder:
            path = Path(folder, FOLDER, f"{layer.sha256}.tar")
            tar = resources.enter_context(closing(_find(path) or _unpack(layer, content, path, left_bytes)))
        left_bytes -= tar.size
        yield tar


def _unpack(layer: Layer, content: Iterator[bytes], path: Path, max_bytes: int) -> HostFile:
    """Write a tar; after an error, nothing of it remains."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as file:
            os.fchmod(file.fileno(), 0o600)
            _verify(layer, _written(content, file, max_bytes, layer.where))
            file.flush()
            os.fsync(file.fileno())  # a name that survives a crash must not belong to an incomplete file
            # the name could lead to another file or none by now: others may write to the folder or prune the cache
            tar = HostFile(f"/proc/self/fd/{file.fileno()}")
    except (OSError, FailedError) as error:
        why = error.what if isinstance(error, FailedError) else error.strerror
        hint = "set LUMIIMG_CACHE to a folder with space for the whole image"
        what = f"has no space for an unpacked layer: {why}"
        raise MissingHereError(what, where=str(path.parent), hint=hint) from error
    tar.name = str(path)
    return tar


def _find(path: Path) -> HostFile | None:
    """Return a layer that was unpacked earlier; None if it does not exist or cannot be trusted."""
    with suppress(OSError):
        file = HostFile(path, follow=False)
        seen = os.fstat(file.fileno())
        end = file.read_at(max(0, file.size - len(_END)), len(_END))  # a copy of a cache may have been cut off
        if seen.st_uid == os.getuid() and not seen.st_mode & 0o022 and end == _END:
            with suppress(OSError):
                os.utime(file.fileno())  # the least recently used one is pruned first
            return file
        file.close()
    return None


def _verify(layer: Layer, content: Iterator[bytes]) -> None:
    """Raise ImageError if the content does not match the digest in the config of the image."""
    digest = hashlib.sha256(usedforsecurity=False)
    for chunk in content:
        digest.update(chunk)
    if digest.hexdigest() != layer.sha256:
        what = f"the content of layer {layer.sha256} does not match its digest"
        raise ImageError(what, where=layer.where, hint=FETCH_AGAIN)


def _written(content: Iterator[bytes], file: BinaryIO, max_bytes: int, where: str) -> Iterator[bytes]:
    """Write content and yield it. Raises ImageError if it exceeds the limit, OSError if the disk is full."""
    for chunk in content:
        if file.tell() + len(chunk) > max_bytes:
            raise ImageError(f"layers that unpack to more than {_MAX_RATIO} times their size", where=where)
        disk = os.fstatvfs(file.fileno())
        if disk.f_bavail * disk.f_frsize < _SPARE_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        file.write(chunk)
        yield chunk


def _chunks(where: str, stream: BufferedIOBase, error_of_decoder: type[Exception] = OSError) -> Iterator[bytes]:
    """Yield the content of a layer. Raises ImageError if it cannot be read or is damaged."""
    try:
        yield from iter(partial(stream.read, _CHUNK_BYTES), b"")
    except (OSError, EOFError, MemoryError, error_of_decoder) as error:
        raise ImageError(f"a layer is damaged: {error}", where=where, hint=FETCH_AGAIN) from error


def _decoder(source: RandomAccess) -> tuple[BufferedIOBase, type[Exception]] | None:
    """Return the decompressing stream of a layer and the error that it raises; None if it is not compressed."""
    head = source.read_at(0, min(4, source.size))
    if head.startswith(_GZIP_MAGIC):
        return gzip.GzipFile(fileobj=stream_of(source), mode="rb"), zlib.error
    if not _ZSTD_MAGIC.fullmatch(head):
        return None
    options = {zstd().DecompressionParameter.window_log_max: _ZSTD_WINDOW_LOG}
    return zstd().ZstdFile(stream_of(source), options=options), zstd().ZstdError
