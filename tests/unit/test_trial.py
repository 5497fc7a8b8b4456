"""`lumiimg trial`: claims and facts, limits, resumption, no names; tests/engine/test_trial.py uses a real Slurm."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
import shlex
import subprocess
import time
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lumiimg.catalog.launch import MeasuredVariable
from lumiimg.catalog.ledger import LEDGER
from lumiimg.catalog.sites import find_site
from lumiimg.check.run.collective import CollectiveOutcome, CollectiveProgram
from lumiimg.cli.main import main
from lumiimg.cluster.nodes.node import Library, UnresponsiveNodes
from lumiimg.cluster.nodes.report import NodeGroup, NodesReport
from lumiimg.cluster.nodes.slurm import Allocation
from lumiimg.cluster.trial import run
from lumiimg.cluster.trial.folder import TrialFolder, locked
from lumiimg.cluster.trial.model import (
    Claim,
    ClaimOutcome,
    Ending,
    JobTime,
    Measured,
    Reads,
    StepResult,
    TrialImage,
    TrialPlan,
    TrialStep,
    TriedRow,
)
from lumiimg.cluster.trial.node_facts import NodeFacts, facts_of_node
from lumiimg.cluster.trial.plan import content, of_site, plan_trial, rows_in
from lumiimg.cluster.trial.readings import SlurmFacts, TrialResults, notes
from lumiimg.cluster.trial.report import report_of
from lumiimg.cluster.trial.run import run_in_job
from lumiimg.core.decode import encode
from lumiimg.core.errors import BadInputError, ExitCode, FailedError, UndecidedError
from lumiimg.core.findings import Answer, Finding, Level, Severity
from lumiimg.engine.process import Completed
from lumiimg.fabric.path import FabricPath
from lumiimg.host.scan import scan_host
from lumiimg.image import FolderTree, RootFileSystem
from lumiimg.joblog import Confidence, Measurement, Verdict
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
CLAIMS = {claim.id: claim for claim in of_site(LUMI, "lumi", 2).claims}
NODES, SLURM = "nodes", "slurm"
NODE = NodeFacts(
    node="nid005001",
    shown={
        "processors": "x86_64",
        "gpu": "gfx90a",
        "gpus": "8",
        "cores": "64",
        "kernel": "6.4.0-150600.23.73_15.0.14-cray_shasta_c",
        "driver": "6.3.60300",
        "engine": "SingularityCE 4.1.3",
        "libfabric": "1.22.0",
        "glibc": "2.38",
        "interfaces": "hsn0,hsn1,hsn2,hsn3",
        "/scratch": "there",
        "/pfs": "not there",
        "identity": "there",
    },
)
READS: dict[str, Reads] = {
    "bandwidth": "speed", "gpu-code": "ran", "driver": "ran", "one-node": "listens",
    "libcxi": "path", "rccl": "path", "rccl-version": "path", "plugin": "path",
    "with": "changed", "without": "changed", "network": "network", "alike": "alike", "answer": "answer", "maps": "maps",
}  # fmt: skip
"""What the claims of an image read, by id."""


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
        site_name="lumi",
        nodes=2,
        node_minutes=100,
        images=(),
        paths=(),
        steps=every,
        claims=claims,
    )
    return replace(plain, **more)


def trial(tmp_path: Path, *claims: Claim, **more: Any) -> tuple[TrialFolder, TrialPlan]:
    """Return a folder with a plan."""
    folder, made = TrialFolder(tmp_path / "trial"), plan(*claims, **more)
    folder.make(made)
    return folder, made


def in_job(folder: TrialFolder, made: TrialPlan, number: int = 7, nodes: int = 2) -> None:
    """Run what is left in a job without a time limit."""
    names = tuple(f"n{n}" for n in range(nodes))
    run_in_job(folder, made, Allocation(f"{number}", names, None), {}, lambda _: None)


def case(*nodes: NodeFacts, slurm: SlurmFacts | None = None, **reports: NodesReport) -> TrialResults:
    named = {name.replace("__", ".").replace("_", "-"): report for name, report in reports.items()}
    steps = {name: StepResult(step=name, ending=Ending.DONE) for name in (*named, NODES, SLURM)}
    return TrialResults(plan(), steps, nodes, named | ({SLURM: slurm} if slurm is not None else {}))


def claim(key: str, predicted: str | None = None, at: str = "image-1.run", **more: Any) -> Claim:
    reads = READS[key.partition(":")[0]]
    return Claim(
        id=f"image-1.{key}", about=key, predicted=predicted, source="", date="", step=at, reads=reads, what=key, **more
    )


def on_nodes(*groups: NodeGroup, run: str = "skipped (not requested)", **more: Any) -> NodesReport:
    return NodesReport("i.sif", Answer.UNDECIDED, "", {"run": run}, "7", groups, (), (), **more)


def group(*findings: Finding, differs: tuple[str, ...] = (), libraries: tuple[str, ...] = (), **path: Any) -> NodeGroup:
    """Return a group of equal nodes, with what the processes of the probes contained; `path` is what the files say."""
    mapped = (Library("libc.so.6", "/l/libc.so.6", "aa"), *(Library(Path(file).name, file, "") for file in libraries))
    return NodeGroup(("a",), Answer.UNDECIDED, "CANNOT TELL", differs, FabricPath(**path), findings, mapped)


def ran(
    best: float | None, verdict: Verdict = Verdict.OFI_CXI, ranks: int = 16, sure: Confidence = Confidence.PROVED
) -> NodesReport:
    points = () if best is None else ((1 << 20, best),)
    row = Measurement("all_reduce_perf", None, None, None, None, "x.log", 1, None, points)
    together = CollectiveOutcome(CollectiveProgram.OWN, 2, ranks, verdict, sure, (row,))
    return on_nodes(group(), run="done", collective=together)


DONE = StepResult(step="image-1.run", ending=Ending.DONE)


def broken(code: str, now: NodesReport) -> NodesReport:
    """Return a report on a collective that had a bandwidth before it failed."""
    return replace(now, groups=(replace(group(), findings=(Finding(code, Severity.PROBLEM, Level.RUN, code),)),))


NO_GPU = on_nodes(group(), run="skipped: HIP finds no GPU in the container")
DIED = on_nodes(group(), run="failed: a rank died")


# -- of the site


def test_a_node_as_lumi_is_described_agrees_with_every_claim_about_it() -> None:
    results = case(NODE, replace(NODE, node="nid005002"))
    found = {name: results.measured(one).outcome(one) for name, one in CLAIMS.items() if one.step == NODES}
    assert found.pop("site.path:/pfs") is ClaimOutcome.DIFFERS
    on_paths = {name for name in found if name.startswith("site.path:")} - {"site.path:/scratch"}
    assert {found.pop(name) for name in on_paths} == {ClaimOutcome.UNMEASURED}, "the node was not asked"
    assert {*found.values()} == {ClaimOutcome.SAME}, found


def otherwise(**change: str | None) -> NodeFacts:
    return replace(NODE, shown=NODE.shown | change)


def both(**change: str | None) -> tuple[NodeFacts, NodeFacts]:
    return (one := otherwise(**change)), one


BLIND = replace(otherwise(libfabric=None, cores=None, gpus=None), no_fabric="unreadable")
OF_NODES = [
    ("libfabric", both(libfabric="2.1.0"), "2.1.0", ClaimOutcome.DIFFERS),
    ("libfabric", (NODE, *both(libfabric="2.1.0")[:1]), "1.22.0 on 1 node; 2.1.0 on 1 node", ClaimOutcome.DIFFERS),
    ("driver", both(driver="6.14.14"), "6.14.14", ClaimOutcome.DIFFERS),
    ("driver", both(driver="6.10.5"), "6.10.5", ClaimOutcome.SAME),  # AMD's 6.3 has the module of that version
    ("engine", both(engine="SingularityCE 4.2.0"), "SingularityCE 4.2.0", ClaimOutcome.DIFFERS),
    ("interfaces", both(interfaces="hsn0,hsn1,hsn2"), "hsn0,hsn1,hsn2", ClaimOutcome.DIFFERS),
    ("identity", both(identity="not there"), "not there", ClaimOutcome.DIFFERS),
    ("cores", both(cores="128"), "128", ClaimOutcome.DIFFERS),
    # what is not shown stays open, with the reason
    ("gpus", both(gpus=None), "the nodes do not show it", ClaimOutcome.UNMEASURED),
    ("libfabric", (replace(otherwise(libfabric=None), no_fabric="no libfabric"),) * 2, "no libfabric", ClaimOutcome.UNMEASURED),
    # a node that shows nothing, or gave no answer
    *((key, looks, None, ClaimOutcome.UNMEASURED)
      for key in ("libfabric", "cores", "gpus") for looks in ((NODE, BLIND), (BLIND, NODE), (NODE,))),
]  # fmt: skip
"""Key of the claim, what the nodes show, what is reported about it (None: anything), and the outcome."""


def test_what_nodes_show_otherwise_is_a_difference_and_what_they_do_not_show_is_open() -> None:
    for key, looks, expected, kind in OF_NODES:
        one = CLAIMS[f"site.{key}"]
        read = case(*looks).measured(one)
        assert read.outcome(one) is kind, (key, looks, read)
        assert expected is None or expected == (read.why if read.value is None else read.value), (key, looks, read)


@pytest.mark.parametrize(
    ("predicted", "shown", "same"),
    [
        ("Apptainer", "Apptainer 1.4.5", True),
        ("Apptainer 1.3", "Apptainer 1.3.4", True),
        ("Apptainer 1.3", "Apptainer 1.30.1", False),
        ("Apptainer", "SingularityCE 4.1.3", False),
        ("1.22", "1.22.0", True),
        ("48", "48.5", False),  # hours
        ("/opt/libfabric.so.1", "/opt/libfabric.so.1.22", False),
    ],
)
def test_a_version_is_as_predicted_where_it_begins_so(predicted: str, shown: str, same: bool) -> None:
    expected = ClaimOutcome.SAME if same else ClaimOutcome.DIFFERS
    assert Measured(shown).outcome(claim("answer", predicted)) is expected


def test_a_copy_of_what_a_node_shows_is_no_second_node(tmp_path: Path) -> None:
    one = CLAIMS["site.kernel"]
    folder, made = trial(tmp_path, one)
    folder.keep(StepResult(step=NODES, ending=Ending.DONE))
    for name in ("node-nid005001", "node-nid005002"):
        (folder.nodes / f"{name}.facts.json").write_text(json.dumps(encode(NODE)))
    read = folder.results(made).measured(one)
    assert (read.outcome(one), read.why) == (ClaimOutcome.UNMEASURED, "1 node gave no answer")


def test_partitions_and_mpi_are_those_of_slurm() -> None:
    results = case(slurm=SlurmFacts({"standard-g": "48", "small-g": "24"}, {"none": "there", "pmi2": "there"}))
    found = {name: results.measured(one) for name, one in CLAIMS.items() if one.step == SLURM}
    judged = {name: (read.value, read.outcome(CLAIMS[name]).value) for name, read in found.items()}
    assert judged == {
        "site.partition:standard-g": ("48", "same"),
        "site.partition:small-g": ("24", "differs"),
        "site.partition:dev-g": ("no such partition", "differs"),
        "site.mpi:pmi2": ("there", "same"),
        "site.mpi:cray_shasta": ("not there", "differs"),
    }


# -- of images


def finding(code: str, severity: Severity) -> Finding:
    return Finding(code, severity, Level.PROBE, code)


RCCL, NET = "/opt/rocm/lib/librccl.so.1.0", "/l/librccl-net.so"
LISTENS = claim("one-node", "no", "image-1.one-node")
LEAST = claim("bandwidth", "29 GB/s or more", least=29.0)
OF_IMAGES = [
    # the lines of public logs: 85 GB/s over cxi, 12 over TCP, a plugin that gets no domain
    (claim("network", "ofi-cxi"), ran(85.1), "ofi-cxi", ClaimOutcome.SAME),
    (claim("network", "ofi-cxi"), ran(12.3, Verdict.SOCKET), "socket", ClaimOutcome.DIFFERS),
    (claim("network", "ofi-cxi"), ran(None, Verdict.PLUGIN_INIT_ERROR), None, ClaimOutcome.UNMEASURED),
    (claim("network", None), ran(85.1), "ofi-cxi", ClaimOutcome.UNPREDICTED),
    (claim("network", "ofi-cxi"), ran(85.1, sure=Confidence.LIKELY), "ofi-cxi", ClaimOutcome.UNMEASURED),
    (claim("network", "socket"), ran(85.1, sure=Confidence.LIKELY), "ofi-cxi", ClaimOutcome.DIFFERS),
    (claim("network", "ofi-cxi"), NO_GPU, None, ClaimOutcome.UNMEASURED),
    (LEAST, ran(85.1), "85.1 GB/s", ClaimOutcome.SAME),
    (LEAST, ran(12.3), "12.3 GB/s", ClaimOutcome.DIFFERS),
    # 12.3 GB/s with 16 ranks says nothing about a minimum for 32
    (replace(LEAST, ranks=32), ran(12.3), None, ClaimOutcome.UNMEASURED),
    (claim("gpu-code", "runs"), ran(85.1), "runs", ClaimOutcome.SAME),
    (claim("gpu-code", "fails"), ran(85.1), "runs", ClaimOutcome.DIFFERS),
    # a plugin that cannot listen because there is no NIC shows nothing
    (LISTENS, on_nodes(group(finding("provider.cxi", Severity.OK))), "yes", ClaimOutcome.DIFFERS),
    (
        LISTENS,
        on_nodes(group(finding("plugin.loads", Severity.OK), finding("plugin.listen", Severity.PROBLEM))),
        "no",
        ClaimOutcome.SAME,
    ),
    (LISTENS, on_nodes(group(finding("provider.other", Severity.UNKNOWN))), None, ClaimOutcome.UNMEASURED),
    # nor does an image without a plugin, or with one that cannot be loaded
    (LISTENS, on_nodes(group(finding("plugin.absent", Severity.PROBLEM))), None, ClaimOutcome.UNMEASURED),
    (LISTENS, on_nodes(group(finding("plugin.loads", Severity.PROBLEM))), None, ClaimOutcome.UNMEASURED),
    # a path by a link is the same file
    (
        claim("libcxi", "/lib64/libcxi.so.1", also=("/usr/lib64/libcxi.so.1.5.0",)),
        on_nodes(group(libraries=("/usr/lib64/libcxi.so.1.5.0",))),
        "/usr/lib64/libcxi.so.1.5.0",
        ClaimOutcome.SAME,
    ),
    # what the files say is not evidence for itself
    *(
        (claim(key, value), on_nodes(group(rccl=RCCL, rccl_version="2.22.3", plugin=NET, libcxi="/l/libcxi.so.1")), None, ClaimOutcome.UNMEASURED)
        for key, value in {"rccl": RCCL, "rccl-version": "2.22.3", "plugin": NET, "libcxi": "/l/libcxi.so.1"}.items()
    ),
    (claim("rccl", RCCL), on_nodes(group(rccl=RCCL, libraries=("/mine/librccl.so.1",))), "/mine/librccl.so.1", ClaimOutcome.DIFFERS),
    (claim("plugin", NET), on_nodes(group(libraries=(NET,))), NET, ClaimOutcome.SAME),
    (
        claim("rccl-version", "2.22.3"),
        on_nodes(group(finding("rccl.runs", Severity.OK), rccl_version="2.22.3")),
        "2.22.3",
        ClaimOutcome.SAME,
    ),
    # nodes of which none was probed are not known to load the same
    (claim("alike", "all the same"), on_nodes(replace(group(), libraries=())), None, ClaimOutcome.UNMEASURED),
    # a collective that failed after it had a bandwidth
    *(
        (one, broken(code, ran(85.1)), None, ClaimOutcome.UNMEASURED)
        for one in (LEAST, claim("gpu-code", "runs")) for code in ("run.failed", "run.hang", "run.data-errors")
    ),
    (
        claim("alike", "all the same"),
        on_nodes(group(), group(differs=("another libcxi.so.1",))),
        "another libcxi.so.1",
        ClaimOutcome.DIFFERS,
    ),
]  # fmt: skip


def test_a_run_and_the_probes_are_judged_by_what_they_show() -> None:
    for one, output, value, kind in OF_IMAGES:
        read = replace(case(), printed={one.step: output}, steps={one.step: DONE}).measured(one)
        assert (read.value, read.outcome(one)) == (value, kind), one


CHANGED = [
    ("no change", ran(84.0), 85.5, "no change", ClaimOutcome.SAME),
    ("no change", ran(60.0), 85.5, "slower", ClaimOutcome.DIFFERS),
    ("no change", ran(120.0), 85.5, "faster", ClaimOutcome.DIFFERS),
    # a node less
    ("no change", ran(60.0, ranks=8), 85.5, "", ClaimOutcome.UNMEASURED),
    # without the variable it fails, and with it it may
    ("no change", DIED, None, "", ClaimOutcome.UNMEASURED),
    # if equal runs differ by 15 per cent, a difference of 20 proves nothing
    ("no change", ran(68.0), 72.0, "no change", ClaimOutcome.SAME),
    ("no change", DIED, 85.5, "it fails", ClaimOutcome.DIFFERS),
    ("no change", broken("run.hang", ran(85.0)), 85.5, "it fails", ClaimOutcome.DIFFERS),
    ("no change", ran(12.0, Verdict.SOCKET), 85.5, "socket instead of ofi-cxi", ClaimOutcome.DIFFERS),
    (None, ran(60.0), 85.5, "slower", ClaimOutcome.UNPREDICTED),
    (None, ran(None, Verdict.PLUGIN_INIT_ERROR), 85.5, "it fails", ClaimOutcome.UNPREDICTED),
    # a lack of GPUs or time is not the effect of a variable
    (None, NO_GPU, 85.5, "", ClaimOutcome.UNMEASURED),
]


def test_a_variable_is_compared_with_the_run_that_had_what_jobs_have() -> None:
    for predicted, now, again, begins, kind in CHANGED:
        one = claim("without:X", predicted, "image-1.without.X")
        alike = ran(again) if again is not None else DIED
        read = case(image_1__run=ran(85.0), image_1__again=alike, image_1__without__X=now).measured(one)
        assert (read.value or "").startswith(begins), (predicted, now, again)
        assert read.outcome(one) is kind, (predicted, now, again)
    tcp = ran(12.0, Verdict.SOCKET)
    read = case(image_1__run=tcp, image_1__again=tcp, image_1__without__X=tcp).measured(one)
    assert (read.value, read.why) == (None, "the reference run went over socket")


def test_what_one_node_of_two_says_contradicts_a_claim_and_never_proves_it() -> None:
    seen = replace(group(libraries=("/l/libcxi.so.1",)), answer=Answer.NO_OBSTACLE)
    half = replace(on_nodes(seen), silent=(UnresponsiveNodes(("b",), "gave no answer"),))
    values = {"alike": "all the same", "libcxi": "/l/libcxi.so.1", "answer": "no-obstacle"}
    agree = [claim(key, value, "image-1.probe") for key, value in values.items()]
    differ = [claim(key, "something else", "image-1.probe") for key in values]
    for one in (*agree, *differ):
        read = case(image_1__probe=half).measured(one)
        assert read.outcome(one) is (ClaimOutcome.UNMEASURED if one in agree else ClaimOutcome.DIFFERS), one
        assert "1 node gave no answer" in read.why


def test_a_collective_without_a_node_says_nothing_of_the_network_between_all() -> None:
    whole = ran(85.1)
    assert whole.collective is not None
    alone = replace(whole, collective=replace(whole.collective, nodes=1, ranks=8), groups=(one_node := group(),))
    without = claim("without:X", "no change", "image-1.without.X")
    claims = claim("network", "ofi-cxi"), claim("bandwidth", None), claim("gpu-code", "runs"), without
    for other in (
        replace(alone, silent=(UnresponsiveNodes(("b",), "gave no answer"),)),
        replace(alone, groups=(one_node, replace(one_node, nodes=("b",)))),  # could not be probed
    ):
        few = case(image_1__run=other, image_1__again=other, image_1__without__X=other)
        for one in claims:
            read = few.measured(one)
            assert (read.outcome(one), read.why) == (ClaimOutcome.UNMEASURED, "1 of 2 nodes took part in image-1.run")
    # a step for one node, in a trial on two
    assert case(image_1__run=alone).measured(claims[1]).value == "85.1 GB/s"


def test_a_plan_has_every_prediction_with_its_source_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image, place = fabric_builder.image(tmp_path / "image"), tmp_path / "t"
    assert main(["trial", "run", str(place), str(image), "--site", "lumi", "--json"]) == 0
    printed = capsys.readouterr()
    found = validated(printed.out, "trial-plan")
    assert all(one["source"] for one in found["claims"])
    assert "site.libfabric" in {one["id"] for one in found["claims"]}
    assert {one["step"] for one in found["claims"]} <= {one["name"] for one in found["steps"]}
    assert f"sbatch -p dev-g --gpus-per-node=8 {place}/job.sh" in printed.err
    assert sorted(path.name for path in place.rglob("*")) == [".lock", "job.sh", "jobs", "nodes", "plan.json", "steps"]
    assert main(["trial", "report", str(place)]) == ExitCode.UNDECIDED
    output = capsys.readouterr().out
    assert "no claim was judged" in output
    assert f"lumiimg trial run {place}" in output
    assert main(["trial", "run", str(place)]) == 0, "what is left"
    assert f"sbatch -p dev-g --gpus-per-node=8 {place}/job.sh" in capsys.readouterr().out
    made = TrialFolder(place).plan()
    claims = {one.id: one for one in made.claims}
    # harm that was seen in jobs of frameworks is not predicted for an all-reduce
    assert claims["image-1.with:NCCL_MIN_NCHANNELS=32"].predicted is None
    assert claims["image-1.without:NCCL_SOCKET_IFNAME"].predicted == "no change"
    referenced = [one for one in made.claims if "lumiimg check" not in one.source]
    undated = {one.id for one in referenced if not one.date}
    assert undated == {"image-1.alike", "image-1.socket.network"}, "those are of no source with a date"
    # each can be read of what no step has printed, of nodes that show nothing, and of a step that printed nothing
    nothing = NodeFacts(node="n")
    results = TrialResults(made, {one.name: StepResult(step=one.name, ending=Ending.DONE) for one in made.steps})
    for of in (results, replace(results, nodes=(nothing, nothing))):
        seen = {one.id: of.measured(one) for one in made.claims}
        assert not {key for key, read in seen.items() if read.value is not None or not read.why}


def test_each_value_of_a_variable_has_a_step_of_its_own(tmp_path: Path) -> None:
    tried = MeasuredVariable(
        name="FI_X", value="1", effect="inert", because="so", source="s", date=dt.date(2026, 11, 26)
    )
    site = msgspec.structs.replace(LUMI, measured=(tried, msgspec.structs.replace(tried, value="2")))
    made = plan_trial([fabric_builder.image(tmp_path / "image")], site, "lumi", {}, nodes=2, node_minutes=None)
    steps = {one.name: one for one in made.steps}
    assert len(steps) == len(made.steps)
    of_values = {one.what: steps[one.step].sets for one in made.claims if ".with:FI_X" in one.id}
    assert of_values == {"FI_X=1": {"FI_X": "1"}, "FI_X=2": {"FI_X": "2"}}


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
    words = ["trial", "run", str(tmp_path / "t"), str(fabric_builder.image(tmp_path / "image")), "--site", "lumi"]
    assert main([*words, "--nodes", "1"]) == ExitCode.BAD_INPUT
    assert "needs at least two nodes" in capsys.readouterr().err
    assert main([*words, "--nodes", "4"]) == 0
    claims = {one.id: one for one in TrialFolder(tmp_path / "t").plan().claims}
    assert claims["image-1.bandwidth"].predicted is None, "the site's reference is of 2 nodes"
    assert claims["image-1.network"].about == "image 1: network between 4 nodes"


def test_variables_that_a_trial_tries_are_not_the_users_own_and_others_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = (step("image-1.without.NCCL_X"), step("image-1.one-node", sets={"SLURM_NETWORK": "single"}))
    folder, made = trial(tmp_path, steps=steps)
    seen: list[dict[str, str]] = []

    def command(_f: object, _s: object, environment: dict[str, str], _l: float) -> Completed:
        seen.append(environment)
        return ended()

    monkeypatch.setattr(run, "_command", command)
    mine = {"NCCL_X": "1", "SINGULARITYENV_NCCL_X": "1", "SLURM_NETWORK": "job_vni", "NCCL_NET": "IB"}
    run_in_job(folder, made, Allocation("7", ("n1", "n2"), None), mine, lambda _: None)
    assert seen[0] == {"NCCL_NET": "IB"}
    facts = facts_of_node(RootFileSystem(FolderTree(tmp_path)), SNAPSHOT, LUMI, "n", seen[0])
    assert notes(case(facts)) == ["the job already had NCCL_NET set: the network results include their effect"]
    assert not notes(case(NODE))


# -- the folder, jobs and time


def ended(*, timed_out: bool = False, output: str = "") -> Completed:
    return Completed(("x",), -15 if timed_out else 0, output, timed_out=timed_out)


def test_what_is_no_trial_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trial", "report", str(tmp_path)]) == ExitCode.BAD_INPUT
    assert "is not the folder of a trial" in capsys.readouterr().err
    (tmp_path / "trial.json").touch()
    assert main(["trial", "report", str(tmp_path / "trial.json")]) == ExitCode.BAD_INPUT
    assert "trial.json: is not the folder of a trial" in capsys.readouterr().err
    image, new = str(fabric_builder.image(tmp_path / "image")), ["trial", "run", str(tmp_path / "new")]
    assert main(["trial", "run", str(tmp_path), image, "--site", "lumi"]) == ExitCode.BAD_INPUT
    assert "exists already, but is not a trial; name a new folder" in capsys.readouterr().err
    assert main([*new, image, "--site", "nowhere"]) == ExitCode.BAD_INPUT
    assert main([*new, image, "--site", "lumi", "--node-minutes", "1"]) == ExitCode.BAD_INPUT
    assert not (tmp_path / "new").exists(), "nothing is half written"
    capsys.readouterr()
    for text in ("[" * 100_000, '{"schema": 1}'):
        (tmp_path / "plan.json").write_text(text)
        assert main(["trial", "run", str(tmp_path)]) == ExitCode.BAD_INPUT
        assert len(capsys.readouterr().err.strip().splitlines()) == 1
    (tmp_path / "old").mkdir()
    trial(tmp_path / "old")
    assert main(["trial", "run", str(tmp_path / "old/trial"), image]) == ExitCode.BAD_INPUT
    assert "already has the plan of a trial" in capsys.readouterr().err


@given(st.lists(st.tuples(st.integers(1, 4), st.floats(0, 40), st.booleans()), max_size=8), st.integers(10, 400))
@settings(max_examples=examples(12), deadline=None)
def test_the_node_minutes_of_a_trial_are_never_passed(
    tmp_path_factory: pytest.TempPathFactory, jobs: list[tuple[int, float, bool]], most: int
) -> None:
    """Whatever earlier jobs used, however many nodes the next one has, and even if its steps reach their limits."""
    folder = TrialFolder(tmp_path_factory.mktemp("t") / "trial")
    folder.make(made := plan(steps=tuple(step(f"s{number}") for number in range(12)), node_minutes=most))
    clock = [1000.0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("time.time", lambda: clock[0])
        patch.setattr("time.monotonic", lambda: clock[0])
        for number, (nodes, minutes, dies) in enumerate(jobs):

            def command(_f: object, _s: object, _e: object, limit_s: float) -> Completed:
                clock[0] += min(minutes * 60, limit_s)  # noqa: B023
                if dies:  # noqa: B023
                    raise KeyboardInterrupt
                return ended()

            patch.setattr(run, "_command", command)
            names = tuple(f"n{n}" for n in range(max(nodes, 2)))
            with contextlib.suppress(KeyboardInterrupt):
                run_in_job(folder, made, Allocation(f"{number}", names, None), {}, lambda _: None)
            assert folder.spent() <= most
            clock[0] += 100


def test_a_job_asks_for_no_more_than_is_left(tmp_path: Path) -> None:
    """And what it requests counts as used, in case it hangs before it can record less."""
    folder, made = trial(tmp_path, steps=tuple(step(f"s{number}") for number in range(12)), node_minutes=200)
    text = folder.write_job(made).read_text()
    assert "#SBATCH --time=57\n" in text, "half as much again as its steps take"
    before, _, _ = text.partition("\nexec ")  # which hangs
    subprocess.run(["bash", "-c", before], env={"SLURM_JOB_ID": "7"}, check=True)
    assert folder.spent() == 114
    assert "#SBATCH --time=43\n" in folder.write_job(made).read_text()
    own = {"SLURM_JOB_NAME": made.job_name}
    run_in_job(folder, made, Allocation("7", ("n1", "n2"), time.monotonic()), own, lambda _: None)
    assert folder.spent() < 0.1, "it says itself what it took"
    folder.note("8", JobTime(nodes=2, minutes=99))
    with pytest.raises(FailedError, match="198 of 200 node minutes are used"):
        folder.write_job(made)


def test_a_folder_by_any_name_is_the_one_of_the_job(tmp_path: Path) -> None:
    for name in ("a b", "it's", "$(touch x)", "new\nline", "50%j"):
        folder = TrialFolder(tmp_path / name)
        folder.make(made := plan(steps=(step("s"),)))
        text = folder.write_job(made).read_text()
        assert shlex.split(text.partition("\nexec ")[2])[-1] == str(tmp_path / name)
        before, _, _ = text.partition("\nexec ")
        subprocess.run(["bash", "-c", before], env={"SLURM_JOB_ID": "7"}, check=True)
        assert [path.name for path in folder.jobs.iterdir()] == ["7.json"]


GOOD, LEFT, FAILED = (Ending.DONE, ""), Ending.PENDING, Ending.FAILED
REPORT, NO_REPORT = (json_text("check-nodes", one) for one in (ran(85.0), NO_GPU))
SILENT, NEVER = json_text("check-nodes", on_nodes()), "each time, the job died in it or no node answered"
RUNS = (step("run"), step("socket", after="run"))
OF_ONE = (step("two"), step("one", nodes=1), step("later", after="two"))
ONE_OF_TWO = "the job has 1 of 2 nodes"
Job = tuple[int, float, str | None, dict[str, tuple[Ending, str]]]


def a_job(prints: str | None, *, nodes: int = 2, left_s: float = 10_000, **endings: tuple[Ending, str]) -> Job:
    """Return a job: what its commands print (None: nothing, until they are ended), and how steps ended after it."""
    return nodes, left_s, prints, endings


JOBS: list[tuple[tuple[TrialStep, ...], list[Job]]] = [
    # steps for which a job has no time are left for the next one, with all that depend on them
    (RUNS, [a_job(REPORT, left_s=60), a_job(None, left_s=400, run=(LEFT, "the job's time limit was reached"))]),
    # and so is what needs GPUs in a job without them
    (RUNS, [a_job(NO_REPORT, run=(LEFT, NO_GPU.levels["run"])), a_job(REPORT, run=GOOD, socket=GOOD)]),
    # with one node instead of two, only the steps that need two are missing
    (OF_ONE, [a_job(REPORT, nodes=1, one=GOOD, two=(LEFT, ONE_OF_TWO), later=(LEFT, ONE_OF_TWO))]),
    # in a cancelled job, perhaps no node answers any more; in three of them, none ever did
    (RUNS[:1], [a_job(SILENT, run=(LEFT, "no node answered"))] * 3 + [a_job(SILENT, run=(FAILED, NEVER))]),
    # a step that would not fare better in another job is not tried again
    (RUNS[:1], [a_job(None, run=(FAILED, "ended at its limit, after 15 min"))]),
    (
        RUNS,
        [
            a_job(
                "x",
                run=(FAILED, "ended with exit code 0, without output"),
                socket=(FAILED, "left out: run had no collective"),
            )
        ],
    ),
]


def test_a_job_does_what_it_can_and_leaves_the_rest_for_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, (steps, jobs) in enumerate(JOBS):
        folder, made = trial(tmp_path / f"{number}", steps=steps, node_minutes=1000)
        for nodes, left_s, prints, endings in jobs:

            def command(f: TrialFolder, one: TrialStep, *_: object, prints: str | None = prints) -> Completed:
                f.output_file(one.name).write_text(prints or "")
                return ended(timed_out=prints is None)

            monkeypatch.setattr(run, "_command", command)
            job = Allocation(f"{number}", tuple(f"n{n}" for n in range(nodes)), time.monotonic() + left_s)
            run_in_job(folder, made, job, {}, lambda _: None)
            found = {one.name: result for one in steps if (result := folder.result(one.name))}
            assert {name: (one.ending, "".join(one.said)) for name, one in found.items()} == endings, (steps, prints)
            left = {one.name for one in steps if endings.get(one.name, (LEFT,))[0] is LEFT}
            assert {one.name for one in folder.remaining_steps(made)} == left


def test_a_report_says_what_is_left_and_that_a_stand_in_proves_nothing(tmp_path: Path) -> None:
    folder, made = trial(tmp_path, claim("network", "ofi-cxi"))
    folder.keep(StepResult(step="image-1.run", ending=LEFT, said=("no GPU",)))
    (row,) = report_of(folder, made, {}).rows
    assert (row.outcome, row.why) == (ClaimOutcome.UNMEASURED, "left for the next job: no GPU")
    folder.output_file("image-1.run").write_text(REPORT)
    folder.keep(StepResult(step="image-1.run", ending=Ending.DONE))
    report = report_of(folder, made, {})
    assert (report.rows[0].outcome, report.exit_code) == (ClaimOutcome.SAME, ExitCode.GOOD)
    assert report.stand_in == "GPUs were used, but no node showed an AMD GPU"


def test_a_step_on_an_image_that_has_changed_since_its_claims_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = tmp_path / "i.sif"
    image.write_bytes(b"as planned")
    tried = TrialImage(content=content(image), rows=())
    steps = (step("image-1.run", image=1),)
    folder, made = trial(tmp_path, claim("network", "ofi-cxi"), steps=steps, images=(tried,), paths=(str(image),))
    monkeypatch.setattr(run, "_command", lambda *_: pytest.fail("it was run"))
    image.write_bytes(b"another one")
    in_job(folder, made, 7)
    (row,) = report_of(folder, made, {}).rows
    assert (row.outcome, row.why) == (
        ClaimOutcome.UNMEASURED,
        "left out: the image has changed since the claims were written",
    )


def test_a_step_in_which_jobs_die_is_left_out_in_the_end_and_one_that_was_stopped_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files left by a kill can be read at any time, and show what had begun."""
    folder, made = trial(tmp_path, claim("network"))
    monkeypatch.setattr(run, "_command", mock.Mock(side_effect=KeyboardInterrupt))
    for _ in range(10):
        with pytest.raises(KeyboardInterrupt):
            in_job(folder, made)
        assert report_of(folder, made, {}).rows[0].why == "left for the next job: the job was stopped during it"
    keep = TrialFolder.keep
    monkeypatch.setattr(TrialFolder, "keep", lambda self, one: keep(self, one) if one.ending is Ending.BEGUN else None)
    for tries in (1, 2, 3):  # SIGKILL: nothing more is written
        with pytest.raises(KeyboardInterrupt):
            in_job(folder, made)
        assert folder.result("image-1.run") is not None
        assert folder.result("image-1.run").tries == tries  # type: ignore[union-attr]
        assert report_of(folder, made, {}).rows[0].why == "not done yet"
    monkeypatch.setattr(TrialFolder, "keep", keep)
    in_job(folder, made)
    assert report_of(folder, made, {}).rows[0].why == "each time, the job died in it or no node answered"
    assert not [*folder.remaining_steps(made)]


