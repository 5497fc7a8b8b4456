"""What the squashfs reader sees of a file system that the real mksquashfs made is the tree that was packed."""

from __future__ import annotations

import itertools
import os
import re
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lumiimg.image import FileKind, ImageError, ImageKind, RootFileSystem, open_image
from tests.shared.programs import squashed
from tests.shared.squashfs_tree import COMPRESSIONS, FIXTURES, NOT_READ, WAYS, fill


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


def _host_entries(tree: Path) -> dict[str, os.stat_result]:
    found: dict[str, os.stat_result] = {}
    for above, directories, files in os.walk(tree):
        for name in (*directories, *files):
            path = Path(above) / name
            found[f"/{path.relative_to(tree)}"] = path.lstat()
    return found


def test_every_name_attribute_and_byte_is_there(root: RootFileSystem, packed: Path) -> None:
    expected = _host_entries(packed)
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
        for offset in (0, 1, 4095, 131071, 131072, 262143, len(content) - 1, len(content), len(content) + 5):
            for size in (0, 1, 100, 131072, 300_000):
                at = max(0, offset)
                assert file.read_at(at, size) == content[at : at + size]
        file.close()


def test_hard_links_are_one_inode(root: RootFileSystem) -> None:
    assert root.stat("/small").identity == root.stat("/hard").identity
    assert root.open("/small").identity == root.open("/hard").identity
    assert root.stat("/small").identity != root.stat("/setuid").identity


@pytest.mark.parametrize(
    ("path", "resolved"),
    [
        ("/to-small", "/small"),
        ("/to-absolute", "/deep/er/file"),
        ("/to-dir/er/file", "/deep/er/file"),
        ("/to-dir/../small", "/small"),
        ("/up", "/small"),
        ("/above", "/small"),
        ("/../../small", "/small"),
        ("//deep//./er/", "/deep/er"),
        ("/", "/"),
        ("deep/er", "/deep/er"),
    ],
)
@pytest.mark.threat
def test_links_lead_to_files_of_the_image(root: RootFileSystem, path: str, resolved: str) -> None:
    assert root.resolve(path) == resolved


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("/loop", "ELOOP"),
        ("/ping/x", "ELOOP"),
        ("/dangling", "ENOENT"),
        ("/host", "ENOENT"),
        ("/small/x", "ENOTDIR"),
        ("/small/", "ENOTDIR"),
        ("/small/..", "ENOTDIR"),
        ("/through-file", "ENOTDIR"),
        ("/" + "x" * 256, "ENAMETOOLONG"),
        ("/x" * 3000, "ENAMETOOLONG"),
        ("/deep", "EISDIR"),
        ("/fifo", "ENXIO"),
        ("", "ENOENT"),
        ("/a\0b", "ENOENT"),
        ("/\ud800", "ENOENT"),
    ],
)
def test_what_cannot_be_opened_has_the_errno_of_linux(root: RootFileSystem, path: str, error: str) -> None:
    import errno

    with pytest.raises(OSError, match=r".*") as caught:
        root.open(path)
    assert errno.errorcode[caught.value.errno or 0] == error


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
    class Endless:
        """A stand-in: whatever is asked for is a folder."""

        kind = FileKind.DIRECTORY
        root = property(lambda self: self)

        def child(self, directory: object, name: str) -> Endless:
            assert (directory, name) == (self, "d")
            return self

    tree: Any = Endless()
    root = RootFileSystem(tree)
    assert root.is_dir("d/" * 1000)
    with pytest.raises(OSError, match="too long"):
        root.resolve("d/" * 1100)


def test_names_are_found_by_set_and_by_pattern(root: RootFileSystem) -> None:
    assert list(root.find({"file", "hard"})) == ["/hard", "/deep/er/file"] or set(root.find({"file", "hard"})) == {
        "/hard",
        "/deep/er/file",
    }
    assert list(root.find(re.compile("to-.*"))) == ["/to-absolute", "/to-dir", "/to-small"]


def test_list_dir_is_sorted_and_knows_kinds(root: RootFileSystem) -> None:
    listed = root.list_dir("/deep")
    assert [(entry.name, entry.kind) for entry in listed] == [("er", FileKind.DIRECTORY)]
    assert len(root.list_dir("/many")) == 1500


