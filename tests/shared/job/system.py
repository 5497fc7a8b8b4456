"""What a job stands on, and can be run: a real glibc and a real Python, of this machine or of a Debian release."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

from lumiimg.core.access import BytesInMemory
from lumiimg.elf import read_elf
from tests.shared.elf_builder import LOADER, library, program, rpath, runpath
from tests.shared.fabric_builder import c_library, versioned
from tests.shared.programs import needs
from tests.shared.python_image import FIRST_MODULES

_MODULES = [
    "__future__",
    "_collections_abc",
    "_py_abc",
    "_sitebuiltins",
    "_weakrefset",
    "abc",
    "codecs",
    "collections",
    "contextlib",
    "ctypes",
    "encodings",
    "enum",
    "functools",
    "genericpath",
    "heapq",
    "io",
    "keyword",
    "linecache",
    "operator",
    "os",
    "posixpath",
    "re",
    "reprlib",
    "site",
    "sre_compile",
    "sre_constants",
    "sre_parse",
    "stat",
    "struct",
    "tokenize",
    "token",
    "traceback",
    "types",
    "warnings",
    "weakref",
    "fnmatch",
    "ipaddress",
    "ntpath",
    "pathlib",
    "threading",
    "_colorize",
    "codeop",
    "copyreg",
    "copy",
    "textwrap",
    "zipimport",
]
"""Of the standard library: what Python needs to start, ctypes, and what start-up code of packages imports."""
_EXTENSIONS = ("_ctypes", "_struct", "_heapq", "_bisect")
_PACKAGES = {
    "encodings": ("__init__", "aliases", "utf_8", "utf_8_sig", "ascii", "latin_1"),
    "ctypes": ("__init__", "_endian", "_layout"),
    "collections": ("__init__", "abc"),
    "re": ("__init__", "_casefix", "_compiler", "_constants", "_parser"),
    "importlib": ("__init__", "_abc", "_bootstrap", "_bootstrap_external", "machinery", "util"),
    "urllib": ("__init__", "parse"),
    "pathlib": ("__init__", "_local", "_abc", "_os", "types"),
}
_C_LIBRARY = ("libdl.so.2", "libm.so.6", "libpthread.so.0", "librt.so.1", "libutil.so.1")

_FUNCTIONS = (
    *("dlopen", "dlsym", "dlerror", "getenv", "setenv", "strcmp", "strcasecmp", "strlen", "strstr", "strchr"),
    *("snprintf", "open", "read", "write", "close", "_exit"),
)
"""Of the C library, what the stand-ins of RCCL, the plugin and libfabric call."""

LOCALE = "/usr/lib/locale/C.utf8/LC_CTYPE"
DEBIANS = {"bullseye": "2.31", "bookworm": "2.36", "trixie": "2.41"}
"""Releases of Debian, and their glibc; the newest is that of the machine that runs the tests."""


@dataclass(frozen=True)
class SystemFiles:
    """A glibc and a Python, as files of this machine."""

    name: str
    python: Path
    """The interpreter, without a search path of its own."""
    version: str
    """`3.11`."""
    is_debian: bool
    """Whether its site.py is Debian's, which knows no site-packages outside virtual environments."""
    libraries: tuple[Path, ...]
    """What belongs into `folder`: the C library, and all that Python and ctypes need."""
    folder: str
    """Where the loader looks by default: `/usr/lib/x86_64-linux-gnu`."""
    loader: Path
    modules: Path
    """Its standard library, cut down to what starts it and ctypes."""
    glibc: str
    locale: Path | None = None
    """LC_CTYPE of C.UTF-8, as every base of images has it."""
    variants: dict[str, Path] = field(default_factory=dict, compare=False)

    def interpreter(self, kind: str = "", search: str = "$ORIGIN/../lib") -> Path:
        """Return the interpreter with an `rpath` or a `runpath` in it, as conda's programs have; plain with neither."""
        if not kind:
            return self.python
        if kind not in self.variants:
            made = self.python.with_name(f"{self.python.name}-{kind}")
            shutil.copy(self.python, made)
            force = ["--force-rpath"] if kind.startswith("rpath") else []
            subprocess.run(["patchelf", *force, "--set-rpath", search, made], check=True)
            self.variants[kind] = made
        return self.variants[kind]

    def needing(self, python: Path, name: str) -> None:
        """Let an interpreter need one library more."""
        subprocess.run(["patchelf", "--add-needed", name, python], check=True)


class StandInFiles(SystemFiles):
    """A C library and a Python to ask the model about: nothing of them runs, and no program of the machine is needed."""

    def interpreter(self, kind: str = "", search: str = "$ORIGIN/../lib") -> Path:
        way = {"": (), "rpath": rpath(search), "runpath": runpath(search)}[kind.partition("-")[0]]
        return program(self.python.with_name(f"python-{kind}"), *self.libraries, *way) if way else self.python

    def needing(self, python: Path, name: str) -> None:
        program(python, *self.libraries, library(self.python.with_name(name)))


def stand_in_system(folder: Path) -> StandInFiles:
    libc = c_library(folder, 41, functions=_FUNCTIONS)
    files = [libc, *(versioned(folder / name, defines=("GLIBC_2.2.5",)) for name in ("libdl.so.2", "libm.so.6"))]
    names = ("PyModule_Create2", "Py_IsInitialized", "Py_NoSiteFlag")
    files.append(library(folder / "libpython3.12.so.1.0", source="".join(f"int {name};" for name in names)))
    for name in FIRST_MODULES:
        (folder / "modules" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "modules" / name).touch()
    return StandInFiles(
        name="stand-ins",
        python=program(folder / "python", *files),
        version="3.12",
        is_debian=False,
        libraries=tuple(files),
        folder="/usr/lib64",
        loader=folder / LOADER[1:],
        modules=folder / "modules",
        glibc="2.41",
    )


