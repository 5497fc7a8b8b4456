"""Hand-written documents like those that the views make: every kind of block, with texts of realistic length."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any

from lumiimg.core.findings import Advice, Level, Remedy, Severity
from lumiimg.fabric.path import Part, Side, Step
from lumiimg.report.document import (
    Curve,
    Document,
    Facts,
    Item,
    Lines,
    Meter,
    Paragraph,
    PathSteps,
    Row,
    Section,
    Shown,
    Table,
    Tree,
)

OK, INFO, UNKNOWN, PROBLEM = Severity.OK, Severity.INFO, Severity.UNKNOWN, Severity.PROBLEM
NEXT = "lumiimg build --base rocm-6.2.4 --add aws-ofi-nccl --site lumi -o with-plugin.sif"
_LIBFABRIC = "/opt/cray/libfabric/1.22.0/lib64/libfabric.so.1"

STEPS = (
    Step(
        Part.RCCL,
        Severity.OK,
        "the process has this file",
        Level.STATIC,
        "/opt/rocm-6.2.4/lib/librccl.so.1.0.60204",
        Side.IMAGE,
        "2.20.5",
    ),
    Step(
        Part.PLUGIN,
        Severity.PROBLEM,
        "no net plugin is on the search path: RCCL would open librccl-net.so, and there is none in "
        "/opt/rocm-6.2.4/lib, /usr/lib/x86_64-linux-gnu",
        Level.STATIC,
        interface="net API v8",
    ),
    Step(Part.LIBFABRIC, Severity.OK, "the host offers it", Level.STATIC, _LIBFABRIC, Side.HOST, None, "FABRIC_1.7"),
    Step(Part.PROVIDER, Severity.UNKNOWN, "it is not known whether libfabric has it and selects it"),
    Step(Part.LIBCXI, Severity.UNKNOWN, "none was found"),
    Step(Part.NIC, Severity.UNKNOWN, "only a probe in a job step on a node with Slingshot can open it"),
)
GOOD_STEPS = tuple(replace(step, severity=Severity.OK, level=Level.PROBE, side=Side.HOST) for step in STEPS)
UNSEEN = tuple(replace(step, severity=Severity.UNKNOWN, file=None, side=None, level=None) for step in STEPS)
LEVELS = Section(
    "How far was looked",
    (
        Table(
            ("level", "what became of it"),
            (
                Row(("static", "done")),
                Row(("probe", "skipped: needs an engine")),
                Row(("run", "skipped (not requested)")),
            ),
            "A lower level never claims what only a higher one can see",
        ),
    ),
    Shown.PAGE,
)
CHECK = Document(
    "check",
    "image.sif",
    "NO: from its files alone, RCCL would use TCP sockets",
    PROBLEM,
    Advice("RCCL finds no net plugin", NEXT, "to get one"),
    ("RCCL 2.20.5 -> no plugin", "GPU code for gfx90a: RCCL ✓, torch ✓ in part, vLLM _C gfx942 ✗"),
    (
        Section("The path to the fast network", (PathSteps(STEPS, "It ends in front of the net plugin."),)),
        Section(
            "What was found",
            (
                Item(
                    PROBLEM,
                    "RCCL finds no net plugin",
                    "plugin.absent, static",
                    evidence=("librccl.so.1: dlopen librccl-net.so", "searched: /opt/rocm-6.2.4/lib"),
                    via=("librccl.so.1", "librccl-net.so"),
                    why=("the image has no aws-ofi-rccl",),
                    remedies=(
                        Remedy("", NEXT),
                        Remedy("bind one of the site", "lumiimg job image.sif --site lumi", "on a node"),
                    ),
                    any_one=True,
                    source="NCCL src/plugin/net.cc",
                    case="plugin.absent (static)",
                ),
                Item(
                    UNKNOWN,
                    "no probe was taken",
                    "probe.engine, probe",
                    evidence=tuple(f"engine: line {number} of what it printed" for number in range(40)),
                    remedies=(Remedy("ask the site's staff for an engine"),),
                    case="probe.engine (probe)",
                ),
                Item(
                    OK,
                    "the C library of the image is new enough",
                    "library.glibc, static",
                    case="library.glibc (static)",
                ),
                Item(
                    INFO,
                    "the image sets NCCL_DEBUG=INFO",
                    "program.variables, static",
                    why=("it is slow", "it is long"),
                    names=("app01.sif", "app02.sif"),
                    notes=("jobs print more", "and each rank does"),
                ),
            ),
        ),
        LEVELS,
    ),
    ("levels: static",),
    "network of image.sif",
)
LOG = Document(
    "log",
    "slurm-123456.out",
    "fast: all 64 ranks on 8 nodes used Slingshot, by libfabric with the provider cxi",
    OK,
    Advice(None, "lumiimg log slurm-123456.out --json", None),
    ("RCCL 2.22.3, aws-ofi-rccl 1.17.2", "GPUDirect RDMA: in use"),
    (
        Section("The path to the fast network", (PathSteps(GOOD_STEPS, "All six steps hold."),)),
        Section(
            "What was measured",
            (
                Item(OK, "all_reduce_perf reached 93.4 GB/s, as at this site in November"),
                Paragraph("measured on 8 nodes"),
                Curve(
                    "all_reduce_perf, 8 nodes",
                    "message, bytes",
                    "bus bandwidth, GB/s",
                    (
                        ("this job", tuple((2.0**n, 95 * 2.0**n / (2.0**n + 2**24)) for n in range(13, 34))),
                        ("lumi in 2026-11", tuple((2.0**n, 97 * 2.0**n / (2.0**n + 2**23)) for n in range(13, 34, 4))),
                    ),
                ),
                Table(
                    ("message", "this job, GB/s", "lumi in 2026-11, GB/s"),
                    tuple(Row((f"{2 << n} MiB", f"{90 - 40 / (n + 1):.1f}", "92.0")) for n in range(9)),
                ),
            ),
        ),
        Section("Variables", (Facts((("NCCL_NET_GDR_LEVEL", "3"), ("FI_CXI_ATS", "0"), ("SLURM_JOB_ID", "123456"))),)),
        Section("Proof", (Lines(("nid005000: NCCL INFO NET/OFI Selected provider is cxi", "  (found 4 nics)")),)),
    ),
)
EXPLAIN = Document(
    "explain",
    "image.sif",
    "CANNOT TELL: no snapshot of a node is at hand",
    UNKNOWN,
    Advice("without one there is no other side to compare with", "lumiimg host scan -o host.json", "on a compute node"),
    ("needs of the host: libfabric, libcxi",),
    (
        Section("The path to the fast network", (PathSteps(UNSEEN, "Nothing is known of it."),)),
        Section(
            "Versions at the boundary",
            (
                Meter(
                    "libcxi.so.1 (host)", "needs GLIBC_2.38 of the image, which offers up to GLIBC_2.41", 38 / 41, OK
                ),
                Meter("libfabric.so.1 (host)", "needs GLIBC_2.41 of the image, which offers no more", 1.0, UNKNOWN),
                Meter("libhsa-runtime64.so.1 (image)", "needs LIBDRM_2.4.110, more than is there", 1.0, PROBLEM),
                Meter("03-vllm", "took 21 min 51 s, cpu 2 h 36 min", 0.36),
                Meter("04-flash-attn", "was in the cache", 0.0),
            ),
        ),
        Section(
            "Where each library comes from",
            (
                Tree(
                    "librccl-net.so",
                    "/opt/aws-ofi-rccl/lib/librccl-net.so",
                    OK,
                    (
                        Tree("libfabric.so.1", _LIBFABRIC, OK, (Tree("libcxi.so.1", "/usr/lib64/libcxi.so.1", OK),)),
                        Tree("libhwloc.so.15", "not found", PROBLEM),
                    ),
                ),
            ),
        ),
    ),
)
DOCUMENTS = {"check": CHECK, "log": LOG, "explain": EXPLAIN}


def spoiled(value: Any, text: str) -> Any:
    """Return a copy of a document with this text in place of all its texts."""
    if isinstance(value, Remedy):
        return Remedy(text, value.command and f"{text} command", text)
    if isinstance(value, str):
        return text if type(value) is str else value
    if isinstance(value, tuple):
        return tuple(spoiled(one, text) for one in value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{one.name: spoiled(getattr(value, one.name), text) for one in fields(value)})
    return value