@pytest.mark.threat
def test_file_over_the_limit_is_refused(root: RootFileSystem) -> None:
    with pytest.raises(ImageError, match="limit"):
        root.read_bytes("/large", 1000)


def test_compression_that_is_not_read_is_named() -> None:
    with pytest.raises(ImageError, match="lzo is not supported"):
        open_image(FIXTURES / NOT_READ)


@pytest.mark.parametrize("way", WAYS)
def test_other_ways_to_pack_read_the_same(packed: Path, way: str) -> None:
    with open_image(FIXTURES / way) as image:
        for name in ("large", "sparse", "block", "small", "empty", "many/00042-xx"):
            assert image.root.read_bytes(f"/{name}", 8 << 20) == (packed / name).read_bytes()


def test_opening_reads_next_to_nothing() -> None:
    start = time.perf_counter()
    for _ in range(20):
        open_image(FIXTURES / "gzip").close()
    assert (time.perf_counter() - start) / 20 < 0.02


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


@pytest.mark.parametrize(
    ("offset", "value", "words"),
    [
        (0, b"hsqx", "neither a SIF nor a squashfs"),
        (28, b"\3\0", "version 3"),
        (30, b"\1\0", "version 4.1"),
        (12, b"\0\0\0\0", "block size"),
        (22, b"\x1e\0", "block size"),
        (20, b"\x09\0", "compression 9"),
        (20, b"\x03\0", "lzo is not supported"),
        (20, b"\x05\0", "damaged lz4 block"),
        (40, b"\xff" * 8, "cut off"),
        (64, b"\xff" * 8, "tables"),
        (72, b"\xff" * 8, "tables"),
        (32, b"\xff" * 8, "outside"),
    ],
)
def test_damaged_superblock_is_named(small: bytes, tmp_path: Path, offset: int, value: bytes, words: str) -> None:
    data = bytearray(small)
    data[offset : offset + len(value)] = value
    (tmp_path / "s").write_bytes(data)
    with pytest.raises(ImageError, match=words):
        _visit(tmp_path / "s")


@pytest.mark.parametrize("size", [0, 3, 50, 96, 200])
def test_cut_off_file_is_an_image_error(small: bytes, tmp_path: Path, size: int) -> None:
    (tmp_path / "s").write_bytes(small[:size])
    with pytest.raises(ImageError):
        _visit(tmp_path / "s")


@pytest.mark.threat
def test_directory_inside_itself_is_named(small: bytes, tmp_path: Path) -> None:
    # the entry `e` of /d gets the inode of /d: offsets inside the one metadata block of inodes
    at = small.rindex(b"\1\0\0\0e")
    data = bytearray(small)
    inodes = {entry: _entry_offset(small, entry) for entry in (b"d", b"e")}
    assert at > 0
    place = _entry_place(small, b"e")
    data[place : place + 2] = inodes[b"d"].to_bytes(2, "little")
    (tmp_path / "s").write_bytes(data)
    with pytest.raises(ImageError, match="inside itself"), open_image(tmp_path / "s") as image:
        assert len([*itertools.islice(image.root.walk(), 100)]) < 100


def _entry_place(data: bytes, name: bytes) -> int:
    """Where the directory entry of a name begins: offset, difference, type 1, size 0, name."""
    return data.rindex(b"\1\0\0\0" + name) - 4


def _entry_offset(data: bytes, name: bytes) -> int:
    place = _entry_place(data, name)
    return int.from_bytes(data[place : place + 2], "little")


@pytest.mark.threat
def test_block_that_unpacks_to_more_than_a_block_is_refused() -> None:
    import zlib

    from lz4 import block  # type: ignore[import-untyped]

    from lumiimg.image.squashfs.compression import decompressor
    from lumiimg.image.squashfs.superblock import Compressor

    bomb = zlib.compress(bytes(50 << 20))
    with pytest.raises(ImageError, match="more than the 8192"):
        decompressor(Compressor.GZIP)(bomb, 8192)
    with pytest.raises(ImageError, match="more than the 8192"):
        decompressor(Compressor.LZ4)(block.compress(bytes(8193), store_size=False), 8192)
    with pytest.raises(ImageError, match="damaged lz4"):
        decompressor(Compressor.LZ4)(block.compress(bytes(50 << 20), store_size=False), 8192)
