"""Who may read a file of an image: compared with the kernel for the same modes, links and folders."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lumiimg.cli.main import main
from lumiimg.host.import_closure import imported_files
from lumiimg.host.module_finder import ModuleFinder
from lumiimg.host.python_process import PythonProcess
from lumiimg.image import RootFileSystem, open_image
from lumiimg.image.compare import compare
from lumiimg.image.host_files import FolderTree
from tests.shared import fabric_builder, python_image
from tests.shared.closed_roots import IS_ROOT, ClosedRoots, difference, strangers_mode
from tests.shared.programs import sampled

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


def can_read(root: RootFileSystem, path: str) -> bool:
    try:
        root.open(path).close()
    except OSError:
        return False
    return True


def can_list(root: RootFileSystem, path: str) -> bool:
    try:
        return bool(root.list_dir(path)) or True
    except OSError:
        return False


def obstacles(root: Path, *paths: str) -> dict[str, str]:
    with open_image(root) as image:
        found = {path: image.root.for_users().obstacle(path) for path in paths}
    return {path: each.path for path, each in found.items() if each is not None}


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
    if IS_ROOT:
        who: dict[str, Any] = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
    else:
        who = {}
        for place in (root, *sorted(root.rglob("*"), reverse=True)):
            if not place.is_symlink():
                place.chmod(strangers_mode(place.stat().st_mode & 0o777))
    asked = [
        (path, words, can)
        for path in (*paths, "/links", "/f711", "/f744")
        for words, can in (("test -r", can_read), ("test -e", RootFileSystem.exists), ("ls", can_list))
    ]
    with open_image(root) as image:
        for path, words, can in asked:
            done = subprocess.run([*words.split(), f"{root}{path}"], capture_output=True, check=False, **who)
            if words == "test -e" or (words == "ls") == image.root.is_dir(path):
                assert can(image.root.for_users(), path) == (done.returncode == 0), (words, path)
    assert obstacles(root, "/round", "/nowhere", "/m644/file/below") == {}
    assert obstacles(root, "/links/one", "/m600/file") == {"/links/one": "/f700", "/m600/file": "/m600/file"}
    for folder in root.iterdir():
        if not folder.is_symlink():
            folder.chmod(0o755)


def test_what_an_owner_or_a_group_may_read_is_there_and_in_the_way_of_others(root: Path) -> None:
    """The builder of a sandbox with umask 077 can run it; with umask 007, so can colleagues of the group."""
    paths = [put(root, f"opt/{mode:03o}", mode) for mode in (0o600, 0o640, 0o604, 0o200)]
    tree = FolderTree(root)
    for owner, group, closed in ((0, 0, {0o600, 0o640, 0o200}), (0, 44, {0o600, 0o200}), (1000, 0, {0o200})):
        tree.stat = lambda node: FolderTree.stat(tree, node)._replace(uid=owner, gid=group)  # type: ignore[method-assign]  # noqa: B023
        for_users = RootFileSystem(tree).for_users()
        assert {mode for path in paths if not can_read(for_users, path) for mode in [int(path[5:], 8)]} == closed
        seen = {path: each.is_for_some for path in paths if (each := for_users.obstacle(path))}
        assert seen == {path: int(path[5:], 8) not in closed for path in paths if not path.endswith("4")}


def test_ldd_answers_as_the_loader_of_a_stranger(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image = fabric_builder.image(tmp_path / "image", plugin=False)
    words = ["ldd", str(image), "/opt/rocm/lib/librccl.so.1"]
    assert main(words) == 0
    capsys.readouterr()
    (image / "lib64/libc.so.6").chmod(0o700)
    assert main(words) == (1 if IS_ROOT else 3)
    output = " ".join(capsys.readouterr().out.split())
    if IS_ROOT:
        assert "/lib64/libc.so.6 exists, but only root may read it: /lib64/libc.so.6 has mode 0700" in output
    else:
        assert "loads only for users who may read /lib64/libc.so.6" in output
    assert main(["ldd", str(image), "--all"]) == (1 if IS_ROOT else 0)


def judged(image: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, tuple[str, str]]]:
    code = main(["check", str(image), "--level", "static", "--json"])
    found = json.loads(capsys.readouterr().out)["findings"]
    return code, {each["id"]: (each["severity"], each["summary"]) for each in found if each["severity"] != "info"}


@pytest.mark.parametrize(
    ("closed", "what"),
    [
        ("lib64/ld-linux-x86-64.so.2", "/opt/rocm/lib/librccl.so.1 cannot be loaded in this image"),
        ("lib64", "/opt/rocm/lib/librccl.so.1 cannot be loaded in this image"),
        ("opt", "no process can load an RCCL"),
        ("usr/lib64", "RCCL cannot load its plugin"),
        ("usr/lib64/librccl-net.so", "RCCL cannot load its plugin"),
    ],
)
def test_what_a_job_cannot_read_is_named_with_what_opens_it(
    closed: str, what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """If root owns it, nobody else may read it, and the job fails. Otherwise the owner may be the user. One finding."""
    image = fabric_builder.image(tmp_path / "image")
    before = judged(image, capsys)[1]
    (image / closed).chmod(0o700 if (image / closed).is_dir() else 0o750)
    if IS_ROOT:
        code, found = judged(image, capsys)
        assert (code, found["library.not-for-all"][0]) == (1, "problem")
        assert re.fullmatch(f"{what}: only root may read /{closed}.*", found["library.not-for-all"][1])
        for place in (image / closed).rglob("*"):
            os.chown(place, 1000, 1000, follow_symlinks=False)
        os.chown(image / closed, 1000, 1000)
    code, found = judged(image, capsys)
    assert (code, found.pop("library.not-for-all")[0]) == (3, "unknown")
    assert found == before


def test_a_folder_on_the_way_to_the_plugin_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A loader that cannot enter a folder tries it for one library and never again."""
    image = fabric_builder.image(tmp_path / "image")
    (image / "opt/plugin/lib").mkdir(parents=True)
    (image / "usr/lib64/librccl-net.so").rename(image / "opt/plugin/lib/librccl-net.so")
    python_image.environment(image, LD_LIBRARY_PATH="/opt/plugin/lib:/opt/rocm/lib")
    (image / "opt/plugin").chmod(0o700)
    code, found = judged(image, capsys)
    assert code == (1 if IS_ROOT else 3)
    message = (
        "only root may read /opt/plugin/lib/librccl-net.so" if IS_ROOT else "not everyone may read /opt/plugin/lib"
    )
    assert message in found["library.not-for-all"][1]
    assert "plugin.absent" not in found


