"""What the squashfs reader sees in a file system made by the real mksquashfs is the tree that was packed."""

from __future__ import annotations

import errno
import itertools
import os
import re
import stat
import tracemalloc
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lz4 import block  # type: ignore[import-untyped]

import lumiimg.image.squashfs.format as disk
from lumiimg.image import FileKind, ImageError, ImageKind, RootFileSystem, open_image
from lumiimg.image.squashfs.blocks import Decompressor
from lumiimg.image.squashfs.format import Compressor
from tests.shared.programs import squashed
from tests.shared.squashfs_tree import COMPRESSIONS, FIXTURES, NOT_READ, STRATEGIES, fill


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = tmp_path_factory.mktemp("tree")
    before = os.umask(0o022)
    fill(tree)
    os.umask(before)
    return tree


@pytest.fixture(params=[*COMPRESSIONS, "folder"])
def root(request: pytest.FixtureRequest, packed: Path) -> Iterator[RootFileSystem]:
    with open_image(packed if request.param == "folder" else FIXTURES / request.param) as image:
        yield image.root


def test_every_name_attribute_and_byte_is_there(root: RootFileSystem, packed: Path) -> None:
    expected = {f"/{path.relative_to(packed)}": path.lstat() for path in packed.rglob("*")}
    walked = {entry.path: entry.kind for entry in root.walk()}
    assert walked.keys() == expected.keys()
    for path, status in expected.items():
        seen = root.stat(path, follow=False)
        assert seen.kind == walked[path]
        assert (seen.uid, seen.gid) in {(0, 0), (status.st_uid, status.st_gid)}
        assert seen.mtime_s == int(status.st_mtime)
        assert seen.permissions == stat.S_IMODE(status.st_mode)
        if stat.S_ISREG(status.st_mode):
            assert (seen.size_bytes, seen.links) == (status.st_size, status.st_nlink)
            assert root.read_bytes(path, 8 << 20) == (packed / path[1:]).read_bytes()
        elif stat.S_ISLNK(status.st_mode):
            assert root.readlink(path) == os.readlink(packed / path[1:])  # noqa: PTH115


def test_ranges_are_those_of_the_file(root: RootFileSystem, packed: Path) -> None:
    for name in ("large", "sparse", "block", "small", "empty"):
        content = (packed / name).read_bytes()
        file = root.open(f"/{name}")
        assert file.size == len(content)
        for at in (0, 1, 4095, 131071, 131072, 262143, len(content), len(content) + 5):
            for size in (0, 1, 100, 131072, 300_000):
                assert file.read_at(at, size) == content[at : at + size], (name, at, size)
        file.close()


def test_names_are_found_and_listed_and_hard_links_are_one_inode(root: RootFileSystem) -> None:
    for look in (root.stat, root.open):
        assert look("/small").identity == look("/hard").identity
    assert root.stat("/small").identity != root.stat("/setuid").identity
    assert set(root.find({"file", "hard"})) == {"/hard", "/deep/er/file"}
    assert list(root.find(re.compile("to-.*"))) == ["/to-absolute", "/to-dir", "/to-small"]
    assert root.list_dir("/deep") == (("er", FileKind.DIRECTORY),)
    assert len(root.list_dir("/many")) == 1500
    with pytest.raises(ImageError, match="limit"):
        root.read_bytes("/large", 1000)


RESOLVED = {
    "/to-small": "/small",
    "/to-absolute": "/deep/er/file",
    "/to-dir/er/file": "/deep/er/file",
    "/to-dir/../small": "/small",
    "/up": "/small",
    "/above": "/small",
    "/../../small": "/small",
    "//deep//./er/": "/deep/er",
    "/": "/",
    "deep/er": "/deep/er",
}
NOT_OPENED = {
    "/loop": errno.ELOOP,
    "/ping/x": errno.ELOOP,
    "/dangling": errno.ENOENT,
    "/host": errno.ENOENT,
    "/small/x": errno.ENOTDIR,
    "/small/": errno.ENOTDIR,
    "/small/..": errno.ENOTDIR,
    "/through-file": errno.ENOTDIR,
    "/" + "x" * 256: errno.ENAMETOOLONG,
    "/x" * 3000: errno.ENAMETOOLONG,
    "/deep": errno.EISDIR,
    "/fifo": errno.ENXIO,
    "": errno.ENOENT,
    "/a\0b": errno.ENOENT,
    "/\ud800": errno.ENOENT,
}


