"""What a job is, whatever the scheduler: ranks, cores, variables, binds and the program, each with its reason.

`script.py` writes it as a script of Slurm or of PBS; `container.py` what of it runs in the container.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from lumiimg.cluster.job.frameworks import Framework, facts, framework_of, frameworks, launcher_of
from lumiimg.cluster.job.mounts import MissingPath, unbound, with_own
from lumiimg.cluster.job.shape import Shape, ShapeRequest, shape_of
from lumiimg.cluster.job.topology import Topology, bind_ranks, cores_of_a_gpu
from lumiimg.cluster.job.vllm import ServingPlace, lacks_ray, note_of, serving_of, told_of_vllm
from lumiimg.core.errors import BadInputError, FailedError
from lumiimg.core.text import count
from lumiimg.fabric.path import Fabric
from lumiimg.host.manifest import Bind, BindManifest
from lumiimg.resolve.driver_rule import driver_window
from lumiimg.resolve.job_variables import OPEN_MPI, mpi_type, read_by_srun, site_variables
from lumiimg.resolve.rules import RuleOutcome
from lumiimg.resolve.venv import BIN, Venv

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from lumiimg.catalog.sites import Site, SiteBind
    from lumiimg.check.static.files import HostFit
    from lumiimg.inventory.python import Python
    from lumiimg.resolve.stack import Stack

VISIBLE = {None: "ROCR_VISIBLE_DEVICES", "NVIDIA": "CUDA_VISIBLE_DEVICES", "Intel": "ZE_AFFINITY_MASK"}
"""The variable that leaves a process one GPU, by who makes it; None is AMD."""
RAY = "/tmp/$USER-ray-$SLURM_JOB_ID"  # noqa: S108 - of the job, on each node
"""Where Ray keeps what belongs to its session."""
CONTAINER_ENGINE = "CSCS Container Engine"
"""The engine that starts containers by a file and by srun: no job script is written for it."""
_OF_RANK = re.compile(r"\$\{?(SLURM_LOCALID|SLURM_PROCID|LOCAL_RANK|RANK)\b")


class SettingScope(StrEnum):
    """Where a variable gets its value."""

    JOB = "job"
    """Once, in the batch script: the scheduler reads it, or it is the same everywhere."""
    NODE = "node"
    """In the container, so that nothing that the image sets itself comes over it; the node's number is known there."""
    RANK = "rank"
    """In each rank: it names the rank's number."""


@dataclass(frozen=True, slots=True)
class JobSetting:
    """A variable, and why."""

    name: str
    """Of it."""
    value: str
    """As a shell reads it."""
    because: str
    """Why."""
    source: str
    """Where that is from."""
    scope: SettingScope
    """Where it gets its value."""
    folder: str | None = None
    """To be made first."""
    literal: bool = False


@dataclass(frozen=True, slots=True)
class JobOption:
    """A word for the scheduler or the engine, and why."""

    value: str
    """For `srun --mpi`."""
    because: str
    """Why."""


