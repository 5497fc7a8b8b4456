"""Who may read a file of an image: what the kernel says of the same modes, links and folders."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from lumiimg.cli.main import main
from lumiimg.host.root_queries import stranger_can_list, stranger_can_reach, stranger_can_read, unreadable_files
from lumiimg.image import open_image
from lumiimg.image.compare import compare
from tests.shared import fabric_builder

NOBODY = 65534


@pytest.fixture
def root() -> Iterator[Path]:
    """A folder that any user can reach."""
    with tempfile.TemporaryDirectory(prefix="lumiimg-access-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def put(root: Path, path: str, mode: int, *, folder: int = 0o755) -> str:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("")
    file.chmod(mode)
    file.parent.chmod(folder)
    return f"/{path}"


def ways(root: Path, *paths: str) -> dict[str, str]:
    with open_image(root) as image:
        return dict(unreadable_files(image.root, paths))


def test_the_answer_is_the_kernels(root: Path) -> None:
    paths = [put(root, f"m{mode:03o}/file", mode) for mode in (0o644, 0o640, 0o600, 0o444, 0o400, 0o004, 0o000)]
    paths += [put(root, f"f{mode:03o}/file", 0o644, folder=mode) for mode in (0o711, 0o700, 0o744, 0o750, 0o755)]
    (root / "f700.up").symlink_to("f700/../m644/file")
    (root / "links").mkdir()
    (root / "links/one").symlink_to("../f700/file")
    (root / "links/two").symlink_to("one")
    (root / "into").symlink_to("links/../m644")
    (root / "round").symlink_to("round")
    paths += ["/f700.up", "/links/one", "/links/two", "/into/file", "/m644/../m600/file"]
    stranger = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
    for path in paths:
        asked = subprocess.run(["test", "-r", f"{root}{path}"], check=False, **stranger)  # type: ignore[call-overload]
        assert (path in ways(root, path)) == (asked.returncode != 0), path
        if stranger:
            with open_image(root) as image:
                assert stranger_can_read(image.root, path) == (asked.returncode == 0), path
                for words, can in ((["test", "-e"], stranger_can_reach), (["ls"], stranger_can_list)):
                    for each in (path, path.rpartition("/")[0] or "/links"):
                        if can is stranger_can_reach or image.root.is_dir(each):
                            tried = subprocess.run(
                                [*words, f"{root}{each}"], capture_output=True, check=False, **stranger
                            )  # type: ignore[call-overload]
                            assert can(image.root, each) == (tried.returncode == 0), (words, each)
    assert ways(root, "/round", "/nowhere", "/m644/file/below") == {}
    if stranger:
        assert ways(root, "/links/one", "/m600/file") == {"/links/one": "/f700", "/m600/file": "/m600/file"}


def test_own_files_and_those_of_a_group_are_read(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has built a sandbox with umask 077 can run it; colleagues of a group with umask 007, too."""
    owner, group = root.stat().st_uid, root.stat().st_gid
    private, shared = put(root, "opt/private", 0o600), put(root, "opt/shared", 0o640)
    odd = put(root, "opt/odd", 0o044)

    def asked_by(user: int, *groups: int) -> set[str]:
        monkeypatch.setattr("os.geteuid", lambda: user)
        monkeypatch.setattr("os.getegid", lambda: NOBODY)
        monkeypatch.setattr("os.getgroups", lambda: list(groups))
        return set(ways(root, private, shared, odd))

    mine = owner or 1000
    if owner == 0:
        for path in (private, shared, odd):
            os.chown(f"{root}{path}", mine, group)
    assert asked_by(mine) == {odd}  # an owner without the right has it by no group
    assert asked_by(mine + 1, group) == {private}
    assert asked_by(mine + 1) == {private, shared}
    assert asked_by(0, group) == {private, shared}  # root asks for everybody else


def test_ldd_says_whose_libraries_are_not_for_everybody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    image = fabric_builder.image(tmp_path / "image", plugin=False)
    words = ["ldd", str(image), "/opt/rocm/lib/librccl.so.1"]
    assert main(words) == 0
    assert "not everybody" not in capsys.readouterr().out
    (image / "lib64/libc.so.6").chmod(0o700)
    assert main(words) == 0
    told = "not everybody can load all of this: /lib64/libc.so.6 is closed to others"
    assert told in " ".join(capsys.readouterr().out.split())
    assert main(["ldd", str(image), "--all"]) == 0
    assert "not everybody" not in capsys.readouterr().out


def test_a_folder_that_may_be_listed_and_not_entered_is_walked_past(root: Path) -> None:
    put(root, "listed/folder/file", 0o644)
    (root / "listed").chmod(0o744 if os.geteuid() == 0 else 0o400)
    user = os.geteuid()
    os.seteuid(NOBODY if user == 0 else user)
    try:
        with open_image(root) as image:
            assert {entry.path for entry in image.root.walk()} == {"/listed", "/listed/folder"}
            with pytest.raises(PermissionError):
                compare(image.root, image.root)
    finally:
        os.seteuid(user)


@pytest.mark.parametrize("mode", [0o644, 0])
def test_an_image_whose_root_may_not_be_entered_is_not_one_without_libraries(
    root: Path, mode: int, capsys: pytest.CaptureFixture[str]
) -> None:
    put(root, "usr/lib/libx.so", 0o755)
    root.chmod(mode)
    user = os.geteuid()
    os.seteuid(NOBODY if user == 0 else user)
    try:
        assert main(["ldd", str(root), "--all"]) == 2
    finally:
        os.seteuid(user)
        root.chmod(0o755)
    assert "Permission denied" in capsys.readouterr().err
