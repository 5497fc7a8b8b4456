"""Build an image from definition files: one step per layer, each cached by its key, all merged at the end."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING

from lumiimg.build.base import make_base
from lumiimg.build.cache import CacheEntry, CacheKey, LayerCache
from lumiimg.build.compile_cache import keeping
from lumiimg.build.cost import BuildCost, cost_of
from lumiimg.build.definition_files import write_definitions
from lumiimg.build.keys import (
    BuildStep,
    cached_prefix,
    compile_cache_key,
    content_after,
    content_below,
    image_number,
    is_by_engine,
    sources_of,
    steps_of,
)
from lumiimg.build.layer_build import LayerBuild, require_gpu_code
from lumiimg.build.merge import can_merge, merge_squashfs
from lumiimg.build.metadata import write_metadata
from lumiimg.build.places import ANOTHER_NAME, log_path
from lumiimg.build.progress import DOWNLOADS, IMAGE, BuildLog, BuildStage, Progress, StageClock
from lumiimg.build.provenance import FOLDER, PLAN, SBOM, bill, carried_files, write_folder
from lumiimg.build.strategy import Overlay, Sandbox, packed_again
from lumiimg.catalog.settings import ownership_problem
from lumiimg.core.errors import BadInputError, FailedError
from lumiimg.core.files import file_sha256, temporary_folder
from lumiimg.core.redact import known_secrets
from lumiimg.engine.engine import clean_environment
from lumiimg.engine.workspace import remove_tree, scratch_folder, written_by_rename
from lumiimg.host.image_manifest import (
    MANIFEST,
    MANIFEST_LABEL,
    MANIFEST_PATH,
    make_manifest,
    snapshot_key,
    to_text,
)
from lumiimg.image import ImageError, open_image, open_stack
from lumiimg.image.sif import SifHeader, read_sif, sif_uuid, write_sif
from lumiimg.inventory.components import Inventory
from lumiimg.resolve.bootstrap import file_stamp
from lumiimg.resolve.lock import LockedSource
from lumiimg.resolve.lock_file import to_record

if TYPE_CHECKING:
    from lumiimg.build.build_host import BuildHost, Way
    from lumiimg.definition.definition import Definition
    from lumiimg.engine.engine import Engine
    from lumiimg.fetch.store import Store
    from lumiimg.host.snapshot import Snapshot
    from lumiimg.image.compare import FileDifference, ImageDiff
    from lumiimg.resolve.lock import Lock

_TAKEN = "taken"
"""The scratch subfolder with hard links to the cache entries that the build uses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageBuild:
    """An image to build."""

    lock: Lock
    """What it is built from; the image includes it and its layers."""
    chain: Sequence[Definition]
    """The base, then a definition for each layer."""
    output: Path
    """The image file, which appears by rename; the log beside it contains the engine's output."""
    machine: BuildHost
    environment: Mapping[str, str]
    cache: Path
    downloads: Store
    progress: Progress
    on_start: Callable[[str, BuildCost], object]
    """Called with engine, strategy, reason and cost before anything is written."""
    node: Snapshot | None
    """The node for which the bind manifest of the image is made."""
    strategy: Way | None = None
    """The requested way to build."""
    replaces: bool = False
    """Whether `output` may be replaced, even if it is this image already."""
    keeps_compiled: bool = True
    """Whether compiled artifacts of scripts are read from and stored in the cache."""
    fresh: bool = False
    """Whether to rebuild the base, and what is above it if the base has changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltImage:
    """A finished image."""

    image: Path
    """The file."""
    key: str
    """The image's number: SHA-256, in hexadecimal, over everything that it was made from."""
    size_bytes: int
    """Size of the file."""
    seconds: float
    """Duration of the build."""
    reused_steps: int
    """Number of steps taken from the cache."""
    steps: int
    """Number of steps of the build."""
    way: Way | None = None
    """The way in which layers were built; null if no layer was built."""
    engine: Engine | None = None
    """The engine that ran the scripts; null if no layer was built."""
    is_new: bool
    """False: the file was this image already, and nothing was built."""
    stages: tuple[BuildStage, ...] = ()
    """Time and size of each part."""


