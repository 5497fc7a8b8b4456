"""Writes sample `--html` pages into a folder.

Images and hosts are folders of stand-ins (tests/shared/fabric_builder.py), logs come from the fixtures and a generated
large job; the code that reads them is the real one.
"""

from __future__ import annotations

from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path

from lumiimg.build.builder import BuildResult, BuiltImage
from lumiimg.build.progress import DOWNLOADS, IMAGE, BuildStage
from lumiimg.check.answer import decide, sentence
from lumiimg.check.steps import fabric_steps
from lumiimg.cli.main import main as lumiimg
from lumiimg.cluster.nodes.node import UnresponsiveNodes
from lumiimg.cluster.nodes.report import NodeGroup, NodesReport
from lumiimg.core.findings import Answer, Finding, Level, Remedy, Severity
from lumiimg.engine.engine import Engine, EngineKind
from lumiimg.fabric.path import FabricPath, Origin, Side
from lumiimg.gpu import GpuFit, role_of
from lumiimg.inventory.gpu_fit import ComponentFit, GpuAccount
from lumiimg.report.page import to_page
from lumiimg.report.views.build import built_document
from lumiimg.report.views.check import check_document, nodes_document
from tests.shared import fabric_builder
from tests.shared.joblog import job_log
from tests.shared.node_answers import FILES

LOGS = Path(__file__).parents[1] / "fixtures" / "nccl"
MIB = 1 << 20


def pages(folder: Path, work: Path) -> list[Path]:
    """Write all sample pages; `work` is for their inputs."""
    image, node = (
        fabric_builder.image(work / "image", glibc=41),
        fabric_builder.snapshot(fabric_builder.host(work / "node", glibc=38)),
    )
    old, bare = fabric_builder.image(work / "old", glibc=34), fabric_builder.image(work / "bare", plugin=False)
    large = work / "mixed.log"
    large.write_bytes(b"".join(job_log(512, MIB, sick=frozenset({3, 17, 18, 19, 40}))))
    written(folder, "explain-margins", "explain", image, "--host", node)
    written(folder, "explain-refused", "explain", old, "--host", node)
    written(folder, "explain-alone", "explain", image)
    written(folder, "request-refused", "explain", "--base", "rocm-6.2.4", "--add", "sglang", "--site", "lumi")
    written(folder, "request", "explain", "--base", "rocm-6.2.4", "--add", "vllm", "--site", "lumi")
    written(folder, "check-no", "check", bare, "--level", "static")
    written(folder, "check-cannot-tell", "check", image, "--level", "static")
    written(folder, "check-with-host", "check", image, "--level", "static", "--host", node)
    written(folder, "several-check", "check", image, bare, old, large, "--level", "static")
    written(folder, "several-explain", "explain", image, bare, old, large, "--host", node)
    later = fabric_builder.snapshot(fabric_builder.host(work / "later", glibc=41, needs_glibc=41))
    written(folder, "drift", "drift", node, later, "--image", image, bare, old, large)
    written(folder, "log-mixed", "log", large)
    written(folder, "log-glibc", "log", LOGS / "rccl-2.21.5-glibc.log")
    written(folder, "log-cxi", "log", LOGS / "rccl-2.20.5-aws-ofi-rccl-1.4.0-cxi-no-gdr.log")
    for name, text in (("check-green", green()), ("nodes", nodes()), ("build", build())):
        (folder / f"{name}.html").write_text(text)
    return sorted(folder.glob("*.html"))


def written(folder: Path, name: str, *argv: str | Path) -> Path:
    page = folder / f"{name}.html"
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        lumiimg([*map(str, argv), "--html", str(page)])
    return page


FABRIC = FabricPath(
    rccl="/opt/rocm/lib/librccl.so.1",
    rccl_version="2.20.5",
    plugin_files=("librccl-net.so",),
    accepts=(8, 7, 6),
    plugin="/opt/aws-ofi-nccl/lib/librccl-net.so",
    plugin_api=8,
    libfabric="/opt/lumiimg/host/libfabric.so.1",
    libcxi="/opt/lumiimg/host/libcxi.so.1",
    provider="cxi",
)
PROBED = (
    Finding("rccl.runs", Severity.OK, Level.PROBE, "/opt/rocm/lib/librccl.so.1 was opened in the container"),
    Finding("plugin.loads", Severity.OK, Level.PROBE, f"{FABRIC.plugin} was opened, with all its libraries"),
    Finding(
        "provider.cxi",
        Severity.OK,
        Level.PROBE,
        "the plugin selected the provider cxi and listens on 4 NICs",
        evidence=("NET/OFI Selected provider is cxi, fabric is cxi (found 4 nics)",),
    ),
)
OTHER = (
    *PROBED[:2],
    Finding(
        "provider.other",
        Severity.PROBLEM,
        Level.PROBE,
        "the plugin was initialized, but selected the provider tcp, which is TCP and not Slingshot",
        evidence=("NET/OFI Selected provider is tcp, fabric is 10.0.0.0/8 (found 2 nics)",),
        remedy=(Remedy("take the node out of the job, and tell the site's staff: --exclude=NODE"),),
    ),
)
KNOWN = {
    FABRIC.rccl or "": Origin(Side.IMAGE),
    FABRIC.plugin or "": Origin(Side.IMAGE),
    FABRIC.libfabric or "": Origin(Side.HOST, "/opt/cray/libfabric/1.22.0/lib64/libfabric.so.1", "FABRIC_1.7"),
    FABRIC.libcxi or "": Origin(Side.HOST, "/usr/lib64/libcxi.so.1", "LIBCXI_1.5"),
}


