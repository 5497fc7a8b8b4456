"""The static check, on folders of real ELF files that stand in for RCCL and its plugin."""

from __future__ import annotations

import random
import shlex
import shutil
import subprocess
from functools import cache
from itertools import islice, product
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lumiimg.check.context import ImageInContext
from lumiimg.check.pipeline import final_findings
from lumiimg.check.probe.task import inconclusive_reason
from lumiimg.check.registry import finding_types
from lumiimg.check.static.files import check_libraries
from lumiimg.check.static.variables import as_doubts
from lumiimg.cli.main import main
from lumiimg.core.access import BytesInMemory
from lumiimg.core.errors import ExitCode
from lumiimg.core.findings import Answer, Finding, Level, Severity
from lumiimg.fabric.rccl import read_rccl
from lumiimg.host.rccl_process import read_variables
from lumiimg.image import open_image
from tests.shared.checks import checked, unread
from tests.shared.elf_builder import entry_at, library, patched
from tests.shared.fabric_builder import ROCR
from tests.shared.lumi_node import ldconfig
from tests.shared.programs import EVERYTHING, sampled
from tests.shared.shells import exported, generated

if TYPE_CHECKING:
    from lumiimg.check.static.process import StaticResult

LIB = "usr/lib/x86_64-linux-gnu"
RCCL_2_13 = ["RCCL version 2.13.4+hip5.7", "librccl-net.so", "ncclNetPlugin_v6", "ncclNetPlugin_v5", "ncclNetPlugin_v4"]
RCCL_2_27 = [
    "RCCL version : 2.27.7-",
    "libnccl-net.so",
    "librccl-net",
    *(f"ncclNetPlugin_v{n}" for n in (10, 9, 8, 7, 6)),
]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root with the C library and the loader of this machine, and a stand-in librccl.so.1."""
    root = tmp_path / "root"
    for name in ("lib64/ld-linux-x86-64.so.2", f"{LIB}/libc.so.6"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(
            f"/{name}" if Path(f"/{name}").exists() else f"/lib/x86_64-linux-gnu/{Path(name).name}", root / name
        )
    (root / "lib").mkdir(exist_ok=True)
    (root / "lib/x86_64-linux-gnu").symlink_to(f"/{LIB}")
    rccl(root / LIB / "librccl.so.1", RCCL_2_13)
    library(root / LIB / "libhsa-runtime64.so", source="int hsa_init;")
    return root


def rccl(path: Path, strings: list[str]) -> Path:
    quoted = "".join(f'"{text}\\0" ' for text in strings)
    return library(path, source=f'const char strings[] = "\\0" {quoted};')


def plugin(path: Path, *arguments: str | Path, versions: tuple[int, ...] = (5,)) -> Path:
    return library(path, *arguments, source="".join(f"int ncclNetPlugin_v{n};" for n in versions))


def check(root: Path, environment: dict[str, str] | None = None) -> StaticResult:
    with open_image(root) as image:
        return check_libraries(ImageInContext(root, image, image, environment or {})).static


def severities(result: StaticResult) -> dict[str, Severity]:
    return {finding.id: finding.severity for finding in result.findings}


def finding(result: StaticResult, identity: str) -> Finding:
    return next(finding for finding in result.findings if finding.id == identity)


def test_strings_of_other_names_are_not_taken_for_the_names() -> None:
    data = (
        b"\0NCCL version 2.20.5+cuda\0xncclNetPlugin_v4\0ncclNetPlugin_v8\0ncclCollNetPlugin_v7\0ncclNetPlugin_v123\0"
    )
    strings = read_rccl(BytesInMemory(data + bytes(3_000_000)))
    assert (strings.version, strings.plugin_files, strings.accepts) == ("2.20.5", (), (8,))
    # across the boundary of two reads
    border = bytes(1024 * 1024 - 10) + b"\0ncclNetPlugin_v6\0RCCL version 2.13.4+hip\0librccl-net.so\0"
    assert read_rccl(BytesInMemory(border)).accepts == (6,)
    assert read_rccl(BytesInMemory(b"")).version is None


def test_a_plugin_whose_symbols_cannot_be_read_leaves_open_whether_they_are_all_there(root: Path) -> None:
    """The unreadable symbols are those of a library that should define what the plugin needs."""
    needed = library(root / LIB / "libmany.so", source="int many;")
    library(root / LIB / "librccl-net.so", needed, source="extern int many; int *ncclNetPlugin_v5 = &many;")
    patched(needed, entry_at(needed, 11) + 8, bytes([23]))  # DT_SYMENT
    symbols = finding(check(root), "plugin.symbols")
    assert symbols.severity is Severity.UNKNOWN
    assert "symbols of 23 bytes" in symbols.summary


def test_that_no_plugin_is_found_is_sure_only_where_the_search_is_known(root: Path) -> None:
    environment = root / ".singularity.d/env"
    environment.mkdir(parents=True, exist_ok=True)
    (root / "opt/net").mkdir(parents=True)
    for line, severity in (
        ("if [ -d /scratch ]; then export LD_LIBRARY_PATH=/opt/net; fi", Severity.UNKNOWN),
        ("export NCCL_NET_PLUGIN=$(cat /etc/plugin)", Severity.UNKNOWN),
        ("export OTHER=$(cat /etc/other)", Severity.PROBLEM),
    ):
        (environment / "91-more.sh").write_text(f"{line}\n")
        assert finding(check(root), "plugin.absent").severity is severity, line
        made = plugin(root / "opt/net/librccl-net.so")
        found = finding(check(root), "plugin.not-on-path")
        assert (found.severity, "in the parts of the image that were read" in found.summary) == (
            severity,
            severity is Severity.UNKNOWN,
        )
        other = made.rename(made.with_name("librccl-net-other.so"))
        assert finding(check(root), "plugin.other-name").severity is severity, line
        other.unlink()
    (environment / "91-more.sh").write_text("export PATH=$(cat /etc/paths)\n")
    assert finding(check(root), "plugin.absent").severity is Severity.PROBLEM, "whatever is started"
    (environment / "91-more.sh").unlink()
    plugin(root / "opt/net/librccl-net.so")
    for name in ("APPTAINERENV_LD_LIBRARY_PATH", "SINGULARITYENV_LD_LIBRARY_PATH"):
        assert severities(check(root, {name: "/opt/net"}))["plugin.loads"] is Severity.OK
    assert severities(check(root, {"LD_LIBRARY_PATH": "/opt/net"}))["plugin.not-on-path"] is Severity.PROBLEM


SURE = ("{set}", "(unset {name})\n{set}", "{name}=other\n{set}", "false && return\n{set}")
UNSURE = (
    "return\n{set}",
    "[ -d /scratch ] && return\n{set}",
    "eval true\n{set}",
    ". /opt/site.sh\n{set}",
    "{set}\nexport -n {name}",
    "{set}\n[ -d /scratch ] && unset {name}",
    "{set}\nif [ -d /scratch ]; then\n  export {name}=other\nfi",
    "{set}\nunset_it() {{ unset {name}; }}\nunset_it",
)
"""Scripts that may or may not export a variable."""


def test_a_variable_that_only_a_shell_knows_is_an_open_question_and_no_obstacle(root: Path) -> None:
    environment = root / ".singularity.d/env"
    environment.mkdir(parents=True, exist_ok=True)
    plugin(root / LIB / "librccl-net.so")
    library(root / "opt/broken/librccl-net.so", library(root / "opt/gone.so"), source="int ncclNetPlugin_v5;")
    variables = (
        ("NCCL_NET", "Socket", "network.forced"),
        ("FI_PROVIDER", "tcp", "provider.excluded"),
        ("NCCL_NET_PLUGIN", "absent", "plugin.other-name"),
        ("LD_LIBRARY_PATH", "/opt/broken", "plugin.loads"),
    )
    for (name, value, code), line in sampled(product(variables, (*SURE, *UNSURE)), 10):
        (environment / "91-more.sh").write_text(line.format(name=name, set=f"export {name}={value}") + "\n")
        result, is_sure = check(root), line in SURE
        found = finding(result, code)
        assert found.severity is (Severity.PROBLEM if is_sure else Severity.UNKNOWN), (name, line)
        assert (Severity.PROBLEM in {each.severity for each in result.findings}) is is_sure, (name, line)
        if not is_sure and code != "plugin.other-name":  # which is open by what is not seen, too
            assert "cannot be known without running" in (found.cause or ""), line
        if name in {"NCCL_NET", "FI_PROVIDER"}:
            report = check(root, {f"APPTAINERENV_{name}": value})
            assert finding(report, code).severity is Severity.PROBLEM, "whoever starts it decides"


def test_a_variable_that_may_end_python_and_that_only_a_shell_knows_is_an_open_question(root: Path) -> None:
    (root / ".singularity.d/env").mkdir(parents=True)
    (root / ".singularity.d/env/91-more.sh").write_text("export PYTHONUTF8=$(id)\nexport OTHER=$(id)\n")
    doubts = [each.summary for each in check(root).findings if "only a shell knows" in each.summary]
    assert [each.rpartition(" ")[2] for each in doubts] == ["PYTHONUTF8"]


def test_no_problem_stays_one_where_a_variable_on_which_it_hangs_is_in_doubt(root: Path) -> None:
    (root / ".singularity.d/env").mkdir(parents=True)
    script = root / ".singularity.d/env/91-more.sh"
    codes = [code for code, meaning in finding_types().items() if Severity.PROBLEM in meaning.static]
    hang_on = {
        "PATH": {"program.load", "program.cuda", "rccl.absent", "rccl.load", "plugin.loads", "gpu.code"},
        "PYTHONPATH": {"program.cuda", "rccl.absent", "plugin.api", "fabric.two-hip", "plugin.other-name"},
        "VLLM_NCCL_SO_PATH": {"rccl.load", "plugin.api"},
        "LD_LIBRARY_PATH": {"program.load", "rccl.load", "plugin.absent", "bind.refused", "loader.other-build"},
        "LD_PRELOAD": {"program.load", "library.cut-off"},
        "NCCL_NET_PLUGIN": {"plugin.absent", "plugin.loads"},
        "NCCL_NET": {"network.forced"},
        "FI_PROVIDER": {"provider.excluded"},
        "HSA_XNACK": {"gpu.code", "gpu.xnack"},
    }
    for name, wanted in hang_on.items():
        found = [Finding(code, Severity.PROBLEM, Level.STATIC, "", where="/x") for code in codes]
        for line in (f"[ -d /x ] && export {name}=1", f"export {name}=$(id)"):
            script.write_text(f"{line}\n")
            with open_image(root) as image:
                variables = read_variables(image, {})
                reported = {each.id for each in as_doubts(found, variables) if each.severity is Severity.UNKNOWN}
                assert wanted <= reported, (line, wanted - reported)
                assert {each.severity for each in as_doubts(found, variables, {name})} == {Severity.PROBLEM}
            assert any(f"only a shell knows the value of {name}" in each.summary for each in check(root).findings)
        script.write_text("eval true\n")
        with open_image(root) as image:
            reported = {
                each.id for each in as_doubts(found, read_variables(image, {})) if each.severity is Severity.UNKNOWN
            }
        assert wanted <= reported
    nothing = Finding("rccl.absent", Severity.PROBLEM, Level.STATIC, "no RCCL is in the image")
    with open_image(root) as image:
        assert as_doubts([nothing], read_variables(image, {})) == (nothing,)


def test_what_scripts_come_to_is_answered_as_what_a_shell_then_has_or_left_open(root: Path, tmp_path: Path) -> None:
    whole_path(root, "AWS Libfabric")
    plugin(root / "opt/x/librccl-net.so")
    script = root / ".singularity.d/env/90-environment.sh"
    script.parent.mkdir(parents=True)
    scripts = [*islice(generated(random.Random("answers")), 300 if EVERYTHING else 40)]  # noqa: S311 - the same each time

    @cache
    def answer(text: str) -> Answer:
        script.write_text(text)
        return checked(root).answer

    for shell in ("dash", "bash"):
        for text, real in zip(scripts, exported(shell, scripts, tmp_path), strict=True):
            if real is not None:  # else it ends the shell
                names = ("FI_PROVIDER", "LD_LIBRARY_PATH", "NCCL_NET", "PATH")
                then = "".join(f"export {name}={shlex.quote(real[name])}\n" for name in names if name in real)
                assert answer(f"{text}\n") in {answer(then), Answer.UNDECIDED}, (shell, text)


def test_what_nothing_hangs_on_leaves_no_question(root: Path) -> None:
    whole_path(root, "AWS Libfabric")
    (root / ".singularity.d/env").mkdir(parents=True)
    for line in ("MIOPEN_USER_DB_PATH=/tmp/$(id -un)", "OMP_NUM_THREADS=$(nproc)", "TRITON_CACHE_DIR=$HOME/triton"):
        (root / ".singularity.d/env/91-more.sh").write_text(f"export {line}\n")
        assert checked(root).answer is Answer.NO_OBSTACLE, line


def test_a_variable_of_the_user_that_a_script_may_replace_is_an_open_question(root: Path) -> None:
    environment = root / ".singularity.d/env"
    environment.mkdir(parents=True, exist_ok=True)
    plugin(root / LIB / "librccl-net.so")
    for line, severity in (
        ("export OTHER=$(id)", Severity.PROBLEM),
        ("[ -d /scratch ] && export NCCL_NET=ofi", Severity.UNKNOWN),
        (". /opt/site.sh", Severity.UNKNOWN),
        ("export PATH=${PATH//a/b}", Severity.UNKNOWN),
    ):
        (environment / "91-more.sh").write_text(f"{line}\n")
        assert finding(check(root, {"NCCL_NET": "Socket"}), "network.forced").severity is severity, line
        assert finding(check(root, {"APPTAINERENV_NCCL_NET": "Socket"}), "network.forced").severity is Severity.PROBLEM


def test_nccl_net_plugin_changes_the_name_as_each_generation_reads_it(root: Path) -> None:
    path = "/opt/plugin/librccl-net.so"
    plugin(root / path[1:], versions=(5, 8))
    # up to 2.20 a path becomes librccl-net-/opt/plugin/librccl-net.so.so
    found = finding(check(root, {"NCCL_NET_PLUGIN": path}), "plugin.other-name")
    assert "librccl-net-/opt/plugin/librccl-net.so.so" in found.summary
    assert "never a path" in (found.cause or "")
    assert found.remedy == ("unset NCCL_NET_PLUGIN",)
    rccl(root / LIB / "librccl.so.1", RCCL_2_27)
    assert check(root, {"NCCL_NET_PLUGIN": path}).path.plugin_api == 8
    # a plugin of a list that cannot be loaded is skipped
    (root / LIB / "broken.so").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    plugin(root / LIB / "good.so", versions=(10,))
    assert (check(root, {"NCCL_NET_PLUGIN": "broken.so,good.so"}).path.plugin or "").endswith("/good.so")
    assert severities(check(root, {"NCCL_NET_PLUGIN": "broken.so"}))["plugin.loads"] is Severity.PROBLEM
    # RCCL 2.27.7 of ROCm 7.2.4, run: without the variable libnccl-net.so, with NCCL_NET_PLUGIN=ofi librccl-net-ofi.so
    for file in ("librccl-net-ofi.so", "libnccl-net-ofi.so"):
        plugin(root / LIB / file, versions=(10,))
    for stem in ("librccl-net", "libnccl-net"):
        rccl(root / LIB / "librccl.so.1", [*RCCL_2_27, stem])
        assert (check(root, {"NCCL_NET_PLUGIN": "ofi"}).path.plugin or "").endswith(f"/{stem}-ofi.so")
    rccl(root / LIB / "librccl.so.1", ["RCCL version 2.20.5+hip6.2", "libnccl-net-%s.so", "ncclNetPlugin_v8"])
    assert check(root, {"NCCL_NET_PLUGIN": "ofi"}).path.plugin_files == ("libnccl-net-ofi.so",)


@pytest.mark.parametrize(
    ("file", "value", "remedy"),
    [
        ("libnccl-net.so", "ofi", "unset NCCL_NET_PLUGIN"),
        # without the variable it opens libnccl-net.so, which is missing, too
        ("librccl-net.so", "ofi", f"export SINGULARITYENV_NCCL_NET_PLUGIN=/{LIB}/librccl-net.so"),
        ("libnccl-net-ofi.so", "ofi", f"export SINGULARITYENV_NCCL_NET_PLUGIN=/{LIB}/libnccl-net-ofi.so"),
        ("librccl-net-ofi.so", "/opt/x/librccl-net.so", "export SINGULARITYENV_NCCL_NET_PLUGIN=ofi"),
    ],
)
def test_the_remedy_for_a_name_leads_rccl_to_the_plugin(root: Path, file: str, value: str, remedy: str) -> None:
    rccl(root / LIB / "librccl.so.1", RCCL_2_27)
    plugin(root / LIB / file, versions=(10,))
    found = finding(check(root, {"NCCL_NET_PLUGIN": value}), "plugin.other-name")
    assert found.remedy[0] == remedy
    verb, _, setting = found.remedy[0].partition(" ")
    name, _, named = setting.partition("=")
    assert check(root, {name: named} if verb == "export" else {}).path.plugin_api == 10
    for link in found.remedy[1:]:
        _, _, target, made = link.removesuffix("   (in the image's %post)").split(" ")
        (root / made[1:]).symlink_to(target)
        assert check(root, {"NCCL_NET_PLUGIN": value}).path.plugin_api == 10


@pytest.mark.parametrize("value", ["", ","])
def test_a_list_of_plugins_without_a_name_has_none_whatever_is_in_the_image(root: Path, value: str) -> None:
    rccl(root / LIB / "librccl.so.1", RCCL_2_27)
    plugin(root / LIB / "libnccl-net.so", versions=(10,))
    assert check(root).path.plugin is not None
    for environment in ({"NCCL_NET_PLUGIN": value}, {"APPTAINERENV_NCCL_NET_PLUGIN": value}):
        report = checked(root, environment)
        assert report.answer is Answer.NO
        found = finding(check(root, environment), "plugin.other-name")
        assert "open no net plugin at all" in found.summary
        assert found.remedy == (f"unset {next(iter(environment))}",)
    rccl(root / LIB / "librccl.so.1", ["RCCL version 2.26.6-", "libnccl-net.so", "ncclNetPlugin_v10"])
    assert check(root, {"NCCL_NET_PLUGIN": ""}).path.plugin is not None


def test_a_libfabric_with_cxi_that_does_not_know_gpu_memory_is_a_question(root: Path) -> None:
    libcxi = library(root / LIB / "libcxi.so.1")
    for source, runtime, remedy in (
        ("int x;", "libhsa-runtime64.so", "build libfabric with --with-rocr=/opt/rocm: the layer fabric-bundled does"),
        (ROCR, None, "build libfabric with --with-rocr=/opt/rocm: the layer fabric-bundled does"),
    ):
        libfabric = library(root / LIB / "libfabric.so.1", libcxi, source=source)
        plugin(root / LIB / "librccl-net.so", libfabric)
        if runtime is None:
            (root / LIB / "libhsa-runtime64.so").unlink()
        found = finding(check(root), "provider.no-gpu-memory")
        assert (found.severity, found.remedy) == (Severity.UNKNOWN, (remedy,))
        assert checked(root).answer is Answer.UNDECIDED
    # RCCL comes with the runtime, under the name that programs use
    runtime_library = library(root / LIB / "libhsa-runtime64.so.1", source="int hsa_init;")
    plugin(root / LIB / "librccl-net.so", libfabric, runtime_library)
    (link,) = finding(check(root), "provider.no-gpu-memory").remedy
    target, name = link.split()[2:4]
    assert name == "/lib/x86_64-linux-gnu/libhsa-runtime64.so"
    (root / LIB / "libhsa-runtime64.so").symlink_to(target)
    assert checked(root).answer is Answer.NO_OBSTACLE


@pytest.mark.usefixtures("clean_home")
@pytest.mark.parametrize(
    ("built_with", "machine", "command"),
    [
        ("--base debian-13 --add netprobe", "", "build --base debian-13 --add netprobe --add aws-ofi-nccl"),
        (
            "--base debian-13 --add netprobe --site generic",
            "--site generic",
            "build --base debian-13 --add netprobe --add aws-ofi-nccl --site generic",
        ),
        ("--base debian-13 --site lumi", "--site frontier", "adapt theirs --site frontier"),
        ("", "", "adapt theirs --site lumi"),
        ("--add netprobe", "", "adapt theirs --site lumi"),
        ("--base debian-13 --add aws-ofi-nccl==1.18.0", "", "build --base debian-13 --add aws-ofi-nccl"),
        # an image is never its own output
        ("with-plugin.sif", "", "adapt with-plugin.sif --site lumi -o with-newer-plugin.sif"),
    ],
)
def test_the_command_that_gives_a_plugin_can_be_carried_out_as_it_stands(
    built_with: str, machine: str, command: str
) -> None:
    lacking = Finding("plugin.absent", Severity.PROBLEM, Level.STATIC, "no net plugin")
    image, built = (built_with, []) if built_with.endswith(".sif") else ("theirs", built_with.split())
    context = unread(Path(image), built_with=tuple(built), machine=tuple(machine.split()))
    (found,) = final_findings(context, (lacking,))
    assert found.remedy == (f"lumiimg {command}{'' if ' -o ' in command else ' -o with-plugin.sif'}",)
    if command.startswith("build"):
        assert main([*found.remedy[0].split()[1:], "--dry-run"]) == ExitCode.GOOD


def test_a_failure_counts_only_where_there_is_a_nic_and_a_job_step(tmp_path: Path) -> None:
    assert "no Slingshot NIC" in (inconclusive_reason({"SLINGSHOT_VNIS": "1"}, tmp_path) or "")
    (tmp_path / "cxi_user").touch()
    assert "no Slingshot NIC" in (inconclusive_reason({"SLINGSHOT_VNIS": "1"}, tmp_path) or "")
    (tmp_path / "cxi0").touch()
    assert "srun" in (inconclusive_reason({}, tmp_path) or "")
    assert inconclusive_reason({"SLINGSHOT_VNIS": "1"}, tmp_path) is None


def whole_path(root: Path, *strings: str, accepts: int = 5) -> None:
    """Make a complete path: a plugin with these strings, libfabric with cxi, libcxi."""
    libcxi = library(root / LIB / "libcxi.so.1")
    libfabric = library(root / LIB / "libfabric.so.1", libcxi, source=ROCR)
    message = "".join(f'"{text}\\0" ' for text in strings)
    source = f'int ncclNetPlugin_v{accepts}; const char said[] = "\\0" {message};'
    library(root / LIB / "librccl-net.so", libfabric, source=source)


NETWORKS = [
    # aws-ofi-rccl, and aws-ofi-nccl up to 1.12: one name
    (["AWS Libfabric"], ["AWS Libfabric", "aws libfabric"], ["Libfabric", "OFI", "Libfabrik", "Socket ", ""]),
    # from 1.13 on, linkers store `Libfabric` as the end of the other name: any of the three
    (["AWS Libfabric", "OFI", "NCCL_NET"], ["Libfabric", "AWS Libfabric", "ofi"], ["Libfabrik", "NET", ""]),
    (["of a vendor"], ["Of A Vendor"], ["vendor", "OFI"]),
]


def test_a_network_that_the_plugin_is_not_seen_to_have_is_not_green(root: Path) -> None:
    # without a plugin, only the name of an OFI network is not in question
    assert "network.forced" not in severities(check(root, {"NCCL_NET": "OFI"}))
    assert severities(check(root, {"NCCL_NET": "Libfabrik"}))["network.forced"] is Severity.UNKNOWN
    for strings, has, lacks in NETWORKS:
        whole_path(root, *strings)
        for name in has:
            assert "network.forced" not in severities(check(root, {"NCCL_NET": name})), (strings, name)
        for name in lacks:
            reported = finding(check(root, {"NCCL_NET": name}), "network.forced")
            assert (name, reported.severity) == (name, Severity.UNKNOWN)
            assert f"NCCL_NET={name}" in reported.summary
        assert checked(root, {"NCCL_NET": lacks[0]}).answer is Answer.UNDECIDED
    for name, says in (("Socket", "TCP sockets"), ("IB", "InfiniBand or end")):  # of RCCL itself
        reported = finding(check(root, {"SINGULARITYENV_NCCL_NET": name}), "network.forced")
        assert (reported.severity, says in reported.summary) == (Severity.PROBLEM, True), name
    whole_path(root, "AWS Libfabric")
    for harmless in ({"NCCL_NET": "AWS Libfabric"}, {"FI_PROVIDER": "cxi,tcp"}, {"FI_PROVIDER": "^tcp"}):
        assert checked(root, harmless).answer is Answer.NO_OBSTACLE


def conf(root: Path, text: str | bytes, name: str = "rccl.conf") -> None:
    (root / "etc").mkdir(exist_ok=True)
    (root / "etc" / name).write_bytes(text if isinstance(text, bytes) else text.encode())


def test_what_rccl_sets_by_its_own_file_counts_where_nothing_else_sets_it(root: Path) -> None:
    whole_path(root, "AWS Libfabric")
    conf(root, "NCCL_NET=Socket\nNCCL_NET=AWS Libfabric\nFI_PROVIDER=tcp\n")
    report = checked(root)
    assert report.answer is Answer.NO
    reported = {finding.id: finding for finding in report.findings}
    assert reported["network.forced"].summary.startswith("NCCL_NET=Socket in /etc/rccl.conf ")
    assert reported["network.forced"].remedy[0].startswith("take NCCL_NET out of the image's /etc/rccl.conf")
    assert reported["provider.excluded"].summary.startswith("FI_PROVIDER=tcp in /etc/rccl.conf ")
    of_user = {"NCCL_NET": "AWS Libfabric", "FI_PROVIDER": "cxi"}
    assert checked(root, of_user).answer is Answer.NO_OBSTACLE
    set_by_user = finding(check(root, {**of_user, "NCCL_NET": "IB"}), "network.forced")
    assert "rccl.conf" not in set_by_user.summary + set_by_user.remedy[0]
    # an empty value counts as set
    assert finding(check(root, {"NCCL_NET": ""}), "network.forced").severity is Severity.UNKNOWN
    conf(root, "NCCL_NET_PLUGIN=of-conf\n")
    named = check(root)
    assert named.path.plugin_files == ("librccl-net-of-conf.so",)
    assert finding(named, "plugin.other-name").remedy == ("take NCCL_NET_PLUGIN out of the image's /etc/rccl.conf",)


@pytest.mark.parametrize("name", ["libfabric.so.1", "libcxi.so.1", "libother.so.2"])
def test_a_library_in_a_folder_that_is_not_searched_is_reported_as_there(root: Path, name: str) -> None:
    whole_path(root, "AWS Libfabric")
    other = library(root / LIB / "libother.so.2")
    libfabric = library(root / LIB / "libfabric.so.1", root / LIB / "libcxi.so.1", source=ROCR)
    library(root / LIB / "librccl-net.so", libfabric, other, source='int ncclNetPlugin_v5; char s[] = "AWS Libfabric";')
    assert checked(root).answer is Answer.NO_OBSTACLE
    folder = root / "opt/x y/lib"
    folder.mkdir(parents=True)
    for elsewhere, machine in (("opt/a", 183), ("opt/b", None)):  # for ARM, and not a library
        patched(library(root / elsewhere / name), 18, bytes([machine or 0, 0]))
        if machine is None:
            (root / elsewhere / name).write_text("version https://git-lfs.github.com/spec/v1\n")
    (root / LIB / name).rename(folder / name)
    (root / "opt/c").mkdir()
    (root / f"opt/c/{name}").symlink_to(f"/opt/x y/lib/{name}.gone")
    code = "plugin.loads" if name == "libother.so.2" else "plugin.needs-host"
    reported = finding(check(root), code)
    assert reported.severity is (Severity.PROBLEM if code == "plugin.loads" else Severity.UNKNOWN)
    assert reported.cause == f"the image has it outside the loader's search path: /opt/x y/lib/{name}"
    assert "must come from the host" not in f"{reported.summary}{reported.cause}"
    command = reported.remedy[0].command or ""
    variable, _, value = command.removeprefix("export ").partition("=")
    assert checked(root, {variable: shlex.split(value)[0]}).answer is Answer.NO_OBSTACLE, command
    script = reported.remedy[1].partition("%post: ")[2].replace("/etc/", f"{root}/etc/").replace("ldconfig", "true")
    (root / "etc").mkdir()
    subprocess.run(["sh", "-euc", script], check=True)
    ldconfig(root)
    assert checked(root).answer is Answer.NO_OBSTACLE, script


@pytest.mark.parametrize("folder", [LIB, "opt/net"])
def test_a_loop_of_links_is_called_one(root: Path, folder: str) -> None:
    whole_path(root, "AWS Libfabric")
    (root / LIB / "librccl-net.so").unlink()
    (root / "opt/net").mkdir(parents=True)
    (root / folder / "librccl-net.so").symlink_to("/opt/b")
    (root / "opt/b").symlink_to("c")
    (root / "opt/c").symlink_to(f"/{folder}/librccl-net.so")
    reported = finding(check(root), "plugin.dangling")
    assert reported.severity is Severity.PROBLEM
    assert reported.summary.endswith(" is a loop of links")
    links = reported.summary.removesuffix(" is a loop of links").split(" → ")
    assert (len(links), {*links}) == (4, {"/opt/b", "/opt/c", f"/{folder}/librccl-net.so"})


def test_a_library_that_is_a_loop_of_links_is_not_attributed_to_the_host(root: Path) -> None:
    whole_path(root, "AWS Libfabric")
    (root / LIB / "libcxi.so.1").unlink()
    (root / LIB / "libcxi.so.1").symlink_to("libcxi.so.1.5")
    (root / LIB / "libcxi.so.1.5").symlink_to("libcxi.so.1")
    reported, name = finding(check(root), "plugin.needs-host"), f"/{LIB}/libcxi.so.1"
    assert "must come from the host" not in reported.summary
    assert reported.cause in {
        f"{one} is a loop of links" for one in (f"{name} → {name}.5 → {name}", f"{name}.5 → {name} → {name}.5")
    }
    conf(root, "")
    (root / "etc/rccl.conf").unlink()
    (root / "etc/rccl.conf").symlink_to("rccl.conf")
    assert "rccl.settings" not in severities(check(root)), "RCCL reads nothing of it, whatever is bound"


def test_a_list_of_providers_is_compared_as_libfabric_compares_it(root: Path) -> None:
    whole_path(root, "AWS Libfabric")
    for providers in ("cxi", "CXI", "tcp,cxi", "^tcp", "^", "^ cxi", "^tcp,^cxi"):
        assert checked(root, {"FI_PROVIDER": providers}).answer is Answer.NO_OBSTACLE, providers
    for providers in (" cxi", "cxi ", "cxi;ofi_rxm", "tcp,^cxi", "^cxi", "^tcp,cxi", "c", "tcp cxi"):
        assert checked(root, {"FI_PROVIDER": providers}).answer is Answer.NO, providers
    assert checked(root, {"APPTAINERENV_FI_PROVIDER": ""}).answer is Answer.NO, "an empty list names none"
    conf(root, "FI_PROVIDER=tcp\n", "libfabric.conf")
    assert checked(root).answer is Answer.NO_OBSTACLE, "of another libfabric"
    libcxi = root / LIB / "libcxi.so.1"
    library(root / LIB / "libfabric.so.1", libcxi, source=f'{ROCR} const char at[] = "\\0/etc/libfabric.conf";')
    assert checked(root, {"FI_PROVIDER": "cxi"}).answer is Answer.NO_OBSTACLE
    reported = finding(check(root), "provider.excluded")
    assert reported.summary == "FI_PROVIDER=tcp in /etc/libfabric.conf keeps libfabric from using cxi"
    assert reported.remedy == ("take FI_PROVIDER out of the image's /etc/libfabric.conf",)


def test_a_file_of_rccls_that_is_not_followed_is_not_green(root: Path) -> None:
    whole_path(root, "AWS Libfabric")
    conf(root, "NCCL_NET=Socket\n", "nccl.conf")  # of NCCL, not of RCCL
    for text in ("", "NCCL_NET", "#NCCL_NET=Socket", " NCCL_NET=Socket", "NCCL_NET =Socket", b"\0NCCL_NET=IB"):
        conf(root, text)  # what stands before the sign is what is set
        assert checked(root).answer is Answer.NO_OBSTACLE, text
    conf(root, "A=1\n" * 300_000)
    assert "1048576" in (finding(check(root), "rccl.settings").cause or "")
    (root / "etc/rccl.conf").unlink()
    (root / "etc/rccl.conf").symlink_to("/host/rccl.conf")
    assert "a link to /host/rccl.conf" in (finding(check(root), "rccl.settings").cause or "")
    assert checked(root).answer is Answer.UNDECIDED
    (root / "etc/rccl.conf").unlink()
    bound = finding(check(root, {"SINGULARITY_BIND": "/x:/etc/rccl.conf"}), "image.binds")
    assert bound.evidence == ("/x:/etc/rccl.conf",)


def test_the_variable_that_names_another_file_counts_for_an_rccl_that_reads_it(root: Path) -> None:
    whole_path(root, "AWS Libfabric", accepts=6)
    of_user = {"NCCL_CONF_FILE": "/scratch/rccl.conf"}
    assert checked(root, of_user).answer is Answer.NO_OBSTACLE
    rccl(root / LIB / "librccl.so.1", RCCL_2_27)
    shutil.copy(root / LIB / "librccl-net.so", root / LIB / "libnccl-net.so")
    assert checked(root).answer is Answer.NO_OBSTACLE
    reported = finding(check(root, of_user), "rccl.settings")
    assert (reported.severity, reported.where) == (Severity.UNKNOWN, "/scratch/rccl.conf")
    assert checked(root, of_user).answer is Answer.UNDECIDED


def test_what_the_image_sets_to_nothing_the_user_does_not_set(root: Path) -> None:
    """As with the real engine: a variable that is empty in the image loses the user's value."""
    whole_path(root, "AWS Libfabric")
    scripts = root / ".singularity.d/env"
    scripts.mkdir(parents=True)
    (scripts / "90-environment.sh").write_text("export NCCL_NET=\nexport FI_PROVIDER=cxi\n")
    assert "network.forced" not in severities(check(root, {"NCCL_NET": "Socket"}))
    assert finding(check(root), "network.forced").summary.startswith("NCCL_NET= ")
    assert finding(check(root, {"APPTAINERENV_NCCL_NET": "Socket"}), "network.forced").severity is Severity.PROBLEM
    variables = finding(check(root, {"APPTAINERENV_NCCL_NET": "", "NCCL_NET": "Socket"}), "network.forced")
    assert variables.summary.startswith("NCCL_NET= ")
    assert "provider.excluded" not in severities(check(root, {"FI_PROVIDER": "tcp"}))
