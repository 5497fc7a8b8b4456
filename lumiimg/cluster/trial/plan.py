"""The plan of a trial, made before anything runs: lumiimg's claims about a site and images, and steps that test them.

A claim is a row: its prediction, its source, the step that measures it, and what is read from it (`readings.py`).
"""

from __future__ import annotations

import datetime as dt
import hashlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from lumiimg import __version__
from lumiimg.build.provenance import read_plan
from lumiimg.catalog.catalogue import open_catalogue
from lumiimg.catalog.drivers import modules_of
from lumiimg.catalog.ledger import fingerprint
from lumiimg.check.context import open_for_check
from lumiimg.check.pipeline import check_image
from lumiimg.cluster.trial.model import (
    ALIKE,
    AS_FILES,
    NO_CHANGE,
    RUNS,
    SCHEMA,
    THERE,
    Claim,
    Reads,
    TrialImage,
    TrialPlan,
    TrialStep,
    TriedRow,
    usual_minutes,
)
from lumiimg.cluster.trial.node_facts import site_paths
from lumiimg.core.errors import BadInputError, LumiimgError
from lumiimg.core.findings import Answer, Level, Severity
from lumiimg.core.text import count
from lumiimg.gpu import GpuFit
from lumiimg.joblog import Verdict
from lumiimg.resolve.lock import layer_digest
from lumiimg.resolve.stack import Stack, same_in_all_ranks, stack_of
from lumiimg.resolve.venv import image_fingerprint

if TYPE_CHECKING:
    from pathlib import Path

    from lumiimg.catalog.sites import Site
    from lumiimg.check.pipeline import CheckReport
    from lumiimg.image import RootFileSystem

_MAX_IMAGES = 20
_MIN_NODES = 2
FOLDER = "{folder}"
"""Stands for the folder of the trial in a step's arguments."""
_ORDER = ("probe", "run", "socket", "one-node", "one-node-vni", "alone", "without", "with", "again")
_FAILS = "fails"
_INTERFACES, _VNI, _TEST = "NCCL_SOCKET_IFNAME", "SLURM_NETWORK", "all_reduce_perf"


