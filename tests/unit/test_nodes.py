"""A check of many nodes: the combined answer, whatever some of them answer."""

from __future__ import annotations

import os
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lumiimg.check.context import open_for_check
from lumiimg.check.probe.container import ProbePrograms
from lumiimg.check.probe.task import ProbeTask
from lumiimg.check.run.collective import CollectiveOutcome, CollectiveProgram
from lumiimg.check.static.process import StaticResult
from lumiimg.cli import check
from lumiimg.cli.commands import parser_for
from lumiimg.cli.inputs import Inputs
from lumiimg.cli.main import main
from lumiimg.cluster.nodes import check as nodes
from lumiimg.cluster.nodes import slurm
from lumiimg.cluster.nodes.check import (
    RESERVE_S,
    Waiting,
    Watch,
    last_lines,
    shared_gpus,
    without_nic,
)
from lumiimg.cluster.nodes.node import (
    Library,
    NodeAnswer,
    NodeAnswers,
    NodeTask,
    gather,
    identity_of,
    take_part,
    write_answer,
    write_task,
)
from lumiimg.cluster.nodes.report import build_report, differences
from lumiimg.core.decode import to_json
from lumiimg.core.errors import BadInputError, ExitCode, MissingHereError, UndecidedError
from lumiimg.core.findings import Answer
from lumiimg.core.text import hostlist
from lumiimg.engine.engine import find_engine
from lumiimg.fabric.path import FabricPath
from lumiimg.joblog import Confidence, Verdict
from lumiimg.report.document import Item
from lumiimg.report.text import show
from lumiimg.report.views.check import nodes_document
from tests.shared import fabric_builder
from tests.shared.node_answers import (
    CONTEXT,
    CXI,
    FABRIC,
    FILES,
    OTHER_CXI,
    RUN,
    WELL,
    answer,
    found,
    levels,
    saved,
    summed,
)

if TYPE_CHECKING:
    from lumiimg.engine.process import Completed

TOOLS = ProbePrograms("/probe", (("/a", "/probe"),), "the tests")


def names(first: int, count: int) -> list[str]:
    return [f"nid{number:06}" for number in range(first, first + count)]


def nodes_by_reason(gathered: NodeAnswers) -> dict[str, tuple[str, ...]]:
    return {entry.why: entry.nodes for entry in gathered.silent}


# -- gathering --


TROUBLE = NodeAnswer(RUN, "", trouble="no working container engine here")
BROKEN = replace(WELL, findings=found("plugin.loads problem"))
SILENT: dict[str, tuple[str, ...]] = {"started, but gave no answer": ("nid000064",)}
JOBS: list[tuple[list[tuple[int, NodeAnswer | None]], dict[str, tuple[str, ...]], Answer, str]] = [
    ([(4, WELL)], {}, Answer.NO_OBSTACLE, "(4 nodes, all the same)"),
    (
        [(60, WELL), (3, OTHER_CXI), (1, None)],
        SILENT,
        Answer.UNDECIDED,
        (
            "CANNOT TELL for 1 of 64 nodes: 60 the same; "
            "3 another libcxi.so.1 (build cccccccc instead of aaaaaaaa); 1 started, but gave no answer"
        ),
    ),
    ([(2, WELL), (1, BROKEN)], {}, Answer.NO, "NO on 1 of 3 nodes: 2 the same; 1 "),
    ([(1, TROUBLE)], {}, Answer.UNDECIDED, "no working container engine here"),
    # they differ in something that is reported nowhere else
    ([(2, TROUBLE), (1, replace(TROUBLE, kernel="6.5"))], {}, Answer.UNDECIDED, "1 kernel 6.5 instead of "),
]
"""Number of nodes by answer (None: no answer), silent nodes and why, the combined answer, and the sentence."""


def test_nodes_that_are_the_same_are_one_group_and_one_keeps_the_rest_from_being_green(tmp_path: Path) -> None:
    for number, (of_nodes, silent, decided, sentence) in enumerate(JOBS):
        (folder := tmp_path / str(number)).mkdir()
        job = names(1, sum(count for count, _ in of_nodes))
        each = [given for count, given in of_nodes for _ in range(count)]
        for node, given in zip(job, each, strict=True):
            if given is not None:
                answer(folder, node, given)
        gathered = gather(folder, RUN, job, started=job)
        assert [len(group.nodes) for group in gathered.groups] == [count for count, expected in of_nodes if expected]
        assert nodes_by_reason(gathered) == silent
        report = summed(folder, job)
        if silent:
            assert report.sentence == sentence
            assert report.output == ("srun: error: x",)
            assert nodes_by_reason(gather(folder, RUN, job, started=job[:60])) == {"never started": ("nid000064",)}
        assert report.answer is decided, sentence
        assert sentence in report.sentence
        assert "will work" not in report.sentence
        # job scripts have various names: the proposal is a line for any of them
        if decided is Answer.NO and len(of_nodes) > 1:
            command = str(report.advice.next)
            assert re.fullmatch(r"#SBATCH --exclude=[\w,\[\]-]+", command), command
            assert report.advice.where == "in the job script"


