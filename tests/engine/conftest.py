"""Real parts: the engine of this machine, a real Debian base that is built once, a stand-in net plugin on real libfabric.

Images are kept in the user's ordinary cache, so a second run of these tests builds only what the tests themselves change.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lumiimg.engine.engine import Engine, find_engine
from lumiimg.errors import MissingHereError
from tests.shared.validation import told_by

STANDIN = Path(__file__).parent / "standin"


@dataclass(frozen=True)
class Result:
    """How `lumiimg` ended."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        return json.loads(self.out)


def lumiimg(*argv: str | Path, env: dict[str, str] | None = None, cwd: Path | None = None) -> Result:
    """Run the program as a user does; its JSON is held against the schemas of the command."""
    done = subprocess.run(
        [sys.executable, "-m", "lumiimg", *map(str, argv)],
        env=os.environ | (env or {}),
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )
    if "--json" in argv and done.stdout:
        told_by(str(argv[0]), done.stdout)
    return Result(done.returncode, done.stdout, done.stderr)


def inside(engine: Engine, image: Path, *argv: str) -> str:
    """Run a program in the container and return what it printed on standard output."""
    done = subprocess.run([engine.path, "exec", image, *argv], capture_output=True, text=True, check=True)
    return done.stdout


@pytest.fixture(scope="session")
def engine() -> Engine:
    try:
        return find_engine(os.environ)
    except MissingHereError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("images")


@pytest.fixture(scope="session")
def demo(images: Path) -> Path:
    """debian-13 + netprobe: a real RCCL 2.13.4, no plugin."""
    return built(images / "demo.sif", "--recipe", "demo")


@pytest.fixture(scope="session")
def bare(images: Path) -> Path:
    """debian-13 alone: no probes in it."""
    return built(images / "bare.sif", "--base", "debian-13")


@pytest.fixture(scope="session")
def with_plugin(images: Path) -> Path:
    """debian-13 + netprobe + the stand-in plugin, built by the script of the aws-ofi-nccl layer."""
    source = standin_archive(images / "a stand-in's archive.tar.gz")
    return built(
        images / "with-plugin.sif", "--recipe", "demo", "--add", "aws-ofi-nccl", "--source", f"aws-ofi-nccl={source}"
    )


@pytest.fixture(scope="session")
def with_old_plugin(images: Path) -> Path:
    """The stand-in with net API v4 to v6 only, as old plugins have, built by the script of the aws-ofi-rccl layer."""
    source = standin_archive(images / "old.tar", old_abi=True)
    return built(
        images / "old-plugin.sif", "--recipe", "demo", "--add", "aws-ofi-rccl", "--source", f"aws-ofi-rccl={source}"
    )


def standin_archive(path: Path, *, old_abi: bool = False) -> Path:
    """Pack the stand-in's sources; the same bytes each time, so that the layer is built once."""

    def plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.mtime = info.uid = info.gid = 0
        info.uname = info.gname = ""
        info.mode = 0o755 if info.isdir() or info.name.endswith("configure") else 0o644
        return info

    # Without gzip's time stamp: uncompressed, which tar(1) tells by itself.
    with tarfile.open(path, "w") as archive:
        archive.add(STANDIN, "standin-1.0", filter=plain, recursive=False)
        for file in sorted(STANDIN.iterdir()):
            archive.add(file, f"standin-1.0/{file.name}", filter=plain)
        if old_abi:
            archive.addfile(plain(tarfile.TarInfo("standin-1.0/old-abi")))
    return path


def only_from_registry(base: Path) -> None:
    """Leave of a base (a layer's folder) the image of a registry alone, as where there is no debootstrap."""
    head, *bootstraps = (base / "layer.toml").read_text().split("[[bootstrap]]")
    docker = next(entry for entry in bootstraps if '"docker"' in entry)
    (base / "layer.toml").write_text(f"{head}[[bootstrap]]{docker}")


def built(path: Path, *argv: str | Path) -> Path:
    result = lumiimg("build", *argv, "-o", path)
    assert result.code == 0, result.err
    assert path.is_file()
    return path