def on_gpu() -> GpuAccount:
    """Return components of every kind, with names as long as real ones."""
    site = "/opt/venv/lib/python3.12/site-packages"
    all_of = tuple(f"gfx{name}" for name in ("906", "908", "90a", "942", "950", "1030", "1100", "1101", "1200", "1201"))
    parts = {
        "RCCL": (GpuFit.RUNS, all_of, "/opt/rocm/lib/librccl.so.1"),
        "torch": (GpuFit.PART, all_of, f"{site}/torch/lib/libtorch_hip.so"),
        "vLLM _C": (GpuFit.NO, ("gfx942", "gfx950"), f"{site}/vllm/_C.abi3.so"),
        "vLLM _moe_C": (GpuFit.NO, all_of[3:], f"{site}/vllm/_moe_C.abi3.so"),
        "MIOpen": (GpuFit.XNACK, ("gfx90a",), "/opt/rocm/lib/libMIOpen.so.1"),
        "rocBLAS": (GpuFit.UNKNOWN, (), "/opt/rocm/lib/rocblas/library"),
        "aiter": (GpuFit.NO, ("gfx942",), f"{site}/aiter_meta/hsa"),
        "module_fmha_v3_varlen_fwd_with_a_name.cpython-312-x86_64-linux-gnu.so": (
            GpuFit.NO,
            ("gfx1250",),
            f"{site}/x.so",
        ),
    }
    return GpuAccount(
        "gfx90a:sramecc+:xnack-",
        "lumi",
        tuple(
            ComponentFit(
                name,
                fit,
                role_of(name).needed,
                processors,
                (path,),
                role_of(name).without,
                "a compressed bundle that claims 1152921504606846976 bytes" if fit is GpuFit.UNKNOWN else None,
            )
            for name, (fit, processors, path) in parts.items()
        ),
    )


def green() -> str:
    """Return the page of a check whose probes found no obstacle: stand-ins for findings of a real machine."""
    from lumiimg.check.answer import level_statuses
    from lumiimg.check.pipeline import CheckReport

    answer = decide(PROBED, FABRIC, level=Level.PROBE, level_was_asked_for=False)
    steps = fabric_steps(FABRIC, PROBED, KNOWN, plugin_version="1.21.1")
    levels = level_statuses("done", "skipped: no GPU here (/dev/kfd)")
    reported = sentence(answer, PROBED, Level.PROBE)
    good = replace(on_gpu(), parts=tuple(part for part in on_gpu().parts if part.fit in {GpuFit.RUNS, GpuFit.PART}))
    report = CheckReport("image.sif", answer, reported, levels, Level.PROBE, FABRIC, steps, PROBED, FILES, gpu=good)
    return to_page(check_document(report))


def nodes() -> str:
    """Return the page of a check on 64 nodes, of which two differ and one did not answer."""
    names = [f"nid{number:06}" for number in range(5000, 5064)]
    well = NodeGroup(
        tuple(names[:12] + names[14:63]),
        Answer.NO_OBSTACLE,
        sentence(Answer.NO_OBSTACLE, PROBED, Level.PROBE),
        (),
        FABRIC,
        PROBED,
        (),
        4200,
    )
    ill = replace(
        well,
        nodes=tuple(names[12:14]),
        answer=Answer.NO,
        sentence=sentence(Answer.NO, OTHER, Level.PROBE),
        differs=("another libcxi.so.1 (build 9aca67b0 instead of a226e0f1)", "provider tcp instead of cxi"),
        path=replace(FABRIC, provider="tcp"),
        findings=OTHER,
    )
    levels = {"static": "done", "probe": "done", "run": "skipped (not requested)"}
    what = (
        "NO on 2 of 64 nodes: 61 the same; 2 another libcxi.so.1 (build 9aca67b0 instead of a226e0f1); 1 never started"
    )
    silent = (UnresponsiveNodes((names[63],), "never started"),)
    report = NodesReport(
        "image.sif",
        Answer.NO,
        what,
        levels,
        "123456",
        (ill, well),
        silent,
        ("srun: error: nid005063: task 63: Killed",),
        gpu=on_gpu(),
    )
    steps = (fabric_steps(group.path, group.findings, KNOWN) for group in report.groups)
    groups = tuple(replace(group, steps=each) for group, each in zip(report.groups, steps, strict=True))
    return to_page(nodes_document(replace(report, groups=groups)))


def build() -> str:
    """Return the page of a build with one layer from the cache."""
    stages = (
        BuildStage(DOWNLOADS, 41.2, 0.0, 310 * MIB, reused=False),
        BuildStage("01-rocm-6.4.4", 0.1, 0.0, 4100 * MIB, reused=True),
        BuildStage("02-aws-ofi-nccl", 92.6, 170.3, 3 * MIB, reused=False),
        BuildStage("03-vllm", 1311.0, 9412.0, 2210 * MIB, reused=False),
        BuildStage(IMAGE, 38.4, 61.0, 6400 * MIB, reused=False),
    )
    engine = Engine(Path("/usr/bin/apptainer"), EngineKind.APPTAINER, "1.4.5", frozenset())
    built = BuiltImage(
        image=Path("vllm.sif"),
        key="9f" * 32,
        size_bytes=6400 * MIB,
        seconds=1483.3,
        reused_steps=1,
        steps=3,
        way="overlay",
        engine=engine,
        is_new=True,
        stages=stages,
    )
    return to_page(built_document(BuildResult(built)))
