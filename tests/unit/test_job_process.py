"""The process of a job: on folders of real ELF files, what the program that is started makes of the way to RCCL's plugin."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lumiimg.check.static.files import check_static
from lumiimg.cli.main import main
from lumiimg.elf.objects import FoundBy
from lumiimg.errors import ExitCode
from lumiimg.findings import Severity
from lumiimg.host.job_process import jobs_of
from lumiimg.image import open_image
from tests.shared import fabric_builder
from tests.shared.elf_builder import library, program, rpath, runpath
from tests.shared.fabric_builder import PLUGIN, RCCL, c_library, image, versioned
from tests.shared.python_image import SITE, environment, python, torch, venv

if TYPE_CHECKING:
    from lumiimg.check.static.evidence import StaticResult
    from lumiimg.findings import Finding
    from lumiimg.host.job_process import JobProcesses

ROCM = "opt/rocm/lib/librccl.so.1"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An image with an RCCL on its search path, and a plugin for it where the loader looks by itself."""
    return image(tmp_path / "image")


def check(root: Path, variables: dict[str, str] | None = None, named: str | None = None) -> StaticResult:
    with open_image(root) as opened:
        return check_static(opened, variables or {}, named)


def jobs(root: Path) -> JobProcesses:
    with open_image(root) as opened:
        return jobs_of(opened, {})


def severities(result: StaticResult) -> dict[str, Severity]:
    return {finding.id: finding.severity for finding in result.findings}


def told(root: Path, identity: str, named: str | None = None) -> list[Finding]:
    return [finding for finding in check(root, named=named).findings if finding.id == identity]


def started(root: Path, **variables: str) -> None:
    """Let jobs start a Python that has the RCCL of the image on its search path."""
    python(root, "usr")
    environment(root, PATH="/usr/bin", LD_LIBRARY_PATH="/opt/rocm/lib", **variables)


def test_a_search_path_in_the_program_comes_before_that_of_the_image(root: Path) -> None:
    """Conda links its programs so; the plugin beside its libraries is another one than that of LD_LIBRARY_PATH."""
    python(root, "opt/conda", *rpath("$ORIGIN/../lib"))
    stray = library(root / "opt/conda/lib/librccl-net.so", source="int ncclNetPlugin_v4;")
    environment(root, LD_LIBRARY_PATH="/opt/rocm/lib:/usr/lib64", PATH="/opt/conda/bin:/usr/bin")
    result = check(root)
    assert (result.path.plugin, result.plugin_found_by) == ("/opt/conda/bin/../lib/librccl-net.so", FoundBy.RPATH)
    assert severities(result)["plugin.api"] is Severity.PROBLEM
    stray.unlink()
    assert check(root).path.plugin == "/usr/lib64/librccl-net.so"


def test_of_two_environments_the_torch_of_the_one_on_the_path_counts(root: Path) -> None:
    python(root, "usr")
    for name, version in (("old", "2.18.3"), ("new", "2.21.5")):
        venv(root, f"opt/{name}", "/usr")
        torch(root, f"opt/{name}", version=version)
    for name, version in (("new", "2.21.5"), ("old", "2.18.3")):
        environment(root, PATH=f"/opt/{name}/bin:/usr/bin")
        result = check(root)
        assert result.path.rccl_version == version
        assert result.job is not None
        assert result.job.program == f"/opt/{name}/bin/python"
    assert check(root, {"SINGULARITYENV_PATH": "/opt/new/bin"}).path.rccl_version == "2.21.5"
    assert check(root, {"PATH": "/opt/new/bin"}).path.rccl_version == "2.18.3"  # the user's own does not get in


def test_the_torch_of_an_environment_that_is_not_activated_is_named_as_such(root: Path) -> None:
    python(root, "usr")
    venv(root, "opt/venv", "/usr")
    torch(root, "opt/venv")
    environment(root, PATH="/usr/bin")
    found = jobs(root)
    assert found.processes[0].program == "/opt/venv/bin/python"
    assert found.note is not None
    assert "/usr/bin/python has no torch and no jax; this is about /opt/venv/bin/python" in found.note


def test_an_import_that_fails_is_no_green(root: Path) -> None:
    python(root, "usr")
    torch(root, "usr")
    environment(root, PATH="/usr/bin")
    assert Severity.PROBLEM not in severities(check(root)).values()
    library(root / "usr" / SITE / "torch/lib/libtorch_hip.so", library(root / "gone/libMIOpen.so.1"))
    (root / "gone/libMIOpen.so.1").unlink()
    result = check(root)
    (problem,) = [finding for finding in result.findings if finding.severity is Severity.PROBLEM]
    assert problem.id == "program.load"
    assert problem.summary == "`import torch` of /usr/bin/python fails"
    assert problem.chain[-1] == "libMIOpen.so.1"


