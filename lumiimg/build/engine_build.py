"""Building by the engine alone: one `build` a layer, each from the image of the one below. The reference, and slow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumiimg.build.sandbox import Sandbox
from lumiimg.image import open_image

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from lumiimg.build.layer_build import LayerBuild
    from lumiimg.image import sif_writer


class EngineBuild:
    """Each layer a whole image."""

    name = "definition"
    suffix = ".sif"

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def base(self, step: LayerBuild, target: Path) -> None:
        """Build the base. Raises FailedError if a script fails."""
        self._build(step, target)

    def layer(self, step: LayerBuild, below: Sequence[Path], target: Path) -> None:
        """Build the image of a layer and all that is below it. Raises FailedError if a script fails."""
        (step.folder / f"{step.definition.parent}.sif").symlink_to(below[-1])
        self._build(step, target)

    def _build(self, step: LayerBuild, target: Path) -> None:
        step.build(target)
        # The engine's word is not taken for it: what it wrote is opened, by our own reader.
        open_image(target).close()

    def stack(self, layers: Sequence[Path]) -> list[Path]:
        """Return which of the results lie one over the other in the image."""
        return [layers[-1]]

    def flatten(
        self, step: LayerBuild, layers: Sequence[Path], target: Path, front: sif_writer.Front
    ) -> sif_writer.Partition:
        """Write the engine's image and what lies over it as one squashfs into `target`, behind the room for `front`."""
        return Sandbox(self._folder).flatten(step, layers, target, front)
