"""A folder as an image: no link of it leads out of it, and nothing but regular files is opened."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lumiimg.elf.loader import Process
from lumiimg.image import ImageError, ImageKind, RootFileSystem, open_image
from lumiimg.image.folder import FolderTree

if TYPE_CHECKING:
    from lumiimg.elf.reader import FileSystem


def test_root_of_an_image_is_a_file_system_for_the_loader_model(tmp_path: Path) -> None:
    with open_image(tmp_path) as image:
        fs: FileSystem = image.root
        outcome = Process(fs).start("/nowhere")
        assert outcome.errors == ("/nowhere: cannot open shared object file: No such file or directory",)


@pytest.mark.threat
def test_links_never_reach_the_host(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("host")
    image_folder = tmp_path / "image"
    (image_folder / "etc").mkdir(parents=True)
    (image_folder / "file").symlink_to(outside / "secret")
    (image_folder / "dir").symlink_to(outside)
    (image_folder / "up").symlink_to("../outside/secret")
    (image_folder / "etc/up").symlink_to("../../../../../../outside/secret")
    with open_image(image_folder) as image:
        assert image.kind is ImageKind.FOLDER
        for path in ("/file", "/dir/secret", "/up", "/etc/up", "/../outside/secret"):
            with pytest.raises(FileNotFoundError):
                image.root.open(path)
        assert not image.root.exists("/dir/secret")
    # nor where a link comes between a look and the opening, be it to the very same file
    (image_folder / "moved").write_text("image")
    tree = FolderTree(image_folder)
    node = tree.child(tree.root, "moved")
    assert node is not None
    (image_folder / "moved").rename(outside / "moved")
    (image_folder / "moved").symlink_to(outside / "moved")
    with pytest.raises(OSError, match="moved"):
        tree.open(node)


@pytest.mark.threat
def test_a_file_that_is_cut_short_or_replaced_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 4096)
    (tmp_path / "other").write_bytes(b"y" * 4096)
    tree = FolderTree(tmp_path)
    node = tree.child(tree.root, "file")
    assert node is not None
    file = tree.open(node)
    assert file.read_at(4000, 4096) == b"x" * 96, "the end of a file is none"
    os.truncate(tmp_path / "file", 10)
    with pytest.raises(ImageError, match="became shorter"):
        file.read_at(0, file.size)
    file.close()
    (tmp_path / "other").replace(tmp_path / "file")
    with pytest.raises(OSError, match="another file came in its place"):
        tree.open(node)


def test_link_to_the_folder_itself_may_be_given(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real/a").write_text("a")
    (tmp_path / "link").symlink_to("real")
    with open_image(tmp_path / "link") as image:
        assert image.root.read_bytes("/a", 10) == b"a"


def test_walk_leaves_out_what_engines_mount_over(tmp_path: Path) -> None:
    for name in ("proc/1", "sys/x", "dev/x", "opt/x"):
        (tmp_path / name).mkdir(parents=True)
    with open_image(tmp_path) as image:
        walked = {entry.path for entry in image.root.walk()}
    assert walked == {"/proc", "/sys", "/dev", "/opt", "/opt/x"}


def test_real_root_is_an_image() -> None:
    with open_image(Path("/")) as image:
        assert isinstance(image.root, RootFileSystem)
        assert image.root.is_dir("/usr")
        assert not image.root.is_file("/usr")
        assert image.architecture is None
