"""Definition files to an image: one step a layer, each kept in a cache by its key, and put together at the end."""

from __future__ import annotations

import hashlib
import os
import re
import resource
import shutil
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Protocol

from lumiimg.build import sif
from lumiimg.build.cache import Key, LayerCache
from lumiimg.build.chain import Chain
from lumiimg.build.machine import require_environment
from lumiimg.build.overlay import Overlay
from lumiimg.build.provenance import SBOM, write_folder
from lumiimg.build.room import LEAST_BYTES, require, room_at
from lumiimg.build.sandbox import Sandbox
from lumiimg.build.sbom import bill
from lumiimg.build.squash import squash
from lumiimg.build.step import Step
from lumiimg.engine.workspace import remove_tree, scratch_folder, written_by_rename
from lumiimg.errors import BadInputError, MissingHereError
from lumiimg.image import ImageError, open_image, open_stack
from lumiimg.image.sif import PartitionFormat, read_sif_file
from lumiimg.resolve.lock import LockedSource, file_sha256

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from lumiimg.build.cache import Entry
    from lumiimg.build.machine import Machine
    from lumiimg.definition.writer import Definition
    from lumiimg.engine.engine import Engine
    from lumiimg.resolve.store import Store

_KEY_FORMAT = "lumiimg-layer-2"
_UNPACKED = 3
"""Bytes of a root file system to one of its squashfs (measured: 2.2 to 3.2)."""
WAYS = ("overlay", "sandbox", "definition")


class Progress(Protocol):
    """Told what happens while it happens."""

    def step_started(self, number: int, total: int, name: str) -> None:
        """Hear that step `number` of `total` begins."""

    def line(self, text: str) -> None:
        """Hear a line that the engine, or a script in it, printed."""

    def notice(self, text: str) -> None:
        """Hear what a person should know while it is built."""

    def step_done(self, name: str, seconds: float, size_bytes: int, *, reused: bool) -> None:
        """Hear that the result of the step is in the cache."""

    def stop(self) -> None:
        """Hear that nothing more comes, also where a step failed."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One part of a build, for its account."""

    name: str
    seconds: float
    cpu_seconds: float
    """Of all that was run for it, as far as it was waited for."""
    size_bytes: int
    reused: bool


@dataclass(frozen=True, slots=True)
class Built:
    """A finished image."""

    image: Path
    key: str
    size_bytes: int
    seconds: float
    reused_steps: int
    steps: int
    way: str
    form: str
    is_new: bool
    """Whether it was written; else it was there already."""
    stages: tuple[Stage, ...] = ()


def write_definitions(
    definitions: Sequence[Definition], folder: Path, store: Store, on_line: Callable[[str], None]
) -> None:
    """Write definition files and what they need beside them into `folder`; nothing before every source is there.

    Raises FailedError if a source cannot be had, BadInputError if the folder cannot be made.
    """
    archives: dict[LockedSource, Path] = {}
    for file in (file for definition in definitions for file in definition.files):
        if isinstance(file.origin, LockedSource) and file.origin not in archives:
            on_line(f"fetching {file.origin.location}")
            archives[file.origin] = store.source(file.origin)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInputError(f"cannot be made: {error.strerror}", where=str(folder)) from error
    for definition in definitions:
        (folder / f"{definition.name}.def").write_text(definition.text, encoding="utf-8")
        for file in definition.files:
            target = folder / file.path
            target.parent.mkdir(parents=True, exist_ok=True)
            origin = archives[file.origin] if isinstance(file.origin, LockedSource) else file.origin
            shutil.copyfile(origin, target)
            target.chmod(0o644)


class Clock:
    """Counts from where it is made."""

    def __init__(self) -> None:
        self._start, self._cpu = time.monotonic(), _cpu_of_children()

    def stage(self, name: str, size_bytes: int, *, reused: bool) -> Stage:
        """Return what was taken since."""
        return Stage(name, time.monotonic() - self._start, _cpu_of_children() - self._cpu, size_bytes, reused)


