"""An image that would fill a disk is refused before anything is unpacked, and one with real software is not."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from lumiimg.core.errors import ExitCode, MissingHereError
from lumiimg.engine.namespaces.layers import unpacked
from lumiimg.image import ImageError, require_room
from tests.shared.programs import needs, squashed

MIB = 1 << 20


class _Usage(NamedTuple):
    free: int


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small root; below a MiB, anything may be unpacked."""
    monkeypatch.setattr("lumiimg.image.image._ALWAYS_ALLOWED_BYTES", MIB)
    (tmp_path / "root/etc").mkdir(parents=True)
    (tmp_path / "root/etc/text").write_text("text" * 100)
    return tmp_path / "root"


def zeros(root: Path) -> None:
    (root / "zeros").write_bytes(bytes(24 * MIB))


def hole(root: Path) -> None:
    (root / "hole").touch()
    os.truncate(root / "hole", 24 * MIB)


def same_bytes(root: Path) -> None:
    """Many files whose bytes are stored once."""
    for number in range(48):
        (root / f"{number}").write_bytes(b"x" * (MIB // 2))


def names(root: Path) -> None:
    for number in range(2000):
        (root / f"{number}").touch()


@pytest.mark.usefixtures("clean_home")
@pytest.mark.parametrize("fill", [zeros, hole, same_bytes, names])
@pytest.mark.threat
def test_an_image_that_unpacks_to_far_more_than_it_is_is_refused_before(
    fill: Callable[[Path], None], root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LUMIIMG_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()
    fill(root)
    image = squashed(root, tmp_path / "image.sqfs")
    with pytest.raises(ImageError, match="unpacks to more than 100 times its size") as raised:
        require_room(image, tmp_path / "new")
    assert raised.value.exit_code == ExitCode.BAD_INPUT
    needs("unsquashfs")
    with pytest.raises(ImageError, match="100 times"), unpacked(image, os.environ):
        pass
    assert [*(tmp_path / "cache").iterdir()] == [], "nothing is left half written"


@pytest.mark.threat
def test_more_than_is_free_is_refused_with_both_sizes(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "data").write_bytes(os.urandom(2 * MIB))
    image = squashed(root, tmp_path / "image.sqfs")
    require_room(image, tmp_path)
    monkeypatch.setattr("shutil.disk_usage", lambda _: _Usage(257 * MIB))
    with pytest.raises(MissingHereError, match="unpacks to 2 MiB, but only 257 MiB are free") as raised:
        require_room(image, tmp_path / "new/folder")
    assert raised.value.exit_code == ExitCode.MISSING_HERE


@pytest.mark.threat
def test_real_software_and_files_of_several_names_are_not_refused(root: Path, tmp_path: Path) -> None:
    (root / "data").write_bytes(os.urandom(MIB))
    for number in range(300):
        (root / f"{number}").hardlink_to(root / "data")
    require_room(squashed(root, tmp_path / "links.sqfs"), tmp_path)
    (root / "text").write_text("import torch\n" * MIB)  # packed to a hundredth alone
    require_room(squashed(root, tmp_path / "text.sqfs"), tmp_path)