@pytest.mark.threat
def test_links_lead_to_files_of_the_image_and_what_cannot_be_opened_has_the_errno_of_linux(
    root: RootFileSystem,
) -> None:
    assert {path: root.resolve(path) for path in RESOLVED} == RESOLVED
    for path, number in NOT_OPENED.items():
        with pytest.raises(OSError, match=r".*") as caught:
            root.open(path)
        assert caught.value.errno == number, path


@pytest.mark.threat
def test_forty_links_are_followed_and_no_more(tmp_path: Path) -> None:
    (tmp_path / "0").write_bytes(b"end")
    for index in range(1, 43):
        (tmp_path / str(index)).symlink_to(str(index - 1))
    with open_image(tmp_path) as image:
        assert image.root.resolve("/40") == "/0"
        with pytest.raises(OSError, match="symbolic links"):
            image.root.resolve("/41")


@pytest.mark.threat
def test_a_path_a_thousand_deep_is_an_error() -> None:
    endless: Any = SimpleNamespace(kind=FileKind.DIRECTORY, child=lambda directory, _: directory)
    endless.root = endless
    root = RootFileSystem(endless)
    assert root.is_dir("d/" * 1000)
    with pytest.raises(OSError, match="too long"):
        root.resolve("d/" * 1100)


def test_other_ways_to_pack_read_the_same_and_what_is_not_read_is_named(packed: Path) -> None:
    for way in STRATEGIES:
        with open_image(FIXTURES / way) as image:
            for name in ("large", "sparse", "block", "small", "empty", "many/00042-xx"):
                assert image.root.read_bytes(f"/{name}", 8 << 20) == (packed / name).read_bytes(), (way, name)
    with pytest.raises(ImageError, match="lzo is not supported"):
        open_image(FIXTURES / NOT_READ)


