"""The files that the commands in the documents find in their folders (tests/shared/documents.py).

Nodes and images are stand-ins (tests/shared/fabric_builder.py): real ELF files and SIFs with the names, needs and
symbol versions of the originals, but nothing in them runs. Logs come from tests/fixtures. Registries and package
indexes are served on loopback (tests/shared/world.py).
"""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from lumiimg.image.sif import SifHeader, write_sif
from tests.shared import fabric_builder, gpu_builder
from tests.shared.documents import DocFiles
from tests.shared.fabric_builder import bundled
from tests.shared.lumi_node import january, november
from tests.shared.programs import squashed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.shared.world import World

FIXTURES = Path(__file__).parents[1] / "fixtures"
LOGS = {
    "slurm-123.out": "rccl-2.21.5-plugin-absent.log",
    "mixed.out": "mixed-one-node-without-plugin.log",
    "good.out": "rccl-2.22.3-aws-ofi-nccl-1.18.0-cxi.log",
    "rc38.out": "rccl-2.16.5-rc38.log",
    "glibc.out": "rccl-2.21.5-glibc.log",
    "wrong-name.out": "rccl-2.27.7-wrong-file-name.log",
    "tcp.out": "rccl-2.22.3-aws-ofi-nccl-1.18.0-tcp.log",
}
KERNELS = gpu_builder.library(gpu_builder.bundle(*gpu_builder.hip("gfx90a:xnack-", "gfx942")))
DOCKERFILE = """\
ARG BASE=rocm/dev-ubuntu-22.04:6.2.4-complete
FROM $BASE
RUN apt-get update && apt-get install -y git
RUN pip install torch==2.7.1 --index-url https://download.pytorch.org/whl/rocm6.2.4
ENV HF_HOME=/scratch/hf
"""


def make_doc_files(folder: Path, world: World, images: Mapping[str, Path] | None = None) -> DocFiles:
    """Return the files that pages need; images and snapshots are made on first use; `images` are real ones by name."""
    put: dict[str, Callable[[Path], object]] = {
        name: partial(shutil.copy, FIXTURES / "nccl" / log) for name, log in LOGS.items()
    }
    roots: dict[str, Callable[[Path], Path]] = {
        "image.sif": partial(fabric_builder.image, glibc=41),
        "old.sif": partial(fabric_builder.image, glibc=35),
        "no-plugin.sif": partial(fabric_builder.image, glibc=41, plugin=False),
        "bundled.sif": bundled,
    }
    for name, make in roots.items():
        put[name] = partial(_copy_of_image, folder / name, make)
    for name, make_node, taken in (
        ("before.json", november, "2025-11-20T10:00:00Z"),
        ("host.json", january, "2026-01-24T10:00:00Z"),
    ):
        put[name] = partial(_copy_of_snapshot, folder / name, make_node, taken)
    put["bandwidth.out"] = partial(shutil.copy, FIXTURES / "bandwidth" / "rccl-tests-all-reduce.out")
    put["squashfs"] = partial(_copy_of_squashfs, folder / "squashfs", roots["image.sif"])
    put["libkernels.so"] = lambda path: path.write_bytes(KERNELS)
    put["Dockerfile.rocm"] = lambda path: path.write_text(DOCKERFILE)
    for name, image in (images or {}).items():
        put[name] = partial(shutil.copy, image)
    put["world"] = partial(_mirrors, world)
    return DocFiles(put)


def _copy_of_image(kept: Path, make: Callable[[Path], Path], target: Path) -> None:
    if not kept.exists():
        root = make(kept.with_suffix(".root"))
        front = SifHeader("Bootstrap: scratch\n", {})
        squashed(root, kept, offset=front.size_bytes)
        write_sif(kept, front, identity=kept.name)
    shutil.copy(kept, target)


def _copy_of_squashfs(kept: Path, make: Callable[[Path], Path], target: Path) -> None:
    if not kept.exists():
        squashed(make(kept.with_suffix(".root")), kept)
    shutil.copy(kept, target)


def _copy_of_snapshot(kept: Path, make: Callable[[Path], Path], taken: str, target: Path) -> None:
    if not kept.exists():
        fabric_builder.snapshot(make(kept.with_suffix("")), taken=taken)
    shutil.copy(kept, target)


def _mirrors(world: World, target: Path) -> None:
    """Configure the world's registries and indexes as the mirrors of a page."""
    pairs = [word.partition("=") for word in world.mirrors if word != "--mirror"]
    settings = target.parent / ".home/.config/lumiimg/config.toml"
    settings.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"{json.dumps(source)} = {json.dumps(to)}" for source, _, to in pairs]
    settings.write_text("\n".join(["[mirrors]", *lines, ""]))