@dataclass(frozen=True, slots=True)
class BuildResult:
    """The result of a build, or of a rebuild from an image."""

    built: BuiltImage
    plan: Lock | None = None
    """What it was built from; null for a rebuild, whose plan is in the image (`lumiimg show`)."""
    diff: ImageDiff | None = None
    """How a rebuild differs from the original image; None: the same bytes."""

    @property
    def differences(self) -> tuple[FileDifference, ...] | None:
        """The files that differ; null: the same bytes."""
        return self.diff.files if self.diff is not None else None


def build_image(plan: ImageBuild) -> BuiltImage:
    """Build an image; layers whose result is in the cache are not built again.

    Raises FailedError if a step fails, with the layer, the line at fault, and the log; nothing is left at the output.
    Raises MissingHereError if this machine cannot build what the cache lacks.
    """
    start, cache, output = time.monotonic(), LayerCache(plan.cache), plan.output
    if others := ownership_problem(plan.cache):
        plan.progress.notice(f"the cache {plan.cache} {others}: anyone who can write to it controls what is built")
    work = Work(plan, steps_of(plan.chain, plan.machine), cache)
    steps = work.steps
    documents = {PLAN: to_record(plan.lock), MANIFEST: snapshot_key(plan.node)}
    number = image_number(plan.chain, steps, documents)
    there = _is_there(output, number)
    if not there or plan.replaces or plan.fresh:
        if output.exists() and not (there or plan.replaces):
            raise BadInputError("exists already, and is a different image", where=str(output), hint=ANOTHER_NAME)
        if plan.fresh:  # the base, including the step for its files if that is separate
            for entry in cached_prefix(steps[: len(steps) - len(plan.chain) + 1], cache.find):
                cache.remove(entry.key)
        _begin(plan, steps, cached_prefix(steps, cache.find))
        work.run(number)
    return BuiltImage(
        image=output,
        key=number,
        size_bytes=output.stat().st_size,
        seconds=round(time.monotonic() - start, 3),
        reused_steps=sum(stage.reused for stage in work.stages) if work.stages else len(steps),
        steps=len(steps),
        way=work.way,
        engine=plan.machine.engine if work.way else None,
        is_new=bool(work.stages),
        stages=tuple(work.stages),
    )


def _begin(plan: ImageBuild, steps: Sequence[BuildStep], there: Sequence[CacheEntry]) -> None:
    """Raise if no container starts or the known space is not free; else report engine, strategy and cost."""
    way, because = plan.machine.choose_strategy(plan.strategy) if len(there) < len(steps) else (None, "")
    cost = cost_of(
        plan.lock,
        plan.chain,
        plan.cache,
        plan.output,
        steps=steps,
        scratch=scratch_parent(plan.cache),
        unpacks_all=way == "sandbox",
    )
    cost.require_room()
    plan.on_start(f"{plan.machine.engine.name}, {way}: {because}" if way else "every layer is in the cache", cost)


def _is_there(output: Path, number: str) -> bool:
    """Return whether a file is the image that would be built: complete, and with the same number."""
    try:
        return read_sif(output).uuid == sif_uuid(number)
    except ImageError:
        return False