@pytest.mark.threat
def test_devices_are_listed_and_never_opened(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    squashed(tmp_path / "tree", tmp_path / "s", "-p", "null c 666 0 0 1 3", "-p", "disk b 660 0 0 8 0")
    with open_image(tmp_path / "s") as image:
        assert image.kind is ImageKind.SQUASHFS
        assert {entry.kind for entry in image.root.walk()} == {FileKind.DEVICE}
        with pytest.raises(OSError, match="No such device"):
            image.root.open("/null")


# Damage


@pytest.fixture(scope="module")
def small() -> bytes:
    return (FIXTURES / "small").read_bytes()


def _visit(path: Path) -> None:
    """Use everything of an image."""
    with open_image(path) as image:
        assert isinstance(image.environment, dict)
        for entry in image.root.walk():
            try:
                image.root.stat(entry.path)
                if entry.kind is FileKind.FILE:
                    image.root.open(entry.path).read_at(0, 65536)
            except OSError:
                continue


DAMAGE = (
    (0, b"hsqx", "neither a SIF nor a squashfs"),
    (28, b"\3\0", "version 3"),
    (30, b"\1\0", "version 4.1"),
    (12, b"\0\0\0\0", "block size"),
    (22, b"\x1e\0", "block size"),
    (20, b"\x09\0", "compression 9"),
    (20, b"\x05\0", "damaged lz4 block"),
    (40, b"\xff" * 8, "cut off"),
    (64, b"\xff" * 8, "tables"),
    (72, b"\xff" * 8, "tables"),
    (32, b"\xff" * 8, "outside"),
)
"""Damage of the superblock: offset, new bytes, and what is reported; the fuzz target squashfs covers the rest."""


def test_what_is_damaged_is_named(small: bytes, tmp_path: Path) -> None:
    for offset, value, words in DAMAGE:
        (tmp_path / "s").write_bytes(small[:offset] + value + small[offset + len(value) :])
        with pytest.raises(ImageError, match=words):
            _visit(tmp_path / "s")
    for size in (0, 3, 50, 96, 200):
        (tmp_path / "s").write_bytes(small[:size])
        with pytest.raises(ImageError):
            _visit(tmp_path / "s")


@pytest.mark.threat
def test_directory_inside_itself_is_named(small: bytes, tmp_path: Path) -> None:
    # the entry `e` of /d gets the inode of /d: offsets inside the one metadata block of inodes
    outer, inner = (small.rindex(b"\1\0\0\0" + name) - 4 for name in (b"d", b"e"))
    (tmp_path / "s").write_bytes(small[:inner] + small[outer : outer + 2] + small[inner + 2 :])
    with pytest.raises(ImageError, match="inside itself"), open_image(tmp_path / "s") as image:
        assert len([*itertools.islice(image.root.walk(), 100)]) < 100


@pytest.mark.threat
def test_block_that_unpacks_to_more_than_a_block_is_refused() -> None:
    for compressor, packed, words in (
        (Compressor.GZIP, zlib.compress(bytes(50 << 20)), "more than the 8192"),
        (Compressor.LZ4, block.compress(bytes(8193), store_size=False), "more than the 8192"),
        (Compressor.LZ4, block.compress(bytes(50 << 20), store_size=False), "damaged lz4"),
    ):
        with pytest.raises(ImageError, match=words):
            Decompressor(compressor).whole(packed, 8192)


@pytest.mark.threat
def test_the_first_bytes_of_a_huge_file_take_no_list_of_all_its_blocks(tmp_path: Path) -> None:
    """Compressed, the list of 16 million holes is a quarter of a megabyte."""

    def metadata(data: bytes) -> bytes:
        packed = (zlib.compress(data[at : at + disk.METADATA_BYTES]) for at in range(0, len(data), disk.METADATA_BYTES))
        return b"".join(disk.METADATA_HEADER.pack(len(block)) + block for block in packed)

    block_bytes, holes = 128 << 10, 16 << 20
    listing = disk.RUN.pack(0, 0, 2) + disk.ENTRY.pack(32, 0, 2, 3) + b"huge"
    folder = disk.COMMON.pack(1, 0o755, 0, 0, 0, 1) + disk.DIRECTORY.pack(0, 2, len(listing) + 3, 0, 1)
    file = disk.COMMON.pack(9, 0o644, 0, 0, 0, 2) + disk.LONG_FILE.pack(
        disk.SUPERBLOCK.size, holes * block_bytes, 0, 1, disk.NO_FRAGMENT, 0, disk.NO_XATTRS
    )
    tables = [metadata(folder + file + bytes(4 * holes)), metadata(listing), metadata(disk.ID.pack(0))]
    inodes, directories, ids, end = itertools.accumulate(map(len, tables), initial=disk.SUPERBLOCK.size)
    fields = disk.Superblock(
        *(disk.MAGIC, 2, 0, block_bytes, 0, Compressor.GZIP, 17, 0, 1, *disk.VERSION, 0, end + disk.POINTER.size),
        *(end, disk.NO_TABLE, inodes, directories, disk.NO_TABLE, disk.NO_TABLE),
    )
    path = tmp_path / "image.squashfs"
    path.write_bytes(disk.SUPERBLOCK.pack(*fields) + b"".join(tables) + disk.POINTER.pack(ids) + bytes(4096))
    with open_image(path) as image:
        tracemalloc.start()
        assert image.root.open("/huge").read_at(0, 4) == bytes(4)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
        tracemalloc.stop()
