"""From findings to the answer of a check: what makes it a no, what makes it green, and what leaves it open."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from lumiimg.check.answer import advice_from_findings, decide, merge_levels, next_step, sentence
from lumiimg.check.registry import finding_types
from lumiimg.core.findings import NO_ADVICE, Advice, Answer, Finding, Level, Remedy, Severity
from lumiimg.fabric.path import FabricPath

if TYPE_CHECKING:
    from lumiimg.check.context import ImageInContext

PLUGIN = FabricPath(plugin="/opt/librccl-net.so")
BAD, OPEN, GOOD, INFO = Severity.PROBLEM, Severity.UNKNOWN, Severity.OK, Severity.INFO


def found(identity: str, severity: Severity, level: Level = Level.STATIC) -> Finding:
    return Finding(identity, severity, level, f"about {identity}")


def read(findings: list[str]) -> list[Finding]:
    words = (one.split() for one in findings)
    return [found(name, Severity(severity), *map(Level, level)) for name, severity, *level in words]


CASES: dict[str, Any] = tomllib.loads((Path(__file__).parents[1] / "fixtures/answers.toml").read_text())
SEEN = found("program.opens", GOOD, Level.PROBE)
CXI = found("provider.cxi", GOOD, Level.PROBE)
RAN = found("run.network", GOOD, Level.RUN)


@pytest.mark.parametrize("case", CASES["green"])
def test_a_green_answer_is_evidence(case: dict[str, Any]) -> None:
    findings, level = read(case["found"]), Level(case["level"])
    for order in (findings, findings[::-1]):
        assert decide(order, PLUGIN, level=level, level_was_asked_for=case["asked"]) is Answer(case["answer"])


def test_files_without_a_plugin_are_never_green() -> None:
    assert decide([], FabricPath(), level=Level.STATIC, level_was_asked_for=True) is Answer.UNDECIDED


@pytest.mark.parametrize("case", CASES["no"])
def test_a_no_names_the_obstacle(case: dict[str, Any]) -> None:
    reported = [found("bind.loads", GOOD), *read(case["problems"])]
    assert case["words"] in sentence(Answer.NO, reported, Level(case["level"]))


@pytest.mark.parametrize("case", CASES["proved_by"])
def test_what_is_green_names_the_level_that_proved_it(case: dict[str, Any]) -> None:
    assert case["words"] in sentence(Answer(case["answer"]), read(case["found"]), Level(case["level"]))


@pytest.mark.parametrize("case", CASES["merged"])
def test_what_was_seen_happening_wins_over_what_the_files_say(case: dict[str, Any]) -> None:
    merged = merge_levels(read(case["static"]), read(case["probed"]))
    assert [f"{finding.id} {finding.severity.value}" for finding in merged] == case["left"]
    for finding in merged:  # what no longer counts says why
        if "plugin.absent problem" in case["static"] and finding.severity is INFO:
            assert "a plugin is loaded" in finding.summary


def test_a_collective_that_went_over_slingshot_outdoes_doubts_about_it() -> None:
    below = [found("plugin.symbols", OPEN), found("fabric.mixed", BAD), found("rccl.several", INFO)]
    merged = {finding.id: finding for finding in merge_levels(below, [CXI], [RAN])}
    assert {name: finding.severity for name, finding in merged.items()} == {
        "run.network": GOOD,
        "provider.cxi": GOOD,
        "plugin.symbols": INFO,
        "fabric.mixed": INFO,
        "rccl.several": INFO,
    }
    assert "went over Slingshot" in merged["plugin.symbols"].summary
    assert "went over Slingshot" not in merged["rccl.several"].summary
    both = merge_levels([found("rccl.load", BAD)], [], [found("run.failed", BAD, Level.RUN)])
    assert [finding.id for finding in both] == ["rccl.load", "run.failed"]
    code = found("gpu.code", BAD)
    assert code in merge_levels([code], [CXI], [RAN]), "a collective calls RCCL alone, of all that has GPU code"
    failed = merge_levels(below, [CXI], [found("run.network", BAD, Level.RUN)])
    assert [finding.id for finding in failed if finding.severity is BAD] == ["fabric.mixed", "run.network"]


def test_after_a_collective_nobody_is_asked_to_look_for_the_plugin_without_a_gpu() -> None:
    silent = found("rccl.silent", INFO, Level.PROBE)
    for ran, left in (
        (RAN, []),
        (found("run.selected", GOOD, Level.RUN), []),
        (found("run.failed", OPEN, Level.RUN), [silent]),
    ):
        assert [finding for finding in merge_levels([], [silent], [ran]) if finding.level is Level.PROBE] == left


@pytest.mark.parametrize("severity", [BAD, OPEN])
def test_a_collective_that_ran_shows_that_the_driver_serves_the_image(severity: Severity) -> None:
    driver = found("image.driver", severity)
    assert merge_levels([driver], [CXI]) == (driver, CXI)
    ran = merge_levels([driver], [CXI], [found("run.selected", GOOD, Level.RUN)])
    assert {finding.id: finding.severity for finding in ran}["image.driver"] is INFO
    for other in (found("run.selected", OPEN, Level.RUN), found("run.bandwidth", GOOD, Level.RUN)):
        assert driver in merge_levels([driver], [CXI], [other])
    symbols = found("plugin.symbols", severity)
    assert symbols in merge_levels([driver, symbols], [CXI], [found("run.selected", GOOD, Level.RUN)])


def test_of_what_the_loader_decides_ldd_shows_more() -> None:
    for code in finding_types():
        bad = replace(found(code, BAD), where="/opt/lib/librccl.so.1")
        shown = code in {"program.load", "rccl.load", "plugin.loads", "fabric.two-hip"}
        advice = advice_from_findings(Answer.NO, [bad], "an image.sif")
        assert advice.why == f"about {code}"
        assert advice.next == ("lumiimg ldd 'an image.sif' /opt/lib/librccl.so.1" if shown else None)
    load = replace(found("rccl.load", BAD), where="/usr/bin/python3")
    assert advice_from_findings(Answer.NO, [load], "a.sif").next is None, "not a library"
    assert advice_from_findings(Answer.NO, [replace(load, where="/opt/x.so")]).next is None, "no image"
    assert advice_from_findings(Answer.NO, [replace(load, where=None)], "a.sif").next is None, "no file"
    way = Remedy("on a node", "unset NCCL_NET", "in the job")
    mended = advice_from_findings(Answer.NO, [replace(load, where="/opt/x.so", remedy=(Remedy("a"), way))], "a.sif")
    assert (mended.next, mended.where) == ("unset NCCL_NET", "in the job")


def test_why_an_answer_is_green_is_what_was_seen_to_use_the_network() -> None:
    for code in finding_types():
        advice = advice_from_findings(Answer.NO_OBSTACLE, [found(code, GOOD, Level.PROBE)])
        is_proof = code in {"run.network", "provider.cxi"}
        assert advice.why == (f"about {code}" if is_proof else None)
        assert advice_from_findings(Answer.NO_OBSTACLE, [found(code, OPEN)]) == NO_ADVICE
    ran = replace(RAN, remedy=(Remedy("two nodes would decide it", "lumiimg check a.sif --nodes 2"),))
    assert advice_from_findings(Answer.NO_OBSTACLE, [ran]) == Advice(RAN.summary), "nothing is left to do"


def test_why_an_answer_is_open_is_the_network_before_the_gpus_and_a_run_before_all() -> None:
    later = [found(name, OPEN) for name in ("image.driver", "gpu.code", "gpu.xnack")]
    network, ran = found("plugin.symbols", OPEN), found("run.hang", OPEN, Level.RUN)
    for other in later:
        assert advice_from_findings(Answer.UNDECIDED, [other, network]).why == network.summary
        assert advice_from_findings(Answer.UNDECIDED, [other]).why == other.summary
        bad = replace(other, severity=BAD)
        assert advice_from_findings(Answer.NO, [bad, found("rccl.load", BAD)]).why == bad.summary, "the first that is"
    assert advice_from_findings(Answer.UNDECIDED, [*later, network, ran]).why == ran.summary
    assert advice_from_findings(Answer.UNDECIDED, [found("rccl.found", INFO), CXI, network]).why == network.summary
    assert advice_from_findings(Answer.UNDECIDED, [CXI]) == advice_from_findings(Answer.NO, []) == NO_ADVICE
    assert advice_from_findings(Answer.UNDECIDED, [found("image.two-mpi", OPEN), network]).why == "about image.two-mpi"


def test_the_next_step_looks_at_a_node_or_goes_to_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda *_, **__: "/usr/bin/sbatch")

    def step(
        answer: Answer, code: str, level: Level, *machine: str, limited: bool = True, **environment: str
    ) -> Advice:
        values = {"name": "a.sif", "machine": machine, "options": machine, "site": None, "environment": environment}
        context = cast("ImageInContext", SimpleNamespace(**values))
        findings = [found(code, BAD if answer is Answer.NO else OPEN, level)]
        return next_step(answer, findings, context, level=level, limited=limited)

    static, host = Level.STATIC, ("--host", "h.json")
    scan = "lumiimg host scan -o host.json && lumiimg check a.sif --host host.json"
    needs = step(Answer.UNDECIDED, "plugin.needs-host", static)
    assert (needs.next, needs.where) == (scan, "on a GPU node")
    seen = step(Answer.UNDECIDED, "plugin.needs-host", static, *host)
    assert (seen.why, seen.next) == ("about plugin.needs-host", "lumiimg check a.sif --host h.json")
    assert step(Answer.UNDECIDED, "plugin.symbols", static).next == "lumiimg check a.sif"
    green = step(Answer.NO_OBSTACLE, "plugin.symbols", static)
    assert (green.next, (green.why or "").partition(";")[0]) == ("lumiimg check a.sif", "the files show no obstacle")
    nodes = "lumiimg check a.sif --nodes 2 --sbatch=--gpus-per-node=8"
    for code, level, limited in (
        ("image.driver", static, True),
        ("plugin.symbols", static, False),
        ("plugin.listen", Level.PROBE, True),
    ):
        assert step(Answer.UNDECIDED, code, level, limited=limited, SBATCH_ACCOUNT="x") == Advice(
            f"about {code}", nodes
        )
        in_job = step(Answer.UNDECIDED, code, level, limited=limited, SLURM_JOB_ID="7", SLURM_JOB_NUM_NODES="3")
        assert in_job == Advice(f"about {code}", "lumiimg check a.sif --nodes 3")
    assert step(Answer.UNDECIDED, "image.driver", static).where == "with your project in SBATCH_ACCOUNT"
    for answer, level in ((Answer.NO, static), (Answer.NO, Level.RUN), (Answer.UNDECIDED, Level.RUN)):
        assert step(answer, "run.hang", level) == Advice("about run.hang"), "a remedy, or nothing"
