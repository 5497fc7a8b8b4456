"""What lumiimg says of a site and of images, one claim a line, before anything is run."""

from __future__ import annotations

import datetime as dt
from contextlib import suppress
from typing import TYPE_CHECKING

from lumiimg.catalog.drivers import modules_of
from lumiimg.catalog.launch import SiteBinding
from lumiimg.cluster.trial.look import site_paths
from lumiimg.cluster.trial.values import Claim
from lumiimg.core.findings import Answer, Code, Severity
from lumiimg.core.text import count
from lumiimg.gpu import GpuCodeError, GpuFit, node_gpu
from lumiimg.joblog.report import Verdict
from lumiimg.resolve.job_variables import same_in_all_ranks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lumiimg.catalog.launch import MeasuredVariable, SiteBinding, SiteVariable
    from lumiimg.catalog.sites import Site
    from lumiimg.check.pipeline import CheckReport
    from lumiimg.image import RootFileSystem
    from lumiimg.resolve.stack import Stack

NODES, HERE = "nodes", "here"
"""Names of steps: a look at each node, and at Slurm from where the trial is started."""
THERE, RUNS, NO_CHANGE, ALIKE = "there", "runs", "no change", "all the same"
AS_FILES, BUILDS, FAILS = "as the files predict", "builds", "fails"
_INTERFACES = "NCCL_SOCKET_IFNAME"
VNI = "SLURM_NETWORK"
_TEST, _RCCL = "all_reduce_perf", "RCCL"


def of_site(site: Site) -> Iterator[Claim]:
    """Yield what the file of a site says of its nodes, and of its Slurm."""
    for key, about, predicted, step, source, date in _facts_of(site):
        if predicted is not None:
            yield Claim(
                id=f"site.{key}",
                about=about,
                predicted=predicted,
                also=modules_of(predicted)[1:] if key == "driver" else (),
                source=source or site.source,
                date=f"{date or site.date}",
                step=step,
            )


_Fact = tuple[str, str, str | None, str, str | None, dt.date | None]
"""Key, for a person, value, step; source and date where they are not the site's."""


def _facts_of(site: Site) -> Iterator[_Fact]:
    yield "processors", "processors of the nodes", site.processors, NODES, None, None
    yield "gpu", "GPU", site.arch, NODES, None, None
    yield "engine", "container engine", site.engine, NODES, None, None
    if (driver := site.driver) is not None:
        for key, about, value in (("driver", "amdgpu driver", driver.version), ("kernel", "kernel", driver.kernel)):
            yield key, about, value, NODES, driver.source, driver.date
    if (fabric := site.fabric) is not None:
        needs = "glibc that the nodes' libfabric and libcxi need"
        yield "libfabric", "libfabric of the nodes", fabric.libfabric, NODES, fabric.source, fabric.date
        yield "glibc", needs, fabric.glibc, NODES, fabric.source, fabric.date
    yield from _hardware(site)
    for path in site_paths(site):
        yield f"path:{path}", f"{path} on the nodes", THERE, NODES, None, None
    if (identity := site.identity) is not None and identity.variables:
        about = f"{' or '.join(identity.variables)} in jobs"
        yield "identity", about, THERE, NODES, identity.source, None
    if site.scheduler == "Slurm":
        yield from _of_slurm(site)


def _hardware(site: Site) -> Iterator[_Fact]:
    names = next((v for v in site.variables if v.name == _INTERFACES and "$" not in v.value), None)
    if names is not None:
        yield "interfaces", "interfaces of Slingshot", names.value, NODES, names.source, None
    if (binding := site.binding) is not None:
        yield "gpus", "GPUs of a node", f"{len(binding.near)}", NODES, binding.source, None
        yield "cores", "cores of a node, without SMT", f"{binding.cores}", NODES, binding.source, None
        yield "near", "GPU:first core beside it", _first_cores(binding), NODES, binding.source, None


def _first_cores(binding: SiteBinding) -> str:
    return " ".join(f"{gpu}:{group * binding.group}" for gpu, group in enumerate(binding.near))


def _of_slurm(site: Site) -> Iterator[_Fact]:
    for one in site.partitions:
        about = f"longest job of partition {one.name}, hours"
        yield f"partition:{one.name}", about, f"{one.hours:g}", HERE, one.source, None
    if (mpi := site.mpi) is not None:
        for kind in dict.fromkeys(filter(None, (mpi.own, mpi.open, mpi.host))):
            yield f"mpi:{kind}", f"srun --mpi={kind}", THERE, HERE, mpi.source, None


