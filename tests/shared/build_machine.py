"""A build machine with fixed properties, builds on it by a stand-in for a build strategy, and cache entries."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from unittest import mock

from lumiimg.build import builder
from lumiimg.build.build_host import BuildHost, CapabilityTrial, ContainerTrial
from lumiimg.build.builder import ImageBuild, Work
from lumiimg.build.cache import CacheEntry, CacheKey, LayerCache
from lumiimg.build.keys import steps_of
from lumiimg.build.progress import BuildStage, Progress
from lumiimg.build.proot import Proot
from lumiimg.engine.engine import Engine, EngineKind
from lumiimg.engine.workspace import scratch_folder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumiimg.definition.definition import Definition
    from lumiimg.fetch.store import Store
    from lumiimg.resolve.lock import Lock

APPTAINER = Engine(Path("/x/apptainer"), EngineKind.APPTAINER, "1.4.5", frozenset())


def build_machine(
    engine: Engine = APPTAINER,
    *,
    has_subids: bool = True,
    overlays: bool = True,
    mksquashfs: str = "4.6",
    path: str = "/nonexistent",
    starts: bool = True,
) -> BuildHost:
    """Return a machine whose properties are all set: this engine, this mksquashfs, and only the programs on `path`."""
    machine = BuildHost((engine,), {"PATH": path})
    vars(machine).update(
        container=ContainerTrial(engine, CapabilityTrial("a container", starts, "")),
        ids=CapabilityTrial("ids", has_subids, ""),
        overlay=CapabilityTrial("overlay", overlays, ""),
        fuse=CapabilityTrial("FUSE", overlays, ""),
        mksquashfs=Path(shutil.which("mksquashfs") or "mksquashfs"),
        mksquashfs_version=mksquashfs,
        proot=Proot(None, "not on PATH"),
    )
    return machine


def layers_by(
    strategy: Any,
    chain: Sequence[Definition],
    machine: BuildHost,
    root: Path,
    store: Store,
    progress: Progress | None = None,
    *,
    is_intact: bool = False,
) -> tuple[list[Path], list[BuildStage]]:
    """Build the layers of an image with the cache `root/cache`; return their files and the stages.

    `strategy` is a stand-in for `Overlay`; its `base` makes a base.
    `is_intact` includes the step that makes the files of a base.
    """
    steps = steps_of(chain, machine) if is_intact else steps_of(chain, machine)[-len(chain) :]
    plan = ImageBuild(
        lock=cast("Lock", None),  # nothing is reported in an image
        chain=chain,
        output=root / "x.sif",
        machine=machine,
        environment={},
        cache=root / "cache",
        downloads=store,
        progress=progress or Progress(),
        on_start=lambda *_: None,
        node=None,
    )
    with (root / "log").open("wb") as log, scratch_folder(root / "cache/work") as scratch:
        work = Work(plan, steps, LayerCache(plan.cache))
        vars(work).update(strategy=strategy, log=log, scratch=scratch)
        with mock.patch.object(builder, "make_base", strategy.base):
            layers = work.layers()
        kept = root / "seen"
        kept.mkdir(exist_ok=True)
        return [path.rename(kept / f"{at}") for at, path in enumerate(layers)], work.stages


def stored(cache: LayerCache, key: CacheKey, content: bytes = b"data", layer: str = "a", **more: Any) -> CacheEntry:
    """Store a build result with this content in a cache."""
    with cache.building() as folder:
        data = folder / "data.sqfs"
        data.write_bytes(content)
        return cache.store(key, data, layers=(layer,), seconds=2.0, **more)
