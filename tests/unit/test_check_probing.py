"""The probe level: from the programs' real output, stored in tests/fixtures/probes, to findings and answer."""

from __future__ import annotations

import os
import shutil
import sys
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from lumiimg.check.answer import decide, merge_levels
from lumiimg.check.context import open_for_check
from lumiimg.check.probe.container import Container, ProbePrograms, ProbeRun, read_run
from lumiimg.check.probe.judgement import ProbeResult, probe
from lumiimg.check.probe.process import SeenProcess, recheck_as_seen
from lumiimg.check.run.execution import count_gpus
from lumiimg.check.static.files import check_files
from lumiimg.check.static.process import StaticResult
from lumiimg.core.errors import MissingHereError
from lumiimg.core.findings import Answer, Finding, Level, Severity
from lumiimg.engine import process as gate
from lumiimg.engine.process import Completed
from lumiimg.fabric.path import FabricPath
from lumiimg.host.job_process import JobProcess
from tests.shared import fabric_builder, python_image
from tests.shared.elf_builder import library, runpath
from tests.shared.programs import needs, patient

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lumiimg.engine.engine import Engine

NO_NIC = "this machine has no Slingshot NIC (/dev/cxi*)"
PROBES = Path(__file__).parents[1] / "fixtures" / "probes"
JUDGEMENTS = tomllib.loads((PROBES / "judgements.toml").read_text())
TEXTS: dict[str, str] = JUDGEMENTS["texts"]
RCCL = "/usr/lib/x86_64-linux-gnu/librccl.so.1"
ABSENT = FabricPath(rccl=RCCL, rccl_version="2.13.4", plugin_files=("librccl-net.so",), accepts=(6, 5, 4))
PRESENT = replace(ABSENT, plugin="/opt/aws-ofi-nccl/lib/librccl-net.so")


def run(name: str, exit_code: int = 0, *, text: str | None = None, timed_out: bool = False) -> ProbeRun:
    output = (PROBES / f"{name}.txt").read_text() if text is None else text
    return read_run(name, Completed(("x",), exit_code, output, timed_out=timed_out))


HERE = ProbePrograms("/x", (), "here")


@dataclass
class Recorded:
    """A stand-in for a container that returns what real ones printed."""

    rccl: ProbeRun
    hands: ProbeRun
    listing: ProbeRun | None = None
    asked: tuple[str, tuple[int, ...]] | None = None
    programs: ProbePrograms = HERE

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
    """Python calls superscript two a digit, but not a number, and refuses a number of thousands of digits."""
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
        message = "\n".join((finding.summary, finding.cause or "", *finding.evidence, *finding.remedy))
        assert case["says"] in message, case
        if severity is BAD:
            assert answer(result) is Answer.NO, identity
        if "signal-in-rccl" in case["hands"]:  # which is not blamed on the plugin
            assert "plugin.crash" not in found
            assert not any("INFO" in line for line in finding.evidence)
        if severity is INFO:  # the silence of an RCCL that needs a GPU
            assert "rccl.no-plugin" not in found
        if "not-run" in case["rccl"]:
            assert answer(result) is Answer.UNDECIDED


def test_a_version_that_the_bytes_do_not_show_is_asked_of_the_library() -> None:
    unknown = replace(ABSENT, rccl_version=None, plugin_files=(), accepts=())
    recorded = Recorded(run("rccl-ofi-nccl"), run("handshake-ofi-nccl"))
    static = StaticResult(unknown)
    result = probe(cast("Container", recorded), static, inconclusive=NO_NIC)
    assert result.path.rccl_version == "2.13.4"
    assert recorded.asked == ("/opt/aws-ofi-nccl/lib/librccl-net.so", (6, 5, 4)), "the file that RCCL itself opened"


# ---- the process of a job, with a Python of this machine as stand-in


@dataclass(frozen=True)
class Here(Container):
    """A container that is this machine."""

    def run(self, name: str, argv: Sequence[str]) -> ProbeRun:
        return read_run(name, gate.run(argv, env=self.environment, timeout_s=patient(60)))


@dataclass(frozen=True)
class Torch:
    """A torch on this machine that really loads an RCCL."""

    folder: Path

    @property
    def job(self) -> JobProcess:
        return JobProcess(sys.executable, is_python=True, imports="torch", framework="torch", package=str(self.package))

    @property
    def package(self) -> Path:
        return self.folder / "torch"

    def start_up(self, text: str) -> None:
        (self.folder / "sitecustomize.py").write_text(text)

    def seen(self, job: JobProcess | None = None, **variables: str) -> ProbeResult:
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(self.folder), **variables}
        container = Here(cast("Engine", None), Path("x"), environment, ProbePrograms("", (), "none"))
        opened = tuple(str(file) for file in sorted((self.package / "lib").iterdir()))
        static = StaticResult(replace(ABSENT, rccl=opened[0]), job=job or self.job, opened=opened)
        return probe(container, static, inconclusive=NO_NIC)