def test_two_processes_do_not_do_the_same_trial(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(UndecidedError, match="another process runs this trial"), locked(tmp_path):
        pytest.fail("both have it")
    with locked(tmp_path):
        pass
    # a lock does not follow links
    (tmp_path / ".lock").unlink()
    (tmp_path / ".lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FailedError, match="cannot be locked"), locked(tmp_path):
        pass
    assert not (tmp_path / "elsewhere").exists()


def test_a_plan_that_no_trial_writes_is_refused(tmp_path: Path) -> None:
    changes: list[dict[str, Any]] = [{"id": "x\n#SBATCH --nodes=8"}, {"steps": (step("../../x"),)}]
    for number, change in enumerate(changes):
        folder, _ = trial(tmp_path / str(number), **change)
        with pytest.raises(BadInputError, match="was not written by a trial of this lumiimg"):
            folder.plan()


def test_a_trial_in_a_folder_of_another_user_is_not_run_whoever_owns_its_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    TrialFolder(tmp_path / "mine").make(plan(steps=(step("a"),)))
    (theirs := tmp_path / "theirs").mkdir()
    (theirs / "plan.json").symlink_to(tmp_path / "mine/plan.json")
    real = Path.stat

    def stat(path: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        """Another user owns their folder and its content."""
        found = real(path, follow_symlinks=follow_symlinks)
        is_theirs = path == theirs or (path.parent == theirs and not follow_symlinks)
        return os.stat_result((*found[:4], found.st_uid + is_theirs, *found[5:10]))

    monkeypatch.setattr(Path, "stat", stat)
    assert main(["trial", "run", str(theirs)]) == ExitCode.BAD_INPUT
    assert "is the trial of another user" in capsys.readouterr().err
    assert [path.name for path in theirs.iterdir()] == ["plan.json"]


@pytest.mark.parametrize("taken", ['{"nodes":2,"minutes":1e308}', '{"nodes":1,"minutes":-9.5}'])
def test_what_no_job_takes_is_refused_in_one_line(
    tmp_path: Path, taken: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _ = trial(tmp_path, steps=(step("a"),))
    (folder.jobs / "1.json").write_text(taken)
    for action in ("run", "report"):
        assert main(["trial", action, str(folder.path)]) == ExitCode.BAD_INPUT
        assert "1.json: was not written by a trial" in capsys.readouterr().err


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
    message = f"{node}: {home}/env/lib/librccl.so.1 of {user} in {place}/x, /scratch/{project}/{user}/i.sif, {project}"
    one = claim("rccl", f"/scratch/{project}/{user}/x.so", "image-1.probe", also=(message,))
    made = plan(one, claim("alike", "all the same", "image-1.probe"), replace(CLAIMS["site.libfabric"], source=message))
    folder.make(made)
    printed = json_text("check-nodes", on_nodes(group(libraries=(f"{home}/librccl.so.1",), differs=(message,))))
    folder.output_file("image-1.probe").write_text(printed)
    folder.keep(StepResult(step="image-1.probe", ending=Ending.DONE, said=(message,)))
    folder.keep(StepResult(step=NODES, ending=Ending.FAILED, said=(message,)))
    (folder.nodes / "node-x.facts.json").write_text(json.dumps(encode(replace(NODE, node=node))))
    report = report_of(folder, made, {"USER": user, "HOME": home, "SLURM_JOB_ACCOUNT": project})
    text = json_text("trial", report)
    # a name may be a word of the program's own (`trial`), so it is looked for where it was put
    for word in (f"/{user}/", project, node, str(place), f"of {user} "):
        assert word not in text


def test_names_in_any_shape_are_hidden_and_facts_are_not(tmp_path: Path) -> None:
    tried = TrialImage(content="0", rows=())
    one = replace(claim("network", "ofi-cxi"), about="image 1: network between two nodes")
    folder, made = trial(tmp_path, one, images=(tried,), paths=(str(tmp_path / "secretmodel.sif"),))
    hosts = (NODE.node, "nid005002", "nid009999")
    folder.note("7", JobTime(nodes=3, minutes=1, hosts=hosts, account="csc-internal"))
    for text in tomllib.loads(Path("tests/fixtures/trial/names.toml").read_text())["text"]:
        folder.keep(StepResult(step=one.step, ending=Ending.FAILED, said=(text["said"],)))
        (row,) = report_of(folder, made, {"USER": "anna", "HOME": "/home/anna"}).rows
        assert row.why == text["shared"]


# -- the ledger


def shared(tmp_path: Path, driver_there: str | None = NODE.shown["driver"]) -> Path:
    """A trial as a real machine would have written it, with one difference."""
    row = next(iter(ledger.contents().items()))
    tried = TriedRow(row[0][0], row[0][1], next(iter(ledger.contents()[(*row[0][:2], "run")])))
    image = TrialImage(content="0123456789abcdef", rows=(tried,), rocm="6.2.4")
    every = [claim("network", "ofi-cxi"), claim("bandwidth"), claim("driver", "runs")]
    every += [CLAIMS["site.libfabric"], CLAIMS["site.driver"]]
    folder, made = trial(tmp_path, *every, images=(image,), paths=("/i.sif",))
    folder.output_file("image-1.run").write_text(json_text("check-nodes", ran(85.0)))
    folder.keep(StepResult(step="image-1.run", ending=Ending.DONE, began="2026-11-25T10:00:00+00:00"))
    folder.keep(StepResult(step=NODES, ending=Ending.DONE, began="2026-11-25T09:00:00+00:00"))
    for node in ("x", "y"):
        look = replace(otherwise(libfabric="2.1.0", driver=driver_there), node=node)
        (folder.nodes / f"node-{node}.facts.json").write_text(json.dumps(encode(look)))
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
    reported = [*taken_in.take_in(file, **data)]
    assert any(line.endswith(": run") for line in reported)
    assert "lumi.toml: ROCm 6.2.4 runs there" in reported
    (differs,) = [line for line in reported if line.startswith("to correct: libfabric of the nodes: predicted 1.22.0")]
    assert differs.endswith("measured 2.1.0")
    site = find_site(str(data["sites"] / "lumi.toml"), {})
    assert site.driver is not None
    assert site.driver.evidence[-1].rank.value == "measured"
    assert "# LUMI: what every container" in (data["sites"] / "lumi.toml").read_text(), "comments stay"
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.toml")}
    [*taken_in.take_in(file, **data)]
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*.toml")}
    # what ran on another driver is not a fact about the site
    reported = [*taken_in.take_in(shared(tmp_path / "other", driver_there="6.14.14"), **data)]
    assert not [line for line in reported if line.endswith("runs there")]


def test_claims_of_a_site_that_were_tried_on_another_machine_are_not_taken_in(
    tmp_path: Path, data: dict[str, Path]
) -> None:
    folder, made = trial(tmp_path, CLAIMS["site.libfabric"], CLAIMS["site.identity"])
    folder.keep(StepResult(step=NODES, ending=Ending.DONE, began="2026-11-25T10:00:00+00:00"))
    for node in "ab":
        look = replace(otherwise(identity="not there", libfabric="2.1.0"), node=node)
        (folder.nodes / f"{node}.facts.json").write_text(json.dumps(encode(look)))
    report = report_of(folder, made, {})
    assert report.rows[0].outcome is ClaimOutcome.DIFFERS, "libfabric, or the machine itself"
    (tmp_path / "trial.json").write_text(json_text("trial", report))
    with pytest.raises(BadInputError, match="may be of another machine"):
        [*taken_in.take_in(tmp_path / "trial.json", **data)]


def test_what_a_step_prints_goes_through_no_link(tmp_path: Path) -> None:
    folder, made = trial(tmp_path, steps=(step("schema", words=("schema", "trial")),))
    (tmp_path / "precious").write_text("mine")
    (folder.steps / "schema.part").symlink_to(tmp_path / "precious")
    run_in_job(folder, made, Allocation("7", ("a", "b"), None), dict(os.environ), lambda _: None)
    assert (tmp_path / "precious").read_text() == "mine"
    result = folder.result("schema")
    assert result is not None
    assert (result.ending, result.said) == (Ending.FAILED, ("ended with exit code 0, without output",)), (
        "it is no report"
    )
    assert [path.name for path in folder.steps.iterdir()] == ["schema.json"]


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
    for cpu in range(4):
        path = tmp_path / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        path.parent.mkdir(parents=True)
        path.write_text(f"{cpu % 2},{cpu % 2 + 2}\n")
    facts = facts_of_node(RootFileSystem(FolderTree(tmp_path)), SNAPSHOT, LUMI, "nid000001", {})
    assert (facts.node, facts.shown["cores"], facts.shown["kernel"]) == ("nid000001", "2", SNAPSHOT.kernel)
    assert facts.shown["/pfs"] == "not there"
