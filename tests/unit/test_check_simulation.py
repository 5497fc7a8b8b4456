"""RCCL 2.27.7 on a stand-in for HIP: what its own lines (tests/fixtures/probes/rcclsim-*) prove, and what they do not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from lumiimg.check.answer import Answer, decide, sentence, settle
from lumiimg.check.pipeline import check_image
from lumiimg.check.probe.container import ProbeRun, read_run
from lumiimg.check.probe.simulation import judge
from lumiimg.cli.main import main
from lumiimg.engine.process import Completed
from lumiimg.errors import ExitCode
from lumiimg.fabric.path import FabricPath
from lumiimg.findings import Code, Finding, Level, Severity
from lumiimg.report.schema import json_text
from tests.shared import fabric_builder

NO_NIC = "this machine has no Slingshot NIC (/dev/cxi*)"
PLUGIN = "/opt/plug/libnccl-net.so"
PROBES = Path(__file__).parents[1] / "fixtures" / "probes"


def recorded(name: str) -> ProbeRun:
    return read_run("rcclsim", Completed(("x",), 0, (PROBES / f"rcclsim-{name}.txt").read_text(), 0.1))


def found(name: str, *, probed: str | None = PLUGIN, excuse: str | None = NO_NIC) -> Finding:
    (finding,) = judge(recorded(name), "2.27.7", probed, excuse=excuse).found
    assert finding.id == "simulated.network"
    assert finding.level is Level.PROBE
    assert finding.summary.startswith("SIMULATION, with a stand-in for HIP: RCCL 2.27.7 ")
    return finding


def test_a_plugin_that_rccl_takes_is_told_with_rccls_own_line_and_makes_no_answer_green() -> None:
    finding = found("taken")
    assert finding.severity is Severity.OK
    assert finding.where == PLUGIN
    assert "says `Using network lumiimg stand-in`, on the provider tcp" in finding.summary
    assert finding.evidence[-1].endswith("NCCL INFO Using network lumiimg stand-in")
    path = FabricPath(plugin=PLUGIN)
    assert decide([finding], path, level=Level.PROBE, level_was_asked_for=True) is Answer.UNDECIDED


def test_another_plugin_than_the_one_that_shook_hands_leaves_the_question_open() -> None:
    finding = found("taken", probed="/other/librccl-net.so")
    assert finding.severity is Severity.UNKNOWN
    assert finding.summary.endswith("everything else here about a plugin is about /other/librccl-net.so")


@pytest.mark.parametrize("excuse", [None, NO_NIC], ids=["with a NIC", "without a NIC"])
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("absent", "Could not find: libnccl-net.so."),
        ("old-api", "Failed to find ncclNetPlugin_v6 symbol."),
        ("net-named", "Failed to initialize any NET plugin"),
    ],
)
def test_what_needs_no_nic_to_go_wrong_is_a_no_everywhere(name: str, says: str, excuse: str | None) -> None:
    finding = found(name, excuse=excuse)
    assert finding.severity is Severity.PROBLEM
    assert any(says in line for line in finding.evidence)
    assert finding.remedy
    assert "in a simulation" in sentence(Answer.NO, [finding], Level.PROBE)


def test_an_init_that_fails_is_a_no_only_where_there_is_a_fabric_to_get_onto() -> None:
    assert found("init-fails").severity is Severity.UNKNOWN
    assert NO_NIC in found("init-fails").summary
    assert found("init-fails", excuse=None).severity is Severity.PROBLEM


@pytest.mark.parametrize("text", ["", "@probe signal number=11 during=communicator\n", "Bootstrap : Using eth0\n"])
def test_an_end_before_the_choice_proves_nothing_as_it_may_be_the_stand_ins(text: str) -> None:
    run = read_run("rcclsim", Completed(("x",), 139, text, 0.1))
    (finding,) = judge(run, None, None, excuse=None).found
    assert finding.severity is Severity.UNKNOWN
    assert "which may be due to the stand-in" in finding.summary


def test_a_fact_comes_before_a_simulation_of_its_effect() -> None:
    absent = Finding(Code.PLUGIN_ABSENT, Severity.PROBLEM, Level.STATIC, "no net plugin")
    assert [finding.id for finding in settle([absent], [found("absent")])] == ["plugin.absent", "simulated.network"]


def test_the_json_says_which_run_was_a_simulation(tmp_path: Path) -> None:
    report = check_image(fabric_builder.image(tmp_path), {}, Level.STATIC)
    other = read_run("rcclprobe", Completed(("x",), 0, "", 0.1))
    text = json_text("check", replace(report, runs=(recorded("taken"), other)))
    assert [probe["simulation"] for probe in json.loads(text)["probes"]] == [True, False]


def test_files_alone_are_not_simulated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(tmp_path), "--level", "static", "--simulate-gpu"]) == ExitCode.BAD_INPUT
    assert "--level static runs none; leave one of them out" in capsys.readouterr().err
