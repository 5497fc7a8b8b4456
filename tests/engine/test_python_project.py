"""Each vLLM release of the catalogue, and the layers that are compiled with torch 2.9, resolved completely with this
machine's package index and their own requirement files. PyTorch's ROCm wheels are stand-ins with the real requirements.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lumiimg.cli.main import main
from lumiimg.core.errors import ExitCode
from lumiimg.resolve.lock_file import read_document
from tests.shared.world import World, archive_of, serve, wheels_of_layers

if TYPE_CHECKING:
    from lumiimg.resolve.lock import LockedSource

pytestmark = pytest.mark.engine
FILES = Path(__file__).parents[1] / "fixtures" / "vllm"
COMMON = ("filelock", "typing-extensions>=4.10.0", "sympy>=1.13.3", "networkx", "jinja2", "fsspec")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LUMIIMG_CACHE", str(tmp_path / "cache"))
    return tmp_path


def world_of(version: str, torch: str, vision: str, triton: str) -> World:
    """Return a world with PyTorch's index and the archive of vLLM."""
    files = {f"requirements/{path.name}": path.read_text() for path in (FILES / version).glob("*.txt")}
    lines = [line.partition("#")[0].strip() for text in files.values() for line in text.splitlines()]
    of_layers = wheels_of_layers()
    of_layers["torch"][torch] = (*COMMON, triton)
    of_layers["torchvision"][vision] = ("numpy", f"torch=={torch}", "pillow!=8.3.*,>=5.3.0")
    of_layers["torchaudio"][torch] = (f"torch=={torch}",)
    # as vLLM's setup.py writes them into its wheels
    of_layers["vllm"] = {version: tuple(line for line in lines if line and not line.startswith("-"))}
    return World(of_layers=of_layers, requirements=files)


def lock(world: World, words: list[str], folder: Path) -> dict[str, LockedSource]:
    """Return the wheels of the lock, by project."""
    with serve(world):
        pairs = zip(world.mirrors[::2], world.mirrors[1::2], strict=True)
        mirrors = [word for option, pair in pairs if not pair.startswith("pypi=") for word in (option, pair)]
        assert main(["lock", *words, *mirrors]) == ExitCode.GOOD
    stack = read_document(folder / "lumiimg.lock").stack
    return {wheel.name: wheel for entry in stack for wheel in entry.locked_wheels}


def given(world: World, folder: Path) -> list[str]:
    """Return the options that supply the archive of vLLM, whose digest the layer knows."""
    (folder / "vllm.tar.gz").write_bytes(archive_of(world.requirements))
    return ["--source", f"vllm={folder}/vllm.tar.gz"]


@pytest.mark.parametrize(
    ("version", "base", "torch", "vision", "triton", "python", "found"),
    [
        ("0.9.1", "rocm-6.2.4", "2.7.1+rocm6.2.4", "0.22.1+rocm6.2.4", "pytorch-triton-rocm==3.3.1", "3.10", {}),
        (
            *("0.10.1", "rocm-6.2.4", "2.7.1+rocm6.2.4", "0.22.1+rocm6.2.4", "pytorch-triton-rocm==3.3.1", "3.10"),
            {"transformers": "4.55.2", "xgrammar": "0.1.21", "numba": "0.61.2"},
        ),
        (
            *("0.12.0", "rocm-6.4.4", "2.9.1+rocm6.4", "0.24.1+rocm6.4", "pytorch-triton-rocm==3.5.1", "3.12"),
            {"transformers": "4.57.3", "xgrammar": "0.1.27", "numba": "0.61.2"},
        ),
    ],
)
def test_a_release_of_vllm_is_locked_whole(
    version: str,
    base: str,
    torch: str,
    vision: str,
    triton: str,
    python: str,
    found: dict[str, str],
    folder: Path,
) -> None:
    words = ["--base", base, "--add", f"vllm=={version}", "--fabric", "bundled", "--site", "lumi"]
    world = world_of(version, torch, vision, triton)
    wheels = lock(world, [*words, *given(world, folder)], folder)
    assert f"-cp{python.replace('.', '')}-" in wheels["numpy"].file
    locked = {name: wheel.version for name, wheel in wheels.items()}
    assert found.items() <= locked.items()
    assert {"transformers", "tokenizers", "xgrammar", "ninja", "torch"} <= locked.keys()
    assert locked["torch"] == torch
    name, _, of_triton = triton.partition("==")
    assert locked[name] == of_triton
    assert not [name for name in locked if name == "triton" or name.startswith(("nvidia-", "cupy-"))]


