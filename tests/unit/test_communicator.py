"""Which RCCL a job of an image uses: the one that its torch really calls, on stand-in libraries.

Beside each cause there is a similar case that changes nothing. test_elf_binding.py tests what the loader does.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from lumiimg.cli.main import main
from lumiimg.core.errors import ExitCode
from tests.shared.elf_builder import library, runpath, with_symbol
from tests.shared.fabric_builder import RCCL, bundled
from tests.shared.programs import sampled
from tests.shared.python_image import CALLS_RCCL, SITE, environment, python, torch

TORCH = f"/usr/{SITE}/torch/lib"
OWN = f"{TORCH}/librccl.so"
ROCM = "/opt/rocm/lib/librccl.so.1"
SHIM = "int ncclCommInitRank(void) { return 1; }"
OTHER = "int ncclCommCount(void) { return 1; }"
OTHER_RCCL = RCCL.replace("2.20.5", "2.22.3")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An image whose torch includes an RCCL, with a plugin and a libfabric that has cxi."""
    root = bundled(tmp_path / "image")
    python(root, "usr")
    torch(root, "usr")
    variables(root)
    return root


def variables(root: Path, **more: str) -> None:
    environment(root, PATH="/usr/bin", LD_LIBRARY_PATH="/opt/rocm/lib", **more)


def check(root: Path, capsys: pytest.CaptureFixture[str]) -> tuple[ExitCode, str | None, str]:
    """Return (exit code, the RCCL that was judged, the sentences about the choice)."""
    code = main(["check", str(root), "--level", "static", "--json"])
    report = json.loads(capsys.readouterr().out)
    about = (each["summary"] for each in report["findings"] if each["id"] in {"rccl.unknown", "rccl.several"})
    return ExitCode(code), report["path"]["rccl"], "\n".join(about)


def preload(root: Path, path: Path) -> None:
    variables(root, LD_PRELOAD=f"/{path.relative_to(root)}")


def preload_for_all(root: Path, path: Path) -> None:
    (root / "etc/ld.so.preload").write_text(f"/{path.relative_to(root)}\n")


def needed_by_global_deps(root: Path, path: Path) -> None:
    library(root / TORCH[1:] / "libtorch_global_deps.so", path, *runpath("/opt/site"))


def needed_by_torch_alone(root: Path, path: Path) -> None:
    own = root / OWN[1:]
    library(root / TORCH[1:] / "libtorch_hip.so", *runpath("$ORIGIN", "/opt/site"), own, path, source=CALLS_RCCL)


BEFORE = (preload, preload_for_all, needed_by_global_deps)


