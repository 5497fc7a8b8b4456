"""The variables that jobs with an image want on a site, and how their MPI programs are started: `srun --mpi=`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lumiimg.catalog.launch import SiteVariable
from lumiimg.resolve.stack import Stack, is_met

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lumiimg.catalog.sites import Site

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


def site_variables(stack: Stack, site: Site) -> Iterator[SiteVariable]:
    """Yield the variables of the site that are for jobs of this stack.

    Of two releases of ROCm the one in torch's wheel counts: it is what such jobs run (torch/lib comes first).
    """
    if (of_torch := stack.offers.get("torch-rocm")) is not None:
        stack = replace(stack, offers={**stack.offers, "rocm": of_torch})
    for variable in site.variables:
        if all(is_met(need, stack) for need in variable.given) and not any(is_met(n, stack) for n in variable.unless):
            yield variable


def job_variables(stack: Stack, site: Site) -> Iterator[SiteVariable]:
    """Yield all variables for jobs of this stack: those of the site, and the one for its MPI."""
    yield from site_variables(stack, site)
    if (variable := mpi_type(stack, site)) is not None:
        yield variable


def same_in_all_ranks(stack: Stack, site: Site, *, nodes: int) -> Iterator[SiteVariable]:
    """Yield the variables of jobs on this number of nodes that are the same in all ranks, and the container's alone."""
    for variable in site_variables(stack, site):
        of_container = not variable.ranks and "$" not in variable.value and not read_by_srun(variable.name)
        if of_container and variable.nodes.fit(nodes):
            yield variable
