"""The packages, really installed: the wheel in an empty environment, the one file under several Pythons, EasyBuild.

The dependencies of lumiimg come from the package index of this machine. LUMIIMG_TEST_PYTHONS names more Pythons for
the one file, separated by colons; EasyBuild is searched for on PATH.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import venv
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lumiimg import __version__
from lumiimg.core.errors import ExitCode
from tests.engine.conftest import write_layer
from tests.shared.programs import needs

if TYPE_CHECKING:
    from lumiimg.engine.engine import Engine

pytestmark = pytest.mark.engine

ROOT = Path(__file__).parents[2]
VERSION = f"lumiimg {__version__}\n"
PYTHONS = [sys.executable, *filter(None, os.environ.get("LUMIIMG_TEST_PYTHONS", "").split(":"))]


@dataclass(frozen=True)
class Installed:
    """An installed program, and the folder in which it is started."""

    argv: list[str]
    folder: Path
    variables: dict[str, str]

    def run(self, *words: str | Path, code: int = 0, **variables: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [*self.argv, *words],
            cwd=self.folder,
            env={**self.variables, **variables},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of `make dist`."""
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", folder], cwd=ROOT, check=True)
    subprocess.run([sys.executable, ROOT / ".ci/zipapp.py", wheel_in(folder)], check=True)
    return folder


def wheel_in(folder: Path) -> Path:
    return folder / f"lumiimg-{__version__}-py3-none-any.whl"


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    folder = tmp_path / "empty"
    folder.mkdir()
    return folder


@pytest.fixture
def archive(dist: Path, empty: Path, tmp_path: Path) -> Installed:
    """The one file, run by this Python, with its own folder for temporary files."""
    (tmp_path / "tmp").mkdir(mode=0o700)
    variables = {**os.environ, "TMPDIR": str(tmp_path / "tmp")}
    return Installed([sys.executable, str(dist / f"lumiimg-{__version__}.pyz")], empty, variables)


def unpacked(installed: Installed) -> list[Path]:
    return sorted(Path(installed.variables["TMPDIR"]).glob("lumiimg-*/*"))


# -- the wheel --


def test_the_demo_is_built_and_checked_in_an_empty_folder_by_a_wheel_in_a_bare_environment(
    engine: Engine, dist: Path, empty: Path, tmp_path: Path
) -> None:
    del engine
    venv.create(tmp_path / "venv", with_pip=True)
    subprocess.run([tmp_path / "venv/bin/pip", "install", "--quiet", wheel_in(dist)], check=True)
    program = Installed([str(tmp_path / "venv/bin/lumiimg")], empty, dict(os.environ))
    assert program.run("--version").stdout == VERSION
    program.run("build", "--recipe", "demo", "-o", "demo.sif")
    assert "netprobe" in program.run("show", "demo.sif").stdout
    checked = program.run("check", "demo.sif", code=ExitCode.NO)
    assert "probe" in checked.stdout
    assert subprocess.run([tmp_path / "venv/bin/python", "-m", "lumiimg", "--version"], check=True).returncode == 0


def test_uv_and_pipx_install_the_wheel_as_a_program(dist: Path, empty: Path, tmp_path: Path) -> None:
    uv = Path(sys.executable).with_name("uv")
    places = {"UV_TOOL_DIR": "tools", "UV_TOOL_BIN_DIR": "uv", "PIPX_HOME": "pipx", "PIPX_BIN_DIR": "bin"}
    env = os.environ | {name: str(tmp_path / folder) for name, folder in places.items()}
    words: list[str | Path] = ["install", "--quiet", "--python", sys.executable, wheel_in(dist)]
    for program, folder in (((uv, "tool"), "uv"), ((uv, "tool", "run", "--quiet", "pipx"), "bin")):
        subprocess.run([*program, *words], env=env, check=True)
        installed = Installed([str(tmp_path / folder / "lumiimg")], empty, dict(os.environ))
        assert installed.run("--version").stdout == VERSION


# -- the one file --


@pytest.mark.parametrize("python", PYTHONS)
def test_the_one_file_has_all_that_each_python_needs(
    python: str, archive: Installed, demo: Path, with_plugin: Path
) -> None:
    program = Installed([python, archive.argv[1]], archive.folder, {**archive.variables, "HOME": "/nowhere"})
    assert program.run("--version").stdout == VERSION
    assert "demo" in program.run("list").stdout
    # zstd is compiled for each Python; the loader model reads a whole image
    program.run("check", demo, "--level", "static", code=ExitCode.NO)
    program.run("ldd", with_plugin, "/usr/lib/x86_64-linux-gnu/librccl.so.1")
    code = "import sys; sys.path.insert(0, sys.argv[1]); from lz4 import block; assert block.decompress(block.compress(b'x')) == b'x'"
    (folder,) = unpacked(program)
    subprocess.run([python, "-I", "-c", code, folder], check=True)


