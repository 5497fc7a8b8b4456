"""For which GPUs an image has code: read from headers, in every form that compilers and libraries use."""

from __future__ import annotations

import json
import struct
import time
from pathlib import Path

import pytest

from lumiimg.cli.main import main
from lumiimg.core.access import BytesInMemory
from lumiimg.core.errors import ExitCode
from lumiimg.gpu import GpuCodeError, GpuFit, fit, gpu_code_in, node_gpu
from lumiimg.gpu.target import parse_target
from tests.shared import gpu_builder as gpu
from tests.shared.programs import patient

REAL = Path(__file__).parents[1] / "fixtures" / "gpu" / "jax-rocm7-pjrt-0.9.2.ccob"
"""The smallest of the 38 bundles in JAX's plugin for ROCm 7, as clang wrote it: version 3, zstd."""
REAL_TARGETS = "gfx10-3-generic gfx11-generic gfx12-generic gfx9-4-generic gfx908 gfx90a"
"""What `llvm-objdump --offloading` of LLVM 23 finds in it."""


def read(data: bytes) -> list[str]:
    """Return the targets of each bundle of a file."""
    found = gpu_code_in(BytesInMemory(data), "/x.so")
    return [" ".join(sorted(map(str, targets))) for targets in found]


# -- forms


def test_all_bundles_of_a_section_are_read_however_large_they_are() -> None:
    large = gpu.bundle(*gpu.hip("gfx90a"), codes=[gpu.code_object() + b"\1" * (3 << 20)])
    table = gpu.bundle(*gpu.hip("gfx908"), codes=[b""])
    exactly = gpu.bundle(*gpu.hip("gfx908"), codes=[bytes(gpu.PAGE - len(table))])
    assert len(exactly) == gpu.PAGE
    # a NUL after a bundle that ends at a page boundary moves the next by a page, as in TensorFlow's library
    section = gpu.pages(large, exactly) + bytes(gpu.PAGE) + gpu.bundle(*gpu.hip("gfx942:xnack-"))
    assert read(gpu.library(section)) == ["gfx90a", "gfx908", "gfx942:xnack-"]


MODES = gpu.pages(gpu.bundle(*gpu.hip("gfx90a:sramecc+:xnack-")), gpu.bundle(*gpu.hip("gfx90a")))
OTHERS = gpu.bundle(*gpu.hip("gfx90a"), "openmp-nvptx64-nvidia-cuda--sm_80", "openmp-amdgcn-amd-amdhsa-unknown-gfx942")
FORMS: dict[str, tuple[bytes, list[str]]] = {
    "a real compressed bundle": (REAL.read_bytes(), [REAL_TARGETS]),
    "a library": (gpu.library(MODES), ["gfx90a:sramecc+:xnack-", "gfx90a"]),
    "nothing": (gpu.library(None), []),
    "code of the host and of other GPUs": (gpu.pages(gpu.bundle(), OTHERS), ["gfx90a gfx942"]),
    **{
        f"flags {flags:#x}": (gpu.code_object("gfx90a", version=version, flags=flags), [target])
        for flags, version, target in (
            (0, 4, "gfx90a"),
            (0x500, 2, "gfx90a"),
            (0x600, 4, "gfx90a:xnack-"),
            (0xF00, 3, "gfx90a:sramecc+:xnack+"),
            (0x800, 4, "gfx90a:sramecc-"),
        )
    },
}


def test_each_form_of_a_bundle_says_what_it_is_for() -> None:
    assert {name: read(data) for name, (data, _) in FORMS.items()} == {
        name: expected for name, (_, expected) in FORMS.items()
    }


# -- the rule


TAKES = [
    *((code, "gfx90a", GpuFit.RUNS) for code in ("gfx90a", "gfx90a:xnack-", "gfx90a:sramecc+:xnack-")),
    *((code, "gfx90a", GpuFit.XNACK) for code in ("gfx90a:xnack+", "gfx90a:sramecc+:xnack+")),
    *((code, "gfx90a", GpuFit.NO) for code in ("gfx90a:sramecc-", "gfx908", "gfx942")),
    # no generic processor covers MI100 and MI200: AMDGPUUsage, "Generic Processors"
    *((code, "gfx90a", GpuFit.NO) for code in ("gfx9-generic", "gfx9-4-generic")),
    ("amdgcnspirv", "gfx90a", GpuFit.UNKNOWN),
    ("gfx9-4-generic", "gfx942", GpuFit.RUNS),
    ("gfx9-4-generic:xnack+", "gfx950", GpuFit.XNACK),
    ("gfx9-generic", "gfx906", GpuFit.RUNS),
    ("gfx11-generic", "gfx1103", GpuFit.RUNS),
    ("gfx11xx", "gfx1103", GpuFit.RUNS),
    ("gfx120x", "gfx1103", GpuFit.NO),
    ("gfx906:sramecc+", "gfx906", GpuFit.UNKNOWN),
    ("gfx906:xnack+", "gfx906", GpuFit.UNKNOWN),
]


