"""Deceptive images: code for another GPU behind links, packings, modes and copies, and good ones that look bad."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lumiimg.cli.main import main
from lumiimg.gpu import GpuFit, node_gpu
from lumiimg.image import open_image
from lumiimg.inventory.components import Inventory
from lumiimg.inventory.gpu_fit import component_fits
from tests.shared import gpu_builder as gpu
from tests.shared.elf_builder import library, runpath
from tests.shared.fabric_builder import RCCL_ALONE, versioned
from tests.shared.gpu_image import PACKAGES, image, only
from tests.shared.programs import examples
from tests.shared.python_image import CALLS_RCCL, SITE, environment, python, torch, venv

Capture = pytest.CaptureFixture[str]
ROCBLAS = "opt/rocm/lib/rocblas"
KERNEL = gpu.code_object("gfx942")

# -- each packing and each place gives the same answer


TARGETS = ("gfx908", "gfx90a", "gfx90a:xnack+", "gfx90a:xnack-", "gfx90a:sramecc-", "gfx942", "gfx9-generic")
TAKEN = {"gfx90a", "gfx90a:xnack-"}
PACKINGS: dict[str, Callable[[bytes], bytes]] = {
    "plain": bytes,
    **{f"CCOB {version}": partial(gpu.compressed, version=version) for version in (1, 2, 3)},
}
PLACES = {
    "opt/rocm/lib/librccl.so.1": "RCCL",
    f"{PACKAGES}/vllm/_C.abi3.so": "vLLM _C",
    f"{PACKAGES}/torch.libs/librccl-8a3f11bc.so.1.0": "RCCL",
    f"{PACKAGES}/jax_plugins/xla_rocm7/xla_rocm_plugin.so": "JAX pjrt",
}


@settings(deadline=None, max_examples=examples(60))  # files are written
@given(
    st.lists(st.sets(st.sampled_from(TARGETS), min_size=1), min_size=1, max_size=4),
    st.sampled_from(sorted(PACKINGS)),
    st.sampled_from(sorted(PLACES)),
    st.integers(0, 3),
)
def test_packing_and_links_change_no_answer(bundles: list[set[str]], packing: str, place: str, links: int) -> None:
    packed = [PACKINGS[packing](gpu.bundle(*gpu.hip(*sorted(targets)))) for targets in bundles]
    fits = [_expected(targets) for targets in bundles]
    with tempfile.TemporaryDirectory() as folder:
        names = [*(f"store/{number}" for number in range(links)), place]
        put(Path(folder), names[0], gpu.library(gpu.pages(*packed)))
        for target, name in pairwise(names):
            link(Path(folder), name, f"/{target}")
        with open_image(Path(folder)) as opened:
            (found,) = component_fits(Inventory(opened).gpu_code, node_gpu("gfx90a"))
    assert found.component == PLACES[place]
    if len(set(fits)) == 1:
        assert found.fit is fits[0]
    else:  # in part for it: never more than that, and never a yes where most is for others
        assert found.fit in {GpuFit.PART, GpuFit.UNKNOWN, GpuFit.XNACK}
        assert found.fit is not GpuFit.PART or 2 * fits.count(GpuFit.RUNS) >= len(fits)


def _expected(targets: set[str]) -> GpuFit:
    if targets & TAKEN:
        return GpuFit.RUNS
    return GpuFit.XNACK if "gfx90a:xnack+" in targets else GpuFit.NO


# -- by what a job loads


def put(root: Path, path: str, data: bytes) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_bytes(data)


def link(root: Path, path: str, target: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).unlink(missing_ok=True)
    (root / path).symlink_to(target)


def rccl(root: Path, path: str, target: str) -> None:
    source = RCCL_ALONE + gpu.fatbin_source(target)
    versioned(root / path, soname="librccl.so.1", needs={root / "lib64/libc.so.6": ()}, source=source)


def torch_for(root: Path, prefix: str, target: str) -> None:
    own = torch(root, prefix)
    hip = root / prefix / SITE / "torch/lib/libtorch_hip.so"
    hip.unlink()
    library(hip, *runpath("$ORIGIN"), own, source=CALLS_RCCL + gpu.fatbin_source(target))


def rccl_in_a_store(root: Path) -> None:
    rccl(root, "blob/ab12cd", "gfx942")
    link(root, "opt/rocm/lib/librccl.so.1", "../../x/librccl")
    link(root, "opt/x/librccl", "/blob/ab12cd")


def rccl_before_the_good_one(root: Path) -> None:
    rccl(root, "opt/bad/librccl.so.1", "gfx942")
    environment(root, LD_LIBRARY_PATH="/opt/bad:/opt/rocm/lib")


def rccl_preloaded(root: Path) -> None:
    rccl(root, "opt/bad/librccl.so.1", "gfx942")
    environment(root, LD_LIBRARY_PATH="/opt/rocm/lib", LD_PRELOAD="/opt/bad/librccl.so.1")


def torch_of_the_second_venv(root: Path) -> None:
    python(root, "usr")
    torch_for(root, "usr", "gfx90a")
    venv(root, "opt/v", "/usr")
    torch_for(root, "opt/v", "gfx942")
    environment(root, PATH="/opt/v/bin:/usr/bin", LD_LIBRARY_PATH="/opt/rocm/lib")


def kernels_behind_a_link(root: Path) -> None:
    put(root, "data/tensile/K_gfx942.hsaco", KERNEL)
    link(root, f"{ROCBLAS}/library", "/data/tensile")


def kernels_below_a_link(root: Path) -> None:
    put(root, "data/rb/library/K_gfx942.hsaco", KERNEL)
    link(root, ROCBLAS, "/data/rb")


def an_entry_without_code(root: Path) -> None:
    codes = [b"", KERNEL]
    put(root, f"{PACKAGES}/vllm/_C.so", gpu.library(gpu.bundle(*gpu.hip("gfx90a", "gfx942"), codes=codes)))


def a_gpu_taken_for_another(root: Path) -> None:
    environment(root, LD_LIBRARY_PATH="/opt/rocm/lib", HSA_OVERRIDE_GFX_VERSION="11.0.0")


@pytest.mark.parametrize(
    ("plant", "expected"),
    [
        (rccl_in_a_store, "RCCL (gfx942 only)"),
        (rccl_before_the_good_one, "RCCL (gfx942 only)"),
        (rccl_preloaded, "RCCL (gfx942 only)"),
        (torch_of_the_second_venv, "torch (gfx942 only)"),
        (kernels_behind_a_link, "rocBLAS (gfx942 only)"),
        (kernels_below_a_link, "rocBLAS (gfx942 only)"),
        (an_entry_without_code, "vLLM _C (gfx942 only)"),
        (a_gpu_taken_for_another, "HSA_OVERRIDE_GFX_VERSION makes the runtime treat gfx90a, lumi's GPU, as gfx1100"),
    ],
)
def test_what_a_job_would_load_is_found_wherever_it_is_hidden(
    plant: Callable[[Path], None], expected: str, tmp_path: Path, capsys: Capture
) -> None:
    root = image(tmp_path / "i", {})
    plant(root)
    problems, _ = judged(root, capsys)
    assert expected in " ".join(problems)


def judged(root: Path, capsys: Capture) -> tuple[list[str], list[str]]:
    """Return the obstacles in the GPU code of an image, and the open questions."""
    main(["check", str(root), "--level", "static", "--json", "--site", "lumi"])
    found = [each for each in json.loads(capsys.readouterr().out)["findings"] if each["id"].startswith("gpu.")]
    return tuple([each["summary"] for each in found if each["severity"] == kind] for kind in ("problem", "unknown"))  # type: ignore[return-value]


@pytest.mark.parametrize(
    "files",
    [
        pytest.param({"usr/share/i18n/es.co": b"hello", "opt/doc/x.hsaco": b"text"}, id="other files of such names"),
        pytest.param(
            {"opt/rocm/lib/hipsparselt/library/K_gfx942.co": KERNEL}, id="hipSPARSELt, which gfx90a never has"
        ),
        pytest.param({"opt/rocm/share/miopen/db/gfx942130.kdb": b"SQLite format 3\0"}, id="database of another"),
        pytest.param({"opt/rocm/bin/rocprim-test": only("gfx942")}, id="program of another"),
        pytest.param({"opt/old/librccl.so.1": only("gfx942")}, id="RCCL that no job loads"),
        pytest.param({"opt/doc/bundles": gpu.MAGIC[:10] * 900}, id="half a magic"),
        pytest.param({f"{PACKAGES}/vllm/_C.so": only("gfx90a:sramecc+:xnack+", "gfx90a:sramecc+:xnack-")}, id="modes"),
    ],
)
def test_a_good_image_that_looks_odd_raises_no_alarm(files: dict[str, bytes], tmp_path: Path, capsys: Capture) -> None:
    assert judged(image(tmp_path / "i", files), capsys) == ([], [])