GARBAGE = [
    b"",
    b"garbage",
    b"{}",
    b"[" * 100_000,
    b'{"run": "of-this-check", "node": "a", "gpus": "8"}',
    b'{"run": "of-this-check", "node": "a", "libraries": [7]}',
    b'{"run": "of-this-check", "node": "a", "findings": [{"severity": "good"}]}',
    b'{"run": "of-this-check", "node": "a", "findings": [{"id": "rccl.runs", "remedy": [{"text": 7}]}]}',
    to_json(replace(WELL, node="a", findings=found("rccl.unheard-of ok"))).encode(),
    b"x" * (1 << 20) + b"xx",
]


@pytest.mark.threat
def test_garbage_is_a_fact_about_its_node_and_of_no_weight_for_the_others(tmp_path: Path) -> None:
    answer(tmp_path, "a")
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    file.unlink()
    answer(tmp_path, "b")
    for data in (*GARBAGE, *(whole[:length] for length in {*range(0, len(whole), 7), len(whole) - 1})):
        (tmp_path / "node-a.77.json").write_bytes(data)
        gathered = gather(tmp_path, RUN, ["a", "b"], started=["a", "b"])
        assert [group.nodes for group in gathered.groups] == [("b",)], data[:80]
        (silent,) = gathered.silent
        assert silent.nodes == ("a",), data[:80]
        assert "answer" in silent.why, data[:80]


BAD = replace(WELL, findings=found("plugin.listen problem", "rccl.runs ok"))
GIVEN: list[tuple[list[tuple[str, NodeAnswer, str]], list[str], dict[str, tuple[str, ...]], Answer]] = [
    # answers left by an earlier check, or by a node of another job
    ([("a", WELL, "of-an-earlier-one"), ("x", WELL, RUN)], [], {"never started": ("a", "b", "c")}, Answer.UNDECIDED),
    # a node that answers twice must say the same
    ([("b", WELL, RUN), ("b", WELL, RUN), ("a", WELL, RUN), ("a", OTHER_CXI, RUN)], ["b"], {
        "gave 2 different answers": ("a",), "never started": ("c",),
    }, Answer.UNDECIDED),
    # one that says no does not count among the others
    ([("a", WELL, RUN), ("b", BAD, RUN), ("c", BAD, RUN)], ["bc", "a"], {}, Answer.NO),
]  # fmt: skip
"""Answers in a folder, groups of nodes whose answers count, why the others have none, and the combined answer."""


@pytest.mark.threat
def test_an_answer_counts_for_its_own_node_and_for_this_check_alone(tmp_path: Path) -> None:
    for number, (given, counted, silent, decided) in enumerate(GIVEN):
        (folder := tmp_path / f"{number}").mkdir()
        for order, words in enumerate(given):
            answer(folder, *words)
            (file,) = folder.glob(f"*.{os.getpid()}.json")
            file.rename(folder / f"node-{words[0]}.{order}.json")
        gathered = gather(folder, RUN, "abc", started=[])
        assert ["".join(group.nodes) for group in gathered.groups] == counted
        assert nodes_by_reason(gathered) == silent
        assert summed(folder, [*"abc"]).answer is decided


@pytest.mark.threat
def test_any_name_of_a_node_stays_a_name_whatever_the_clock_of_its_file_system(tmp_path: Path) -> None:
    folder = tmp_path / "check"
    folder.mkdir()
    for node in ("nid 1", "a/b", "../../etc/x", "ü", "a.b.c", "x" * 60, "a;rm -rf", ".hidden", "%2e"):
        answer(folder, node)
        (file,) = folder.iterdir()
        os.utime(file, (0, 0))
        assert [group.nodes for group in gather(folder, RUN, [node], started=[]).groups] == [(node,)]
        assert [path.name for path in tmp_path.iterdir()] == ["check"]
        file.unlink()


# -- waiting --


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def watching(folder: Path, *job: str, ends: float | None = None) -> tuple[Watch, Clock, list[Waiting]]:
    clock, heard = Clock(), list[Waiting]()
    return Watch(folder, job, heard.append, clock, ends), clock, heard


