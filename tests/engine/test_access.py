"""Who may read a file in a real container: what the model of modes says, the engine's kernel says."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from lumiimg.image import open_image
from lumiimg.image.permissions import barred
from tests.engine.conftest import inside

if TYPE_CHECKING:
    from pathlib import Path

    from lumiimg.engine.engine import Engine

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file; `.ci/unprivileged` runs this as a user"),
]

READER = """
#include <fcntl.h>
#include <stdio.h>
int main(int count, char **paths)
{
    for (int i = 1; i < count; i++)
        if (open(paths[i], O_RDONLY) < 0)
            puts(paths[i]);
    return 0;
}
"""
PATHS = ["/opt/open", "/opt/closed", "/opt/group", "/shut/open", "/searched/open", "/into", "/past"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    for folder in ("bin", "dev", "etc", "home", "opt", "proc", "root", "searched", "shut", "sys", "tmp"):
        (root / folder).mkdir(parents=True)
    (tmp_path / "reader.c").write_text(READER)
    subprocess.run(["gcc", "-static", "-o", root / "bin/reader", tmp_path / "reader.c"], check=True)
    for path, mode in (("opt/open", 0o644), ("opt/closed", 0o600), ("opt/group", 0o640)):
        (root / path).write_text("")
        (root / path).chmod(mode)
    for path, mode in (("shut", 0o700), ("searched", 0o711)):
        (root / path / "open").write_text("")
        (root / path / "open").chmod(0o644)
        (root / path).chmod(mode)
    (root / "into").symlink_to("shut/open")
    (root / "past").symlink_to("shut/../opt/open")
    return root


def test_files_of_root_in_a_squashfs_image(engine: Engine, root: Path, tmp_path: Path) -> None:
    image = tmp_path / "image.sqfs"
    subprocess.run(["mksquashfs", root, image, "-all-root", "-noappend", "-quiet", "-no-progress"], check=True)
    with open_image(image) as opened:
        closed = dict(barred(opened.root, PATHS))
    assert inside(engine, image, "/bin/reader", *PATHS).split() == list(closed)
    assert set(closed) == {"/opt/closed", "/opt/group", "/shut/open", "/into", "/past"}


def test_files_of_ones_own_in_a_sandbox(engine: Engine, root: Path) -> None:
    with open_image(root) as opened:
        closed = dict(barred(opened.root, PATHS))
    assert inside(engine, root, "/bin/reader", *PATHS).split() == list(closed) == []
