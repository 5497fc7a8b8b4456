"""What `ldd` in the container would answer about some files, or about all."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from lumiimg.elf.facts import ET_DYN, ET_EXEC
from lumiimg.elf.files import Files, RecordedElf
from lumiimg.elf.loader import Process
from lumiimg.elf.system import libc_kind
from lumiimg.errors import BadInputError
from lumiimg.image import ImageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from lumiimg.elf.objects import LoadOutcome
    from lumiimg.host.container_view import ContainerView
    from lumiimg.image import RootFileSystem

_HEAD_BYTES = 18


def list_libraries(inside: ContainerView, paths: Iterable[str]) -> Iterator[tuple[str, LoadOutcome]]:
    """Yield (path, what a process started with it would load), one process for each.

    Raises BadInputError for a path that is not in the image.
    """
    files = Files(inside.root)
    for path in paths:
        try:
            inside.root.stat(inside.settings.absolute(path))
        except OSError as error:
            raise BadInputError(
                f"cannot be looked up in the image: {error.strerror}",
                where=path,
                hint="give a path as it is in the container; `--all` takes every ELF file",
            ) from error
        yield path, Process(inside.root, inside.settings, files=files).start(path)


def refusal(root: RootFileSystem) -> str | None:
    """Return why the model does not hold for a root; None where it does."""
    if libc_kind(root) == "musl":
        return "this image has musl, whose loader follows other rules than glibc's, which are modelled here"
    return None


def elf_files(root: RootFileSystem) -> Iterator[str]:
    """Yield the programs and libraries of a root: ELF files of type EXEC or DYN; each file once, not its symlinks.

    Files that may not be read are passed over, as the loader would have to.
    """
    for path, file in root.open_all():
        with contextlib.closing(file):
            if isinstance(file, RecordedElf):
                yield path
                continue
            try:
                head = file.read_at(0, _HEAD_BYTES) if file.size > _HEAD_BYTES else b""
            except (OSError, ImageError):
                continue
        kind = int.from_bytes(head[16:18], "little" if head[5:6] == b"\1" else "big")
        if head[:4] == b"\x7fELF" and kind in {ET_EXEC, ET_DYN}:
            yield path
