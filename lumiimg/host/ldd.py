"""What `ldd` in the container would print for some files of an image, or for all."""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from lumiimg.catalog.settings import user_cache
from lumiimg.core.errors import BadInputError, ExitCode
from lumiimg.core.text import count
from lumiimg.elf import ElfCache, LoaderConfig, Process, glibc_mismatch, read_abi
from lumiimg.engine.binds import BindSpec, parse_binds
from lumiimg.host.container_view import (
    ContainerView,
    as_engine_variables,
    loader_on,
    view_of_container,
    why_not_modelled,
)
from lumiimg.host.engine_rules import hidden_files, may_be_hidden, with_engine_mounts
from lumiimg.host.node_facts import cpu
from lumiimg.host.root_queries import denied_files
from lumiimg.host.snapshot import HostFiles
from lumiimg.image import ImageError, RootFileSystem, open_image

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from lumiimg.elf import LoadResult
    from lumiimg.host.snapshot import Snapshot

_CODE = (".c", ".cpp", ".cu", ".h", ".hip", ".hpp", ".js", ".py", ".pyc", ".pyi")
_TEXTS = (".css", ".csv", ".gz", ".html", ".json", ".md", ".png", ".rst", ".svg", ".toml", ".txt", ".xml", ".yaml")
_MAX_HIDDEN = 8


@dataclass(frozen=True, slots=True)
class Libraries:
    """The libraries that files of an image would load, and what is missing."""

    files: dict[str, LoadResult]
    """Result of `ld.so FILE`, by path in the image as the user named it, or as `--all` found it."""
    by_kernel: dict[str, LoadResult]
    """Result for a program that is started by its name, where it differs; absent otherwise."""
    undecided: str
    """Why the question stays open; absent where it is answered."""
    notes: tuple[str, ...]
    """Doubts, and what was not checked; absent where there are none."""
    closed: tuple[str, ...] = ()
    """Files and folders along the way that only their owner or a group may use; absent where there are none."""

    @property
    def exit_code(self) -> ExitCode:
        """Good where every library is found and fits."""
        if not self.undecided and not all(outcome.ok for outcome in self.outcomes):
            return ExitCode.NO
        return ExitCode.UNDECIDED if self.undecided or self.closed else ExitCode.GOOD

    @property
    def outcomes(self) -> tuple[LoadResult, ...]:
        """Results for all files, and for programs that the kernel starts differently."""
        return (*self.files.values(), *self.by_kernel.values())

    @property
    def sentence(self) -> str:
        """The answer."""
        if self.undecided:
            return f"CANNOT TELL: {self.undecided}"
        if not self.outcomes:
            return "no program or library in this image"
        if len(self.outcomes) > 1:
            return self._summary
        [(path, outcome)] = self.files.items()
        if not outcome.ok:
            return f"{path} would not load"
        if self.closed:
            return f"{path} loads only for users who may read {self.closed[0]}"
        if outcome.is_static:
            return f"{path} is statically linked"
        return f"{path} loads with all that it needs: {count(len(outcome.objects) - 1, 'library')}"

    @property
    def _summary(self) -> str:
        loaded, number = sum(outcome.ok for outcome in self.files.values()), len(self.files)
        if loaded < number:
            return f"{count(number, 'file')}: {loaded} would load, {number - loaded} would not"
        but = "" if all(outcome.ok for outcome in self.outcomes) else ", but not as the kernel starts them"
        return f"{count(number, 'file')}: {loaded} would load with all that they need{but}"

    @property
    def missing(self) -> Counter[str]:
        """Number of files that lack each missing library."""
        return Counter(item.name for outcome in self.files.values() for item in outcome.missing)


def libraries_of(
    path: Path,
    files: Sequence[str],
    environment: Mapping[str, str],
    *,
    variables: Sequence[str] = (),
    binds: Sequence[str] = (),
    snapshot: Snapshot | None = None,
    cwd: str = "/",
) -> Libraries:
    """Return what the named files of an image load, or all its programs and libraries if none is named.

    `variables` are K=V as for the engine's --env, `binds` as for its --bind; `snapshot` is of the machine, by default
    this one. Raises BadInputError.
    """
    for text in variables:
        if not text.partition("=")[0] or "=" not in text:
            raise BadInputError("not of the form K=V", where=f"--env {text}")
    given = as_engine_variables(dict(text.split("=", 1) for text in variables))
    if snapshot is not None:
        host, loader = HostFiles(snapshot).root, loader_on(snapshot)
    else:
        host = open_image(Path("/")).root
        _, intel, levels = cpu(host)
        loader = LoaderConfig(hwcaps=levels, intel=intel)
    with open_image(path, user_cache) as opened:
        image = with_engine_mounts(opened, environment, snapshot)
        bound = [bind for text in binds for bind in parse_binds(text)]
        mounted = _with_binds(image.root, bound, host)
        listing = _Listing(view_of_container(image, given, replace(loader, cwd=cwd), mounted))
        if undecided := why_not_modelled(mounted):
            return Libraries({}, {}, undecided, ())
        folders = [bind.source for bind in bound if snapshot is not None and host.is_dir(bind.source)]
        listing.doubts += [f"in {folder}, only the files in the snapshot are seen" for folder in folders]
        others = 0
        for file in dict.fromkeys(files):
            listing.add(file)
        for file, is_modelled in elf_files(mounted) if not files else ():
            if is_modelled:
                listing.add(file)
            others += not is_modelled
        if others:
            listing.doubts.append(f"not checked: {count(others, 'file')} for 32 bits or another byte order")
        # only for named files: an image may contain files for one user only, which is not a fault
        return listing.result(is_for_all=bool(files))


