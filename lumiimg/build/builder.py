"""Definition files to an image: one step a layer, each kept in a cache by its key, and put together at the end."""

from __future__ import annotations

import os
import re
import shutil
import time
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING

from lumiimg.build.cache import CacheEntry, CacheKey, LayerCache
from lumiimg.build.cache_lease import CacheLease
from lumiimg.build.capabilities import BuildMachine, require_bootstrap, require_container
from lumiimg.build.compile_cache import keeping
from lumiimg.build.disk_space import LEAST_BYTES, require, room_at
from lumiimg.build.engine_metadata import add_label
from lumiimg.build.fetch import content_with, lowest, needed, sources_of
from lumiimg.build.gpu_check import require_gpu_code
from lumiimg.build.inspection import INSPECTED, inspected
from lumiimg.build.keys import image_key, kept_key, layer_keys
from lumiimg.build.layer_build import LayerBuild
from lumiimg.build.layer_root import LayerRoot
from lumiimg.build.overlay import Overlay
from lumiimg.build.places import log_path
from lumiimg.build.progress import DOWNLOADS, IMAGE, BuildLog, BuildStage, Progress, StageClock
from lumiimg.build.provenance import FOLDER, SBOM, write_folder
from lumiimg.build.sandbox import Sandbox, packed_again
from lumiimg.build.sbom import bill
from lumiimg.build.squash import squash
from lumiimg.build.steps import content_below, steps_of
from lumiimg.catalog.settings import open_to_others
from lumiimg.engine.engine import clean_environment
from lumiimg.engine.own_folder import remove_tree
from lumiimg.engine.workspace import scratch_folder, written_by_rename
from lumiimg.errors import BadInputError
from lumiimg.files import make_folder, open_regular, replaced, temporary_folder
from lumiimg.host.image_manifest import (
    MANIFEST,
    MANIFEST_LABEL,
    MANIFEST_PATH,
    make_manifest,
    snapshot_key,
    to_text,
)
from lumiimg.image import ImageError, open_image, open_stack, sif_writer
from lumiimg.image.sif import read_sif_file
from lumiimg.image.squashfs.weave import can_weave, weave
from lumiimg.inventory.components import Inventory
from lumiimg.resolve.lock import LockedSource
from lumiimg.secret import known_secrets

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from lumiimg.build.choice import Way
    from lumiimg.build.strategy import Strategy
    from lumiimg.definition.definition import Definition
    from lumiimg.engine.engine import Engine
    from lumiimg.fetch.store import Store
    from lumiimg.host.snapshot import Snapshot
    from lumiimg.image.compare import FileDifference, ImageDiff
    from lumiimg.resolve.lock import Lock

_UNPACKED = 3
"""Bytes of a root file system to one of its squashfs (measured: 2.2 to 3.2)."""


@dataclass(frozen=True, slots=True)
class BuiltImage:
    """A finished image."""

    image: Path
    """The file."""
    key: str
    """The image's number: of all that it was made from, sha256 in hexadecimal."""
    size_bytes: int
    """Of the file."""
    seconds: float
    """That it took."""
    reused_steps: int
    """Of these, taken from the cache."""
    steps: int
    """Of the build."""
    way: Way
    """Which of the ways to build it was."""
    engine: Engine
    """What ran the scripts."""
    is_new: bool
    """False: the file was this image already, and nothing was built."""
    stages: tuple[BuildStage, ...] = ()
    """What it took, part by part."""


@dataclass(frozen=True, slots=True)
class BuildResult:
    """What was built."""

    built: BuiltImage
    plan: Lock
    """What it was built of."""


@dataclass(frozen=True, slots=True)
class RebuildResult:
    """What was built again, and in which files it differs."""

    built: BuiltImage
    beside: ImageDiff | None
    """The image that it was built from; None: the same bytes."""
    plan: None = None
    """Always null: the plan is the one in the image (`lumiimg show`)."""

    @property
    def differences(self) -> tuple[FileDifference, ...] | None:
        """In which files it differs; null: the same bytes."""
        return self.beside.files if self.beside is not None else None