def system_here(folder: Path, program: str = sys.executable) -> SystemFiles:
    """Return that of this machine, with the Python that runs the tests or another one; `folder` takes its files."""
    needs("patchelf", "ldd")
    if not Path(LOADER).exists():
        needs(LOADER)
    words = [
        program,
        "-c",
        "import os, sys, sysconfig; print(os.path.realpath(sys.executable), sysconfig.get_path('stdlib'))",
    ]
    asked = subprocess.run(words, check=True, capture_output=True, text=True)
    python, library = map(Path, asked.stdout.split())
    extensions = [file for name in _EXTENSIONS for file in (library / "lib-dynload").glob(f"{name}.cpython-*.so")]
    libraries = {file.name: file for of in (python, *extensions) for file in _needed(of)}
    c_library = libraries["libc.so.6"].parent
    libraries |= {name: c_library / name for name in _C_LIBRARY if (c_library / name).exists()}
    libraries.pop(Path(LOADER).name, None)
    place = str(c_library) if str(c_library).startswith("/usr/") else f"/usr{c_library}"
    site = (library / "site.py").read_text()
    return _made(folder, "this machine", python, library, extensions, libraries, place, Path(LOADER), site)


def debian_system(root: Path, name: str, folder: Path) -> SystemFiles:
    """Return that of a Debian whose packages lie unpacked in `root`."""
    needs("patchelf")
    python = next(path for path in (root / "usr/bin").glob("python3.*") if re.fullmatch(r"python3\.\d+", path.name))
    library = root / "usr/lib" / python.name
    extensions = [file for each in _EXTENSIONS for file in (library / "lib-dynload").glob(f"{each}.cpython-*.so")]
    places = [root / below / "x86_64-linux-gnu" for below in ("lib", "usr/lib")]
    there = {file.name: file for place in places for file in place.glob("*.so*") if file.is_file()}
    loader = there.pop(Path(LOADER).name)
    libraries = {name: there[name] for name in _C_LIBRARY}
    wanted = [python, *extensions, *libraries.values()]
    while wanted:
        needed = read_elf(BytesInMemory(wanted.pop().read_bytes())).needed
        new = {name: there[name] for name in needed if name in there and name not in libraries}
        libraries |= new
        wanted += new.values()
    site = (library / "site.py").read_text()
    return _made(folder, name, python, library, extensions, libraries, "/usr/lib/x86_64-linux-gnu", loader, site, root)


def fetch_debian(suite: str, mirror: str, root: Path) -> Path:
    """Unpack the C library and the Python of a Debian release into a folder."""
    needs("mmdebstrap")
    packages = "--include=python3-minimal,libpython3-stdlib"
    words = ["mmdebstrap", "--quiet", "--variant=extract", "--skip=check/empty", packages, suite, "-", mirror]
    # as an archive: its own root is another user, who may not enter a folder of ours
    archive = subprocess.run(words, check=True, stdout=subprocess.PIPE).stdout
    root.mkdir()
    subprocess.run(
        ["tar", "--extract", "--no-same-owner", "--exclude=./dev", "--directory", root], input=archive, check=True
    )
    return root


def _made(
    folder: Path,
    name: str,
    python: Path,
    library: Path,
    extensions: list[Path],
    libraries: dict[str, Path],
    place: str,
    loader: Path,
    site: str,
    root: Path = Path("/"),
) -> SystemFiles:
    """Copy all to one file system, from where images take it by hard links."""
    folder.mkdir(parents=True)
    interpreter = folder / "python"
    shutil.copy(python, interpreter)
    subprocess.run(["patchelf", "--remove-rpath", interpreter], check=True)
    (folder / "libraries").mkdir()
    copied = tuple(Path(shutil.copy(file, folder / "libraries" / each)) for each, file in sorted(libraries.items()))
    modules = folder / "modules"
    (modules / "lib-dynload").mkdir(parents=True)
    for each in _MODULES:
        if (library / f"{each}.py").is_file():
            shutil.copy(library / f"{each}.py", modules)
    for package, names in _PACKAGES.items():
        if (library / package).is_dir():
            (modules / package).mkdir()
            for each in names:
                if (library / package / f"{each}.py").is_file():
                    shutil.copy(library / package / f"{each}.py", modules / package)
    for file in extensions:
        shutil.copy(file, modules / "lib-dynload")
    # where a Python was built is none of an image's folders
    own = [*(modules / "lib-dynload").iterdir(), *(file for file in copied if file.name.startswith("libpython"))]
    subprocess.run(["patchelf", "--remove-rpath", *own], check=True)
    loader = Path(shutil.copy(loader, folder / "loader"))
    locale = root / LOCALE[1:]
    found = re.search(r"python(3\.\d+)", str(library))
    glibc = re.search(rb"stable release version 2\.(\d+)", (folder / "libraries/libc.so.6").read_bytes())
    if found is None or glibc is None:
        pytest.fail(f"not a Python on glibc: {library}")
    return SystemFiles(
        name=name,
        python=interpreter,
        version=found[1],
        is_debian="dist-packages" in site,
        libraries=copied,
        folder=place,
        loader=loader,
        modules=modules,
        glibc=f"2.{glibc[1].decode()}",
        locale=Path(shutil.copy(locale, folder / "locale")) if locale.is_file() else None,
    )


@cache
def _needed(file: Path) -> tuple[Path, ...]:
    printed = subprocess.run(["ldd", file], capture_output=True, text=True, check=True).stdout
    return tuple(Path(path) for path in re.findall(r"(/\S+) \(0x", printed))
