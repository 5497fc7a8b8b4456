"""Files of an image over which an engine mounts something are missing at run time, whatever path leads to them."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lumiimg.cli.main import main
from lumiimg.fabric.path import HOST_LIB_DIR
from lumiimg.host.snapshot import ContainerEngine, read_snapshot, write_snapshot
from tests.shared.elf_builder import library, runpath
from tests.shared.fabric_builder import PLUGIN, bundled, host, image, snapshot
from tests.shared.programs import EVERYTHING
from tests.shared.python_image import environment, python, torch

if TYPE_CHECKING:
    from collections.abc import Callable

FABRIC = "usr/lib64/libfabric.so.1"
NET = "usr/lib64/librccl-net.so"
ELSEWHERE = "/nowhere/at/all"


def moved(root: Path, name: str, folder: str) -> Path:
    """Move a file of the image to another folder in it."""
    target = root / folder / name.rpartition("/")[2]
    target.parent.mkdir(parents=True, exist_ok=True)
    return (root / name).rename(target)


def by_link(root: Path, folder: str, name: str = NET) -> None:
    path = moved(root, name, folder)
    (root / name).symlink_to(f"/{path.relative_to(root)}")


def by_search_path(root: Path, folder: str) -> None:
    moved(root, NET, folder)
    environment(root, LD_LIBRARY_PATH=f"/opt/rocm/lib:/{folder}")


def by_runpath(root: Path, folder: str) -> None:
    library(root / NET, moved(root, FABRIC, folder), *runpath(f"/{folder}"), source=PLUGIN)


def python_of_its_own(root: Path, folder: str) -> None:
    python(root, folder)
    environment(root, LD_LIBRARY_PATH="/opt/rocm/lib", PATH=f"/{folder}/bin:/usr/bin")


def python_by_link(root: Path, folder: str) -> None:
    python(root, folder)
    (root / "opt/venv/bin").mkdir(parents=True)
    (root / "opt/venv/bin/python3").symlink_to(f"/{folder}/bin/python3")
    environment(root, LD_LIBRARY_PATH="/opt/rocm/lib", PATH="/opt/venv/bin")


def rocm_by_link(root: Path, folder: str) -> None:
    """Move the whole ROCm to a folder, and leave a link."""
    (root / folder).mkdir(parents=True)
    (root / "opt/rocm").rename(root / folder / "rocm")
    (root / "opt/rocm").symlink_to(f"/{folder}/rocm")


PLANTED: dict[str, Callable[[Path, str], None]] = {
    "link": by_link,
    "search path": by_search_path,
    "runpath": by_runpath,
    "program": python_of_its_own,
    "program by a link": python_by_link,
    "rocm by a link": rocm_by_link,
}


def some_of(*folders: str) -> list[tuple[str, str]]:
    """Return pairs of ways and folders, each at least once; in `make test-all`, all combinations."""
    if EVERYTHING:
        return [*itertools.product(PLANTED, folders)]
    return [*zip(PLANTED, itertools.cycle(folders), strict=False)]


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> str:
    """The home of the current user; a folder that no image contains."""
    monkeypatch.setenv("HOME", "/home/alice")
    monkeypatch.setenv("PWD", ELSEWHERE)
    return "home/alice"


def answer(root: Path, capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
    capsys.readouterr()
    main(["check", str(root), "--level", "static", "--json", *more])
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    return report


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize(("way", "folder"), some_of("tmp/build", "var/tmp/x", "home/alice/own", "dev/shm"))
def test_what_an_engine_mounts_over_is_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], way: str, folder: str
) -> None:
    root = bundled(tmp_path / "image")
    PLANTED[way](root, folder)
    report = answer(root, capsys)
    # a missing libfabric may come from the host
    assert report["answer"] == ("undecided" if way == "runpath" else "no")
    reported = [finding for finding in report["findings"] if folder in json.dumps(finding)]
    assert any("mount" in (finding["cause"] or "") for finding in reported), report["findings"]


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize(("way", "folder"), some_of("opt/own", "run/own", "home/bob/own", "root/own", "usr/local/tmp"))
def test_what_no_engine_mounts_over_is_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], way: str, folder: str
) -> None:
    root = bundled(tmp_path / "image")
    PLANTED[way](root, folder)
    report = answer(root, capsys)
    # a search path into a home is a separate open question
    is_open = way == "runpath" and folder.startswith(("home", "root"))
    assert report["answer"] == ("undecided" if is_open else "no-obstacle"), report["findings"]


@pytest.mark.usefixtures("home")
def test_a_torch_that_nothing_imports_since_it_is_mounted_over_leaves_the_answer_open(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = bundled(tmp_path / "image")
    python(root, "usr")
    environment(root, LD_LIBRARY_PATH="/opt/rocm/lib", PATH="/home/alice/venv/bin:/usr/bin")
    assert answer(root, capsys)["answer"] == "no-obstacle"
    torch(root, "home/alice/venv")
    report = answer(root, capsys)
    (found,) = [finding for finding in report["findings"] if finding["id"] == "program.unknown"]
    assert report["answer"] == "undecided"
    assert "torch/lib/libtorch_hip.so is in the image, but not in the container" in found["summary"]


def on_node(tmp_path: Path, name: str = "nid001", **settings: str) -> str:
    """Write the snapshot of a node whose engine has these settings."""
    engine = ContainerEngine("Apptainer", "1.4.5", "/etc/apptainer/apptainer.conf", settings)
    return str(snapshot(host(tmp_path / "node"), host=name, engine=engine))


@pytest.mark.parametrize(
    ("folder", "settings", "variables", "answer_is"),
    [
        ("tmp/own", {"mount tmp": "no"}, {}, "no-obstacle"),
        ("tmp/own", {"mount tmp": "yes"}, {}, "no"),
        ("tmp/own", {}, {"APPTAINER_NO_MOUNT": "dev, tmp"}, "no-obstacle"),
        ("dev/own", {"mount dev": "minimal"}, {}, "no"),
        ("home/alice/own", {"mount home": "no"}, {}, "no-obstacle"),
        ("home/alice/own", {}, {"SINGULARITY_NO_HOME": "1"}, "no-obstacle"),
        # on another machine, homes may be elsewhere
        ("home/alice/own", {}, {}, "undecided"),
        ("users/alice/own", {}, {}, "undecided"),
        ("srv/own", {"bind path": "/etc/localtime, /software:/srv"}, {}, "undecided"),
        (
            "srv/own",
            {"bind path": "/etc/localtime, /software:/srv"},
            {"APPTAINER_NO_MOUNT": "bind-paths"},
            "no-obstacle",
        ),
        ("srv/own", {"bind path": "/etc/localtime, /srv/other"}, {}, "no-obstacle"),
        ("srv/own", {}, {"PWD": "/srv"}, "undecided"),
        ("srv/own", {"mount hostfs": "yes"}, {}, "undecided"),
        ("srv/own", {"mount hostfs": "no"}, {}, "no-obstacle"),
        ("opt/own", {}, {"PWD": "/opt"}, "no-obstacle"),
    ],
)
def test_the_configuration_of_the_engine_decides(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    home: str,
    folder: str,
    settings: dict[str, str],
    variables: dict[str, str],
    answer_is: str,
) -> None:
    assert home
    root = bundled(tmp_path / "image")
    by_link(root, folder)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    report = answer(root, capsys, "--host", on_node(tmp_path, **settings))
    assert report["answer"] == answer_is, report["findings"]


def test_what_is_bound_of_a_host_is_hidden_by_no_folder_that_may_be_mounted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = image(tmp_path / "image")
    for name in ("librccl.so.1", "libhsa-runtime64.so"):
        moved(root, f"opt/rocm/lib/{name}", "usr/lib64")
    environment(root)
    node, words = snapshot(host(tmp_path / "node")), ["check", str(root), "--level", "static", "--json", "--host"]
    with_opt = replace(read_snapshot(node), engine=ContainerEngine("Apptainer", "1.4.5", None, {"bind path": "/opt"}))
    write_snapshot(with_opt, tmp_path / "opt.json")
    for variables, file in (
        ({}, tmp_path / "opt.json"),
        ({"PWD": HOST_LIB_DIR}, node),
        ({"APPTAINER_BIND": "/x:/opt"}, node),
    ):
        with monkeypatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            assert main([*words, str(file)]) == 0, (variables, capsys.readouterr())


def test_bind_and_explain_and_ldd_see_what_check_sees(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], home: str
) -> None:
    assert home
    root, node = bundled(tmp_path / "image"), on_node(tmp_path)
    assert main(["explain", str(root), "--host", node]) == 0
    by_link(root, "tmp/own")
    capsys.readouterr()
    assert main(["explain", str(root), "--host", node]) == 1
    assert "librccl-net.so" not in json.dumps(answer(root, capsys, "--host", node)["path"]["plugin"])
    assert main(["ldd", str(root), "/usr/lib64/librccl-net.so"]) == 2
    message = capsys.readouterr().err
    assert "is in the image, but not in the container: the engine mounts another /tmp over it" in message
    assert main(["ldd", str(root), "/usr/lib64/librccl-net.so", "--bind", f"{root}/tmp/own:/tmp/own"]) == 0


def test_ldd_names_the_file_that_is_hidden_and_the_one_that_may_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, home: str
) -> None:
    assert home
    root = bundled(tmp_path / "image")
    by_runpath(root, "tmp/own")
    assert main(["ldd", str(root), "/usr/lib64/librccl-net.so", "--json"]) == 1
    (note,) = json.loads(capsys.readouterr().out)["notes"]
    assert note.startswith(
        "/tmp/own/libfabric.so.1 of the image is not in the container: the engine mounts another /tmp"
    )
    moved(root, "tmp/own/libfabric.so.1", "usr/lib64")
    by_runpath(root, "srv/own")
    monkeypatch.setenv("PWD", "/srv/own")
    assert main(["ldd", str(root), "/usr/lib64/librccl-net.so", "--json"]) == 0
    (note,) = json.loads(capsys.readouterr().out)["notes"]
    assert note.startswith("/srv/own/libfabric.so.1 may be missing in the container: a job started in this folder")