def test_a_newer_layer_beside_vllm_brings_it_no_transformers_that_it_does_not_run_with(folder: Path) -> None:
    words = ["--base", "rocm-6.2.4", "--add", "vllm==0.10.1", "--add", "lightning"]
    world = world_of("0.10.1", "2.7.1+rocm6.2.4", "0.22.1+rocm6.2.4", "pytorch-triton-rocm==3.3.1")
    assert lock(world, [*words, *given(world, folder)], folder)["transformers"].version == "4.55.2"


def test_a_set_of_wheels_of_vllm_is_locked_whole_with_its_own_torch(folder: Path) -> None:
    torch, vision = "2.9.1+git8907517", "0.24.1+gitd801a34"
    world = world_of("0.18.0", torch, vision, "triton==3.5.1+git1")
    world.of_layers["triton"] = {"3.5.1+git1": ()}
    world.of_layers["vllm"] = {"0.18.0+rocm700": (*world.of_layers["vllm"]["0.18.0"], f"torch=={torch}")}
    wheels = lock(world, ["--base", "rocm-7.0", "--add", "vllm==0.18.0", "--site", "lumi"], folder)
    locked = {name: wheel.version for name, wheel in wheels.items()}
    assert {"vllm": "0.18.0+rocm700", "torch": torch, "triton": "3.5.1+git1"}.items() <= locked.items()
    assert {"transformers": "4.57.6", "xgrammar": "0.1.32", "numba": "0.61.2"}.items() <= locked.items()
    assert not [name for name in locked if name.startswith(("nvidia-", "cupy-"))]


# Lines from the sources that the layers name: setup.py reads the first three, bitsandbytes' is its pyproject.toml.
SOURCES = {
    "apex": {"requirements.txt": "cxxfilt>=0.2.0\ntqdm>=4.28.1\nnumpy\nPyYAML>=5.1\npytest>=3.5.1\nmatplotlib>=3.8\n"},
    "deepspeed": {"requirements/requirements.txt": "hjson\nmsgpack\nninja\nnumpy\npydantic>=2.0.0\ntorch\ntqdm\n"},
    "xformers": {"requirements.txt": "# Example requirement\ntorch >= 2.9\nnumpy\n"},
    "bitsandbytes": {
        "pyproject.toml": '[build-system]\nrequires = ["scikit-build-core", "trove-classifiers>=2025.8.6.13"]\n'
        '[project]\nname = "bitsandbytes"\ndependencies = ["torch>=2.3,<3", "numpy>=1.17"]\n'
    },
}


def test_layers_that_are_compiled_are_locked_whole_and_together(
    folder: Path,
) -> None:
    words = ["--base", "rocm-6.4.4", "--site", "lumi", "--fabric", "bundled"]
    for name, files in SOURCES.items():
        (folder / f"{name}.tar.gz").write_bytes(archive_of(files))
        words += ["--add", name, "--source", f"{name}={folder}/{name}.tar.gz"]
    torch = ("2.9.1+rocm6.4", "0.24.1+rocm6.4", "pytorch-triton-rocm==3.5.1")
    locked = lock(world_of("0.12.0", *torch), words, folder)
    assert locked["torch"].version == "2.9.1+rocm6.4"
    assert {"ninja", "setuptools", "wheel", "hjson", "pydantic", "cxxfilt", "scikit-build-core"} <= locked.keys()
