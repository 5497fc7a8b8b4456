"""The Python of an image: which interpreter a name starts, and in which folders it looks for modules.

Sources: CPython Modules/getpath.py (prefix, pyvenv.cfg, PYTHONHOME) and Lib/site.py (site-packages, `.pth` files);
Debian's patch of site.py (dist-packages). The user's own folder (~/.local) is not of the image, and is not counted.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lumiimg.core.errors import one_safe_line
from lumiimg.image.tree import ImageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from lumiimg.image.root import RootFileSystem

_HEAD_BYTES = 256
_TEXT_BYTES = 64 * 1024
_MOST_PTH = 200
_MOST_FOLDERS = 200
_NAMED = re.compile(r"python(3\.[0-9]{1,2})[a-z]*")
_ADDS_SITE = re.compile(r"import site; site\.addsitedir\('(/[^'\\]{1,500})'\)")
_CUSTOMIZE = ("sitecustomize.py", "usercustomize.py")
_CHANGES_PATH = re.compile(r"\bsys\s*\.\s*path\b|\baddsitedir\b|\bmeta_path\b")
_LIBRARY = re.compile(r"python3\.[0-9]{1,2}t?")


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
    executable = _resolved(root, path)
    head = _head(root, executable)
    if head[:2] == b"#!":
        shown = one_safe_line(head.split(b"\n")[0].decode("utf-8", "replace"))
        raise NoPythonError(f"{path} is a script ({shown}): which program it starts is not known")
    if head[:4] != b"\x7fELF":
        raise NoPythonError(f"{path} is not a program")
    own, configuration = _configuration(root, path)
    base = _prefix(root, executable)
    if home := configuration.get("home"):
        base = _prefix(root, f"{home}/python3") or base
    if home := environment.get("PYTHONHOME"):
        base, own = home.split(":")[0].rstrip("/"), None
    if base is None:
        raise NoPythonError(f"{path} is not a Python, or its standard library is not in the image")
    library = _library_name(root, base, executable)
    folders = [folder for folder in environment.get("PYTHONPATH", "").split(":") if folder.startswith("/")]
    if own is not None:
        folders += _site_folders(root, own, library)
    if own is None or configuration.get("include-system-site-packages", "").lower() == "true":
        folders += _site_folders(root, base, library)
    folders = list(dict.fromkeys(_with_sites(root, folders)))
    libraries = [f"{base}/{lib}/{library}" for lib in ("lib", "lib64")]
    doubt = next(_changing_the_path(root, libraries, folders), None)
    return Interpreter(path, tuple(_with_paths_of(root, folders)), doubt)


def _resolved(root: RootFileSystem, path: str) -> str:
    try:
        return root.resolve(path)
    except (OSError, ImageError) as error:
        raise NoPythonError(f"{path} leads nowhere in the image") from error


def _head(root: RootFileSystem, path: str) -> bytes:
    try:
        with contextlib.closing(root.open(path)) as file:
            return file.read_at(0, min(file.size, _HEAD_BYTES))
    except (OSError, ImageError) as error:
        raise NoPythonError(f"{path} cannot be read") from error


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
    """Return the folders of standard libraries below a prefix: `lib/python3.12`, newest first."""
    found = []
    for lib in ("lib", "lib64"):
        with contextlib.suppress(OSError, ImageError):
            names = [entry[0] for entry in root.list_dir(f"{prefix}/{lib}")]
            found += [
                f"{lib}/{n}" for n in names if _LIBRARY.fullmatch(n) and root.is_file(f"{prefix}/{lib}/{n}/os.py")
            ]
    return sorted(found, key=lambda name: [int(part) for part in re.findall(r"[0-9]+", name[-5:])], reverse=True)


def _library_name(root: RootFileSystem, prefix: str, executable: str) -> str:
    """Return `python3.12`: by the interpreter's own name, else by what there is below its prefix."""
    named = _NAMED.fullmatch(executable.rpartition("/")[2])
    there = [name.rpartition("/")[2] for name in _libraries(root, prefix)]
    if named and f"python{named[1]}" in there:
        return f"python{named[1]}"
    if not there:
        raise NoPythonError(f"{prefix} has no standard library of Python")
    return there[0]


def _site_folders(root: RootFileSystem, prefix: str, library: str) -> list[str]:
    found = [f"{prefix}/{lib}/{library}/site-packages" for lib in ("lib", "lib64")]
    if prefix == "/usr":  # Debian's patch of site.py
        found = [f"/usr/local/lib/{library}/dist-packages", "/usr/lib/python3/dist-packages", *found]
    return [folder for folder in found if root.is_dir(folder)]


def _changing_the_path(root: RootFileSystem, libraries: list[str], folders: list[str]) -> Iterator[str]:
    """Yield what runs at each start and names the search path of modules (site.py): lines of `.pth`, sitecustomize."""
    for name in _CUSTOMIZE:
        for folder in (*libraries, *folders):
            if _CHANGES_PATH.search(_text(root, f"{folder}/{name}")):
                yield f"{folder}/{name} changes where Python looks for modules, by code that is not run here"
    for path, line in _lines_of_pth(root, folders):
        if _is_code(line) and _CHANGES_PATH.search(line):
            yield f"{path} changes where Python looks for modules, by a line of code that is not run here"


def _is_code(line: str) -> bool:
    return line.startswith(("import ", "import\t")) and not _ADDS_SITE.fullmatch(line.strip())


def _with_sites(root: RootFileSystem, folders: list[str]) -> Iterator[str]:
    """Yield the folders, and behind each those that a line in it adds as sites, as `lumiimg venv` does."""
    for folder in folders:
        yield folder
        for _, line in _lines_of_pth(root, [folder]):
            if (added := _ADDS_SITE.fullmatch(line.strip())) is not None and root.is_dir(added[1]):
                yield added[1]


def _with_paths_of(root: RootFileSystem, folders: list[str]) -> Iterator[str]:
    """Yield the folders, and those that their `.pth` files add behind them."""
    yield from folders
    seen = {*folders}
    for path, line in _lines_of_pth(root, folders):
        added = line.strip()
        if not added or added.startswith("#") or _is_code(added) or _ADDS_SITE.fullmatch(added):
            continue
        added = added if added.startswith("/") else f"{path.rpartition('/')[0]}/{added}"
        if added not in seen and len(seen) < _MOST_FOLDERS and root.is_dir(added):
            seen.add(added)
            yield added


def _lines_of_pth(root: RootFileSystem, folders: list[str]) -> Iterator[tuple[str, str]]:
    """Yield (file, line) of the `.pth` files of some folders."""
    files = 0
    for folder in folders:
        try:
            names = sorted(entry.name for entry in root.list_dir(folder) if entry.name.endswith(".pth"))
        except (OSError, ImageError):
            continue
        for name in names:
            files += 1
            if files > _MOST_PTH:
                return
            yield from ((f"{folder}/{name}", line) for line in _text(root, f"{folder}/{name}").splitlines())


def _text(root: RootFileSystem, path: str) -> str:
    """Return a small file; nothing where it cannot be read."""
    try:
        return root.read_bytes(path, _TEXT_BYTES).decode("utf-8", "replace")
    except (OSError, ImageError):
        return ""