def _cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def choose_way(machine: Machine, asked: str | None) -> tuple[str, str]:
    """Return how layers are built here, and why.

    Raises MissingHereError for a way that is asked for and not to be had.
    """
    faults = {way: against(machine, way) for way in WAYS}
    if asked is not None and faults[asked]:
        raise MissingHereError(f"--strategy {asked}: {', '.join(faults[asked])}", hint="lumiimg doctor tells more")
    if asked is not None:
        return asked, "you asked for it"
    chosen = next(way for way in WAYS if not faults[way])
    passed = "; ".join(f"{way}: {', '.join(found)}" for way, found in faults.items() if found)
    return chosen, passed or "the quickest"


def against(machine: Machine, way: str) -> list[str]:
    """Return what stands against a way to build on this machine."""
    found = []
    if way == "overlay":
        found += [] if machine.maps_ids else ["no user namespace with the user's ids"]
        found += [] if machine.mounts else ["no overlay mounts in a user namespace"]
        found += [] if machine.fuse else ["no FUSE"]
        found += [] if machine.squashfuse_ll else ["no squashfuse_ll"]
        found += [] if machine.fuse_overlayfs else ["no fuse-overlayfs"]
    if way != "definition":
        found += [] if machine.mksquashfs and machine.unsquashfs else ["no squashfs-tools"]
    return found


def build_image(
    chain: Sequence[Definition],
    output: Path,
    *,
    machine: Machine,
    way: str,
    form: str,
    documents: Mapping[str, bytes],
    environment: Mapping[str, str],
    cache: Path,
    downloads: Store,
    log_path: Path,
    progress: Progress,
    replace: bool,
) -> Built:
    """Build the chain and put the image at `output`, by rename; nothing is written where it is there already.

    Layers whose result is in the cache are not built again. The engine's output goes to `log_path`. `documents` are
    JSON by name, which the image carries; `replace`: what is at `output` and is another image may go.

    Raises FailedError if a step fails: with the layer, the line that tells, and the log; nothing is left at `output`.
    MissingHereError if the engine would lose what layers set.
    """
    start = time.monotonic()
    kept = LayerCache(cache)
    keys = layer_keys(chain, machine.engine, way)
    number = image_key(keys[-1], form, documents)
    if is_there(output, number):
        return Built(
            output,
            number,
            output.stat().st_size,
            time.monotonic() - start,
            len(chain),
            len(chain),
            way,
            form,
            is_new=False,
        )
    if output.exists() and not replace:
        raise BadInputError("exists already, and is another image", where=str(output), hint="--force replaces it")
    _require_room(chain, keys, kept, way)
    if len(chain) > 1:
        require_environment(machine)
    try:
        # Unbuffered: whoever watches it sees the build, and kill -9 takes nothing of it away.
        log = log_path.open("wb", buffering=0)
    except OSError as error:
        raise BadInputError(f"cannot be written: {error.strerror}", where=str(error.filename)) from error
    with log, _open_umask() as mask, scratch_folder(scratch_parent(cache)) as scratch:
        work = _Work(kept, machine, environment, downloads, log, progress, scratch)
        ways: dict[str, Overlay | Sandbox | Chain] = {
            "overlay": Overlay(),
            "sandbox": Sandbox(scratch),
            "definition": Chain(),
        }
        strategy = ways[way]
        layers, stages = work.layers(chain, keys, strategy)
        clock = Clock()
        with written_by_rename(output) as partial:
            if isinstance(strategy, Chain):
                strategy.copy(layers, partial)
            else:
                bill, told = work.provenance(chain, layers, number)
                layers.append(told)
                front = sif.Front(chain[-1].text, {**documents, SBOM: bill})
                if form == "layered":
                    partitions = _stacked(layers, partial, front)
                else:
                    partitions = [strategy.flatten(work.step(chain[-1], "flat"), layers, partial, front)]
                sif.write_front(partial, front, partitions, identity=number)
                open_image(partial).close()
            partial.chmod(0o755 & ~mask)
    stages.append(clock.stage("image", output.stat().st_size, reused=False))
    return Built(
        output,
        number,
        output.stat().st_size,
        time.monotonic() - start,
        sum(stage.reused for stage in stages),
        len(chain),
        way,
        form,
        is_new=True,
        stages=tuple(stages),
    )