@pytest.mark.parametrize(
    ("bring", "source"), sampled(product([*BEFORE, needed_by_torch_alone], [SHIM, OTHER, OTHER_RCCL]), 6)
)
def test_what_stands_before_the_rccl_of_torch_answers_in_its_place(
    bring: Callable[[Path, Path], None], source: str, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Such as MSCCL++'s libmscclpp_nccl.so, which is not an RCCL, or an RCCL of another name."""
    bring(root, library(root / "opt/site/libsite_nccl.so", source=source))
    code, rccl, report = check(root, capsys)
    if bring is needed_by_torch_alone or source is OTHER:
        assert (code, rccl) == (ExitCode.GOOD, OWN)
        return
    assert rccl == "/opt/site/libsite_nccl.so"
    assert code is (ExitCode.UNDECIDED if source is SHIM else ExitCode.GOOD)
    assert f"ncclCommInitRank for {TORCH}/libtorch_hip.so" in report


@pytest.mark.parametrize("is_hidden", [False, True])
def test_an_rccl_inside_of_torch_is_the_one_that_answers(
    is_hidden: bool, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """libucc loads another one, which nothing in torch calls."""
    ucc = library(root / TORCH[1:] / "libucc.so.1", root / ROCM[1:], *runpath("/opt/rocm/lib"))
    source = (
        OTHER_RCCL.replace("int nccl", 'int __attribute__((visibility("hidden"))) nccl') if is_hidden else OTHER_RCCL
    )
    hip = library(root / TORCH[1:] / "libtorch_hip.so", *runpath("$ORIGIN"), ucc, source=source)
    assert check(root, capsys)[:2] == (ExitCode.GOOD, f"{TORCH}/libtorch_hip.so")
    for file in ((root / OWN[1:]), (root / ROCM[1:])):
        file.unlink()
    library(hip, *runpath("$ORIGIN"), source=OTHER_RCCL)
    assert check(root, capsys)[:2] == (ExitCode.GOOD, f"{TORCH}/libtorch_hip.so")


def test_a_torch_that_calls_no_rccl_has_none_whatever_another_library_brings(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ucc = library(root / TORCH[1:] / "libucc.so.1", root / ROCM[1:], *runpath("/opt/rocm/lib"))
    library(root / TORCH[1:] / "libtorch_hip.so", *runpath("$ORIGIN"), ucc, source="int all_reduce;")
    code, rccl, _ = check(root, capsys)
    assert (code, rccl) == (ExitCode.NO, None)


def test_a_call_that_nothing_answers_is_a_no(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """torch needs an RCCL, but the file of that name is another library."""
    library(root / OWN[1:], source=OTHER)
    main(["check", str(root), "--level", "static", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert report["answer"] == "no"
    assert f"{TORCH}/libtorch_hip.so calls ncclCommInitRank, and no library in its scope defines it" in str(report)


@pytest.mark.parametrize("comes_first", [False, True])
def test_a_mangled_rccl_answers_where_another_comes_behind_it(
    comes_first: bool, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ucc = library(root / TORCH[1:] / "libucc.so.1", root / ROCM[1:], *runpath("/opt/rocm/lib"))
    torch(root, "usr", rccl="librccl-1a2b3c4d.so")
    if comes_first:
        library(root / TORCH[1:] / "libtorch_global_deps.so", ucc, *runpath("$ORIGIN"))
    own = root / TORCH[1:] / "librccl-1a2b3c4d.so"
    library(root / TORCH[1:] / "libtorch_hip.so", *runpath("$ORIGIN"), own, ucc, source=CALLS_RCCL)
    code, rccl, report = check(root, capsys)
    assert (code, rccl) == (ExitCode.GOOD, ROCM if comes_first else f"{TORCH}/{own.name}")
    assert "it resolves ncclCommInitRank for" in report


@pytest.mark.parametrize("calls_more", [False, True])
def test_two_copies_of_rccl_are_a_question_where_calls_may_come_to_both(
    calls_more: bool, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second defines a function that the first lacks."""
    second = library(root / "opt/ucc/librccl.so.2", source=RCCL + "int ncclNew(void) { return 1; }")
    ucc = library(root / TORCH[1:] / "libucc.so.1", second, *runpath("/opt/ucc"))
    source = CALLS_RCCL + "int ncclNew(void); int use(void) { return ncclNew(); }" * calls_more
    library(root / TORCH[1:] / "libtorch_hip.so", *runpath("$ORIGIN"), root / OWN[1:], ucc, source=source)
    assert check(root, capsys)[:2] == (ExitCode.UNDECIDED if calls_more else ExitCode.GOOD, OWN)


@pytest.mark.parametrize("is_hidden", [False, True])
def test_a_function_of_a_hidden_version_answers_nobody(
    is_hidden: bool, root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a second version: the first serves references without a version (glibc elf/dl-lookup.c, check_match)."""
    script = tmp_path / "site.map"
    script.write_text("V1 { global: other; };\nV2 { global: ncclCommInitRank; };\n")
    words = (f"-Wl,--version-script={script}",)
    made = library(root / "opt/site/libsite_nccl.so", *words, source="int other(void) { return 0; }" + SHIM)
    if is_hidden:
        with_symbol(made, "ncclCommInitRank", hides_version=True)
    preload(root, made)
    assert check(root, capsys)[1] == (OWN if is_hidden else "/opt/site/libsite_nccl.so")


def test_vllm_gets_what_dlsym_finds_below_the_library_that_it_opens(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "usr" / SITE / "vllm").mkdir()
    (root / "usr" / SITE / "vllm/__init__.py").touch()
    real = library(root / "opt/own/libreal.so", source=OTHER_RCCL)
    library(root / "opt/own/it.so", real, *runpath("$ORIGIN"), source="int nothing;")
    preload(root, library(root / "opt/site/libsite_nccl.so", source=OTHER))
    variables(root, VLLM_NCCL_SO_PATH="/opt/own/it.so")
    main(["check", str(root), "--level", "static", "--json"])
    report = json.loads(capsys.readouterr().out)
    several = [each for each in report["findings"] if each["id"] == "rccl.several"]
    assert "/opt/own/libreal.so" in json.dumps([report["path"], several])


@pytest.mark.parametrize(
    ("bring", "name", "code"),
    [
        (preload, "dlopen", ExitCode.UNDECIDED),
        (preload, "malloc", ExitCode.GOOD),
        # what is opened is searched after the C library
        (needed_by_global_deps, "dlopen", ExitCode.GOOD),
    ],
)
def test_a_function_of_the_c_library_that_another_has_before_it_leaves_the_answer_open(
    bring: Callable[[Path, Path], None], name: str, code: ExitCode, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bring(root, library(root / "opt/site/libsite.so", source=f"int {name}(void) {{ return 0; }}"))
    assert check(root, capsys)[0] is code
