"""The plan of a job for any scheduler: ranks, cores, variables and the program, each with its reason.

`script.py` writes it out, including the parts that run in the container.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lumiimg.cluster.binds import JobVariable, caches_of
from lumiimg.cluster.job.command import (
    ServingPlace,
    clients_of,
    framework_of,
    lacks_ray,
    launcher_of,
    serving_of,
    with_parallel_options,
)
from lumiimg.cluster.job.facts import Framework, Scheduler, facts, framework_named, scheduler_of
from lumiimg.cluster.job.shape import JobRequest, RankBinding, RankCores, Shape, shape_of
from lumiimg.core.errors import BadInputError
from lumiimg.core.files import free_name
from lumiimg.core.findings import Severity
from lumiimg.core.text import count
from lumiimg.fabric.rccl import PLUGIN_VARIABLE
from lumiimg.resolve.driver_rule import driver_window
from lumiimg.resolve.rules import RuleOutcome
from lumiimg.resolve.stack import OPEN_MPI, mpi_type, site_variables
from lumiimg.resolve.venv import BIN

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from lumiimg.catalog.launch import SiteVariable
    from lumiimg.catalog.sites import Site
    from lumiimg.cluster.job.image import JobImage
    from lumiimg.core.findings import Finding, Remedy

RAY = "/tmp/$USER-ray-$SLURM_JOB_ID"  # noqa: S108 - one per job and node
"""Ray's session folder."""
_CONTAINER_ENGINE = "CSCS Container Engine"
"""An engine whose containers srun starts from an EDF file: lumiimg writes no job script for it."""
_TORCHLESS = ("plain", "ray", "vllm")


@dataclass(frozen=True, slots=True)
class JobPlan:
    """The plan of one job."""

    request: JobRequest
    image: JobImage
    shape: Shape
    """The resources requested from the scheduler."""
    framework: Framework
    chosen: str
    """Why this framework was chosen."""
    command: tuple[str, ...]
    """The command of the job, word by word."""
    binding: RankBinding
    """The cores to which ranks are bound."""
    mpi: SiteVariable | None
    """How the launcher connects to MPI; null if no `--mpi` is set."""
    notes: tuple[str, ...]
    """Notes for the person who submits it."""
    connects_itself: bool
    """Whether vLLM connects the nodes without Ray."""
    serving: ServingPlace | None
    """How access to a vLLM server is restricted to its user; None if there is none, or the command sets it."""

    @property
    def site(self) -> Site:
        """The site where the job runs."""
        return self.image.site

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler that runs the job."""
        return scheduler_of(self.site.scheduler)

    @property
    def launch(self) -> str:
        """The launcher of the ranks: `srun`, `torchrun`, `ray`, `mpiexec`."""
        if self.request.torchrun:
            return "torchrun"
        is_ray = self.framework.wants_ray(self.shape.nodes) and not self.connects_itself
        return "ray" if is_ray else self.scheduler.starter

    @property
    def ranks(self) -> int:
        """Number of ranks on each node, whichever program starts them."""
        return self.shape.gpus if self.framework.task_a_gpu else 1

    @property
    def tasks(self) -> int:
        """Number of tasks that the scheduler starts on each node."""
        return 1 if self.request.torchrun else self.ranks

    @property
    def cores(self) -> int | None:
        """Number of cores per GPU; None if not known."""
        return _cores_of_a_gpu(self.site, self.framework)

    @property
    def variables(self) -> tuple[JobVariable, ...]:
        """The variables, in the order in which they are set."""
        return tuple(_variables(self))

    @property
    def private(self) -> str | None:
        """The job's folder on a node, accessible only to its user: for caches, and for the socket of a server."""
        by_number = f"/tmp/$USER-{'$PBS_JOBID' if self.scheduler.name == 'PBS' else '$SLURM_JOB_ID'}"  # noqa: S108
        return caches_of(self.site, self.variables) or (by_number if self.serving is ServingPlace.SOCKET else None)

    @property
    def obstacles(self) -> tuple[Finding, ...]:
        """Problems that keep RCCL from using the bound files on several nodes."""
        fit = self.image.fit if self.shape.nodes > 1 else None
        return tuple(finding for finding in fit.against if finding.severity is Severity.PROBLEM) if fit else ()

    @property
    def clients(self) -> tuple[Remedy, ...]:
        """The commands with which a client reaches the job's server, in terms of the script's variables."""
        if self.serving is None:
            return ()
        site, is_slurm = self.site.name, self.scheduler.name == "Slurm"
        return clients_of(self.serving, self.command, self.private, self.shape, site=site, is_slurm=is_slurm)

    @property
    def has_epilog(self) -> bool:
        """Whether a task epilog removes the job's files from the node; this needs the task to be the only one there."""
        return self.tasks == 1 and self.scheduler.name == "Slurm"

    @property
    def temporary_folders(self) -> tuple[str, ...]:
        """Folders of this job on each node, in shell syntax."""
        return tuple(filter(None, (self.private, RAY if self.launch == "ray" else None)))


