"""Each release of vLLM that the catalogue has, resolved whole against the package index that this machine uses, with vLLM's own
requirement files. PyTorch's wheels for ROCm are stand-ins that carry the requirements of the real ones.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from lumiimg.cli.main import main
from lumiimg.errors import ExitCode
from tests.shared.world import World, serve, wheels_of_layers

pytestmark = pytest.mark.engine
FILES = Path(__file__).parents[1] / "fixtures" / "vllm"
COMMON = ("filelock", "typing-extensions>=4.10.0", "sympy>=1.13.3", "networkx", "jinja2", "fsspec")


def world_of(version: str, torch: str, vision: str, triton: str) -> World:
    """PyTorch's index, and the archive of vLLM."""
    files = {f"requirements/{path.name}": path.read_text() for path in (FILES / version).glob("*.txt")}
    lines = [line.partition("#")[0].strip() for text in files.values() for line in text.splitlines()]
    of_layers = wheels_of_layers()
    of_layers["torch"][torch] = (*COMMON, triton)
    of_layers["torchvision"][vision] = ("numpy", f"torch=={torch}", "pillow!=8.3.*,>=5.3.0")
    of_layers["torchaudio"][torch] = (f"torch=={torch}",)
    # as vLLM's setup.py writes them into its wheels
    of_layers["vllm"] = {version: tuple(line for line in lines if line and not line.startswith("-"))}
    return World(of_layers=of_layers, requirements=files)


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
        (
            *("0.18.0", "rocm-7.0", "2.10.0+rocm7.0", "0.25.0+rocm7.0", "triton-rocm==3.6.0", "3.12"),
            {"transformers": "4.57.6", "xgrammar": "0.1.32", "numba": "0.61.2", "vllm": "0.18.0"},
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
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LUMIIMG_CACHE", str(tmp_path / "cache"))
    with serve(world_of(version, torch, vision, triton)) as world:
        mirrors = [word for word in world.mirrors if not word.startswith("pypi=")]
        mirrors = [
            word for at, word in enumerate(mirrors) if word != "--mirror" or mirrors[at + 1 : at + 2] != ["--mirror"]
        ]
        words = ["--base", base, "--add", f"vllm=={version}", "--fabric", "bundled", "--site", "lumi"]
        assert main(["lock", *words, *mirrors]) == ExitCode.GOOD
    document = tomllib.loads((tmp_path / "lumiimg.lock").read_text())
    assert document["python"]["requires-python"] == f"=={python}.*"
    locked = {package["name"]: package["version"] for package in document["python"]["packages"]}
    assert found.items() <= locked.items()
    assert {"transformers", "tokenizers", "xgrammar", "ninja", "torch"} <= locked.keys()
    assert locked["torch"] == torch
    name, _, of_triton = triton.partition("==")
    assert locked[name] == of_triton
    assert not [name for name in locked if name == "triton" or name.startswith(("nvidia-", "cupy-"))]