@dataclass(frozen=True, slots=True)
class JobPlan:
    """One job."""

    image: str
    """As it was named."""
    site: Site
    shape: Shape
    """What the scheduler is asked for."""
    framework: Framework
    chosen: str
    torchrun: bool
    command: tuple[str, ...]
    """That the job runs, word by word."""
    tasks: int
    """That the scheduler starts on each node."""
    ranks: int
    """Whoever starts them."""
    topology: Topology | None
    binding: str
    """Why they are bound, or not."""
    cores: int | None
    """Of one GPU; None where it is not known."""
    memory_gib: int | None
    """Of one GPU."""
    request_gpus: int
    """That are asked for on each node, which may be more than are used."""
    mpi: JobOption | None
    """How the launcher speaks with MPI; null where it is not said."""
    settings: tuple[JobSetting, ...]
    """In the order in which they are set."""
    binds: tuple[Bind, ...]
    """What is bound."""
    notes: tuple[str, ...]
    """What whoever submits it should know."""
    connects_itself: bool = False
    """Whether vLLM connects the nodes by itself, without Ray."""
    serving: ServingPlace | None = None
    """How a server of vLLM is kept to its user; None where there is none, or the command says it."""

    @property
    def ray(self) -> bool:
        """Whether it runs on a Ray cluster."""
        return self.framework.wants_ray(self.shape.nodes) and not self.connects_itself

    @property
    def by_pbs(self) -> bool:
        """Whether PBS runs it, and mpiexec of PALS starts its tasks; else Slurm."""
        return self.site.scheduler == "PBS"

    @property
    def starter(self) -> str:
        """The program that starts the tasks."""
        return starter_of(self.site)

    @property
    def program(self) -> str:
        """The container engine of the site; both families answer to `singularity`."""
        return "apptainer" if (self.site.engine or "").startswith("Apptainer") else "singularity"

    @property
    def caches(self) -> str | None:
        """The folder on each node in which variables of this job put their caches; None where none does."""
        return self.site.caches if any(self.site.is_cache(setting.value) for setting in self.settings) else None

    @property
    def private(self) -> str:
        """The folder of the job on a node, for its user alone: for caches, and for the socket of a server."""
        return self.caches or f"/tmp/$USER-{'$PBS_JOBID' if self.by_pbs else '$SLURM_JOB_ID'}"  # noqa: S108 - as above

    @property
    def socket(self) -> str:
        """Where a server of vLLM listens on its node, as a shell reads it."""
        return f"{self.private}/vllm"

    @property
    def leftovers(self) -> tuple[str, ...]:
        """Folders of this job that are left on each node, as a shell reads them."""
        is_private = self.caches or self.serving is ServingPlace.SOCKET
        return (*([self.private] if is_private else []), *([RAY] if self.ray else []))

    def in_scope(self, scope: SettingScope) -> tuple[JobSetting, ...]:
        """Return the variables that get their value there."""
        return tuple(setting for setting in self.settings if setting.scope is scope)


@dataclass(frozen=True, slots=True)
class JobRequest:
    """What somebody wants to run."""

    image: str
    command: tuple[str, ...]
    wish: ShapeRequest
    framework: str | None = None
    """None: by the image and the command."""
    torchrun: bool = False
    python: Python | None = None
    binds: tuple[str, ...] = ()
    """On top of the site's: `PATH` or `SRC:DEST[:ro]`."""
    absent: tuple[MissingPath, ...] = ()
    """Paths of the command that the image does not have."""
    note: str | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    """That the image sets."""
    of_gpu: tuple[str, ...] = ()
    """What the image's GPU code means for the job."""
    of_manifest: str | None = None
    """Where the binds are from, where no node was looked at."""
    caches: str | None = None
    """A folder that stays, for models and compiled kernels; None: the site's scratch."""
    venv: Venv | None = None
    """A Python environment to be bound."""
    of_venv: tuple[str, ...] = ()
    """What is to be said of it."""


def starter_of(site: Site) -> str:
    """Return the program that starts the tasks of a job on a site."""
    return "mpiexec" if site.scheduler == "PBS" else "srun"