def test_the_same_commit_gives_the_same_file(dist: Path, tmp_path: Path) -> None:
    shutil.copy(wheel_in(dist), tmp_path)
    subprocess.run([sys.executable, ROOT / ".ci/zipapp.py", wheel_in(tmp_path)], check=True)
    for name in (f"lumiimg-{__version__}.pyz", f"lumiimg-{__version__}.eb"):
        assert (tmp_path / name).read_bytes() == (dist / name).read_bytes()


def test_eight_first_starts_at_once_leave_one_folder_and_what_a_cleaner_of_tmp_took_is_put_back(
    archive: Installed,
) -> None:
    with ThreadPoolExecutor(8) as threads:
        done = list(threads.map(lambda _: archive.run("--version").stdout, range(8)))
    assert done == [VERSION] * 8
    (folder,) = unpacked(archive)
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
    assert folder.parent.stat().st_mode & 0o777 == 0o700
    (folder / "lumiimg/report/views/catalogue.py").unlink()
    shutil.rmtree(folder / "lumiimg/layers/netprobe")
    left = folder.parent / ".new-killed"
    left.mkdir()
    os.utime(left, (0, 0))
    assert "handshake" in archive.run("show", "netprobe").stdout
    assert unpacked(archive) == [folder]
    assert not left.exists()


def test_a_folder_that_others_may_write_to_is_not_used(archive: Installed, tmp_path: Path) -> None:
    theirs = tmp_path / "tmp" / f"lumiimg-{os.getuid()}"
    theirs.mkdir()
    theirs.chmod(0o777)
    home = tmp_path / "home"
    archive.run("--version", HOME=str(home), XDG_CACHE_HOME="")
    assert list(theirs.iterdir()) == []
    assert len(list((home / ".cache/lumiimg-zipapp").iterdir())) == 1
    error = archive.run("--version", code=ExitCode.MISSING_HERE, HOME="/proc/nowhere", XDG_CACHE_HOME="").stderr
    assert error.count("\n") == 1
    assert re.search(r"cannot be unpacked in \S+/lumiimg-\d+ \(.*\) or /proc/nowhere/.*; TMPDIR names", error)


def test_the_one_file_builds_layers_and_probes_images(
    engine: Engine, archive: Installed, tmp_path: Path, demo: Path
) -> None:
    """Another process of the program does parts of a build, and must find the package, too."""
    del engine
    write_layer(tmp_path / "layers/mine", f"echo {tmp_path} >/opt/mine; rm /etc/issue\n")
    words = f"--base debian-13 --layers {tmp_path}/layers --add mine -o mine.sif".split()
    archive.run("build", *words)
    assert "mine" in archive.run("show", "mine.sif").stdout
    archive.run("check", demo, "--level", "probe", code=ExitCode.NO)


def test_the_one_file_starts_itself_on_other_nodes(archive: Installed, demo: Path, slurm: dict[str, str]) -> None:
    """Each node has its own /tmp: what is unpacked on this one is missing there."""
    needs("sbatch")
    archive.run("--version")
    variables = {**slurm, "TMPDIR": archive.variables["TMPDIR"]}
    program = Installed(archive.argv, archive.folder, variables)
    options = f"--sbatch=-p four --export=ALL,TMPDIR={archive.folder}"
    checked = program.run("check", demo, "--nodes", "2", options, code=ExitCode.NO)
    assert "2 nodes" in checked.stdout
    assert len(list(archive.folder.glob("lumiimg-*/*"))) == 1


# -- EasyBuild --


def test_easybuild_installs_a_module(dist: Path, tmp_path: Path, empty: Path) -> None:
    needs("eb")
    lmod = Path("/usr/share/lmod/lmod/init/bash")
    assert lmod.is_file(), "apt-get install lmod"
    (tmp_path / "modules").mkdir()
    folder = Path(sys.executable).parent
    (tmp_path / "modules/cray-python.lua").write_text(f'-- a stand-in\nprepend_path("PATH", "{folder}")\n')
    script = f"""\
. {lmod}
module use {tmp_path}/modules
eb --prefix {tmp_path}/sw --tmpdir {tmp_path} --modules-tool Lmod {dist}/lumiimg-{__version__}.eb >&2
module use {tmp_path}/sw/modules/all
module load lumiimg/{__version__}
command -v lumiimg
lumiimg --version
"""
    variables = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "TMPDIR": str(tmp_path)}
    done = Installed(["bash", "-c", script], empty, variables).run()
    assert done.stdout == f"{tmp_path}/sw/software/lumiimg/{__version__}/bin/lumiimg\n{VERSION}"