def test_what_a_gpu_takes() -> None:
    for code, processor, answer in TAKES:
        assert fit([[parse_target(code)]], node_gpu(processor)) is answer, (code, processor, answer)


# -- hostile


PLAIN = gpu.bundle(*gpu.hip("gfx90a"))


@pytest.mark.threat
@pytest.mark.parametrize(
    ("data", "why"),
    [
        pytest.param(gpu.bundle(*gpu.hip("gfx90a"), count=1 << 60), "entries, more than", id="count of 2^60"),
        pytest.param(gpu.bundle(*gpu.hip("gfx90a"), offset=1 << 60), "ends at", id="offset past the end"),
        pytest.param(PLAIN[:-1], "ends at", id="cut code"),
        pytest.param(PLAIN[:40], "truncated", id="cut table"),
        pytest.param(gpu.bundle(*gpu.hip("gfx\n\x1b[2J")), "not a valid target", id="escape in a target"),
        pytest.param(gpu.compressed(gpu.compressed(PLAIN)), "in a compressed bundle", id="nested"),
        pytest.param(gpu.compressed(PLAIN, whole=1 << 60), "that claims", id="whole size"),
        pytest.param(b"CCOB\4\0\0\0" + bytes(64), "version 4", id="unknown version"),
        pytest.param(REAL.read_bytes()[:40] + b"\xff" * 2680, "damaged", id="damaged zstd"),
        pytest.param(gpu.library(bytes(gpu.PAGE)), "no bundle", id="zeros in the section"),
        pytest.param(gpu.library(PLAIN, kind=8), "split off", id="section without bytes"),
        pytest.param(gpu.code_object(flags=0xC0), "not known here", id="unknown processor"),
        pytest.param(gpu.code_object(version=0), "version 2", id="code object V2"),
    ],
)
def test_what_cannot_be_read_is_reported_and_never_taken_for_code(data: bytes, why: str) -> None:
    with pytest.raises(GpuCodeError, match=why) as caught:
        gpu_code_in(BytesInMemory(data), "/x.so")
    assert str(caught.value).isprintable()