def plan_job(request: JobRequest, stack: Stack, site: Site, manifest: BindManifest | None = None) -> JobPlan:
    """Return the job; `stack` is what the image has, `manifest` what is bound from a node that was looked at.

    Raises ShapeError for a shape that the site does not have, BadInputError for what cannot be started so.
    """
    _check_words(request)
    shape = shape_of(request.wish, site)
    if request.framework:
        framework, chosen = frameworks()[request.framework], "as you asked"
    else:
        framework, chosen = framework_of(request.command, has_torch="torch" in stack.offers)
    if request.torchrun and not framework.torchrun:
        able = ", ".join(sorted(name for name, entry in frameworks().items() if entry.torchrun))
        raise BadInputError(f"torchrun does not start {framework.name}", hint=f"it starts {able}")
    _check_site(request, site, framework, shape)
    a_task_a_node = request.torchrun or not framework.task_a_gpu
    topology, binding = _binding(shape, site, framework, torchrun=request.torchrun)
    cores = cores_of_a_gpu(site.binding, sparing=_spares(framework)) if site.binding else None
    memory = site.binding.memory_gib if site.binding else None
    ranks = shape.gpus if framework.task_a_gpu else 1
    alone = framework.name == "vllm" and shape.nodes > 1 and lacks_ray(stack)
    command, untold = request.command, None
    if framework.name == "vllm":
        command, untold = told_of_vllm(request.command, shape, by_ray=not alone)
    serving = serving_of(command, stack) if framework.name == "vllm" else None
    settings = _settings(stack, site, shape, framework, cores, manifest)
    binds = with_own(manifest.binds if manifest else tuple(map(_bind, site.binds)), request.binds)
    binds += (request.venv.bind(read_only=True),) if request.venv else ()
    return JobPlan(
        image=request.image,
        site=site,
        shape=shape,
        framework=framework,
        chosen=chosen,
        torchrun=request.torchrun,
        command=command,
        tasks=1 if a_task_a_node else shape.gpus,
        ranks=ranks,
        topology=topology,
        binding=binding,
        cores=cores,
        memory_gib=memory // len(site.binding.near) if memory and site.binding else None,
        request_gpus=shape.node_gpus if shape.whole_nodes and shape.node_gpus else shape.gpus,
        mpi=_mpi(stack, site),
        settings=(
            *_of_python(request.python, request.venv),
            *(one for one in settings if not (alone and one.name.startswith("RAY_"))),
            *_kept(request.caches, site, framework),
        ),
        binds=binds,
        notes=(
            *request.of_gpu,
            *_harmful(request.variables, site),
            *_notes(stack, site, shape, framework, manifest),
            *request.of_venv,
            *filter(None, (untold, request.note, request.of_manifest, note_of(serving))),
            *unbound(request.absent, binds),
        ),
        connects_itself=alone,
        serving=serving,
    )


def by_carried(fit: HostFit, site: Site) -> tuple[BindManifest | None, str | None]:
    """Return the binds of the manifest that an image carries, with those of the site, and what is to be said of it."""
    manifest = fit.carried.for_jobs
    with_site = replace(manifest, binds=(*manifest.binds, *map(_bind, site.binds))) if manifest else None
    return with_site, fit.carried.doubt


def _bind(entry: SiteBind) -> Bind:
    return Bind(entry.path, entry.path, f"{entry.reason} ({entry.source})" if entry.source else entry.reason)


def _check_words(request: JobRequest) -> None:
    if not request.command:
        raise BadInputError("no command", hint="put it after the options: -- python train.py")
    launcher = launcher_of(request.command)
    if launcher is not None:
        hint = "--launch torchrun -- python SCRIPT" if "torch" in launcher else "name the program alone"
        raise BadInputError(f"{launcher} starts ranks, and so does the job", hint=hint)
    for word in (request.image, *request.command):
        try:
            word.encode()
        except UnicodeEncodeError:
            raise BadInputError("is not UTF-8, and a script must be", where=ascii(word)) from None


def _check_site(request: JobRequest, site: Site, framework: Framework, shape: Shape) -> None:
    if site.engine == CONTAINER_ENGINE:
        raise BadInputError(
            f"{site.name} starts containers with the {CONTAINER_ENGINE}, for which no job scripts are written",
            hint=f"`lumiimg show {site.name}` lists its hooks and variables for an EDF file of your own",
        )
    if site.scheduler == "PBS" and framework.wants_ray(shape.nodes):
        hint = "on one node it needs none: --nodes 1" if framework.ray == "several" else None
        raise BadInputError(f"{framework.name} needs a Ray cluster, and lumiimg starts none under PBS", hint=hint)
    wanting = [variable.name for variable in site.variables if variable.ranks]
    if request.torchrun and wanting:
        raise BadInputError(
            f"torchrun's ranks are its own, and {wanting[0]} on {site.name} is for those of {starter_of(site)}",
            hint=f"without --launch torchrun: {starter_of(site)} starts one rank per GPU",
        )


def _spares(framework: Framework) -> bool:
    """Whether helpers of the collective library run beside the ranks: a program of its own kind has its cores all."""
    return framework.name != "plain"