class Sourced(Protocol):
    """Anything with a source: a part of a site file, which may have its own date."""

    @property
    def source(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Source:
    """A source that is not part of a site file."""

    source: str
    date: dt.date | None = None


_RULES = Source("the files of the image, by the rules of `lumiimg check`")


def plan_trial(
    paths: Sequence[Path],
    site: Site,
    site_name: str,
    environment: Mapping[str, str],
    *,
    nodes: int,
    node_minutes: int | None,
) -> TrialPlan:
    """Return the plan; `site_name` is valid for --site in any folder. `node_minutes`: None for the computed default.

    Raises BadInputError for a file that is not an image, or for less time than the first steps take.
    """
    if len(paths) > _MAX_IMAGES:
        raise BadInputError(f"{len(paths)} images; a trial allows {_MAX_IMAGES}")
    if nodes < _MIN_NODES:
        raise BadInputError("is too few: a network needs at least two nodes", where=f"--nodes {nodes}")
    found, images = [of_site(site, site_name, nodes)], list[TrialImage]()
    for number, path in enumerate(paths, 1):
        rows = Rows(site, site_name, nodes, number, str(path.absolute()))
        with open_for_check(path, environment, site=site) as context:
            stack = stack_of(context.contents)
            report = check_image(context, Level.STATIC)
            _add_probes(rows, report, context.image.root)
            _add_runs(rows, report)
            _add_variables(rows, stack)
        found.append(rows)
        images.append(TrialImage(content=content(path), rows=rows_in(path), rocm=stack.version("rocm")))
    # the most decisive steps come first, for all images, then the single variables
    of_images = sorted(
        (step for rows in found[1:] for step in rows.steps), key=lambda step: _ORDER.index(step.name.split(".")[1])
    )
    steps, least = [*found[0].steps, *of_images], usual_minutes(found[0].steps, nodes)
    if node_minutes is not None and node_minutes < least:
        raise BadInputError(f"is less than the first step takes: {least}", where=f"--node-minutes {node_minutes}")
    return TrialPlan(
        schema=SCHEMA,
        id=secrets.token_hex(4),
        made=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        tool=__version__,
        site=site.name,
        nodes=nodes,
        node_minutes=node_minutes or 2 * usual_minutes(steps, nodes),
        images=tuple(images),
        site_name=site_name,
        paths=tuple(str(path.absolute()) for path in paths),
        steps=tuple(steps),
        claims=tuple(claim for rows in found for claim in rows.claims),
    )


@dataclass(slots=True)
class Rows:
    """Steps about a site or an image, and the claims that they measure."""

    site: Site
    site_name: str
    nodes: int
    """Number of nodes of the trial."""
    image: int = 0
    """Number of the image; 0: rows of the site."""
    path: str = ""
    steps: list[TrialStep] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)

    def check(
        self,
        key: str,
        about: str,
        *words: str,
        level: Level = Level.RUN,
        nodes: int | None = None,
        sets: dict[str, str] | None = None,
        beside_run: bool = False,
    ) -> None:
        """Add a step with `check --nodes`; `beside_run`: it is meaningful only beside the first all-reduce."""
        options = ("--site", self.site_name, "--nodes", str(nodes or self.nodes), "--level", level, *words, "--json")
        self.steps.append(
            TrialStep(
                name=f"image-{self.image}.{key}",
                about=f"image {self.image}: {about}",
                words=("check", self.path, *options),
                image=self.image,
                nodes=self.nodes,
                minutes=3 if level is Level.RUN else 2,
                limit=15,
                sets=sets or {},
                after=f"image-{self.image}.run" if beside_run else None,
            )
        )

    def claim(
        self,
        key: str,
        about: str,
        predicted: object,
        reads: Reads,
        by: Sourced | None = None,
        *,
        also: tuple[str, ...] = (),
        least: float | None = None,
        ranks: int | None = None,
    ) -> None:
        """Add a claim that the last step measures; for a site, only if its file has a value."""
        by = by or (_RULES if self.image else self.site)
        if predicted is None and not self.image:
            return
        self.claims.append(
            Claim(
                id=f"image-{self.image}.{key}" if self.image else f"site.{key}",
                about=f"image {self.image}: {about}" if self.image else about,
                predicted=f"{predicted}" if predicted is not None else None,
                least=least,
                ranks=ranks,
                also=also,
                source=by.source,
                date=f"{getattr(by, 'date', self.site.date) or ''}",
                step=self.steps[-1].name,
                reads=reads,
                what=key.partition(":")[2] or key,
            )
        )


def of_site(site: Site, site_name: str, nodes: int) -> Rows:
    """Return steps and claims from a site file, about its Slurm and its nodes."""
    rows = Rows(site, site_name, nodes)
    about = "what Slurm says of its partitions"
    rows.steps.append(TrialStep(name="slurm", kind="slurm", about=about, nodes=1, minutes=1, limit=2))
    if site.scheduler == "Slurm":
        for one in site.partitions:
            about = f"longest job of partition {one.name}, hours"
            rows.claim(f"partition:{one.name}", about, f"{one.hours:g}", "partition", one)
        mpi = site.mpi
        for kind in dict.fromkeys(filter(None, (mpi.own, mpi.open, mpi.host))) if mpi is not None else ():
            rows.claim(f"mpi:{kind}", f"srun --mpi={kind}", THERE, "mpi", mpi)
    words, about = ("node", f"{FOLDER}/nodes", "--look", site_name), "what each node shows of itself"
    rows.steps.append(TrialStep(name="nodes", kind="nodes", about=about, words=words, nodes=nodes, minutes=1, limit=5))
    rows.claim("processors", "CPU architecture of the nodes", site.processors, "node")
    rows.claim("gpu", "GPU", site.arch, "node")
    rows.claim("engine", "container engine", site.engine, "node")
    if (driver := site.driver) is not None:
        also = modules_of(driver.version)[1:] if driver.version is not None else ()
        rows.claim("driver", "amdgpu driver", driver.version, "node", driver, also=also)
        rows.claim("kernel", "kernel", driver.kernel, "node", driver)
    if (fabric := site.fabric) is not None:
        rows.claim("libfabric", "libfabric of the nodes", fabric.libfabric, "node", fabric)
        rows.claim("glibc", "glibc that the nodes' libfabric and libcxi need", fabric.glibc, "node", fabric)
    for variable in site.variables:
        if variable.name == _INTERFACES and "$" not in variable.value:
            rows.claim("interfaces", "interfaces of Slingshot", variable.value, "node", variable)
    if (binding := site.binding) is not None:
        rows.claim("gpus", "GPUs of a node", len(binding.near), "node", binding)
        rows.claim("cores", "cores of a node, without SMT", binding.cores, "node", binding)
    for path in site_paths(site):
        rows.claim(f"path:{path}", f"{path} on the nodes", THERE, "node")
    if (identity := site.identity) is not None and identity.variables:
        rows.claim("identity", f"{' or '.join(identity.variables)} in jobs", THERE, "node", identity)
    return rows


