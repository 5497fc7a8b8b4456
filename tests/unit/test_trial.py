"""`lumiimg trial`: claims beside facts, bounded, resumed, and without names. On a real Slurm: tests/engine/test_trial.py."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import subprocess
import time
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lumiimg.catalog.ledger import LEDGER
from lumiimg.catalog.sites import find_site
from lumiimg.check.run.collective import CollectiveOutcome, CollectiveProgram
from lumiimg.cli.main import main
from lumiimg.cluster.nodes.node import UnresponsiveNodes
from lumiimg.cluster.nodes.report import NodeGroup, NodesReport
from lumiimg.cluster.nodes.slurm import Allocation
from lumiimg.cluster.trial import driver, submit
from lumiimg.cluster.trial.case import SlurmFacts, TrialCase
from lumiimg.cluster.trial.claims import HERE, NODES, of_site
from lumiimg.cluster.trial.driver import run_in_job
from lumiimg.cluster.trial.folder import JobTime, TrialFolder, alone
from lumiimg.cluster.trial.gpu_targets import GpuFacts
from lumiimg.cluster.trial.look import look_at
from lumiimg.cluster.trial.measure import notes, outcome, reading
from lumiimg.cluster.trial.plan import content, rows_in
from lumiimg.cluster.trial.table import report_of
from lumiimg.cluster.trial.values import (
    Claim,
    ClaimOutcome,
    Ending,
    Look,
    Record,
    TrialImage,
    TrialPlan,
    TrialStep,
    TriedRow,
)
from lumiimg.core.decode import encode
from lumiimg.core.errors import BadInputError, ExitCode, FailedError
from lumiimg.core.findings import Answer, Code, Finding, Level, Severity
from lumiimg.fabric.path import FabricPath
from lumiimg.host.scan import scan_host
from lumiimg.image import RootFileSystem
from lumiimg.image.folder import FolderTree
from lumiimg.joblog.report import Confidence, Measurement, Verdict
from lumiimg.report.json_output import json_text
from lumiimg.resolve.lock_file import LockedBase, LockFile
from lumiimg.resolve.request import LockedRequest
from tests.shared import fabric_builder
from tests.shared.programs import examples
from tests.shared.validation import validated
from tools import ledger
from tools import trial as taken_in

LUMI = find_site("lumi", {})
SNAPSHOT = scan_host({})
CLAIMS = {claim.id: claim for claim in of_site(LUMI)}
NODE = Look(
    node="nid005001",
    clock=1e9,
    processors="x86_64",
    kernel="6.4.0-150600.23.73_15.0.14-cray_shasta_c",
    gpu_driver="6.3.60300",
    gpus=("gfx90a",) * 8,
    # four NUMA nodes of 16 cores, two GPUs beside each, as LUMI docs draw a node
    near=("48-63", "48-63", "16-31", "16-31", "0-15", "0-15", "32-47", "32-47"),
    cores=64,
    engine="SingularityCE 4.1.3",
    libfabric="1.22.0",
    glibc="2.38",
    interfaces=("hsn0", "hsn1", "hsn2", "hsn3"),
    paths={"/scratch": True, "/pfs": False},
    variables={"SLURM_CLUSTER_NAME=lumi": True, "LUMI_STACK_NAME=LUMI": False},
)


def step(name: str, **more: Any) -> TrialStep:
    return TrialStep(name=name, about=name, **{"words": ("check",), "nodes": 2, "minutes": 3, "limit": 15, **more})


def plan(*claims: Claim, steps: tuple[TrialStep, ...] = (), **more: Any) -> TrialPlan:
    every = steps or tuple(step(name) for name in dict.fromkeys(claim.step for claim in claims))
    plain = TrialPlan(
        schema=1,
        id="0123abcd",
        made="2026-11-26T10:00:00+00:00",
        tool="0.1.0",
        site="lumi",
        nodes=2,
        node_minutes=100,
        images=(),
        steps=every,
        claims=claims,
    )
    return replace(plain, **more)


def trial(tmp_path: Path, *claims: Claim, **more: Any) -> tuple[TrialFolder, TrialPlan]:
    """A folder with a plan."""
    folder, made = TrialFolder(tmp_path / "trial"), plan(*claims, **more)
    folder.make(made)
    return folder, made


def in_job(folder: TrialFolder, made: TrialPlan, number: int = 7, nodes: int = 2) -> None:
    """Do what is left in a job, which has no end."""
    names = tuple(f"n{n}" for n in range(nodes))
    run_in_job(folder, made, Allocation(f"{number}", names, None), {}, lambda _: None)


def case(*looks: Look, slurm: SlurmFacts | None = None, **reports: NodesReport) -> TrialCase:
    named = {name.replace("__", ".").replace("_", "-"): report for name, report in reports.items()}
    records = {name: Record(step=name, ending=Ending.DONE) for name in (*named, NODES, HERE)}
    return TrialCase(plan(), records, looks, slurm, named)


def claim(key: str, predicted: str | None = None, at: str = "image-1.run", **more: Any) -> Claim:
    return Claim(id=f"image-1.{key}", about=key, predicted=predicted, source="a test", step=at, **more)


def on_nodes(*groups: NodeGroup, run: str = "not asked for", **more: Any) -> NodesReport:
    return NodesReport("i.sif", Answer.UNDECIDED, "", {"run": run}, "7", groups, (), (), **more)


def group(*findings: Finding, differs: tuple[str, ...] = (), **path: Any) -> NodeGroup:
    return NodeGroup(("a",), Answer.UNDECIDED, "CANNOT TELL", differs, FabricPath(**path), findings, (), 5)


def ran(
    best: float | None, verdict: Verdict = Verdict.OFI_CXI, ranks: int = 16, sure: Confidence = Confidence.PROVED
) -> NodesReport:
    row = Measurement("all_reduce_perf", "rccl-tests", None, None, None, best, None, None, None, None, "x.log", 1, None)
    together = CollectiveOutcome(CollectiveProgram.OWN, 2, ranks, verdict, sure, (row,))
    return on_nodes(group(), run="done", collective=together)


DONE = Record(step="image-1.run", ending=Ending.DONE)
NO_GPU = on_nodes(group(), run="not taken: HIP finds no GPU in the container")
DIED = on_nodes(group(), run="failed: a rank died")


# -- of the site


def test_a_node_as_lumi_is_described_agrees_with_every_claim_about_it() -> None:
    told = case(NODE, replace(NODE, node="nid005002"))
    found = {name: outcome(one, reading(told, one)) for name, one in CLAIMS.items() if one.step == NODES}
    assert found.pop("site.path:/pfs") is ClaimOutcome.DIFFERS
    on_paths = {name for name in found if name.startswith("site.path:")} - {"site.path:/scratch"}
    assert {found.pop(name) for name in on_paths} == {ClaimOutcome.OPEN}, "the node was not asked"
    assert {*found.values()} == {ClaimOutcome.SAME}, found


def both(**change: Any) -> tuple[Look, Look]:
    return (one := replace(NODE, **change)), one


BLIND = replace(NODE, libfabric=None, no_fabric="unreadable", cores=0, gpus=(), near=())
OF_NODES = [
    ("libfabric", both(libfabric="2.1.0"), "2.1.0", ClaimOutcome.DIFFERS),
    ("libfabric", (NODE, *both(libfabric="2.1.0")[:1]), "1.22.0 on 1 node; 2.1.0 on 1 node", ClaimOutcome.DIFFERS),
    ("driver", both(gpu_driver="6.14.14"), "6.14.14", ClaimOutcome.DIFFERS),
    ("driver", both(gpu_driver="6.10.5"), "6.10.5", ClaimOutcome.SAME),  # AMD's 6.3 has the module of that version
    ("engine", both(engine="SingularityCE 4.2.0"), "SingularityCE 4.2.0", ClaimOutcome.DIFFERS),
    ("interfaces", both(interfaces=("hsn0", "hsn1", "hsn2")), "hsn0,hsn1,hsn2", ClaimOutcome.DIFFERS),
    ("near", both(near=("0-15", *NODE.near[1:])), "GPU 0 has 0-15", ClaimOutcome.DIFFERS),
    ("near", (NODE, replace(NODE, near=("0-15", *NODE.near[1:]))), None, ClaimOutcome.DIFFERS),
    ("identity", both(variables={"SLURM_CLUSTER_NAME=lumi": False}), "not there", ClaimOutcome.DIFFERS),
    ("cores", both(cores=128), "128", ClaimOutcome.DIFFERS),
    # what is not shown is open, and says why
    ("gpus", both(gpus=()), "the kernel of the nodes shows no GPU of AMD's", ClaimOutcome.OPEN),
    ("near", both(near=()), "the kernel names no cores beside the GPUs", ClaimOutcome.OPEN),
    ("near", both(near=NODE.near[:2]), "the kernel of a node shows 2 GPUs of 8", ClaimOutcome.OPEN),
    ("near", both(near=("0-127",) * 8), "the kernel names the same cores beside all GPUs: 0-127", ClaimOutcome.OPEN),
    ("libfabric", both(libfabric=None, no_fabric="no libfabric"), "no libfabric", ClaimOutcome.OPEN),
    # a node that shows nothing, or gave no answer
    *((key, looks, None, ClaimOutcome.OPEN)
      for key in ("libfabric", "cores", "gpus", "near") for looks in ((NODE, BLIND), (BLIND, NODE), (NODE,))),
]  # fmt: skip
"""Key of the claim, what the nodes show, what is said of it (None: whatever), and the outcome."""


def test_what_nodes_show_otherwise_is_a_difference_and_what_they_do_not_show_is_open() -> None:
    for key, looks, said, kind in OF_NODES:
        one = CLAIMS[f"site.{key}"]
        read = reading(case(*looks), one)
        assert outcome(one, read) is kind, (key, looks, read)
        assert said is None or said == (read.why if read.value is None else read.value), (key, looks, read)


def test_partitions_and_mpi_are_those_of_slurm() -> None:
    told = case(slurm=SlurmFacts({"standard-g": 48.0, "small-g": 24.0}, None, ("none", "pmi2")))
    found = {name: reading(told, one) for name, one in CLAIMS.items() if one.step == HERE}
    judged = {name: (read.value, outcome(CLAIMS[name], read).value) for name, read in found.items()}
    assert judged == {
        "site.partition:standard-g": ("48", "same"),
        "site.partition:small-g": ("24", "differs"),
        "site.partition:dev-g": ("no such partition", "differs"),
        "site.mpi:pmi2": ("there", "same"),
        "site.mpi:cray_shasta": ("not there", "differs"),
    }


def test_what_a_reader_must_know_beside_the_table() -> None:
    told = case(replace(NODE, strangers=(1001,)), replace(NODE, clock=1e9 + 3600))
    told = replace(
        told,
        records={
            "a": Record(step="a", ending=Ending.DONE, engine="SingularityCE 4.1.3"),
            "b": Record(step="b", ending=Ending.DONE, engine="Apptainer 1.4.5"),
            NODES: Record(step=NODES, ending=Ending.DONE, said=("1 node gave no answer",)),
        },
    )
    said = "\n".join(notes(told))
    assert "the clocks of the nodes are 3600 s apart" in said
    assert "others had processes on 1 node" in said
    assert "the container engine changed during the trial: Apptainer 1.4.5, SingularityCE 4.1.3" in said
    assert "1 node gave no answer" in said


# -- of images


def finding(code: Code, severity: Severity) -> Finding:
    return Finding(code, severity, Level.PROBE, code.value)


LISTENS = claim("one-node", "no", "image-1.one-node")
LEAST = claim("bandwidth", "29 GB/s or more", least=29.0)
OF_IMAGES = [
    # the lines of public logs: 85 GB/s over cxi, 12 over TCP, a plugin that gets no domain
    (claim("network", "ofi-cxi"), ran(85.1), "ofi-cxi", ClaimOutcome.SAME),
    (claim("network", "ofi-cxi"), ran(12.3, Verdict.SOCKET), "socket", ClaimOutcome.DIFFERS),
    (claim("network", "ofi-cxi"), ran(None, Verdict.PLUGIN_INIT_ERROR), None, ClaimOutcome.OPEN),
    (claim("network", None), ran(85.1), "ofi-cxi", ClaimOutcome.NEWS),
    (claim("network", "ofi-cxi"), ran(85.1, sure=Confidence.LIKELY), "ofi-cxi", ClaimOutcome.OPEN),
    (claim("network", "socket"), ran(85.1, sure=Confidence.LIKELY), "ofi-cxi", ClaimOutcome.DIFFERS),
    (claim("network", "ofi-cxi"), NO_GPU, None, ClaimOutcome.OPEN),
    (LEAST, ran(85.1), "85.1 GB/s", ClaimOutcome.SAME),
    (LEAST, ran(12.3), "12.3 GB/s", ClaimOutcome.DIFFERS),
    # 12.3 GB/s with 16 ranks says nothing of a least that is of 32
    (replace(LEAST, ranks=32), ran(12.3), None, ClaimOutcome.OPEN),
    (claim("gpu-code", "runs"), ran(85.1), "runs", ClaimOutcome.SAME),
    (claim("gpu-code", "fails"), ran(85.1), "runs", ClaimOutcome.DIFFERS),
    # a plugin that does not listen for want of a NIC shows nothing
    (LISTENS, on_nodes(group(finding(Code.PROVIDER_CXI, Severity.OK))), "yes", ClaimOutcome.DIFFERS),
    (
        LISTENS,
        on_nodes(group(finding(Code.PLUGIN_LOADS, Severity.OK), finding(Code.PLUGIN_LISTEN, Severity.PROBLEM))),
        "no",
        ClaimOutcome.SAME,
    ),
    (LISTENS, on_nodes(group(finding(Code.PROVIDER_OTHER, Severity.UNKNOWN))), None, ClaimOutcome.OPEN),
    # of a newer lumiimg, or of nobody
    (claim("plugin-api", "8"), on_nodes(group(plugin_api=8)), None, ClaimOutcome.OPEN),
    (claim("accepts", "8"), on_nodes(group(accepts=(8,))), None, ClaimOutcome.OPEN),
    # a path by a link is the same file
    (
        claim("libcxi", "/lib64/libcxi.so.1", also=("/usr/lib64/libcxi.so.1.5.0",)),
        on_nodes(group(libcxi="/usr/lib64/libcxi.so.1.5.0")),
        "/usr/lib64/libcxi.so.1.5.0",
        ClaimOutcome.SAME,
    ),
    (
        claim("alike", "all the same"),
        on_nodes(group(), group(differs=("another libcxi.so.1",))),
        "another libcxi.so.1",
        ClaimOutcome.DIFFERS,
    ),
]


def test_a_run_and_the_probes_are_judged_by_what_they_show() -> None:
    for one, output, value, kind in OF_IMAGES:
        read = reading(replace(case(), reports={one.step: output}, records={one.step: DONE}), one)
        assert (read.value, outcome(one, read)) == (value, kind), one


CHANGED = [
    ("no change", ran(84.0), 85.5, "no change", ClaimOutcome.SAME),
    ("no change", ran(60.0), 85.5, "slower", ClaimOutcome.DIFFERS),
    ("no change", ran(120.0), 85.5, "faster", ClaimOutcome.DIFFERS),
    # a node less
    ("no change", ran(60.0, ranks=8), 85.5, "", ClaimOutcome.OPEN),
    # without the variable it fails, and with it it may
    ("no change", DIED, None, "", ClaimOutcome.OPEN),
    # two runs alike that are 15 per cent apart say nothing about 20
    ("no change", ran(68.0), 72.0, "no change", ClaimOutcome.SAME),
    ("no change", DIED, 85.5, "it fails", ClaimOutcome.DIFFERS),
    ("no change", ran(12.0, Verdict.SOCKET), 85.5, "socket instead of ofi-cxi", ClaimOutcome.DIFFERS),
    (None, ran(60.0), 85.5, "slower", ClaimOutcome.NEWS),
    (None, ran(None, Verdict.PLUGIN_INIT_ERROR), 85.5, "it fails", ClaimOutcome.NEWS),
    # no GPU, or no time left, is nothing that a variable did
    (None, NO_GPU, 85.5, "", ClaimOutcome.OPEN),
]


def test_a_variable_is_judged_against_the_run_that_had_what_jobs_have() -> None:
    for predicted, now, again, begins, kind in CHANGED:
        one = claim("without:X", predicted, "image-1.without.X")
        alike = ran(again) if again is not None else DIED
        read = reading(case(image_1__run=ran(85.0), image_1__again=alike, image_1__without__X=now), one)
        assert (read.value or "").startswith(begins), (predicted, now, again)
        assert outcome(one, read) is kind, (predicted, now, again)


def test_what_a_variable_of_the_fabric_does_is_not_said_by_runs_over_tcp() -> None:
    one = claim("with:X=1", "no change", "image-1.with.X")
    tcp = ran(12.0, Verdict.SOCKET)
    read = reading(case(image_1__run=tcp, image_1__again=tcp, image_1__with__X=tcp), one)
    assert (outcome(one, read), read.why) == (ClaimOutcome.OPEN, "the run to compare it with went over socket")


def test_what_one_node_of_two_says_contradicts_a_claim_and_never_proves_it() -> None:
    seen = replace(group(libcxi="/x"), answer=Answer.NO_OBSTACLE)
    half = replace(on_nodes(seen), silent=(UnresponsiveNodes(("b",), "gave no answer"),))
    values = {"alike": "all the same", "libcxi": "/x", "answer": "no-obstacle"}
    agree = [claim(key, value, "image-1.probe") for key, value in values.items()]
    differ = [claim(key, "something else", "image-1.probe") for key in values]
    for one in (*agree, *differ):
        read = reading(case(image_1__probe=half), one)
        assert outcome(one, read) is (ClaimOutcome.OPEN if one in agree else ClaimOutcome.DIFFERS), one
        assert "1 node gave no answer" in read.why


def test_a_plan_has_every_prediction_with_its_source_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image = fabric_builder.image(tmp_path / "image")
    assert main(["trial", "plan", str(image), "-o", str(tmp_path / "t"), "--site", "lumi", "--json"]) == 0
    printed = capsys.readouterr()
    found = validated(printed.out, "trial-plan")
    assert all(one["source"] for one in found["claims"])
    assert "site.libfabric" in {one["id"] for one in found["claims"]}
    assert {one["step"] for one in found["claims"]} <= {one["name"] for one in found["steps"]}
    assert "--sbatch='-p dev-g --gpus-per-node=8'" in printed.err
    assert main(["trial", "report", str(tmp_path / "t")]) == ExitCode.UNDECIDED
    said = capsys.readouterr().out
    assert "no claim was judged" in said
    assert "with Slurm's options in --sbatch" in said, "without an account and a partition Slurm would refuse it"
    made = TrialFolder(tmp_path / "t").plan()
    claims = {one.id: one for one in made.claims}
    # harm that was seen in jobs of frameworks is not predicted of an all-reduce
    assert claims["image-1.with:NCCL_MIN_NCHANNELS=32"].predicted is None
    assert claims["image-1.without:NCCL_SOCKET_IFNAME"].predicted == "no change"
    looked_up = [one for one in made.claims if "lumiimg check" not in one.source]
    undated = {one.id for one in looked_up if not one.date}
    assert undated == {"image-1.alike", "image-1.socket.network"}, "those are of no source with a date"


def test_of_an_image_whatever_it_says_only_rows_of_the_shipped_catalogue_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = tmp_path / "config/lumiimg/layers/secret"
    mine.mkdir(parents=True)
    (mine / "layer.toml").write_text('summary = "x"\n')
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    base = LockedBase(name="secret", agent="docker", origin="x")
    monkeypatch.setattr(
        "lumiimg.cluster.trial.plan.read_plan", lambda _: LockFile(request=LockedRequest("x"), base=base)
    )
    assert rows_in(tmp_path) == ()


def test_one_node_has_no_network_to_try(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["trial", "plan", "-o", str(tmp_path / "t"), "--site", "lumi", "--nodes", "1"]
    assert main(words) == ExitCode.BAD_INPUT
    assert "from two nodes on" in capsys.readouterr().err
    words[-1] = "4"
    assert main([*words[:2], str(fabric_builder.image(tmp_path / "image")), *words[2:]]) == 0
    claims = {one.id: one for one in TrialFolder(tmp_path / "t").plan().claims}
    assert claims["image-1.bandwidth"].predicted is None, "the site's reference is of 2 nodes"
    assert claims["image-1.network"].about == "image 1: network between 4 nodes"


def test_variables_that_a_trial_tries_are_not_the_users_own_and_others_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = (step("image-1.without.NCCL_X"), step("image-1.one-node", sets={"SLURM_NETWORK": "single"}))
    folder, made = trial(tmp_path, steps=steps)
    seen: list[dict[str, str]] = []

    def work(_f: object, one: TrialStep, _n: object, environment: dict[str, str], *_: object) -> Record:
        seen.append(environment)
        return Record(step=one.name, ending=Ending.DONE)

    monkeypatch.setattr(driver, "_in_job", work)
    mine = {"NCCL_X": "1", "SINGULARITYENV_NCCL_X": "1", "SLURM_NETWORK": "job_vni", "NCCL_NET": "IB"}
    run_in_job(folder, made, Allocation("7", ("n1", "n2"), None), mine, lambda _: None)
    assert seen[0] == {"NCCL_NET": "IB"}
    look = look_at(RootFileSystem(FolderTree(tmp_path)), scan_host({}), LUMI, "n", seen[0])
    assert look.set_already == ("NCCL_NET",)
    assert any("the job had NCCL_NET from elsewhere" in note for note in notes(case(look)))


# -- the folder, jobs and time


def test_what_is_no_trial_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trial", "report", str(tmp_path)]) == ExitCode.BAD_INPUT
    assert "is not the folder of a trial" in capsys.readouterr().err
    (tmp_path / "trial.json").touch()
    assert main(["trial", "report", str(tmp_path / "trial.json")]) == ExitCode.BAD_INPUT
    assert "trial.json: is not the folder of a trial" in capsys.readouterr().err
    (tmp_path / "plan.json").write_text("[" * 100_000)
    assert main(["trial", "run", str(tmp_path)]) == ExitCode.BAD_INPUT
    (tmp_path / "plan.json").write_text('{"schema": 1}')
    assert main(["trial", "run", str(tmp_path)]) == ExitCode.BAD_INPUT
    assert len(capsys.readouterr().err.strip().splitlines()) == 2
    words = ["trial", "plan", "-o", str(tmp_path), "--site", "lumi"]
    assert main(words) == ExitCode.BAD_INPUT
    assert "is there already" in capsys.readouterr().err
    new = ["trial", "plan", "-o", str(tmp_path / "new")]
    assert main([*new, "--site", "nowhere"]) == ExitCode.BAD_INPUT
    assert main([*new, "--site", "lumi", "--node-minutes", "1"]) == ExitCode.BAD_INPUT
    assert not (tmp_path / "new").exists(), "nothing is half written"


@given(
    st.lists(st.tuples(st.integers(1, 4), st.floats(0, 40), st.booleans()), max_size=8),
    st.integers(10, 400),
)
@settings(max_examples=examples(12), deadline=None)
def test_the_node_minutes_of_a_trial_are_never_passed(
    tmp_path_factory: pytest.TempPathFactory, jobs: list[tuple[int, float, bool]], most: int
) -> None:
    """Whatever earlier jobs took, how many nodes the next one has, and whether its steps go to their limits."""
    folder = TrialFolder(tmp_path_factory.mktemp("t") / "trial")
    steps = tuple(step(f"s{number}") for number in range(12))
    made = plan(steps=steps, node_minutes=most)
    folder.make(made)
    clock = [1000.0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("time.time", lambda: clock[0])
        patch.setattr("time.monotonic", lambda: clock[0])
        for number, (nodes, minutes, dies) in enumerate(jobs):

            def work(_f: object, one: TrialStep, _n: object, _e: object, limit_s: float, job: str) -> Record:
                clock[0] += min(minutes * 60, limit_s)  # noqa: B023
                if dies:  # noqa: B023
                    raise KeyboardInterrupt
                return Record(step=one.name, ending=Ending.DONE, job=job)

            patch.setattr(driver, "_in_job", work)
            names = tuple(f"n{n}" for n in range(max(nodes, 2)))
            with contextlib.suppress(KeyboardInterrupt):
                run_in_job(folder, made, Allocation(f"{number}", names, None), {}, lambda _: None)
            assert folder.spent() <= most
            clock[0] += 100


def test_a_job_asks_for_no_more_than_is_left_and_than_its_partition_has(tmp_path: Path) -> None:
    folder, made = trial(tmp_path, steps=tuple(step(f"s{number}") for number in range(12)), node_minutes=60)

    def minutes(*options: str, **variables: str) -> str:
        *_, script = words = submit.write_job(folder, made, options, variables)
        (limit,) = (str(word) for word in words if str(word).startswith("--time="))
        assert f"#SBATCH {limit}\n" in Path(script).read_text()
        return limit.removeprefix("--time=")

    assert minutes() == "30", "60 node minutes on 2 nodes"
    folder.output_file(HERE).write_text(json.dumps({"partitions": {"short": 0.25, "long": 48.0}, "default": "short"}))
    assert minutes() == "15"
    assert minutes("-plong") == minutes("-p", "long") == minutes("--partition=long") == "30"
    assert minutes(SBATCH_PARTITION="long") == "30"
    assert minutes("--partition", "short", SBATCH_PARTITION="long") == "15"
    folder.note(JobTime(job="1", nodes=2, began=0.0, until=29 * 60.0))
    with pytest.raises(FailedError, match="58 of 60 node minutes are taken"):
        minutes()


def test_what_bounds_a_job_is_the_trials_in_any_spelling(tmp_path: Path) -> None:
    folder, made = trial(tmp_path, steps=(step("s"),))
    for options in (
        *("--time=600", "--ti 600", "-t600", "-Ht 600", "--nodes=8", "-N8", "-sN 8", "-a0-9", "--arr=0-9"),
        *("--job-name=x", "-QJ x", "-M other", "--requeue", "-d afterok:1", "-p x : -N 8"),
    ):
        with pytest.raises(BadInputError, match="which the trial decides"):
            submit.write_job(folder, made, options.split(), {})
    words = submit.write_job(folder, made, ["-p", "dev-g", "--account=x", "--gpus-per-node=8", "--mail-user=n@x"], {})
    last = [str(word).partition("=")[0] for word in words[-6:-1]]
    assert last == ["--job-name", "--nodes", "--time", "--no-requeue", "--dependency"], "behind the user's: they win"


def test_variables_of_slurms_commands_neither_hide_a_job_nor_make_more(tmp_path: Path) -> None:
    folder, made = trial(tmp_path, steps=(step("s"),))
    for name, says in (("squeue", "echo 7 PENDING None; env | grep ^SQUEUE_ && echo 8"), ("sbatch", "echo 7")):
        (tmp_path / name).write_text(f'#!/bin/sh\n{says}\nenv >"{tmp_path}/{name}.env"\n')
        (tmp_path / name).chmod(0o755)
    names = ("SQUEUE_PARTITION", "SQUEUE_STATES", "SBATCH_ARRAY_INX", "SBATCH_CLUSTERS")
    variables = {"PATH": f"{tmp_path}:{os.environ['PATH']}", **dict.fromkeys(names, "x")}
    assert [job.number for job in submit.queued(made, variables)] == ["7"]
    assert submit.submit(folder, made, [], variables) == "7"
    seen = (tmp_path / "squeue.env").read_text() + (tmp_path / "sbatch.env").read_text()
    assert "SQUEUE_PARTITION" not in (tmp_path / "squeue.env").read_text()
    assert "SBATCH_" not in seen


def test_what_a_job_has_no_time_for_is_left_for_the_next_with_all_that_builds_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, made = trial(
        tmp_path, steps=(step("run"), step("socket", after="run"), step("with", after="run")), node_minutes=1000
    )

    def work(f: TrialFolder, one: TrialStep, _n: object, _e: object, limit_s: float, job: str) -> Record:
        if limit_s < 600:
            return Record(step=one.name, ending=Ending.TIMED_OUT, job=job)
        f.output_file(one.name).write_text('{"collective": {"ranks": 2}}')
        return Record(step=one.name, ending=Ending.DONE, job=job)

    monkeypatch.setattr(driver, "_in_job", work)
    for number, left_s in enumerate((60, 400, 10_000)):
        job = Allocation(f"{number}", ("n1", "n2"), time.monotonic() + left_s)
        run_in_job(folder, made, job, {}, lambda _: None)
        assert driver.is_over(folder, made) == (left_s == 10_000)
    assert {folder.record(one.name).ending for one in made.steps} == {Ending.DONE}  # type: ignore[union-attr]


def test_a_job_without_gpus_leaves_what_needs_them_for_one_that_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = step("image-1.gpus", words=("node", "looks", "--gpus-in", "x.sif"), nodes=1)
    target = Claim(id="image-1.target", about="target", predicted="gfx90a", source="x", step="image-1.gpus")
    runs = (step("image-1.run"), step("image-1.socket", after="image-1.run"))
    no_target, of_target = GpuFacts(why="HSA finds no GPU", no_gpu=True), GpuFacts(("gfx90a",))
    of_runs = [json_text("check-nodes", each) for each in (NO_GPU, ran(85.0), ran(12.0, Verdict.SOCKET))]
    for one, steps, outputs, why in (
        (claim("network", "ofi-cxi"), runs, of_runs, "not taken: HIP finds no GPU in the container"),
        (target, (looks,), [json.dumps(encode(each)) for each in (no_target, of_target)], "no GPU: HSA finds no GPU"),
    ):
        folder, made = trial(tmp_path / one.id, one, steps=steps)

        def work(f: TrialFolder, now: TrialStep, *_: object, outputs: list[str] = outputs) -> Record:
            f.output_file(now.name).write_text(outputs.pop(0))
            return Record(step=now.name, ending=Ending.DONE)

        monkeypatch.setattr(driver, "_in_job", work)
        in_job(folder, made, 7)
        (row,) = report_of(folder, made, {}).rows
        assert (row.outcome, row.why) == (ClaimOutcome.OPEN, f"left for the next job: {why}")
        assert not driver.is_over(folder, made)
        in_job(folder, made, 8)
        report = report_of(folder, made, {})
        assert report.rows[0].outcome is ClaimOutcome.SAME
        assert report.stand_in == "GPUs were used, and no node showed one of AMD's"
        assert report.exit_code is ExitCode.GOOD
        assert driver.is_over(folder, made)


def test_a_step_on_an_image_that_has_changed_since_its_claims_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = tmp_path / "i.sif"
    image.write_bytes(b"as planned")
    tried = TrialImage(path=str(image), content=content(image), rows=())
    folder, made = trial(tmp_path, claim("network", "ofi-cxi"), images=(tried,))
    monkeypatch.setattr(driver, "_in_job", lambda *_: pytest.fail("it was run"))
    image.write_bytes(b"another one")
    in_job(folder, made, 7)
    (row,) = report_of(folder, made, {}).rows
    assert (row.outcome, row.why) == (
        ClaimOutcome.OPEN,
        "left out: the image is another than when the claims were written down",
    )


def test_a_step_in_which_jobs_die_is_left_out_in_the_end_and_one_that_was_stopped_is_not(tmp_path: Path) -> None:
    folder, _ = trial(tmp_path, steps=(step("a"),))
    for _ in range(10):
        assert not folder.tried("a")
        folder.stopped("a")
    assert [folder.tried("a") for _ in range(4)] == [False, False, False, True]


def test_one_node_instead_of_two_costs_only_the_steps_that_need_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, made = trial(tmp_path, steps=(step("two"), step("one", nodes=1), step("later", after="two")))
    monkeypatch.setattr(driver, "_in_job", lambda _f, one, *_: Record(step=one.name, ending=Ending.DONE))
    in_job(folder, made, 7, nodes=1)
    found = {one.name: record for one in made.steps if (record := folder.record(one.name))}
    endings = {"two": Ending.WAITS, "one": Ending.DONE, "later": Ending.WAITS}
    assert {name: record.ending for name, record in found.items()} == endings
    assert found["two"].said == ("the job has 1 of 2 nodes",)
    in_job(folder, made, 8)
    assert folder.record("two").ending is Ending.DONE  # type: ignore[union-attr]


def test_two_processes_do_not_do_the_same_trial(tmp_path: Path) -> None:
    with alone(tmp_path, "job") as first, alone(tmp_path, "job") as second, alone(tmp_path, "here") as login:
        assert (first, second, login) == (True, False, True), "a job may start before its submission has returned"
    # a lock goes through no link
    (tmp_path / ".linked.lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FailedError, match="cannot be locked"), alone(tmp_path, "linked"):
        pass
    assert not (tmp_path / "elsewhere").exists()


def test_a_plan_that_no_trial_writes_is_refused(tmp_path: Path) -> None:
    changes: list[dict[str, Any]] = [{"id": "x\n#SBATCH --nodes=8"}, {"steps": (step("../../x"),)}]
    for number, change in enumerate(changes):
        folder, _ = trial(tmp_path / str(number), **change)
        with pytest.raises(BadInputError, match="is not what a trial writes"):
            folder.plan()


def test_a_trial_of_another_user_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    TrialFolder(tmp_path / "trial").make(plan(steps=(step("a"),)))
    mine = os.getuid()
    monkeypatch.setattr("os.getuid", lambda: mine + 1)
    assert main(["trial", "run", str(tmp_path / "trial")]) == ExitCode.BAD_INPUT
    assert "is the trial of another user" in capsys.readouterr().err


# -- names


@pytest.mark.threat
@given(
    st.from_regex(r"[a-z][a-z0-9]{3,11}", fullmatch=True),
    st.from_regex(r"project_[0-9]{9}", fullmatch=True),
    st.from_regex(r"nid[0-9]{6}", fullmatch=True),
)
@settings(max_examples=examples(25), deadline=None)
def test_the_file_to_share_names_no_person_project_node_or_folder(
    tmp_path_factory: pytest.TempPathFactory, user: str, project: str, node: str
) -> None:
    place = tmp_path_factory.mktemp("t") / "trial"
    folder = TrialFolder(place)
    home = f"/users/{user}"
    said = f"{node}: {home}/env/lib/librccl.so.1 of {user} in {place}/x, /scratch/{project}/{user}/i.sif, {project}"
    one = claim("rccl", f"/scratch/{project}/{user}/x.so", "image-1.probe")
    made = plan(one, replace(CLAIMS["site.libfabric"], source=said))
    folder.make(made)
    printed = json_text("check-nodes", on_nodes(group(rccl=said)))
    folder.output_file("image-1.probe").write_text(printed)
    folder.keep(Record(step="image-1.probe", ending=Ending.DONE, said=(said,)))
    folder.keep(Record(step=NODES, ending=Ending.FAILED, said=(said,)))
    (folder.looks / "node-x.look.json").write_text(json.dumps(encode(replace(NODE, node=node))))
    report = report_of(folder, made, {"USER": user, "HOME": home, "SLURM_JOB_ACCOUNT": project})
    text = json_text("trial", report)
    # a name may be a word of the program's own (`trial`), so it is looked for where it was put
    for word in (f"/{user}/", project, node, str(place), f"of {user} "):
        assert word not in text


def test_names_in_any_shape_are_hidden_and_facts_are_not(tmp_path: Path) -> None:
    tried = TrialImage(path=str(tmp_path / "secretmodel.sif"), content="0", rows=())
    one = replace(claim("network", "ofi-cxi"), about="image 1: network between two nodes")
    folder, made = trial(tmp_path, one, images=(tried,))
    hosts = (NODE.node, "nid005002", "nid009999")
    folder.note(JobTime(job="7", nodes=3, began=0, until=1, hosts=hosts, account="csc-internal"))
    for text in tomllib.loads(Path("tests/fixtures/trial/names.toml").read_text())["text"]:
        folder.keep(Record(step=one.step, ending=Ending.FAILED, said=(text["said"],)))
        (row,) = report_of(folder, made, {"USER": "anna", "HOME": "/home/anna"}).rows
        assert row.why == text["shared"]


# -- the ledger


def shared(tmp_path: Path, driver_there: str | None = NODE.gpu_driver) -> Path:
    """A trial as a real machine would have written it, with one difference."""
    row = next(iter(ledger.contents().items()))
    tried = TriedRow(row[0][0], row[0][1], next(iter(ledger.contents()[(*row[0][:2], "run")])))
    image = TrialImage(path="/i.sif", content="0123456789abcdef", rows=(tried,), rocm="6.2.4")
    every = [claim("network", "ofi-cxi"), claim("bandwidth"), claim("driver", "runs")]
    every += [CLAIMS["site.libfabric"], CLAIMS["site.driver"]]
    folder, made = trial(tmp_path, *every, images=(image,))
    folder.output_file("image-1.run").write_text(json_text("check-nodes", ran(85.0)))
    folder.keep(Record(step="image-1.run", ending=Ending.DONE, began="2026-11-25T10:00:00+00:00"))
    folder.keep(Record(step=NODES, ending=Ending.DONE, began="2026-11-25T09:00:00+00:00"))
    for node in ("x", "y"):
        look = replace(NODE, node=node, libfabric="2.1.0", gpu_driver=driver_there)
        (folder.looks / f"node-{node}.look.json").write_text(json.dumps(encode(look)))
    (tmp_path / "trial.json").write_text(json_text("trial", report_of(folder, made, {})))
    return tmp_path / "trial.json"


@pytest.fixture
def data(tmp_path: Path) -> dict[str, Path]:
    (tmp_path / "sites").mkdir()
    (tmp_path / "ledger.toml").write_text(LEDGER.read_text())
    (tmp_path / "sites" / "lumi.toml").write_text((taken_in.SITES / "lumi.toml").read_text())
    return {"ledger_file": tmp_path / "ledger.toml", "sites": tmp_path / "sites"}


def test_a_real_trial_becomes_entries_and_facts_once_and_what_differs_is_printed(
    tmp_path: Path, data: dict[str, Path]
) -> None:
    file = shared(tmp_path)
    said = [*taken_in.take_in(file, **data)]
    assert any(line.endswith(": run") for line in said)
    assert "lumi.toml: ROCm 6.2.4 runs there" in said
    (differs,) = [line for line in said if line.startswith("to correct: libfabric of the nodes: predicted 1.22.0")]
    assert differs.endswith("measured 2.1.0")
    site = find_site(str(data["sites"] / "lumi.toml"), {})
    assert site.driver is not None
    assert site.driver.evidence[-1].rank.value == "measured"
    assert "# LUMI: what every container" in (data["sites"] / "lumi.toml").read_text(), "comments stay"
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.toml")}
    [*taken_in.take_in(file, **data)]
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*.toml")}
    # what ran on another driver is no fact of the site's
    said = [*taken_in.take_in(shared(tmp_path / "other", driver_there="6.14.14"), **data)]
    assert not [line for line in said if line.endswith("runs there")]


def test_claims_of_a_site_that_were_tried_on_another_machine_are_not_taken_in(
    tmp_path: Path, data: dict[str, Path]
) -> None:
    folder, made = trial(tmp_path, CLAIMS["site.libfabric"], CLAIMS["site.identity"])
    folder.keep(Record(step=NODES, ending=Ending.DONE, began="2026-11-25T10:00:00+00:00"))
    for node in "ab":
        look = replace(NODE, node=node, variables={"SLURM_CLUSTER_NAME=lumi": False}, libfabric="2.1.0")
        (folder.looks / f"{node}.look.json").write_text(json.dumps(encode(look)))
    report = report_of(folder, made, {})
    assert report.notes
    (tmp_path / "trial.json").write_text(json_text("trial", report))
    with pytest.raises(BadInputError, match="may be of another machine"):
        [*taken_in.take_in(tmp_path / "trial.json", **data)]


def test_what_a_step_prints_goes_through_no_link(tmp_path: Path) -> None:
    folder = TrialFolder(tmp_path / "trial")
    one = step("schema", words=("schema", "trial"), nodes=0)
    folder.make(made := plan(steps=(one,)))
    (tmp_path / "precious").write_text("mine")
    (folder.steps / "schema.part").symlink_to(tmp_path / "precious")
    driver.run_here(folder, made, dict(os.environ), lambda _: None, quick=False)
    assert (tmp_path / "precious").read_text() == "mine"
    assert folder.record("schema").ending is Ending.DONE  # type: ignore[union-attr]


NOT_WRITTEN: list[tuple[tuple[Any, ...], Any]] = [
    (("site",), "../sites/lumi"),
    (("site",), "lumi\n[x]"),
    (("id",), "0123abcd\n[driver]"),
    (("measured",), "2999-01-01T00:00:00+00:00"),
    (("images", 0, "rocm"), "99 or so"),
    (("images", 0, "rows", 0, "content"), "?"),
    (("rows", 0, "measured"), "a\nb"),
    (("rows", 0, "about"), "x" * 10_000),
]


def test_a_file_that_no_trial_writes_changes_nothing(tmp_path: Path, data: dict[str, Path]) -> None:
    file = shared(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.toml")}
    whole = file.read_text()
    rehearsal = json.dumps(json.loads(whole) | {"stand_in": "GPUs"})
    texts = [("is not the report of a trial", "{}"), ("is a rehearsal", rehearsal)]
    for place, value in NOT_WRITTEN:
        inner = report = json.loads(whole)
        for key in place[:-1]:
            inner = inner[key]
        inner[place[-1]] = value
        texts.append((".", json.dumps(report)))
    for why, text in texts:
        file.write_text(text)
        with pytest.raises(BadInputError, match=why):
            [*taken_in.take_in(file, **data)]
        assert before == {path: path.read_bytes() for path in tmp_path.rglob("*.toml")}, text


def test_a_node_is_looked_at_by_its_files(tmp_path: Path) -> None:
    """The kernel gives GPUs their numbers behind those of the processors, in an order of its own."""
    for processors, buses in ((0, ("c1", "c6", "c9", "ce")), (4, ("d9", "c1", "dc", "c6"))):
        name = tmp_path / f"{processors}"
        files = {"proc/77/status": "Name:\tpython\nUid:\t54321\t54321\t54321\t54321\n"}
        for cpu in range(4):
            files[f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"] = f"{cpu % 2},{cpu % 2 + 2}\n"
        places = [(0, 0)] * processors + [(90010, int(bus, 16) << 8) for bus in buses]
        for number, (version, place) in enumerate(places):
            properties = f"gfx_target_version {version}\nlocation_id {place}\ndomain 0\n"
            files[f"sys/class/kfd/kfd/topology/nodes/{number}/properties"] = properties
        for bus in buses:
            files[f"sys/bus/pci/devices/0000:{bus}:00.0/local_cpulist"] = f"{int(bus, 16)}\n"
        for path, text in files.items():
            (name / path).parent.mkdir(parents=True, exist_ok=True)
            (name / path).write_text(text)
        look = look_at(RootFileSystem(FolderTree(name)), SNAPSHOT, LUMI, "nid000001", {})
        assert (look.cores, look.strangers) == (2, (54321,))
        assert look.near == tuple(f"{int(bus, 16)}" for bus in buses)


def test_a_folder_by_any_name_is_the_one_that_the_job_gets(tmp_path: Path) -> None:
    for name in ("a b", "it's", "$(touch x)", "new\nline"):
        folder = TrialFolder(tmp_path / name)
        folder.make(made := plan(steps=(step("s"),)))
        *_, script = words = submit.write_job(folder, made, [], {})
        assert shlex.split(Path(script).read_text().partition("\nexec ")[2])[-1] == str(tmp_path / name)
        assert f"--chdir={tmp_path / name}" in words
        assert "--output=job-%j.out" in words
    # Slurm puts the folder before the name of the job's output, and would look for another one: no output, no word
    folder = TrialFolder(tmp_path / "50%j")
    folder.make(plan(steps=(step("s"),)))
    with pytest.raises(BadInputError, match="which Slurm reads as more than that"):
        submit.write_job(folder, folder.plan(), [], {})


def test_what_a_job_really_took_counts_where_slurm_keeps_accounts(tmp_path: Path) -> None:
    """One hung before its first step, one was killed in a step that it had taken the limit of; a third is not ours."""
    folder, made = trial(tmp_path, steps=tuple(step(f"s{number}") for number in range(12)), node_minutes=200)
    for number in (7, 8):
        folder.note(JobTime(job=f"{number}", nodes=2, began=100.0 * number, until=100.0 * number + 600))
    sacct = tmp_path / "bin/sacct"
    sacct.parent.mkdir()
    sacct.write_text("#!/bin/sh\necho '7|1800|2'\necho '8|60|2'\necho '9|9999|2'\necho 'garbage'\necho '7|x|2'\n")
    sacct.chmod(0o755)
    submit.write_job(folder, made, [], {"PATH": f"{sacct.parent}:/usr/bin:/bin"})
    assert folder.spent() == 62
    sacct.write_text("#!/bin/sh\necho 'sacct: error: Slurm accounting storage is disabled'\nexit 1\n")
    submit.write_job(folder, made, [], {"PATH": f"{sacct.parent}:/usr/bin:/bin"})
    assert folder.spent() == 62


def test_a_job_that_hangs_before_it_can_note_anything_has_taken_what_it_asked_for(tmp_path: Path) -> None:
    folder = TrialFolder(tmp_path / "a trial")
    made = plan(steps=tuple(step(f"s{number}") for number in range(12)), node_minutes=100)
    folder.make(made)
    *_, script = submit.write_job(folder, made, [], {"PATH": "/usr/bin:/bin"})
    text = Path(script).read_text()
    assert "--time=50" in text
    before, _, _ = text.partition("exec ")  # which hangs
    subprocess.run(["bash", "-c", before], env={"SLURM_JOB_ID": "7"}, check=True)
    assert folder.spent() == 100
    with pytest.raises(FailedError, match="100 of 100 node minutes are taken"):
        submit.write_job(folder, made, [], {"PATH": "/usr/bin:/bin"})
    folder.note(JobTime(job="7", nodes=2, began=0.0, until=60.0))
    assert folder.spent() == 2, "it says itself what it took"