@pytest.mark.threat
@pytest.mark.parametrize("fill", [b"\0", b"\xff", b"CCOB"], ids=["zeros", "ones", "magic"])
def test_a_section_of_4_gb_takes_little_time_and_memory(fill: bytes) -> None:
    whole = bytearray(gpu.library(PLAIN))
    section = whole.index(struct.pack("<Q", len(PLAIN)), len(whole) - 192)
    whole[section : section + 8] = struct.pack("<Q", 4 << 30)
    read_bytes = 0

    class Endless:
        size = 5 << 30

        def read_at(self, offset: int, size: int) -> bytes:
            nonlocal read_bytes
            read_bytes += size
            data = bytes(whole[offset : offset + size])
            return data + (fill * (size // len(fill) + 1))[: size - len(data)]

    start = time.process_time()
    with pytest.raises(GpuCodeError, match=r"too far|cut off|version"):
        gpu_code_in(Endless(), "/x.so")
    assert read_bytes < 80 << 20
    assert time.process_time() - start < patient(5)


# -- an image


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """Return an image with a component of each form."""
    bundle = gpu.bundle(*gpu.hip("gfx908", "gfx90a:xnack+", "gfx90a:xnack-"))
    files = {
        "opt/rocm/lib/librccl.so.1.0": gpu.library(bundle),
        "opt/venv/vllm/_C.abi3.so": gpu.library(gpu.pages(bundle, gpu.bundle(*gpu.hip("gfx942")))),
        "opt/venv/aiter_meta/hsa/gfx942/f.co": gpu.code_object("gfx942"),
        "opt/rocm/lib/rocblas/library/Kernels.so-000-gfx90a-xnack-.hsaco": gpu.code_object(flags=0x600),
        "opt/rocm/lib/rocblas/library/T_fallback_gfx942.co": gpu.code_object("gfx942"),
        "opt/rocm/share/miopen/db/gfx90a68.kdb": b"SQLite format 3\0",
        "opt/rocm/lib/libhipblaslt.so.1": gpu.library(gpu.bundle(*gpu.hip("gfx90a"))),
        "opt/venv/bitsandbytes/a.so": gpu.library(gpu.bundle(*gpu.hip("gfx942"))),
        "opt/venv/bitsandbytes/b/b.so": gpu.library(gpu.compressed(gpu.bundle(*gpu.hip("gfx942")))),
        "usr/bin/tool": gpu.library(None),
        "etc/passwd": b"root",
    }
    root = tmp_path / "image"
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    (root / "opt/rocm/lib/librccl.so").symlink_to("librccl.so.1.0")
    return root


def shown(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str]:
    code = main(["show", *map(str, arguments), "--gpu"])
    return code, capsys.readouterr().out


def test_the_table_has_each_component_once_and_what_a_site_takes(
    image: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out = shown(capsys, image, "--site", "lumi")
    head, table = out.split("\n\n")[0], out.splitlines()
    assert code == ExitCode.GOOD
    assert " ".join(head.split()).endswith("image: GPU code in 8 places; runs on gfx90a: yes 4, in part 1, no 3")
    table = [line for line in table if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in (table[0], *table[2:])]
    assert rows == [
        ["component", "runs on gfx90a", "gfx908", "gfx90a", "gfx942", "where"],
        ["aiter", "no", "", "", "✓", "/opt/venv/aiter_meta/hsa"],
        ["bitsandbytes", "no", "", "", "✓", "/opt/venv/bitsandbytes (2 places in it)"],
        ["hipBLASLt", "yes", "", "✓", "", "/opt/rocm/lib/libhipblaslt.so.1"],
        ["MIOpen database", "yes", "", "✓", "", "/opt/rocm/share/miopen/db"],
        ["RCCL", "yes", "✓", "✓ xnack+, xnack-", "", "/opt/rocm/lib/librccl.so.1.0"],
        ["rocBLAS", "yes", "", "✓ xnack-", "✓", "/opt/rocm/lib/rocblas/library"],
        ["vLLM _C", "in part", "1 of 2", "1 of 2 xnack+, xnack-", "1 of 2", "/opt/venv/vllm/_C.abi3.so"],
    ]
    assert {len(line) for line in table} == {len(table[0])}
    report = json.loads(shown(capsys, image, "--json")[1])
    assert (report["gpu"], {file["fit"] for file in report["files"]}) == (None, {None}), "no judgement without a site"
    (vllm,) = (file for file in report["files"] if file["component"] == "vLLM _C")
    assert vllm["bundles"] == [
        {"targets": ["gfx908", "gfx90a:xnack+", "gfx90a:xnack-"], "count": 1},
        {"targets": ["gfx942"], "count": 1},
    ]
    judged = json.loads(shown(capsys, image, "--site", "lumi", "--json")[1])
    assert judged["gpu"] == "gfx90a:sramecc+:xnack-"
    assert {file["component"]: file["fit"] for file in judged["files"]}["aiter"] == "no"


UNREADABLE = [
    ("opt/rocm/lib/librccl.so.1.0", gpu.library(PLAIN, kind=8), "was split off"),
    (
        "opt/rocm/lib/rocblas/library/Kernels.so-000-gfx90a-xnack-.hsaco",
        gpu.code_object("gfx942"),
        "its name says gfx90a:xnack-, but its code is for gfx942",
    ),
    ("opt/rocm/share/miopen/db/gfx90a68.kdb", b"", "despite its name"),
]


def test_what_cannot_be_read_leaves_the_question_open(image: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, data, why in UNREADABLE:
        before = (image / name).read_bytes()
        (image / name).write_bytes(data)
        code, out = shown(capsys, image)
        assert (code, why in " ".join(out.split())) == (ExitCode.UNDECIDED, True), name
        (image / name).write_bytes(before)


def test_an_image_without_gpu_code_and_a_site_without_a_gpu_of_amds_are_reported(
    image: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "none/etc").mkdir(parents=True)
    code, out = shown(capsys, tmp_path / "none")
    assert (code, " ".join(out.split())) == (ExitCode.GOOD, f"{tmp_path}/none: no GPU code of AMD's")
    assert main(["show", str(image), "--gpu", "--site", "alps"]) == ExitCode.BAD_INPUT
    assert main(["show", "lumi", "--site", "lumi"]) == ExitCode.BAD_INPUT
    assert "--site has no effect without --gpu" in capsys.readouterr().err
