"""A RCCL of today with the HIP that it was built for: Debian's packages of ROCm 7.2.4, and JAX on them.

The whole of it (`make test-all`) has the mathematical libraries and JAX with AMD's plugin; without, only RCCL and HIP.
"""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

import pytest

from lumiimg.errors import ExitCode
from tests.engine.conftest import built, lumiimg
from tests.shared.image_loader import assert_all_as_the_loader
from tests.shared.programs import EVERYTHING

if TYPE_CHECKING:
    from pathlib import Path

    from lumiimg.engine.engine import Engine

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("engine")]

WHOLE = ("--add", "debian-rocm-libraries", "--add", "jax") if EVERYTHING else ()


@pytest.fixture(scope="module")
def image(images: Path) -> Path:
    return built(images / "debian-rocm.sif", "--base", "debian-rocm", *WHOLE, "--add", "netprobe")


def test_check_names_the_rccl_and_opens_it_in_the_container(image: Path) -> None:
    told = lumiimg("check", image, "--json")
    assert told.code == ExitCode.NO
    findings = {finding["id"]: finding["level"] for finding in json.loads(told.out)["findings"]}
    assert findings["plugin.absent"] == "static"
    assert findings["rccl.runs"] == "probe"
    assert "RCCL 2.27.7 -> no plugin" in told.err


def test_the_model_and_the_loader_agree_on_every_file(engine: Engine, image: Path) -> None:
    assert_all_as_the_loader(engine, image, {}, 200)


def test_a_layer_that_needs_the_mathematical_libraries_names_the_layer_that_has_them() -> None:
    told = lumiimg("explain", "--base", "debian-rocm", "--add", "jax", "--site", "generic")
    assert told.code == ExitCode.NO
    assert "--add debian-rocm-libraries" in told.out + told.err


if EVERYTHING:  # JAX is in the whole image alone

    def test_the_plugin_of_jax_is_loaded_with_all_its_libraries(engine: Engine, image: Path) -> None:
        # without a GPU the plugin ends before it loads them
        program = "import ctypes, jax_plugins.xla_rocm7 as it; ctypes.CDLL(f'{it.__path__[0]}/xla_rocm_plugin.so')"
        words = [str(engine.path), "exec", "--cleanenv", str(image), "python3", "-c", program]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
