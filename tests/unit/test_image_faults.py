"""Faults of images that are not about the network: each comes with what happens and what to do, and is no obstacle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lumiimg.cli.main import main
from tests.shared import oci_builder as oci
from tests.shared.elf_builder import library, runpath
from tests.shared.fabric_builder import image
from tests.shared.python_image import SITE, environment, python, torch

PACKAGES = f"usr/{SITE}"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An image with a Python, a torch of its own RCCL, and a plugin."""
    root = image(tmp_path / "image")
    python(root, "usr")
    torch(root, "usr")
    environment(root, PATH="/opt/tools/bin:/usr/bin", LD_LIBRARY_PATH="/opt/rocm/lib")
    dist(root, "torch", "2.9.1+rocm6.4")
    return root


def dist(root: Path, name: str, version: str) -> None:
    (root / PACKAGES / f"{name}-{version}.dist-info").mkdir(parents=True, exist_ok=True)


def put(root: Path, path: str, text: str = "#!/bin/sh\n", mode: int = 0o755) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    file.chmod(mode)


def faults(root: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, Any]]:
    """Return the findings of this kind by their codes, and that none of them changed the answer."""
    code = main(["check", str(root), "--level", "static", "--json"])
    found = json.loads(capsys.readouterr().out)["findings"]
    assert code == 3  # libfabric is the host's
    return {each["id"]: each for each in found if each["id"].startswith("image.")}


Capture = pytest.CaptureFixture[str]


def test_an_image_without_them_has_none_and_what_is_there_is_named_with_its_remedy(root: Path, capsys: Capture) -> None:
    dist(root, "numpy", "2.2.1")
    dist(root, "nvidia_ml_py", "12.0")
    put(root, "usr/bin/fi_info")
    assert faults(root, capsys) == {}
    environment(root, PATH="/opt/tools/bin:/usr/bin", HF_HOME="/root/.cache/huggingface", TRITON_CACHE_DIR="/tmp/t")
    put(root, "opt/tools/bin/fi_info")
    dist(root, "nvidia_cublas_cu12", "12.4.5.8")
    dist(root, "torchaudio", "2.9.1+cu126")
    put(root, "opt/start.sh", "#!/bin/sh\nexport HIP_VISIBLE_DEVICES=${ROCR_VISIBLE_DEVICES}\n")
    found = faults(root, capsys)
    assert found["image.caches-in-home"]["evidence"] == ["HF_HOME=/root/.cache/huggingface"]
    assert found["image.caches-in-home"]["remedy"] == ["in the job: export HF_HOME=/tmp/$USER-$SLURM_JOB_ID/cache"]
    tool = found["image.shadowed-tool"]
    assert (tool["where"], tool["evidence"]) == ("/opt/tools/bin/fi_info", ["/usr/bin/fi_info"])
    cuda = ["nvidia-cublas-cu12 12.4.5.8", "torchaudio 2.9.1+cu126"]
    assert found["image.cuda-packages"]["evidence"] == cuda
    assert found["image.hip-devices"]["where"] == "/opt/start.sh"


ENTRYPOINTS: dict[str, tuple[object, bool]] = {
    "with an option": (["/entry.sh", "--x"], True),
    "behind an init": (["/usr/bin/tini", "--", "/entry.sh"], True),
    "on PATH": (["entry.sh"], True),
    "in a shell": (["/bin/sh", "-c", "/entry.sh serve"], True),
    "another": (["/other.sh"], False),
    "a path outside": (["\0", "../../etc/passwd"], False),
    "no list": ("/entry.sh", False),
    "no text": ([1], False),
    "none": (None, False),
}


def test_the_entrypoint_of_an_archive_is_that_of_its_config(tmp_path: Path, capsys: Capture) -> None:
    script = b"#!/bin/bash\nexport ROCR_VISIBLE_DEVICES=$SLURM_LOCALID\n"
    files = {"entry.sh": script, "usr/bin/entry.sh": script, "other.sh": b"#!/bin/sh\n", "usr/bin/tini": b"\x7fELF"}
    layer = oci.tar(*(oci.member(name, data) for name, data in files.items()))
    for name, (words, is_told) in ENTRYPOINTS.items():
        config = oci.make_config(layer)
        config["config"]["Entrypoint"] = words
        layout = oci.Layout()
        layout.index(layout.manifest(layer, config=config))
        saved = oci.docker_save(tmp_path / "saved.tar", layer, config=config)
        for path in (saved, layout.write_tar(tmp_path / "layout.tar")):
            main(["check", str(path), "--level", "static", "--json"])
            every = json.loads(capsys.readouterr().out)["findings"]
            found = [each["summary"] for each in every if each["id"] == "image.entrypoint"]
            assert bool(found) == is_told, name
            assert not found or "sets ROCR_VISIBLE_DEVICES, and `exec` does not run it" in found[0]


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
    """As Intel's beside MPICH: what torch brings asks for a function that MPICH does not have."""
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
    library(hip, *runpath("$ORIGIN"), ccl, packages / "torch/lib/librccl.so")
    library(packages / "mpi4py/MPI.cpython-312-x86_64-linux-gnu.so", mpich, *runpath("/opt/mpich/lib"), source="int m;")
    found = faults(root, capsys)["image.two-mpi"]
    assert found["summary"] == (
        "mpi4py and torch bring two libraries of one name: /opt/intel/lib/libmpi.so.12 and /opt/mpich/lib/libmpi.so.12: "
        "with mpi4py imported first, it ends"
    )
    assert found["evidence"] == [f"/{PACKAGES}/torch/lib/libccl.so: undefined symbol: of_intel"]
    library(mpich, source="int of_intel(void) { return 0; } int of_all;")
    assert "image.two-mpi" not in faults(root, capsys), "each serves both"
    mpich.unlink()
    assert "image.two-mpi" not in faults(root, capsys)