def test_a_node_that_hangs_is_not_waited_for_longer_than_its_time(tmp_path: Path) -> None:
    seen, clock, heard = watching(tmp_path, "a", "b")
    (tmp_path / "node-a.1.started").touch()
    (tmp_path / "node-b.1.started").touch()
    assert not seen.is_over()
    answer(tmp_path, "a")
    assert not seen.is_over()
    assert [(now.answered, now.nodes) for now in heard] == [(0, ("a", "b")), (1, ("b",))]
    assert heard[-1].seconds == pytest.approx(nodes.NODE_LIMIT_S, abs=10), "from when it was seen to start"
    clock.now += nodes.NODE_LIMIT_S - 10
    assert not seen.is_over()
    clock.now += 20
    assert seen.is_over()
    assert seen.waiting == {"b"}


def test_a_step_that_does_not_end_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    for has_answered, limit_s in ((False, nodes.FIRST_LIMIT_S), (True, nodes.END_LIMIT_S)):
        seen, clock, _ = watching(tmp_path, "a")
        if has_answered:
            answer(tmp_path, "a")
        assert not seen.is_over()
        clock.now += limit_s + 10
        assert seen.is_over(), has_answered


# -- what it comes to --


OTHERS = [
    (replace(WELL, fabric=replace(WELL.fabric, provider="tcp")), "provider tcp instead of cxi"),
    (replace(WELL, nics=WELL.nics[:3]), "other NICs: 3, firmware 1.5.53 instead of 4, firmware 1.5.53"),
    (replace(WELL, nics=()), "other NICs: none instead of 4, firmware 1.5.53"),
    (
        replace(WELL, nics=(*WELL.nics[:3], replace(WELL.nics[3], link_is_up=False))),
        "other NICs: 4, 1 down, firmware 1.5.53 instead of 4, firmware 1.5.53",
    ),
    (replace(WELL, gpus=7), "GPUs 7 instead of 8"),
    (replace(WELL, gpu_driver=None), "amdgpu none instead of 6.3.60300"),
    (replace(WELL, kernel="6.4.1"), "kernel 6.4.1 instead of 6.4.0-150600.23.73_15.0.14-cray_shasta_c"),
    (replace(WELL, libraries=(FABRIC,)), "without libcxi.so.1"),
    (
        replace(WELL, libraries=(FABRIC, Library(CXI.name, "/opt/libcxi.so.1", CXI.build))),
        f"libcxi.so.1 from /opt/libcxi.so.1 instead of {CXI.path}",
    ),
    (replace(WELL, trouble="no working container engine here"), "not probed: no working container engine here"),
    (replace(WELL, findings=found("provider.cxi problem", "rccl.runs ok")), "provider.cxi is problem"),
    (replace(WELL, findings=found("rccl.runs ok")), "no provider.cxi"),
    (replace(WELL, findings=(*WELL.findings, *found("rccl.runs ok"))), "something that is not shown here"),
]


def test_a_difference_is_named_in_a_few_words_and_many_are_counted() -> None:
    for other, words in OTHERS:
        assert differences(other, WELL) == (words,)
    assert differences(WELL, WELL) == ()
    many = tuple(Library(f"lib{n}.so.1", f"/l/lib{n}.so.1", "dd") for n in range(40))
    listed = differences(replace(WELL, libraries=(*WELL.libraries, *many)), WELL)
    assert listed[-1] == "37 more differences"
    assert len(listed) == 4
    (long,) = differences(replace(WELL, kernel="5" * 500_000), WELL)
    assert len(long) < 1000, "an answer of a node may hold anything"


ENGINE = "Apptainer 1.4.5 cannot start a container here: the disk or the quota is full"


def no_container(node: str, number: int) -> NodeAnswer:
    """Return the answer of a node whose engine fails, with a message that is unique to the node."""
    message = f"FATAL:   extract: /tmp/rootfs-{number}/root: No space left on device ({node}, pid {number})"
    return NodeAnswer(RUN, node, trouble=f"{ENGINE}: {message}", to_do="free some space", said=(message,))


def test_an_engine_that_starts_no_container_is_the_verdict_in_its_words_with_a_command_that_shows_it(
    tmp_path: Path,
) -> None:
    job = names(1, 4)
    for number, node in enumerate(job):
        answer(tmp_path, node, no_container(node, 4000 + 77 * number))
    report = summed(tmp_path, job)
    assert [group.nodes for group in report.groups] == [tuple(job)], "their words differ by the node alone"
    assert report.sentence.startswith(f"CANNOT TELL: not probed: {ENGINE}")
    assert report.advice.why == no_container(job[0], 4000).said[0]
    assert report.advice.next == "srun --nodes=1 --nodelist=nid000001 lumiimg check image.sif --level=probe --verbose"
    assert report.levels["probe"] == "not done"
    (shown,) = (item for item in nodes_document(report).sections[0].blocks if isinstance(item, Item))
    assert shown.remedies == ("free some space",)
    answer(tmp_path, job[0], replace(no_container(job[0], 1), trouble="x" * 200_000, to_do="x" * 200_000))
    hostile = summed(tmp_path, job[:1])
    assert len(hostile.sentence) < 1000
    answer(tmp_path, job[0], no_container(job[0], 4000))
    # if others are well, these nodes are at fault
    answer(tmp_path, "nid000009")
    mixed = summed(tmp_path, [*job, "nid000009"])
    assert mixed.advice.next == "#SBATCH --exclude=nid[000001-000004]"
    assert mixed.levels["probe"] == "done on 1 node"


