"""File systems of images that were unpacked once, where there is no FUSE to mount them.

Compressed layers of OCI images, which image/oci/kept.py unpacks, are listed and removed with them.

<cache>/unpacked/<digest>/root         its files, as this user's
entry.json   of which image, and how large; its time is that of the last use
.use….       one for each container that has them now, named for its process
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lumiimg.catalog.settings import read_settings
from lumiimg.engine.failures import explain
from lumiimg.engine.own_folder import keep_folder, remove_kept
from lumiimg.engine.owner import is_left, owner_mark
from lumiimg.engine.process import run, which
from lumiimg.engine.workspace import scratch_folder
from lumiimg.errors import FailedError, MissingHereError, one_line
from lumiimg.files import read_beginning
from lumiimg.image.oci.kept import kept_layers
from lumiimg.image.unpacked_size import require_room

if TYPE_CHECKING:
    from lumiimg.engine.namespaces.layers import SquashedLayer

FOLDER = "unpacked"
"""Of the cache."""
_LAYOUT = 2
_ENTRY = "entry.json"
_LIMIT_BYTES = 64 * 1024
_MOST_BYTES = 1 << 60


@dataclass(frozen=True, slots=True)
class UnpackedImage:
    """One file system of an image, or a layer of one."""

    key: str
    """A digest of which file it was, and when that was written; of a layer, the hexadecimal digits of its digest."""
    image: str
    """Path of that file; of a layer, words that name its digest."""
    size_bytes: int
    """Of its files."""
    used_ns: int
    """When it was used the last time, in nanoseconds since 1970."""


@contextmanager
def unpacked(layers: Sequence[SquashedLayer], environment: Mapping[str, str]) -> Iterator[list[Path]]:
    """Yield folders with the files of each layer, which nobody removes meanwhile.

    Raises FailedError, MissingHereError.
    """
    program = which("unsquashfs", environment.get("PATH"))
    if program is None:
        raise MissingHereError(
            "an image is mounted by squashfuse_ll and /dev/fuse, or unpacked by unsquashfs: neither is here",
            hint="install squashfuse and fuse3, or squashfs-tools",
        )
    parent = read_settings(environment).cache / FOLDER
    parent.mkdir(0o700, exist_ok=True)
    with ExitStack() as held:
        yield [held.enter_context(_in_use(program, layer, parent, environment)) for layer in layers]


@contextmanager
def _in_use(program: str, layer: SquashedLayer, parent: Path, environment: Mapping[str, str]) -> Iterator[Path]:
    seen = layer.file.stat()
    said = f"{_LAYOUT} {seen.st_dev} {seen.st_ino} {seen.st_size} {seen.st_mtime_ns} {seen.st_ctime_ns} {layer.offset}"
    folder = parent / hashlib.sha256(said.encode()).hexdigest()
    mark = folder / f".use-{secrets.token_hex(4)}{owner_mark()}"
    while True:
        try:
            mark.touch()
            break
        except FileNotFoundError:  # or somebody removes it at this moment
            _unpack(program, layer, folder, environment)
        except OSError:  # in a cache that only others may write to
            break
    with contextlib.suppress(OSError):
        os.utime(folder / _ENTRY)
    try:
        yield folder / "root"
    finally:
        with contextlib.suppress(OSError):
            mark.unlink()


def _unpack(program: str, layer: SquashedLayer, folder: Path, environment: Mapping[str, str]) -> None:
    require_room(layer.file, folder.parent)
    with scratch_folder(folder.parent) as scratch:
        root = scratch / "image" / "root"
        root.parent.mkdir(0o700)
        words = [program, "-no-progress", "-quiet", "-no-xattrs", "-dest", str(root), "-offset", str(layer.offset)]
        done = run([*words, str(layer.file)], env=environment)
        if not done.ok:
            known = explain(done.output)
            why = known.meaning if known else one_line(done.last_line)[:300]
            raise FailedError(f"unsquashfs: {why}", where=str(layer.file), hint=known.remedy if known else None)
        entry = {"image": os.fspath(layer.file), "size_bytes": _size_of(root)}
        (root.parent / _ENTRY).write_text(json.dumps(entry), encoding="utf-8")
        try:
            keep_folder(root.parent, folder)
        except OSError:
            if not folder.is_dir():  # else another was quicker
                raise


def _size_of(root: Path) -> int:
    return sum(os.lstat(f"{folder}/{name}").st_blocks * 512 for folder, _, files in os.walk(root) for name in files)


def unpacked_images(cache: Path) -> list[UnpackedImage]:
    """Return what is unpacked in a cache; what cannot be read is as large as nothing, and was never used."""
    found = []
    for folder in sorted((cache / FOLDER).glob("[0-9a-f]*")):
        image, size_bytes, used_ns = "", 0, 0
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
            entry: Any = json.loads(read_beginning(folder / _ENTRY, _LIMIT_BYTES, follow=False))
            used_ns = (folder / _ENTRY).stat().st_mtime_ns
            seen = entry["size_bytes"]
            if isinstance(entry["image"], str) and type(seen) is int and 0 <= seen < _MOST_BYTES:
                image, size_bytes = entry["image"], seen
        found.append(UnpackedImage(folder.name, image, size_bytes, used_ns))
    for layer in kept_layers(cache):
        said = f"a layer of an OCI image, {layer.digest}" if layer.is_whole else ""
        found.append(UnpackedImage(layer.key, said, layer.size_bytes, layer.used_ns))
    return found


def remove_unpacked(cache: Path, image: UnpackedImage) -> bool:
    """Remove what was unpacked, unless a container has it now; return whether it is gone.

    A container on another machine cannot be seen from here: it is believed for a week.
    """
    if layers := [layer for layer in kept_layers(cache) if layer.key == image.key]:
        for layer in layers:
            layer.remove()
        return True
    folder = cache / FOLDER / image.key
    for mark in folder.glob(".use-*"):
        if is_left(mark):
            mark.unlink(missing_ok=True)
    if any(folder.glob(".use-*")):
        return False
    gone = folder.with_name(f"work-{image.key[:12]}{owner_mark()}")
    try:
        folder.rename(gone)
    except FileNotFoundError:
        return False  # another was quicker
    except OSError as error:
        raise FailedError(f"cannot be removed: {error.strerror}", where=str(folder)) from error
    if any(gone.glob(".use-*")):  # it was taken at this moment
        with contextlib.suppress(OSError):
            gone.rename(folder)
            return False
    try:
        remove_kept(gone, folder)
    except FailedError:
        with contextlib.suppress(OSError):
            gone.rename(folder)
        raise
    return True
