"""Which Python an image has: what a name starts, and in which folders that looks for modules.

Sources: CPython Modules/getpath.py (prefix, pyvenv.cfg, PYTHONHOME) and Lib/site.py (site-packages, `.pth` files);
Debian's patch of site.py (dist-packages). The user's own folder (~/.local) is not of the image, and is not counted.
"""

from __future__ import annotations

import re
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lumiimg.core.errors import one_safe_line
from lumiimg.image import DEFAULT_PATH, FileKind, ImageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from lumiimg.image import Image, RootFileSystem

_HEAD_BYTES = 256
_MAX_TEXT_BYTES = 64 << 10
_MAX_PTH_FILES, _MAX_FOLDERS = 200, 200
_EXECUTABLE, _RUN = 0o111, 0o1
_PROGRAM = re.compile(r".*/python(3\.\d{1,2})")
_LIBRARY = re.compile(r"python3\.([0-9]{1,2})t?")
_ADDS_SITE = re.compile(r"import site; site\.addsitedir\('(/[^'\\]{1,500})'\)")
_CHANGES_PATH = re.compile(r"\bsys\s*\.\s*path\b|\baddsitedir\b|\bmeta_path\b")
_FRAMEWORKS = frozenset(("torch", "jax"))


@dataclass(frozen=True, slots=True)
class Program:
    """One program of an image."""

    name: str
    path: str
    """In the image, by the folder in which it is found first."""


def search_path(image: Image) -> tuple[str, ...]:
    """Return the folders in which a process in the container looks for programs."""
    path = image.environment.get("PATH", DEFAULT_PATH)
    return tuple(dict.fromkeys(folder.rstrip("/") for folder in path.split(":") if folder.startswith("/")))


def find_program(root: RootFileSystem, name: str, folders: Sequence[str]) -> Program | None:
    """Return the program that a name starts there, or that is the first not to start for its mode; else None."""
    first: Program | None = None
    for folder in folders:
        with suppress(OSError, ImageError):
            status = root.stat(path := f"{folder}/{name}")
            if status.kind is FileKind.FILE and status.gives(_RUN):
                return Program(name, path)
            if status.kind is FileKind.FILE and status.permissions & _EXECUTABLE:
                first = first or Program(name, path)
    return first


@dataclass(frozen=True, slots=True)
class Python:
    """A Python of an image."""

    path: str
    folder: str | None
    """The folder that is put in front of the image's own search path; None where Python is on it."""


def version_of_program(root: RootFileSystem, path: str) -> str | None:
    """Return the version of a Python, `3.12`, by the name of the file that a path leads to; None where it has none."""
    with suppress(OSError, ImageError):
        if named := _PROGRAM.fullmatch(root.resolve(path)):
            return named[1]
    return None


def python_of(image: Image, site: str | None, has: Iterable[str]) -> Python | None:
    """Return the Python that counts: that of the site folder with torch or JAX, else the first on the search path.

    Images with an environment of conda that is not activated (AMD's for LUMI) have another one on their path.
    """
    folders = search_path(image)
    prefix, inside, _ = (site or "").partition("/lib/python")
    if inside and not _FRAMEWORKS.isdisjoint(has) and f"{prefix}/bin" not in folders:
        found = find_program(image.root, "python3", (f"{prefix}/bin",))
        if found is not None:
            return Python(found.path, f"{prefix}/bin")
    found = find_program(image.root, "python3", folders) or find_program(image.root, "python", folders)
    return Python(found.path, None) if found else None


def note_of_program(name: str, image: Image, python: Python | None) -> str | None:
    """Return what to say of a program that is in no folder of the image's search path; None of one that is there."""
    own = (python.folder,) if python and python.folder else ()
    if "/" in name or find_program(image.root, name, (*own, *search_path(image))):
        return None
    instead = f": its Python is {python.path}" if python and name.startswith("python") else ""
    return f"{name} is in no folder of the image's PATH{instead}"


@dataclass(frozen=True, slots=True)
class Interpreter:
    """One interpreter."""

    path: str
    """As it is started."""
    folders: tuple[str, ...]
    """Where it looks for modules that are installed, in its order."""
    doubt: str | None = None
    """What of the image may add to these folders, or take others first, by code that is not run here."""


class NoPythonError(Exception):
    """There is none by a name, or which one it is does not show in files; the message says why."""


