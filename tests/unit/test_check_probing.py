"""The probe level: from what the programs print, real output kept in tests/fixtures/probes, to findings and answer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from lumiimg.check.answer import Answer, decide
from lumiimg.check.probe.container import Container, ProbeRun, read_events, read_run
from lumiimg.check.probe.judgement import ProbeResult, probe
from lumiimg.check.static.evidence import StaticResult
from lumiimg.engine.process import Completed
from lumiimg.fabric.path import FabricPath
from lumiimg.findings import Finding, Level, Severity

NO_NIC = "this machine has no Slingshot NIC (/dev/cxi*)"
PROBES = Path(__file__).parents[1] / "fixtures" / "probes"
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

    def list_libraries(self, _loader: str, _library: str) -> ProbeRun:
        return self.listing or run("ld.so", 0, text="\tlibfabric.so.1 => /usr/lib/libfabric.so.1 (0x7f)\n")


def probed(recorded: Recorded, path: FabricPath, *, excuse: str | None = None) -> ProbeResult:
    static = StaticResult(path, "/lib64/ld-linux-x86-64.so.2")
    return probe(cast("Container", recorded), static, excuse=excuse)


def by_id(result: ProbeResult) -> dict[str, Finding]:
    return {finding.id: finding for finding in result.findings.found}


def answer(result: ProbeResult) -> Answer:
    return decide(result.findings.found, result.path, level=Level.PROBE, level_was_asked_for=False)


def test_events_are_read_among_all_other_lines() -> None:
    text = "noise\n@probe dlopen path=/a%20b ok=1 error=\n  @probe not=this\n@probe\n@probe x y\n@probe log text=a%0A%1b%5B31m\n"
    events = read_events(text)
    assert [event.topic for event in events] == ["dlopen", "log"]
    assert events[0].values == {"path": "/a b", "ok": "1", "error": ""}
    assert events[1].values["text"] == "a\\n\\x1b[31m", "control characters are spelled out"


def test_tcp_and_an_init_that_fails_prove_nothing_without_a_nic_and_are_a_no_with_one() -> None:
    recorded = Recorded(run("rccl-ofi-nccl"), run("handshake-ofi-nccl"))
    fails = Recorded(run("rccl-ofi-rccl"), run("handshake-ofi-rccl", 12))
    for excuse, severity, decided in ((NO_NIC, OPEN, Answer.UNDECIDED), (None, BAD, Answer.NO)):
        result = probed(recorded, PRESENT, excuse=excuse)
        found = by_id(result)
        assert found["rccl.opens-plugin"].severity is found["plugin.loads"].severity is Severity.OK
        assert (found["provider.other"].severity, answer(result)) == (severity, decided)
        assert (result.path.provider, result.path.plugin_api) == ("tcp", 6)
        assert found["provider.other"].remedy or excuse
        init = by_id(probed(fails, PRESENT, excuse=excuse))["plugin.init"]
        assert init.severity is severity
    assert any("initialization failed" in line for line in init.evidence)


CXI = """
@probe start program=handshake protocol=1
@probe dlopen path=/p/librccl-net.so ok=1 seconds=0.1 file=/p/librccl-net.so error=
@probe mapped path=/opt/cray/lib64/libfabric.so.1.18.2
@probe mapped path=/usr/lib64/libcxi.so.1.5.0
@probe symbol name=ncclNetPlugin_v5 net=AWS%20Libfabric
@probe using version=5
@probe log level=INFO flags=0 where=ofi_init line=1199 text=NET/OFI%20Selected%20Provider%20is%20cxi
@probe init rc=0 seconds=0.1
@probe devices rc=0 count=4
"""
LISTENS = CXI + "@probe listen device=0 rc=0 seconds=0.1\n@probe end stage=listen code=0\n"
NO_VNI = (
    CXI
    + "@probe log level=WARN flags=-1 where=create_nccl_ofi_component line=817 text=NET/OFI%20Couldn%27t%20open%20a%20"
    "fabric%20access%20domain.%20RC:%20-38%2C%20ERROR:%20Function%20not%20implemented\n"
    "@probe listen device=0 rc=2 seconds=0.1\n@probe end stage=listen code=15\n"
)


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


def test_the_plugin_is_asked_for_by_the_names_that_rccl_gives_to_dlopen() -> None:
    """So that a file which a bind put in front of the good one is the one that is tested."""
    silent = "@probe dlopen path=/r ok=1 file=/r error=\n@probe uniqueid rc=1 error=x seconds=0\n"
    recorded = Recorded(run("x", 0, text=silent), run("cxi", 0, text=LISTENS))
    probed(recorded, replace(PRESENT, rccl_version="2.27.7"))
    assert recorded.asked == ("librccl-net.so", (6, 5, 4))


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


START = "@probe start program=handshake protocol=1\n"
NO_HIP = (
    "@probe start program=rcclprobe protocol=1\n@probe dlopen path=/opt/rocm/lib/librccl.so ok=0 seconds=0 file= "
    "error=libamdhip64.so.7:%20cannot%20open%20shared%20object%20file\n@probe end stage=dlopen code=10\n"
)
NEEDS_GPU = "@probe dlopen path=/r ok=1 file=/r error=\n@probe uniqueid rc=1 error=x seconds=0\n"
NOT_RUN = "/opt/lumiimg-probe/handshake: Permission denied\n"
NEWER = replace(PRESENT, rccl_version="2.27.7")
BAD, OPEN, INFO = Severity.PROBLEM, Severity.UNKNOWN, Severity.INFO


def printed(text: str, exit_code: int = 0, *, timed_out: bool = False) -> ProbeRun:
    return run("x", exit_code, text=text, timed_out=timed_out)


WITHOUT = run("rccl-no-plugin"), run("handshake-absent", 10)
OFI_RCCL, OFI_NCCL, BROKEN = run("rccl-ofi-rccl"), run("rccl-ofi-nccl"), printed(NOT_RUN, 126)
CRASHES, HANGS = CXI + "@probe signal number=11 during=init\n", CXI + "@probe timeout seconds=60 during=init\n"
IN_RCCL = printed(f"{START}INFO:    squashfuse\n@probe signal number=7 during=rccl\n", 135)
CASES: list[tuple[ProbeRun, ProbeRun, FabricPath, str, Severity, str]] = [
    (*WITHOUT, ABSENT, "rccl.no-plugin", BAD, "No plugin found (librccl-net.so), using internal implementation"),
    (*WITHOUT, ABSENT, "plugin.absent", BAD, ""),
    (printed(NO_HIP, 10), printed(LISTENS), NEWER, "rccl.load", BAD, "libamdhip64.so.7"),
    (OFI_RCCL, printed(NO_VNI, 15), PRESENT, "plugin.listen", BAD, "SLINGSHOT_VNIS"),
    (OFI_RCCL, printed(NO_VNI, 15), PRESENT, "plugin.listen", BAD, "srun"),
    (OFI_RCCL, run("handshake-abi", 11), NEWER, "plugin.api", BAD, "net API 5; this RCCL takes 10,9,8,7,6"),
    (
        OFI_NCCL,
        printed(f"{START}\n@probe signal number=7 during=dlopen\n", 135),
        PRESENT,
        "plugin.crash",
        BAD,
        "signal 7",
    ),
    (OFI_NCCL, printed(CRASHES, 139), PRESENT, "plugin.crash", BAD, "signal 11"),
    (OFI_NCCL, printed(HANGS, 16), PRESENT, "plugin.hang", BAD, "did not return from init"),
    (OFI_NCCL, printed(CXI, 143, timed_out=True), PRESENT, "plugin.hang", BAD, "did not return"),  # without a word
    (OFI_NCCL, IN_RCCL, PRESENT, "rccl.load", BAD, ""),
    (printed(NEEDS_GPU), run("handshake-ofi-nccl"), NEWER, "rccl.silent", INFO, ""),
    (BROKEN, BROKEN, PRESENT, "rccl.probe", OPEN, ""),
    (OFI_NCCL, BROKEN, PRESENT, "plugin.handshake", OPEN, ""),
]


def test_what_the_probes_print_is_a_finding_with_its_proof() -> None:
    for rccl, hands, path, identity, severity, words in CASES:
        result = probed(Recorded(rccl, hands), path, excuse=NO_NIC if severity is INFO else None)
        found = by_id(result)
        finding = found[identity]
        assert finding.severity is severity, identity
        told = "\n".join((finding.summary, finding.cause or "", *finding.evidence, *finding.remedy))
        assert words in told, identity
        if severity is BAD:
            assert answer(result) is Answer.NO, identity
        if hands is IN_RCCL:  # which is not blamed on the plugin
            assert "plugin.crash" not in found
            assert not any("INFO" in line for line in finding.evidence)
        if severity is INFO:  # the silence of an RCCL that needs a GPU
            assert "rccl.no-plugin" not in found
        if rccl is BROKEN:
            assert answer(result) is Answer.UNDECIDED


def test_a_version_that_the_bytes_do_not_tell_is_asked_of_the_library() -> None:
    unknown = replace(ABSENT, rccl_version=None, plugin_files=(), accepts=())
    recorded = Recorded(run("rccl-ofi-nccl"), run("handshake-ofi-nccl"))
    static = StaticResult(unknown)
    result = probe(cast("Container", recorded), static, excuse=NO_NIC)
    assert result.path.rccl_version == "2.13.4"
    assert recorded.asked == ("/opt/aws-ofi-nccl/lib/librccl-net.so", (6, 5, 4)), "the file that RCCL itself opened"
