"""Layers on a base, each in one release with the values of its arguments; what they offer, and variables for jobs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from msgspec import structs

from lumiimg.catalog.launch import SiteVariable
from lumiimg.catalog.layers import own_values
from lumiimg.catalog.ledger import status_of
from lumiimg.catalog.needs import NOT_PYTHON
from lumiimg.catalog.releases import expand, placeholders

if TYPE_CHECKING:
    from lumiimg.catalog.layers import KnownTrouble, Layer, Status
    from lumiimg.catalog.needs import Need
    from lumiimg.catalog.releases import Release
    from lumiimg.catalog.sites import Site
    from lumiimg.inventory.components import Inventory

PLUGIN = "aws-ofi-nccl"
"""Added if a site's fabric is used and no other plugin is requested: every release of RCCL accepts it."""
PLUGIN_COMPONENT = "net-plugin"
HEADERS = "host-libfabric"
"""The host's own libfabric with its headers: an archive that a user may give for compiling, and its component."""
OWN_PACKAGES = "own-packages"
"""The layer of the user's own packages; `--add` names the packages, never the layer."""
PACKAGE = "pip:"
"""Prefix of a word of `--add` that is a package from the index, not a layer."""
LONGEST = 4096
"""Most characters of a value: no program starts with a variable of more than 128 KiB."""
MPICH, OPEN_MPI = "12", "40"
"""Version numbers of libmpi.so: MPICH's ABI, which Cray MPICH shares, and Open MPI's."""
MPI_TYPE = "SLURM_MPI_TYPE"
"""Variable that srun reads if `--mpi=` is not given (srun(1), input environment variables)."""
ARCH = "ARCH"
"""The argument of layers that are compiled for a GPU."""


class OfferedComponent(NamedTuple):
    """A component that the stack has."""

    version: str | None
    by: str
    """Base, layer or site that provides it."""


class WantedLayer(NamedTuple):
    """A layer that is wanted, and why."""

    need: Need
    because: str = "you asked for it"


@dataclass(frozen=True, slots=True)
class ReleasedLayer:
    """A base or a layer of an image, in one release if it has any."""

    layer: Layer
    release: Release | None
    arguments: Mapping[str, str]
    """Values by the argument's name."""

    @property
    def others(self) -> tuple[str, ...]:
        """Arguments by which the user selects sources that the layer's facts do not describe."""
        return overridden_sources(self.layer, self.release, self.arguments)

    @property
    def name(self) -> str:
        """Name in the catalogue."""
        return self.layer.name

    @property
    def version(self) -> str | None:
        """Version of its release; null for a layer without releases."""
        return self.release.version if self.release else None

    @property
    def title(self) -> str:
        """Its name, with its version if it has one."""
        return f"{self.name} {self.version}" if self.version else self.name

    @property
    def status(self) -> Status:
        """How far it was tried; for a release without a row, `read` from a package index or `derived` from a row."""
        if self.others:  # nothing is known about such sources
            return "documented"
        return status_of(self.layer, self.release)


@dataclass(frozen=True, slots=True)
class Chosen(ReleasedLayer):
    """A layer of the stack."""

    because: str
    unknown: tuple[tuple[Need, OfferedComponent], ...] = ()
    """Needs for a version, each with the component for it whose version is not known."""


@dataclass(frozen=True, slots=True)
class Stack:
    """Layers on a base, bottom first, and what they offer together."""

    offers: Mapping[str, OfferedComponent]
    layers: tuple[Chosen, ...] = ()

    def version(self, component: str) -> str | None:
        """Return the version of a component; None if there is none, or it is not known."""
        offer = self.offers.get(component)
        return offer.version if offer else None


def components_of(layer: Layer) -> set[str]:
    """Return all components that a layer provides in at least one release."""
    return {layer.name, *layer.provides, *layer.has, *(name for release in layer.releases for name in release.has)}


def stack_of(contents: Inventory, packages: Mapping[str, str] | None = None) -> Stack:
    """Return the stack of an image. `packages` are Python packages on top, used if the image has none of that name."""
    own = {name: version for name, version in (packages or {}).items() if name not in NOT_PYTHON}
    versions = own | dict.fromkeys(contents.provides) | dict(contents.has)
    return Stack({name: OfferedComponent(version, "the image") for name, version in versions.items()})


def ready_wheels(layer: Layer, base: Layer) -> Release | None:
    """Return the newest release that is a set of wheels with its own torch and fits a base without torch."""
    if "torch" in {*base.has, *base.provides} or "torch" in layer.provides:
        return None
    sets = (row for row in layer.releases if row.own_torch)
    fits = (row for row in sets if all(need.holds_for(base.has.get(need.component)) for need in row.requires))
    return next(fits, None)


def offers_of(chosen: Chosen) -> dict[str, OfferedComponent]:
    """Return the components that a layer adds; from the user's sources, only versions given by arguments are known."""
    layer, others = chosen.layer, chosen.others
    found = {name: OfferedComponent(None, layer.name) for name in layer.provides}
    found[layer.name] = OfferedComponent(chosen.version, layer.name)
    for name, version in layer.has_of(chosen.release).items():
        known = None if others and not placeholders(version) else expand(version, chosen.arguments)
        found[name] = OfferedComponent(known, layer.name)
    return found


