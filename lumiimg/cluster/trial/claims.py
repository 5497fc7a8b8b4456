"""What lumiimg says of a site and of images, before anything is run: a claim is a row with its prediction, its source,
the step that shows it, and what is read there (`readings.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from lumiimg.catalog.drivers import modules_of
from lumiimg.cluster.trial.model import Claim, Reads
from lumiimg.core.findings import Answer, Severity
from lumiimg.core.text import count
from lumiimg.gpu import GpuCodeError, GpuFit, node_gpu
from lumiimg.joblog import Verdict
from lumiimg.resolve.job_variables import same_in_all_ranks

if TYPE_CHECKING:
    import datetime as dt

    from lumiimg.catalog.launch import MeasuredVariable, SiteVariable
    from lumiimg.catalog.sites import Site
    from lumiimg.check.pipeline import CheckReport
    from lumiimg.image import RootFileSystem
    from lumiimg.resolve.stack import Stack

SLURM, NODES = "slurm", "nodes"
"""Names of steps."""
THERE, RUNS, FAILS, NO_CHANGE = "there", "runs", "fails", "no change"
ALIKE, AS_FILES = "all the same", "as the files predict"
_INTERFACES, _VNI, _TEST = "NCCL_SOCKET_IFNAME", "SLURM_NETWORK", "all_reduce_perf"


class Sourced(Protocol):
    """What says something: a part of a site's file, which may have a date of its own."""

    @property
    def source(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Said:
    """The same, where no part of a site's file says it."""

    source: str
    date: dt.date | None = None


_RULES = Said("the files of the image, by the rules of `lumiimg check`")


def of_site(site: Site) -> Iterator[Claim]:
    """Yield what the file of a site says of its nodes, and of its Slurm."""
    return (claim for claim in _of_nodes(site) if claim.predicted is not None)


def _of_nodes(site: Site) -> Iterator[Claim]:
    def claim(
        what: str,
        about: str,
        predicted: object,
        by: Sourced | None = None,
        reads: Reads = "node",
        name: str = "",
    ) -> Claim:
        return Claim(
            id=f"site.{what}{':' if name else ''}{name}",
            about=about,
            predicted=f"{predicted}" if predicted is not None else None,
            source=(by or site).source,
            date=f"{getattr(by, 'date', None) or site.date}",
            step=SLURM if reads in {"partition", "mpi"} else NODES,
            reads=reads,
            what=name or what,
        )

    yield claim("processors", "processors of the nodes", site.processors)
    yield claim("gpu", "GPU", site.arch)
    yield claim("engine", "container engine", site.engine)
    if (driver := site.driver) is not None:
        also = modules_of(driver.version)[1:] if driver.version is not None else ()
        yield replace(claim("driver", "amdgpu driver", driver.version, driver), also=also)
        yield claim("kernel", "kernel", driver.kernel, driver)
    if (fabric := site.fabric) is not None:
        yield claim("libfabric", "libfabric of the nodes", fabric.libfabric, fabric)
        yield claim("glibc", "glibc that the nodes' libfabric and libcxi need", fabric.glibc, fabric)
    for variable in site.variables:
        if variable.name == _INTERFACES and "$" not in variable.value:
            yield claim("interfaces", "interfaces of Slingshot", variable.value, variable)
    if (binding := site.binding) is not None:
        yield claim("gpus", "GPUs of a node", len(binding.near), binding)
        yield claim("cores", "cores of a node, without SMT", binding.cores, binding)
    for path in site_paths(site):
        yield claim("path", f"{path} on the nodes", THERE, reads="place", name=path)
    if (identity := site.identity) is not None and identity.variables:
        about = f"{' or '.join(identity.variables)} in jobs"
        yield claim("identity", about, THERE, identity, "identity")
    if site.scheduler == "Slurm":
        for one in site.partitions:
            about = f"longest job of partition {one.name}, hours"
            yield claim("partition", about, f"{one.hours:g}", one, "partition", one.name)
        mpi = site.mpi
        for kind in dict.fromkeys(filter(None, (mpi.own, mpi.open, mpi.host))) if mpi is not None else ():
            yield claim("mpi", f"srun --mpi={kind}", THERE, mpi, "mpi", kind)


def site_paths(site: Site) -> tuple[str, ...]:
    """Return the paths that a site's file names, as a shell reads them."""
    return tuple(dict.fromkeys([*(bind.path for bind in site.binds), *([site.scratch] if site.scratch else [])]))


@dataclass(frozen=True, slots=True)
class ImageOnSite:
    """An image of a trial, as its files are read before anything is run."""

    number: int
    report: CheckReport
    """Of its files, for the site."""
    root: RootFileSystem
    stack: Stack
    """What it offers."""
    site: Site
    nodes: int
    """Of the trial."""

    @property
    def vni(self) -> SiteVariable | None:
        """The variable by which a step on one node gets onto the fabric."""
        return next((v for v in self.site.variables if v.name == _VNI and v.nodes == "one"), None)

    @property
    def left_out(self) -> tuple[SiteVariable, ...]:
        """The site's variables that a job on several nodes sets: each is left out once."""
        return tuple(same_in_all_ranks(self.stack, self.site, nodes=2))

    @property
    def set_beside(self) -> tuple[MeasuredVariable, ...]:
        """The variables that the site does not set, as they changed nothing or did harm: each is set once."""
        ours = {variable.name for variable in self.left_out}
        return tuple(tried for tried in self.site.measured if tried.value is not None and tried.name not in ours)


def of_image(image: ImageOnSite) -> Iterator[Claim]:
    """Yield what the files of an image say of jobs on the nodes of a site."""
    report, path, site = image.report, image.report.path, image.site

    def claim(
        key: str,
        about: str,
        predicted: str | None,
        step: str,
        reads: Reads,
        by: Sourced = _RULES,
    ) -> Claim:
        return Claim(
            id=f"image-{image.number}.{key}",
            about=f"image {image.number}: {about}",
            predicted=predicted,
            source=by.source,
            date=f"{getattr(by, 'date', site.date) or ''}",
            step=f"image-{image.number}.{step}",
            reads=reads,
        )

    answer = None if report.answer is Answer.UNDECIDED else report.answer.value
    yield claim("answer", "answer of the probes on the nodes", answer, "probe", "answer")
    for what, about, value in (
        ("rccl", "RCCL that a process loads", path.rccl),
        ("rccl_version", "version that RCCL says", path.rccl_version),
        ("plugin", "net plugin that it loads", path.plugin),
        ("libfabric", "libfabric that the plugin gets", path.libfabric),
        ("libcxi", "libcxi in that process", path.libcxi),
    ):
        also = (image.root.resolve_where_possible(value),) if value is not None and value.startswith("/") else ()
        yield replace(claim(what.replace("_", "-"), about, value, "probe", "path"), what=what, also=also)
    yield claim("maps", "libraries in the process that a job starts", AS_FILES, "probe", "maps")
    assumed = Said("nodes of one site are taken to be alike")
    yield claim("alike", "what is loaded on the nodes", ALIKE, "probe", "alike", assumed)
    network = {Answer.NO_OBSTACLE: Verdict.OFI_CXI, Answer.NO: Verdict.SOCKET}.get(report.answer)
    yield claim("network", f"network between {image.nodes} nodes", network, "run", "network")
    yield claim(
        "socket.network", "network with NCCL_NET=Socket", Verdict.SOCKET, "socket", "network", Said("RCCL's own option")
    )
    for key, on, step in (("bandwidth", image.nodes, "run"), ("alone", 1, "alone")):
        reference = next((b for b in site.bandwidths if (b.test, b.nodes) == (_TEST, on)), None)
        about = f"all-reduce on {count(on, 'node')}"
        if reference is not None and (on == 1 or network is Verdict.OFI_CXI):
            least = reference.least_gb_s
            said = claim(key, about, f"{least:g} GB/s or more", step, "speed", reference)
            yield replace(said, least=least, ranks=reference.ranks)
        else:
            yield claim(key, about, None, step, "speed")
    if report.gpu is not None:
        # of RCCL alone: an all-reduce says nothing of torch's kernels, or MIOpen's
        rccl = next((part for part in report.gpu.parts if part.component == "RCCL"), None)
        runs = RUNS if rccl is not None and rccl.fit is GpuFit.RUNS else None
        fails = rccl is not None and rccl.stands_against
        about = f"GPU code of its RCCL on {report.gpu.processor}"
        yield claim("gpu-code", about, FAILS if fails else runs, "run", "ran")
    if (driver := next((f for f in report.findings if f.id == "image.driver"), None)) is not None:
        runs = {Severity.PROBLEM: FAILS, Severity.INFO: RUNS}.get(driver.severity)
        by = Said(driver.source, site.driver.date if site.driver is not None else None) if driver.source else _RULES
        yield claim("driver", "its ROCm on the nodes' driver", runs, "run", "ran", by)
    if site.arch is not None:
        about, page = "its GPUs as HSA names them in the container, with their modes", "LLVM AMDGPUUsage, target ID"
        with suppress(GpuCodeError):
            yield claim("target", about, str(node_gpu(site.arch)), "gpus", "target", Said(page, site.date))
    if (vni := image.vni) is not None:
        yield claim("one-node", "cxi listens in a step on one node", "no", "one-node", "listens", vni)
        about = f"the same with {vni.name}={vni.value}"
        yield claim("one-node-vni", about, "yes", "one-node-vni", "listens", vni)
    for variable in image.left_out:
        name, known = variable.name, next((one for one in site.measured if one.name == variable.name), None)
        predicted = NO_CHANGE if known is not None and known.effect == "inert" else None
        about, step = f"all-reduce without {name}", f"without.{name}"
        yield claim(f"without:{name}", about, predicted, step, "changed", known or variable)
    for tried in image.set_beside:
        # harm was seen in jobs of frameworks: what an all-reduce alone makes of it, nobody has said
        predicted, setting = NO_CHANGE if tried.effect == "inert" else None, f"{tried.name}={tried.value}"
        about, step = f"all-reduce with {setting}", f"with.{tried.name}"
        yield claim(f"with:{setting}", about, predicted, step, "changed", tried)
