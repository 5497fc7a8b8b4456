"""Building on overlays: each layer's script runs over what is below it, and only what it changed is kept.

No base is unpacked, and none is compressed again. It takes a user namespace with all of the user's ids, and FUSE.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from lumiimg.build.engine_metadata import FOLDER, write_facts
from lumiimg.build.squash import squash
from lumiimg.build.strategy import Strategy, offset_of
from lumiimg.image import open_stack, sif_writer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumiimg.build.layer_build import LayerBuild
    from lumiimg.engine.process import Completed


class Overlay(Strategy):
    """Layers as overlays over their base."""

    def layer(self, step: LayerBuild, below: Sequence[Path], target: Path) -> None:
        """Run a layer's script over `below`, and write what it changed as a squashfs."""
        over = step.folder / "over"
        upper = over / "upper"
        upper.mkdir(parents=True)
        with open_stack(below) as image:
            upper.chmod(image.root.stat("/").permissions)
            lower = [f"{step.alias(path)}:ro" for path in below[1:]]
            with step.placed(upper, image.root) as argv:
                step.run(below[0], argv, overlays=[*lower, f"{over}"])
            write_facts(step, image.root, upper)
        step.tidy(upper, below)
        squash(step.machine, upper, target, within=step.as_root)
        if step.definition.sections.test:
            # Over what will be used: an overlay that is read hides less than one that is written. What a test writes is
            # lost; without a place for it engines put a passwd of their own, made of the base's, over the image's.
            lost = step.folder / "lost"
            lost.mkdir()
            step.run(below[0], [f"/{FOLDER}/test"], overlays=[*lower, f"{step.alias(target)}:ro", f"{lost}"])

    def flatten(
        self, step: LayerBuild, layers: Sequence[Path], target: Path, front: sif_writer.Front
    ) -> sif_writer.Partition:
        """Mount a stack of layers, and write it as one squashfs."""
        mounts = step.folder / "mounts"
        names = []
        script = ["set -e"]
        for number, layer in enumerate(layers):
            folder = mounts / str(number)
            folder.mkdir(parents=True)
            names.append(f"{folder}")
            script.append(f'squashfuse_ll -o offset={offset_of(layer)} "${{{number + 1}}}" {folder}')
        merged = mounts / "merged"
        merged.mkdir()
        if len(layers) > 1:
            script.append(f"mount -t overlay overlay -o ro,lowerdir={':'.join(reversed(names))} {merged}")
        else:
            merged = Path(names[0])
        script.append(f'shift {len(layers)}; exec "$@"')

        def within(argv: list[str | Path]) -> Completed:
            words = ["/bin/sh", "-c", "\n".join(script), "sh", *layers, *argv]
            return step.command(step.machine.as_root(words, mount=True))

        squash(step.machine, merged, target, offset=front.size_bytes, compression=step.compression, within=within)
        return sif_writer.behind(target, front)