def write_definitions(
    definitions: Sequence[Definition],
    folder: Path,
    store: Store,
    on_line: Callable[[str], None],
    without: Collection[LockedSource] = (),
) -> None:
    """Write definition files and what they need beside them into `folder`; nothing before every source is there.

    Those of `without` are left out. Raises FailedError if another cannot be had, BadInputError if the folder cannot be.
    """
    wanted = (one for definition in definitions for one in sources_of(definition) if one not in without)
    archives = store.sources(wanted, on_line)
    for definition in definitions:
        with replaced(_folder(folder) / f"{definition.name}.def") as text:
            text.write(definition.text.encode())
        for file in definition.files:
            if file.origin in without:
                continue
            above, _, name = file.path.rpartition("/")
            origin = archives[file.origin] if isinstance(file.origin, LockedSource) else file.origin
            with open_regular(origin) as source, replaced(_folder(folder, above) / name) as copy:
                shutil.copyfileobj(source, copy)
                os.fchmod(copy.fileno(), 0o644)


def _folder(folder: Path, below: str = "") -> Path:
    try:
        return make_folder(folder, below)
    except OSError as error:
        raise BadInputError(f"cannot be made: {error.strerror}", where=str(error.filename or folder)) from error


def build_image(  # noqa: PLR0913 - the settings of one build, each by name
    chain: Sequence[Definition],
    output: Path,
    *,
    machine: BuildMachine,
    way: Way,
    documents: Mapping[str, bytes],
    environment: Mapping[str, str],
    cache: Path,
    downloads: Store,
    progress: Progress,
    node: Snapshot | None,
    replaces: bool,
    again: bool,
    keeps_compiled: bool = True,
    fresh: bool = False,
) -> BuiltImage:
    """Build the chain and put the image at `output`, by rename; unless `again`, nothing is written where it is already.

    Layers whose result is in the cache are not built again. The log beside it has the engine's output. `documents` are
    JSON by name, which the image carries; `replaces`: what is at `output` and is another image may go;
    `keeps_compiled`: what scripts compile is taken from the cache and put there; `fresh`: the base is not, and what is
    above it only where it came to the same; `node`: what the bind manifest of the image is made for.

    Raises FailedError if a step fails: with the layer, the line at fault, and the log. Nothing is left at `output`.
    MissingHereError if the engine cannot build what the cache does not have.
    """
    start, environment = time.monotonic(), clean_environment(environment)
    if others := open_to_others(cache):
        progress.notice(f"the cache {cache} {others}: whoever can write to it decides what is built")
    kept = LayerCache(cache)
    steps = steps_of(chain, machine)
    keys = layer_keys(steps, machine)
    number = image_key(keys[-1], {**documents, MANIFEST: snapshot_key(node)})
    there = is_there(output, number)

    def built(reused_steps: int, stages: Sequence[BuildStage], *, is_new: bool) -> BuiltImage:
        return BuiltImage(
            output,
            number,
            output.stat().st_size,
            round(time.monotonic() - start, 3),
            reused_steps,
            len(steps),
            way,
            machine.engine,
            is_new,
            (*stages,),
        )

    if there and not (again or fresh):
        return built(len(steps), (), is_new=False)
    if output.exists() and not (there or replaces):
        raise BadInputError("exists already, and is another image", where=str(output), hint="--force replaces it")
    last_s = kept.seconds()
    if fresh:
        for key in keys[: 1 + len(steps) - len(chain)]:
            kept.remove(key.digest)
    _require_room(steps, keys, kept, way)
    if (there_are := len(lowest(keys, kept.find, content_below(chain[0])))) < len(steps):
        require_container(machine)
    if not there_are:
        require_bootstrap(machine, chain[0].layers[0], chain[0].sections.header)
    try:
        log = BuildLog(log_path(output), known_secrets(environment))
    except OSError as error:
        raise BadInputError(f"cannot be written: {error.strerror}", where=str(error.filename)) from error
    with log, _open_umask() as mask, scratch_folder(scratch_parent(cache)) as scratch:
        kept.sweep()
        how = (scratch, way, keeps_compiled, last_s)
        work = _Work(kept, machine, environment, downloads, log, progress, *how)
        strategy = new_strategy(way, scratch)
        layers, stages = work.layers(steps, keys, strategy)
        clock = StageClock()
        progress.step_started(IMAGE)
        with written_by_rename(output) as partial:
            if not can_weave(layers[:1]):
                layers[0] = packed_again(work.step(chain[0], "base"), layers[0])
            layers, front = work.described(chain, layers, documents, number, node)
            weave(layers, partial, front.size_bytes)
            sif_writer.write_front(partial, front, identity=number)
            open_image(partial).close()
            partial.chmod(0o755 & ~mask)
    stages.append(clock.stage(IMAGE, output.stat().st_size, reused=False))
    progress.step_done(stages[-1])
    return built(sum(stage.reused for stage in stages), stages, is_new=True)


