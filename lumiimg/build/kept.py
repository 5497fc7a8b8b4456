"""What the script of a layer keeps for its next run, in `$KEPT`: wheels that took hours to compile."""

from __future__ import annotations

import shutil
import stat
import tarfile
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path


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
    """Write kept files into a new folder, and nothing outside of it. Raises OSError, tarfile.TarError."""
    # tarfile's own filters came with Python 3.11.4
    with tarfile.open(source) as archive:
        for member in archive:
            path = PurePosixPath(member.name)
            data = archive.extractfile(member) if member.isreg() else None
            if data is None or path.is_absolute() or ".." in path.parts:
                continue
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("wb") as file:
                shutil.copyfileobj(data, file)
