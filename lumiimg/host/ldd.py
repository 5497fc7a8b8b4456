"""What `ldd` in the container would answer about some files, or about all."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from lumiimg.elf.c_library import MixedBuilds, mixed_builds, of_c_library
from lumiimg.elf.facts import ET_DYN, ET_EXEC
from lumiimg.elf.files import Files, RecordedElf
from lumiimg.elf.load_checks import FIRST_MINOR_WITH_RELR, since
from lumiimg.elf.loader import Process
from lumiimg.elf.system import libc_kind
from lumiimg.errors import BadInputError
from lumiimg.host.engine_mounts import hidden_files, may_be_hidden
from lumiimg.image import ImageError, RootFileSystem
from lumiimg.image.permissions import set_id

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from lumiimg.elf.objects import LoadOutcome
    from lumiimg.host.container_view import ContainerView

_HEAD_BYTES = 18
_CODE = (".c", ".cpp", ".cu", ".h", ".hip", ".hpp", ".js", ".py", ".pyc", ".pyi")
_TEXTS = (".css", ".csv", ".gz", ".html", ".json", ".md", ".png", ".rst", ".svg", ".toml", ".txt", ".xml", ".yaml")
_MOST_HIDDEN = 8


@dataclass(frozen=True, slots=True)
class Listing:
    """What one file loads."""

    outcome: LoadOutcome
    """Given to the loader: `ld.so --list FILE`."""
    by_kernel: LoadOutcome | None = None
    """Started by its name, where that is another: of a program."""
    doubts: tuple[str, ...] = ()
    """What is not known of it."""


def list_libraries(inside: ContainerView, paths: Iterable[str]) -> Iterator[tuple[str, Listing]]:
    """Yield (path, what a process started with it would load), one process for each.

    Raises BadInputError for a path that is not in the image.
    """
    files = Files(inside.root)
    mixed: dict[frozenset[str], MixedBuilds | None] = {}
    for path in paths:
        try:
            inside.root.stat(inside.settings.absolute(path))
        except OSError as error:
            whole = inside.image.whole
            if whole.exists(absolute := inside.settings.absolute(path)):
                real = whole.resolve(absolute)
                by = next((cover.by for cover in inside.image.covers if cover.hides(real)), "a bind lies over it")
                raise BadInputError(f"is in the image, and not in the container: {by}", where=path) from error
            raise BadInputError(
                f"cannot be looked up in the image: {error.strerror}",
                where=path,
                hint="give a path as it is in the container; `--all` takes every ELF file",
            ) from error
        yield path, _listed(inside, files, path, mixed)


def _listed(inside: ContainerView, files: Files, path: str, mixed: dict[frozenset[str], MixedBuilds | None]) -> Listing:
    """`mixed` has what was found of each set of parts of the C library: a banner is looked for in the whole file."""
    process = Process(inside.root, inside.settings, files=files)
    outcome = process.start(path)
    if outcome.root is None or not outcome.root.facts.is_dynamic:
        return Listing(outcome)
    parts = frozenset(loaded.path for loaded in process.objects if of_c_library(loaded.facts))
    if parts not in mixed:
        mixed[parts] = mixed_builds(inside.root, process)
    doubts: list[str] = []
    if (found := mixed[parts]) is not None:
        doubts.append(f"parts of the C library are of two builds: {', '.join(found.evidence)}")
    if outcome.root.facts.interpreter is None:
        return Listing(outcome, doubts=tuple(doubts))
    absolute = inside.settings.absolute(path)
    if word := set_id(inside.root, absolute):
        doubts.append(
            f"{path} is {word}: where that counts, the loader ignores LD_LIBRARY_PATH, which is followed here"
        )
    minor = process.system.glibc_minor
    if since(minor, FIRST_MINOR_WITH_RELR) and inside.root.resolve(absolute) == absolute:
        return Listing(outcome, doubts=tuple(doubts))
    started = Process(inside.root, inside.settings, files=files).start(path, by_kernel=True)
    is_same = (started.closure, started.errors) == (outcome.closure, outcome.errors)
    return Listing(outcome, None if is_same else started, tuple(doubts))


def notes_of_covers(inside: ContainerView, outcomes: Iterable[LoadOutcome]) -> Iterator[str]:
    """Yield what is to be said of folders that engines mount over: who starts the container decides what is there."""
    found = list(outcomes)
    files = (inside.settings.absolute(loaded.path) for outcome in found for loaded in outcome.objects)
    for cover, below in may_be_hidden(inside.image, files):
        yield f"{below[0]} may not be there: {cover.by}"
    missing = {lost.name.rpartition("/")[2] for outcome in found for lost in outcome.missing}
    for cover, path in islice(hidden_files(inside.image, missing), _MOST_HIDDEN) if missing else ():
        yield f"{path} of the image is not there: {cover.by}"


def refusal(root: RootFileSystem) -> str | None:
    """Return why the model does not hold for a root; None where it does."""
    if libc_kind(root) == "musl":
        return "this image has musl, whose loader follows other rules than glibc's, which are modelled here"
    return None


def elf_files(root: RootFileSystem) -> Iterator[str]:
    """Yield the programs and libraries of a root: ELF files of type EXEC or DYN; each file once, not its symlinks.

    Files that may not be read are passed over, as the loader would have to; so are those that are called like a text,
    which are nine in ten of an image.
    """
    for path, file in root.open_all(but=(*_CODE, *_TEXTS)):
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
