"""Whether the jobs of an image find code for the GPU of a machine: what each command reports about it and refuses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from lumiimg.build.layer_build import require_gpu_code
from lumiimg.cli.main import main
from lumiimg.core.errors import ExitCode, FailedError
from lumiimg.core.toml import package_toml
from tests.shared import fabric_builder
from tests.shared import gpu_builder as gpu
from tests.shared.gpu_image import PACKAGES, image, only
from tests.shared.lumi_node import put_files
from tests.shared.programs import unwrapped

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def sglang(tmp_path: Path) -> Path:
    """An image of SGLang: its own kernels are all for gfx942 and gfx950, those of ROCm for more."""
    files = {
        f"{PACKAGES}/sgl_kernel/common_ops.abi3.so": only("gfx942", "gfx950"),
        f"{PACKAGES}/aiter_meta/hsa/gfx942/f.co": gpu.code_object("gfx942"),
        "opt/rocm/lib/rocblas/library/T_gfx90a.co": gpu.code_object("gfx90a"),
    }
    return image(tmp_path / "sglang", files, of="torch sglang")


def answered(capsys: Capture, *words: str | Path) -> tuple[int, str, str]:
    code = main([*map(str, words)])
    captured = capsys.readouterr()
    return code, unwrapped(captured.out), unwrapped(captured.err)


def check(capsys: Capture, root: Path, *words: str) -> tuple[int, dict[str, dict[str, Any]], list[dict[str, Any]]]:
    """Return (exit code, parts by component, findings about GPU code)."""
    code = main(["check", str(root), "--level", "static", "--json", "--site", "lumi", *words])
    report = json.loads(capsys.readouterr().out)
    parts = {part["component"]: part for part in report["gpu"]["parts"]}
    return code, parts, [found for found in report["findings"] if found["id"].startswith("gpu.")]


# -- the seed's case


def test_an_image_whose_kernels_are_for_another_gpu_is_a_no_with_the_reason_by_each_command(
    sglang: Path, tmp_path: Path, capsys: Capture
) -> None:
    page = tmp_path / "page.html"
    code, out, _ = answered(capsys, "check", sglang, "--verbose", "--level", "static", "--site", "lumi", "--html", page)
    assert code == ExitCode.NO
    assert "NO: jobs of this image end at their first kernel" in out
    assert "why: no code for gfx90a, the GPU of lumi: sgl-kernel (gfx942 and gfx950 only) [gpu.code, static]" in out
    assert "sgl-kernel: SGLang fails at its first kernel" in out
    assert "GPU code for gfx90a: RCCL ✓, rocBLAS ✓, sgl-kernel gfx942 and gfx950 only ✗, aiter gfx942 only ✗" in out
    for part in ("rocBLAS", "sgl-kernel", "gfx942 and gfx950 only ✗"):
        assert part in page.read_text()
    code, out, _ = answered(capsys, "explain", sglang, "--site", "lumi")
    assert code == ExitCode.NO
    assert "why: no code for gfx90a, the GPU of lumi: sgl-kernel (gfx942 and gfx950 only)" in out
    code, out, err = answered(capsys, "job", sglang, "--site", "lumi", "--annotate", "--", "python", "x.py")
    assert code == ExitCode.GOOD
    for text in (out.partition("#SBATCH")[0].replace("# ", ""), err):
        assert "this job will fail: no code for gfx90a, the GPU of lumi, in sgl-kernel (gfx942 and gfx950 only)" in text
        assert "no code for gfx90a, the GPU of lumi, in aiter (gfx942 only)" in text
    seen = fabric_builder.host(tmp_path / "node", glibc=38)
    nodes = [str(fabric_builder.snapshot(seen, name=kernel, kernel=kernel)) for kernel in ("5.14", "6.4")]
    main(["drift", *nodes, "--site", "lumi", "--json", "--image", str(sglang)])
    (entry,) = json.loads(capsys.readouterr().out)["images"]
    assert (entry["fate"], "gpu.code" in {rule["id"] for rule in entry["refused"]}) == ("broken-before", True)
    code = main(["check", str(sglang), "--level", "static", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert (code, report["gpu"]) == (ExitCode.UNDECIDED, None), "without a site nothing is said of a GPU"
    assert not [found for found in report["findings"] if found["id"].startswith("gpu.")]


@pytest.mark.usefixtures("clean_home")
def test_nothing_is_built_on_it_and_the_nearest_that_works_is_named(sglang: Path, capsys: Capture) -> None:
    for words in (["explain", "--base"], ["adapt"]):
        code, out, err = answered(capsys, *words, sglang, "--site", "lumi", *(["--dry-run"] if len(words) == 1 else []))
        assert code == ExitCode.NO
        assert "sgl-kernel: gfx942 and gfx950 only" in out + err
        assert "lumiimg build --base rocm-6.4.4 --add vllm --site lumi" in out + err


@pytest.mark.usefixtures("clean_home")
def test_what_is_not_sure_of_an_image_is_a_doubt_of_a_request(tmp_path: Path, capsys: Capture) -> None:
    damaged = {"opt/rocm/lib/librccl.so.1": gpu.library(gpu.bundle(*gpu.hip("gfx90a"))[:-1])}
    for root, expected in (
        (image(tmp_path / "xnack", {}, rccl="gfx90a:xnack+"), "RCCL: only with HSA_XNACK=1 in the job"),
        (image(tmp_path / "damaged", damaged), "not known: needs code for gfx90a, has RCCL"),
    ):
        code, out, _ = answered(capsys, "explain", "--base", root, "--site", "lumi")
        assert (code, expected in out) == (ExitCode.GOOD, True), out


def node(tmp_path: Path, *versions: int) -> Path:
    """Return the snapshot of a node whose GPUs have these `gfx_target_version`s, as its kernel driver reports them."""
    root = fabric_builder.host(tmp_path / "node", glibc=38)
    for number, version in enumerate((0, *versions)):
        properties = f"cpu_cores_count 0\ngfx_target_version {version}\nvendor_id 4098\n"
        put_files(root, {f"sys/class/kfd/kfd/topology/nodes/{number}/properties": properties})
    return fabric_builder.snapshot(root)


def test_the_gpu_of_a_node_that_was_seen_decides_without_a_site(sglang: Path, tmp_path: Path, capsys: Capture) -> None:
    def gpu_findings(*words: str | Path) -> tuple[Any, list[tuple[str, str]]]:
        main(["check", str(sglang), "--level", "static", "--json", *map(str, words)])
        answer = json.loads(capsys.readouterr().out)
        return answer["gpu"], [(f["severity"], f["summary"]) for f in answer["findings"] if f["id"] == "gpu.code"]

    mi250 = node(tmp_path / "a", 90010, 90010)
    assert json.loads(mi250.read_text())["gpus"] == ["gfx90a", "gfx90a"]
    account, findings = gpu_findings("--host", mi250)
    host = json.loads(mi250.read_text())["host"]
    assert (account["gpu"], account["machine"]) == ("gfx90a:sramecc+:xnack-", host)
    assert findings[0][0] == "problem"
    assert findings[0][1].startswith(f"no code for gfx90a, the GPU of {host}: sgl-kernel")
    # what the site file says counts less
    account, findings = gpu_findings("--host", node(tmp_path / "b", 90402, 90402, 110000), "--site", "lumi")
    assert account["gpu"] == "gfx942:sramecc+:xnack-"
    assert "problem" in {severity for severity, _ in findings}, "this RCCL is for gfx90a alone"
    assert "RCCL (gfx90a only)" in findings[0][1]
    assert gpu_findings("--host", node(tmp_path / "c"))[0] is None, "no GPU was seen, and no site is named"
    script = ["job", str(sglang), "--site", "lumi", "--annotate", "--host", str(tmp_path / "b/node.json")]
    assert main([*script, "--", "python", "x.py"]) == ExitCode.GOOD
    assert "no code for gfx942" in unwrapped(capsys.readouterr().out)


# -- the rules


def test_a_library_beside_the_path_is_a_finding_with_what_happens_and_no_obstacle(
    tmp_path: Path, capsys: Capture
) -> None:
    root = image(tmp_path / "i", {f"{PACKAGES}/aiter_meta/hsa/gfx942/f.co": gpu.code_object("gfx942")})
    code, _, found = check(capsys, root)
    assert code == ExitCode.UNDECIDED  # libfabric is the host's
    assert {(each["id"], each["severity"]) for each in found} == {("gpu.code", "ok"), ("gpu.beside", "info")}
    (beside,) = (each for each in found if each["id"] == "gpu.beside")
    assert "leave VLLM_ROCM_USE_AITER" in beside["cause"]


def test_code_for_xnack_alone_runs_where_the_job_sets_it(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = image(tmp_path / "i", {}, rccl="gfx90a:xnack+")
    code, parts, (found,) = check(capsys, root)
    assert (code, parts["RCCL"]["fit"], found["id"]) == (ExitCode.NO, "xnack", "gpu.xnack")
    assert found["summary"].endswith(": RCCL (gfx90a:xnack+ only)")
    assert found["remedy"] == ["in the job: export HSA_XNACK=1"]
    put_files(root, {".singularity.d/env/91-more.sh": "export HSA_XNACK=0\n"})
    assert check(capsys, root)[2][0]["remedy"] == ["export SINGULARITYENV_HSA_XNACK=1"]
    (root / ".singularity.d/env/91-more.sh").unlink()
    monkeypatch.setenv("HSA_XNACK", "1")
    code, parts, _ = check(capsys, root)
    assert (code, parts["RCCL"]["fit"]) == (ExitCode.UNDECIDED, "runs")
    # and the other way round: code for xnack- is not used then
    other = image(tmp_path / "j", {}, rccl="gfx90a:sramecc+:xnack-")
    code, parts, (found,) = check(capsys, other)
    assert (code, parts["RCCL"]["fit"]) == (ExitCode.NO, "no")
    assert "HSA_XNACK=1 sets: RCCL (gfx90a:xnack- only)" in found["summary"]
    assert found["remedy"] == ["unset HSA_XNACK"]
    monkeypatch.delenv("HSA_XNACK")
    assert check(capsys, other)[1]["RCCL"]["fit"] == "runs"
    put_files(other, {".singularity.d/env/91-more.sh": "export HSA_XNACK=1\n"})
    assert "env -u HSA_XNACK" in check(capsys, other)[2][0]["remedy"][0]
    # memory without error correction is not a mode that a variable sets
    found = check(capsys, image(tmp_path / "k", {}, rccl="gfx90a:sramecc-"))[2][0]
    assert found["summary"].endswith(": RCCL (gfx90a:sramecc- only)")
    assert "HSA_XNACK" not in found["summary"] + found["remedy"][0]


def test_of_a_variable_that_only_a_shell_knows_what_the_gpu_takes_is_open(tmp_path: Path, capsys: Capture) -> None:
    for code, line in (("gfx90a:xnack+", "HSA_XNACK=0"), ("gfx90a", "HSA_OVERRIDE_GFX_VERSION=11.0.0")):
        root = image(tmp_path / line.partition("=")[0], {}, rccl=code)
        for script, answer in (
            (f"export {line}", ExitCode.NO),
            (f"[ -d /x ] && return\nexport {line}", ExitCode.UNDECIDED),
        ):
            (root / ".singularity.d/env").mkdir(parents=True, exist_ok=True)
            (root / ".singularity.d/env/91-more.sh").write_text(f"{script}\n")
            assert check(capsys, root)[0] == answer, script
    root = image(tmp_path / "base", {}, rccl="gfx90a:xnack-")
    for script, outcome in (("export HSA_XNACK=1", "refused"), ("[ -d /x ] && return\nexport HSA_XNACK=1", "unknown")):
        put_files(root, {".singularity.d/env/91-more.sh": f"{script}\n"})
        main(["explain", "--base", str(root), "--add", "netprobe", "--site", "lumi", "--json"])
        rules = json.loads(capsys.readouterr().out)["rules"]
        assert [rule["outcome"] for rule in rules if rule["id"] == "gpu-code"] == [outcome], script


# -- a layer that was to be compiled for a GPU


def layer(root: Path, **files: bytes) -> Path:
    for name, data in files.items():
        path = root / "opt" / name.replace("__", "/").replace("_so", ".so")
        path.parent.mkdir(parents=True)
        path.write_bytes(data)
    return root


def test_a_layer_without_code_for_its_gpu_fails_where_it_is_built(tmp_path: Path) -> None:
    ours, others = only("gfx90a"), only("gfx942")
    root = layer(tmp_path / "layer", mine__lib_so=others, yours__lib_so=others)
    with pytest.raises(FailedError, match=r"layer x: it was compiled for gfx90a, but has no code for it: lib.so"):
        require_gpu_code("x", ("gfx90a",), root)
    with pytest.raises(FailedError, match="compiled for gfx90a"):
        require_gpu_code("x", ("gfx942", "gfx90a"), root)
    require_gpu_code("x", ("gfx942",), root)
    require_gpu_code("x", (), root)
    assert require_gpu_code("x", (), root, of_wheels="gfx90a") is None
    # code in one file is enough, unless each job needs the other
    require_gpu_code("x", ("gfx90a",), layer(tmp_path / "a", mine__lib_so=others, yours__lib_so=ours))
    with pytest.raises(FailedError, match=r"vLLM _C \(gfx942 only\)"):
        require_gpu_code("vllm", ("gfx90a",), layer(tmp_path / "b", vllm___C_so=others, yours__lib_so=ours))
    torch = layer(tmp_path / "torch", torch__libtorch_hip_so=others)
    with pytest.raises(FailedError, match=r"its wheels have no code for gfx90a: .*gfx942 only") as raised:
        require_gpu_code("pytorch", (), torch, of_wheels="gfx90a")
    assert "lumiimg show pytorch" in f"{raised.value}"
    require_gpu_code("pytorch", (), torch, of_wheels="gfx942")
    text = layer(tmp_path / "text", mine__lib_so=b"text")
    require_gpu_code("pytorch", (), text, of_wheels="gfx90a")
    note = require_gpu_code("x", ("gfx90a",), text)
    assert note == "x was compiled for gfx90a, but installed no readable GPU code"


def test_a_file_of_an_image_may_be_called_as_keys_and_components_of_ours_are(tmp_path: Path, capsys: Capture) -> None:
    tables = (package_toml("lumiimg.gpu", f"{name}.toml") for name in ("components", "roles"))
    names = {key for table in tables for level in (table, *table.values()) if isinstance(level, dict) for key in level}
    names -= {""}
    assert names > {"source", "date", "torch", "vLLM _C", "roles", "libraries"}
    plain, _, _ = check(capsys, image(tmp_path / "plain", {}))
    code, parts, _ = check(capsys, image(tmp_path / "x", {f"opt/x/{name}": only("gfx942") for name in names}))
    assert code == plain, "a file called torch is not torch"
    assert {"date", "source", "RCCL", "/opt/x/RCCL"} <= parts.keys()
    assert [name for name, part in parts.items() if part["needed"]] == ["RCCL"]


# -- what is known about software, whatever its origin


@pytest.mark.usefixtures("clean_home")
def test_what_the_files_show_counts_more_than_what_is_known_of_others(tmp_path: Path, capsys: Capture) -> None:
    ends = "setup_rocm.py of sgl-kernel ends where the GPU is gfx90a"
    doubt = "warning: needs code for gfx90a, has aiter: gfx942 only: "
    nan = "warning: torch 2.6 and 2.7.0 on ROCm 6.2.4 give NaN from triton kernels"
    own = {"sgl_kernel/common_ops.abi3.so": only("gfx90a")}  # built for it all the same
    beside = {"aiter_meta/hsa/gfx942/f.co": gpu.code_object("gfx942")}
    root = image(tmp_path / "x", {})
    for names, files, code, expected in (
        ("torch-2.9.1+rocm6.4 sglang-0.5.5", {}, ExitCode.NO, {ends}),  # no kernel of it was found
        ("torch-2.9.1+rocm6.4 sglang-0.5.5", own, ExitCode.GOOD, set()),
        ("vllm-0.12.0", beside, ExitCode.GOOD, {doubt}),  # no job needs it
        ("torch-2.7.0+rocm6.2.4", {}, ExitCode.GOOD, {nan}),
    ):
        shutil.rmtree(root / PACKAGES, ignore_errors=True)
        put_files(root / PACKAGES, {f"{name}.dist-info/METADATA": "" for name in names.split()})
        for path, data in files.items():
            (root / PACKAGES / path).parent.mkdir(parents=True)
            (root / PACKAGES / path).write_bytes(data)
        assert main(["explain", "--base", str(root), "--site", "lumi"]) == code, names
        output = unwrapped(capsys.readouterr().out)
        assert {words for words in (ends, doubt, nan) if words in output} == expected, names
