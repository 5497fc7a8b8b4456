"""What is beside each GPU, by measured bandwidth: gpuprobe on stand-ins for HIP and HSA, and what its numbers say."""

from __future__ import annotations

import json
import math
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
from lumiimg.cluster.trial.nearness import (
    GpuFacts,
    MemoryCopy,
    NicFacts,
    NicRun,
    _pairs,
    facts_of,
    gpus_to_try,
    nics_to_try,
)
from lumiimg.cluster.trial.values import Claim, ClaimOutcome, Look
from lumiimg.engine.process import Completed, run
from lumiimg.host.codec import decode, encode

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


OF_CORES = "memory of the NUMA node of those cores, for 4 GPUs"
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
        (copies({}), OF_CORES, "14 to 25 GB/s", ClaimOutcome.SAME),
        (copies({(1, "0-15"): 30.0}), "GPU 1: 0-15 (30 GB/s; the predicted one 25)", "", ClaimOutcome.DIFFERS),
        (copies({(1, "0-15"): 26.0}), OF_CORES, "14 to 26 GB/s", ClaimOutcome.SAME),
        (copies({}, slow=24.5), "all are alike: 24.5 to 25 GB/s", "", ClaimOutcome.NEWS),
        (
            copies({(3, cores): 25.0 for cores in NUMA}),
            OF_CORES,
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
    elif all(best[gpu] <= min(ways[gpu, cores] for cores in NUMA) * 1.1 for gpu in NEAR):
        assert kind is ClaimOutcome.NEWS, "it does not matter"
    elif any(best[gpu] <= min(ways[gpu, cores] for cores in NUMA) * 1.1 for gpu in NEAR):
        assert kind is ClaimOutcome.OPEN, "a GPU that all cores are as far from proves nothing"
    else:
        assert kind is ClaimOutcome.SAME


@given(st.sets(st.tuples(st.sampled_from([*NEAR]), st.sampled_from(NUMA)), min_size=1, max_size=3))
def test_cores_are_never_said_to_be_right_where_a_copy_is_missing(missing: set[tuple[int, str]]) -> None:
    whole = copies({})
    left = tuple(one for one in whole.copies if (one.gpu, one.cores) not in missing)
    assert outcome(COPIES, fastest_cores(replace(whole, copies=left), COPIES)) is ClaimOutcome.OPEN
    nothing = tuple(replace(one, gb_s=0.0) if one not in left else one for one in whole.copies)
    assert outcome(COPIES, fastest_cores(replace(whole, copies=nothing), COPIES)) is ClaimOutcome.OPEN


def over(*speeds: float | None, why: str = "") -> NicFacts:
    pairs = [(gpu, nic) for gpu in (0, 2) for nic in ("cxi0", "cxi1")]
    of_pairs = zip(pairs, speeds, strict=True)
    runs = (NicRun(*pair, speed, "it failed" if speed is None else "") for pair, speed in of_pairs)
    return NicFacts(tuple(runs), why)


@pytest.mark.parametrize(
    ("facts", "look", "value", "why", "kind"),
    [
        (over(23, 17, 17, 23), LOOK, "the NIC of its NUMA node, for 2 GPUs", "17 to 23 GB/s", ClaimOutcome.SAME),
        (
            over(17, 23, 23, 17),
            LOOK,
            "GPU 0: cxi1 (23 GB/s; the predicted one 17), GPU 2: cxi0 (23 GB/s; the predicted one 17)",
            "",
            ClaimOutcome.DIFFERS,
        ),
        (over(23, 23, 23, 23), LOOK, "all are alike: 23 to 23 GB/s", "", ClaimOutcome.NEWS),
        (
            over(23, 17, 17, 23),
            replace(LOOK, nics={"cxi0": "", "cxi1": ""}),
            None,
            "the kernel does not say which is beside which; fastest: GPU 0: cxi0 (23 GB/s), GPU 2: cxi1 (23 GB/s)",
            ClaimOutcome.OPEN,
        ),
        (
            over(23, 17, 17, 23, why="4 were tried in 9 minutes"),
            LOOK,
            "the NIC of its NUMA node, for 2 GPUs",
            "17 to 23 GB/s; not all were tried: 4 were tried in 9 minutes",
            ClaimOutcome.OPEN,
        ),
        (
            over(23, None, 23, 17),
            LOOK,
            "GPU 2: cxi0 (23 GB/s; the predicted one 17)",
            "not all were tried: GPU 0 over cxi1: it failed",
            ClaimOutcome.DIFFERS,
        ),
        (
            over(23, 17, 17, 23),
            replace(LOOK, near=("48-63", "48-63", "0-15", "0-15")),
            "the NIC of its NUMA node, for 1 GPU",
            "17 to 23 GB/s; which of them is beside GPU 2 is not known",
            ClaimOutcome.OPEN,
        ),
        (
            replace(over(23, 17, 17, 23), variables={"ROCR_VISIBLE_DEVICES": "2,3,0,1"}),
            LOOK,
            None,
            "ROCR_VISIBLE_DEVICES=2,3,0,1 gives the GPUs other numbers",
            ClaimOutcome.OPEN,
        ),
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


@given(st.lists(st.floats(1, 100), min_size=4, max_size=4), st.sampled_from(["0-63", "0-63,64-127", ""]))
def test_where_all_is_in_one_numa_node_nothing_is_said_of_what_is_beside_what(speeds: list[float], cores: str) -> None:
    look = replace(LOOK, near=(cores,) * 4, nics={"cxi0": cores, "cxi1": cores})
    assert outcome(NICS, fastest_nic(over(*speeds), [look])) in {ClaimOutcome.OPEN, ClaimOutcome.NEWS}


def test_nodes_that_differ_say_nothing_of_each_other() -> None:
    other = replace(LOOK, node="b", nics={"cxi0": "16-31", "cxi1": "48-63"})
    read = fastest_nic(over(23, 17, 17, 23), [LOOK, other])
    assert (read.value, read.why) == (None, "the nodes do not have their GPUs and NICs in the same places")
    spare = replace(LOOK, node="b", nics=LOOK.nics | {"cxi2": "0-15"})
    assert fastest_nic(over(23, 17, 17, 23), [LOOK, spare]).same, "the one that was not tried does not matter"


def test_a_nic_that_was_slow_once_is_tried_again() -> None:
    runs: list[NicRun] = []
    speeds = {(0, "cxi0"): [17.0, 23.0], (0, "cxi1"): [21.0, 17.0], (2, "cxi0"): [17.0], (2, "cxi1"): [23.0]}
    pairs = _pairs((0, 2), ("cxi0", "cxi1"), LOOK, runs)
    runs.extend(NicRun(*pair, speeds[pair].pop(0)) for pair in pairs)
    assert not any(speeds.values())
    assert fastest_nic(NicFacts(tuple(runs)), [LOOK]).same


WORDS = st.sampled_from(["0", "1", "cxi0", "cxi1", "0-15", "48-63", "-1", "x" * 5000, "/users/ada", "", "9" * 5000])
NUMBERS = st.one_of(st.integers(0, 5), st.just(10**6))
SPEEDS = st.one_of(st.floats(), st.floats(1, 100))
VARIABLES = st.dictionaries(
    st.sampled_from(["ROCR_VISIBLE_DEVICES", "HSA_XNACK"]), st.sampled_from(["0,1,2,3", "1", ""])
)


@given(
    st.builds(
        GpuFacts,
        st.lists(WORDS).map(tuple),
        st.lists(st.builds(MemoryCopy, NUMBERS, WORDS, SPEEDS), max_size=30).map(tuple),
        WORDS,
        variables=VARIABLES,
    ),
    st.builds(
        NicFacts, st.lists(st.builds(NicRun, NUMBERS, WORDS, SPEEDS | st.none(), WORDS)).map(tuple), WORDS, VARIABLES
    ),
)
def test_what_a_step_has_written_is_a_short_row_and_same_only_where_all_was_measured(
    gpus: GpuFacts, nics: NicFacts
) -> None:
    gpus = decode(GpuFacts, json.loads(json.dumps(encode(gpus))))
    nics = decode(NicFacts, json.loads(json.dumps(encode(nics))))
    rows = {COPIES: fastest_cores(gpus, COPIES), NICS: fastest_nic(nics, [LOOK]), claim("target", "x"): target(gpus)}
    assert all(len(f"{read.value}{read.why}") < 1500 and "x" * 300 not in f"{read}" for read in rows.values())
    if outcome(COPIES, rows[COPIES]) is ClaimOutcome.SAME:
        sound = {(one.gpu, one.cores) for one in gpus.copies if 0 < one.gb_s < math.inf}
        assert not gpus.why
        assert {(gpu, cores) for gpu in NEAR for cores in ("0-15", "48-63")} <= sound
    if outcome(NICS, rows[NICS]) is ClaimOutcome.SAME:
        assert not nics.why
        assert all(run.gb_s is not None for run in nics.runs)
        assert nics.variables.get("ROCR_VISIBLE_DEVICES") != "1"


@pytest.mark.parametrize("value", ["", "0,1,2,3"])
def test_gpus_in_the_order_of_the_kernel_are_compared(value: str) -> None:
    facts = copies({})
    named = replace(facts, variables={"ROCR_VISIBLE_DEVICES": value} if value else {})
    assert fastest_cores(named, COPIES).same
    crossed = fastest_cores(replace(facts, variables={"HIP_VISIBLE_DEVICES": "1,0,2,3"}), COPIES)
    assert (crossed.value, crossed.why) == (None, "HIP_VISIBLE_DEVICES=1,0,2,3 gives the GPUs other numbers")


def test_modes_that_a_variable_has_changed_are_no_difference() -> None:
    one = claim("target", "gfx90a:sramecc+:xnack-")
    read = target(GpuFacts(("gfx90a:sramecc+:xnack+",) * 8, variables={"HSA_XNACK": "1"}))
    assert outcome(one, read) is ClaimOutcome.OPEN
    assert read.why == "HSA_XNACK=1 is set, and changes it: gfx90a:sramecc+:xnack+ of 8 GPUs"


def test_one_gpu_of_each_numa_node_is_tried() -> None:
    assert gpus_to_try(LOOK) == (0, 2)
    assert gpus_to_try(replace(LOOK, near=())) == (0, 1, 2, 3)
    assert gpus_to_try(replace(LOOK, near=(), gpus=())) == (0,)
    assert gpus_to_try(replace(LOOK, near=tuple(map(str, range(8))))) == (0, 1, 2, 3)


def test_the_nics_beside_the_gpus_are_tried_first_and_only_those_that_all_nodes_have() -> None:
    many = replace(LOOK, nics={f"cxi{number}": "0-15" for number in range(12)} | {"cxi11": "16-31"})
    assert nics_to_try([many], (0, 2)) == ["cxi11", "cxi0", "cxi1", "cxi2"]
    assert nics_to_try([many, LOOK], (0, 2)) == ["cxi0", "cxi1"]


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
    strict = ["-Wall", "-Wextra", "-Wconversion", "-Werror"]
    for program in ("gpuprobe", "allreduce"):
        source = shipped_layers() / f"netprobe/{program}.c"
        subprocess.run(["gcc", "-std=c11", "-O1", *strict, "-o", folder / program, source, "-ldl"], check=True)
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
    assert facts_of(read_run("gpuprobe", done)) == GpuFacts(
        why="hipGetDeviceCount: no ROCm-capable device is detected", no_gpu=True
    )


def test_gpuprobe_says_which_variables_number_the_gpus_otherwise(gpuprobe: Path) -> None:
    done = asked(gpuprobe, ROCR_VISIBLE_DEVICES="1,0", HSA_XNACK="1")
    assert facts_of(read_run("gpuprobe", done)).variables == {"ROCR_VISIBLE_DEVICES": "1,0", "HSA_XNACK": "1"}


def test_an_all_reduce_on_a_gpu_that_is_not_there_is_none_on_another_one(gpuprobe: Path, tmp_path: Path) -> None:
    words: list[str | Path] = [gpuprobe / "allreduce", "--folder", tmp_path, "--device", "2", gpuprobe / "librccl.so.1"]
    done = run(words, env=os.environ | {"ROCR_VISIBLE_DEVICES": "4,5"}, timeout_s=60)
    told = read_run("allreduce", done)
    assert (done.exit_code, told.all("device")) == (
        20,
        [{"rank": "0", "rc": "-1", "error": "HIP has no GPU of that number"}],
    )
    assert told.all("set") == [{"name": "ROCR_VISIBLE_DEVICES", "value": "4,5"}]


def test_nodes_that_number_their_gpus_otherwise_are_both_heard() -> None:
    lines = "@probe set name=ROCR_VISIBLE_DEVICES value=1%2C0\n@probe set name=ROCR_VISIBLE_DEVICES value=0%2C1\n"
    variables = facts_of(read_run("gpuprobe", Completed(("gpuprobe",), 0, lines, 0.1))).variables
    read = fastest_nic(replace(over(23, 17, 17, 23), variables=variables), [LOOK])
    assert (read.value, read.why) == (None, "ROCR_VISIBLE_DEVICES=0,1 and 1,0 gives the GPUs other numbers")


def test_cores_that_are_numbered_in_turns_are_told_in_short() -> None:
    even, odd = (",".join(map(str, range(first, 256, 2))) for first in (0, 1))
    found = (MemoryCopy(gpu, cores, 20.0 if cores == odd else 10.0) for gpu in range(2) for cores in (even, odd))
    read = fastest_cores(GpuFacts(copies=tuple(found)), claim("copies", "0:0 1:1"))
    assert read.value == "GPU 0: 1,3,5,7,9,11,13,15,17,19,21,23,25,27,29,… (20 GB/s; the predicted one 10)"


def test_memory_that_lies_elsewhere_shows_nothing(gpuprobe: Path) -> None:
    facts = facts_of(read_run("gpuprobe", asked(gpuprobe, STANDIN_LIES="77")))
    assert (facts.copies, facts.why) == ((), "memory of a NUMA node was not to be had")


def test_names_of_gpu_code_for_several_gpus_are_not_those_of_a_gpu(gpuprobe: Path) -> None:
    done = asked(gpuprobe, STANDIN_GENERIC="1")
    assert facts_of(read_run("gpuprobe", done)).targets == ("gfx90a:sramecc+:xnack-",) * 2


@pytest.mark.parametrize(
    ("lines", "code", "why"),
    [
        ("@probe timeout seconds=120 during=copies", 16, "it ran out of time in: copies"),
        (
            "@probe cores rc=0 error=no%20cores\n@probe signal number=11 during=agents",
            -11,
            "it died of signal 11 in: agents",
        ),
        ("@probe hipMemcpy rc=999 error=\n@probe end stage=all code=0", 0, "hipMemcpy: it returned 999"),
        ("@probe dlopen path=x ok=0 error=no%20such%20file\n@probe end stage=dlopen code=10", 10, "no such file"),
        ("@probe end stage=dlopen code=11", 11, "its RCCL has no HIP among its dependencies"),
        ("@probe end stage=devices code=20", 20, "HIP finds no GPU"),
        ("", 255, "it said nothing"),
        ("@probe hsa rc=-1 error=none\n@probe end stage=all code=0", 0, ""),
    ],
)
def test_what_stopped_gpuprobe_is_said_in_words(lines: str, code: int, why: str) -> None:
    assert facts_of(read_run("gpuprobe", Completed(("gpuprobe",), code, lines, 0.1))).why == why


def test_what_gpuprobe_would_never_print_is_passed_over() -> None:
    lines = f"@probe copy gpu={'9' * 4000} mb_s=5\n@probe copy gpu=1 mb_s={'9' * 5000}\n@probe copy gpu=\u0663 mb_s=5\n"
    lines += "@probe copy gpu=x cores=0 mb_s=5\n@probe copy gpu=1 mb_s=-5\n@probe copy\n@probe isa\n@probe end code=7"
    facts = facts_of(read_run("gpuprobe", Completed(("gpuprobe",), 7, lines, 0.1)))
    assert (facts.targets, facts.copies) == ((), ())
