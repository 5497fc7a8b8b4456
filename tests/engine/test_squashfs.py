"""The reader understands what this machine's mksquashfs packs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

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
