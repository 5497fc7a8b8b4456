"""A current RCCL with the HIP that it was built for: Debian's packages of ROCm 7.2.4."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
from typing import TYPE_CHECKING

import pytest
from elftools.elf.elffile import ELFFile

from lumiimg.core.errors import ExitCode
from lumiimg.image import open_image
from tests.engine.conftest import built, inside, lumiimg
from tests.shared.image_loader import assert_all_as_the_loader

if TYPE_CHECKING:
    from pathlib import Path

    from lumiimg.engine.engine import Engine

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("engine")]


@pytest.fixture(scope="module")
def image(images: Path) -> Path:
    return built(images / "debian-rocm.sif", "--base", "debian-rocm", "--add", "netprobe")


def test_check_names_the_rccl_and_opens_it_in_the_container(image: Path) -> None:
    done = lumiimg("check", image, "--json")
    assert done.code == ExitCode.NO
    findings = {finding["id"]: finding["level"] for finding in json.loads(done.out)["findings"]}
    assert findings["plugin.absent"] == "static"
    assert findings["rccl.runs"] == "probe"
    assert "RCCL 2.27.7 -> no plugin" in done.err


def test_the_model_and_the_loader_agree_on_every_file(engine: Engine, image: Path) -> None:
    assert_all_as_the_loader(engine, image, {}, 200)


def test_the_table_of_gpu_code_is_the_one_of_llvm(image: Path, tmp_path: Path) -> None:
    done = lumiimg("show", image, "--gpu", "--json")
    (rccl,) = (file for file in json.loads(done.out)["files"] if file["component"] == "RCCL")
    (bundle,) = rccl["bundles"]
    with open_image(image) as opened, contextlib.closing(opened.root.open(rccl["path"])) as library:
        data = library.read_at(0, library.size)
    section = ELFFile(io.BytesIO(data)).get_section_by_name(".hip_fatbin")
    assert section is not None
    (tmp_path / "fatbin").write_bytes(data[section["sh_offset"] :][: section["sh_size"]])
    listed = llvm(tmp_path, "clang-offload-bundler", "--list", "--type=o", f"--input={tmp_path}/fatbin")
    found = {line.rpartition("--")[2] for line in listed.split() if line.startswith("hip")}
    assert "gfx90a" in found
    assert found == set(bundle["targets"])


LLVM = "22"
"""The version in Debian's oldest supported release; 21 and older do not list a CCOB of version 3."""


def llvm(folder: Path, program: str, *words: str) -> str:
    """Return the output of an LLVM program from Debian's packages, which are only unpacked."""
    packages = [f"{name}{LLVM}" for name in ("llvm-", "clang-tools-", "libclang-cpp", "libllvm")]
    packages += ["libedit2", "libffi8", "libz3-4"]
    subprocess.run(["apt-get", "download", "--quiet", *packages], cwd=folder, check=True, capture_output=True)
    for package in folder.glob("*.deb"):
        subprocess.run(["dpkg-deb", "--extract", package, folder / "llvm"], check=True)
    environment = {"LD_LIBRARY_PATH": f"{folder}/llvm/usr/lib/x86_64-linux-gnu"}
    argv = [f"{folder}/llvm/usr/lib/llvm-{LLVM}/bin/{program}", *words]
    return subprocess.run(argv, env=environment, check=True, capture_output=True, text=True).stdout


@pytest.mark.everything
def test_the_recipe_of_jax_is_built_whole_but_for_the_fabric(engine: Engine, images: Path) -> None:
    """The sources of fabric and plugin are on GitHub; the rest comes from Debian and the Python package index."""
    image = built(images / "debian-jax.sif", "--recipe", "debian-jax", "--fabric", "none")
    printed = inside(engine, image, "python3", "-c", "import jax, jax_rocm7_plugin; print(jax.__version__)")
    assert printed == "0.9.1\n", "the release that is known to build on these packages"
    findings = {finding["id"] for finding in json.loads(lumiimg("check", image, "--json").out)["findings"]}
    assert {"plugin.absent", "rccl.runs"} <= findings
