"""The process of a job, on images with stand-in libraries: how the program that is started affects the way to RCCL."""

from __future__ import annotations

import itertools
import json
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lumiimg.catalog.sites import find_site
from lumiimg.check.context import ImageInContext
from lumiimg.check.static.files import check_libraries
from lumiimg.cli.main import main
from lumiimg.core.errors import ExitCode
from lumiimg.core.findings import Answer, Severity
from lumiimg.fabric.path import Fabric
from lumiimg.host.engine_rules import may_be_hidden, with_engine_mounts
from lumiimg.host.jobs import jobs_of
from lumiimg.image import open_image
from lumiimg.report.views.binds import doubts
from tests.shared import fabric_builder
from tests.shared.elf_builder import library, program, runpath
from tests.shared.fabric_builder import PLUGIN, RCCL, c_library, image, versioned
from tests.shared.job.bases import BASES
from tests.shared.job.generator import CHANGES, NODES, ONCE_WRONG, VARIABLES, Case, Machine
from tests.shared.job.pairs import ask
from tests.shared.job.system import stand_in_system
from tests.shared.programs import sampled
from tests.shared.python_image import SITE, environment, python, torch, venv

if TYPE_CHECKING:
    from lumiimg.check.static.process import StaticResult
    from lumiimg.core.findings import Finding

ROCM = "opt/rocm/lib/librccl.so.1"
PLANTED = Path(__file__).parents[1] / "fixtures/planted.toml"
"""The answer, its obstacles, the version of RCCL and the plugin for each case."""