def test_thousands_of_nodes_each_in_its_own_way_make_a_short_report(tmp_path: Path) -> None:
    job = names(0, 300)
    for number, node in enumerate(job):
        libraries = (FABRIC, Library("libcxi.so.1", f"/{'x' * 4000}/libcxi.so.1", f"{number:040x}"))
        answer(tmp_path, node, replace(WELL, libraries=libraries))
    answer(tmp_path, "nid000300", BROKEN)
    report = summed(tmp_path, [*job, "nid000300"])
    assert report.answer is Answer.NO, "one that says no is not lost among them"
    assert len(report.groups) <= 23
    assert sorted(node for group in report.groups for node in group.nodes) == [*job, "nid000300"]
    assert len(report.sentence) < 1500
    assert "of 280 more kinds, of which the first is shown" in report.sentence


# -- how many GPUs there are --


def grouped(folder: Path, *of_nodes: NodeAnswer) -> NodeAnswers:
    for number, given in enumerate(of_nodes):
        answer(folder, f"nid{number:06}", given)
    return gather(folder, RUN, names(0, len(of_nodes)), started=[])


def test_what_gpus_there_are_is_what_the_nodes_say(tmp_path: Path) -> None:
    assert shared_gpus(grouped(tmp_path, WELL, WELL, OTHER_CXI).groups) == 8
    seven, none = replace(WELL, gpus=7), replace(WELL, gpus=0)
    with pytest.raises(MissingHereError, match="0 on nid000003, 7 on nid000002, 8 on nid") as caught:
        shared_gpus(grouped(tmp_path, WELL, WELL, seven, none).groups)
    assert "--gpus-per-node" in str(caught.value)
    why = "HIP finds no GPU in the container: no ROCm-capable device is detected"
    answer(tmp_path, "b", none)
    write_answer(tmp_path, NodeAnswer(RUN, "c", gpus=0, no_gpu=why))
    with pytest.raises(MissingHereError, match="no ROCm-capable device is detected; request"):
        shared_gpus(gather(tmp_path, RUN, ["b", "c"], started=[]).groups)
    with pytest.raises(MissingHereError, match="no node could be probed"):
        shared_gpus(())


def test_a_collective_over_nodes_without_a_nic_proves_nothing_of_the_image(tmp_path: Path) -> None:
    down = replace(WELL, nics=tuple(replace(nic, link_is_up=False) for nic in WELL.nics))
    groups = grouped(tmp_path, WELL, WELL, replace(WELL, nics=()), down).groups
    assert without_nic(groups) == "no Slingshot NIC with its link up on nid[000002-000003]"
    assert without_nic(groups[:1]) is None


def test_a_collective_that_is_owed_and_not_taken_keeps_the_rest_from_being_green(tmp_path: Path) -> None:
    gathered = grouped(tmp_path, WELL, WELL)
    report = build_report(CONTEXT, FILES, "7", levels(gathered, "skipped: no GPU", wanted_run=True))
    assert report.answer is Answer.UNDECIDED
    assert report.sentence.startswith("CANNOT TELL: level run skipped: no GPU; no obstacle found at level probe")
    assert report.levels["run"] == "skipped: no GPU"
    assert report.groups[0].nodes == ("nid000000", "nid000001"), "what the nodes answered is told all the same"
    assert build_report(CONTEXT, FILES, "7", levels(gathered)).answer is Answer.NO_OBSTACLE


# -- one node --


def task(image: Path) -> NodeTask:
    probes = ProbeTask(str(image), StaticResult(FabricPath(rccl="/l/librccl.so.1")), TOOLS)
    return NodeTask(RUN, identity_of(image), probes, None)


