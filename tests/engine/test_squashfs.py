"""squashfs-tools of this machine: what mksquashfs packs is read, and what lumiimg packs itself they unpack."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from lumiimg.build.pack import pack_folder
from lumiimg.image import open_image
from lumiimg.image.compare import compare
from tests.shared.squashfs_tree import COMPRESSIONS, fill, mksquashfs

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tree")
    fill(folder)
    os.utime(folder, (0, 0))
    return folder


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_what_mksquashfs_packs_is_read(tree: Path, compression: str, tmp_path: Path) -> None:
    packed = mksquashfs(tree, tmp_path / "packed", "-comp", compression)
    with open_image(tree) as folder, open_image(packed) as read:
        assert {other.what for other in compare(folder.root, read.root).files} <= {"owner", "time"}


def test_what_is_packed_without_mksquashfs_is_what_unsquashfs_takes_out(tree: Path, tmp_path: Path) -> None:
    pack_folder(tree, tmp_path / "packed", 0)
    words: list[str | Path] = ["unsquashfs", "-quiet", "-no-progress", "-d", tmp_path / "out", tmp_path / "packed"]
    assert subprocess.run(words, capture_output=True, check=True).stderr == b""
    with open_image(tree) as folder, open_image(tmp_path / "out") as unpacked:
        others = {
            (other.path, other.what) for other in compare(folder.root, unpacked.root).files if other.what != "time"
        }
        assert others <= {("/setuid", "mode")}, "that bit it gives to nobody but root"
