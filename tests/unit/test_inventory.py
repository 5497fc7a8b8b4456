"""The software of an image: each reader is compared with the authoritative program, and withstands hostile input."""

from __future__ import annotations

import importlib.metadata
import random
import site
import subprocess
from pathlib import Path
from unittest import mock

import pytest
from packaging.utils import canonicalize_name

from lumiimg.build.provenance import bill
from lumiimg.catalog.needs import version_of
from lumiimg.cli.main import main
from lumiimg.fabric.rccl import read_rccl
from lumiimg.image import ImageError, RootFileSystem, open_image
from lumiimg.inventory.components import Inventory, versions_in
from lumiimg.inventory.system import os_release
from tests.shared import fabric_builder, python_image

HERE = [folder for folder in (*site.getsitepackages(), "/usr/lib/python3/dist-packages") if Path(folder).is_dir()]
SITE = "opt/venv/lib/python3.12/site-packages"


@pytest.mark.parametrize("folder", HERE)
def test_distributions_are_those_that_python_itself_finds(folder: str) -> None:
    theirs = {
        canonicalize_name(one.metadata["Name"]): version_of(one.version) or one.version
        for one in importlib.metadata.distributions(path=[folder])
        if one.metadata["Version"]
    }
    with open_image(Path(folder)) as image:
        found = versions_in(image.root, ["/"])
    assert {name: version_of(version) or version for name, version in found.items()} == theirs


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("torch-2.7.1+rocm6.2.dist-info", "Flash_Attn-2.8.3-py3.12.egg-info", "six-1.16.0-py3.egg-info"):
        (tmp_path / SITE / name).mkdir(parents=True)
    (tmp_path / SITE / "torch/_vendor/packaging-22.0.dist-info").mkdir(parents=True)
    (tmp_path / SITE / "~orch-2.6.0.dist-info").mkdir()
    return tmp_path


def test_distributions_are_found_in_any_folder_and_not_inside_others(root: Path) -> None:
    (root / "opt/loose-1.dist-info").mkdir()  # beside it, not above it, is the environment
    (root / "srv/tools/mine-3.dist-info").mkdir(parents=True)
    (root / "proc/1/cwd/theirs-1.dist-info").mkdir(parents=True)
    with open_image(root) as image:
        contents = Inventory(image)
        found = {
            folder: {name: one.version for name, one in of.items()} for folder, of in contents.distributions.items()
        }
        assert found == {
            "/opt": {"loose": "1"},
            "/srv/tools": {"mine": "3"},
            f"/{SITE}": {"torch": "2.7.1+rocm6.2", "flash-attn": "2.8.3", "six": "1.16.0"},
        }
        assert contents.site_packages == f"/{SITE}"
        assert (contents.has["flash-attn"], contents.has["torch-rocm"], contents.has["python"]) == (
            "2.8.3",
            "6.2",
            "3.12",
        )
        assert b"pkg:pypi/mine@3" in bill(contents, (), "x")


@pytest.mark.threat
def test_more_distributions_than_any_image_has_are_left_out_and_counted(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lumiimg.inventory.components.MAX_DISTRIBUTIONS", 2)
    with open_image(root) as image:
        contents = Inventory(image)
        assert len(contents.distributions[f"/{SITE}"]) == 2
        assert b"too many Python distributions" in bill(contents, (), "x")


@pytest.mark.threat
def test_paths_that_fill_the_memory_are_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(200):
        (root / f"{number:0200}").touch()
        (root / f"{number:0200}-link").symlink_to("x")
    monkeypatch.setattr("lumiimg.inventory.components._MAX_BYTES", 100 << 10)
    with open_image(root) as image:
        contents = Inventory(image)
        with pytest.raises(ImageError, match="exceed"):
            _ = contents.gpu_code
        assert b"Python distributions are not listed: the paths of its libraries" in bill(contents, (), "x")


def test_a_check_walks_through_an_image_once_and_reads_each_rccl_once(tmp_path: Path) -> None:
    root = fabric_builder.bundled(tmp_path / "image")
    python_image.python(root, "usr")
    python_image.torch(root, "usr")
    (root / "usr" / python_image.SITE / "torch-2.7.1.dist-info").mkdir()
    with (
        mock.patch.object(RootFileSystem, "_walk", autospec=True, side_effect=RootFileSystem._walk) as walk,
        mock.patch("lumiimg.inventory.components.read_rccl", side_effect=read_rccl) as read,
    ):
        main(["check", str(root), "--level", "static", "--site", "lumi", "--json"])
    walked = [call.args[1] for call in walk.call_args_list]
    assert [path for path in walked if path == "/" or path.startswith("/usr")] == ["/"]
    sizes = [call.args[0].size for call in read.call_args_list]
    assert len(sizes) == len({*sizes}) == 2, "torch's, and the one that says which ROCm there is"


def test_what_a_system_says_of_itself_is_what_a_shell_reads(tmp_path: Path) -> None:
    chance = random.Random(38)  # noqa: S311 - the same values each time
    values = {
        f"KEY_{number}": "".join(chance.choices("aZ0 .-_/:$`\\\"'#=~ü", k=chance.randrange(12)))
        for number in range(300)
    }
    lines = [f"{key}={_quoted(value, chance)}" for key, value in values.items()]
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/os-release").write_text("# a comment\n\nnot an assignment\n" + "\n".join(lines) + "\n")
    script = "\n".join((*lines, *(f'printf "%s\\n" "${key}"' for key in values)))
    shown = subprocess.run(["sh", "-c", script], capture_output=True, check=True).stdout.decode()
    assert shown.splitlines() == list(values.values())
    with open_image(tmp_path) as image:
        assert os_release(image.root) == values


def _quoted(value: str, chance: random.Random) -> str:
    """Return a value as os-release(5) specifies: in double quotes, with special shell characters escaped."""
    if value.isalnum() and value.isascii() and chance.random() < 0.5:
        return value
    if "'" not in value and "\\" not in value and chance.random() < 0.3:
        return f"'{value}'"
    return '"' + "".join(f"\\{c}" if c in '\\"$`' else c for c in value) + '"'
