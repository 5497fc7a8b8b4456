"""A layer that was to be compiled for the GPU of a site, and was for another, fails where it is built."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lumiimg.errors import ExitCode
from tests.engine.conftest import lumiimg
from tests.shared import gpu_builder as gpu

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("engine")]

LAYER = """\
kind = "layer"
summary = "Kernels of the tests"
source = "the tests"
date = 2026-11-24
files = ["kernels.so"]

[arguments.ARCH]
default = "gfx90a"
help = "GPU"
pattern = "gfx[0-9a-f]+"
"""


def test_a_layer_with_code_for_another_gpu_fails_where_it_is_built(bare: Path, tmp_path: Path) -> None:
    layer = tmp_path / "layers/kernels"
    layer.mkdir(parents=True)
    (layer / "layer.toml").write_text(LAYER)
    (layer / "post.sh").write_text('install -D "$LAYER_FILES/kernels.so" /opt/kernels/kernels.so\n')
    (layer / "kernels.so").write_bytes(gpu.library(gpu.bundle(*gpu.hip("gfx942"))))
    words: list[str | Path] = ["build", "-o", tmp_path / "image.sif", "--base", bare]
    words += ["--layers", tmp_path / "layers", "--add", "kernels"]
    own = {"LUMIIMG_CACHE": str(tmp_path / "cache")}
    told = lumiimg(*words, env=own)
    assert told.code == ExitCode.NO
    why = "layer kernels: it was compiled for gfx90a, and has no code for it: kernels.so (gfx942 only)"
    assert why in " ".join(told.err.split())
    assert not (tmp_path / "image.sif").exists()
    told = lumiimg(*words, "--arg", "kernels.ARCH=gfx942", env=own)
    assert told.code == ExitCode.GOOD, told.err
