"""Building by the engine alone: one `build` a layer, each from the image of the one below. The reference, and slow."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from lumiimg.image import open_image

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from lumiimg.build.step import Step


class Chain:
    """Each layer a whole image."""

    name = "definition"
    suffix = ".sif"

    def base(self, step: Step, target: Path) -> None:
        """Build the base. Raises FailedError if a script fails."""
        self._build(step, target)

    def layer(self, step: Step, below: Sequence[Path], target: Path) -> None:
        """Build the image of a layer and all that is below it. Raises FailedError if a script fails."""
        (step.folder / f"{step.definition.parent}.sif").symlink_to(below[-1])
        self._build(step, target)

    def _build(self, step: Step, target: Path) -> None:
        step.build(target)
        # The engine's word is not taken for it: what it wrote is opened, by our own reader.
        open_image(target).close()

    def copy(self, layers: Sequence[Path], target: Path) -> None:
        """Write the image of the last layer."""
        shutil.copyfile(layers[-1], target)