def _require_room(chain: Sequence[Definition], keys: Sequence[Key], cache: LayerCache, way: str) -> None:
    """Raise FailedError where there is less room than for what is known: the layers that are there, or their base."""
    known = sum(entry.size_bytes for key in keys if (entry := cache.find(key)) is not None)
    if chain[0].origin is not None and chain[0].origin.is_file():
        known += chain[0].origin.stat().st_size
    unpacked = 1 if way == "overlay" else _UNPACKED
    require(room_at(scratch_parent(cache.root)), LEAST_BYTES + unpacked * known, "the build")


def layer_keys(chain: Sequence[Definition], engine: Engine, way: str) -> tuple[Key, ...]:
    """Return the key of each layer: everything that its result depends on, from the definition down to the files.

    It is not the day: a base from a moving archive stays as it was until its result is removed from the cache.
    """
    keys: list[Key] = []
    for definition in chain:
        files = {
            file.path: f"{file.origin.sha256}" if isinstance(file.origin, LockedSource) else file_sha256(file.origin)
            for file in definition.files
        }
        keys.append(
            Key(
                {
                    "format": _KEY_FORMAT,
                    "parent": keys[-1].digest if keys else "",
                    # a whole image each, or what a layer changes; which of the two ways found that does not matter
                    "result": "image" if way == "definition" else "layer",
                    "engine": engine.kind.value,
                    "definition": definition.text,
                    "files": files,
                    **({"origin": stamp(definition.origin)} if definition.origin else {}),
                }
            )
        )
    return tuple(keys)


def stamp(origin: Path) -> str:
    """Return what tells whether a file, or anything in a folder, was touched since: the kernel's own time of change.

    Raises BadInputError if it cannot be read.
    """
    digest = hashlib.sha256()
    try:
        _stamp(digest, "", origin.stat())
        for folder, folders, files in os.walk(origin):
            folders.sort()
            for name in sorted((*folders, *files)):
                path = f"{folder}/{name}"
                _stamp(digest, path, os.lstat(path))
    except OSError as error:
        raise BadInputError(f"cannot be read: {error.strerror}", where=str(error.filename)) from error
    return digest.hexdigest()


def _stamp(digest: hashlib._Hash, path: str, seen: os.stat_result) -> None:
    line = f"{path}\0{seen.st_ino} {seen.st_mode} {seen.st_size} {seen.st_mtime_ns} {seen.st_ctime_ns}\n"
    digest.update(line.encode("utf-8", "surrogateescape"))