@pytest.fixture
def real_torch(tmp_path: Path) -> Torch:
    needs("gcc")
    made = Torch(tmp_path / "site")
    rccl = library(made.package / "lib/librccl.so.1", source=ANSWER)
    library(made.package / "lib/libtorch_hip.so", *runpath("$ORIGIN"), rccl, source=ASKS)
    (made.package / "__init__.py").write_text(
        "import ctypes, os\n"
        "hip = ctypes.CDLL(os.path.join(os.path.dirname(__file__), 'lib', 'libtorch_hip.so'))\n"
        "hip.asked.restype = ctypes.c_void_p\n"
    )
    return made


ANSWER = "int own; int *ncclCommInitRank(void) { return &own; } int ncclGetUniqueId(void *id) { return id == 0; }"
ASKS = "extern int *ncclCommInitRank(void); int *asked(void) { return ncclCommInitRank(); }"


def process(result: ProbeResult) -> SeenProcess:
    assert result.seen is not None, result.findings.found
    return result.seen


def test_who_answers_for_rccl_is_whom_torch_really_calls(real_torch: Torch, tmp_path: Path) -> None:
    """By the relocation of a library itself: LD_PRELOAD, global libraries, one of several that define the function."""
    shim = library(tmp_path / "libshim.so", source=ANSWER)
    other = library(tmp_path / "other/librccl.so.1", source=ANSWER)
    rccl = real_torch.package / "lib/librccl.so.1"
    result = real_torch.seen()
    assert (process(result).rccl, process(result).package) == (str(rccl), str(real_torch.package))
    assert by_id(result)["program.opens"].severity is Severity.OK
    assert "program.other-files" not in by_id(result)
    assert process(real_torch.seen(LD_PRELOAD=str(shim))).rccl == str(shim)
    for_all = f"import ctypes; ctypes.CDLL({str(shim)!r}, mode=ctypes.RTLD_GLOBAL)"
    real_torch.start_up(for_all)
    assert process(real_torch.seen()).rccl == str(shim)
    real_torch.start_up(for_all.replace(", mode=ctypes.RTLD_GLOBAL", ""))
    assert process(real_torch.seen()).rccl == str(rccl), "one that was opened for itself answers nobody else"
    real_torch.start_up("")
    job = replace(real_torch.job, framework="vllm", asks=("librccl.so.1",))
    assert process(real_torch.seen(job)).rccl == str(rccl)
    assert process(real_torch.seen(job, VLLM_NCCL_SO_PATH=str(other))).rccl == str(other)
    library(
        real_torch.package / "lib/libtorch_hip.so", source=ANSWER + "int *asked(void) { return ncclCommInitRank(); }"
    )
    inside = real_torch.seen()
    assert process(inside).rccl == str(real_torch.package / "lib/libtorch_hip.so")
    assert by_id(inside)["program.other-files"].severity is Severity.UNKNOWN


def test_the_variables_of_a_process_are_those_that_c_has(real_torch: Torch) -> None:
    real_torch.start_up(
        "import ctypes, os\n"
        "os.environ['NCCL_NET'] = 'Socket'\n"
        "ctypes.CDLL(None).setenv(b'FI_PROVIDER', b'tcp; a\\\\nb', 1)\n"
        "os.environ['LD_LIBRARY_PATH'] = '/too/late'\n"
        "os.environ['MY_TOKEN'] = 'x'\n"
    )
    variables = dict(process(real_torch.seen(LD_LIBRARY_PATH="/at/start", NCCL_IB_HCA="a")).variables)
    assert (variables["NCCL_NET"], variables["NCCL_IB_HCA"], variables["LD_LIBRARY_PATH"]) == (
        "Socket",
        "a",
        "/at/start",
    )
    assert variables["FI_PROVIDER"].startswith("tcp; a")
    assert "MY_TOKEN" not in variables


@pytest.mark.parametrize(
    ("start", "torch", "identity", "severity"),
    [
        ("", "import no_such_module", "program.load", BAD),
        ("", "raise RuntimeError('no GPU')", "program.probe", OPEN),
        ("", "import sys; sys.exit(3)", "program.probe", OPEN),
        ("", "import os; os._exit(0)", "program.probe", OPEN),
        ("import os; os._exit(0)", "", "program.probe", OPEN),
        ("print('@probe ran')", "import os; os._exit(0)", "program.probe", OPEN),
    ],
)
def test_a_process_that_does_not_come_to_its_end_answers_nothing(
    real_torch: Torch, start: str, torch: str, identity: str, severity: Severity
) -> None:
    real_torch.start_up(start)
    (real_torch.package / "__init__.py").write_text(torch)
    result = real_torch.seen()
    assert by_id(result)[identity].severity is severity
    assert "program.opens" not in by_id(result)


