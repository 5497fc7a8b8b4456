"""A way to build layers: what overlay.py and sandbox.py have in common."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from lumiimg.build.bootstrap import write_files
from lumiimg.build.metadata import date_labels
from lumiimg.build.safe_fs import OWN
from lumiimg.build.squash import squash
from lumiimg.errors import FailedError
from lumiimg.image import open_stack, sif_writer
from lumiimg.image.byte_source import ByteSource
from lumiimg.image.sif import MAGIC, MAGIC_OFFSET, read_sif
from lumiimg.image.unpacked_size import require_room

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from lumiimg.build.layer_build import LayerBuild
    from lumiimg.fetch.store import Store

_ENVIRONMENT = f"{OWN}/env"


class Strategy(ABC):
    """One way to build layers. All raise FailedError if a script fails, OSError for what the system refuses."""

    def base(self, step: LayerBuild, target: Path, store: Store) -> None:
        """Make the files of a base, or all of it by the engine where that has to, as a SIF with our own file system."""
        root = step.folder / "root"
        if step.machine.makes_base(step.definition.sections.header.agent):
            write_files(step, root, store)
        else:
            if step.definition.sections.header.agent == "localimage":
                require_room(step.folder / step.definition.sections.header.origin, root)
            step.build(root)
            date_labels(root)
        step.say("packing the files")
        step.run_helper("tidy", root)
        write_sif(step, root, target)

    @abstractmethod
    def layer(self, step: LayerBuild, below: Sequence[Path], target: Path) -> None:
        """Build a layer on what is `below` it (an image, then the results of layers), and write it to `target`."""

    def forget(self) -> None:  # noqa: B027 - of a strategy that holds nothing
        """Take what is below the next layer from its results alone, not from what was built here."""


def require_own_folder(step: LayerBuild, below: Sequence[Path], layer: Path) -> None:
    """Raise FailedError where a script has taken away the folder in which engines keep the environment of an image."""
    if _has_own_folder(below) and not _has_own_folder([*below, layer]):
        raise FailedError(
            f"layer {', '.join(step.definition.layers)}: its script takes {_ENVIRONMENT} away",
            hint="engines keep the environment of all layers there: the script must keep files that it did not create",
        )


def _has_own_folder(layers: Sequence[Path]) -> bool:
    with open_stack(layers) as image:
        return image.root.is_dir(_ENVIRONMENT) and image.root.resolve(_ENVIRONMENT) == _ENVIRONMENT


def write_sif(step: LayerBuild, root: Path, target: Path) -> None:
    """Write the files of a base as a SIF. Raises FailedError."""
    front = sif_writer.Front(step.definition.text, {})
    squash(step.machine, root, target, offset=front.size_bytes, within=step.as_root)
    sif_writer.write_front(target, front, identity=step.definition.name)


def offset_of(layer: Path) -> int:
    """Return where the file system of a layer begins: a SIF's root partition, or the file."""
    with contextlib.closing(ByteSource.open(layer)) as source:
        if source.read_at(MAGIC_OFFSET, len(MAGIC)) != MAGIC:
            return 0
        return read_sif(source).root_partition(str(layer)).offset