def _binding(shape: Shape, site: Site, framework: Framework, *, torchrun: bool) -> tuple[Topology | None, str]:
    if site.binding is None:
        return None, f"which cores are near which GPU of {site.name} is not known: nothing is bound"
    if not framework.task_a_gpu:
        return None, f"nothing is bound: {re.split('[:;]', framework.because)[0]}"
    if not shape.whole_nodes:
        why = (
            f"{shape.partition or site.name} shares its nodes: which cores and GPUs this job gets is known only once "
            "it runs, and a mask for others' cores would be false. Nothing is bound by mask; "
            f"{count(cores_of_a_gpu(site.binding), 'core')} go with each GPU"
        )
        return None, why
    starter = starter_of(site)
    how = f"{starter} binds by {'list' if site.scheduler == 'PBS' else 'mask'}"
    if torchrun:
        how = f"each rank binds itself, as torchrun starts it and {starter} cannot"
    why = f"the job has its nodes for itself, so each rank gets the cores beside its GPU; {how}"
    return bind_ranks(site.binding, shape.gpus, sparing=_spares(framework)), why


def _mpi(stack: Stack, site: Site) -> JobOption | None:
    found = mpi_type(stack, site)
    return JobOption(found.value, f"{found.because} ({found.source})") if found else None


def _of_python(python: Python | None, venv: Venv | None) -> Iterator[JobSetting]:
    if venv is not None:
        path = ":".join([BIN, *([python.folder] if python and python.folder else []), "$PATH"])
        why = f"python, and scripts of Python, are those of {venv.path.name}: they see its packages and the image's"
        yield JobSetting("PATH", path, why, "LUMI-AI-Guide chapter 2", SettingScope.NODE)
    elif python is not None and python.folder is not None:
        why = f"torch is in the Python of {python.folder}, which is not on the image's own search path"
        yield JobSetting("PATH", f"{python.folder}:$PATH", why, "", SettingScope.NODE)


def _settings(
    stack: Stack, site: Site, shape: Shape, framework: Framework, cores: int | None, manifest: BindManifest | None
) -> Iterator[JobSetting]:
    """Yield the variables of a job, in the order in which they are set."""
    for item in manifest.variables if manifest else ():
        yield JobSetting(item.name, item.value, item.reason, "lumiimg bind", SettingScope.NODE, literal=True)
    for variable in site_variables(stack, site):
        if variable.nodes.fit(shape.nodes) and (framework.task_a_gpu or not variable.ranks):
            value = variable.value.replace("SLURM_LOCALID", "LOCAL_RANK").replace("SLURM_PROCID", "RANK")
            yield JobSetting(
                variable.name, value, variable.because, variable.source, _scope(variable.name, value), variable.folder
            )
    for entry in framework.variable:
        if entry.nodes.fit(shape.nodes) and entry.scheduler in (None, site.scheduler):
            yield JobSetting(entry.name, entry.value, entry.because, entry.source, SettingScope.NODE)
    if "python" in stack.offers or "python3" in stack.offers:
        why = "packages in ~/.local do not belong to the image: they are hidden"
        yield JobSetting("PYTHONNOUSERSITE", "1", why, "Python docs, site", SettingScope.NODE)
    if framework.task_a_gpu and cores:
        why = "threads of a rank: the cores of its GPU (torchrun sets 1; a rank that is not bound counts them all)"
        yield JobSetting("OMP_NUM_THREADS", f"{cores}", why, "", SettingScope.NODE)
    if site.vendor == "Intel":
        why = "only at this level oneCCL says which network it uses; it has no file of its own for that"
        yield JobSetting("CCL_LOG_LEVEL", "info", why, "oneCCL docs, environment variables", SettingScope.NODE)
        return
    docs = "NCCL docs, environment variables"
    library = "RCCL" if site.vendor is None else "NCCL"
    yield JobSetting(
        "NCCL_DEBUG", "INFO", f"only at this level {library} says which network it uses", docs, SettingScope.NODE
    )
    yield JobSetting("NCCL_DEBUG_SUBSYS", "INIT,NET,ENV", "of that, what `lumiimg log` reads", docs, SettingScope.NODE)
    logs = "$LUMIIMG_JOB/nccl/%h.%p.log"
    yield JobSetting("NCCL_DEBUG_FILE", logs, "a file for each rank, by node and process", docs, SettingScope.NODE)


