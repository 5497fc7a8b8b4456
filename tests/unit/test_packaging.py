"""The content of wheel, sdist and the one file, built here offline; tests/engine/test_packages.py installs them."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import lumiimg
from lumiimg.cluster.nodes.slurm import own_command

ROOT = Path(lumiimg.__file__).parents[1]
WHEEL = f"lumiimg-{lumiimg.__version__}-py3-none-any.whl"
PLACES = {
    "lumiimg": "lumiimg",
    "layers": "lumiimg/layers",
    "recipes": "lumiimg/recipes",
    "docs/man": f"lumiimg-{lumiimg.__version__}.data/data/share/man/man1",  # where they have been written
}
"""Folders of a checkout, and their places in the wheel."""
DATE = {"SOURCE_DATE_EPOCH": "1767225600"}


def build(source: Path, target: Path, *words: str) -> Path:
    argv: list[str | Path] = [sys.executable, "-m", "hatchling", "build", "-d", target, *words]
    subprocess.run(argv, cwd=source, env=os.environ | DATE, check=True, capture_output=True)
    return target


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Wheel and sdist of this checkout."""
    return build(ROOT, tmp_path_factory.mktemp("dist"))


def files(folder: Path) -> set[str]:
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    return {name for name in found if "__pycache__" not in name and not name.startswith("_build/")}


@pytest.mark.everything
def test_the_wheel_has_every_file_of_the_package_and_its_data_and_no_other(dist: Path) -> None:
    with zipfile.ZipFile(dist / WHEEL) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
        assert names == {f"{to}/{name}" for source, to in PLACES.items() for name in files(ROOT / source)}
        for name in ("lumiimg/catalog/sites/lumi.toml", "lumiimg/recipes/demo.toml", "lumiimg/py.typed"):
            assert name in names
        probes = {name for name in names if name.startswith("lumiimg/layers/netprobe/") and name.endswith(".c")}
        assert len(probes) >= 3
        assert wheel.read("lumiimg/layers/netprobe/post.sh") == (ROOT / "layers/netprobe/post.sh").read_bytes()


@pytest.mark.everything
def test_the_sdist_has_tests_documents_and_ci_and_gives_the_same_wheel(dist: Path, tmp_path: Path) -> None:
    stem = f"lumiimg-{lumiimg.__version__}"
    subprocess.run(["tar", "-xzf", dist / f"{stem}.tar.gz", "-C", tmp_path], check=True)
    source = tmp_path / stem
    for folder in ("docs", "tests", "tools", ".ci", "layers", "recipes", "lumiimg"):
        assert files(ROOT / folder) - files(source / folder) == set()
    for name in ("Makefile", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "pyproject.toml"):
        assert (source / name).is_file()
    again = build(source, tmp_path / "again", "-t", "wheel")
    assert (again / WHEEL).read_bytes() == (dist / WHEEL).read_bytes()


@pytest.mark.everything
def test_the_page_of_the_package_has_no_link_that_leads_nowhere(dist: Path) -> None:
    with zipfile.ZipFile(dist / WHEEL) as wheel:
        name = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(wheel.read(name).decode())
    assert metadata["Version"] == lumiimg.__version__
    assert metadata.get_all("License-File") == ["LICENSE", "lumiimg/build/apptainer/LICENSE.md"]
    page = str(metadata.get_payload())
    assert page.startswith("# lumiimg\n")
    assert re.findall(r"\]\((?!https?://)[^)]*\)", page) == []
    assert "decisions · installing · upgrading" in " ".join(page.split())  # what a link was called stays


@pytest.mark.everything
def test_no_file_names_the_host_of_a_package_registry(dist: Path, tmp_path: Path) -> None:
    """The settings of a machine choose the registry. The sdist contains all tracked files."""
    hosts = re.compile(rb"pypi[.]org|python[h]osted|(?:deb|security)[.]debian[.]org|registry[.]npmjs|crates[.]io")
    subprocess.run(["tar", "-xzf", dist / f"lumiimg-{lumiimg.__version__}.tar.gz", "-C", tmp_path], check=True)
    content = {name: (tmp_path / name).read_bytes() for name in files(tmp_path)}
    assert len(content) > 1000
    assert not [name for name, text in content.items() if hosts.search(text)]


def test_the_changelog_begins_with_this_version() -> None:
    found = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert found is not None
    assert found[1] == lumiimg.__version__


# -- the one file --


def test_old_pythons_can_parse_the_message_that_they_are_too_old() -> None:
    ast.parse((ROOT / ".ci/zipapp_main.py").read_text(), feature_version=(3, 6))


def test_other_nodes_start_the_one_file_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lumiimg, "archive", "/project/bin/lumiimg.pyz")
    assert own_command() == [sys.executable, "/project/bin/lumiimg.pyz"]


def test_the_versions_in_the_one_file_are_those_that_the_project_allows() -> None:
    pinned = dict(re.findall(r"^([a-z0-9-]+)==([^ ;]+)", (ROOT / ".ci/requirements.txt").read_text(), re.MULTILINE))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "uv" not in pinned  # a program of each machine
    for wish in map(Requirement, project["dependencies"]):
        assert wish.name == "uv" or pinned[canonicalize_name(wish.name)] in wish.specifier