def _require_room(chain: Sequence[Definition], keys: Sequence[CacheKey], cache: LayerCache, way: Way) -> None:
    """Raise FailedError where there is less room than for what is known: the layers that are there, or their base."""
    content, base = content_below(chain[0]), chain[0].origin
    known = sum(entry.size_bytes for entry in lowest(keys, cache.find, content))
    unpacks = way != "overlay"
    if base is not None and base.is_file():
        known += base.stat().st_size
        unpacks = unpacks or (content != "" and not can_weave([base]))
    require(room_at(scratch_parent(cache.root)), LEAST_BYTES + (_UNPACKED if unpacks else 1) * known, "the build")


def is_there(output: Path, number: str) -> bool:
    """Whether a file is the image that would be built: by its number, and with all of its parts."""
    try:
        found = read_sif_file(output)
    except ImageError:
        return False
    return found.identifier == sif_writer.number_of(number)


@dataclass(frozen=True, slots=True)
class _Work:
    cache: LayerCache
    machine: BuildMachine
    environment: Mapping[str, str]
    downloads: Store
    log: IO[bytes]
    progress: Progress
    scratch: Path
    way: Way
    keeps_compiled: bool = True
    last_s: Mapping[tuple[str, ...], float] = field(default_factory=dict)
    """What layers took the last time."""

    def step(self, definition: Definition, name: str) -> LayerBuild:
        folder = self.scratch / name
        folder.mkdir()
        return LayerBuild(self.machine, self.environment, definition, folder, self.log, self.progress.line)

    def described(
        self,
        chain: Sequence[Definition],
        layers: list[Path],
        documents: Mapping[str, bytes],
        identity: str,
        node: Snapshot | None,
    ) -> tuple[list[Path], sif_writer.Front]:
        """Return layers with one more that says what is in the image, and its front, which says that, too."""
        documents = {**documents, SBOM: self.bill(chain, layers, identity), MANIFEST: self.manifest(layers, node)}
        layers = [*layers, self.provenance(chain, layers, documents)]
        return layers, sif_writer.Front(
            chain[-1].text, {**documents, INSPECTED: self.inspected(layers, chain[-1].text)}
        )

    def bill(self, chain: Sequence[Definition], layers: Sequence[Path], identity: str) -> bytes:
        """Return what is in the image."""
        with open_stack(layers) as image:
            return bill(Inventory(image), (source for one in chain for source in sources_of(one)), identity)

    def manifest(self, layers: Sequence[Path], node: Snapshot | None) -> bytes:
        """Return what the image wants of the machine that it runs on."""
        with open_stack(layers) as image:
            return to_text(make_manifest(image, node)).encode()

    def inspected(self, layers: Sequence[Path], definition: str) -> bytes:
        """Return what an engine shows of the image."""
        with open_stack(layers) as image:
            return inspected(image.root, definition)

    def provenance(self, chain: Sequence[Definition], layers: Sequence[Path], documents: Mapping[str, bytes]) -> Path:
        """Return a layer that says what is in the image, and how it was built."""
        step = self.step(chain[-1], "provenance")
        root, target = step.folder / "root", step.folder / "told.sqfs"
        write_folder(root, chain, documents)
        with open_stack(layers) as image:
            if image.root.exists(f"/{FOLDER}"):  # of a base that lumiimg has built: its word is hidden
                step.inside("hide", root, *layers)
            add_label(LayerRoot(root, image.root), MANIFEST_LABEL, MANIFEST_PATH)
        squash(self.machine, root, target, within=step.as_root)
        return target

    def layers(
        self, chain: Sequence[Definition], keys: Sequence[CacheKey], strategy: Strategy
    ) -> tuple[list[Path], list[BuildStage]]:
        """Return the results of all layers, the base first, and what each took."""
        found: list[Path] = []
        stages: list[BuildStage] = []
        base = content = content_below(chain[0])
        if content and chain[0].origin is not None:
            found.append(chain[0].origin)  # as it is: nothing of it is unpacked or written again
        taken = CacheLease(self.cache, self.scratch, self.progress.notice)
        lowest(keys, taken.find, content)  # so that the sources of what is damaged are among those that are needed
        wanted = list(needed(chain, keys, self.cache, content))
        missing = {source for source in wanted if not self.downloads.has(source)}
        steps = [*([DOWNLOADS] if missing else []), *(definition.name for definition in chain), IMAGE]
        self.progress.begin(steps)
        if missing:
            stages.append(self.fetch(wanted, missing))
        for number, (definition, key) in enumerate(zip(chain, keys, strict=True)):
            clock = StageClock()
            entry = taken.find(key, content)
            hit = entry is not None
            self.progress.step_started(definition.name, None if hit else self.last_s.get(definition.layers))
            if entry is None:
                kept = kept_key(chain, number, base)
                entry = self._build(definition, key, content, kept, found, strategy, taken)
            else:
                self.log.write(f"== {definition.name}: kept from before, {entry.key}\n".encode())
            stages.append(clock.stage(definition.name, entry.size_bytes, reused=hit))
            self.progress.step_done(stages[-1])
            found.append(entry.data)
            content = content_with(content, entry)
            # of two steps, a base is what both came to
            base = content if number and definition.parent is None else base or entry.sha256
        return found, stages

    def fetch(self, wanted: Sequence[LockedSource], missing: Collection[LockedSource]) -> BuildStage:
        """Get sources into the store: what cannot be had stops the build before an hour of it has gone by."""
        self.progress.step_started(DOWNLOADS)
        clock = StageClock()
        paths = self.downloads.sources(wanted, self.progress.line)
        got = sum(path.stat().st_size for path in {paths[source] for source in missing})
        stage = clock.stage(DOWNLOADS, got, reused=False)
        self.progress.step_done(stage)
        return stage

    def _build(
        self,
        definition: Definition,
        key: CacheKey,
        content: str,
        kept_key: CacheKey,
        below: Sequence[Path],
        strategy: Strategy,
        taken: CacheLease,
    ) -> CacheEntry:
        with self.cache.making(key, self.progress.notice) as folder:
            if (made := taken.find(key, content)) is not None:  # by the one that was waited for
                return made
            start = time.monotonic()
            self.log.write(f"== {definition.name}\n".encode())
            step = self.step(definition, definition.name)
            write_definitions([definition], step.folder, self.downloads, self.progress.line)
            target = folder / f"data{'.sqfs' if below else '.sif'}"
            if below:
                with self._keeping(step, kept_key), step.named():
                    strategy.layer(step, below, target)
            else:
                with step.named():
                    strategy.base(step, target, self.downloads)
            named = ", ".join(definition.layers)
            if note := require_gpu_code(named, definition.gpus, target, of_wheels=definition.gpu_of_wheels):
                self.log.write(f"{note}\n".encode())
            seconds = time.monotonic() - start
            entry = self.cache.keep(key, target, layers=definition.layers, seconds=seconds, below=content)
            remove_tree(step.folder)
            return taken.hold(entry)

    def _keeping(self, step: LayerBuild, key: CacheKey) -> AbstractContextManager[None]:
        if not self.keeps_compiled:
            return nullcontext()
        return keeping(self.cache, key, step.definition.layers, step.kept, self.progress.notice)


def new_strategy(way: Way, scratch: Path) -> Strategy:
    """Return one way to build; what it unpacks goes to `scratch`."""
    return Overlay() if way == "overlay" else Sandbox(scratch)


def scratch_parent(cache: Path) -> Path:
    """Return where the engine may unpack: in the cache, unless its path has what Apptainer stumbles over.

    With a quote, comma, colon, semicolon, ampersand or line break in its temporary folder, Apptainer 1.4.5 fails in
    `%post` or in its own inspection of the image; with a blank, debootstrap fails to enter its root.
    """
    preferred = cache / "work"
    if re.fullmatch(r"[A-Za-z0-9_/.%@=+-]+", str(preferred)):
        return preferred
    return temporary_folder()


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
