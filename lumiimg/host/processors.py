"""The processors of a machine: whether they run an image, and which GPU there is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumiimg.elf import abi_at, c_library_of
from lumiimg.host.snapshot_tree import MACHINES
from lumiimg.inventory.gpu_fit import MachineGpu

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumiimg.catalog.sites import Site
    from lumiimg.host.snapshot import Snapshot
    from lumiimg.image import Image

_OF_GO = {"amd64": "x86_64", "arm64": "aarch64", "386": "i686"}
"""Architectures as images name them, and as `uname -m` does."""
_OF_ROCM = "x86_64"
"""Of every machine with ROCm: AMD publishes it for no other. ROCm's system requirements, 2026."""


def wrong_processors(image: Image, files: Sequence[str], snapshot: Snapshot | None, site: Site | None) -> str | None:
    """Return why the processors of a machine do not run an image: by what it says of itself, and by its programs.

    Of a node what was seen counts, else what is known of the site; without either, what ROCm is for.
    """
    if snapshot is not None:
        wanted, whose = snapshot.architecture, snapshot.host
    elif site is not None and site.processors is not None:
        wanted, whose = site.processors, site.name
    else:
        wanted, whose = _OF_ROCM, "machines with ROCm"
    said = _OF_GO.get(image.description.architecture or "", image.description.architecture)
    if said not in {None, wanted}:
        return f"the image says that it is for {said}, but {whose} has {wanted}"
    root = image.root
    for path in (*files, *filter(None, [c_library_of(root).loader])):
        if (abi := abi_at(root, path)) is not None:
            machine = MACHINES.get(abi.machine, f"another machine (e_machine {abi.machine})")
            if abi.bits == 64 and machine == wanted:
                return None
            bits = "" if abi.bits == 64 else f" with {abi.bits} bits"
            return f"{path} is for {machine}{bits}, and {whose} has {wanted}"
    return None


def gpu_of_machine(snapshot: Snapshot | None, site: Site | None) -> MachineGpu | None:
    """Return the GPU of a machine, None where none of AMD's is known: that of the node that was seen, else the site's.

    What was seen on a node counts more than what is believed of its site.
    """
    if snapshot is not None and snapshot.gpu is not None:
        return MachineGpu(snapshot.gpu, snapshot.host)
    return MachineGpu(site.arch, site.name) if site is not None and site.arch is not None else None