@pytest.fixture
def image(tmp_path: Path) -> Path:
    (tmp_path / "image.sif").write_bytes(b"an image" * 100_000)
    return tmp_path / "image.sif"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a check, shared by all nodes."""
    (tmp_path / "check").mkdir()
    return tmp_path / "check"


@pytest.mark.usefixtures("no_namespaces")
def test_a_node_without_an_engine_or_with_another_image_says_so_and_probes_nothing(image: Path, folder: Path) -> None:
    write_task(folder, task(image))
    (group,) = take(folder).groups
    assert "no working container engine here" in (group.answer.trouble or "")
    started, answered = sorted(folder.glob("node-*"), key=lambda path: path.suffix, reverse=True)
    assert (started.suffix, answered.suffix) == (".started", ".json")
    answered.unlink()
    image.write_bytes(b"an image" * 99_999 + b"an IMAGE")
    (group,) = take(folder).groups
    assert (group.answer.trouble or "").startswith("another image is there (800000 bytes, ")


def take(folder: Path) -> NodeAnswers:
    take_part(folder, {"PATH": "/nowhere", "SLURMD_NODENAME": "nid000001"})
    return gather(folder, RUN, ["nid000001"], started=[])


def test_a_folder_that_the_node_does_not_have_is_named_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="a folder that all nodes share") as caught:
        take_part(tmp_path / "gone", {"SLURMD_NODENAME": "nid000009"})
    assert "nid000009" in str(caught.value)
    message = f"lumiimg: {caught.value}\nsrun: error: nid000009: task 0: Exited with exit code 2\n"
    gathered = gather(tmp_path, RUN, ["nid000008", "nid000009"], started=[], printed=message)
    without = f"without the folder {Path.cwd()}: start the check in a folder that all nodes share: project or scratch, not /tmp"
    assert nodes_by_reason(gathered) == {"never started": ("nid000008",), without: ("nid000009",)}


# -- Slurm, where it is missing or fails; stand-ins for its commands --


@pytest.fixture
def stand_in(tmp_path: Path) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    return folder


def program(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def in_job(folder: Path, **variables: str) -> dict[str, str]:
    path = f"{folder}:/usr/bin:/bin"
    return {"PATH": path, "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "nid[1-2]", **variables}


def test_where_there_are_no_nodes_to_ask_it_is_reported(stand_in: Path) -> None:
    assert slurm.find_allocation({"PATH": "/nowhere"}) is None, "outside of a job"
    with pytest.raises(MissingHereError, match="scontrol is not on PATH"):
        slurm.find_allocation({**in_job(stand_in), "PATH": str(stand_in)})
    with pytest.raises(BadInputError, match="one of 8 tasks"):  # which does not start a step of its own
        slurm.find_allocation(in_job(stand_in, SLURM_STEP_ID="0", SLURM_STEP_NUM_TASKS="8"))
    with pytest.raises(BadInputError, match="job 7 is heterogeneous, with 2 components"):
        slurm.find_allocation(in_job(stand_in, SLURM_HET_SIZE="2"))
    of_salloc = {"SLURM_JOB_ID": "7", "SLURM_HET_SIZE": "2", "SLURM_JOB_ID_HET_GROUP_0": "7"}
    with pytest.raises(BadInputError, match="job 7 is heterogeneous, with 2 components"):
        slurm.find_allocation(of_salloc)
    program(stand_in, "scontrol", "echo 'scontrol: error: Unable to contact slurm controller' >&2; exit 1")
    for submitted_from_another in ({}, of_salloc | {"SLURM_JOB_ID": "9"}):
        with pytest.raises(UndecidedError, match="Unable to contact slurm controller"):
            slurm.find_allocation(in_job(stand_in) | submitted_from_another)


def asked(
    folder: Path, names: tuple[str, ...], image: Path, environment: dict[str, str], ends: float | None = None
) -> tuple[NodeAnswers, Completed]:
    """Run the step of the probes; return the answers, and how the step ended."""
    job = nodes.NodesOfJob(folder, names, environment, lambda _: None, ends)
    gathered = job.probe(find_engine(os.environ), task(image).probes, None)
    assert job.done is not None
    return gathered, job.done


def test_a_step_that_does_not_start_leaves_every_node_silent_with_slurms_words(
    stand_in: Path, image: Path, folder: Path
) -> None:
    program(stand_in, "srun", "echo 'srun: error: Unable to create step for job 7: Job is suspended' >&2; exit 1")
    gathered, done = asked(folder, ("a", "b"), image, in_job(stand_in))
    assert nodes_by_reason(gathered) == {"never started": ("a", "b")}
    report = build_report(CONTEXT, FILES, "7", levels(gathered), last_lines(done))
    assert report.answer is Answer.UNDECIDED
    assert report.sentence == "CANNOT TELL for 2 of 2 nodes: 2 never started"
    assert report.output == ("srun: error: Unable to create step for job 7: Job is suspended",)


def test_a_step_has_its_own_shape_whatever_that_of_the_job_is(stand_in: Path) -> None:
    """In the environment of a job, srun inherits the shape of the job's tasks from variables."""
    program(stand_in, "srun", 'echo "$@"; env')
    shape = {"SLURM_HINT": "nomultithread", "SLURM_CPUS_PER_TASK": "7", "SLURM_GPUS_PER_TASK": "1", "SLURM_EXACT": "1"}
    variables = {**in_job(stand_in), **shape, "SLURM_NETWORK": "job_vni"}
    alone, *seen = slurm.run_step(("a", "b"), ["x"], variables, timeout_s=421).output.splitlines()
    wanted = {"--overlap", "--gpu-bind=none", "--cpu-bind=none", "--mem=0", "--quit-on-interrupt"}
    assert wanted <= set(alone.split())
    assert not {line for line in seen if line.partition("=")[0] in shape}
    assert "SLURM_NETWORK=job_vni" in seen
    # a collective ends at its time limit even if srun does not end it
    together, *_ = slurm.run_step(("a", "b"), ["x"], variables, timeout_s=421, together=True).output.splitlines()
    assert {"--time=8", "--kill-on-bad-exit=1"} <= set(together.split())
    assert "--time" not in alone


