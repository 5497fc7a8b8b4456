"""Layers that were unpacked once, one tar each, in a folder of the cache.

<cache>/oci/<algorithm>-<hex>-<size>.tar    the content of the layer with this digest; size in bytes
            .<algorithm>-<hex>.…             one that is being written

A tar gets its name when it is whole. Only one that belongs to this user, and that nobody else may write to, is used:
nobody else decides what an image holds.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lumiimg.core.errors import FailedError
from lumiimg.core.files import regular_file
from lumiimg.image.byte_source import ByteSource

if TYPE_CHECKING:
    from lumiimg.image.oci.document import Digest

FOLDER = "oci"
"""Of the cache."""
_NAME = re.compile(r"(?P<algorithm>sha256|sha512)-(?P<key>[0-9a-f]{64,128})-(?P<size>[0-9]{1,19})\.tar")
_ABANDONED_S = 24 * 3600.0
"""A file that nobody wrote to for so long is that of a process that is gone."""


@dataclass(frozen=True, slots=True)
class KeptLayer:
    """The tar of one layer."""

    path: Path
    digest: str
    """Of its content, as the image names it."""
    key: str
    """The hexadecimal digits of its digest."""
    size_bytes: int
    """Of the tar."""
    used_ns: int
    """When it was used the last time, in nanoseconds since 1970."""
    is_whole: bool
    """Whether it has the size of its name."""

    def remove(self) -> None:
        """Remove it; who reads it just now can go on. Raises FailedError."""
        try:
            self.path.unlink(missing_ok=True)
        except OSError as error:
            raise FailedError(f"cannot be removed: {error.strerror}", where=str(self.path)) from error


def kept_layers(cache: Path) -> list[KeptLayer]:
    """Return the layers of a cache; abandoned files of unfinished ones are removed."""
    found = []
    for path in sorted((cache / FOLDER).glob("*")):
        with contextlib.suppress(OSError):  # another has just removed it
            seen = path.lstat()
            if stat.S_ISDIR(seen.st_mode):  # nothing of ours
                continue
            if name := _NAME.fullmatch(path.name):
                is_whole = stat.S_ISREG(seen.st_mode) and seen.st_size == int(name["size"])
                digest = f"{name['algorithm']}:{name['key']}"
                found.append(KeptLayer(path, digest, name["key"], seen.st_size, seen.st_mtime_ns, is_whole))
            elif path.name.startswith(".") and time.time() - seen.st_mtime > _ABANDONED_S:
                path.unlink()
    return found


def find_layer(cache: Path, digest: Digest) -> ByteSource | None:
    """Return the tar of a layer, opened; None where there is none that can be used."""
    for path in (cache / FOLDER).glob(f"{_key(digest)}-*.tar"):
        with contextlib.suppress(OSError):
            descriptor = regular_file(path, follow=False)
            seen = os.fstat(descriptor)
            is_ours = seen.st_uid == os.getuid() and not seen.st_mode & 0o022
            if is_ours and path.name == _name(digest, seen.st_size):
                with contextlib.suppress(OSError):  # the longest unused is pruned first
                    os.utime(descriptor)
                return ByteSource(descriptor, name=str(path), start=0, size=seen.st_size, owns=True)
            os.close(descriptor)
    return None


@contextlib.contextmanager
def new_layer(cache: Path, digest: Digest) -> Iterator[int]:
    """Yield an open file, which becomes the tar of a layer at the end, and stays open.

    Raises OSError where the cache cannot be written. After that, and after any other error, the file is gone.
    """
    folder = cache / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=f".{_key(digest)}.", dir=folder)
    try:
        yield descriptor
        os.fsync(descriptor)  # a name that outlives a crash must not be that of half a file
        Path(name).replace(folder / _name(digest, os.fstat(descriptor).st_size))
    except BaseException:
        os.close(descriptor)
        Path(name).unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def unnamed_file(folder: Path) -> Iterator[int]:
    """Yield an open file that has no name, and stays open after the end. Raises OSError."""
    descriptor, name = tempfile.mkstemp(prefix="lumiimg-", dir=folder)
    try:
        Path(name).unlink()
        yield descriptor
    except BaseException:
        os.close(descriptor)
        raise


def _key(digest: Digest) -> str:
    return f"{digest.algorithm}-{digest.hexadecimal}"


def _name(digest: Digest, size: int) -> str:
    return f"{_key(digest)}-{size}.tar"