def image_key(last: Key, form: str, documents: Mapping[str, bytes]) -> str:
    """Return what an image is made of, as one word: its number stands for it."""
    parts = [
        last.digest,
        form,
        *(f"{name}:{hashlib.sha256(data).hexdigest()}" for name, data in sorted(documents.items())),
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def is_there(output: Path, number: str) -> bool:
    """Whether a file is the image that would be built: by its number, and with all of its parts."""
    try:
        found = read_sif_file(output)
    except ImageError:
        return False
    return found.identifier == sif.number_of(number)


def _stacked(layers: Sequence[Path], target: Path, front: sif.Front) -> list[sif.Partition]:
    """Put base and layers into one file, one behind the other."""
    root = read_sif_file(layers[0]).root_partition(str(layers[0]))
    base = sif.Partition(root.offset, root.size_bytes)
    return [sif.place(target, layers[0], base, front.size_bytes), *(sif.append(target, layer) for layer in layers[1:])]


@dataclass(frozen=True, slots=True)
class _Work:
    cache: LayerCache
    machine: Machine
    environment: Mapping[str, str]
    downloads: Store
    log: IO[bytes]
    progress: Progress
    scratch: Path

    def step(self, definition: Definition, name: str) -> Step:
        folder = self.scratch / name
        folder.mkdir()
        return Step(self.machine, self.environment, definition, folder, self.log, self.progress.line)

    def provenance(self, chain: Sequence[Definition], layers: Sequence[Path], identity: str) -> tuple[bytes, Path]:
        """Return what is in the image, and a layer that says so and how it was built."""
        step = self.step(chain[-1], "provenance")
        sources = [file.origin for one in chain for file in one.files if isinstance(file.origin, LockedSource)]
        with open_stack(layers) as image:
            found = bill(image.root, sources, identity)
        root, target = step.folder / "root", step.folder / "told.sqfs"
        write_folder(root, chain, found)
        squash(self.machine, root, target, within=step.as_root)
        return found, target

    def layers(
        self, chain: Sequence[Definition], keys: Sequence[Key], strategy: Strategy
    ) -> tuple[list[Path], list[Stage]]:
        """Return the results of all layers, the base first, and what each took."""
        found: list[Path] = []
        stages: list[Stage] = []
        content = ""
        if chain[0].origin is not None and strategy.suffix == ".sqfs" and can_be_below(chain[0].origin):
            found.append(chain[0].origin)  # as it is: nothing of it is unpacked or written again
            content = stamp(chain[0].origin)
        for number, (definition, key) in enumerate(zip(chain, keys, strict=True), start=1):
            self.progress.step_started(number, len(chain), definition.name)
            clock = Clock()
            content_key = key.over(f"content:{content}") if content else None
            entry = self.cache.find(key, content_key)
            hit = entry is not None
            if entry is None:
                entry = self._build(definition, key, content_key, found, strategy)
            else:
                self.log.write(f"== {definition.name}: kept from before, {entry.data}\n".encode())
            stages.append(clock.stage(definition.name, entry.size_bytes, reused=hit))
            self.progress.step_done(definition.name, stages[-1].seconds, entry.size_bytes, reused=hit)
            found.append(entry.data)
            content = hashlib.sha256(f"{content}{entry.sha256}".encode()).hexdigest()
        return found, stages

    def _build(
        self, definition: Definition, key: Key, content_key: Key | None, below: Sequence[Path], strategy: Strategy
    ) -> Entry:
        with self.cache.making(key, self.progress.notice) as folder:
            if (made := self.cache.find(key)) is not None:  # by the one that was waited for
                return made
            start = time.monotonic()
            self.log.write(f"== {definition.name}\n".encode())
            step = self.step(definition, definition.name)
            write_definitions([definition], step.folder, self.downloads, self.progress.line)
            target = folder / f"data{strategy.suffix if below else '.sif'}"
            if below:
                strategy.layer(step, below, target)
            else:
                strategy.base(step, target)
            seconds = time.monotonic() - start
            entry = self.cache.keep(key, content_key, target, layers=definition.layers, seconds=seconds)
            remove_tree(step.folder)
            return entry


def can_be_below(image: Path) -> bool:
    """Whether layers can be laid over an image as it is: a SIF of one squashfs."""
    try:
        found = read_sif_file(image)
        return found.root_partition(str(image)).file_system == PartitionFormat.SQUASHFS and not found.overlays()
    except ImageError:
        return False


class Strategy(Protocol):
    """One way to build layers."""

    name: str
    suffix: str

    def base(self, step: Step, target: Path) -> None:
        """Build the base."""

    def layer(self, step: Step, below: Sequence[Path], target: Path) -> None:
        """Build a layer on what is below it."""


def scratch_parent(cache: Path) -> Path:
    """Return where the engine may unpack: in the cache, unless its path has what Apptainer stumbles over.

    With a quote, comma, colon, semicolon, ampersand or line break in its temporary folder, Apptainer 1.4.5 fails in
    `%post` or in its own inspection of the image; with a blank, debootstrap fails to enter its root.
    """
    preferred = cache / "work"
    if re.fullmatch(r"[A-Za-z0-9_/.%@=+-]+", str(preferred)):
        return preferred
    return Path(tempfile.gettempdir())


@contextmanager
def _open_umask() -> Iterator[int]:
    """Have folders of an image made so that everybody may enter them, whatever the user's umask; yield that.

    With 0007, as on LUMI, the root of an image would be closed to all but its builder.
    """
    mask = os.umask(0o022)
    try:
        yield mask
    finally:
        os.umask(mask)
