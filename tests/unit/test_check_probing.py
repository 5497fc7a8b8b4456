"""The probe level: from what the programs print, real output kept in tests/fixtures/probes, to findings and answer."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from lumiimg.check.answer import decide
from lumiimg.check.probe.container import Container, ProbePrograms, ProbeRun, read_run
from lumiimg.check.probe.judgement import ProbeResult, probe
from lumiimg.check.run.execution import count_gpus
from lumiimg.check.static.process import StaticResult
from lumiimg.core.errors import MissingHereError
from lumiimg.core.findings import Answer, Finding, Level, Severity
from lumiimg.engine.process import Completed
from lumiimg.fabric.path import FabricPath

NO_NIC = "this machine has no Slingshot NIC (/dev/cxi*)"
PROBES = Path(__file__).parents[1] / "fixtures" / "probes"
JUDGEMENTS = tomllib.loads((PROBES / "judgements.toml").read_text())
TEXTS: dict[str, str] = JUDGEMENTS["texts"]
RCCL = "/usr/lib/x86_64-linux-gnu/librccl.so.1"
ABSENT = FabricPath(rccl=RCCL, rccl_version="2.13.4", plugin_files=("librccl-net.so",), accepts=(6, 5, 4))
PRESENT = replace(ABSENT, plugin="/opt/aws-ofi-nccl/lib/librccl-net.so")


def run(name: str, exit_code: int = 0, *, text: str | None = None, timed_out: bool = False) -> ProbeRun:
    output = (PROBES / f"{name}.txt").read_text() if text is None else text
    return read_run(name, Completed(("x",), exit_code, output, 0.1, timed_out=timed_out))


@dataclass
class Recorded:
    """Stands in for a container: gives back what real ones printed."""

    rccl: ProbeRun
    hands: ProbeRun
    listing: ProbeRun | None = None
    asked: tuple[str, tuple[int, ...]] | None = None

    def rccl_probe(self, _rccl: str) -> ProbeRun:
        return self.rccl

    def handshake(self, plugin: str, *, rccl: str | None, accepts: tuple[int, ...]) -> ProbeRun:
        assert rccl == RCCL
        self.asked = (plugin, accepts)
        return self.hands

    def run(self, _name: str, _argv: list[str]) -> ProbeRun:
        return self.listing or run("ld.so", 0, text="\tlibfabric.so.1 => /usr/lib/libfabric.so.1 (0x7f)\n")


def probed(recorded: Recorded, path: FabricPath, *, inconclusive: str | None = None) -> ProbeResult:
    static = StaticResult(path, "/lib64/ld-linux-x86-64.so.2")
    return probe(cast("Container", recorded), static, inconclusive=inconclusive)


def by_id(result: ProbeResult) -> dict[str, Finding]:
    return {finding.id: finding for finding in result.findings.found}


def answer(result: ProbeResult) -> Answer:
    return decide(result.findings.found, result.path, level=Level.PROBE, level_was_asked_for=False)


def test_tcp_and_an_init_that_fails_prove_nothing_without_a_nic_and_are_a_no_with_one() -> None:
    recorded = Recorded(run("rccl-ofi-nccl"), run("handshake-ofi-nccl"))
    fails = Recorded(run("rccl-ofi-rccl"), run("handshake-ofi-rccl", 12))
    for inconclusive, severity, decided in ((NO_NIC, OPEN, Answer.UNDECIDED), (None, BAD, Answer.NO)):
        result = probed(recorded, PRESENT, inconclusive=inconclusive)
        found = by_id(result)
        assert found["rccl.opens-plugin"].severity is found["plugin.loads"].severity is Severity.OK
        assert (found["provider.other"].severity, answer(result)) == (severity, decided)
        assert (result.path.provider, result.path.plugin_api) == ("tcp", 6)
        assert found["provider.other"].remedy or inconclusive
        init = by_id(probed(fails, PRESENT, inconclusive=inconclusive))["plugin.init"]
        assert init.severity is severity
    assert any("initialization failed" in line for line in init.evidence)


CXI, LISTENS = TEXTS["cxi"], TEXTS["listens"]


NO_NUMBERS = ("%C2%B2", "9" * 5000, "-1", "1.5", "", "x")


@pytest.mark.threat
@pytest.mark.parametrize("value", NO_NUMBERS, ids=lambda value: value[:8])
def test_a_library_may_print_lines_of_ours_with_anything_for_a_number(value: str) -> None:
    """Superscript two is a digit to Python, and no number; one of thousands of digits is refused by it."""
    asked = run("x", 0, text=f"@probe dlopen ok=1\n@probe version value={value}\n@probe uniqueid rc=0\n")
    hands = run("y", 0, text=f"@probe using version={value}\n{LISTENS}")
    result = probed(Recorded(asked, hands), replace(PRESENT, rccl_version=None))
    assert (result.loaded_rccl, result.path.plugin_api) == (None, PRESENT.plugin_api)
    counted = run("allreduce", 0, text=f"@probe gpus count={value}\n")
    container = SimpleNamespace(run=lambda *_: counted, programs=ProbePrograms("/x", (), "here"), image="x.sif")
    with pytest.raises(MissingHereError, match="HIP finds no GPU"):
        count_gpus(cast("Container", container), RCCL)


def test_only_cxi_that_listens_is_green() -> None:
    result = probed(Recorded(run("rccl-ofi-rccl"), run("cxi", 0, text=LISTENS)), PRESENT)
    assert by_id(result)["provider.cxi"].severity is Severity.OK
    assert result.path.libcxi == "/usr/lib64/libcxi.so.1.5.0"
    assert answer(result) is Answer.NO_OBSTACLE


def test_cxi_that_was_not_seen_listening_is_never_green() -> None:
    for text in (CXI, CXI + "@probe end stage=init code=0\n", LISTENS.replace("device=0 rc=0", "device=0 rc=2")):
        for exit_code in (0, 1):
            result = probed(Recorded(run("rccl-ofi-rccl"), run("cxi", exit_code, text=text)), PRESENT)
            assert "provider.cxi" not in by_id(result), text
            assert answer(result) is Answer.UNDECIDED


def test_a_plugin_whose_library_is_missing_brings_the_loaders_list() -> None:
    text = (
        "@probe start program=handshake protocol=1\n@probe dlopen path=/p/librccl-net.so ok=0 seconds=0 file= "
        "error=libhwloc.so.15:%20cannot%20open%20shared%20object%20file:%20No%20such%20file%20or%20directory\n"
        "@probe end stage=dlopen code=10\n"
    )
    listing = run(
        "ld.so", 127, text="/p/librccl-net.so: error while loading shared libraries: libhwloc.so.15: cannot open\n"
    )
    result = probed(
        Recorded(run("rccl-no-plugin"), run("x", 10, text=text), listing), replace(ABSENT, plugin="/p/librccl-net.so")
    )
    finding = by_id(result)["plugin.loads"]
    assert finding.severity is Severity.PROBLEM
    assert finding.evidence[0].startswith("libhwloc.so.15: cannot open shared object file")
    assert len(finding.evidence) == 2


BAD, OPEN, INFO = Severity.PROBLEM, Severity.UNKNOWN, Severity.INFO
IMAGES = {"absent": ABSENT, "present": PRESENT, "newer": replace(PRESENT, rccl_version="2.27.7")}


def printed(words: str) -> ProbeRun:
    name, exit_code, *timed_out = words.split()
    return run(name, int(exit_code), text=TEXTS.get(name), timed_out=bool(timed_out))


def test_what_the_probes_print_is_a_finding_with_its_proof() -> None:
    for case in JUDGEMENTS["case"]:
        severity, identity = Severity(case["severity"]), case["finds"]
        recorded = Recorded(printed(case["rccl"]), printed(case["hands"]))
        result = probed(recorded, IMAGES[case["image"]], inconclusive=NO_NIC if severity is INFO else None)
        found = by_id(result)
        finding = found[identity]
        assert finding.severity is severity, case
        told = "\n".join((finding.summary, finding.cause or "", *finding.evidence, *finding.remedy))
        assert case["says"] in told, case
        if severity is BAD:
            assert answer(result) is Answer.NO, identity
        if "signal-in-rccl" in case["hands"]:  # which is not blamed on the plugin
            assert "plugin.crash" not in found
            assert not any("INFO" in line for line in finding.evidence)
        if severity is INFO:  # the silence of an RCCL that needs a GPU
            assert "rccl.no-plugin" not in found
        if "not-run" in case["rccl"]:
            assert answer(result) is Answer.UNDECIDED


def test_a_version_that_the_bytes_do_not_tell_is_asked_of_the_library() -> None:
    unknown = replace(ABSENT, rccl_version=None, plugin_files=(), accepts=())
    recorded = Recorded(run("rccl-ofi-nccl"), run("handshake-ofi-nccl"))
    static = StaticResult(unknown)
    result = probe(cast("Container", recorded), static, inconclusive=NO_NIC)
    assert result.path.rccl_version == "2.13.4"
    assert recorded.asked == ("/opt/aws-ofi-nccl/lib/librccl-net.so", (6, 5, 4)), "the file that RCCL itself opened"
