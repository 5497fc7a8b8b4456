"""How MPI programs of an image are started on a site: `srun --mpi=`, by the MPI that the image has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumiimg.catalog.sites import Site, SiteVariable

if TYPE_CHECKING:
    from lumiimg.resolve.stack import Stack

MPICH, OPEN_MPI = "12", "40"
"""Versions in the name of libmpi.so: MPICH's ABI, which Cray's shares, and Open MPI's."""
MPI_TYPE = "SLURM_MPI_TYPE"
"""What srun takes for its `--mpi=` where none is given (srun(1), input environment variables)."""


def read_by_srun(name: str) -> bool:
    """Whether srun takes a variable for an option: on the host, before the container starts, whatever an image sets."""
    return name.startswith("SLURM_")


def mpi_type(stack: Stack, site: Site) -> SiteVariable | None:
    """Return the variable that has srun start MPI programs as the image's MPI wants; None where that is not known."""
    abi, mpi = stack.version("mpi-abi"), site.mpi
    if mpi is None or site.scheduler == "PBS":
        return None
    value, because = None, ""
    if abi == OPEN_MPI:
        value, because = mpi.open, "libmpi.so.40 of the image is Open MPI"
    elif abi == MPICH:
        value, because = mpi.own, "libmpi.so.12 of the image is an MPICH of its own"
    elif "mpi4py" in stack.offers and "mpi" not in stack.offers:
        value, because = mpi.host, "the image has mpi4py and no MPI, so that is the machine's, which must be bound"
    return SiteVariable(name=MPI_TYPE, value=value, because=because, source=mpi.source) if value is not None else None
