"""`lumiimg check --nodes` on the four nodes of a real Slurm: all well, one that differs, one that dies, one that never
starts. The image has a stand-in net plugin on a real libfabric; as there is no NIC, a node that is well is undecided.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.engine.conftest import GPU_SITE, NAMED, SLURM_CONF_FILE, other_libfabric, prolog
from tests.shared.programs import patient, wait_until
from tests.shared.validation import validated

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumiimg.engine.engine import Engine

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("engine")]

OPERATOR = SLURM_CONF_FILE.parent / "operator"
"""A pipe that `.ci/slurm` reads: it makes a node die or come back."""
ALL = [f"nid00000{number}" for number in (1, 2, 3, 4)]


@dataclass(frozen=True)
class CheckRun:
    """The result of a check in a job."""

    code: int
    report: dict[str, Any]
    text: str

    @property
    def groups(self) -> list[list[str]]:
        return [group["nodes"] for group in self.report["groups"]]

    @property
    def silent(self) -> dict[str, list[str]]:
        return {entry["why"]: entry["nodes"] for entry in self.report["silent"]}


def check_in_job(
    slurm: dict[str, str], folder: Path, image: Path, *options: str, before: str = "", nodes: int = 4, **variables: str
) -> CheckRun:
    """Run the check in an allocation of its nodes; `before` runs first in the job."""
    command = shlex.join(
        [sys.executable, "-m", "lumiimg", "check", str(image), "--nodes", str(nodes), "--json", *options]
    )
    script = folder / "job.sh"
    script.write_text(f"#!/bin/bash\n{before}\n{command} >report.json\necho $? >code\n")
    argv = ["sbatch", "--wait", f"--nodes={nodes}", "--no-kill", f"--chdir={folder}", "--output=out", str(script)]
    subprocess.run(argv, env=slurm | variables, capture_output=True, check=False, timeout=patient(300))
    text = (folder / "out").read_text()
    output = (folder / "report.json").read_text()
    return CheckRun(int((folder / "code").read_text()), validated(output, "check-nodes") if output else {}, text)


def login(folder: Path, *words: str | Path, env: dict[str, str], program: Sequence[str] = ()) -> subprocess.Popen[str]:
    """Start the check outside a job, so that it submits one."""
    argv = [*program, sys.executable, "-m", "lumiimg", "check", *map(str, words)]
    return subprocess.Popen(argv, env=env, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture
def operator(slurm: dict[str, str]) -> Any:
    """The path of the pipe; afterwards, all four nodes are restored."""
    os.close(os.open(OPERATOR, os.O_WRONLY | os.O_NONBLOCK))  # fails where nobody reads it; a job would wait for ever
    yield OPERATOR
    for node in ALL:
        if node in down(slurm):
            OPERATOR.write_text(f"start {node}\n")
    wait_until(lambda: not down(slurm))


def down(slurm: dict[str, str]) -> set[str]:
    argv = ["sinfo", "--noheader", "--partition=four", "--Node", "--format=%N %t"]
    lines = subprocess.run(argv, env=slurm, capture_output=True, text=True, check=True).stdout.split("\n")
    return {line.split()[0] for line in lines if line and line.split()[1] != "idle"}


@pytest.mark.core
def test_four_nodes_that_are_the_same_are_one_group(slurm: dict[str, str], with_plugin: Path, tmp_path: Path) -> None:
    done = check_in_job(slurm, tmp_path, with_plugin)
    assert done.code == 3, done.text
    assert done.groups == [ALL]
    assert not done.silent
    assert done.report["sentence"].endswith("(4 nodes, all the same)")
    (group,) = done.report["groups"]
    assert {library["name"].partition(".so")[0] for library in group["libraries"]} >= {"libfabric", "librccl", "libc"}
    assert all(len(library["build"]) >= 16 for library in group["libraries"] if "libfabric" in library["name"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["code", "job.sh", "out", "report.json"], (
        "nothing is left"
    )


def test_outside_of_a_job_one_is_submitted_and_reports_the_same(
    slurm: dict[str, str], with_plugin: Path, tmp_path: Path
) -> None:
    words = ("--nodes", "4", "--json", "--sbatch=--partition=four", "--html=page.html", "--junit=result.xml")
    program = login(tmp_path, with_plugin, *words, env=slurm)
    out, output = program.communicate(timeout=patient(300))
    assert program.returncode == 3, output
    assert [group["nodes"] for group in validated(out, "check-nodes")["groups"]] == [ALL]
    assert output.startswith("job ")
    assert "4 nodes nid[000001-000004]" in output
    page, junit = (tmp_path / name for name in ("page.html", "result.xml"))
    assert sorted(tmp_path.iterdir()) == [page, junit]
    assert "4 nodes nid[000001-000004]" in page.read_text()
    assert '<span class="side image">image</span>' in page.read_text(), "the path is a part of the report"
    assert 'name="network on nid[000001-000004]"' in junit.read_text()


def test_a_node_with_another_library_stands_apart(
    slurm: dict[str, str], engine: Engine, with_plugin: Path, tmp_path: Path
) -> None:
    bind = f"export {engine.prefix}_BIND={other_libfabric(engine, with_plugin, tmp_path)}"
    other = prolog(tmp_path, f"if [ $SLURMD_NODENAME = nid000003 ]; then echo '{bind}'; fi")
    done = check_in_job(slurm, tmp_path, with_plugin, nodes=4, **other)
    assert done.code == 3, done.text
    assert done.groups == [["nid000001", "nid000002", "nid000004"], ["nid000003"]]
    (difference,) = done.report["groups"][1]["differs"]
    assert difference.startswith("another libfabric.so.1 (build 00000000 instead of ")
    assert f"3 the same; 1 {difference}" in done.report["sentence"]


def test_an_engine_that_starts_no_container_anywhere_is_the_answer_and_the_command_shows_it(
    slurm: dict[str, str], demo: Path, tmp_path: Path
) -> None:
    """The engine is a stand-in whose message differs on each node."""
    (engine := tmp_path / "apptainer").write_text(
        'if [ "$1" = --version ]; then echo apptainer version 1.4.5; exit; fi\n'
        'echo "FATAL:   extract: /tmp/rootfs-$$/root: No space left on device ($SLURMD_NODENAME)" >&2; exit 255\n'
    )
    engine.write_text(f"#!/bin/sh\n{engine.read_text()}")
    engine.chmod(0o755)
    path = {"PATH": f"{tmp_path}:{Path(sys.executable).parent}:{slurm['PATH']}"}
    ran = check_in_job(slurm | path, tmp_path, demo)
    assert ran.code == 3, ran.text
    assert ran.groups == [ALL]
    assert "cannot start a container here: the disk or the quota is full" in ran.report["sentence"]
    advice = ran.report["advice"]
    assert advice["why"].startswith("FATAL:   extract: /tmp/rootfs-")
    done = subprocess.run(shlex.split(advice["next"]), env=slurm | path, capture_output=True, text=True, check=False)
    assert done.returncode == 4
    assert "No space left on device (nid000001)" in done.stderr
    # only nodes without an answer are checked again; the new report covers all
    report = tmp_path / "earlier.json"
    ran.report["groups"][0]["nodes"].remove("nid000002")
    silent = [{"nodes": ["nid000002"], "why": "never started"}]
    report.write_text(json.dumps(ran.report | {"silent": silent}))
    program = login(tmp_path, demo, "--again", report, "--json", "--sbatch=--partition=four", env=slurm | path)
    out, output = program.communicate(timeout=patient(300))
    assert [group["nodes"] for group in validated(out, "check-nodes")["groups"]] == [ALL], output
    (now := tmp_path / "now.json").write_text(out)
    argv = [sys.executable, "-m", "lumiimg", "drift", str(report), str(now), "--json"]
    done = subprocess.run(argv, env=slurm, capture_output=True, text=True, check=False)
    changed = validated(done.stdout, "drift-nodes")["changed"]
    assert [(each["nodes"], each["change"]) for each in changed] == [(["nid000002"], "not-comparable")], (
        "no container there"
    )
    assert done.returncode == 3


def test_a_request_that_slurm_would_never_start_is_cancelled_with_its_reason(
    slurm: dict[str, str], demo: Path, tmp_path: Path
) -> None:
    for nodes, option, reason in (("2", " --time=3:00:00", "PartitionTimeLimit"), ("5", "", "PartitionNodeLimit")):
        program = login(tmp_path, demo, "--nodes", nodes, f"--sbatch=--partition=four{option}", env=slurm)
        _, output = program.communicate(timeout=patient(300))
        assert program.returncode == 3, output
        job = output.split()[1]
        assert f"Slurm would never start job {job}: " in output
        assert f"({reason})" in output
        left = ["squeue", "--noheader", "--states=PENDING,RUNNING", f"--jobs={job}"]
        wait_until(partial(prints_nothing, left, slurm))


def test_a_node_that_dies_meanwhile_costs_its_own_answer_alone(
    slurm: dict[str, str], operator: Path, with_plugin: Path, tmp_path: Path
) -> None:
    wait = "until ls .lumiimg-check-*/.*/node-nid000003.*.started >/dev/null 2>&1; do sleep 0.02; done"
    done = check_in_job(slurm, tmp_path, with_plugin, before=f"({wait}; echo kill nid000003 >{operator}) &")
    assert done.code == 3, done.text
    assert done.groups == [["nid000001", "nid000002", "nid000004"]]
    assert done.silent == {"started, but gave no answer": ["nid000003"]}
    assert done.report["sentence"] == "CANNOT TELL for 4 of 4 nodes: 3 the same; 1 started, but gave no answer"


def test_a_node_that_never_starts_costs_its_own_answer_alone(
    slurm: dict[str, str], operator: Path, with_plugin: Path, tmp_path: Path
) -> None:
    done = check_in_job(slurm, tmp_path, with_plugin, before=f"echo kill nid000004 >{operator}; sleep 1")
    assert done.code == 3, done.text
    assert done.groups == [["nid000001", "nid000002", "nid000003"]]
    assert done.silent == {"never started": ["nid000004"]}
    words = done.report["output"]
    assert any(line.startswith(("srun: ", "slurmstepd: ")) for line in words), f"Slurm's own words for it: {words}"


def test_answers_that_came_before_the_time_of_the_job_is_up_are_stored(
    slurm: dict[str, str], with_plugin: Path, tmp_path: Path
) -> None:
    """The shortest time limit of Slurm is a minute; one node is silent for longer."""
    env = slurm | prolog(tmp_path, "if [ $SLURMD_NODENAME = nid000003 ]; then sleep 90; fi")
    program = login(tmp_path, with_plugin, "--nodes", "4", "--json", "--sbatch=--partition=four --time=1", env=env)
    out, output = program.communicate(timeout=patient(300))
    assert program.returncode == 3, output
    report = validated(out, "check-nodes")
    assert [group["nodes"] for group in report["groups"]] == [["nid000001", "nid000002", "nid000004"]]
    assert [(entry["why"], entry["nodes"]) for entry in report["silent"]] == [
        ("never started before the job's time limit", ["nid000003"])
    ]


def prints_nothing(argv: list[str], env: dict[str, str]) -> bool:
    return not subprocess.run(argv, env=env, capture_output=True, check=False).stdout.strip()


def test_a_check_that_is_interrupted_leaves_no_job_and_no_folder(
    slurm: dict[str, str], with_plugin: Path, tmp_path: Path
) -> None:
    # these tests may run under nohup, which makes all its descendants ignore SIGHUP
    heard = ("env", "--default-signal=HUP")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        with login(tmp_path, with_plugin, "--nodes", "4", env=slurm, program=heard) as program:
            assert program.stderr is not None
            job = program.stderr.readline().split()[1]
            program.send_signal(number)
            assert program.wait(timeout=patient(60)) == 128 + number
        left = ["squeue", "--noheader", "--states=PENDING,RUNNING", f"--jobs={job}"]
        wait_until(partial(prints_nothing, left, slurm))
        assert not list(tmp_path.iterdir()), number


def test_a_collective_over_two_nodes_reports_which_network_carried_it(
    slurm: dict[str, str], demo: Path, gpus: dict[str, str], tmp_path: Path
) -> None:
    """The GPUs, RCCL and the network are stand-ins; Slurm, the containers, the ranks and their logs are real."""
    site = tmp_path / "mine.toml"
    site.write_text(GPU_SITE)
    options = ("--level", "run", "--site", str(site))
    variables = gpus | {"STANDIN_GB_S": "60"} | prolog(tmp_path, NAMED)
    slow = check_in_job(slurm, tmp_path, demo, *options, nodes=2, **variables, STANDIN_NETWORK="socket")
    assert (slow.code, findings_of(slow)["run.network"]["severity"]) == (1, "problem"), slow.text
    variables["STANDIN_NETWORK"] = "cxi"
    done = check_in_job(slurm, tmp_path, demo, *options, nodes=2, **variables)
    assert done.report is not None, done.text
    assert done.report["levels"]["run"] == "done: lumiimg's own all-reduce, 4 ranks"
    assert done.report["groups"][0]["gpus"] == 2
    assert done.report["collective"]["nodes"] == 2
    assert [measured["test"] for measured in done.report["collective"]["measurements"]] == ["lumiimg-allreduce"]
    found = findings_of(done)
    assert (found["run.network"]["severity"], found["run.bandwidth"]["severity"]) == ("ok", "ok"), done.text
    assert done.code == 0


def findings_of(check_run: CheckRun) -> dict[str, Any]:
    (group,) = check_run.report["groups"]
    return {finding["id"]: finding for finding in group["findings"]}


def test_the_gpus_of_a_collective_are_those_of_the_nodes_not_of_where_it_is_started(
    slurm: dict[str, str], demo: Path, gpus: dict[str, str], tmp_path: Path
) -> None:
    """As with salloc on LUMI, whose shell is on a login node: the stand-ins are bound only in the tasks of a step."""
    bound = [f"echo {shlex.quote(f'export {name}={value}')}" for name, value in gpus.items()]
    variables = {"STANDIN_NETWORK": "cxi"} | prolog(tmp_path, NAMED, *bound)
    done = check_in_job(slurm, tmp_path, demo, nodes=2, **variables)
    assert done.report["levels"]["run"] == "done: lumiimg's own all-reduce, 4 ranks", done.text
