"""A way to build layers: what overlay.py and sandbox.py have in common."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from lumiimg.build.base import make_base
from lumiimg.build.safe_fs import OWN
from lumiimg.errors import FailedError
from lumiimg.image import open_stack
from lumiimg.image.byte_source import ByteSource
from lumiimg.image.sif import MAGIC, MAGIC_OFFSET, read_sif

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from lumiimg.build.layer_build import LayerBuild
    from lumiimg.fetch.store import Store

_ENVIRONMENT = f"{OWN}/env"


class Strategy(ABC):
    """One way to build layers. All raise FailedError if a script fails, OSError for what the system refuses."""

    def base(self, step: LayerBuild, target: Path, store: Store) -> None:
        """Make the files of a base, as a SIF."""
        make_base(step, target, store)

    @abstractmethod
    def layer(self, step: LayerBuild, below: Sequence[Path], target: Path) -> None:
        """Build a layer on what is `below` it (an image, then the results of layers), and write it to `target`."""

    def forget(self) -> None:  # noqa: B027 - of a strategy that holds nothing
        """Take what is below the next layer from its results alone, not from what was built here."""


def require_own_folder(step: LayerBuild, below: Sequence[Path], layer: Path) -> None:
    """Raise FailedError where a script has taken away the folder in which engines keep the environment of an image."""

    def has_it(layers: Sequence[Path]) -> bool:
        with open_stack(layers) as image:
            return image.root.is_dir(_ENVIRONMENT) and image.root.resolve(_ENVIRONMENT) == _ENVIRONMENT

    if has_it(below) and not has_it([*below, layer]):
        raise FailedError(
            f"{step.name}: its script takes {_ENVIRONMENT} away",
            hint="engines keep the environment of all layers there: the script must keep files that it did not create",
        )


def offset_of(layer: Path) -> int:
    """Return where the file system of a layer begins: a SIF's root partition, or the file."""
    with contextlib.closing(ByteSource.open(layer)) as source:
        if source.read_at(MAGIC_OFFSET, len(MAGIC)) != MAGIC:
            return 0
        return read_sif(source).root_partition(str(layer)).offset