def test_a_torch_of_cuda_is_a_no(root: Path) -> None:
    python(root, "usr")
    package = root / "usr" / SITE / "torch"
    cuda = library(package / "lib/libtorch_cuda.so")
    library(package / "_C.cpython-312-x86_64-linux-gnu.so", *runpath("$ORIGIN/lib"), cuda, source="int PyInit__C;")
    environment(root, PATH="/usr/bin", LD_LIBRARY_PATH="/opt/rocm/lib")
    assert severities(check(root))["program.cuda"] is Severity.PROBLEM


@pytest.mark.parametrize(
    ("rccl", "variables", "paths"),
    [
        # LD_LIBRARY_PATH comes before the RUNPATH of torch, and then it is in the process already
        ("librccl.so.1", {}, {"opt/rocm/lib/librccl.so.1"}),
        # under these names it is not: a second one comes
        ("librccl.so", {}, {"torch/lib/librccl.so", "opt/rocm/lib/librccl.so.1"}),
        ("librccl-1a2b3c4d.so.1", {}, {"torch/lib/librccl-1a2b3c4d.so.1", "opt/rocm/lib/librccl.so.1"}),
        ("librccl.so.1", {"VLLM_NCCL_SO_PATH": "/opt/own/it.so"}, {"opt/rocm/lib/librccl.so.1", "opt/own/it.so"}),
    ],
)
def test_vllm_opens_an_rccl_by_a_name_of_its_own(
    root: Path, rccl: str, variables: dict[str, str], paths: set[str]
) -> None:
    python(root, "usr")
    torch(root, "usr", rccl=rccl)
    (root / "usr" / SITE / "vllm").mkdir()
    library(root / "opt/own/it.so", source=RCCL)
    environment(root, PATH="/usr/bin", LD_LIBRARY_PATH="/opt/rocm/lib", **variables)
    result = check(root)
    found = {result.path.rccl, *(finding.where for finding in result.findings if finding.id == "rccl.several")} - {None}
    assert {str(path).removeprefix(f"/usr/{SITE}/").lstrip("/") for path in found} == paths


def test_what_wheels_of_therock_open_first_is_in_the_process(root: Path) -> None:
    python(root, "usr")
    torch(root, "usr", rccl="librccl.so.1").unlink()
    sdk = root / "usr" / SITE / "_rocm_sdk_libraries_gfx90a/lib"
    library(sdk / "librccl.so.1", source=RCCL.replace("2.20.5", "2.26.6"))
    (root / "usr" / SITE / "torch/_rocm_init.py").write_text(
        "def initialize():\n    import rocm_sdk\n    rocm_sdk.initialize_process(preload_shortnames=['amdhip64', 'rccl'])\n"
    )
    environment(root, PATH="/usr/bin", LD_LIBRARY_PATH="/opt/rocm/lib")
    assert check(root).path.rccl_version == "2.26.6"


@pytest.mark.parametrize(
    ("program_file", "words"),
    [
        (b"#!/usr/bin/env bash\nexec pyenv exec python\n", "is a script (#!/usr/bin/env bash)"),
        (b"nothing", "is not a program"),
        (None, "no python is on the image's PATH"),
    ],
)
def test_a_python_that_is_none_is_said_and_not_guessed(root: Path, program_file: bytes | None, words: str) -> None:
    environment(root, PATH="/usr/bin", LD_LIBRARY_PATH="/opt/rocm/lib")
    if program_file is not None:
        path = root / "usr/bin/python"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(program_file)
        path.chmod(0o755)
    found = jobs(root)
    assert found.processes == ()
    assert found.note is not None
    assert words in found.note
    assert check(root).path.rccl == f"/{ROCM}"


def test_a_link_of_an_environment_that_leads_nowhere_is_passed_over_as_the_shell_does(root: Path) -> None:
    venv(root, "opt/venv", "/usr/gone")
    python(root, "usr")
    torch(root, "usr")
    environment(root, PATH="/opt/venv/bin:/usr/bin")
    assert jobs(root).processes[0].program == "/usr/bin/python"