def _add_probes(rows: Rows, report: CheckReport, root: RootFileSystem) -> None:
    """Add claims about the loader, RCCL and plugin of an image."""
    path = report.path
    rows.check("probe", "what its loader, its RCCL and its plugin do on the nodes", level=Level.PROBE)
    answer = None if report.answer is Answer.UNDECIDED else report.answer
    rows.claim("answer", "answer of the probes on the nodes", answer, "answer")
    for key, about, value in (
        ("rccl", "RCCL that a process loads", path.rccl),
        ("rccl-version", "version that RCCL reports", path.rccl_version),
        ("plugin", "net plugin that it loads", path.plugin),
        ("libfabric", "libfabric that the plugin gets", path.libfabric),
        ("libcxi", "libcxi in that process", path.libcxi),
    ):
        also = (root.resolve_where_possible(value),) if value is not None and value.startswith("/") else ()
        rows.claim(key, about, value, "path", also=also)
    rows.claim("maps", "libraries in the process that a job starts", AS_FILES, "maps")
    assumed = Source("nodes of one site are assumed to be alike")
    rows.claim("alike", "what is loaded on the nodes", ALIKE, "alike", assumed)


def _add_runs(rows: Rows, report: CheckReport) -> None:
    """Add all-reduces on all nodes, as jobs run them and over TCP, and on one node."""
    site, nodes = rows.site, rows.nodes
    network = {Answer.NO_OBSTACLE: Verdict.OFI_CXI, Answer.NO: Verdict.SOCKET}.get(report.answer)
    rows.check("run", f"an all-reduce on {nodes} nodes, as jobs there run it")
    rows.claim("network", f"network between {nodes} nodes", network, "network")
    _add_speed(rows, "bandwidth", nodes, is_predicted=network is Verdict.OFI_CXI)
    if report.gpu is not None:
        # RCCL only: an all-reduce says nothing about kernels of torch or MIOpen
        rccl = next((part for part in report.gpu.parts if part.component == "RCCL"), None)
        runs = RUNS if rccl is not None and rccl.fit is GpuFit.RUNS else None
        fails = rccl is not None and rccl.blocks_jobs
        rows.claim("gpu-code", f"GPU code of its RCCL on {report.gpu.processor}", _FAILS if fails else runs, "ran")
    if (driver := next((f for f in report.findings if f.id == "image.driver"), None)) is not None:
        runs = {Severity.PROBLEM: _FAILS, Severity.INFO: RUNS}.get(driver.severity)
        by = Source(driver.source, site.driver.date if site.driver is not None else None) if driver.source else _RULES
        rows.claim("driver", "its ROCm on the nodes' driver", runs, "ran", by)
    rows.check("socket", "the same over TCP", sets={"NCCL_NET": "Socket"}, beside_run=True)
    rows.claim("socket.network", "network with NCCL_NET=Socket", Verdict.SOCKET, "network", Source("RCCL's own option"))
    # the variable that gives a step on one node access to the fabric
    vni = next((one for one in site.variables if one.name == _VNI and one.nodes == "one"), None)
    sets = {vni.name: vni.value} if vni is not None else {}
    if vni is not None:
        rows.check("one-node", "the probes in a step on one node, without a VNI", level=Level.PROBE, nodes=1)
        rows.claim("one-node", "cxi listens in a step on one node", "no", "listens", vni)
        about = f"the same with {vni.name}={vni.value}"
        rows.check("one-node-vni", about, level=Level.PROBE, nodes=1, sets=sets)
        rows.claim("one-node-vni", about, "yes", "listens", vni)
    rows.check("alone", "an all-reduce on one node", nodes=1, sets=sets)
    _add_speed(rows, "alone", 1, is_predicted=True)