@pytest.mark.threat
def test_start_up_code_may_print_lines_of_ours(real_torch: Torch) -> None:
    """It runs in the container and may print anything; none of it becomes an option or a command."""
    lines = (
        "variable name=NCCL_NET= value=x",
        "variable name=--split-string value=id",
        "loaded",
        "module",
        "asked",
        "answers user=x",
    )
    real_torch.start_up(
        "".join(f"print('@probe {line}', flush=True)\n" for line in (*lines, "python program=/%0A%1B[2J"))
    )
    seen = process(real_torch.seen())
    assert all(name.startswith(("NCCL_", "FI_", "PYTHONPATH")) for name, _ in seen.variables_to_pass), (
        seen.variables_to_pass
    )
    assert "\x1b" not in seen.program


# ---- the files, judged again with what was seen of the process


SEEN = Finding("program.opens", Severity.OK, Level.PROBE, "it ran")


def seen_in(root: Path, seen: Callable[[StaticResult], SeenProcess]) -> tuple[StaticResult, dict[str, Finding]]:
    with open_for_check(root) as context:
        files = check_files(context)
        again, probed = recheck_as_seen(context, files, [], seen(files.static))
        return again.static, {finding.id: finding for finding in (*again.static.findings, *probed)}


def as_predicted(static: StaticResult, **variables: str) -> SeenProcess:
    files = (*static.opened, *static.opened_by_libfabric)
    start = {"LD_LIBRARY_PATH": "/opt/rocm/lib:/.singularity.d/libs", "PATH": "/usr/bin"}
    assert static.job is not None
    return SeenProcess(
        program=static.job.program,
        rccl=static.path.rccl,
        module=static.job.imports,
        package=static.job.package,
        loaded=files,
        variables=tuple((start | variables).items()),
        mapped=files,
    )


@pytest.fixture
def image_of_torch(tmp_path: Path) -> Path:
    root = fabric_builder.image(tmp_path / "image")
    python_image.python(root, "usr")
    python_image.environment(root, PATH="/usr/bin", LD_LIBRARY_PATH="/opt/rocm/lib")
    python_image.torch(root, "usr")
    return root


def test_a_variable_that_start_up_code_sets_is_judged_as_one_of_the_image(image_of_torch: Path) -> None:
    _, found = seen_in(image_of_torch, as_predicted)
    assert not {"network.forced", "program.other-files"} & found.keys()
    _, found = seen_in(image_of_torch, lambda static: as_predicted(static, NCCL_NET="Socket"))
    forced = found["network.forced"]
    assert (forced.severity, forced.level) == (Severity.PROBLEM, Level.PROBE)
    assert forced.remedy[0].startswith("take NCCL_NET out of the image's ")


def test_what_only_a_shell_knew_is_judged_as_it_is(image_of_torch: Path) -> None:
    script = image_of_torch / ".singularity.d/env/91-more.sh"
    script.write_text("export NCCL_NET=$(cat /some/file)\n")
    _, found = seen_in(image_of_torch, lambda static: as_predicted(static, NCCL_NET="Socket"))
    assert found["network.forced"].severity is Severity.PROBLEM
    assert "env -u NCCL_NET" in found["network.forced"].remedy[0]
    _, found = seen_in(image_of_torch, as_predicted)
    assert "network.forced" not in found
    assert merge_levels([found["image.partly-read"]], [SEEN])[-1].severity is Severity.INFO


def test_another_rccl_than_the_files_predict_is_followed(image_of_torch: Path) -> None:
    own = python_image.torch(image_of_torch, "opt/src")
    package = f"/{own.parents[1].relative_to(image_of_torch)}"

    def elsewhere(static: StaticResult) -> SeenProcess:
        files = tuple(f"{package}/lib/{name}" for name in (own.name, "libtorch_hip.so"))
        return replace(as_predicted(static), rccl=files[0], package=package, loaded=files, mapped=files)

    static, found = seen_in(image_of_torch, elsewhere)
    assert static.path.rccl == f"{package}/lib/{own.name}"
    assert found["program.other-files"].severity is Severity.INFO
    gone = lambda static: replace(elsewhere(static), loaded=("/of/the/host.so",))  # noqa: E731
    static, _ = seen_in(image_of_torch, gone)
    assert static.path.rccl != f"{package}/lib/{own.name}", "what is not in the image is not followed"


def test_a_torch_that_only_start_up_code_brings_is_imported_and_counts(real_torch: Torch) -> None:
    """If the files show no torch, its process asks for RCCL by name, but not if torch has one."""
    plain = JobProcess(sys.executable, is_python=True, asks=("libno.so",))
    seen = process(real_torch.seen(plain))
    assert (seen.module, seen.rccl) == ("torch", str(real_torch.package / "lib/librccl.so.1"))
    shutil.rmtree(real_torch.package)
    real_torch.package.joinpath("lib").mkdir(parents=True)
    real_torch.package.joinpath("lib/a.so").touch()
    assert "program.opens" not in by_id(real_torch.seen(plain)), "nothing answers"