def test_an_image_of_umask_077_has_one_finding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image = fabric_builder.image(tmp_path / "image")
    before = judged(image, capsys)[1]
    for place in (image, *image.rglob("*")):
        if not place.is_symlink():
            place.chmod(0o700)
    code, found = judged(image, capsys)
    assert code == (1 if IS_ROOT else 3)
    assert found.keys() - before.keys() == {"library.not-for-all"}


_MODULES = {
    "top.py": "import middle, other.part as part\nfrom other import (  # (two)\n    again as again,\n)\nmiddle.name, part.os\n\ndef later():\n    import lazy\n",
    "middle/__init__.py": "from . import low\nfrom .low import name\nif 0:\n    import lazy\n",
    "middle/low.py": "from middle import __doc__\nname = 1\n",
    "other/__init__.py": "own = 1\n",
    "other/again.py": "from . import own\n",
    "other/own.py": "",
    "other/part.py": "import os, sys\n",
    "lazy.py": "",
}


def import_as_stranger(folder: Path) -> bool:
    """Import `top` in a fork of this process that owns nothing in a folder; return whether that succeeds."""
    child = os.fork()
    if not child:
        try:
            if IS_ROOT:
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            sys.path.insert(0, str(folder))
            sys.dont_write_bytecode = True
            importlib.import_module("top")
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitpid(child, 0)[1] == 0


def test_an_import_fails_where_a_file_that_it_takes_is_closed(root: Path) -> None:
    """For every file and folder of an import, as in CPython itself."""
    site = root / "site"
    for name, text in _MODULES.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(text)
    failed = 0
    for place in (site, *sorted(site.rglob("*"))):
        for mode in (0o700, 0o711, 0o744, 0o755):
            place.chmod(strangers_mode(mode))
            with open_image(root) as image:
                seen = image.root.for_users()
                finder = ModuleFinder(seen, (), (3, 11))
                taken = imported_files(PythonProcess(seen, "/python", finder, ("/site",)), "top")
            assert (taken.denied is None) == import_as_stranger(site), (place, oct(mode), taken)
            failed += taken.denied is not None
            place.chmod(0o755)
    assert failed > 12


def test_the_loader_model_is_the_loader_of_a_stranger(root: Path) -> None:
    """In small roots with some files and folders closed: what starts, what is loaded from where, every word."""
    roots = ClosedRoots(root)
    for seed in sampled(range(3000), 60):
        case = roots.make(seed)
        try:
            assert difference(case) is None, (seed, case)
        finally:
            roots.open_again(case)


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