def of_image(
    number: int, report: CheckReport, root: RootFileSystem, stack: Stack, site: Site, nodes: int
) -> Iterator[Claim]:
    """Yield what the files of an image say of jobs on this number of nodes.

    `report`: of its files, for the site; `stack`: what it offers.
    """
    name, path = f"image-{number}", report.path
    source = "the files of the image, by the rules of `lumiimg check`"

    def claim(
        key: str,
        about: str,
        predicted: str | None,
        step: str,
        *,
        by: str = source,
        date: dt.date | None = None,
        least: float | None = None,
        ranks: int | None = None,
        also: tuple[str, ...] = (),
    ) -> Claim:
        return Claim(
            id=f"{name}.{key}",
            about=f"image {number}: {about}",
            predicted=predicted,
            source=by,
            step=f"{name}.{step}",
            date=f"{date or ''}",
            least=least,
            ranks=ranks,
            also=also,
        )

    answer = None if report.answer is Answer.UNDECIDED else report.answer.value
    yield claim("answer", "answer of the probes on the nodes", answer, "probe")
    for key, about, value in (
        ("rccl", "RCCL that a process loads", path.rccl),
        ("rccl-version", "version that RCCL says", path.rccl_version),
        ("plugin", "net plugin that it loads", path.plugin),
        ("libfabric", "libfabric that the plugin gets", path.libfabric),
        ("libcxi", "libcxi in that process", path.libcxi),
    ):
        also = (root.resolve_where_possible(value),) if value is not None and value.startswith("/") else ()
        yield claim(key, about, value, "probe", also=also)
    yield claim("maps", "libraries in the process that a job starts", AS_FILES, "probe")
    yield claim("alike", "what is loaded on the nodes", ALIKE, "probe", by="nodes of one site are taken to be alike")
    network = {Answer.NO_OBSTACLE: Verdict.OFI_CXI, Answer.NO: Verdict.SOCKET}.get(report.answer)
    yield claim("network", f"network between {nodes} nodes", network.value if network else None, "run")
    for key, on, at in (("bandwidth", nodes, "run"), ("alone", 1, "alone")):
        reference = next((b for b in site.bandwidths if (b.test, b.nodes) == (_TEST, on)), None)
        about = f"all-reduce on {count(on, 'node')}"
        if reference is not None and (on == 1 or network is Verdict.OFI_CXI):
            least, ranks = reference.least_gb_s, reference.ranks
            text = f"{least:g} GB/s or more"
            yield claim(key, about, text, at, by=reference.source, date=site.date, least=least, ranks=ranks)
        else:
            yield claim(key, about, None, at)
    if report.gpu is not None:
        # of RCCL alone: an all-reduce says nothing of torch's kernels, or MIOpen's
        rccl = next((part for part in report.gpu.parts if part.component == _RCCL), None)
        runs = rccl is not None and rccl.fit is GpuFit.RUNS
        told = "fails" if rccl is not None and rccl.stands_against else RUNS if runs else None
        yield claim("gpu-code", f"GPU code of its RCCL on {report.gpu.processor}", told, "run")
    driver = next((f for f in report.findings if f.id is Code.IMAGE_DRIVER), None)
    if driver is not None:
        told = {Severity.PROBLEM: "fails", Severity.INFO: RUNS}.get(driver.severity)
        date = site.driver.date if site.driver is not None and driver.source else None
        yield claim("driver", "its ROCm on the nodes' driver", told, "run", by=driver.source or source, date=date)
    if site.arch is not None:
        about = "its GPUs as HSA names them in the container, with their modes"
        with suppress(GpuCodeError):
            target = str(node_gpu(site.arch))
            yield claim("target", about, target, "gpus", by="LLVM AMDGPUUsage, target ID", date=site.date)
    yield claim(
        "socket.network", "network with NCCL_NET=Socket", Verdict.SOCKET.value, "socket", by="RCCL's own option"
    )
    vni = next((v for v in site.variables if v.name == VNI and v.nodes == "one"), None)
    if vni is not None:
        yield claim("one-node", "cxi listens in a step on one node", "no", "one-node", by=vni.source, date=site.date)
        about = f"the same with {VNI}={vni.value}"
        yield claim("one-node-vni", about, "yes", "one-node-vni", by=vni.source, date=site.date)
    for variable in left_out(stack, site):
        tried = measured_of(site, variable.name)
        yield claim(
            f"without:{variable.name}",
            f"all-reduce without {variable.name}",
            NO_CHANGE if tried is not None and tried.effect == "inert" else None,
            f"without.{variable.name}",
            by=tried.source if tried is not None else variable.source,
            date=tried.date if tried is not None else site.date,
        )
    for known in set_beside(stack, site):
        # harm was seen in jobs of frameworks: what an all-reduce alone makes of it, nobody has said
        yield claim(
            f"with:{known.name}={known.value}",
            f"all-reduce with {known.name}={known.value}",
            NO_CHANGE if known.effect == "inert" else None,
            f"with.{known.name}",
            by=known.source,
            date=known.date,
        )


def of_build(predicted: bool | None) -> Claim:
    """Return what `lumiimg doctor` says of a build where the trial is started; None: it cannot tell."""
    told = {True: BUILDS, False: FAILS, None: None}[predicted]
    return Claim(id="here.build", about="a small build", predicted=told, source="`lumiimg doctor`", step="build")


def left_out(stack: Stack, site: Site) -> tuple[SiteVariable, ...]:
    """Return the site's variables that a job on several nodes sets: each is left out once."""
    return tuple(same_in_all_ranks(stack, site, nodes=2))


def set_beside(stack: Stack, site: Site) -> tuple[MeasuredVariable, ...]:
    """Return the variables that the site does not set, as they changed nothing or did harm: each is set once."""
    ours = {variable.name for variable in left_out(stack, site)}
    return tuple(tried for tried in site.measured if tried.value is not None and tried.name not in ours)


def measured_of(site: Site, name: str) -> MeasuredVariable | None:
    """Return what is known of a variable that was tried there."""
    return next((tried for tried in site.measured if tried.name == name), None)