def _kept(folder: str | None, site: Site, framework: Framework) -> Iterator[JobSetting]:
    """Yield where models, and kernels that vLLM compiles, are kept from job to job: homes are small."""
    where, because = folder or site.scratch, "on scratch, because homes have no room for models or compiled kernels"
    if where is None or (folder is None and framework.name == "plain"):
        return
    for entry in facts().cache:
        if entry.framework in (None, framework.name):
            text = f"{where}/{entry.folder}"
            yield JobSetting(entry.name, text, because, entry.source, SettingScope.NODE, literal=folder is not None)


def _scope(name: str, value: str) -> SettingScope:
    if read_by_srun(name):
        return SettingScope.JOB
    return SettingScope.RANK if _OF_RANK.search(value) else SettingScope.NODE


def _notes(
    stack: Stack, site: Site, shape: Shape, framework: Framework, manifest: BindManifest | None
) -> Iterator[str]:
    """Yield what the script cannot see to."""
    if not site.partitions:
        yield f"the partitions of {site.name} and their limits are not known: the shape was not judged"
    if framework.name not in ("plain", "ray", "vllm") and "torch" not in stack.offers:
        yield f"no torch was found in the image, and {framework.name} needs it"
    if shape.whole_nodes and shape.node_gpus and shape.gpus < shape.node_gpus:
        idle = count(shape.node_gpus - shape.gpus, "GPU")
        yield f"whole nodes are allocated and billed, and {idle} of each stay idle"
    elif not shape.whole_nodes and shape.gpus == shape.node_gpus:
        yield "all GPUs of a node, of a partition that shares its nodes: with --exclusive ranks could be bound"
    if stack.version("mpi-abi") == OPEN_MPI and site.scheduler == "Slurm" and (site.mpi is None or not site.mpi.open):
        yield f"Open MPI of the image cannot be started by srun of {site.name}, as far as is known: no --mpi is set"
    if site.vendor is not None and "rocm" in stack.offers:
        yield f"the image has ROCm, and the GPUs of {site.name} are {site.vendor}'s: its programs find none"
    for rule in driver_window(stack, site) if site.vendor is None else ():
        if rule.outcome is not RuleOutcome.OK:
            yield f"{rule.have}, and the driver of {site.name} serves {rule.need}: {rule.because} ({rule.source})"
    if shape.nodes == 1 or site.vendor is not None:
        return
    if "net-plugin" not in stack.offers:
        yield "no net plugin was found in the image: RCCL goes over TCP between nodes (`lumiimg adapt` adds one)"
    if manifest is None and site.fabric is not None:
        if {"libfabric", "libcxi"} <= stack.offers.keys():
            yield "libfabric and libcxi are the image's own: nothing of the host's fabric is bound"
        else:
            yield (
                "libfabric or libcxi is not in the image, and none is bound: RCCL goes over TCP between nodes. "
                "On a node of the site: `lumiimg host scan -o host.json`; then --host host.json"
            )


def _harmful(variables: Mapping[str, str], site: Site) -> Iterator[str]:
    if re.search(r",\s", interfaces := variables.get("NCCL_SOCKET_IFNAME", "")):
        what = "a blank behind a comma is taken for a part of the name (NCCL src/misc/utils.cc parseStringList)"
        yield f"the image sets NCCL_SOCKET_IFNAME={interfaces}: {what}"
    for tried in site.measured:
        value = variables.get(tried.name)
        if tried.effect == "harmful" and value is not None and tried.value in {None, value}:
            yield f"the image sets {tried.name}={value}: {tried.because} ({tried.source}, {tried.date})"


def loading(fit: HostFit) -> BindManifest | None:
    """Return what is bound for an image; None where it has nothing that could be bound for.

    Raises FailedError where nothing that could be bound loads.
    """
    manifest = fit.manifest
    if manifest is not None and manifest.fabric is Fabric.NONE:
        why = f": {manifest.refusals[-1]}" if manifest.refusals else ""
        raise FailedError(
            f"no libfabric with the cxi provider loads in it{why}",
            where=fit.image,
            hint="`lumiimg explain IMAGE --host FILE` lists all that was tried; without --host, a job stays on TCP",
        )
    return manifest
