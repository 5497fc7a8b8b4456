"""Where a Python looks for its standard library: getpath of CPython, over the files of an image.

Sources: CPython Modules/getpath.py (3.11 and later), Modules/getpath.c and Python/pathconfig.c (before). A folder that
hangs on the current one is the host's: nothing is found there.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from posixpath import basename, normpath
from typing import TYPE_CHECKING

from lumiimg.core.errors import BadInputError
from lumiimg.host.python_build import NoPythonError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lumiimg.host.python_build import PythonBuild
    from lumiimg.image import RootFileSystem

_MAX_LINKS = 40
_MAX_BYTES = 32 << 10
CONFIGURATION = "pyvenv.cfg"
_FROZEN_SINCE = (3, 11)
"""The first version whose getpath is written in Python."""
_VENV_SINCE = (3, 14)
"""The first version whose getpath sets sys.prefix to that of a virtual environment; before, site.py did."""
_NO_USER_SINCE = (3, 15)
"""The first version in which a file `PROGRAM._pth` leaves out the user's site folder."""


class StartFailure(Exception):  # noqa: N818 - of the Python that is modelled
    """Python ends while it starts; the message says why."""


@dataclass(frozen=True, slots=True)
class PathConfig:
    """What is known before site.py runs."""

    prefix: str
    exec_prefix: str
    venv_prefix: str | None
    """sys.prefix and sys.exec_prefix where a virtual environment has set them; since 3.14."""
    lib: str
    """sys.platlibdir."""
    library: str
    """`python3.12`."""
    path: tuple[str, ...]
    """sys.path, without what hangs on the current folder."""
    takes_user: bool
    """Whether the user's site folder counts (sys.flags.no_user_site)."""
    imports_site: bool
    opened: tuple[str, ...]
    """Files that were read."""


def find_paths(root: RootFileSystem, build: PythonBuild, program: str, environment: Mapping[str, str]) -> PathConfig:
    """Return what getpath finds for a program. Raises StartFailure, and NoPythonError in a folder of a build."""
    try:
        root.open_exec(program).close()
    except (OSError, BadInputError) as error:
        raise StartFailure(f"{program} may be run by its owner only") from error
    return _GetPath(root, build, executable_of(build.version, program, environment), environment).found()


def executable_of(version: tuple[int, int], program: str, environment: Mapping[str, str]) -> str:
    """Return sys.executable, from which the prefixes are looked for: since 3.11 a variable may name another one."""
    return (environment.get("PYTHONEXECUTABLE") if version >= _FROZEN_SINCE else None) or program


def dirname(path: str) -> str:
    """Return what is above, nothing for the root (getpath_dirname, reduce)."""
    return path.rpartition("/")[0]


def _above(folder: str, test: Callable[[str], bool]) -> str | None:
    """Return the nearest folder from one upwards that passes a test; the root itself is not asked (search_up)."""
    while folder:
        if test(folder):
            return folder
        folder = dirname(folder)
    return None


