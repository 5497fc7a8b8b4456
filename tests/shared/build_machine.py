"""A machine as a value, without a look at this one; builds on it by a stand-in for a way to build; entries of a cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lumiimg.build import builder
from lumiimg.build.build_host import BuildHost, CapabilityTrial
from lumiimg.build.builder import ImageBuild
from lumiimg.build.cache import CacheEntry, CacheKey, LayerCache
from lumiimg.build.progress import BuildStage, Progress
from lumiimg.build.steps import inputs_of
from lumiimg.engine.workspace import scratch_folder

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from lumiimg.build.strategy import Strategy
    from lumiimg.definition.definition import Definition
    from lumiimg.engine.engine import Engine
    from lumiimg.fetch.store import Store


def build_machine(engine: Engine, *, maps_ids: bool = True, mksquashfs: str = "4.6", **more: Any) -> BuildHost:
    """Return one with this engine and this mksquashfs, and no other program."""
    trials = (CapabilityTrial("mksquashfs", works=True, said=mksquashfs),)
    return BuildHost(engine, maps_ids, True, True, None, None, None, None, trials, **more)


def layers_by(
    strategy: Strategy,
    steps: Sequence[Definition],
    machine: BuildHost,
    root: Path,
    store: Store,
    progress: Progress | None = None,
) -> tuple[list[Path], list[BuildStage]]:
    """Build the layers of an image with the cache `root/cache`; return their files, which are gone soon, and stages."""
    plan = ImageBuild(
        chain=steps,
        output=root / "x.sif",
        machine=machine,
        way="overlay",
        documents={},
        carried={},
        environment={},
        cache=root / "cache",
        downloads=store,
        progress=progress or Progress(),
        node=None,
    )
    with (root / "log").open("wb") as log, scratch_folder(root / "cache/work") as scratch:
        work = builder._Work(plan, LayerCache(plan.cache), log, scratch)
        layers, stages = work.layers(steps, inputs_of(steps, machine), strategy)
        kept = root / "seen"
        kept.mkdir(exist_ok=True)
        return [path.rename(kept / f"{at}") for at, path in enumerate(layers)], stages


def stored(cache: LayerCache, key: CacheKey, content: bytes = b"data", layer: str = "a", **more: Any) -> CacheEntry:
    """Put a result of such a content into a cache."""
    with cache.building() as folder:
        data = folder / "data.sqfs"
        data.write_bytes(content)
        return cache.store(key, data, layers=(layer,), seconds=2.0, **more)
