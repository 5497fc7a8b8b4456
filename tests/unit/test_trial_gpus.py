"""What GPUs are for the runtime in an image: gpuprobe on a stand-in for HSA, and the row that its answer makes."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from lumiimg.catalog.folders import shipped_layers
from lumiimg.check.probe.container import read_run
from lumiimg.cluster.trial.gpu_targets import GpuFacts, facts_of, gpu_targets
from lumiimg.cluster.trial.model import Claim, ClaimOutcome
from lumiimg.engine.process import Completed, run
from tests.shared.programs import needs

STANDINS = Path(__file__).parents[1] / "engine/standin_gpu"
MODES = "gfx90a:sramecc+:xnack-"
CLAIM = Claim(
    id="image-1.target", about="GPUs", predicted=MODES, source="", date="", step="image-1.gpus", reads="target"
)
ROWS = [
    (GpuFacts((MODES,) * 8), MODES, "", ClaimOutcome.SAME),
    (GpuFacts(("gfx90a:sramecc+:xnack+",) * 8), "gfx90a:sramecc+:xnack+", "", ClaimOutcome.DIFFERS),
    (
        GpuFacts((MODES, "gfx90a:sramecc-:xnack-")),
        f"{MODES} of 1 GPU; gfx90a:sramecc-:xnack- of 1 GPU",
        "the GPUs of one node differ",
        ClaimOutcome.DIFFERS,
    ),
    (
        GpuFacts(("gfx90a:sramecc+:xnack+",) * 8, xnack="1"),
        None,
        "HSA_XNACK=1 is set, and changes it: gfx90a:sramecc+:xnack+ of 8 GPUs",
        ClaimOutcome.UNMEASURED,
    ),
    (GpuFacts(), None, "HSA shows no GPU in the container", ClaimOutcome.UNMEASURED),
    (GpuFacts(("/users/ada", "x" * 5000), why="y" * 5000), None, "y" * 200, ClaimOutcome.UNMEASURED),
]


def test_the_modes_of_gpus_are_compared_too() -> None:
    for facts, value, why, kind in ROWS:
        read = gpu_targets(facts)
        assert (read.value, read.why, read.outcome(CLAIM)) == (value, why, kind), facts


@pytest.fixture(scope="module")
def gpuprobe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    needs("gcc")
    folder = tmp_path_factory.mktemp("gpuprobe")
    library: list[str | Path] = ["gcc", "-std=c11", "-O1", "-fPIC", "-shared", "-Wl,-rpath,$ORIGIN"]
    subprocess.run([*library, "-o", folder / "libamdhip64.so.5", STANDINS / "hip.c"], check=True)
    subprocess.run(
        [*library, "-o", folder / "librccl.so.1", STANDINS / "rccl.c", folder / "libamdhip64.so.5"], check=True
    )
    source = shipped_layers() / "netprobe/gpuprobe.c"
    strict = ["-Wall", "-Wextra", "-Wconversion", "-Werror"]
    subprocess.run(["gcc", "-std=c11", "-O1", *strict, "-o", folder / "gpuprobe", source, "-ldl"], check=True)
    return folder


def asked(folder: Path, **variables: str) -> tuple[int, GpuFacts]:
    done = run([folder / "gpuprobe", folder / "librccl.so.1"], env=os.environ | variables, timeout_s=60)
    return done.exit_code, facts_of(read_run("gpuprobe", done))


def test_gpuprobe_says_what_the_gpus_are(gpuprobe: Path) -> None:
    other = "gfx942:sramecc+:xnack-"
    assert asked(gpuprobe, STANDIN_ISA=other, STANDIN_GPUS="3") == (0, GpuFacts((other,) * 3))
    assert asked(gpuprobe, STANDIN_GPUS="0") == (20, GpuFacts(why="HSA finds no GPU", no_gpu=True))
    assert asked(gpuprobe, HSA_XNACK="1") == (0, GpuFacts((MODES,) * 2, xnack="1"))
    # HSA also names the GPU code for several GPUs, which is not the name of one
    assert asked(gpuprobe, STANDIN_GENERIC="1") == (0, GpuFacts((MODES,) * 2))


STOPPED = [
    ("@probe timeout seconds=120 during=agents", 16, "it ran out of time in: agents"),
    ("@probe signal number=11 during=agents", -11, "it died of signal 11 in: agents"),
    ("@probe dlopen path=x ok=0 error=no%20such%20file\n@probe end stage=dlopen code=10", 10, "no such file"),
    ("@probe end stage=dlopen code=11", 11, "its RCCL has no HSA among its dependencies"),
    ("@probe hsa error=hsa_init\n@probe end stage=agents code=20", 20, "hsa_init"),
    ("@probe end stage=agents code=20", 20, "HSA finds no GPU"),
    ("", 255, "it said nothing"),
    ("@probe isa\n@probe end stage=all code=0", 0, ""),
]


def test_what_stopped_gpuprobe_is_said_in_words() -> None:
    for lines, code, why in STOPPED:
        facts = facts_of(read_run("gpuprobe", Completed(("gpuprobe",), code, lines, 0.1)))
        assert (facts.targets, facts.why) == ((), why)
