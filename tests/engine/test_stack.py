"""A stack, locked and built from the lock: a base from a registry, torch, and what needs torch.

The torch is a stand-in: PyTorch's wheel for CPUs in place of that for ROCm, which is several gigabytes and is not
available everywhere. It is real otherwise, so everything but the GPU is proved: the wheel and its requirements are
resolved, locked, fetched, installed and pinned by the scripts of the layers, and what comes on top works.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from lumiimg.catalog.folders import shipped_layers
from lumiimg.core.errors import ExitCode
from lumiimg.engine.workspace import scratch_folder
from lumiimg.resolve.lock_file import LockFile, read_document
from tests.engine.conftest import inside, lumiimg, write_layer
from tests.shared.registries import layer_of, push
from tests.shared.world import World, serve

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from lumiimg.engine.engine import Engine

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("engine")]

TORCH = "2.13.0+cpu"
PYTHON = "3.11"  # the stand-in is for this one: wheels for other Pythons are other files
CPU_WHEELS = "https://download.pytorch.org/whl/cpu"
VENV = "/opt/venv/bin/python"

BASE = """\
kind = "base"
summary = "Debian 12, which claims to have a ROCm"
source = "the tests"
date = 2026-11-21
provides = ["debian", "python3"]
has = { os = "Debian 12", glibc = "2.36", python = "3.11", rocm = "5.4" }
[[bootstrap]]
agent = "docker"
from = "debian:bookworm-slim"
"""
# The release that stands in for those of ROCm: its wheel is PyTorch's for CPUs, from the same index. `has` claims a
# torch for ROCm, as the planner refuses one with `+cpu`; unlike ROCm's wheels, it does not include an RCCL.
RELEASE = f"""\
[[release]]
version = "2.13.0"
requires = ["python>=3.10,<3.15", "glibc>=2.28"]
has = {{ torch = "2.13.0", "torch-rocm" = "5.4" }}
wheels = ["torch=={TORCH}"]
indexes = ["{CPU_WHEELS}"]
source = "the tests: a stand-in for the wheel for ROCm"

"""
USE = """
import torch, transformers
config = transformers.BertConfig(
    vocab_size=32, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
output = transformers.BertModel(config)(torch.tensor([[1, 2, 3]])).last_hidden_state
output.sum().backward()
print(torch.__version__, torch.__file__, tuple(output.shape))
"""


def torch_wheel(folder: Path) -> Path:
    """Let pip download the stand-in, from the index that this machine uses, or else from PyTorch's own."""
    ask = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    ask += ["--python-version", PYTHON, "--dest", str(folder), f"torch=={TORCH}"]
    output = ""
    for more in ([], ["--timeout", "15", "--retries", "1", "--extra-index-url", CPU_WHEELS]):
        done = subprocess.run([*ask, *more], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            (wheel,) = folder.glob("torch-*.whl")
            return wheel
        output = (done.stderr.strip().splitlines() or ["nothing"])[-1]
    pytest.skip(f"pip finds no wheel of torch {TORCH} for Python {PYTHON}, so no stack can be built; it says: {output}")


def stack_layers(layers: Path) -> Path:
    """Write the layers of this stack: the shipped ones, with the stand-in as an additional release."""
    write_layer(layers / "debian", toml=BASE)
    for name in ("pytorch", "transformers"):
        layer = layers / name
        shutil.copytree(shipped_layers() / name, layer)
    # The layers' own check fails if torch has no HIP, as it should; here it continues with its other parts.
    check = (shipped_layers() / "lib/check.py").read_text()
    (layers / "lib").mkdir()
    (layers / "lib/check.py").write_text(changed(check, "hip = torch.version.hip\n", 'hip = "0 (a stand-in)"\n'))
    toml = layers / "pytorch" / "layer.toml"
    toml.write_text(changed(toml.read_text(), "[[release]]\n", f"{RELEASE}[[release]]\n"))
    for script_name in ("post.sh", "test.sh"):
        # Only PyTorch's index has wheels of these two for CPUs.
        file = layers / "pytorch" / script_name
        file.write_text(changed(file.read_text(), " torchvision torchaudio", ""))
    return layers


def changed(text: str, old: str, new: str) -> str:
    assert old in text, f"{old!r} is not in what is shipped any more"
    return text.replace(old, new, 1)


@dataclass(frozen=True)
class Stack:
    image: Path
    lock: LockFile


@pytest.fixture(scope="module")
def stack(small: Path, registry: str, images: Path) -> Iterator[Stack]:
    # removed afterwards, with the downloads: no later run could use it, as the registry then has another port
    with scratch_folder(images / "stack") as folder:
        wheel = torch_wheel(folder)
        layers = stack_layers(folder / "layers")
        push(registry, "library/debian", "bookworm-slim", layer_of(small))
        env = {"LUMIIMG_CACHE": str(folder / "cache")}
        with serve(World(files=(wheel,))) as world:
            common: list[str | Path] = ["--layers", layers, "--mirror", f"docker.io=http://{registry}"]
            common += ["--mirror", f"https://download.pytorch.org={world.url}"]
            words = ("--base", "debian", "--add", "pytorch", "--add", "transformers")
            locked = lumiimg("lock", *common, *words, cwd=folder, env=env)
            assert locked.code == ExitCode.GOOD, locked.err
            done = lumiimg("build", *common, "--locked", "--trust-lock", "-o", "stack.sif", cwd=folder, env=env)
            log = folder / "stack.sif.log"
            assert done.code == ExitCode.GOOD, done.err + (log.read_text()[-3000:] if log.exists() else "")
        yield Stack(folder / "stack.sif", read_document(folder / "lumiimg.lock"))


def test_the_lock_names_the_base_by_digest_and_the_stand_in_where_pytorch_has_it(stack: Stack) -> None:
    assert (stack.lock.base.digest or "").startswith("sha256:")
    (torch,) = [wheel for entry in stack.lock.layer for wheel in entry.locked_wheels if wheel.name == "torch"]
    assert torch.version == TORCH
    assert torch.location.startswith("https://download.pytorch.org/"), "where it is for everybody, not the mirror"


def test_every_wheel_of_the_lock_is_in_the_image_and_works_and_nothing_else_is(engine: Engine, stack: Stack) -> None:
    listed = json.loads(inside(engine, stack.image, VENV, "-m", "pip", "list", "--format", "json"))
    has = {entry["name"].lower().replace("_", "-").replace(".", "-"): entry["version"] for entry in listed}
    wheels = {wheel.name: wheel.version for entry in stack.lock.layer for wheel in entry.locked_wheels}
    assert {"torch", "sympy", "transformers", "accelerate", "peft", "numpy", "safetensors"} <= wheels.keys()
    assert {name: version for name, version in has.items() if name != "pip"} == wheels
    assert not [name for name in has if name.startswith(("nvidia", "cuda", "triton"))]
    assert "No broken requirements found" in inside(engine, stack.image, VENV, "-m", "pip", "check")
    version, file, shape = inside(engine, stack.image, "python", "-c", USE).strip().split(maxsplit=2)
    assert version == TORCH
    assert file.startswith("/opt/venv/lib/")
    assert shape == "(1, 3, 16)"


def test_no_later_pip_can_swap_the_torch(engine: Engine, stack: Stack) -> None:
    # Without an index: pip reports the pin before it looks for another torch, and then fails to find one.
    pip = ["python", "-m", "pip", "install", "--no-index", "torch!=2.13.0"]
    done = subprocess.run([engine.path, "exec", stack.image, *pip], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert f"The user requested (constraint) torch=={TORCH}" in done.stdout + done.stderr
