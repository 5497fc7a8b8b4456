"""`bench import`: what an import asks, counted by a real strace; wrong places in one line; a table and a picture."""

from __future__ import annotations

import json
import shutil
import sys
import venv
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lumiimg.check.startup import ImportSource, Startup, _bound, measure
from lumiimg.check.strace import Counts
from lumiimg.cli.main import main
from lumiimg.report.startup import Scale, json_keys, print_startups, svg
from tests.shared.programs import needs

Capture = pytest.CaptureFixture[str]
MODULES = 40
FOLDER = Startup(
    "/p/site", ImportSource.FOLDER, "/p/site/t/__init__.py", "1.0", "3.11.2", Counts(), Counts(opens=90, failed=20)
)
IMAGE = Startup(
    "/p/a.sif", ImportSource.IMAGE, "/usr/t.py", "1.0", "3.11.2", Counts(opens=95), Counts(opens=5, read_bytes=999)
)
HIDDEN = Startup(
    "/p/b.sif", ImportSource.IMAGE, "/usr/t.py", "1.0", "3.11.2", Counts(opens=95), None, "the kernel reads it"
)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder with a package of many modules, in a folder with an odd name."""
    return package(tmp_path / "a site, with spaces")


def package(site: Path) -> Path:
    folder = site / "many"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("".join(f"from . import m{n}\n" for n in range(MODULES)))
    for number in range(MODULES):
        (folder / f"m{number}.py").write_text("x = 1\n")
    return site


def bench(capsys: Capture, *words: str | Path) -> tuple[int, dict[str, Any], str]:
    code = main(["bench", "import", "--json", "--module", "many", "--python", sys.executable, *map(str, words)])
    out, err = capsys.readouterr()
    return code, json.loads(out), err


def test_each_module_of_a_folder_is_opened_on_its_file_system(site: Path, capsys: Capture) -> None:
    needs("strace")
    code, data, err = bench(capsys, site, "--nodes", "10", "--ranks", "4")
    (place,) = data["places"]
    assert (code, data["schema"], place["kind"]) == (0, 1, "folder")
    assert place["module_file"] == f"{site}/many/__init__.py"
    shared = place["shared"]
    assert shared["files"] >= MODULES + 1
    # a stat and an open of each, at least
    assert 2 * MODULES < shared["metadata"] < place["program"]["metadata"]
    assert place["arithmetic"]["metadata_every_rank"] == shared["metadata"] * 40
    assert place["arithmetic"]["metadata_once_a_node"] == shared["metadata"] * 10
    assert "arithmetic, not measured" in err


def test_the_counts_are_the_same_each_time(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs("strace")
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    environment = {"PATH": f"{Path(shutil.which('strace') or '').parent}", "HOME": "/nowhere"}
    one, other = (measure(site, "many", environment, sys.executable).shared for _ in range(2))
    assert one == other


def test_a_virtual_environment_is_known_by_its_file(tmp_path: Path, capsys: Capture) -> None:
    needs("strace")
    folder = tmp_path / "venv"
    venv.create(folder, symlinks=True)
    package(next(folder.glob("lib/python*/site-packages")))
    code, data, _ = bench(capsys, folder)
    (place,) = data["places"]
    assert (code, place["kind"]) == (0, "venv")
    assert place["shared"]["files"] >= MODULES + 1


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda _: None, "there is no such file or folder"),
        (lambda path: (path / ".singularity.d").mkdir(parents=True), "is a sandbox"),
        (lambda path: path.mkdir(), "`import many` fails there: ModuleNotFoundError: No module named 'many'"),
    ],
)
def test_a_place_that_will_not_do_is_told_in_one_line(make: Any, words: str, tmp_path: Path, capsys: Capture) -> None:
    needs("strace")
    make(tmp_path / "place")
    argv = ["bench", "import", str(tmp_path / "place"), "--module", "many", "--python", sys.executable]
    assert main(argv) == 2
    err = capsys.readouterr().err
    assert words in err
    assert err.count("\n") == 1


def test_a_module_that_comes_from_elsewhere_is_not_measured(site: Path, capsys: Capture) -> None:
    needs("strace")
    assert main(["bench", "import", str(site), "--module", "json", "--python", sys.executable]) == 2
    assert "json is not imported from there, but from" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["os; import x", "a-b", "a..b", "a" * 200])
def test_what_is_no_module_is_not_put_into_a_program(name: str, tmp_path: Path, capsys: Capture) -> None:
    assert main(["bench", "import", str(tmp_path), "--module", name]) == 2
    assert "is not a valid module name" in capsys.readouterr().err


def test_without_strace_it_is_said_what_is_missing(
    site: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("PATH", str(site))
    assert main(["bench", "import", str(site), "--module", "many"]) == 4
    assert "there is no strace here; install it" in capsys.readouterr().err


def test_paths_in_a_container_are_the_images_or_bound() -> None:
    mounts = """\
605 604 0:77 / / rw,relatime - overlay fuse-overlayfs ro
606 605 254:0 /home/a /home/a\\040b rw,nosuid - ext4 /dev/vda rw
607 605 0:5 / /proc rw - proc proc rw
608 605 254:0 /scratch /scratch rw - lustre 10.0.0.1@tcp:/scratch rw
609 605 0:80 / /scratch/image ro - fuse.squashfuse_ll squashfuse_ll ro
a line that is none
"""
    is_bound = _bound(mounts)
    bound = ["/scratch", "/scratch/x/y", "/home/a b/.local/lib", "/scratch/./z"]
    assert [
        path for path in [*bound, "/usr/lib/x", "/proc/self", "/home/a", "/scratch/image/x", "/"] if is_bound(path)
    ] == bound


def test_what_cannot_be_counted_is_said_and_no_answer(capsys: Capture) -> None:
    print_startups([FOLDER, HIDDEN], "t", Scale(10, 8))
    out = capsys.readouterr().out
    assert "b.sif: not counted: the kernel reads it" in out
    assert json_keys([HIDDEN], "t", Scale(10, 8))["places"][0]["shared"] is None


def test_the_picture_is_one_file_that_needs_no_colour_and_no_network() -> None:
    text = svg([FOLDER, IMAGE, HIDDEN], "t", Scale(2978, 8))
    root = ET.fromstring(text)  # noqa: S314 - our own
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "prefers-color-scheme: dark" in text
    words = " ".join(element.text or "" for element in root.iter("{http://www.w3.org/2000/svg}text"))
    assert "90 metadata operations" in words
    assert "b.sif: not counted" in words
    assert "Arithmetic, not measured: with 2,978 nodes x 8 ranks, each number times 23,824." in words
    # the smallest that is there is still seen
    bars = [e for e in root.iter("{http://www.w3.org/2000/svg}rect") if e.get("height") == "22"]
    assert min(float(bar.get("width", 0)) for bar in bars if bar.get("width") != "0") >= 1


@pytest.mark.threat
def test_a_name_in_the_picture_stays_text() -> None:
    text = svg([replace(FOLDER, path="/x/<script>\n\x1b&")], "</text><script>", Scale(1, 1))
    assert "<script" not in text
    ET.fromstring(text)  # noqa: S314 - our own


def test_more_places_than_fit_beside_each_other_are_told_below_each_other(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    print_startups([FOLDER, IMAGE, FOLDER, IMAGE, HIDDEN], "t", Scale(2978, 8))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert sum("of whatever file system" in line for line in lines) == 2
