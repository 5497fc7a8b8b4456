"""The compile cache: what a layer's script saves for its next run in `$KEPT`, such as wheels that took hours."""

from __future__ import annotations

import os
import shutil
import stat
import tarfile
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from lumiimg.build import safe_fs
from lumiimg.core.errors import FailedError
from lumiimg.core.files import file_sha256, open_regular
from lumiimg.core.text import size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lumiimg.build.cache import CacheKey, LayerCache
    from lumiimg.build.layer_build import LayerBuild

UNREADABLE = (OSError, ValueError, RecursionError, tarfile.TarError)


@contextmanager
def keeping(cache: LayerCache, key: CacheKey, layer: LayerBuild, on_notice: Callable[[str], None]) -> Iterator[None]:
    """Unpack the compile cache of earlier runs where the script of a layer finds it.

    Its content is then stored for the next run, even if the layer failed.
    If the script did not reach its end, or the folder is gone, the cached one stays unchanged.
    """
    folder, layers = layer.compile_cache, layer.definition.layers
    names = ", ".join(layers)
    if (entry := cache.find(key)) is not None:
        try:
            if not entry.is_intact:
                raise tarfile.ReadError("it is damaged")
            unpack_files(entry.data, folder)
            on_notice(f"{names}: compile cache reused, {size(entry.size_bytes)}")
        except UNREADABLE as error:
            shutil.rmtree(folder, ignore_errors=True)
            cache.remove(entry.key)
            on_notice(f"{names}: its compile cache cannot be unpacked, so everything is compiled again: {error}")
            entry = None
    try:
        yield
    finally:
        try:
            if layer.has_ended and os.path.lexists(folder):
                with cache.building() as scratch:
                    packed = scratch / "data.tar"
                    if not pack_files(folder, packed):
                        cache.remove(key.digest)
                    elif entry is None or file_sha256(packed) != entry.sha256:
                        of = tuple(f"{name} (compiled)" for name in layers)
                        cache.store(key, packed, layers=of, seconds=0.0, replaces=True)
        except (OSError, FailedError, RecursionError) as error:  # the layer is what counts; folders may be too deep
            on_notice(f"cannot store the compile cache of {names}: {error}")


def pack_files(folder: Path, target: Path) -> int:
    """Pack the regular files below a folder, except overlay whiteouts, into a reproducible tar; return their number.

    The script could write into `folder` and its parent and may have put links there, so no link is followed.
    Raises OSError.
    """
    above, own = folder.parts[-2:]
    with tarfile.open(target, "w") as archive, safe_fs.folder(folder.parents[1], f"{above}/{own}") as top:
        for path, folders, names, at in os.fwalk(".", dir_fd=top, onerror=_raise):
            folders.sort()
            for name in sorted(names):
                if name.startswith(".wh.") or not stat.S_ISREG(os.lstat(name, dir_fd=at).st_mode):
                    continue
                with os.fdopen(safe_fs.open_file(at, name, os.O_RDONLY), "rb") as file:
                    member = tarfile.TarInfo(PurePosixPath(path, name).as_posix())
                    member.size = os.fstat(file.fileno()).st_size
                    archive.addfile(member, file)
        return len(archive.getmembers())


def _raise(error: OSError) -> None:
    raise error


def unpack_files(source: Path, folder: Path) -> None:
    """Unpack the files into a new folder, never outside of it, and no more bytes than the archive has.

    Raises the exceptions in `UNREADABLE`: anyone who shares the cache may have written the archive.
    """
    left = source.stat().st_size
    with open_regular(source) as file, tarfile.open(fileobj=file, mode="r:") as archive:
        for member in archive:
            path = PurePosixPath(member.name)
            content = archive.extractfile(member) if member.isreg() else None
            if content is None or path.is_absolute() or ".." in path.parts:
                continue
            left -= member.size
            if left < 0:
                raise tarfile.ReadError(f"{member.name[:80]!r} is larger than the archive")
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("wb") as copy:
                shutil.copyfileobj(content, copy)
