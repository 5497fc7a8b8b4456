"""differences.toml against the engine of this machine: each row that can be tried is tried, for real."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from lumiimg.engine.behaviour import Behaviour, tried_differences
from lumiimg.host.codec import decode
from tests.shared.programs import needs, patient

if TYPE_CHECKING:
    from pathlib import Path

    from lumiimg.engine.engine import Engine

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("engine")]
# for an ordinary user, a machine on which /etc/subuid lists nobody
NOBODY_HAS_IDS = "mount --bind nobody /etc/subuid && exec setpriv --ambient-caps=-all --inh-caps=-all "


def shown(words: list[str], folder: Path) -> dict[str, str | None]:
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=folder, timeout=patient(300))
    assert done.returncode == 0, done.stderr
    found = decode(Behaviour, json.loads(done.stdout))
    # None: the reason stands where the answer would
    return {one.id: one.answer if one.answer is not None else f"not tried: {one.why}" for one in found.shown}


def test_each_row_is_as_the_engine_of_this_machine_does_it(engine: Engine, bare: Path, tmp_path: Path) -> None:
    needs("mksquashfs", "unshare", "setpriv")
    words = [sys.executable, "-m", "lumiimg", "node", str(tmp_path), "--engine-in", str(bare)]
    found = shown(words, tmp_path)
    expected = {row.id: row.of(engine.name) for row in tried_differences()}
    if found["fakeroot-without-ids"] == "not tried: this user has ids in /etc/subuid":
        (tmp_path / "nobody").touch()
        script = NOBODY_HAS_IDS + shlex.join(words)
        own = ["unshare", "--map-current-user", "--mount", "--keep-caps", "sh", "-c", script]
        found["fakeroot-without-ids"] = shown(own, tmp_path)["fakeroot-without-ids"]
    assert found == expected
    assert {path.name for path in tmp_path.iterdir()} <= {"nobody"}


def test_a_folder_has_no_path_of_a_sif_and_all_else_is_alike(engine: Engine, bare: Path, tmp_path: Path) -> None:
    folder = tmp_path / "root"
    subprocess.run([engine.path, "build", "--sandbox", folder, bare], check=True, capture_output=True)
    words = [sys.executable, "-m", "lumiimg", "node", str(tmp_path), "--engine-in"]
    of_sif, of_folder = (shown([*words, str(image)], tmp_path) for image in (bare, folder))
    assert of_folder == of_sif | {"image-path": "not tried: the image is a folder"}
