"""Stand-ins for bases out of registries: Debian with compilers, a Python of this machine, a small /opt/rocm, torch where the
base has it. Bases that are bootstrapped from Debian are built as they are.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import Requirement

from lumiimg.core.errors import FailedError, MissingHereError
from lumiimg.fetch.mirrors import apt_mirror
from tools.rehearsal.archives import archive_files
from tools.rehearsal.index import requires
from tools.rehearsal.server import StandInImage

if TYPE_CHECKING:
    from lumiimg.catalog.layers import Layer
    from tools.rehearsal.index import PackageIndex

STAND_IN = Path(__file__).parent / "standin"
# What AMD's development images have beside ROCm (ROCm/ROCm-docker, dev/Dockerfile-ubuntu-*-complete), libfabric, and the
# libraries that Pythons are linked with.
_PACKAGES = (
    *(
        "autoconf",
        "automake",
        "binutils",
        "ca-certificates",
        "cmake",
        "file",
        "g++",
        "gcc",
        "git",
        "libelf-dev",
        "libtool",
    ),
    *("make", "pkg-config", "libcurl4", "libfabric-dev", "libnuma-dev", "bzip2", "libbz2-1.0", "libffi8", "liblzma5"),
    *("libncursesw6", "libreadline8t64", "libsqlite3-0", "libssl3t64", "libuuid1", "zlib1g", "libstdc++6", "libnsl2"),
)
_LEFT_OUT = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*", "/usr/share/cmake*/Help/*")
SUITE = "trixie"
"""Debian 13: its C library is newer than that of every base, so that no wheel is for a later one."""
_LIMIT_S = 900
_NOT_OF_PYTHON = re.compile(
    r"(^|/)(test|tests|idlelib|turtledemo|tkinter|__pycache__|pkgconfig|share)(/|$)|\.a$|\.pyc$"
)
_SITE = re.compile(r"/site-packages/(?!(pip|setuptools|_distutils_hack|distutils-precedence|README)\b)")
_TORCH = {"rocm-pytorch-2.9.1": "/opt/conda/envs/py_3.10"}
"""Where a base has its torch, if not in /opt/venv. Source: ROCm/ROCm-docker, rocm/pytorch of Ubuntu 22.04."""


def pythons(environment: dict[str, str] | None = None) -> dict[str, Path]:
    """Return the installations of Python of this machine that have headers, by version: those of pyenv, and of uv."""
    environment = dict(os.environ) if environment is None else environment
    home = Path(environment.get("HOME", "/"))
    data = Path(environment.get("XDG_DATA_HOME") or home / ".local/share")
    folders = [Path(environment.get("PYENV_ROOT") or home / ".pyenv") / "versions", data / "uv/python"]
    found: dict[str, Path] = {}
    for folder in folders:
        for header in sorted(folder.glob("*/include/python3.*/Python.h")) if os.access(folder, os.R_OK) else ():
            version = header.parent.name.removeprefix("python")
            if (header.parents[2] / "bin" / f"python{version}").exists():
                found.setdefault(version, header.parents[2])
    return found


class Bases:
    """Stand-ins, made when they are asked for, and stored in a folder; Debian and Pythons, which no tool here changes, in another."""

    def __init__(self, real: Path, folder: Path, index: PackageIndex, torch: dict[str, list[Path]]) -> None:
        self._real = real
        self._folder = folder
        self._index = index
        self._torch = torch
        self._pythons = pythons()

    def why_not(self, base: Layer) -> str:
        """Return why this machine has no stand-in for a base, or nothing."""
        if not is_of_registry(base):
            return "" if apt_mirror("debian") else "no Debian mirror in this machine's apt sources"
        python = base.has.get("python", "")
        return "" if python in self._pythons else f"no Python {python} here" if python else "its Python is not known"

    def image(self, base: Layer) -> StandInImage:
        """Return the stand-in for a base out of a registry: an empty one where `why_not` has a reason, to be named only.

        Raises FailedError, MissingHereError.
        """
        if self.why_not(base):
            return StandInImage((self._empty(),))
        layers = [self._debian(), self._python(base.has["python"]), self._rocm(base.has["rocm"])]
        # compiling each module that is installed would take half the time of a rehearsal
        environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "PIP_NO_COMPILE": "1"}
        if "torch" in base.has:
            place = _TORCH.get(base.name, "/opt/venv")
            environment["PATH"] = f"{place}/bin:{environment['PATH']}"
            layers.append(self._environment(place, base))
        return StandInImage(tuple(layers), environment)

    def _empty(self) -> Path:
        target = self._folder / "empty.tar"
        _pack(target, iter(()))
        return target

    def _debian(self) -> Path:
        named = hashlib.sha256(" ".join([*_PACKAGES, *_LEFT_OUT]).encode()).hexdigest()[:12]
        target = self._real / f"{SUITE}-{named}.tar"
        if target.exists():
            return target
        mirror = apt_mirror("debian")
        if mirror is None or shutil.which("mmdebstrap") is None:
            raise MissingHereError("bases are made by mmdebstrap, from the Debian mirror of this machine's apt sources")
        part = target.with_suffix(".part.tar")
        words: list[str | Path] = [
            "mmdebstrap",
            "--quiet",
            "--variant=apt",
            *(f"--dpkgopt=path-exclude={path}" for path in _LEFT_OUT),
            f"--include={','.join(_PACKAGES)}",
            SUITE,
            part,
            mirror,
        ]
        _run(words)
        return part.rename(target)

    def _python(self, version: str) -> Path:
        target = self._real / f"python-{version}.tar"
        if not target.exists():
            prefix = self._pythons[version]
            _pack(target, ((_place(path), prefix / path) for path in _files(prefix)))
            with tarfile.open(target, "a") as archive:
                for name in ("python3", "python"):
                    link = tarfile.TarInfo(f"usr/local/bin/{name}")
                    link.type, link.linkname = tarfile.SYMTYPE, f"python{version}"
                    archive.addfile(link)
        return target

    def _rocm(self, release: str) -> Path:
        target = self._folder / f"rocm-{release}.tar"
        if not target.exists():
            root = self._folder / f"rocm-{release}"
            _run([STAND_IN / "rocm.sh", root, release])
            for path, data in self._binding().items():
                file = root / "share/amd_smi" / path
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(data)
            _pack(target, ((f"opt/rocm/{path.relative_to(root)}", path) for path in sorted(root.rglob("*"))))
            shutil.rmtree(root)
        return target

    def _binding(self) -> dict[str, bytes]:
        return archive_files(self._index.file("amdsmi", "-7.0.0.tar.gz"))

    def _environment(self, place: str, base: Layer) -> Path:
        """Return the torch of a base, with its triton and what they require, in the environment where the base has it."""
        target = self._folder / f"torch-of-{base.name}.tar"
        if target.exists():
            return target
        python = base.has["python"]
        root = self._folder / f"torch-of-{base.name}" / place[1:]
        site = root / f"lib/python{python}/site-packages"
        wheel = torch_of(self._torch["torch"], base.has["torch"], base.has["rocm"])
        wheels = [wheel, *wheels_beside(wheel, self._torch)]
        words: list[str | Path] = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--find-links"]
        words += [wheel.parent, "--python-version", python, "--only-binary", ":all:", "--target", site, *wheels]
        _run(words)
        (root / "bin").mkdir()
        (root / "pyvenv.cfg").write_text(
            f"home = /usr/local/bin\ninclude-system-site-packages = true\nversion = {python}\n"
        )
        for name in ("python", "python3"):
            (root / "bin" / name).symlink_to(f"/usr/local/bin/python{python}")
        top = self._folder / f"torch-of-{base.name}"
        _pack(target, ((str(path.relative_to(top)), path) for path in sorted(top.rglob("*"))))
        shutil.rmtree(top)
        return target


def _run(words: list[str | Path]) -> None:
    """Run a program. Raises FailedError with its last line."""
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=_LIMIT_S)
    if done.returncode:
        raise FailedError(f"{words[0]}: {(done.stderr.strip().splitlines() or ['it failed'])[-1]}")


def is_of_registry(base: Layer) -> bool:
    """Whether a base comes out of a registry; a file of the machine that it is for is not here."""
    agents = {bootstrap.agent for bootstrap in base.bootstraps}
    return "docker" in agents and agents <= {"docker", "localimage"}


def torch_of(wheels: list[Path], version: str, rocm: str) -> Path:
    """Return the wheel of a release for the ROCm of the base, or the newest one for another; that of a set as the last."""
    of_release = [wheel for wheel in wheels if re.match(rf"torch-{re.escape(version)}(\.\d+)*(\+|$)", wheel.name)]
    same = [wheel for wheel in of_release if f"+rocm{'.'.join(rocm.split('.')[:2])}" in wheel.name]
    return (same or sorted(of_release, key=lambda wheel: ("+rocm" in wheel.name, wheel.name)))[-1]


def wheels_beside(torch: Path, wheels: dict[str, list[Path]]) -> Iterator[Path]:
    """Yield the wheels that are for this torch alone: one of a project, for the same ROCm if there is one."""
    version = torch.name.split("-")[1]
    for project in ("torchvision", "torchaudio"):
        fitting = [wheel for wheel in wheels[project] if _takes(wheel, version)]
        fitting.sort(key=lambda wheel: wheel.name.split("-")[1].partition("+")[2] == version.partition("+")[2])
        yield from fitting[-1:]


def _takes(wheel: Path, torch: str) -> bool:
    asked = (Requirement(text) for text in requires(wheel))
    return any(one.name == "torch" and one.specifier.contains(torch, prereleases=True) for one in asked)


def _place(path: str) -> str:
    """Return where a file of a Python goes: its library to where the loader looks without a cache."""
    name = path.removeprefix("lib/")
    return f"usr/lib/x86_64-linux-gnu/{name}" if name.startswith("libpython") else f"usr/local/{path}"


def _files(prefix: Path) -> Iterator[str]:
    for path in sorted(prefix.rglob("*")):
        name = str(path.relative_to(prefix))
        if not _NOT_OF_PYTHON.search(name) and not _SITE.search(f"/{name}") and (path.is_file() or path.is_symlink()):
            yield name


def _pack(target: Path, entries: Iterator[tuple[str, Path]]) -> None:
    def plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.mtime = info.uid = info.gid = 0
        info.uname = info.gname = ""
        return info

    part = target.with_suffix(".part")
    with tarfile.open(part, "w") as archive:
        for name, path in entries:
            archive.add(path, name, recursive=False, filter=plain)
    part.rename(target)
