"""The cores of each rank: those nearest to its GPU, as a mask, on a node that the job has for itself.

Computed from what the site's file says of its nodes (`[binding]`); no mask is written down anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lumiimg.catalog.launch import SiteBinding


@dataclass(frozen=True, slots=True)
class RankCores:
    """The cores of one rank."""

    local_rank: int
    """On its node, from 0; the number of its GPU, too."""
    group: int
    """Number of the group of cores (CCD) that is nearest to the GPU."""
    cores: tuple[int, ...]
    """Its part of the group, without those that are kept, as the kernel numbers them."""
    mask: str
    """A bit for each core, core 0 the lowest, in hexadecimal, as wide as the node: for `srun --cpu-bind`."""


@dataclass(frozen=True, slots=True)
class RankBinding:
    """To which cores the ranks of a node are bound; each node has the same."""

    because: str
    """Why they are bound, or not."""
    ranks: tuple[RankCores, ...] = ()
    """Empty where ranks are not bound."""

    @property
    def masks(self) -> str:
        """For `srun --cpu-bind=mask_cpu:`."""
        return ",".join(rank.mask for rank in self.ranks)


def bind_ranks(binding: SiteBinding, ranks: int, *, sparing: bool = False) -> tuple[RankCores, ...]:
    """Return where the first `ranks` ranks of a node are bound, each beside the GPU of its number.

    `sparing`: some cores are left to helpers of the framework, where the site says so.

    Only true on a node that the job has for itself, with all of its GPUs: else GPU 0 of the job is any GPU of the node.
    """
    near = [binding.cores_near(gpu, sparing=sparing) for gpu in range(ranks)]
    return tuple(RankCores(gpu, binding.near[gpu], cores, _mask(cores, binding)) for gpu, cores in enumerate(near))


def _mask(cores: Iterable[int], binding: SiteBinding) -> str:
    return f"0x{sum(1 << core for core in cores):0{-(-binding.cores // 4)}x}"


def cores_of_a_gpu(binding: SiteBinding, *, sparing: bool = False) -> int:
    """Return how many cores go with each GPU of a node: the least that any of them has near it."""
    return min(len(binding.cores_near(gpu, sparing=sparing)) for gpu in range(len(binding.near)))
