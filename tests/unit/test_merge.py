"""Layers merged into one squashfs, read by this project, by squashfs-tools, and by the kernel if mounts are allowed."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from lumiimg.build.merge import can_merge, merge_squashfs
from lumiimg.image import ImageError, open_image, open_stack
from lumiimg.image.compare import compare
from lumiimg.image.squashfs.format import SUPERBLOCK, Compressor, Superblock
from tests.shared.programs import needs, squashed
from tests.shared.squashfs_tree import FIXTURES, fill

WHITEOUT = (0o020000, os.makedev(0, 0))


def packed(folder: Path, *options: str) -> Path:
    return squashed(folder, folder.with_suffix(".sqfs"), *options)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with everything possible in it, large files with equal parts, attributes, a socket."""
    root = tmp_path_factory.mktemp("layers") / "base"
    for folder in ("etc/apt", "opt", "dev", "empty-folder"):
        (root / folder).mkdir(parents=True)
    fill(root)
    (root / "etc/apt/keys").write_text("key")
    (root / "dev/null").write_text("an engine mounts its own")
    big = os.urandom(1 << 18) + bytes(1 << 20) + os.urandom(100_001)
    for name, content in {"big": big, "twin": big, "begin": big[: 1 << 18], "tail": big[-100_001:]}.items():
        (root / "opt" / name).write_bytes(content)
    (root / "opt/hard").hardlink_to(root / "opt/big")
    with socket.socket(socket.AF_UNIX) as made:
        here = Path.cwd()
        os.chdir(root / "opt")  # the name of a socket is short
        made.bind("socket")
        os.chdir(here)
    for name in ("opt/big", "opt/twin"):
        os.setxattr(root / name, "user.note", b"x" * 2000)
    os.setxattr(root / "many", "user.folder", b"")
    (root / "opt").chmod(0o1777)
    (root / "/".join(["d"] * 100)[:199]).mkdir(parents=True)
    return root


@pytest.fixture(scope="module")
def upper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A layer with changes to the base."""
    root = tmp_path_factory.mktemp("layers") / "upper"
    for folder in ("etc", "many", "opt"):
        (root / folder).mkdir(parents=True)
    (root / "etc/new").write_text("new")
    (root / "many/00007-xxxxxxx").write_text("changed")
    (root / "many/zz").hardlink_to(root / "etc/new")
    (root / "opt").chmod(0o700)
    if os.geteuid() == 0:
        os.mknod(root / "etc/apt", *WHITEOUT)
        os.mknod(root / "opt/twin", *WHITEOUT)
        os.mknod(root / "opt/hard", *WHITEOUT)
    return root


@pytest.fixture(scope="module")
def layers(base: Path, upper: Path) -> list[Path]:
    """Both, packed."""
    return [packed(base), packed(upper)]


def merged(layers: Sequence[Path], target: Path, offset: int = 0) -> Path:
    assert can_merge(layers)
    merge_squashfs(layers, target, offset)
    return target


def mounted(image: Path, folder: Path) -> None:
    """Mount an image with the kernel if allowed, otherwise with the FUSE program that engines use."""
    folder.mkdir()
    kernel: list[str | Path] = ["mount", "-o", "loop,ro", "-t", "squashfs", image, folder]
    if subprocess.run(kernel, capture_output=True, check=False).returncode:
        needs("squashfuse_ll")
        subprocess.run(["squashfuse_ll", image, folder], check=True)


def test_what_is_merged_is_what_the_stack_shows(base: Path, upper: Path, tmp_path: Path) -> None:
    at_level_9 = squashed(base, tmp_path / "base", "-comp", "gzip")  # as SingularityCE packs
    ways = {"levels": [at_level_9, packed(upper)], "one layer": [packed(base)], "both": [packed(base), packed(upper)]}
    for way, layers in ways.items():
        target = merged(layers, tmp_path / "merged")
        superblock = Superblock(*SUPERBLOCK.unpack(target.read_bytes()[: SUPERBLOCK.size]))
        assert (superblock.compression, superblock.block_bytes) == (Compressor.GZIP, 131072), way
        with open_stack(layers) as stack, open_image(target) as image:
            others = list(compare(stack.root, image.root).files)
            assert [other.path for other in others if not other.path.startswith("/dev")] == [], way
            assert image.root.list_dir("/dev") == ()
            assert image.root.read_bytes("/opt/big", 1 << 30) == (base / "opt/big").read_bytes()


def test_other_readers_agree(layers: list[Path], tmp_path: Path) -> None:
    needs("unsquashfs")
    image = merged(layers, tmp_path / "merged")
    reference = tmp_path / "reference"
    argv: list[str | Path] = ["unsquashfs", "-quiet", "-no-progress", "-d", reference, image]
    assert subprocess.run(argv, capture_output=True, check=False).stderr == b""
    with open_image(reference) as unpacked, open_image(image) as read:
        assert [other for other in compare(unpacked.root, read.root).files if other.what != "time"] == []
    assert (reference / "etc/new").samefile(reference / "many/zz")
    assert os.getxattr(reference / "opt/big", "user.note") == b"x" * 2000
    assert (reference / "sparse").stat().st_size == (3 << 20) + 17
    folder = tmp_path / "mounted"
    mounted(image, folder)
    try:
        assert len(os.listdir(folder / "many")) == 1501  # noqa: PTH208 - names alone
        assert (folder / "many/00007-xxxxxxx").read_bytes() == b"changed"
        with open_image(folder) as seen, open_image(image) as read:
            assert list(compare(read.root, seen.root).files) == []
    finally:
        if subprocess.run(["umount", folder], capture_output=True, check=False).returncode:
            subprocess.run(["fusermount", "-u", folder], check=True)


def test_the_same_layers_are_the_same_bytes_and_it_may_begin_anywhere(layers: list[Path], tmp_path: Path) -> None:
    first = merged(layers, tmp_path / "one").read_bytes()
    assert merged(layers, tmp_path / "two").read_bytes() == first
    assert merged(layers, tmp_path / "behind", offset=65536).read_bytes()[65536:] == first
    assert len(first) < 1.05 * sum(layer.stat().st_size for layer in layers) + 8192


def test_layers_that_are_compressed_otherwise_or_damaged_are_not_merged(layers: list[Path], tmp_path: Path) -> None:
    for way in ("zstd", "large-blocks"):
        assert not can_merge([FIXTURES / way, layers[1]])
        with pytest.raises(ImageError, match="with different compression"):
            merge_squashfs([FIXTURES / way, layers[1]], tmp_path / "merged", 0)
        assert not (tmp_path / "merged").exists()
    below = tmp_path / "below"
    data = bytearray(layers[0].read_bytes())
    for at in range(len(data) - 6000, len(data) - 100, 50):
        data[at] ^= 0xFF
    below.write_bytes(data)
    with pytest.raises(ImageError):
        merge_squashfs([below, layers[1]], tmp_path / "merged", 0)