def _with_binds(root: RootFileSystem, binds: Iterable[BindSpec], host: RootFileSystem) -> RootFileSystem:
    """Return a root with binds from a host mounted. Raises BadInputError."""
    mounts = []
    # a folder is mounted before binds below it, in whatever order they are named: tried with Apptainer
    for bind in sorted(binds, key=lambda bind: bind.target.rstrip("/").count("/")):
        try:
            mounts.append(host.mount(bind.source, bind.target))
        except OSError as error:
            raise BadInputError(
                f"{bind.source} cannot be bound: {error.strerror}",
                where=f"--bind {bind}",
                hint="no engine starts with it; with --host, `lumiimg host scan --include PATH` records more",
            ) from error
    try:
        return root.mounted(mounts) if mounts else root
    except OSError as error:
        raise BadInputError(f"cannot be a target in this image: {error.strerror}", where=error.filename) from error


class _Listing:
    """Collects what files of a container load, in one process per file."""

    def __init__(self, inside: ContainerView) -> None:
        self.doubts = [*inside.doubts]
        self._inside = inside
        self._cache = ElfCache(inside.root)
        self._outcomes: dict[str, LoadResult] = {}
        self._by_kernel: dict[str, LoadResult] = {}

    def add(self, path: str) -> None:
        """Check one file. Raises BadInputError for one that is not in the container."""
        root, settings = self._inside.root, self._inside.settings
        absolute = settings.absolute(path)
        self._refuse_absent(path, absolute)
        process = Process(root, settings, cache=self._cache)
        outcome = self._outcomes[path] = process.start(path)
        if outcome.root is None or not outcome.root.facts.is_dynamic:
            return
        mixed, is_program = glibc_mismatch(process), outcome.root.facts.interpreter is not None
        ends = is_program and mixed is not None and mixed.is_fatal
        if mixed is not None and not ends:
            self.doubts.append(f"parts of the C library come from two builds: {', '.join(mixed.evidence)}")
        if is_program and (ends or process.may_differ_by_exec(path)):
            started = Process(root, settings, cache=self._cache).start(path, exec_start=True)
            if mixed is not None and ends:
                builds = ", ".join(mixed.evidence)
                started.errors.append(f"{path}: may crash or hang: ld.so and libc.so.6 are of two versions: {builds}")
            if (started.closure, started.errors) != (outcome.closure, outcome.errors):
                self._by_kernel[path] = started

    def _refuse_absent(self, path: str, absolute: str) -> None:
        image = self._inside.image
        try:
            self._inside.root.stat(absolute)
        except OSError as error:
            what = f"cannot be looked up in the image: {error.strerror}"
            if image.unmounted.exists(absolute):
                real = image.unmounted.resolve(absolute)
                by = next((mount.by for mount in image.mounts if mount.hides(real)), "a bind covers it")
                what = f"is in the image, but not in the container: {by}"
            hint = "give a path in the container; `--all` checks every ELF file"
            raise BadInputError(what, where=path, hint=hint) from error

    def result(self, *, is_for_all: bool) -> Libraries:
        """Return the results; `is_for_all`: including what some users cannot load."""
        inside, outcomes = self._inside, self._outcomes.values()
        loaded = dict.fromkeys(inside.settings.absolute(file.path) for outcome in outcomes for file in outcome.objects)
        notes = dict.fromkeys(self.doubts)
        # folders that engines mount over: their content depends on who starts the container
        for mount, below in may_be_hidden(inside.image, loaded):
            notes[f"{below[0]} may be missing in the container: {mount.by}"] = None
        missing = {lost.name.rpartition("/")[2] for outcome in outcomes for lost in outcome.missing}
        for mount, path in islice(hidden_files(inside.image, missing), _MAX_HIDDEN) if missing else ():
            notes[f"{path} of the image is not in the container: {mount.by}"] = None
        denied = denied_files(inside.root, self._cache.denied, missing)
        for path, by in islice(denied.items(), _MAX_HIDDEN):
            notes[f"{path} exists, but only root may read it: {by.path} has mode {by.permissions:04o}"] = None
        obstacles = map(inside.root.obstacle, loaded if is_for_all else ())
        closed = dict.fromkeys(each.path for each in obstacles if each is not None)
        notes |= {f"other users may not read {path} (chmod go+rX)": None for path in closed}
        return Libraries(self._outcomes, self._by_kernel, "", tuple(notes), tuple(closed))


def elf_files(root: RootFileSystem) -> Iterator[tuple[str, bool]]:
    """Yield the programs and libraries of a root, each file once without symlinks, and whether they are modelled.

    Unreadable files are skipped, as the loader would have to; so are files with the suffix of code or text, which are
    nine in ten of an image.
    """
    for path, file in root.open_all(but=(*_CODE, *_TEXTS)):
        with contextlib.closing(file):
            try:
                abi = read_abi(file)
            except (OSError, ImageError):
                continue
        if abi is not None and abi.is_code:
            yield path, abi.is_modelled