class Work:
    """A build under way."""

    log: IO[bytes]
    scratch: Path

    def __init__(self, plan: ImageBuild, steps: Sequence[BuildStep], cache: LayerCache) -> None:
        self.plan, self.steps, self.cache = plan, steps, cache
        self.stages: list[BuildStage] = []
        self.way: Way | None = None
        """The way in which layers are built; None until one is."""

    def run(self, number: str) -> None:
        """Build the missing layers, and write the image."""
        try:
            log = BuildLog(log_path(self.plan.output), known_secrets(self.plan.environment))
        except OSError as error:
            raise BadInputError(f"cannot be written: {error.strerror}", where=str(error.filename)) from error
        with log, _open_umask() as mask, scratch_folder(scratch_parent(self.plan.cache)) as scratch:
            self.log, self.scratch = log, scratch
            self.cache.sweep()
            layers = self.layers()
            self.refuse_changed_base()
            self.image(layers, number, 0o755 & ~mask)

    @cached_property
    def strategy(self) -> Overlay | Sandbox:
        """The strategy that builds layers, chosen at the first layer that is not in the cache."""
        self.way, _ = self.plan.machine.choose_strategy(self.plan.strategy)
        return Overlay() if self.way == "overlay" else Sandbox(self.scratch)

    def layers(self) -> list[Path]:
        """Return the results of all steps, the base first."""
        first = self.plan.chain[0]
        base = content = content_below(first)
        # a base that is a file is used as it is: it is neither unpacked nor rewritten
        found = [first.origin] if content and first.origin is not None else []
        last_s, progress = self.cache.seconds(), self.plan.progress
        self.fetch(self.steps[len(cached_prefix(self.steps, self.cache.find)) :])
        for number, step in enumerate(self.steps):
            clock = StageClock()
            entry = self.take(step.key(content))
            is_cached = entry is not None
            progress.step_started(step.name, None if is_cached else last_s.get(step.definition.layers))
            if entry is None:
                entry = self.build(step, step.key(content), compile_cache_key(self.steps, number, base), found)
            else:
                self.log.write(f"== {step.name}: reused from an earlier build, {entry.key}\n".encode())
            self.done(clock.stage(step.name, entry.size_bytes, reused=is_cached))
            found.append(entry.data)
            content = content_after(content, entry)
            # a base of two steps is the result of both
            base = content if number and step.definition.parent is None else base or entry.sha256
        return found

    def done(self, stage: BuildStage) -> None:
        self.stages.append(stage)
        self.plan.progress.step_done(stage)

    def fetch(self, steps: Sequence[BuildStep]) -> None:
        """Announce all steps, and fetch missing sources first: a download that fails later could waste an hour."""
        downloads, progress = self.plan.downloads, self.plan.progress
        wanted = [source for step in steps for source in sources_of(step.definition)]
        missing = {source for source in wanted if not downloads.has(source)}
        progress.begin([*([DOWNLOADS] if missing else []), *(step.name for step in self.steps), IMAGE])
        if missing:
            progress.step_started(DOWNLOADS)
            clock = StageClock()
            paths = downloads.sources(wanted, progress.line)
            got = sum(path.stat().st_size for path in {paths[source] for source in missing})
            self.done(clock.stage(DOWNLOADS, got, reused=False))

    def take(self, key: CacheKey) -> CacheEntry | None:
        """Return the intact result of a key, under a name that nobody else removes.

        A damaged result is removed. Raises FailedError if it cannot be.
        """
        entry = self.cache.find(key)
        if entry is None:
            return None
        held = self.cache.pin(entry, self.scratch / _TAKEN)
        if held.is_intact:
            return held
        self.plan.progress.notice(f"{', '.join(entry.layers)}: was damaged, and is removed from the cache")
        self.cache.remove(entry.key)
        held.data.unlink(missing_ok=True)
        return None

    def build(self, step: BuildStep, key: CacheKey, wheels_key: CacheKey, below: Sequence[Path]) -> CacheEntry:
        """Build one layer, or the base if nothing is below, and store it in the cache."""
        definition, start, strategy = step.definition, time.monotonic(), self.strategy
        layer, names = self.step(definition, step.inputs["environment"]), ", ".join(definition.layers)
        progress = self.plan.progress
        with self.cache.building() as folder:
            self.log.write(f"== {definition.name}\n".encode())
            archives = self.plan.downloads.sources(sources_of(definition), progress.line)
            write_definitions([definition], layer.folder, archives)
            _require_same_files(step, layer.folder)
            target = folder / f"data{'.sqfs' if below else '.sif'}"
            with layer.naming_errors():
                if not below:
                    make_base(layer, target, self.plan.downloads)
                else:
                    compiled = keeping(self.cache, wheels_key, layer, progress.notice)
                    with compiled if self.plan.keeps_compiled else nullcontext():
                        strategy.layer(layer, below, target)
            if note := require_gpu_code(names, definition.gpus, target, of_wheels=definition.gpu_of_wheels):
                self.log.write(f"{note}\n".encode())
            took_s = time.monotonic() - start
            self.refuse_changed_base()
            entry = self.cache.store(key, target, layers=definition.layers, seconds=took_s)
            remove_tree(layer.folder)
            return self.cache.pin(entry, self.scratch / _TAKEN)

    def step(self, definition: Definition, exports: str = "", name: str = "") -> LayerBuild:
        folder, plan = self.scratch / (name or definition.name), self.plan
        folder.mkdir()
        environment = clean_environment(plan.environment)
        return LayerBuild(plan.machine, environment, definition, folder, self.log, plan.progress.line, exports)

    def refuse_changed_base(self) -> None:
        """Raise FailedError if the base has changed: layers built on it would be stored under its old key."""
        origin = self.plan.chain[0].origin
        if origin and file_stamp(origin) != self.steps[0].inputs["origin"]:
            raise FailedError("was changed during the build on top of it", where=str(origin), hint="build again")

    def image(self, layers: Sequence[Path], number: str, permissions: int) -> None:
        """Merge the layers, and a final one that describes them, into the image."""
        plan, clock = self.plan, StageClock()
        plan.progress.step_started(IMAGE)
        base, *above = layers
        if not can_merge([base]):
            base = packed_again(self.step(plan.chain[0], name="base"), base)
        described, header = self.described([base, *above], number)
        with written_by_rename(plan.output) as partial_image:  # only this: a full disk here is that of the output
            merge_squashfs([base, *above, described], partial_image, header.size_bytes)
            write_sif(partial_image, header, identity=number)
            open_image(partial_image).close()
            partial_image.chmod(permissions)
        self.done(clock.stage(IMAGE, plan.output.stat().st_size, reused=False))

    def described(self, layers: Sequence[Path], number: str) -> tuple[Path, SifHeader]:
        """Return one more layer, with engines' metadata and how the others were built, and the header of the SIF."""
        plan, chain = self.plan, self.plan.chain
        step = self.step(chain[-1], name="described")
        root, target = step.folder / "root", step.folder / "described.sqfs"
        with open_stack(layers) as image:
            sources = (source for one in chain for source in sources_of(one))
            documents = {PLAN: to_record(plan.lock), SBOM: bill(Inventory(image), sources, number)}
            labels = {}
            if plan.node is not None:
                documents[MANIFEST] = to_text(make_manifest(image, plan.node)).encode()
                labels[MANIFEST_LABEL] = MANIFEST_PATH
            write_folder(root, carried_files(plan.lock), documents)
            own_chain = chain[1:] if is_by_engine(chain[0], plan.machine) else chain
            write_metadata(root, image.root, own_chain, labels)
            if image.root.exists(f"/{FOLDER}"):  # from a base that lumiimg built: this layer hides it
                step.run_helper("hide", root, Path(FOLDER), *layers)
        step.squash(root, target)
        return target, SifHeader(chain[-1].text, documents)


def _require_same_files(step: BuildStep, folder: Path) -> None:
    """Raise FailedError if a file of a layer has changed since its digest went into the key."""
    for file in step.definition.files:
        is_ours = not isinstance(file.origin, LockedSource)  # those were verified when they were fetched
        if is_ours and file_sha256(folder / file.path) != step.inputs["files"][file.path]:
            raise FailedError("was changed during the build", where=str(file.origin), hint="build again")


def scratch_parent(cache: Path) -> Path:
    """Return where the engine may unpack: in the cache, unless its path has characters that break Apptainer.

    With a quote, comma, colon, semicolon, ampersand or line break in its temporary folder, Apptainer 1.4.5 fails in
    `%post` or in its own inspection of the image; with a space, debootstrap fails to enter its root.
    """
    preferred = cache / "work"
    if re.fullmatch(r"[A-Za-z0-9_/.%@=+-]+", str(preferred)):
        return preferred
    return temporary_folder()


@contextmanager
def _open_umask() -> Iterator[int]:
    """Set a umask with which everybody may enter the folders of an image; yield the user's own.

    With 0007, as on LUMI, only the builder could enter the root of an image.
    """
    mask = os.umask(0o022)
    try:
        yield mask
    finally:
        os.umask(mask)