def _add_speed(rows: Rows, key: str, nodes: int, *, is_predicted: bool) -> None:
    known = next((one for one in rows.site.bandwidths if (one.test, one.nodes) == (_TEST, nodes)), None)
    about = f"all-reduce on {count(nodes, 'node')}"
    if known is None or not is_predicted:
        rows.claim(key, about, None, "speed")
    else:
        least = known.least_gb_s
        rows.claim(key, about, f"{least:g} GB/s or more", "speed", known, least=least, ranks=known.ranks)


def _add_variables(rows: Rows, stack: Stack) -> None:
    """Add an all-reduce without each variable that jobs there set, with each other one, and a repeat of the first."""
    known = {one.name: one for one in reversed(rows.site.measured)}
    ours = same_in_all_ranks(stack, rows.site, nodes=2)
    for variable in ours:
        name, measured = variable.name, known.get(variable.name)
        about, predicted = f"all-reduce without {name}", NO_CHANGE if measured and measured.effect == "inert" else None
        rows.check(f"without.{name}", f"an {about}", "--leave-out", name, beside_run=True)
        rows.claim(f"without:{name}", about, predicted, "changed", measured or variable)
    for tried in rows.site.measured:
        if tried.value is None or tried.name in {variable.name for variable in ours}:
            continue
        # harm was seen in framework jobs; the effect on an all-reduce alone is not documented
        predicted, setting = NO_CHANGE if tried.effect == "inert" else None, f"{tried.name}={tried.value}"
        about = f"all-reduce with {setting}"
        key, others = f"with.{tried.name}", sum(tried.name in step.sets for step in rows.steps)
        rows.check(f"{key}.{others}" if others else key, f"an {about}", sets={tried.name: tried.value}, beside_run=True)
        rows.claim(f"with:{setting}", about, predicted, "changed", tried)
    rows.check("again", "the first all-reduce again: how much two runs differ", beside_run=True)


def content(path: Path) -> str:
    """Return a fingerprint of an image without reading all of it; of a folder, from its inode. Raises BadInputError."""
    try:
        mark = image_fingerprint(path)
        return (mark or hashlib.sha256(f"{path.stat().st_ino}".encode()).hexdigest())[:16]
    except OSError as error:
        raise BadInputError(f"cannot be read: {error.strerror}", where=str(path)) from error


def rows_in(path: Path) -> tuple[TriedRow, ...]:
    """Return the rows of the current catalogue that lumiimg built an image from; none for other images.

    Only rows of lumiimg's own catalogue count: a user's own layers are private, even their names.
    """
    found = []
    try:
        plan = read_plan(path)
        catalogue = open_catalogue({})
        for entry in plan.stack if plan else ():
            layer = catalogue.entry(entry.name)
            releases = [row for row in layer.releases if row.version == entry.release]
            if entry.layer != layer_digest(layer) or len(releases) > 1:
                continue  # changed since, or two rows of one version: which one is not known here
            release = releases[0] if releases else None
            found.append(TriedRow(layer.name, release.version if release else "", fingerprint(layer, release, "run")))
    except (LumiimgError, OSError):
        return ()
    return tuple(found)