def plan_job(request: JobRequest, image: JobImage) -> JobPlan:
    """Return the job plan of an image.

    Raises FailedError for a shape that the site does not offer, BadInputError for a request that cannot be started.
    """
    _check_words(request)
    site, stack = image.site, image.stack
    shape = shape_of(request, site)
    if request.framework:
        framework, chosen = framework_named(request.framework), "as you asked"
    else:
        framework, chosen = framework_of(request.command, has_torch="torch" in stack.offers)
    _check_site(request, site, framework, shape)
    alone = framework.name == "vllm" and shape.nodes > 1 and lacks_ray(stack)
    command, serving, of_vllm = request.command, None, None
    if framework.name == "vllm":
        command, of_vllm = with_parallel_options(request.command, shape, by_ray=not alone)
        serving = serving_of(command, stack)
    return JobPlan(
        request=request,
        image=image,
        shape=shape,
        framework=framework,
        chosen=chosen,
        command=command,
        binding=_binding(request, shape, site, framework),
        mpi=mpi_type(stack, site),
        notes=(*filter(None, (serving and serving.note, of_vllm)), *image.notes, *_notes(image, shape, framework)),
        connects_itself=alone,
        serving=serving,
    )


def _check_words(request: JobRequest) -> None:
    if not request.command:
        raise BadInputError("no command", hint="put it after the options: -- python train.py")
    launcher = launcher_of(request.command)
    if launcher is not None:
        hint = "--launch torchrun -- python SCRIPT" if "torch" in launcher else "name only the program"
        raise BadInputError(f"{launcher} starts ranks, and so does the job", hint=hint)


def _check_site(request: JobRequest, site: Site, framework: Framework, shape: Shape) -> None:
    scheduler = scheduler_of(site.scheduler)
    if request.torchrun and not framework.torchrun:
        able = ", ".join(sorted(entry.name for entry in facts().framework if entry.torchrun))
        raise BadInputError(f"torchrun does not start {framework.name}", hint=f"it starts {able}")
    if site.engine == _CONTAINER_ENGINE:
        raise BadInputError(
            f"{site.name} starts containers with the {_CONTAINER_ENGINE}, for which no job scripts are written",
            hint=f"`lumiimg show {site.name}` lists its hooks and variables for an EDF file of your own",
        )
    if scheduler.name == "PBS" and framework.wants_ray(shape.nodes):
        hint = "on one node it needs none: --nodes 1" if framework.ray == "several" else None
        raise BadInputError(f"{framework.name} needs a Ray cluster, which lumiimg does not start under PBS", hint=hint)
    wanting = [variable.name for variable in site.variables if variable.ranks]
    if request.torchrun and wanting:
        raise BadInputError(
            f"torchrun's ranks are its own, and {wanting[0]} on {site.name} is for those of {scheduler.starter}",
            hint=f"without --launch torchrun: {scheduler.starter} starts one rank per GPU",
        )


def _cores_of_a_gpu(site: Site, framework: Framework) -> int | None:
    """Return the number of cores per GPU, the smallest number near any GPU of a node; None: not known."""
    of = site.binding
    return min(len(of.cores_near(gpu, sparing=framework.has_helpers)) for gpu in range(len(of.near))) if of else None


