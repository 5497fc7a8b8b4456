"""A folder as an image: no link in it leads out of it, and only regular files are opened."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lumiimg.image import FolderTree, ImageError, ImageKind, open_image


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
    # nor if a link appears between the check and the opening, even to the same file
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
    with pytest.raises(OSError, match="it was replaced while it was opened"):
        tree.open(node)


def test_walk_leaves_out_what_engines_mount_over_and_a_link_to_the_folder_may_be_given(tmp_path: Path) -> None:
    for name in ("proc/1", "sys/x", "dev/x", "opt/x"):
        (tmp_path / "real" / name).mkdir(parents=True)
    (tmp_path / "link").symlink_to("real")
    with open_image(tmp_path / "link") as image:
        assert {entry.path for entry in image.root.walk()} == {"/proc", "/sys", "/dev", "/opt", "/opt/x"}
        assert image.description.architecture is None
