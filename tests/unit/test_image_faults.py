"""Faults of images outside the network: each is reported with its effect and remedy, and is not an obstacle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lumiimg.cli.main import main
from tests.shared.elf_builder import library, runpath
from tests.shared.fabric_builder import image
from tests.shared.python_image import CALLS_RCCL, SITE, environment, python, torch

PACKAGES = f"usr/{SITE}"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An image with a Python, a torch with its own RCCL, and a plugin."""
    root = image(tmp_path / "image")
    python(root, "usr")
    torch(root, "usr")
    environment(root, PATH="/opt/tools/bin:/usr/bin", LD_LIBRARY_PATH="/opt/rocm/lib")
    dist(root, "torch", "2.9.1+rocm6.4")
    return root


def dist(root: Path, name: str, version: str) -> None:
    (root / PACKAGES / f"{name}-{version}.dist-info").mkdir(parents=True, exist_ok=True)


def faults(root: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, Any]]:
    """Return the findings of this kind by code; assert that none of them changed the answer."""
    code = main(["check", str(root), "--level", "static", "--json"])
    found = json.loads(capsys.readouterr().out)["findings"]
    assert code == 3  # libfabric is the host's
    return {each["id"]: each for each in found if each["id"].startswith("image.")}


Capture = pytest.CaptureFixture[str]


def test_an_extension_of_another_torch_is_known_by_the_symbol_that_is_missing(root: Path, capsys: Capture) -> None:
    c10 = library(root / PACKAGES / "torch/lib/libc10.so", source="int _ZN3c104warnERKNS_7WarningE;")
    source = "extern int {0}; int *use = &{0};"
    fits = source.format("_ZN3c104warnERKNS_7WarningE")
    library(root / PACKAGES / "ours/_C.so", c10, *runpath("$ORIGIN/../torch/lib"), source=fits)
    assert "image.other-torch" not in faults(root, capsys)
    other = source.format("_ZN3c104warnERKNS_7WarningEb")
    unresolved = "-Wl,--unresolved-symbols=ignore-all"
    library(root / PACKAGES / "theirs/_C.so", c10, unresolved, *runpath("$ORIGIN/../torch/lib"), source=other)
    assert faults(root, capsys)["image.other-torch"]["evidence"] == [
        f"/{PACKAGES}/theirs/_C.so: undefined symbol: _ZN3c104warnERKNS_7WarningEb",
    ]


@pytest.mark.parametrize("version", ["1.26.4", "2.2.1"])
def test_a_module_for_numpy_1_beside_numpy_2_is_named(version: str, root: Path, capsys: Capture) -> None:
    dist(root, "numpy", version)
    modules = {
        "old": "numpy.core._multiarray_umath",
        "new": "numpy._core._multiarray_umath\\0numpy.core._multiarray_umath",
    }
    for name, text in modules.items():
        path = root / PACKAGES / f"{name}/m.cpython-312-x86_64-linux-gnu.so"
        library(path, source=f'const char asked[] = "{text}";')
    found = faults(root, capsys).get("image.numpy")
    if version.startswith("1"):
        assert found is None
    else:
        assert found is not None
        assert found["evidence"] == [f"/{PACKAGES}/old/m.cpython-312-x86_64-linux-gnu.so: compiled with NumPy 1"]


def test_two_mpi_of_one_name_are_named_where_an_order_of_imports_dies(root: Path, capsys: Capture) -> None:
    """Such as Intel's beside MPICH: what torch includes needs a function that MPICH lacks."""
    intel = library(root / "opt/intel/lib/libmpi.so.12", source="int of_intel(void) { return 0; } int of_all;")
    mpich = library(root / "opt/mpich/lib/libmpi.so.12", source="int of_all;")
    packages = root / PACKAGES
    ccl = library(
        packages / "torch/lib/libccl.so",
        intel,
        *runpath("/opt/intel/lib"),
        source="int of_intel(void); int ask(void) { return of_intel(); }",
    )
    hip = packages / "torch/lib/libtorch_hip.so"
    library(hip, *runpath("$ORIGIN"), ccl, packages / "torch/lib/librccl.so", source=CALLS_RCCL)
    library(packages / "mpi4py/MPI.cpython-312-x86_64-linux-gnu.so", mpich, *runpath("/opt/mpich/lib"), source="int m;")
    found = faults(root, capsys)["image.two-mpi"]
    assert found["summary"] == (
        "mpi4py and torch need two libraries with the same soname: /opt/intel/lib/libmpi.so.12 and /opt/mpich/lib/libmpi.so.12: "
        "the process ends if mpi4py is imported first"
    )
    assert found["evidence"] == [f"/{PACKAGES}/torch/lib/libccl.so: undefined symbol: of_intel"]
    library(mpich, source="int of_intel(void) { return 0; } int of_all;")
    assert "image.two-mpi" not in faults(root, capsys), "each serves both"
    mpich.unlink()
    assert "image.two-mpi" not in faults(root, capsys)
