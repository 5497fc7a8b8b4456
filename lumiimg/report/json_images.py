"""What is printed as JSON of images, machines and jobs, beyond a single value of a room.

Docstrings are the descriptions in the schema. Modules of rooms are imported for the types alone: printing one
kind loads no room that its command has no use for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pathlib import Path

    from lumiimg.check.startup import Startup
    from lumiimg.check.static.host_fit import HostFit
    from lumiimg.cluster.job.plan import JobPlan
    from lumiimg.cluster.module.plan import ImageModule
    from lumiimg.fabric.path import Fabric
    from lumiimg.findings import Advice
    from lumiimg.gpu.target import GpuTarget
    from lumiimg.host.manifest import BindManifest, Variable
    from lumiimg.resolve.gpu_code import GpuCode
    from lumiimg.resolve.venv import VenvRecord

# -- images


@dataclass(frozen=True, slots=True)
class ImageGpuCode:
    """For which GPUs an image has code."""

    image: str
    """As it was named."""
    gpu: GpuTarget | None
    """The GPU of --site, in the modes that a process finds that sets nothing; null without --site."""
    code: GpuCode


@dataclass(frozen=True, slots=True)
class BoundImage:
    """The least list of binds and variables for an image on a machine, or why there is none."""

    of: HostFit
    decision: Literal["ok", "refused", "unknown"]
    """About the binds: `ok`, each library that is opened is found, in versions that fit."""
    manifest: BindManifest
    doubts: tuple[str, ...]
    """What stands, or may stand, against RCCL's using what is bound; then `explain` does not say `ok`."""

    @property
    def environment(self) -> dict[str, Variable]:
        """Variables to set for the container, by name."""
        return {variable.name: variable for variable in self.manifest.variables}


@dataclass(frozen=True, slots=True)
class GlibcVersions:
    """Versions of the C library."""

    image: str | None
    """The image's; null where it is not known."""
    host: str | None
    """The host's; null where it is not known, or there is no snapshot."""


@dataclass(frozen=True, slots=True)
class ExplainedImage:
    """What comes from where in the process of RCCL and its plugin, which versions meet, what margin is left."""

    of: HostFit
    advice: Advice
    """Why, and one command."""
    nearest: None = None
    """Always null: of a request, see explain-request."""

    @property
    def glibc(self) -> GlibcVersions:
        """Versions of the C library."""
        return GlibcVersions(self.of.glibc, self.of.host_glibc)

    @property
    def notes(self) -> tuple[str, ...]:
        """What is worth knowing and changes nothing."""
        return self.of.manifest.notes if self.of.manifest else ()


# -- this machine


@dataclass(frozen=True, slots=True)
class ImportBench:
    """What an import asks of file systems, in calls."""

    module: str
    """That was imported."""
    places: tuple[Startup, ...]
    """In the order of the command line."""


# -- jobs, modules, trials


@dataclass(frozen=True, slots=True)
class BoundRank:
    """One rank of a node."""

    local_rank: int
    """On its node, from 0."""
    group: int
    """Number of the group of cores."""
    cores: tuple[int, ...]
    """Numbers of the kernel."""
    mask: str
    """Of these, in hexadecimal, as wide as the node."""


@dataclass(frozen=True, slots=True)
class RankBinding:
    """To which cores ranks are bound."""

    because: str
    """Why they are bound, or not."""
    ranks: tuple[BoundRank, ...]
    """Empty where ranks are not bound."""


@dataclass(frozen=True, slots=True)
class JobScript:
    """A job script with its arithmetic."""

    plan: JobPlan
    script: str
    """The script."""

    @property
    def launch(self) -> str:
        """What starts the ranks: `srun`, `torchrun`, `ray`, `mpiexec`."""
        return "torchrun" if self.plan.torchrun else "ray" if self.plan.ray else self.plan.starter

    @property
    def binding(self) -> RankBinding:
        """To which cores ranks are bound."""
        topology = self.plan.topology
        if topology is None:
            return RankBinding(self.plan.binding, ())
        masked = (BoundRank(one.local_rank, one.group, one.cores, topology.mask(one)) for one in topology.places)
        return RankBinding(self.plan.binding, tuple(masked))


@dataclass(frozen=True, slots=True)
class ModuleFiles:
    """What was written."""

    lmod: Path
    """Module file for Lmod."""
    tcl: Path
    """Module file for Tcl modules."""
    wrappers: Path
    """Folder of the wrappers."""


@dataclass(frozen=True, slots=True)
class WrittenModule:
    """The module that was written, with all that it sets."""

    of: ImageModule
    use: Path
    """For `module use`."""
    files: ModuleFiles
    """What was written."""

    @property
    def wrappers(self) -> dict[str, str]:
        """Path in the image, by the wrapper's name."""
        return {program.name: program.path for program in self.of.programs}

    @property
    def fabric(self) -> Fabric | None:
        """Where the fabric's libraries come from; null without a snapshot."""
        return self.of.boundary.fabric if self.of.boundary else None

    @property
    def container_environment(self) -> dict[str, str]:
        """Variables that are set in the container for the binds."""
        return {item.name: item.value for item in self.of.container_variables}


@dataclass(frozen=True, slots=True)
class WrittenVenv:
    """The environment over an image that was made."""

    record: VenvRecord
    path: Path
    """Absolute path of the file, or of the folder."""
