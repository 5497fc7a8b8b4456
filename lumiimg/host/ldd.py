"""What `ldd` in the container would answer about some files of an image, or about all."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from lumiimg.catalog.settings import user_cache
from lumiimg.elf.c_library import MixedBuilds, mixed_builds, of_c_library
from lumiimg.elf.facts import ET_DYN, ET_EXEC
from lumiimg.elf.files import Files, RecordedElf
from lumiimg.elf.load_checks import FIRST_MINOR_WITH_RELR, since
from lumiimg.elf.loader import Process
from lumiimg.engine.binds import parse_binds
from lumiimg.errors import BadInputError, ExitCode
from lumiimg.host.container_view import ContainerView, LoaderMachine, see_inside, told_to_engine, why_not_modelled
from lumiimg.host.engine_mounts import as_run, hidden_files, may_be_hidden
from lumiimg.host.node_facts import cpu
from lumiimg.host.snapshot_tree import HostFiles
from lumiimg.image import ImageError, RootFileSystem, open_image
from lumiimg.image.permissions import barred, set_id
from lumiimg.wording import count

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from lumiimg.elf.objects import LoadOutcome
    from lumiimg.host.snapshot import Snapshot

_HEAD_BYTES = 18
_CODE = (".c", ".cpp", ".cu", ".h", ".hip", ".hpp", ".js", ".py", ".pyc", ".pyi")
_TEXTS = (".css", ".csv", ".gz", ".html", ".json", ".md", ".png", ".rst", ".svg", ".toml", ".txt", ".xml", ".yaml")
_MOST_HIDDEN = 8


@dataclass(frozen=True, slots=True)
class Libraries:
    """Which libraries files of an image would load, and what is missing."""

    files: dict[str, LoadOutcome]
    """What `ld.so FILE` loads, by the path in the image as it was named, or was found by `--all`."""
    by_kernel: dict[str, LoadOutcome]
    """What a program loads that is started by its name, where that is something else; absent otherwise."""
    undecided: str
    """Why the question stays open; absent where it does not."""
    notes: tuple[str, ...]
    """What was not seen; absent where all was."""

    @property
    def exit_code(self) -> ExitCode:
        """Good where all is there and fits."""
        if self.undecided:
            return ExitCode.UNDECIDED
        return ExitCode.GOOD if all(outcome.ok for outcome in self.outcomes) else ExitCode.NO

    @property
    def outcomes(self) -> tuple[LoadOutcome, ...]:
        """Of all files, and of those that the kernel starts otherwise."""
        return (*self.files.values(), *self.by_kernel.values())

    @property
    def sentence(self) -> str:
        """The answer."""
        if self.undecided:
            return f"CANNOT TELL: {self.undecided}"
        if not self.outcomes:
            return "no program and no library in this image"
        if len(self.outcomes) > 1:
            return self._of_many
        [(path, outcome)] = self.files.items()
        if not outcome.ok:
            return f"{path} would not load"
        if outcome.is_static:
            return f"{path} is statically linked"
        return f"{path} loads with all that it needs: {count(len(outcome.objects) - 1, 'library')}"

    @property
    def _of_many(self) -> str:
        loaded, number = sum(outcome.ok for outcome in self.files.values()), len(self.files)
        if loaded < number:
            return f"{count(number, 'file')}: {loaded} would load, {number - loaded} would not"
        but = "" if all(outcome.ok for outcome in self.outcomes) else ", but not as the kernel starts them"
        return f"{count(number, 'file')}: {loaded} would load with all that they need{but}"

    @property
    def missing(self) -> Counter[str]:
        """How many files lack each library that is not there."""
        return Counter(item.name for outcome in self.files.values() for item in outcome.missing)


@dataclass(frozen=True, slots=True)
class ContainerStart:
    """How the container is started whose process loads them."""

    variables: Sequence[str] = ()
    """K=V, as the engine's --env takes them."""
    binds: Sequence[str] = ()
    """As its --bind does."""
    snapshot: Snapshot | None = None
    """Of the machine; None: this one."""
    cwd: str = "/"


def libraries_of(image: Path, paths: Sequence[str], start: ContainerStart, environment: Mapping[str, str]) -> Libraries:
    """Return what these files load, or every program and library where none is named. Raises BadInputError."""
    with _open_inside(image, start, environment) as inside:
        undecided = why_not_modelled(inside.root)
        wanted: Iterable[str] = dict.fromkeys(paths) if paths else elf_files(inside.root)
        listings = {} if undecided else dict(list_libraries(inside, wanted))
        outcomes = {path: listing.outcome for path, listing in listings.items()}
        by_kernel = {path: listing.by_kernel for path, listing in listings.items() if listing.by_kernel is not None}
        # of the files that were named: an image has programs that are for root alone, and is none the worse for it
        named = outcomes.values() if paths else ()
        loaded = dict.fromkeys(inside.settings.absolute(file.path) for outcome in named for file in outcome.objects)
        closed = dict.fromkeys(way for _, way in barred(inside.root, loaded))
        doubts = [*inside.doubts, *notes_of_covers(inside, outcomes.values())]
        doubts += dict.fromkeys(doubt for listing in listings.values() for doubt in listing.doubts)
    doubts += (f"not everybody can load all of this: {path} is closed to others" for path in closed)
    return Libraries(outcomes, by_kernel, undecided or "", tuple(doubts))


@contextlib.contextmanager
def _open_inside(image: Path, start: ContainerStart, environment: Mapping[str, str]) -> Iterator[ContainerView]:
    """Open an image as a process in a container has it that is started so. Raises BadInputError."""
    variables: dict[str, str] = {}
    for text in start.variables:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise BadInputError("not of the form K=V", where=f"--env {text}")
        variables[name] = value
    binds = tuple(bind for text in start.binds for bind in parse_binds(text))
    if start.snapshot is not None:
        host, of_host = HostFiles(start.snapshot).root, LoaderMachine.of(start.snapshot)
    else:
        host = open_image(Path("/")).root
        _, intel, levels = cpu(host)
        of_host = LoaderMachine(levels, intel, os.uname().release)
    with open_image(image, user_cache) as opened:
        yield see_inside(
            as_run(opened, environment, start.snapshot),
            told_to_engine(variables),
            binds=binds,
            host=host,
            cwd=start.cwd,
            machine=of_host,
        )


# -- each file --


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