def troubles_of(layers: Iterable[Layer], stack: Stack, *, refused: bool) -> Iterator[KnownTrouble]:
    """Yield the known troubles of layers (or of a base) that apply to the stack."""
    for layer in layers:
        for trouble in layer.troubles:
            held = all(is_met(need, stack) for need in trouble.given)
            if trouble.refused is refused and held and not any(is_met(need, stack) for need in trouble.unless):
                yield trouble


def is_met(need: Need, stack: Stack) -> bool:
    """Return whether the stack has the component in a suitable version."""
    offer = stack.offers.get(need.component)
    return offer is not None and bool(need.holds_for(offer.version))


def as_offered(need: Need, offer: OfferedComponent | None) -> str:
    """Return a description of what is offered for a need."""
    return f"{need.component} {offer.version or '(version not known)'}" if offer else f"no {need.component}"


def given_in(stack: Stack, trouble: KnownTrouble) -> str:
    """Return a description of what the stack has of the components that a trouble is about."""
    return ", ".join(f"{n.component} {stack.version(n.component) or ''}".strip() for n in trouble.given)


# -- the arguments of a layer --


def values_of(layer: Layer, release: Release | None, arguments: Mapping[str, str]) -> dict[str, str]:
    """Return the values of a layer's arguments: the user's (by `LAYER.NAME`), else the release's, else the layer's."""
    given = {name: arguments.get(f"{layer.name}.{name}") for name in layer.arguments}
    return own_values(layer, release) | {name: value for name, value in given.items() if value is not None}


def overridden_sources(layer: Layer, release: Release | None, values: Mapping[str, str]) -> tuple[str, ...]:
    """Return the arguments that select other sources than those that the layer's facts describe."""
    telling = {name for version in layer.has_of(release).values() for name in placeholders(version)}
    choosing = [name for source in layer.sources for name in placeholders(source.key) if name not in telling]
    usual = own_values(layer, release)
    return tuple(name for name in dict.fromkeys(choosing) if values[name] != usual[name])


def for_gpu(layer: Layer, arch: str | None) -> Layer:
    """Return a layer for a known GPU: if it is compiled for a GPU, that one becomes the default."""
    argument = layer.arguments.get(ARCH)
    if arch is None or argument is None or not is_gpu(argument.default):
        return layer
    if argument.pattern is not None and argument.pattern.fullmatch(arch) is None:
        return layer
    return structs.replace(layer, arguments={**layer.arguments, ARCH: structs.replace(argument, default=arch)})


def is_gpu(value: str) -> bool:
    """Return whether a value is one or more GPUs as ROCm's compilers name them; an ARCH can also be a CPU's."""
    return value.startswith("gfx")


def gpus_of(values: Mapping[str, str]) -> tuple[str, ...]:
    """Return the GPUs that a layer with such arguments is compiled for."""
    value = values.get(ARCH, "")
    return tuple(value.split(";")) if is_gpu(value) else ()


# -- the variables for jobs on a site, and how their MPI programs are started: `srun --mpi=` --


def read_by_srun(name: str) -> bool:
    """Return whether srun reads a variable as an option: on the host, before the container, whatever an image sets."""
    return name.startswith("SLURM_")


def mpi_type(stack: Stack, site: Site) -> SiteVariable | None:
    """Return the variable that makes srun start MPI programs as the image's MPI requires; None if that is not known."""
    abi, mpi = stack.version("mpi-abi"), site.mpi
    if mpi is None or site.scheduler == "PBS":
        return None
    value, because = None, ""
    if abi == OPEN_MPI:
        value, because = mpi.open, "libmpi.so.40 of the image is Open MPI"
    elif abi == MPICH:
        value, because = mpi.own, "the image has its own MPICH, libmpi.so.12"
    elif "mpi4py" in stack.offers and "mpi" not in stack.offers:
        value, because = mpi.host, "the image has mpi4py but no MPI, so the machine's MPI must be bound"
    return SiteVariable(name=MPI_TYPE, value=value, because=because, source=mpi.source) if value is not None else None


def site_variables(stack: Stack, site: Site) -> Iterator[SiteVariable]:
    """Yield the variables of the site that are for jobs with this stack.

    If there are two releases of ROCm, the one in torch's wheel counts: such jobs run it (torch/lib comes first).
    """
    if (of_torch := stack.offers.get("torch-rocm")) is not None:
        stack = replace(stack, offers={**stack.offers, "rocm": of_torch})
    for variable in site.variables:
        if all(is_met(need, stack) for need in variable.given) and not any(is_met(n, stack) for n in variable.unless):
            yield variable


def job_variables(stack: Stack, site: Site) -> Iterator[SiteVariable]:
    """Yield all variables for jobs with this stack: those of the site, and the one for its MPI."""
    yield from site_variables(stack, site)
    if (variable := mpi_type(stack, site)) is not None:
        yield variable


def same_in_all_ranks(stack: Stack, site: Site, *, nodes: int) -> Iterator[SiteVariable]:
    """Yield the variables of jobs on this number of nodes that are the same in all ranks and only for the container."""
    for variable in site_variables(stack, site):
        of_container = not variable.ranks and "$" not in variable.value and not read_by_srun(variable.name)
        if of_container and variable.nodes.fit(nodes):
            yield variable