def test_the_home_of_python_decides_which_modules_it_has(root: Path) -> None:
    python(root, "usr")
    python(root, "opt/other")
    torch(root, "opt/other")
    environment(root, PATH="/usr/bin", PYTHONHOME="/opt/other")
    found = jobs(root).processes[0]
    assert (found.program, found.framework) == ("/usr/bin/python", "torch")


def test_the_program_of_a_job_can_be_named(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program(root / "opt/tests/all_reduce_perf", root / ROCM, *rpath("/opt/rocm/lib", "/opt/plugins"))
    library(root / "opt/plugins/librccl-net.so", source=PLUGIN)
    environment(root, LD_LIBRARY_PATH="/nowhere")
    result = check(root, named="/opt/tests/all_reduce_perf")
    assert (result.path.rccl, result.path.plugin) == (f"/{ROCM}", "/opt/plugins/librccl-net.so")
    assert main(["check", str(root), "--level", "static", "--program", "/opt/gone"]) == ExitCode.BAD_INPUT
    said = capsys.readouterr().err
    assert said.startswith("lumiimg: --program /opt/gone: no program of this name is in the image")


def test_of_a_named_program_that_is_static_or_a_script_it_is_said_that_its_libraries_do_not_show(root: Path) -> None:
    program(root / "opt/static", "-static", "-no-pie")
    (root / "opt/start.sh").write_text("#!/bin/sh\nexec /opt/static\n")
    (root / "opt/start.sh").chmod(0o755)
    environment(root, LD_LIBRARY_PATH="/opt/rocm/lib")
    for name, words in (("/opt/static", "is static"), ("/opt/start.sh", "is a script (#!/bin/sh)")):
        (found,) = told(root, "program.unknown", name)
        assert (found.severity, words in found.summary) == (Severity.UNKNOWN, True), name


def test_a_c_library_of_another_build_than_the_loader_is_a_no(root: Path) -> None:
    started(root)
    assert told(root, "loader.other-build") == []
    c_library(root / "opt/sysroot", 39)
    environment(root, PATH="/usr/bin", LD_LIBRARY_PATH="/opt/sysroot/lib64:/opt/rocm/lib")
    (problem,) = told(root, "loader.other-build")
    assert problem.severity is Severity.PROBLEM
    assert [line.rpartition(", ")[2] for line in problem.evidence] == ["2.41", "2.39"]


@pytest.mark.parametrize(
    ("path", "defines", "shows"),
    [
        ("opt/other/libm.so.6", ("GLIBC_2.29",), "it lies in /opt/other"),
        ("lib64/libm-2.31.so", ("GLIBC_2.29",), "/lib64/libm-2.31.so is of glibc 2.31"),
        ("lib64/libm.so.6", ("GLIBC_2.29", "GLIBC_2.43"), "it defines GLIBC_2.43"),
        ("lib64/glibc-hwcaps/x86-64-v3/libm.so.6", ("GLIBC_2.29",), None),
        ("lib64/libm.so.6", ("GLIBC_2.29",), None),
    ],
)
def test_another_part_of_the_c_library_than_its_build_s_leaves_the_answer_open(
    path: str, defines: tuple[str, ...], shows: str | None, root: Path
) -> None:
    """With real ones of four releases, one at a time: some processes end, and some do not (elf/c_library.py)."""
    made = versioned(root / path, soname="libm.so.6", defines=defines)
    if not path.endswith("libm.so.6"):
        (root / "lib64/libm.so.6").symlink_to(f"/{path}")
    python(root, "usr", made)
    environment(root, PATH="/usr/bin", LD_LIBRARY_PATH="/opt/rocm/lib:/opt/other")
    found = [(each.severity, each.evidence[0].partition(": ")[2]) for each in told(root, "loader.other-build")]
    assert found == ([(Severity.UNKNOWN, shows)] if shows else [])


def test_what_is_set_for_the_loader_and_not_modelled_leaves_the_answer_open(root: Path) -> None:
    started(root)
    for name, value, words in (
        ("GLIBC_TUNABLES", "glibc.rtld.execstack=2", "GLIBC_TUNABLES=glibc.rtld.execstack=2 is set for the loader"),
        ("LD_AUDIT", "/opt/audit.so", "LD_AUDIT=/opt/audit.so lets a library change"),
        ("GLIBC_TUNABLES", "glibc.malloc.arena_max=1", None),
    ):
        environment(root, PATH="/usr/bin", LD_LIBRARY_PATH="/opt/rocm/lib", **{name: value})
        found = told(root, "loader.not-modelled")
        assert [finding.severity for finding in found] == ([Severity.UNKNOWN] if words else []), value
        assert all(str(words) in finding.summary for finding in found)
    environment(root, PATH="/usr/bin", LD_LIBRARY_PATH="/opt/rocm/lib")
    (root / "usr/bin/python3.12").chmod(0o4755)
    (found_of_python,) = told(root, "loader.not-modelled")
    assert found_of_python.severity is Severity.UNKNOWN
    assert "/usr/bin/python is setuid" in found_of_python.summary


def hips(root: Path, plugin_needs: str, **variables: str) -> list[tuple[Severity, str]]:
    """Let RCCL need one HIP, and its plugin one by another name; return what is said of two."""
    one = library(root / "opt/rocm/lib/libamdhip64.so.6", source="int hip_one;")
    other = library(root / f"opt/rocm/lib/{plugin_needs}", source="int hip_other;")
    library(root / ROCM, one, *runpath("$ORIGIN"), source=RCCL)
    library(root / "usr/lib64/librccl-net.so", other, *runpath("/opt/rocm/lib"), source=PLUGIN)
    started(root, **variables)
    assert told(root, "fabric.mixed") == []
    return [(each.severity, each.summary) for each in told(root, "fabric.two-hip")]


@pytest.mark.parametrize(
    "name",
    ["libamdhip64.so.6", "libamdhip64.so.7", "libamdhip64-1a2b3c4d.so.6", "libamdhip64-1a2b3c4d.so.7.1.2"],
)
def test_a_plugin_on_another_hip_than_that_of_rccl_is_a_no(name: str, root: Path) -> None:
    found = hips(root, name)
    assert [severity for severity, _ in found] == [Severity.PROBLEM] * (name != "libamdhip64.so.6")
    both = f"/usr/lib64/librccl-net.so uses /opt/rocm/lib/{name}, and RCCL uses /opt/rocm/lib/libamdhip64.so.6"
    assert all(both in summary for _, summary in found)


def test_a_second_hip_that_both_bind_to_leaves_the_answer_open(root: Path) -> None:
    """It came with the start, so that all see it first."""
    ((severity, summary),) = hips(root, "libamdhip64.so.7", LD_PRELOAD="/opt/rocm/lib/libamdhip64.so.7")
    assert severity is Severity.UNKNOWN
    assert "RCCL and its plugin use /opt/rocm/lib/libamdhip64.so.7" in summary


def test_which_hip_serves_a_version_that_only_one_has_counts(root: Path) -> None:
    """The first that is seen lacks the version that the plugin asks for."""
    one = versioned(root / "opt/rocm/lib/libamdhip64.so.6", defines=("hip_4.2",))
    other = versioned(root / "opt/rocm/lib/libamdhip64.so.7", defines=("hip_4.2", "hip_7.0"))
    source = RCCL + "int s_hip_4_2(void); int use(void) { return s_hip_4_2(); }"
    library(root / ROCM, one, *runpath("$ORIGIN"), source=source)
    started(root, LD_PRELOAD="/opt/rocm/lib/libamdhip64.so.6")
    for version, severity in (("hip_4.2", Severity.UNKNOWN), ("hip_7.0", Severity.PROBLEM)):
        use = version.replace(".", "_")
        source = PLUGIN + f"int s_{use}(void); int use(void) {{ return s_{use}(); }}"
        library(root / "usr/lib64/librccl-net.so", other, *runpath("/opt/rocm/lib"), source=source)
        assert [each.severity for each in told(root, "fabric.two-hip")] == [severity], version


def test_a_start_that_ends_at_a_symbol_says_so_and_an_import_too(root: Path) -> None:
    started(root)
    torch(root, "usr")
    assert told(root, "program.load") == []
    hip = root / "usr" / SITE / "torch/lib/libtorch_hip.so"
    own = hip.with_name("librccl.so")
    library(hip, *runpath("$ORIGIN"), own, source="int nowhere(void); int use(void) { return nowhere(); }")
    (found,) = told(root, "program.load")
    assert found.severity is Severity.PROBLEM
    assert found.summary.startswith("`import torch` of /usr/bin/python fails: nothing that ")
    assert found.evidence == (f"{found.where}: undefined symbol: nowhere",)
    extra = library(root / "usr/lib64/libextra.so", source="extern int nowhere; int *use = &nowhere;")
    program(root / "usr/bin/python3.12", root / "lib64/libc.so.6", extra)
    (found,) = told(root, "program.load")
    assert found.summary == "/usr/bin/python cannot start: nothing that /usr/lib64/libextra.so sees defines nowhere"


def test_a_plugin_that_came_with_the_start_ends_the_process_where_a_call_of_nobody_is_made(root: Path) -> None:
    source = PLUGIN + "int nowhere(void); int use(void) { return nowhere(); }"
    library(root / "usr/lib64/librccl-net.so", "-Wl,-z,lazy", source=source)
    started(root, LD_PRELOAD="/usr/lib64/librccl-net.so")
    (found,) = told(root, "plugin.symbols")
    assert found.severity is Severity.UNKNOWN
    assert "came with the start, and nothing that it sees defines nowhere" in found.summary


@pytest.mark.parametrize("plugin", [None, f"usr/{SITE}/jax_plugins/xla_rocm7/xla_rocm_plugin.so"])
def test_a_framework_without_a_python_to_import_it_is_an_open_question(plugin: str | None, root: Path) -> None:
    """A job cannot start `python` there; of libraries that no framework brings, the answer is about themselves."""
    environment(root, PATH="/usr/bin", LD_LIBRARY_PATH="/opt/rocm/lib")
    assert [found.severity for found in told(root, "program.unknown")] == [Severity.INFO]
    if plugin is None:
        torch(root, "usr")
    else:
        library(root / plugin, root / ROCM)
    (found,) = told(root, "program.unknown")
    assert found.severity is Severity.UNKNOWN
    assert found.summary.startswith("no python is on the image's PATH")


def test_code_that_changes_the_search_path_of_modules_leaves_it_open_which_torch_it_is(root: Path) -> None:
    started(root)
    torch(root, "usr")
    for path, text, is_open in (
        (f"usr/{SITE}/first.pth", "import sys; sys.path.insert(0, '/opt/other')\n", True),
        (f"usr/{SITE}/first.pth", "import os; os.environ.get('X')\n", False),
        ("usr/lib/python3.12/sitecustomize.py", "import site\nsite.addsitedir('/opt/other')\n", True),
        ("usr/lib/python3.12/sitecustomize.py", "import os\n", False),
        (f"usr/{SITE}/usercustomize.py", "import sys\nsys.meta_path.insert(0, 1)\n", True),
    ):
        (root / path).write_text(text)
        found = [(each.severity, f"/{path}" in each.summary) for each in told(root, "program.unknown")]
        assert found == ([(Severity.UNKNOWN, True)] if is_open else []), text


def test_a_function_of_libfabric_that_a_preloaded_library_has_leaves_the_answer_open(root: Path) -> None:
    made = fabric_builder.bundled(root.parent / "bundled")
    started(made)
    uses = "int s_FABRIC_1_3(void); int use(void) { return s_FABRIC_1_3(); }"
    library(made / "usr/lib64/librccl-net.so", made / "usr/lib64/libfabric.so.1", source=PLUGIN + uses)
    assert told(made, "fabric.interposed") == []
    for source, is_said in (("int s_FABRIC_1_3(void) { return 1; }", True), ("int nothing;", False)):
        library(made / "opt/extra.so", source=source)
        environment(made, PATH="/usr/bin", LD_LIBRARY_PATH="/opt/rocm/lib", LD_PRELOAD="/opt/extra.so")
        found = told(made, "fabric.interposed")
        assert [each.severity for each in found] == ([Severity.UNKNOWN] if is_said else [])
        assert all("takes s_FABRIC_1_3 from /opt/extra.so" in each.summary for each in found)


@pytest.mark.parametrize("more", [(), ("--site", "lumi")])
def test_no_finding_is_reported_twice(more: tuple[str, ...], root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hips(root, "libamdhip64.so.7")
    node = fabric_builder.snapshot(fabric_builder.host(root.parent / "node"))
    for host in ((), ("--host", str(node))):
        main(["check", str(root), "--level", "static", "--json", *more, *host])
        said = [(each["id"], each["summary"]) for each in json.loads(capsys.readouterr().out)["findings"]]
        assert len(said) == len({*said})
        one_each = [identity for identity, _ in said if identity.startswith(("image.driver", "gpu.", "fabric.two-hip"))]
        assert len(one_each) == len({*one_each}), said


def test_a_file_named_like_a_provider_is_one_by_what_it_exports(root: Path) -> None:
    versioned(root / "usr/lib64/libfabric.so.1", defines=("FABRIC_1.3",))
    provider = root / "usr/lib64/libfabric/libcxi-fi.so"
    for symbol, identity in (("nothing", "provider.no-cxi"), ("fi_prov_ini", "provider.cxi-built-in")):
        library(provider, source=f"int {symbol};")
        assert identity in severities(check(root))
