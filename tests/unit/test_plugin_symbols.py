"""What RCCL's dlsym finds in a net plugin, and for which GPUs the plugin is built; with similar cases that are good."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from lumiimg.cli.main import main
from lumiimg.core.errors import ExitCode
from tests.shared.elf_builder import library, runpath, with_symbol
from tests.shared.fabric_builder import PLUGIN, RCCL, bundled, versioned
from tests.shared.python_image import environment, python

NET = "usr/lib64/librccl-net.so"
SONAME = "-Wl,-soname,librccl-net.so"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An image whose RCCL is for HIP, with a plugin and a libfabric that has cxi."""
    root = bundled(tmp_path / "image")
    hip = versioned(root / "opt/rocm/lib/libamdhip64.so.6", source="int hipGetDevice(void) { return 0; }")
    library(root / "opt/rocm/lib/librccl.so.1", hip, *runpath("$ORIGIN"), source=RCCL)
    python(root, "usr")
    environment(root, PATH="/usr/bin", LD_LIBRARY_PATH="/opt/rocm/lib")
    return root


def check(root: Path, capsys: pytest.CaptureFixture[str]) -> tuple[ExitCode, int | None, dict[str, str]]:
    """Return (exit code, the API that is used, the findings about the plugin)."""
    code = main(["check", str(root), "--level", "static", "--json"])
    report = json.loads(capsys.readouterr().out)
    found = {each["id"]: each["summary"] for each in report["findings"] if each["id"].startswith("plugin.")}
    return ExitCode(code), report["path"]["plugin_api"], found


def plugin(root: Path, *arguments: str | Path, source: str = PLUGIN) -> Path:
    return library(root / NET, root / "usr/lib64/libfabric.so.1", *arguments, source=source)


def in_itself(root: Path) -> None:
    plugin(root)


def two_libraries_below(root: Path) -> None:
    real = library(root / "opt/net/libreal.so", source=PLUGIN)
    middle = library(root / "opt/net/libmiddle.so", real, *runpath("$ORIGIN"))
    plugin(root, middle, *runpath("/opt/net"), source="int nothing;")


def a_function(root: Path) -> None:
    plugin(root, source="int ncclNetPlugin_v8(void) { return 0; }")


def beside_it(root: Path) -> None:
    library(root / "usr/lib64/libbeside.so", source=PLUGIN)
    plugin(root, source="int nothing;")


def of_another_name(root: Path) -> None:
    plugin(root, source="int ncclNetPlugin_v18;")


def of_the_library_alone(root: Path) -> None:
    with_symbol(plugin(root), "ncclNetPlugin_v8", visibility=2)


def of_a_version(root: Path, *, is_hidden: bool = False) -> None:
    script = root.with_name("net.map")
    script.write_text("NET_1 { global: ncclNetPlugin_v8; };\n")
    made = plugin(root, f"-Wl,--version-script={script}")
    if is_hidden:
        with_symbol(made, "ncclNetPlugin_v8", hides_version=True)


def of_a_hidden_version(root: Path) -> None:
    of_a_version(root, is_hidden=True)


@pytest.mark.parametrize("make", [in_itself, two_libraries_below, a_function, of_a_version])
def test_an_api_that_dlsym_finds_is_taken(
    make: Callable[[Path], None], root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(root)
    assert check(root, capsys)[:2] == (ExitCode.GOOD, 8)


@pytest.mark.parametrize("make", [beside_it, of_another_name, of_the_library_alone, of_a_hidden_version])
def test_an_api_that_dlsym_does_not_find_is_none(
    make: Callable[[Path], None], root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(root)
    code, taken, found = check(root, capsys)
    assert (code, taken) == (ExitCode.NO, None)
    exported = "v18" if make is of_another_name else "none"
    assert found["plugin.api"] == f"the plugin exports net API {exported}; RCCL 2.20.5 takes only v8, v7, v6, v5"


def needs_cudart(root: Path) -> None:
    plugin(root, library(root / "opt/cuda/libcudart.so.12", source="int cudart;"), *runpath("/opt/cuda"))


def opens_the_driver(root: Path) -> None:
    plugin(root, source=f'{PLUGIN} const char text[] = "\\0libcuda.so.1";')


def says_cuda(root: Path) -> None:
    plugin(root, source=f'{PLUGIN} const char text[] = "\\0no CUDA here: libcuda.so is not for this";')


def has_both(root: Path) -> None:
    source = f'{PLUGIN} const char text[] = "\\0libcuda.so.1"; int hipGetDevice(void); int use(void) {{ return hipGetDevice(); }}'
    plugin(root, root / "opt/rocm/lib/libamdhip64.so.6", source=source)


def opens_both(root: Path) -> None:
    plugin(root, source=f'{PLUGIN} const char text[] = "\\0libcuda.so\\0libamdhip64.so";')


def calls_the_hip_of_the_process(root: Path) -> None:
    call = "int use(void) { return hipGetDevice ? hipGetDevice() : 0; }"
    source = f"extern int hipGetDevice(void) __attribute__((weak)); {call}"
    plugin(root, source=f'{PLUGIN} const char text[] = "\\0libcuda.so"; {source}')


@pytest.mark.parametrize(
    ("make", "code"),
    [
        *((each, ExitCode.NO) for each in (needs_cudart, opens_the_driver)),
        *((each, ExitCode.GOOD) for each in (says_cuda, has_both, opens_both, calls_the_hip_of_the_process)),
    ],
)
def test_a_plugin_for_cuda_alone_is_named_where_rccl_is_for_hip(
    make: Callable[[Path], None], code: ExitCode, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(root)
    report, taken, found = check(root, capsys)
    assert (report, taken) == (code, 8)
    assert found.get("plugin.cuda") == ("the plugin was built for CUDA: /usr/lib64/librccl-net.so" if code else None)


def test_a_plugin_for_cuda_fits_where_nothing_is_for_hip(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As with NCCL instead of RCCL."""
    opens_the_driver(root)
    library(root / "opt/rocm/lib/librccl.so.1", source=RCCL)
    assert check(root, capsys)[0] is ExitCode.GOOD
