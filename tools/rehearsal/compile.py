"""What of a source can be compiled without a GPU's compiler: its files for the host, with the headers of the torch of each plan.

`g++ -fsyntax-only`, with CUDA's runtime headers in the place of HIP's: torch and its extensions are written for those, and
hipify turns the names into HIP's. So a call that a torch does not have is found. Files with code for the GPU are passed over.
"""

from __future__ import annotations

import os
import re
import tarfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.version import Version

from lumiimg.catalog.needs import version_of
from lumiimg.core.decode import read_toml
from lumiimg.core.errors import FailedError
from lumiimg.core.text import count
from lumiimg.engine.process import run
from tools.rehearsal.bases import pythons
from tools.rehearsal.rows import lock_of

if TYPE_CHECKING:
    from tools.rehearsal.archives import Archives
    from tools.rehearsal.headers import Headers
    from tools.rehearsal.rows import Row

PYTHON = "3.12"
"""Whose Python.h is included: torch 2.2 to 2.15 are for it."""
_FOR_GPU = re.compile(r"__global__|__device__|<<<|asm volatile")
_ERROR = re.compile(r"^(\S+:\d+):\d+: (?:fatal )?error: (.*)$", re.MULTILINE)
_LIMIT_S = 900
"""For one file, on a busy machine."""


@dataclass(frozen=True, slots=True)
class HostFiles:
    """The files of a source that are compiled, and how: an entry of `standin/compile.toml`."""

    files: tuple[str, ...]
    """Patterns, below the source's top folder."""
    include: tuple[str, ...] = ()
    """Folders there with headers."""
    abi: str = ""
    """Pattern in CMakeLists.txt of a define for files in a folder `libtorch_stable`: which torch their stable ABI is for."""


HOST_FILES = read_toml(Path(__file__).parent / "standin/compile.toml", dict[str, HostFiles])
"""By the source's name."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """What came of it for one row."""

    how: str = ""
    """What was compiled, and what not, for the table and the ledger."""
    failed: str = ""
    """The first error, with its file and line."""


class Compiler:
    """One for all rows; each source is unpacked once."""

    def __init__(self, archives: Archives, headers: Headers, folder: Path) -> None:
        self._archives = archives
        self._headers = headers
        self._folder = folder
        self._python = pythons().get(PYTHON)
        self._known: dict[tuple[Path, str], str] = {}
        self._one = threading.Lock()

    def row(self, row: Row) -> Compiled:
        """Compile the sources of a row's own layer, with the torch of each of its plans. Raises FailedError."""
        locks = [lock_of(plan) for plan in row.plans]
        own = [layer for lock in locks for layer in lock.layers if layer.name == row.name]
        torches = sorted(
            {release for lock in locks if (release := release_of(lock.versions.get("torch")))}, key=Version
        )
        hows, untried = list[str](), list[str]()
        for name, (layer, source) in {one.name: (entry, one) for entry in own for one in entry.sources}.items():
            what = HOST_FILES.get(name, HostFiles(files=()))
            archive = self._archives.sdist(layer, source) if what.files and torches and self._python else None
            folder = self._unpacked(archive) if archive else None
            files = host_files(folder, what) if folder else []
            if folder is None or not files:
                untried.append(name)
                continue
            for torch in torches:
                if against := self._fault(folder, files, what, torch):
                    return Compiled(failed=f"with torch {torch}: {against}")
            hows.append(f"{count(len(files), 'host file')} of {name} with torch {' and '.join(torches)}")
        hows += [f"nothing of {', '.join(untried)}"] if untried else []
        return Compiled(f"compiled: {'; '.join(hows)}" if hows else "")

    def _fault(self, folder: Path, files: list[Path], what: HostFiles, torch: str) -> str:
        """Return the first error with a torch; it is looked for once, as rows differ in Python, which does not matter here."""
        with self._one:
            if (folder, torch) not in self._known:
                python = [self._python / f"include/python{PYTHON}"] if self._python else []
                include = [self._headers.torch(torch), *self._headers.cuda(), *python]
                self._known[folder, torch] = fault_of(folder, files, what, include)
            return self._known[folder, torch]

    def _unpacked(self, archive: Path) -> Path:
        folder = self._folder / archive.name.removesuffix(".tar.gz")
        with self._one:
            if not folder.is_dir():
                part = folder.with_name(f"{folder.name}.part")
                with tarfile.open(archive) as opened:
                    opened.extractall(part, filter="data")
                (top,) = part.iterdir()
                top.rename(folder)
                part.rmdir()
        return folder


def host_files(folder: Path, what: HostFiles) -> list[Path]:
    """Return the files of a source, below its folder, that have no code for a GPU."""
    found = sorted({path for pattern in what.files for path in folder.glob(pattern)})
    return [path.relative_to(folder) for path in found if not _FOR_GPU.search(path.read_text(errors="replace"))]


def fault_of(folder: Path, files: list[Path], what: HostFiles, include: list[Path]) -> str:
    """Return the first error of the compiler, or nothing. Raises FailedError where it takes too long."""
    words = ["g++", "-std=c++17", "-fsyntax-only", "-w", "-x", "c++", "-DTORCH_EXTENSION_NAME=_C", "-DPy_LIMITED_API=3"]
    found = re.search(what.abi, (folder / "CMakeLists.txt").read_text()) if what.abi else None
    torch, *others = include
    words += [f"-I{path}" for path in (*what.include, torch, torch / "torch/csrc/api/include", *others)]
    for file in files:
        abi = [f"-D{found[1]}"] if found and "libtorch_stable" in file.parts else []
        argv = [*words, *abi, str(file)]
        done = run(argv, env=os.environ, cwd=folder, timeout_s=_LIMIT_S)
        if done.timed_out:
            raise FailedError(f"{file} did not compile within {_LIMIT_S:.0f} s")
        if not done.ok:
            first = _ERROR.search(done.output)
            return f"{first[1]}: {first[2]}" if first else f"{file}: g++ ended with {done.exit_code}"
    return ""


def release_of(torch: str | None) -> str:
    """Return the release of a torch as the package index names it: 2.10.0 of 2.10 and of 2.10.0+rocm7.0; empty: unknown."""
    found = version_of(torch)
    return ".".join(map(str, (*found.release, 0, 0)[:3])) if found else ""
