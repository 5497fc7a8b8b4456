"""What is beside each GPU, by measured bandwidth: gpuprobe on stand-ins for HIP and HSA, and what its numbers say."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lumiimg.catalog.folders import shipped_layers
from lumiimg.check.probe.container import read_run
from lumiimg.cluster.trial.beside import fastest_cores, fastest_nic, target
from lumiimg.cluster.trial.claims import OF_ITS_NUMA_NODE
from lumiimg.cluster.trial.measure import outcome
from lumiimg.cluster.trial.nearness import GpuFacts, MemoryCopy, NicFacts, NicRun, facts_of, gpus_to_try
from lumiimg.cluster.trial.values import Claim, ClaimOutcome, Look
from lumiimg.engine.process import Completed, run

STANDINS = Path(__file__).parents[1] / "engine/standin_gpu"
NUMA = ("0-15", "16-31", "32-47", "48-63")
NEAR = {0: "48-63", 1: "48-63", 2: "16-31", 3: "16-31"}
LOOK = Look(
    node="a",
    clock=0.0,
    processors="x86_64",
    kernel="6.4",
    gpus=("gfx90a",) * 4,
    near=tuple(NEAR.values()),
    nics={"cxi0": "48-63", "cxi1": "16-31"},
)


def claim(key: str, predicted: str) -> Claim:
    return Claim(id=f"image-1.{key}", about=key, predicted=predicted, source="a test", step="image-1.gpus")


COPIES = claim("copies", "0:48 1:56 2:16 3:24")
NICS = claim("nics", OF_ITS_NUMA_NODE)


def copies(speed: dict[tuple[int, str], float], *, slow: float = 14.0, fast: float = 25.0) -> GpuFacts:
    found = [
        MemoryCopy(gpu, cores, speed.get((gpu, cores), fast if NEAR[gpu] == cores else slow))
        for gpu in NEAR
        for cores in NUMA
    ]
    return GpuFacts(("gfx90a:sramecc+:xnack-",) * 4, tuple(found))


@pytest.mark.parametrize(
    ("facts", "value", "why", "kind"),
    [
        (copies({}), "the cores beside each GPU", "14 to 25 GB/s", ClaimOutcome.SAME),
        (copies({(1, "0-15"): 30.0}), "GPU 1 has 0-15", "GPU 0 48-63 (25 GB/s)", ClaimOutcome.DIFFERS),
        (copies({(1, "0-15"): 26.0}), "the cores beside each GPU", "14 to 26 GB/s", ClaimOutcome.SAME),
        (copies({}, slow=24.5), None, "all are alike: 24.5 to 25 GB/s", ClaimOutcome.OPEN),
        (
            copies({(3, cores): 25.0 for cores in NUMA}),
            "the cores beside each GPU",
            "all are alike for 1 GPU",
            ClaimOutcome.OPEN,
        ),
        (GpuFacts(why="no HIP device"), None, "copies to 0 GPUs of 4 were timed: no HIP device", ClaimOutcome.OPEN),
        (
            GpuFacts(copies=tuple(one for one in copies({}).copies if one.cores != "16-31"), why="no such cores"),
            None,
            "not all of the predicted cores were tried: no such cores",
            ClaimOutcome.OPEN,
        ),
        (None, None, "nothing was printed", ClaimOutcome.OPEN),
    ],
)
def test_the_cores_whose_memory_reaches_a_gpu_fastest_are_beside_it(
    facts: GpuFacts | None, value: str | None, why: str, kind: ClaimOutcome
) -> None:
    read = fastest_cores(facts, COPIES)
    assert (read.value, outcome(COPIES, read)) == (value, kind)
    assert read.why.startswith(why)


@given(st.lists(st.floats(min_value=0.1, max_value=100), min_size=16, max_size=16))
def test_cores_are_never_said_to_be_right_where_others_are_faster(speeds: list[float]) -> None:
    ways = {(gpu, cores): speeds.pop() for gpu in NEAR for cores in NUMA}
    kind = outcome(COPIES, fastest_cores(copies(ways), COPIES))
    best = {gpu: max(ways[gpu, cores] for cores in NUMA) for gpu in NEAR}
    if any(best[gpu] > ways[gpu, near] * 1.1 for gpu, near in NEAR.items()):
        assert kind is ClaimOutcome.DIFFERS
    elif any(best[gpu] <= min(ways[gpu, cores] for cores in NUMA) * 1.1 for gpu in NEAR):
        assert kind is ClaimOutcome.OPEN, "a GPU that all cores are as far from proves nothing"
    else:
        assert kind is ClaimOutcome.SAME


def over(*speeds: float, why: str = "") -> NicFacts:
    pairs = [(gpu, nic) for gpu in (0, 2) for nic in ("cxi0", "cxi1")]
    return NicFacts(tuple(NicRun(*pair, speed) for pair, speed in zip(pairs, speeds, strict=True)), why)


@pytest.mark.parametrize(
    ("facts", "look", "value", "why", "kind"),
    [
        (over(23, 17, 17, 23), LOOK, "the NIC beside each GPU", "17 to 23 GB/s", ClaimOutcome.SAME),
        (over(17, 23, 23, 17), LOOK, "GPU 0 has cxi1, GPU 2 has cxi0", "GPU 0 cxi1 (23 GB/s)", ClaimOutcome.DIFFERS),
        (over(23, 23, 23, 23), LOOK, None, "all are alike: 23 to 23 GB/s", ClaimOutcome.OPEN),
        (
            over(23, 17, 17, 23),
            replace(LOOK, nics={"cxi0": "", "cxi1": ""}),
            None,
            "the kernel does not say which is beside which; fastest: GPU 0 cxi0 (23 GB/s), GPU 2 cxi1 (23 GB/s)",
            ClaimOutcome.OPEN,
        ),
        (over(23, 17, 17, 23, why="4 of 16 were tried"), LOOK, None, "4 of 16 were tried", ClaimOutcome.OPEN),
        (
            NicFacts((NicRun(0, "cxi0", None, "it went over socket"),)),
            LOOK,
            None,
            "GPU 0 over cxi0: it went over socket",
            ClaimOutcome.OPEN,
        ),
        (NicFacts(), LOOK, None, "no NIC was tried", ClaimOutcome.OPEN),
    ],
)
def test_the_nic_over_which_a_gpu_is_fastest_is_beside_it(
    facts: NicFacts, look: Look, value: str | None, why: str, kind: ClaimOutcome
) -> None:
    read = fastest_nic(facts, [look])
    assert (read.value, outcome(NICS, read)) == (value, kind)
    assert read.why.startswith(why)


def test_one_gpu_of_each_numa_node_is_tried() -> None:
    assert gpus_to_try(LOOK) == (0, 2)
    assert gpus_to_try(replace(LOOK, near=())) == (0, 1, 2, 3)
    assert gpus_to_try(replace(LOOK, near=(), gpus=())) == (0,)
    assert gpus_to_try(replace(LOOK, near=tuple(map(str, range(8))))) == (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("targets", "value", "kind"),
    [
        (("gfx90a:sramecc+:xnack-",) * 8, "gfx90a:sramecc+:xnack-", ClaimOutcome.SAME),
        (("gfx90a:sramecc+:xnack+",) * 8, "gfx90a:sramecc+:xnack+", ClaimOutcome.DIFFERS),
        (
            ("gfx90a:sramecc+:xnack-", "gfx90a:sramecc-:xnack-"),
            "gfx90a:sramecc+:xnack- of 1 GPU; gfx90a:sramecc-:xnack- of 1 GPU",
            ClaimOutcome.DIFFERS,
        ),
        ((), None, ClaimOutcome.OPEN),
    ],
)
def test_the_modes_of_gpus_are_compared_too(targets: tuple[str, ...], value: str | None, kind: ClaimOutcome) -> None:
    one = claim("target", "gfx90a:sramecc+:xnack-")
    read = target(GpuFacts(targets))
    assert (read.value, outcome(one, read)) == (value, kind)


@pytest.fixture(scope="module")
def gpuprobe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gpuprobe")
    library: list[str | Path] = ["gcc", "-std=c11", "-O1", "-fPIC", "-shared", "-Wl,-rpath,$ORIGIN"]
    subprocess.run([*library, "-o", folder / "libamdhip64.so.5", STANDINS / "hip.c"], check=True)
    subprocess.run(
        [*library, "-o", folder / "librccl.so.1", STANDINS / "rccl.c", folder / "libamdhip64.so.5"], check=True
    )
    source = shipped_layers() / "netprobe/gpuprobe.c"
    subprocess.run(
        ["gcc", "-std=c11", "-O1", "-Wall", "-Werror", "-o", folder / "gpuprobe", source, "-ldl"], check=True
    )
    return folder


def asked(folder: Path, **variables: str) -> Completed:
    return run([folder / "gpuprobe", folder / "librccl.so.1"], env=os.environ | variables, timeout_s=60)


def test_gpuprobe_says_what_the_gpus_are_and_copies_from_each_numa_node(gpuprobe: Path) -> None:
    done = asked(gpuprobe, STANDIN_ISA="gfx942:sramecc+:xnack-", STANDIN_GPUS="3")
    facts = facts_of(read_run("gpuprobe", done))
    assert done.ok
    assert facts.targets == ("gfx942:sramecc+:xnack-",) * 3
    assert facts.why == ""
    files = Path("/sys/devices/system/node").glob("node[0-9]*/cpulist")
    nodes = {text for path in files if (text := path.read_text().strip())}
    assert {(copy.gpu, copy.cores) for copy in facts.copies} == {(gpu, cores) for gpu in range(3) for cores in nodes}
    assert all(copy.gb_s > 0 for copy in facts.copies)


def test_gpuprobe_without_a_gpu_says_so(gpuprobe: Path) -> None:
    done = asked(gpuprobe, STANDIN_GPUS="0")
    assert done.exit_code == 20
    assert facts_of(read_run("gpuprobe", done)) == GpuFacts(why="no ROCm-capable device is detected")


def test_what_gpuprobe_would_never_print_is_passed_over() -> None:
    lines = "@probe copy gpu=x cores=0 mb_s=5\n@probe copy gpu=1 mb_s=-5\n@probe copy\n@probe isa\n@probe end code=7"
    facts = facts_of(read_run("gpuprobe", Completed(("gpuprobe",), 7, lines, 0.1)))
    assert (facts.targets, facts.copies) == ((), ())
