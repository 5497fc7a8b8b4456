"""A real engine as the oracle for layers: whatever stack it unpacks, lumiimg sees the same files."""

from __future__ import annotations

import random
import subprocess
from typing import TYPE_CHECKING

import pytest

from lumiimg.image import open_image
from lumiimg.image.compare import compare
from tests.shared.oci_builder import PACK, image, random_layer
from tests.shared.programs import tenth_of

if TYPE_CHECKING:
    from pathlib import Path

    from lumiimg.engine.engine import Engine

pytestmark = pytest.mark.engine
_OF_THE_ENGINE = {".exec", ".run", ".shell", ".test", ".singularity.d", "environment", "singularity"}
_OF_THE_ENGINE |= {"dev", "etc", "home", "proc", "root", "sys", "tmp", "usr", "var"}


def test_any_stack_of_layers_is_what_the_engine_unpacks(engine: Engine, tmp_path: Path) -> None:
    for seed in range(tenth_of(60)):
        chance = random.Random(seed)  # noqa: S311 - the same layers each time
        layers = [random_layer(chance) for _ in range(3)]
        layout = image(*layers, pack=chance.choice([*PACK])).write_folder(tmp_path / f"{seed}")
        words = [str(engine.path), "build", "--sandbox", str(tmp_path / f"{seed}-unpacked"), f"oci:{layout}"]
        done = subprocess.run(words, capture_output=True, errors="replace", check=False)
        assert done.returncode == 0, done.stderr
        with open_image(layout, lambda: tmp_path) as ours, open_image(tmp_path / f"{seed}-unpacked") as theirs:
            for found in compare(ours.root, theirs.root).files:
                if found.path == "/" or found.path.split("/")[1] in _OF_THE_ENGINE:
                    continue
                # users own what they unpack, and umoci records the owner; the umask sets the mode of unlisted folders
                others = {"time", "mode"} if theirs.root.is_dir(found.path) else set()
                assert found.what in {"owner", "extended attributes", *others}, (seed, found)