def _binding(request: JobRequest, shape: Shape, site: Site, framework: Framework) -> RankBinding:
    """Return the cores to which the ranks of a node are bound, each near the GPU with the rank's number.

    Ranks are bound only on whole nodes with all their GPUs: otherwise the job's GPU 0 may be any GPU of the node.
    """
    if site.binding is None:
        return RankBinding(f"the cores near each GPU of {site.name} are not known: nothing is bound")
    if not framework.task_a_gpu:
        return RankBinding(f"nothing is bound: {re.split('[:;]', framework.because)[0]}")
    if not shape.whole_nodes:
        return RankBinding(
            f"{shape.partition or site.name} shares its nodes: which cores and GPUs this job gets is known only once "
            "it runs, and a fixed mask might name cores of other jobs. Nothing is bound by mask; "
            f"{count(_cores_of_a_gpu(site, framework) or 0, 'core')} come with each GPU"
        )
    starter = scheduler_of(site.scheduler).starter
    how = f"{starter} binds by {'list' if starter == 'mpiexec' else 'mask'}"
    if request.torchrun:
        how = f"each rank binds itself, as torchrun starts it and {starter} cannot bind it"
    why = f"the job has its nodes to itself, so each rank gets the cores next to its GPU; {how}"
    near = [site.binding.cores_near(gpu, sparing=framework.has_helpers) for gpu in range(shape.gpus)]
    digits = -(-site.binding.cores // 4)
    masks = [f"0x{sum(1 << core for core in cores):0{digits}x}" for cores in near]
    return RankBinding(why, tuple(map(RankCores, range(shape.gpus), near, masks)))


# -- variables --


def _variables(plan: JobPlan) -> Iterator[JobVariable]:
    """Yield the variables of a job, in the order in which they are set."""
    image, site, nodes, framework = plan.image, plan.site, plan.shape.nodes, plan.framework
    yield from _python_variables(plan.request, image)
    for item in image.manifest.variables if image.manifest else ():
        yield JobVariable(item.name, item.value, item.reason, "lumiimg bind", literal=True)
    for wanted in site_variables(image.stack, site):
        if wanted.nodes.fit(nodes) and (framework.task_a_gpu or not wanted.ranks):
            value = wanted.value.replace("SLURM_LOCALID", "LOCAL_RANK").replace("SLURM_PROCID", "RANK")
            yield replace(JobVariable.from_site(wanted), value=value)
    for entry in framework.variable:
        is_for_other = plan.connects_itself and entry.name.startswith("RAY_")
        if entry.nodes.fit(nodes) and entry.scheduler in (None, site.scheduler) and not is_for_other:
            yield JobVariable.from_site(entry)
    if {"python", "python3"} & image.stack.offers.keys():
        why = "packages in ~/.local do not belong to the image: they are hidden"
        yield JobVariable("PYTHONNOUSERSITE", "1", why, "Python docs, site")
    if framework.task_a_gpu and plan.cores:
        why = "threads per rank: the cores of its GPU (torchrun sets 1; an unbound rank would count all cores)"
        yield JobVariable("OMP_NUM_THREADS", f"{plan.cores}", why)
    yield from _log_variables(site)
    yield from _cache_variables(plan)


def _python_variables(request: JobRequest, image: JobImage) -> Iterator[JobVariable]:
    folder = image.python.folder if image.python else None
    if request.venv is not None:
        path = ":".join([BIN, *([folder] if folder else []), "$PATH"])
        name = request.venv.path.name
        why = f"python and Python scripts come from {name} and see its packages and the image's"
        yield JobVariable("PATH", path, why, "LUMI-AI-Guide chapter 2")
    elif folder is not None:
        why = f"torch is in the Python of {folder}, which is not on the image's own search path"
        yield JobVariable("PATH", f"{folder}:$PATH", why)


def _log_variables(site: Site) -> Iterator[JobVariable]:
    if site.vendor == "Intel":
        why = "only at this level does oneCCL report which network it uses; it has no separate log file for that"
        yield JobVariable("CCL_LOG_LEVEL", "info", why, "oneCCL docs, environment variables")
        return
    docs, library = "NCCL docs, environment variables", "RCCL" if site.vendor is None else "NCCL"
    yield JobVariable("NCCL_DEBUG", "INFO", f"only at this level does {library} report which network it uses", docs)
    yield JobVariable("NCCL_DEBUG_SUBSYS", "INIT,NET,ENV", "only the messages that `lumiimg log` reads", docs)
    logs = "$LUMIIMG_JOB/nccl/%h.%p.log"
    yield JobVariable("NCCL_DEBUG_FILE", logs, "one file per rank, named by node and process", docs)


def _cache_variables(plan: JobPlan) -> Iterator[JobVariable]:
    """Yield variables for the folders of models and vLLM's compiled kernels, which outlive the job: homes are small."""
    folder, name = plan.request.caches, plan.framework.name
    where, why = folder or plan.site.scratch, "on scratch, because homes have no space for models or compiled kernels"
    if where is None or (folder is None and name == "plain"):
        return
    for entry in facts().cache:
        if entry.framework in (None, name):
            yield JobVariable(entry.name, f"{where}/{entry.folder}", why, entry.source, literal=folder is not None)


# -- what the script cannot take care of --


def _notes(image: JobImage, shape: Shape, framework: Framework) -> Iterator[str]:
    stack, site = image.stack, image.site
    yield from _harmful(image.variables, site, {one.name for one in site_variables(stack, site)})
    if not site.partitions:
        yield f"the partitions of {site.name} and their limits are not known: the job's shape was not checked"
    if framework.name not in _TORCHLESS and "torch" not in stack.offers:
        yield f"no torch was found in the image, and {framework.name} needs it"
    if shape.whole_nodes and shape.node_gpus and shape.gpus < shape.node_gpus:
        idle = count(shape.node_gpus - shape.gpus, "GPU")
        yield f"whole nodes are allocated and billed, and {idle} of each stay idle"
    elif not shape.whole_nodes and shape.gpus == shape.node_gpus:
        yield "the job uses all GPUs of a node, but the partition shares nodes: with --exclusive, ranks could be bound"
    if stack.version("mpi-abi") == OPEN_MPI and site.scheduler == "Slurm" and (site.mpi is None or not site.mpi.open):
        yield f"by what is known, srun of {site.name} cannot start the image's Open MPI: no --mpi is set"
    if site.vendor is not None:
        if "rocm" in stack.offers:
            yield f"the image has ROCm, but the GPUs of {site.name} are from {site.vendor}: its programs find no GPU"
        return
    for rule in driver_window(stack, site):
        if rule.outcome is not RuleOutcome.OK:
            yield f"{rule.have}, and the driver of {site.name} serves {rule.need}: {rule.because} ({rule.source})"
    if shape.nodes == 1:
        return
    if "net-plugin" not in stack.offers:
        named = image.variables.get(PLUGIN_VARIABLE)
        why = "no net plugin was found in the image"
        if named is not None:
            why = f"the image sets {PLUGIN_VARIABLE}={named}, by which RCCL finds no net plugin"
        yield f"{why}: RCCL goes over TCP between nodes (`lumiimg check` says what to do)"
    if image.manifest is None and site.fabric is not None and not {"libfabric", "libcxi"} <= stack.offers.keys():
        node = free_name("host.json")
        yield (
            "libfabric or libcxi is not in the image, and none is bound: RCCL goes over TCP between nodes. "
            f"On a node of the site: `lumiimg host scan -o {node}`; then --host {node}"
        )


def _harmful(variables: Mapping[str, str], site: Site, wanted: Collection[str]) -> Iterator[str]:
    if re.search(r",\s", interfaces := variables.get("NCCL_SOCKET_IFNAME", "")):
        what = "a space after a comma becomes part of the name (NCCL src/misc/utils.cc parseStringList)"
        yield f"the image sets NCCL_SOCKET_IFNAME={interfaces}: {what}"
    for tried in site.measured:
        value = variables.get(tried.name)
        if tried.effect == "harmful" and value is not None and tried.value in {None, value}:
            yield f"the image sets {tried.name}={value}: {tried.because} ({tried.source}, {tried.date})"
    for one in site.variables:
        if one.unless and not one.given and one.name in variables and one.name not in wanted:
            what = f"which is not for an image with {' or '.join(map(str, one.unless))}: {one.because} ({one.source})"
            yield f"the image sets {one.name}={variables[one.name]}, {what}"