def test_a_step_is_ended_before_the_time_of_the_job_is_up(
    stand_in: Path, image: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("secrets.token_hex", lambda _: RUN)
    answer(folder, "a")
    (folder / "node-b.1.started").touch()
    program(stand_in, "srun", "exec sleep 600")
    ends = time.monotonic() + RESERVE_S + 1
    gathered, done = asked(folder, ("a", "b"), image, in_job(stand_in), ends)
    assert time.monotonic() < ends
    assert done.timed_out
    assert [group.nodes for group in gathered.groups] == [("a",)]
    assert nodes_by_reason(gathered) == {"started, but gave no answer before the job's time limit": ("b",)}


def test_a_collective_is_ended_before_the_time_of_the_job_is_up_and_says_nothing(stand_in: Path, folder: Path) -> None:
    """So that the answers of the nodes are reported, and a job that was too short is not taken for a hang."""
    program(stand_in, "srun", f"echo >>{stand_in}/started; exec sleep 600")
    for left_s, started in ((-1.0, 0), (0.5, 1)):
        job = nodes.NodesOfJob(folder, "ab", {}, lambda _: None, time.monotonic() + RESERVE_S + left_s)
        with (
            pytest.raises(MissingHereError, match="the job's time limit is reached"),
            (folder / "log").open("wb") as log,
        ):
            job.start("ab", ["x"], in_job(stand_in), log)
        assert len((stand_in / "started").read_text()) == started if started else not (stand_in / "started").exists()


def test_more_nodes_than_the_job_has_are_refused() -> None:
    with pytest.raises(BadInputError, match="job 7 has 2 nodes") as caught:
        nodes.check_nodes(CONTEXT, 3, None, slurm.Allocation("7", ("a", "b")), print)
    assert "--nodes 3" in str(caught.value)


def test_silent_nodes_alone_are_asked_again_and_the_report_is_of_all(tmp_path: Path) -> None:
    first, second, third, fourth = job = names(1, 4)
    report = saved(tmp_path, "report.json", [(first, WELL), (second, WELL), (third, None), (fourth, None)])
    earlier = nodes.report_to_complete(report, Path("image.sif"))
    assert earlier.silent_nodes == (third, fourth)
    allocation = slurm.Allocation("7", tuple(job))
    assert allocation.of(earlier.silent_nodes).nodes == (third, fourth)
    with pytest.raises(BadInputError, match="job 7 does not have nid000009"):
        allocation.of(["nid000004", "nid000009"])
    (again := tmp_path / "again").mkdir()
    answer(again, third)
    answer(again, fourth, OTHER_CXI)
    taken = levels(gather(again, RUN, [third, fourth], started=job))
    whole = build_report(CONTEXT, FILES, "8", taken, ("srun: error: x",), earlier)
    assert [(group.nodes, len(group.differs)) for group in whole.groups] == [
        ((first, second, third), 0),
        ((fourth,), 1),
    ]
    assert (whole.silent, whole.output, whole.levels["probe"]) == ((), (), "done on 4 nodes")
    assert whole.sentence.startswith("no obstacle found on 4 of 4 nodes: 3 the same; 1 another libcxi.so.1 (build ")
    with pytest.raises(BadInputError, match=r"is a report about another image: /.*image\.sif"):
        nodes.report_to_complete(report, Path("other.sif"))
    with pytest.raises(BadInputError, match="all nodes answered in it"):
        nodes.report_to_complete(saved(tmp_path, "all.json", [(first, WELL)]), Path("image.sif"))


def test_a_collective_over_more_nodes_stays_in_the_report_when_others_are_asked_again(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    answer(tmp_path / "a", "a")
    ran = CollectiveOutcome(CollectiveProgram.OWN, 2, 16, Verdict.OFI_CXI, Confidence.PROVED, ())
    earlier = replace(summed(tmp_path / "a", ["a", "b"]), collective=ran, levels={"run": "done: 16 ranks"})
    (tmp_path / "b").mkdir()
    answer(tmp_path / "b", "b")
    for wanted, expected in ((False, Answer.NO_OBSTACLE), (True, Answer.UNDECIDED)):
        taken = levels(gather(tmp_path / "b", RUN, ["b"], started=["b"]), "one GPU", wanted_run=wanted)
        whole = build_report(CONTEXT, FILES, "8", taken, (), earlier)
        assert (whole.collective, whole.levels["run"], whole.answer) == (ran, "done: 16 ranks", expected)


def test_an_image_without_rccl_is_refused_before_a_job_is_submitted_and_before_anything_runs_on_nodes(
    tmp_path: Path, stand_in: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = fabric_builder.image(tmp_path / "root")
    for path in root.rglob("librccl.so*"):
        path.unlink()
    with open_for_check(root) as context, pytest.raises(BadInputError, match="root: has no RCCL to test on nodes"):
        nodes.check_nodes(context, 1, None, slurm.Allocation("7", ("a", "b")), print)
    program(stand_in, "sbatch", f"touch {stand_in}/submitted; echo 12; exit 1")
    monkeypatch.setenv("PATH", str(stand_in), prepend=os.pathsep)
    assert main(["check", str(root), "--nodes", "2"]) == ExitCode.BAD_INPUT
    message = capsys.readouterr().err
    assert f"has no RCCL to test on nodes; without --nodes: lumiimg check {root}" in message
    assert not (stand_in / "submitted").exists()


IN_ITS_FOLDER = 'for word; do case $word in --chdir=*) cd "${word#--chdir=}";; esac; done\n'
SBATCH: list[tuple[str, str, list[str]]] = [
    ("echo 'sbatch: error: invalid partition specified: x' >&2; exit 1", "partition specified: x.*--sbatch=", []),
    ("echo 12; echo 'error: JOB 12 CANCELLED DUE TO TIME LIMIT' > job.out; exit 1", "DUE TO TIME LIMIT", ["12"]),
    # the number is not part of its message
    ("echo '12;cluster'; >job.out; exit 1", "^(?!.*12).*it printed nothing; sacct shows", ["12"]),
    ("echo 12; exit 1", "left nothing in /.*do not see this folder.*a folder that all nodes share", ["12"]),
    # lumiimg in the job has printed what to do
    ("echo 12; echo 'lumiimg: scontrol does not list' > job.out; exit 70", "scontrol does not list$", ["12"]),
]
"""What sbatch does, what is then reported, and which jobs exist."""


def test_a_job_without_a_report_is_reported_in_its_words_and_says_nothing_of_the_image(
    stand_in: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for script, expected, jobs in SBATCH:
        program(stand_in, "sbatch", IN_ITS_FOLDER + script)
        heard: list[str] = []
        with pytest.raises(UndecidedError, match=f"(?s){expected}") as caught:
            nodes.check_by_job(["check"], 2, [], {"PATH": f"{stand_in}:/usr/bin:/bin"}, heard.append)
        assert heard == [f"job {job} is submitted; waiting for it (Ctrl-C cancels it)" for job in jobs], script
        assert caught.value.exit_code == ExitCode.UNDECIDED, script
        assert [path.name for path in tmp_path.iterdir()] == ["bin"], "nothing is left"


REASONS = [
    ("PENDING 3 four Resources", "job 12 waits: not enough nodes are free (Resources)", ""),
    (
        "PENDING 3 four QOSMaxJobsPerUserLimit",
        "the project or the QOS has reached its limit (QOSMaxJobsPerUserLimit)",
        "",
    ),
    ("PENDING 3 four SomethingNew", "job 12 waits: SomethingNew", ""),
    ("PENDING 3 four PartitionNodeLimit", "its partition allows, or nodes are down (PartitionNodeLimit)", ""),
    ("PENDING 4 four PartitionNodeLimit", "", "it requests more nodes than its partition allows"),
    ("PENDING 6 four PartitionNodeLimit", "", "it requests more nodes than its partition allows"),
    ("PENDING 3 four PartitionConfig", "", "more nodes or time than its partition allows (PartitionConfig)"),
    ("PENDING 3 four QOSMaxNodePerJobLimit", "", "than the project or QOS allows per job (QOSMaxNodePerJobLimit)"),
    ("PENDING 3 four None", "", ""),
    ("RUNNING 3 four None", "", ""),
    ("", "", ""),
]
"""What squeue prints about a job, what is printed during the wait, and what ends the wait."""


def test_why_a_job_waits_is_reported_and_one_that_would_wait_for_ever_is_cancelled(
    stand_in: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(slurm, "_FIRST_LOOK_S", 0.0)
    program(stand_in, "scancel", f"echo $2 >>{stand_in}/cancelled")
    program(stand_in, "sinfo", "echo '5 - 1-3 -'")
    program(stand_in, "sbatch", f"echo 12; until [ -e {stand_in}/asked ]; do sleep 0.05; done; sleep 0.5; exit 1")
    for squeue, waits, never in REASONS:
        for left in ("asked", "cancelled"):
            (stand_in / left).unlink(missing_ok=True)
        program(stand_in, "squeue", f"echo '{squeue}'; touch {stand_in}/asked")
        heard: list[str] = []
        with pytest.raises(UndecidedError, match=re.escape(never) or "left nothing in"):
            nodes.check_by_job(["check"], 2, [], {"PATH": f"{stand_in}:/usr/bin:/bin"}, heard.append)
        assert len(heard) == 1 + bool(waits), squeue
        assert waits in heard[-1]
        assert (stand_in / "cancelled").exists() == bool(never), squeue


# -- what is printed --


def test_names_of_nodes_are_cut_at_the_width_and_whole_where_all_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    every_other = names(1, 400)[::2]
    for node in every_other:
        answer(tmp_path, node)
    answer(tmp_path, "nid000402", OTHER_CXI)
    report = summed(tmp_path, [*every_other, "nid000402", *names(501, 800)[::2]])
    show(nodes_document(report))
    shown = capsys.readouterr().out
    assert hostlist(every_other) in shown, "whole: names are never cut"
    assert max(len(line) for line in shown.splitlines() if "nid[" not in line) <= 60


def test_a_line_says_which_nodes_are_waited_for_and_until_when(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock()
    monkeypatch.setattr("time.monotonic", clock)
    monkeypatch.setattr("time.time", lambda: 3600.0 * 24)
    report_waiting = check._waiting_line(4)
    report_waiting(Waiting(2, ("nid000003", "nid000004"), 300.0))  # nothing yet, as most checks are over at once
    clock.now += 5
    report_waiting(Waiting(3, ("nid000004",), 290.0))
    until = time.strftime("%H:%M:%S", time.localtime(3600 * 24 + 290))
    message = capsys.readouterr().err
    assert " ".join(message.split()) == f"3 of 4 nodes have answered; waiting until {until} at the latest for nid000004"
    clock.now += 30
    report_waiting(Waiting(3, ("nid000004",), 260.0))
    assert "nid000004" in capsys.readouterr().err, "it says so again, though nothing has changed"


def test_the_job_of_a_check_is_asked_for_what_its_user_asked_for(tmp_path: Path) -> None:
    (tmp_path / "a b.toml").write_text('title = "x"\nsource = "x"\ndate = 2026-11-29\n')
    for given in (
        [],
        ["--level=run", "--program=-c", "--leave-out=NCCL_X", "--again=/report.json"],
        ["--level=probe", "--simulate-gpu", "--program=/opt/a b/python", f"--site={tmp_path / 'a b.toml'}"],
    ):
        arguments = parser_for(["check"]).parse_args(["check", "an image.sif", "--nodes=7", *given])
        words = check.words_for_job(arguments, Inputs.from_arguments(arguments))
        read = parser_for(words).parse_args(words)
        assert read.images == [Path("an image.sif").absolute()]
        assert read.json
        for name in ("nodes", "again", "level", "simulate_gpu", "leave_out", "starts", "venv", "site", "host"):
            assert getattr(read, name) == getattr(arguments, name), name


FOLDED = [
    ([], ""),
    (["nid005000"], "nid005000"),
    (["nid005001", "nid005000", "nid005003"], "nid[005000-005001,005003]"),
    (["n1", "n10", "n2"], "n[1-2],n10"),
    (["x3000c0s1b0n0.hsn.site", "x3000c0s1b0n1.hsn.site"], "x3000c0s1b0n[0-1].hsn.site"),
    (["login", "a-1.x.y", "a-2.x.y"], "login,a-[1-2].x.y"),
    (["nid005000", "nid005000"], "nid005000"),
]


def test_names_of_nodes_are_folded_as_slurm_does() -> None:
    for names, text in FOLDED:
        assert hostlist(names) == text, (names, text)
