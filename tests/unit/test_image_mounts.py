"""An image with binds appears as the kernel would show it."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import pytest

from lumiimg.image import FileKind, open_image
from tests.shared.programs import squashed

if TYPE_CHECKING:
    from pathlib import Path

    from lumiimg.image import RootFileSystem


@pytest.fixture
def roots(tmp_path: Path) -> tuple[RootFileSystem, RootFileSystem]:
    """An image and a host."""
    image, host = tmp_path / "image", tmp_path / "host"
    (image / "usr/lib").mkdir(parents=True)
    (image / "usr/lib/real.so.1.2").write_text("image")
    (image / "usr/lib/real.so").symlink_to("real.so.1.2")
    (image / "lib").symlink_to("usr/lib")
    (image / "data").mkdir()
    (image / "data/hidden").write_text("image")
    (image / "loop").symlink_to("loop")
    (host / "opt/cray").mkdir(parents=True)
    (host / "opt/cray/libfabric.so").write_text("host")
    (host / "opt/cray/up").symlink_to("/usr/lib/real.so")
    (host / "lib").mkdir()
    (host / "lib/cxi.so").write_text("host")
    return open_image(image).root, open_image(host).root


def text(root: RootFileSystem, path: str) -> str:
    return root.read_bytes(path, 100).decode()


def test_a_file_lands_on_what_the_link_leads_to_and_every_name_shows_it(
    roots: tuple[RootFileSystem, RootFileSystem],
) -> None:
    image, host = roots
    seen = image.mounted([host.mount("/lib/cxi.so", "/lib/real.so")])
    assert [text(seen, path) for path in ("/usr/lib/real.so.1.2", "/lib/real.so", "/usr/lib/real.so")] == ["host"] * 3
    assert seen.resolve("/lib/real.so") == "/usr/lib/real.so.1.2"
    assert text(image, "/lib/real.so") == "image"


def test_a_folder_hides_what_was_there_and_its_links_are_followed_in_the_container(
    roots: tuple[RootFileSystem, RootFileSystem],
) -> None:
    image, host = roots
    seen = image.mounted([host.mount("/opt/cray", "/data")])
    assert [entry.name for entry in seen.list_dir("/data")] == ["libfabric.so", "up"]
    assert not seen.exists("/data/hidden")
    assert text(seen, "/data/up") == "image"


def test_folders_that_lead_to_a_target_are_made(roots: tuple[RootFileSystem, RootFileSystem]) -> None:
    image, host = roots
    seen = image.mounted([host.mount("/lib/cxi.so", "/opt/own/libcxi.so.1")])
    assert seen.stat("/opt/own").kind is FileKind.DIRECTORY
    assert [entry.name for entry in seen.list_dir("/")] == ["data", "lib", "loop", "opt", "usr"]
    assert list(seen.list_dir("/opt/own")) == [("libcxi.so.1", FileKind.FILE)]
    assert "/opt/own/libcxi.so.1" in [found.path for found in seen.walk()]
    assert not seen.exists("/opt/own/other")


def test_a_target_or_a_source_that_cannot_be_is_an_error(roots: tuple[RootFileSystem, RootFileSystem]) -> None:
    image, host = roots
    for target, number in (("/loop", errno.ELOOP), ("/lib/real.so/x", errno.ENOTDIR)):
        with pytest.raises(OSError, match=target) as raised:
            image.mounted([host.mount("/lib/cxi.so", target)])
        assert raised.value.errno == number
    with pytest.raises(FileNotFoundError):
        host.mount("/nothing", "/data")


def test_a_later_mount_hides_what_was_mounted_below_it_and_a_mount_in_a_mount_is_seen(
    roots: tuple[RootFileSystem, RootFileSystem],
) -> None:
    image, host = roots
    inner, outer = host.mount("/lib", "/data/own"), host.mount("/opt/cray", "/data")
    for seen in (image.mounted([outer, inner]), image.mounted([outer]).mounted([inner])):
        assert [entry.name for entry in seen.list_dir("/data")] == ["libfabric.so", "own", "up"]
        assert text(seen, "/data/own/cxi.so") == "host"
    for seen in (image.mounted([inner, outer]), image.mounted([inner]).mounted([outer])):
        assert [entry.name for entry in seen.list_dir("/data")] == ["libfabric.so", "up"]


def test_files_of_two_images_are_never_one(tmp_path: Path) -> None:
    """The loader treats two names of one file as one library."""
    for name in ("image", "venv"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
        squashed(tmp_path / name, tmp_path / f"{name}.sqfs")
    with open_image(tmp_path / "image.sqfs") as image, open_image(tmp_path / "venv.sqfs") as venv:
        both = image.root.mounted([venv.root.mount("/", "/venv")])
        for look in (both.stat, both.open):
            assert look("/file").identity != look("/venv/file").identity
            assert look("/file").identity == look("//file").identity
