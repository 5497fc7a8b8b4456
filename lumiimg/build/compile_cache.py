"""What the script of a layer keeps for its next run, in `$KEPT`: wheels that took hours to compile."""

from __future__ import annotations

import shutil
import stat
import tarfile
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from lumiimg.build.kept_archive import TarFile
from lumiimg.engine.workspace import scratch_folder
from lumiimg.errors import FailedError
from lumiimg.files import file_sha256
from lumiimg.image.tree import FileKind, ImageError
from lumiimg.wording import size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lumiimg.build.cache import CacheKey, LayerCache


@contextmanager
def keeping(
    cache: LayerCache, key: CacheKey, layers: Sequence[str], folder: Path, on_notice: Callable[[str], None]
) -> Iterator[None]:
    """Put into `folder` what the script of a layer kept when it ran before, on whatever stack.

    What is there afterwards is kept for the next run, also where the layer failed: that a script took out is gone.
    Where the folder is not there, the script did not come to its end, and nothing changes.
    """
    names = ", ".join(layers)
    before = _put(cache, key, names, folder, on_notice)
    try:
        yield
    finally:
        files = list(kept_files(folder)) if folder.is_dir() else None
        try:
            if files is not None and digests(files) != before:
                _keep(cache, key, layers, files)
        except (OSError, FailedError) as error:  # the layer is what counts
            on_notice(f"the compile cache of {names} is not kept: {error}")


def _put(
    cache: LayerCache, key: CacheKey, names: str, folder: Path, on_notice: Callable[[str], None]
) -> dict[str, str]:
    """Unpack what was kept, if it is good; return its digests by name."""
    entry = cache.find(key)
    if entry is None:
        return {}
    try:
        if not cache.is_whole(entry):
            raise ImageError("is damaged", where=str(entry.data))  # noqa: TRY301 - as what unpacking it may find
        unpack_kept(entry.data, folder)
    except (OSError, ValueError, ImageError) as error:
        shutil.rmtree(folder, ignore_errors=True)
        cache.remove(entry.key)
        on_notice(f"{names}: its compile cache cannot be unpacked, so everything is compiled again: {error}")
        return {}
    on_notice(f"{names}: compile cache kept, {size(entry.size_bytes)}")
    return digests(list(kept_files(folder)))


def _keep(cache: LayerCache, key: CacheKey, layers: Sequence[str], files: Sequence[tuple[str, Path]]) -> None:
    if not files:
        cache.remove(key.digest)
        return
    told = tuple(f"{name} (compiled)" for name in layers)
    with scratch_folder(cache.root / "work") as scratch:
        pack_kept(files, scratch / "data.tar")
        cache.keep(key, scratch / "data.tar", layers=told, seconds=0.0, replaces=True)


def digests(files: Sequence[tuple[str, Path]]) -> dict[str, str]:
    """Return the digests of files by name."""
    return {name: file_sha256(path) for name, path in files}


def kept_files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the files that a script keeps, with their names: plain files, and nothing that an overlay noted down."""
    for path in sorted(folder.rglob("*")):
        if stat.S_ISREG(path.lstat().st_mode) and not path.name.startswith(".wh."):
            yield path.relative_to(folder).as_posix(), path


def pack_kept(files: Sequence[tuple[str, Path]], target: Path) -> None:
    """Write kept files into one. Raises OSError."""
    with tarfile.open(target, "w") as archive:
        for name, path in files:
            archive.add(path, name, recursive=False)


def unpack_kept(source: Path, folder: Path) -> None:
    """Write kept files into a new folder, nothing outside of it, and no more than the archive has itself.

    Raises OSError, ImageError.
    """
    left = source.stat().st_size
    with TarFile(source) as archive:
        for member in archive.members():
            path = PurePosixPath(member.name)
            if member.kind is not FileKind.FILE or member.is_hard_link or path.is_absolute() or ".." in path.parts:
                continue
            left -= member.size_bytes
            if left < 0:
                raise ImageError(f"{member.name[:80]!r} is larger than the archive", where=str(source))
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            archive.copy(member, target)
