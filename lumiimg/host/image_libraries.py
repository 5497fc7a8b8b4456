"""What files of an image would load in its container: what `ldd` answers of them."""

from __future__ import annotations

import os
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lumiimg.catalog.settings import user_cache
from lumiimg.engine.binds import parse_binds
from lumiimg.errors import BadInputError, ExitCode
from lumiimg.host.container_view import ContainerView, LoaderMachine, see_inside, told_to_engine
from lumiimg.host.engine_mounts import as_run
from lumiimg.host.ldd import elf_files, list_libraries, notes_of_covers, refusal
from lumiimg.host.node_facts import cpu
from lumiimg.host.snapshot_tree import SnapshotTree
from lumiimg.image import RootFileSystem, open_image
from lumiimg.image.permissions import barred
from lumiimg.wording import count

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from lumiimg.elf.objects import LoadOutcome
    from lumiimg.host.snapshot import Snapshot


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
        undecided = refusal(inside.root)
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


@contextmanager
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
        host, of_host = RootFileSystem(SnapshotTree(start.snapshot)), LoaderMachine.of(start.snapshot)
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