def read_python(root: RootFileSystem, path: str, environment: Mapping[str, str]) -> Interpreter:
    """Return the interpreter that a file is, `environment` being that of its process.

    Raises NoPythonError for a script, which may start any other, and for what is not Python.
    """
    try:
        executable = root.resolve(path)
        with closing(root.open(executable)) as file:
            head = file.read_at(0, min(file.size, _HEAD_BYTES))
    except (OSError, ImageError) as error:
        raise NoPythonError(f"{path} leads nowhere in the image, or cannot be read") from error
    if head[:2] == b"#!":
        shown = one_safe_line(head.split(b"\n")[0].decode("utf-8", "replace"))
        raise NoPythonError(f"{path} is a script ({shown}): which program it starts is not known")
    if head[:4] != b"\x7fELF":
        raise NoPythonError(f"{path} is not a program")
    own, configuration = _configuration(root, path)
    home = configuration.get("home")
    base = (_prefix(root, f"{home}/python3") if home else None) or _prefix(root, executable)
    if home := environment.get("PYTHONHOME"):
        base, own = home.split(":")[0].rstrip("/"), None
    libraries = _libraries(root, base) if base is not None else []
    if base is None or not libraries:
        raise NoPythonError(f"{path} is not a Python, or its standard library is not in the image")
    named = _PROGRAM.fullmatch(executable)
    library = next((one for one in libraries if named and one == f"python{named[1]}"), libraries[0])
    search = _ModuleSearch(
        root, [folder for folder in environment.get("PYTHONPATH", "").split(":") if folder[:1] == "/"]
    )
    if own is not None:
        search.add_sites_of(own, library)
    if own is None or configuration.get("include-system-site-packages", "").lower() == "true":
        search.add_sites_of(base, library)
    search.look_for_code([f"{base}/{lib}/{library}" for lib in ("lib", "lib64")])
    return Interpreter(path, tuple(search.folders), search.doubt)


def _configuration(root: RootFileSystem, path: str) -> tuple[str | None, dict[str, str]]:
    """Return (folder, values) of the pyvenv.cfg of an interpreter: beside it, or one folder up; of none, no folder."""
    folder = path.rpartition("/")[0]
    for place in (folder, folder.rpartition("/")[0]):
        if text := _text(root, f"{place}/pyvenv.cfg"):
            pairs = (line.partition("=") for line in text.splitlines())
            return place, {key.strip().lower(): value.strip() for key, equals, value in pairs if equals}
    return None, {}


def _prefix(root: RootFileSystem, executable: str) -> str | None:
    """Return the folder above an interpreter that has its standard library, lib/pythonX.Y/os.py (getpath.py)."""
    folder = executable.rpartition("/")[0]
    while folder:
        folder = folder.rpartition("/")[0]
        if _libraries(root, folder):
            return folder
    return None


def _libraries(root: RootFileSystem, prefix: str) -> list[str]:
    """Return the names of the folders of standard libraries below a prefix: `python3.12`, newest first."""
    found: dict[str, int] = {}
    for folder in (f"{prefix}/lib", f"{prefix}/lib64"):
        with suppress(OSError, ImageError):
            named = filter(None, (_LIBRARY.fullmatch(entry.name) for entry in root.list_dir(folder)))
            found |= {one[0]: int(one[1]) for one in named if root.is_file(f"{folder}/{one[0]}/os.py")}
    return sorted(found, key=lambda name: found[name], reverse=True)


class _ModuleSearch:
    """The folders of modules as site.py finds them; what runs code there is a doubt."""

    def __init__(self, root: RootFileSystem, folders: Sequence[str]) -> None:
        self._root = root
        self._pth_files = 0
        self.folders = [*dict.fromkeys(folders)]
        self.doubt: str | None = None

    def add_sites_of(self, prefix: str, library: str) -> None:
        """Add the site folders below a prefix."""
        found = [f"{prefix}/{lib}/{library}/site-packages" for lib in ("lib", "lib64")]
        if prefix == "/usr":  # Debian's patch of site.py
            found = [f"/usr/local/lib/{library}/dist-packages", "/usr/lib/python3/dist-packages", *found]
        for folder in found:
            self._add_site(folder)

    def look_for_code(self, libraries: Sequence[str]) -> None:
        """Note the first file that runs at each start and names the search path."""
        for name in ("sitecustomize.py", "usercustomize.py"):
            for folder in (*libraries, *self.folders):
                if self.doubt is None and _CHANGES_PATH.search(_text(self._root, f"{folder}/{name}")):
                    self.doubt = f"{folder}/{name} changes where Python looks for modules, by code that is not run here"

    def _add(self, folder: str) -> bool:
        is_new = folder not in self.folders and len(self.folders) < _MAX_FOLDERS and self._root.is_dir(folder)
        if is_new:
            self.folders.append(folder)
        return is_new

    def _add_site(self, folder: str) -> None:
        """Add a folder, then what the lines of its `.pth` files add."""
        if not self._add(folder):
            return
        names: list[str] = []
        with suppress(OSError, ImageError):
            names += sorted(entry.name for entry in self._root.list_dir(folder) if entry.name.endswith(".pth"))
        for path in (f"{folder}/{name}" for name in names):
            self._pth_files += 1
            lines = _text(self._root, path).splitlines() if self._pth_files <= _MAX_PTH_FILES else []
            for line in filter(None, map(str.strip, lines)):
                if site := _ADDS_SITE.fullmatch(line):  # as `lumiimg venv` writes it
                    self._add_site(site[1])
                elif line.startswith(("import ", "import\t")):
                    if self.doubt is None and _CHANGES_PATH.search(line):
                        what = "changes where Python looks for modules, by a line of code that is not run here"
                        self.doubt = f"{path} {what}"
                elif not line.startswith("#"):
                    self._add(line if line.startswith("/") else f"{folder}/{line}")


def _text(root: RootFileSystem, path: str) -> str:
    """Return a small file; nothing where it cannot be read."""
    try:
        return root.read_bytes(path, _MAX_TEXT_BYTES).decode("utf-8", "replace")
    except (OSError, ImageError):
        return ""
