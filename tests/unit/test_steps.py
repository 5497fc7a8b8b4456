"""The fabric path, step by step: a good step was seen, a broken one is where it broke, and each file has its owner."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lumiimg.check.steps import fabric_steps
from lumiimg.core.findings import Finding, Level, Remedy, Severity
from lumiimg.fabric.job_path import job_path, nodes_of_path
from lumiimg.fabric.path import FabricPath, Part, Side, Step, path_sentence
from lumiimg.host.manifest import origins
from lumiimg.image import open_image
from lumiimg.joblog import FAST, LogReport, Verdict, read_log
from tests.shared import fabric_builder
from tests.shared.pages import FABRIC, KNOWN, PROBED

LOGS = sorted((Path(__file__).parents[1] / "fixtures" / "nccl").glob("*.log"))


def states(steps: tuple[Step, ...]) -> dict[Part, Severity]:
    return {step.part: step.severity for step in steps}


def step(steps: tuple[Step, ...], part: Part) -> Step:
    return next(one for one in steps if one.part is part)


def log_report(log: Path) -> LogReport:
    return read_log([str(log)], warn=lambda _: None)


# -- of an image --


def test_a_file_that_a_process_has_and_the_image_has_not_is_the_hosts(tmp_path: Path) -> None:
    folder = fabric_builder.image(tmp_path / "image")
    path = FabricPath(
        rccl="/opt/rocm/lib/librccl.so.1", plugin="/usr/lib64/librccl-net.so", libfabric="/usr/lib64/libfabric.so.1"
    )
    with open_image(folder) as image:
        seen = origins(path, image, {}, running=True)
        over = origins(path, image, {"APPTAINER_BIND": "/x:/usr/lib64/librccl-net.so"}, running=True)
        files = origins(path, image, {"APPTAINER_BIND": "/x:/usr/lib64/librccl-net.so"}, running=False)
    assert seen["/usr/lib64/librccl-net.so"].side is Side.IMAGE
    assert seen["/usr/lib64/libfabric.so.1"].side is Side.HOST
    assert over["/usr/lib64/librccl-net.so"].side is Side.HOST
    assert files["/usr/lib64/librccl-net.so"].side is Side.IMAGE


# -- of findings --


def test_a_path_that_nobody_looked_at_holds_nowhere() -> None:
    assert set(states(fabric_steps(FabricPath(), (), {})).values()) == {Severity.UNKNOWN}
    # files alone never show that a NIC was opened
    assert states(fabric_steps(FABRIC, (), KNOWN))[Part.NIC] is Severity.UNKNOWN


def test_a_plugin_that_listened_on_the_nics_makes_every_step_hold_at_the_level_of_a_probe() -> None:
    steps = fabric_steps(FABRIC, PROBED, KNOWN, plugin_version="1.21.1")
    assert {(one.severity, one.level) for one in steps} == {(Severity.OK, Level.PROBE)}
    assert step(steps, Part.PLUGIN).version == "1.21.1"
    assert "level probe" in path_sentence(steps)


@pytest.mark.parametrize(
    ("identity", "part"),
    [
        ("rccl.load", Part.RCCL),
        ("network.forced", Part.PLUGIN),
        ("plugin.api", Part.PLUGIN),
        ("plugin.crash", Part.PLUGIN),
        ("plugin.init", Part.PROVIDER),
        ("plugin.listen", Part.NIC),
        ("provider.excluded", Part.PROVIDER),
        ("run.hang", Part.NIC),
    ],
)
def test_a_problem_breaks_the_step_that_it_is_about(identity: str, part: Part) -> None:
    problem = Finding(identity, Severity.PROBLEM, Level.PROBE, "it is so", remedy=(Remedy("do this"),))
    steps = fabric_steps(FABRIC, (problem,), KNOWN)
    assert [one.part for one in steps if one.severity is Severity.PROBLEM] == [part]
    assert step(steps, part).remedy == ("do this",)


@pytest.mark.parametrize(
    ("verdict", "part"),
    [(Verdict.SOCKET, Part.PLUGIN), (Verdict.OFI_OTHER, Part.PROVIDER), (Verdict.PLUGIN_INIT_ERROR, Part.PROVIDER)],
)
def test_a_collective_that_went_elsewhere_breaks_the_step_that_its_verdict_names(verdict: Verdict, part: Part) -> None:
    took = Finding("run.network", Severity.PROBLEM, Level.RUN, "it took another network")
    steps = fabric_steps(FABRIC, (took,), KNOWN, verdict=verdict.value)
    assert [one.part for one in steps if one.severity is Severity.PROBLEM] == [part]


def test_an_open_question_outweighs_evidence_of_its_own_level_only() -> None:
    doubt = Finding("plugin.symbols", Severity.UNKNOWN, Level.STATIC, "symbols are not recorded")
    files = replace(PROBED[1], level=Level.STATIC)
    assert states(fabric_steps(FABRIC, (files, doubt), KNOWN))[Part.PLUGIN] is Severity.UNKNOWN
    assert states(fabric_steps(FABRIC, (*PROBED, doubt), KNOWN))[Part.PLUGIN] is Severity.OK


# -- of a job --


@pytest.mark.parametrize("log", LOGS, ids=lambda log: log.stem)
def test_the_path_of_a_log_says_what_its_verdict_says(log: Path) -> None:
    report = log_report(log)
    found, nodes = states(job_path(report)), nodes_of_path(report)
    verdict = nodes.verdict if nodes else report.verdict
    if report.severity is Severity.OK:
        assert Severity.PROBLEM not in found.values()
    if report.severity is Severity.PROBLEM:
        assert Severity.PROBLEM in found.values() or nodes or verdict is Verdict.MIXED or report.ended.leads
    if report.severity is Severity.UNKNOWN:
        assert Severity.PROBLEM not in found.values() or verdict is Verdict.OFI_OTHER
    if found[Part.NIC] is Severity.OK:  # only traffic proves it
        assert verdict in FAST | {Verdict.IB}
