"""Layers as partitions of one SIF, one over the other as engines show them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lumiimg.errors import FailedError
from lumiimg.image import open_stack, sif_writer
from lumiimg.image.sif import read_sif_file

_MARK = ".wh."


def _refuse_marks(layers: Sequence[Path]) -> None:
    """Raise FailedError for names that engines take for marks of deleted files where they show layers."""
    with open_stack(layers) as image:
        for path, _ in image.root.walk():
            if path.rpartition("/")[2].startswith(_MARK):
                raise FailedError(
                    f"fuse-overlayfs, by which engines show layers, hides names that begin with {_MARK}",
                    where=path,
                    hint="--format flat",
                )


def stack_layers(layers: Sequence[Path], target: Path, front: sif_writer.Front) -> list[sif_writer.Partition]:
    """Put base and layers into one file, one behind the other. Raises FailedError for names that would not be shown."""
    _refuse_marks(layers)
    root = read_sif_file(layers[0]).root_partition(str(layers[0]))
    base = sif_writer.Partition(root.offset, root.size_bytes)
    return [
        sif_writer.place(target, layers[0], base, front.size_bytes),
        *(sif_writer.append(target, layer) for layer in layers[1:]),
    ]
