"""Stacked trees are what overlayfs shows: the kernel's rules, on squashfs file systems."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lumiimg.image import FileKind, ImageError, RootFileSystem
from lumiimg.image.host_files import HostFile
from lumiimg.image.overlay import OverlayTree
from lumiimg.image.squashfs.format import (
    METADATA_BYTES,
    METADATA_HEADER,
    METADATA_STORED,
    NO_TABLE,
    POINTER,
    SUPERBLOCK,
    XATTR_SET,
    XATTR_TABLE,
    Superblock,
)
from lumiimg.image.squashfs.tree import SquashfsTree
from tests.shared.programs import squashed

_WHITEOUT = "c 000 0 0 0 0"


def _pack(folder: Path, name: str, files: dict[str, str], *pseudo: str) -> Path:
    """Pack files; `pseudo` are mksquashfs definitions of what an ordinary user cannot make."""
    tree = folder / f"{name}-tree"
    tree.mkdir()
    for path, content in files.items():
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        if content.startswith("->"):
            (tree / path).symlink_to(content[2:])
        else:
            (tree / path).write_text(content)
    definitions = [word for line in pseudo for word in ("-p", line)]
    return squashed(tree, folder / name, *definitions, "-all-root")


def _layers(folder: Path) -> list[Path]:
    """Pack three layers; the content of a file is the name of its layer."""
    hidden = [f"{name} {_WHITEOUT}" for name in ("gone", "gone-folder", "back", "merged/never-there")]
    marks = ["opaque x trusted.overlay.opaque=y", "opaque-of-users x user.overlay.opaque=y"]
    more = {
        "lower": ("null c 666 0 0 1 3",),
        "middle": (*hidden, *marks, "not-opaque x trusted.overlay.opaque=n"),
        "upper": (f"not-opaque/lower {_WHITEOUT}", "disk b 660 0 0 0 0"),
    }
    layers = {
        "lower": "same gone merged/lower merged/same opaque/lower opaque-of-users/lower not-opaque/lower gone-folder/lower"
        " file folder/lower back",
        "middle": "same merged/middle merged/same opaque/middle opaque-of-users/middle not-opaque/middle file/middle folder"
        " link/middle",
        "upper": "back merged/upper opaque/upper not-opaque/upper",
    }
    files = {name: dict.fromkeys(paths.split(), name) for name, paths in layers.items()}
    files["lower"]["link"] = "->merged"
    return [_pack(folder, name, files[name], *more[name]) for name in layers]


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return _layers(tmp_path_factory.mktemp("overlay"))


@pytest.fixture
def root(packed: list[Path]) -> Iterator[RootFileSystem]:
    sources = [HostFile.from_image(path) for path in packed]
    yield RootFileSystem(OverlayTree([SquashfsTree(source) for source in sources]))
    for source in sources:
        source.close()


def test_every_name_is_that_of_the_uppermost_layer_that_shows_it_and_a_hidden_one_is_not_found(
    root: RootFileSystem,
) -> None:
    contents = {
        entry.path: root.read_bytes(entry.path, 99).decode() for entry in root.walk() if entry.kind is FileKind.FILE
    }
    seen = {
        "lower": "/merged/lower",
        "middle": "/same /merged/middle /merged/same /opaque/middle /opaque-of-users/middle /not-opaque/middle /file/middle"
        " /folder /link/middle",
        "upper": "/merged/upper /opaque/upper /not-opaque/upper /back",
    }
    assert contents == {path: layer for layer, paths in seen.items() for path in paths.split()}
    for path in ("/gone", "/gone-folder/lower", "/opaque/lower", "/not-opaque/lower", "/folder/lower"):
        assert not root.exists(path), path
    assert not root.exists("/merged/never-there")
    assert root.stat("/null").kind is root.stat("/disk").kind is FileKind.DEVICE


def test_opaque_folders_are_known_by_their_attributes(packed: list[Path], tmp_path: Path) -> None:
    lower, middle, _ = (SquashfsTree(HostFile.from_image(path)) for path in packed)
    assert (lower.has_opaque(), middle.has_opaque()) == (False, True)
    fields = SUPERBLOCK.unpack(packed[1].read_bytes()[: SUPERBLOCK.size])
    without = Superblock(*fields)._replace(xattr_table=NO_TABLE)
    (tmp_path / "x").write_bytes(SUPERBLOCK.pack(*without) + packed[1].read_bytes()[SUPERBLOCK.size :])
    tree = SquashfsTree(HostFile.from_image(tmp_path / "x"))
    opaque = tree.child(tree.root, "opaque")
    assert opaque is not None
    assert tree.xattrs(opaque) == {}


@pytest.mark.threat
def test_sets_that_share_very_many_attributes_are_not_all_read(packed: list[Path], tmp_path: Path) -> None:
    data = packed[0].read_bytes()
    fields = Superblock(*SUPERBLOCK.unpack(data[: SUPERBLOCK.size]))
    count, start = 10_000, len(data)
    block = METADATA_HEADER.pack(METADATA_STORED | METADATA_BYTES)
    places = []
    for content, blocks in ((bytes(METADATA_BYTES), 33), (XATTR_SET.pack(0, 32_768, 0) * 512, count // 512 + 1)):
        places = [len(data) + number * (len(block) + METADATA_BYTES) for number in range(blocks)]
        data += (block + content) * blocks
    fields = fields._replace(size_bytes=len(data) + 1000, xattr_table=len(data))
    table = XATTR_TABLE.pack(start, count, 0) + b"".join(POINTER.pack(place) for place in places)
    path = tmp_path / "many"
    path.write_bytes(SUPERBLOCK.pack(*fields) + data[SUPERBLOCK.size :] + table.ljust(1000, b"\0"))
    with pytest.raises(ImageError, match="an inode with 32768 extended attributes"):
        SquashfsTree(HostFile.from_image(path)).has_opaque()
