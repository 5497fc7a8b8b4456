"""RCCL 2.27.7 on a stand-in for HIP: what its output (tests/fixtures/probes/rcclsim-*) proves, and what it does not."""

from __future__ import annotations

from pathlib import Path

from lumiimg.check.answer import decide, sentence
from lumiimg.check.probe.container import ProbeRun, read_run
from lumiimg.check.probe.judgement import judge_simulation
from lumiimg.core.findings import Answer, Finding, Level, Severity
from lumiimg.engine.process import Completed
from lumiimg.fabric.path import FabricPath

NO_NIC = "this machine has no Slingshot NIC (/dev/cxi*)"
PLUGIN = "/opt/plug/libnccl-net.so"
PROBES = Path(__file__).parents[1] / "fixtures" / "probes"


def recorded(name: str) -> ProbeRun:
    return read_run("rcclsim", Completed(("x",), 0, (PROBES / f"rcclsim-{name}.txt").read_text()))


def found(name: str, *, probed: str | None = PLUGIN, inconclusive: str | None = NO_NIC) -> Finding:
    (finding,) = judge_simulation(recorded(name), "2.27.7", probed, inconclusive=inconclusive).found
    assert finding.id == "simulated.network"
    assert finding.level is Level.PROBE
    assert finding.summary.startswith("SIMULATION, with a stand-in for HIP: RCCL 2.27.7 ")
    return finding


def test_a_plugin_that_rccl_takes_is_reported_with_rccls_own_line_and_makes_no_answer_green() -> None:
    finding = found("taken")
    assert finding.severity is Severity.OK
    assert finding.where == PLUGIN
    assert "prints `Using network lumiimg stand-in`, on the provider tcp" in finding.summary
    assert finding.evidence[-1].endswith("NCCL INFO Using network lumiimg stand-in")
    path = FabricPath(plugin=PLUGIN)
    assert decide([finding], path, level=Level.PROBE, level_was_asked_for=True) is Answer.UNDECIDED


BAD, OPEN = Severity.PROBLEM, Severity.UNKNOWN
SHOWN = [
    # a failure that needs no NIC is a no everywhere; a failed init is a no only where there is a fabric
    ("absent", BAD, BAD, "Could not find: libnccl-net.so."),
    ("old-api", BAD, BAD, "Failed to find ncclNetPlugin_v6 symbol."),
    ("net-named", BAD, BAD, "Failed to initialize any NET plugin"),
    ("init-fails", BAD, OPEN, ""),
]


def test_what_goes_wrong_is_a_no_where_a_nic_would_not_change_it() -> None:
    for name, with_nic, without, says in SHOWN:
        for inconclusive, severity in ((None, with_nic), (NO_NIC, without)):
            finding = found(name, inconclusive=inconclusive)
            assert finding.severity is severity, name
            assert any(says in line for line in finding.evidence), name
            if severity is BAD:
                assert finding.remedy
                assert "in a simulation" in sentence(Answer.NO, [finding], Level.PROBE)
            else:
                assert NO_NIC in finding.summary
    other = found("taken", probed="/other/librccl-net.so")  # not the one that shook hands
    assert other.severity is OPEN
    assert other.summary.endswith("everything else here about a plugin is about /other/librccl-net.so")
    # an end before the choice of a network may be the stand-in's fault
    for text in ("", "@probe signal number=11 during=communicator\n", "Bootstrap : Using eth0\n"):
        (ended,) = judge_simulation(
            read_run("rcclsim", Completed(("x",), 139, text)), None, None, inconclusive=None
        ).found
        assert (ended.severity, "perhaps because of the stand-in" in ended.summary) == (OPEN, True), text
