"""How MPI programs of an image are started on a site: `srun --mpi=`, by the MPI that the image has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumiimg.catalog.launch import Jobs
from lumiimg.catalog.sites import SiteVariable

if TYPE_CHECKING:
    from lumiimg.catalog.sites import Site
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
    if abi == OPEN_MPI and mpi.open is not None:
        return _variable(mpi.open, "libmpi.so.40 of the image is Open MPI", mpi.source)
    if abi == MPICH and mpi.own is not None:
        return _variable(mpi.own, "libmpi.so.12 of the image is an MPICH of its own", mpi.source)
    if "mpi4py" in stack.offers and "mpi" not in stack.offers and mpi.host is not None:
        because = "the image has mpi4py and no MPI, so that is the machine's, which must be bound"
        return _variable(mpi.host, because, mpi.source)
    return None


def _variable(value: str, because: str, source: str) -> SiteVariable:
    return SiteVariable(
        name=MPI_TYPE,
        value=value,
        given=(),
        unless=(),
        nodes=Jobs.ANY,
        ranks=False,
        folder=None,
        because=because,
        source=source,
    )
