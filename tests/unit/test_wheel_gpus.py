"""`lock` looks into wheels for GPU code: a layer whose kernels are for another GPU is refused before anything is built."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from lumiimg.cli.main import main
from lumiimg.errors import ExitCode
from lumiimg.gpu.rule import node_gpu
from lumiimg.resolve.wheel_code import wheel_code
from tests.shared import gpu_builder as gpu
from tests.shared.layer_builder import BASE, LAYER, MakeLayer
from tests.shared.world import World, metadata_of, serve

Capture = pytest.CaptureFixture[str]
BOX = BASE.replace("[[", 'provides = ["python3"]\nhas = { python = "3.12", glibc = "2.39" }\n[[', 1)
ENGINE = (
    LAYER
    + """
[[release]]
version = "2.0"
wheels = ["vllm==2.0+rocm7.0"]
indexes = ["https://download.pytorch.org/whl/rocm7.0"]
source = "the tests"
"""
)
VLLM = "vllm-2.0+rocm7.0-cp312-cp312-manylinux_2_28_x86_64.whl"
_C = "vllm/_C.abi3.so"


def kernels(*targets: str, count: int = 1) -> bytes:
    return gpu.library(gpu.pages(*[gpu.bundle(*gpu.hip(*targets))] * count))


def wheel(members: Mapping[str, bytes]) -> bytes:
    out = io.BytesIO()
    about = "vllm-2.0+rocm7.0.dist-info"
    files: dict[str, str | bytes] = {
        f"{about}/METADATA": metadata_of("vllm", "2.0+rocm7.0", ()),
        f"{about}/WHEEL": "Wheel-Version: 1.0\nTag: cp312-cp312-manylinux_2_28_x86_64\n",
        **members,
        f"{about}/RECORD": "",
    }
    with zipfile.ZipFile(out, "w") as archive:
        for path, data in files.items():  # the same bytes each time
            archive.writestr(zipfile.ZipInfo(path, (2026, 11, 24, 0, 0, 0)), data, zipfile.ZIP_DEFLATED)
    return out.getvalue()


@pytest.fixture
def world() -> Iterator[World]:
    with serve(World()) as world:
        yield world


@pytest.fixture(autouse=True)
def _ground(tmp_path: Path, make_layer: MakeLayer, monkeypatch: pytest.MonkeyPatch) -> None:
    make_layer("box", BOX)
    make_layer("engine", ENGINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("LUMIIMG_CACHE", str(tmp_path / "cache"))


def lock(world: World, members: Mapping[str, bytes], *words: str) -> int:
    Path(VLLM).write_bytes(wheel(members))
    world.files = (Path(VLLM),)
    options = ["--base", "box", "--add", "engine", "--site", "lumi", "--fabric", "none", "--layers", "layers"]
    return main(["lock", *options, *world.mirrors, *words])


@pytest.mark.parametrize("parts", [True, False])
def test_a_wheel_without_code_for_the_gpu_of_the_site_is_refused_with_the_reason(
    parts: bool, world: World, capsys: Capture
) -> None:
    world.parts = parts
    assert lock(world, {_C: kernels("gfx942", "gfx950")}) == ExitCode.NO
    said = capsys.readouterr().err
    assert "no code for gfx90a, the GPU of lumi" in said
    assert "vllm 2.0+rocm7.0, vLLM _C: gfx942 and gfx950 only" in said
    assert "lumiimg show engine" in said
    assert not Path("lumiimg.lock").exists()


def test_the_lock_says_for_which_gpus_a_wheel_has_code_and_it_was_not_fetched_for_that(
    world: World, tmp_path: Path, capsys: Capture
) -> None:
    padding = os.urandom(4 << 20)
    members = {"vllm/weights.bin": padding, _C: kernels("gfx90a", "gfx942"), "vllm/more.bin": padding}
    assert lock(world, members) == ExitCode.GOOD
    assert 'gpus = "gfx90a gfx942"' in Path("lumiimg.lock").read_text()
    assert "gfx90a takes it" in Path("lumiimg.lock").read_text()
    assert not list((tmp_path / "cache/sources").glob("*"))
    assert lock(world, members) == ExitCode.GOOD  # a lock with such an entry is read, and is what it was
    assert "no difference to what was there" in capsys.readouterr().out


def test_kernel_files_in_a_wheel_are_known_by_their_names_and_read(world: World, capsys: Capture) -> None:
    root = "torch/lib/rocblas/library"
    other = {f"{root}/Kernels.so-000-gfx942.hsaco": gpu.code_object("gfx942")}
    assert lock(world, other) == ExitCode.NO
    assert "rocBLAS: gfx942 only" in capsys.readouterr().err
    assert lock(world, {**other, f"{root}/Kernels.so-000-gfx90a.hsaco": gpu.code_object("gfx90a")}) == ExitCode.GOOD


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ({_C: kernels("gfx90a:xnack+")}, "only with HSA_XNACK=1"),
        (
            {_C: kernels("gfx90a"), "aiter/k.so": kernels("gfx942")},
            "jobs run without aiter; vLLM and SGLang end where they take it",
        ),
        ({"torch/lib/libtorch_hip.so": gpu.library(b"")}, "no GPU code was found in it"),
        ({_C: gpu.library(gpu.pages(gpu.bundle("x", count=1 << 60)))}, "1152921504606846976 entries"),
    ],
)
def test_what_is_not_sure_is_a_doubt_in_the_lock(
    members: Mapping[str, bytes], said: str, world: World, capsys: Capture
) -> None:
    assert lock(world, members) == ExitCode.GOOD
    assert said in " ".join(capsys.readouterr().out.split())


def test_without_a_site_no_wheel_is_looked_into(world: World, capsys: Capture) -> None:
    Path(VLLM).write_bytes(wheel({_C: kernels("gfx942")}))
    world.files = (Path(VLLM),)
    assert main(["lock", "--base", "box", "--add", "engine", "--layers", "layers", *world.mirrors]) == ExitCode.GOOD
    assert "gfx" not in capsys.readouterr().out


def test_a_library_is_read_until_most_of_its_bundles_are_for_the_gpu() -> None:
    def found(*bundles: str) -> list[str]:
        library = gpu.library(gpu.pages(*(gpu.bundle(*gpu.hip(target)) for target in bundles)))
        code = wheel_code(io.BytesIO(wheel({_C: library})), node_gpu("gfx90a"))
        return [str(target) for each in code.files[0].bundles for target in each.targets for _ in range(each.count)]

    assert found("gfx90a", "gfx942", "gfx950") == ["gfx90a"]
    assert found("gfx942", "gfx90a", "gfx950") == ["gfx90a", "gfx942"]
    assert found("gfx942", "gfx950", "gfx942") == ["gfx942", "gfx942", "gfx950"]


@pytest.mark.threat("S07")
def test_a_wheel_that_unpacks_to_more_than_it_should_is_not_unpacked() -> None:
    bomb = wheel({_C: bytes(64 << 20), "vllm/_rocm_C.abi3.so": kernels("gfx90a")})
    code = wheel_code(io.BytesIO(bomb), node_gpu("gfx90a"))
    assert [lost.path for lost in code.unreadable] == [f"/{_C}", "/vllm/_rocm_C.abi3.so"]
    assert "too many unpacked" in code.unreadable[0].why