def test_each_fault_that_is_planted_is_reported_by_its_findings(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    """test_job_predictions.py tests what then happens to such a job."""
    cases = [Case(base) for base in BASES] + [Case("torch-with-rccl", (change,)) for change in CHANGES]
    cases += [Case("torch-with-rccl", variables=name) for name in VARIABLES if name]
    cases += [Case("torch-with-rccl", (), node, bundled=False) for node in NODES] + [*ONCE_WRONG]
    machine = Machine(tmp_path / "images", stand_in_system(tmp_path / "system"))
    found: dict[str, str] = {}
    for case in cases:
        with machine.image(case) as world:
            if world is not None:
                answer, files = ask(world, VARIABLES[case.variables], machine.nodes.get(case.node))
                static = files.static
                against = (each for each in static.findings if each.severity in {Severity.PROBLEM, Severity.UNKNOWN})
                ids = ", ".join(dict.fromkeys(str(each.id) for each in against)) or "nothing"
                found[str(case)] = f"{answer}: {ids}; {static.path.rccl_version}, {static.path.plugin}"
    if pytestconfig.getoption("--update-golden"):
        PLANTED.write_text("".join(f'"{case}" = "{expected}"\n' for case, expected in found.items()))
    known = tomllib.loads(PLANTED.read_text())
    assert [(case, expected, known.get(case)) for case, expected in found.items() if known.get(case) != expected] == []
    # one change requires a processor feature that this machine may lack
    assert len(known) - len(found) <= 1


def test_whatever_is_wrong_with_an_image_bind_says_the_doubt_and_no_other(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "images", stand_in_system(tmp_path / "system"))
    changes = [*sampled(((one,) for one in CHANGES), 16), *sampled(itertools.combinations(CHANGES, 2), 16)]
    made = 0
    for case in (Case("torch-with-rccl", change, "lumi", bundled=False) for change in [(), *changes]):
        with machine.image(case) as world:
            if world is not None:
                made += 1
                answer, files = ask(world, {}, machine.nodes["lumi"])
                is_reported = files.fabric is Fabric.NONE or bool(doubts(files))
                assert is_reported == (answer is not Answer.NO_OBSTACLE), case
                assert case.changes or not is_reported
    assert made > len(changes) // 2


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An image with an RCCL on its search path, and a plugin for it in a default folder of the loader."""
    return image(tmp_path / "image")


def check(root: Path, named: str | None = None) -> StaticResult:
    with open_image(root) as opened:
        return check_libraries(ImageInContext(root, opened, opened, {}, program=named)).static


def findings_with_id(root: Path, identity: str, named: str | None = None) -> list[Finding]:
    return [finding for finding in check(root, named).findings if finding.id == identity]


def started(root: Path, **variables: str) -> None:
    """Make jobs start a Python that has the RCCL of the image on its search path."""
    python(root, "usr")
    environment(root, PATH="/usr/bin", LD_LIBRARY_PATH="/opt/rocm/lib", **variables)


def test_the_torch_of_an_environment_that_is_not_activated_is_named_as_such(root: Path) -> None:
    started(root)
    venv(root, "opt/venv", "/usr")
    torch(root, "opt/venv")
    (found,) = findings_with_id(root, "program.unknown")
    assert "/usr/bin/python has no torch and no jax; this is about /opt/venv/bin/python" in found.summary


def test_a_library_whose_symbols_others_have_leaves_the_answer_open(root: Path) -> None:
    started(root)
    torch(root, "usr")
    assert not findings_with_id(root, "loader.not-modelled")
    library(root / "usr/lib/libother.so", "-Wl,-f,libmore.so", source="int other;")
    environment(root, PATH="/usr/bin", LD_LIBRARY_PATH="/opt/rocm/lib", LD_PRELOAD="/usr/lib/libother.so")
    (found,) = findings_with_id(root, "loader.not-modelled")
    assert found.summary == "/usr/lib/libother.so: filters libmore.so, which lumiimg does not model"


def test_a_file_below_what_jobs_of_a_site_bind_may_be_hidden(root: Path) -> None:
    (root / "appl").mkdir()
    (root / "appl/plugin.so").touch()
    with open_image(root) as opened:
        for site, files in ((None, []), (find_site("lumi", {}), ["/appl/plugin.so"])):
            image = with_engine_mounts(opened, {"HOME": "/root"}, site=site)
            assert [path for _, hidden in may_be_hidden(image, ["/appl/plugin.so"]) for path in hidden] == files


def test_what_the_user_has_the_engine_do_is_in_the_answer_or_leaves_it_open(root: Path) -> None:
    started(root)
    torch(root, "usr")
    python(root, "opt/other")
    torch(root, "opt/other")

    def fit(**of_user: str) -> tuple[str, set[str]]:
        with open_image(root) as opened:
            context = ImageInContext(root, opened, opened, of_user)
            found = check_libraries(context).static.findings
            return context.jobs.processes[0].program, {each.id for each in found}

    for name, prefix in (("PREPEND_PATH", "/opt/other"), ("APPEND_PATH", "/usr")):
        variables = {f"SINGULARITYENV_{name}": "/opt/other/bin"}
        assert fit(**variables)[0].startswith(prefix)
        assert fit(**variables, APPTAINERENV_PATH="/usr/bin")[0].startswith("/usr"), "it replaces all of PATH"
    for name in ("SINGULARITY_MOUNT", "APPTAINER_ENV_FILE", "SINGULARITYENV_LD_TRACE_LOADED_OBJECTS"):
        assert "loader.not-modelled" in fit(**{name: "x"})[1], name
    assert "loader.not-modelled" not in fit(SINGULARITY_MOUNTED="x")[1]


@pytest.mark.parametrize(
    ("rccl", "variables", "paths"),
    [
        # LD_LIBRARY_PATH precedes the RUNPATH of torch, and then it is already in the process
        ("librccl.so.1", {}, {"opt/rocm/lib/librccl.so.1"}),
        # under these names it is not: a second one comes
        ("librccl.so", {}, {"torch/lib/librccl.so", "opt/rocm/lib/librccl.so.1"}),
        ("librccl-1a2b3c4d.so.1", {}, {"torch/lib/librccl-1a2b3c4d.so.1", "opt/rocm/lib/librccl.so.1"}),
        ("librccl.so.1", {"VLLM_NCCL_SO_PATH": "/opt/own/it.so"}, {"opt/rocm/lib/librccl.so.1", "opt/own/it.so"}),
        ("librccl.so.1", {"SGLANG_NCCL_SO_PATH": "/opt/own/it.so"}, {"opt/rocm/lib/librccl.so.1", "opt/own/it.so"}),
    ],
)
def test_vllm_and_sglang_open_an_rccl_by_a_name_of_its_own(
    root: Path, rccl: str, variables: dict[str, str], paths: set[str]
) -> None:
    started(root, **variables)
    torch(root, "usr", rccl=rccl)
    for name in ("vllm", "sglang"):
        (root / "usr" / SITE / name).mkdir()
        (root / "usr" / SITE / name / "__init__.py").touch()
    library(root / "opt/own/it.so", source=RCCL)
    result = check(root)
    found = {result.path.rccl, *(finding.where for finding in result.findings if finding.id == "rccl.several")} - {None}
    assert {str(path).removeprefix(f"/usr/{SITE}/").lstrip("/") for path in found} == paths


@pytest.mark.parametrize("variable", ["PYTHONHOME=/nowhere", "PYTHONUTF8=true", "PYTHONPLATLIBDIR=other"])
@pytest.mark.parametrize("is_of_user", [False, True])
def test_a_variable_that_ends_a_python_is_to_be_taken_away(root: Path, variable: str, is_of_user: bool) -> None:
    name, _, value = variable.partition("=")
    started(root, **({} if is_of_user else {name: value}))
    with open_image(root) as opened:
        set_by_user = {f"SINGULARITYENV_{name}": value} if is_of_user else {}
        found = check_libraries(ImageInContext(root, opened, opened, set_by_user)).static.findings
    (failed,) = (finding for finding in found if finding.id == "program.load")
    assert f"unset {'SINGULARITYENV_' * is_of_user}{name}" in str(failed.remedy)
    assert "install" not in str(failed.remedy)


@pytest.mark.parametrize(
    ("links", "words"),
    [
        (
            {"python": "python3", "python3": "./python"},
            "/usr/bin/python → /usr/bin/python3 → /usr/bin/python is a loop",
        ),
        ({"python": "nothing"}, "/usr/bin/python is a broken link in the image: nothing"),
        ({"python": "/opt/py/bin/python"}, "link to /opt/py/bin/python, and only its owner may enter /opt/py"),
    ],
)
def test_why_no_python_of_an_image_starts_is_reported(root: Path, links: dict[str, str], words: str) -> None:
    started(root)
    for name in ("python", "python3"):
        (root / "usr/bin" / name).unlink(missing_ok=True)
    for name, target in links.items():
        (root / "usr/bin" / name).symlink_to(target)
    (root / "opt/py").mkdir(mode=0o700, parents=True)
    with open_image(root) as opened:
        assert words in (jobs_of(opened.for_users(), {}).note or "")


@pytest.mark.parametrize("mode", [0o640, 0o750, 0o604])
def test_a_python_that_others_may_not_run_is_the_one_that_does_not_start(root: Path, mode: int) -> None:
    started(root)
    (root / "usr/bin/python3.12").chmod(mode)
    with open_image(root) as opened:
        (job,) = jobs_of(opened.for_users(), {}).processes
    assert job.failure is not None
    assert job.failure.where == job.program


def test_a_python_or_a_program_without_visible_libraries_is_reported_and_not_guessed(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    environment(root, PATH="/usr/bin", LD_LIBRARY_PATH="/opt/rocm/lib")
    path = root / "usr/bin/python"
    path.parent.mkdir(parents=True, exist_ok=True)
    for content, words in (
        (None, "no python is on the image's PATH"),
        (b"#!/usr/bin/env bash\nexec pyenv exec python\n", "is a script (#!/usr/bin/env bash)"),
        (b"nothing", "is not a program"),
        (program(root / "opt/other").read_bytes(), "is not a Python"),
    ):
        if content is not None:
            path.write_bytes(content)
            path.chmod(0o755)
        with open_image(root) as opened:
            found = jobs_of(opened, {})
        assert (found.processes, words in (found.note or "")) == ((), True), words
        assert check(root).path.rccl == f"/{ROCM}"
    program(root / "opt/static", "-static", "-no-pie")
    (root / "opt/start.sh").write_text("#!/bin/sh\nexec /opt/static\n")
    (root / "opt/start.sh").chmod(0o755)
    for name, words in (("/opt/static", "is static"), ("/opt/start.sh", "is a script (#!/bin/sh)")):
        (unknown,) = findings_with_id(root, "program.unknown", name)
        assert (unknown.severity, words in unknown.summary) == (Severity.UNKNOWN, True), name
    assert main(["check", str(root), "--level", "static", "--program", "/opt/gone"]) == ExitCode.BAD_INPUT
    message = capsys.readouterr().err
    assert message.startswith("lumiimg: --program /opt/gone: no program of this name is in the image")


@pytest.mark.parametrize(
    ("path", "defines", "shows"),
    [
        ("opt/other/libm.so.6", ("GLIBC_2.29",), "it is in /opt/other"),
        ("lib64/libm-2.31.so", ("GLIBC_2.29",), "/lib64/libm-2.31.so is from glibc 2.31"),
        ("lib64/libm.so.6", ("GLIBC_2.29", "GLIBC_2.43"), "it defines GLIBC_2.43"),
        ("lib64/glibc-hwcaps/x86-64-v3/libm.so.6", ("GLIBC_2.29",), None),
        ("lib64/libm.so.6", ("GLIBC_2.29",), None),
    ],
)
def test_another_part_of_the_c_library_than_its_build_s_leaves_the_answer_open(
    path: str, defines: tuple[str, ...], shows: str | None, root: Path
) -> None:
    """With real parts of four releases, one at a time, some processes end and some do not (elf/binding.py)."""
    made = versioned(root / path, soname="libm.so.6", defines=defines)
    if not path.endswith("libm.so.6"):
        (root / "lib64/libm.so.6").symlink_to(f"/{path}")
    python(root, "usr", made)
    environment(root, PATH="/usr/bin", LD_LIBRARY_PATH="/opt/rocm/lib:/opt/other")
    found = [
        (each.severity, each.evidence[0].partition(": ")[2]) for each in findings_with_id(root, "loader.other-build")
    ]
    assert found == ([(Severity.UNKNOWN, shows)] if shows else [])


def test_a_c_library_of_another_build_than_the_loader_is_a_no(root: Path) -> None:
    started(root)
    assert findings_with_id(root, "loader.other-build") == []
    c_library(root / "opt/sysroot", 39)
    environment(root, PATH="/usr/bin", LD_LIBRARY_PATH="/opt/sysroot/lib64:/opt/rocm/lib")
    (problem,) = findings_with_id(root, "loader.other-build")
    assert problem.severity is Severity.PROBLEM
    assert [line.rpartition(", ")[2] for line in problem.evidence] == ["2.41", "2.39"]


def test_which_hip_serves_a_version_that_only_one_has_counts(root: Path) -> None:
    """The first in the scope lacks the version that the plugin needs."""
    one = versioned(root / "opt/rocm/lib/libamdhip64.so.6", defines=("hip_4.2",))
    other = versioned(root / "opt/rocm/lib/libamdhip64.so.7", defines=("hip_4.2", "hip_7.0"))
    source = RCCL + "int s_hip_4_2(void); int use(void) { return s_hip_4_2(); }"
    library(root / ROCM, one, *runpath("$ORIGIN"), source=source)
    started(root, LD_PRELOAD="/opt/rocm/lib/libamdhip64.so.6")
    for version, severity in (("hip_4.2", Severity.UNKNOWN), ("hip_7.0", Severity.PROBLEM)):
        use = version.replace(".", "_")
        source = PLUGIN + f"int s_{use}(void); int use(void) {{ return s_{use}(); }}"
        library(root / "usr/lib64/librccl-net.so", other, *runpath("/opt/rocm/lib"), source=source)
        assert [each.severity for each in findings_with_id(root, "fabric.two-hip")] == [severity], version


def test_a_plugin_that_came_with_the_start_ends_the_process_where_a_call_of_nobody_is_made(root: Path) -> None:
    source = PLUGIN + "int nowhere(void); int use(void) { return nowhere(); }"
    library(root / "usr/lib64/librccl-net.so", "-Wl,-z,lazy", source=source)
    started(root, LD_PRELOAD="/usr/lib64/librccl-net.so")
    (found,) = findings_with_id(root, "plugin.symbols")
    assert found.severity is Severity.UNKNOWN
    assert "is loaded at start, and no library in its scope defines nowhere" in found.summary


@pytest.mark.parametrize("more", [(), ("--site", "lumi")])
def test_no_finding_is_reported_twice(more: tuple[str, ...], root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hip = library(root / "opt/rocm/lib/libamdhip64.so.7", source="int hip_other;")
    library(root / "usr/lib64/librccl-net.so", hip, *runpath("/opt/rocm/lib"), source=PLUGIN)
    started(root)
    node = fabric_builder.snapshot(fabric_builder.host(root.parent / "node"))
    for host in ((), ("--host", str(node))):
        main(["check", str(root), "--level", "static", "--json", *more, *host])
        report = [(each["id"], each["summary"]) for each in json.loads(capsys.readouterr().out)["findings"]]
        assert len(report) == len({*report})
        one_each = [
            identity for identity, _ in report if identity.startswith(("image.driver", "gpu.", "fabric.two-hip"))
        ]
        assert len(one_each) == len({*one_each}), report


def test_that_the_c_library_of_an_image_ends_all_binds_is_known_whichever_program_jobs_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node = fabric_builder.snapshot(fabric_builder.host(tmp_path / "node", glibc=38))
    for glibc, answer, severities in ((35, "no", {"problem"}), (41, "undecided", set())):
        root = image(tmp_path / str(glibc), glibc=glibc)
        python(root, "usr")
        torch(root, "usr")
        (root / "usr" / SITE / "sitecustomize.py").write_text("exec(open('/x').read())\n")
        main(["check", str(root), "--level", "static", "--host", str(node), "--json"])
        report = json.loads(capsys.readouterr().out)
        assert report["answer"] == answer
        assert {each["severity"] for each in report["findings"] if each["id"] == "bind.refused"} == severities