class _GetPath:
    def __init__(self, root: RootFileSystem, build: PythonBuild, program: str, environment: Mapping[str, str]) -> None:
        self._root, self._build, self._program, self._environment = root, build, program, environment
        self._is_new = build.version >= _FROZEN_SINCE
        major, minor = build.version
        thread = "t" if build.is_free_threaded else ""
        set_lib = environment.get("PYTHONPLATLIBDIR") if build.version >= (3, 9) else None
        self._lib = set_lib or build.lib
        self._library = f"python{major}.{minor}{thread}"
        self._stdlib = f"{self._lib}/{self._library}"
        self._dynload = f"{self._stdlib}/lib-dynload"
        self._zip = f"{self._lib}/python{major}{minor}{thread}.zip"
        self._real = self._link_target(program)
        self._opened = list[str]()
        self._venv_prefix: str | None = None

    def found(self) -> PathConfig:
        """Return all of it."""
        home = self._environment.get("PYTHONHOME") or None
        if home and not home.startswith("/"):
            raise StartFailure(f"PYTHONHOME={home} hangs on the current folder")
        folder = self._folder(home)
        self._refuse_build_folder(folder)
        listed = self._listed() if self._is_new else None
        if listed is not None:
            home = listed[0]
        prefix, exec_prefix, own = self._prefixes(folder, home)
        variable = self._environment.get("PYTHONPATH", "").split(":")
        path = [*(normpath(entry) for entry in variable if entry.startswith("/")), *own]
        return PathConfig(
            prefix=prefix,
            exec_prefix=exec_prefix,
            venv_prefix=self._venv_prefix,
            lib=self._lib,
            library=self._library,
            path=tuple(path if listed is None else listed[1]),
            takes_user=self._takes_user(is_isolated=listed is not None),
            imports_site=listed is None or listed[2],
            opened=tuple(self._opened),
        )

    def _takes_user(self, *, is_isolated: bool) -> bool:
        """Whether no flag is set; 0 does not set it (_Py_get_env_flag)."""
        if is_isolated:
            return self._build.version < _NO_USER_SINCE
        value = self._environment.get("PYTHONNOUSERSITE", "")
        return not value or bool(re.fullmatch(r"\s*[+-]?0+", value))

    def _link_target(self, path: str) -> str:
        """Follow the links of the last part of a path, and only those (getpath_realpath, resolve_symlinks)."""
        for _ in range(_MAX_LINKS):
            try:
                target = self._root.readlink(path)
            except (OSError, BadInputError):
                return path
            joined = f"{dirname(path)}/{target}"
            path = target if target.startswith("/") else normpath(joined) if self._is_new else joined
        return path

    def _read(self, path: str) -> str:
        text = self._root.read_bytes(path, _MAX_BYTES).decode("utf-8", "surrogateescape")
        self._opened.append(path)
        return text

    def _lines(self, path: str) -> list[str] | None:
        """Return the lines of a file; None where there is none, or it may not be read."""
        try:
            text = self._read(path)
        except (FileNotFoundError, PermissionError):
            return None
        except IsADirectoryError:
            return []  # fopen(3) opens it
        except (OSError, BadInputError) as error:
            if not self._is_new:
                return None
            raise StartFailure(f"{path} cannot be opened: {error}") from error
        return [line.rstrip("\r") for line in text.split("\n")]

    def _folder(self, home: str | None) -> str:
        """Return the folder from which the prefixes are looked for: that of the program, or `home` of a pyvenv.cfg."""
        own = dirname(self._program if self._is_new else self._real)
        places = (dirname(own), own) if self._is_new else (own, dirname(own))
        knows_venv = self._build.version >= _VENV_SINCE
        named = None
        if not self._is_new or not home or knows_venv:
            for place in places:
                if (lines := self._lines(f"{place}/{CONFIGURATION}")) is not None:
                    self._venv_prefix = place if knows_venv else None
                    named = _home_of(lines, is_new=self._is_new) if not home else None
                    break
        if named is None:
            return dirname(self._real)
        folder = (self._base_folder(named) if self._build.prefers_base else None) or named
        return folder if folder.startswith("/") else ""

    def _base_folder(self, home: str) -> str | None:
        """Return the folder of the program that an environment was made with, where a prefix is found from there."""
        names = (basename(self._program), "python3", self._library.removesuffix("t"))
        bases = (self._real,) if self._real != self._program else (f"{home}/{name}" for name in names)
        base = next(filter(self._root.is_file, bases), None)
        marks = (self._zip, f"{self._stdlib}/os.py", f"{self._stdlib}/os.pyc")
        return dirname(base) if base and _above(dirname(base), self._has(*marks)) else None

    def _has(self, *marks: str) -> Callable[[str], bool]:
        return lambda folder: any(self._root.is_file(f"{folder}/{mark}") for mark in marks)

    def _has_dynload(self, folder: str) -> bool:
        return self._root.is_dir(f"{folder}/{self._dynload}")

    def _refuse_build_folder(self, folder: str) -> None:
        is_built = folder and self._root.is_file(f"{folder}/Modules/Setup.local")
        if folder and self._is_new:
            is_built = is_built or self._lines(f"{folder}/pybuilddir.txt") is not None
        if is_built:
            raise NoPythonError(f"{self._program} runs from the folder in which it was built")

    def _listed(self) -> tuple[str, list[str], bool] | None:
        """Return (folder, sys.path, whether site is imported) by a file `PROGRAM._pth`; None where there is none."""
        for path in (f"{self._program}._pth", f"{self._real}._pth"):
            with suppress(OSError, BadInputError):
                lines = self._read(path).split("\n")
                named = [line for one in lines if (line := one.partition("#")[0].strip())]
                entries = (line for line in named if line != "import site" and not line.startswith("import "))
                joined = (line if line.startswith("/") else f"{dirname(path)}/{line}" for line in entries)
                return dirname(path), [*map(normpath, joined)], "import site" in named
        return None

    def _prefixes(self, folder: str, home: str | None) -> tuple[str, str, tuple[str, ...]]:
        """Return (prefix, exec_prefix, the entries of sys.path below them)."""
        prefix = exec_prefix = None
        if home:
            home = home if self._is_new else home.replace("/:", ":").rstrip("/")
            prefix, delimiter, exec_prefix = home.partition(":")
            exec_prefix = exec_prefix if delimiter else prefix
        elif self._is_new:
            prefix = _above(folder, self._has(self._zip))
        prefix = prefix or _above(folder, self._has(f"{self._stdlib}/os.py", f"{self._stdlib}/os.pyc"))
        prefix = prefix or self._build.prefix
        if not exec_prefix and self._build.version >= _VENV_SINCE and self._has_dynload(prefix):
            exec_prefix = prefix
        exec_prefix = exec_prefix or _above(folder, self._has_dynload)
        dynload = f"{exec_prefix or self._build.prefix}/{self._dynload}"
        if not self._is_new and not exec_prefix and not self._root.is_dir(dynload):
            dynload = f"{self._build.prefix}/{self._lib}/lib-dynload"
        own = (f"{prefix}/{self._zip}", f"{prefix}/{self._stdlib}", dynload)
        return prefix, exec_prefix or self._build.prefix, own


def _home_of(lines: Sequence[str], *, is_new: bool) -> str | None:
    """Return `home` of a pyvenv.cfg; before 3.11 with blanks around `=`, and a line break behind it."""
    for line in lines if is_new else lines[:-1]:
        key, equals, value = line.partition("=")
        if is_new and equals and key.strip().lower() == "home":
            return value.strip()
        if not is_new and (found := re.fullmatch(r"[ \t]*home[ \t]+=[ \t]([^\n]+)", line)):
            return found[1]
    return None
