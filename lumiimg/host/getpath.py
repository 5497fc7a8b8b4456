"""Where a Python searches for its standard library: CPython's getpath, applied to the files of an image.

Sources: CPython Modules/getpath.py (3.11 and later), Modules/getpath.c and Python/pathconfig.c (before). A path
relative to the current folder is on the host: nothing is found there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from io import StringIO
from posixpath import basename, normpath
from typing import TYPE_CHECKING

from lumiimg.core.errors import BadInputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from lumiimg.host.python_build import PythonBuild
    from lumiimg.image import RootFileSystem

_MAX_LINKS = 40
_MAX_BYTES = 32 << 10
_FROZEN_SINCE = (3, 11)
"""The first version whose getpath is written in Python."""
_BESIDE_PROGRAM = ("pyvenv.cfg", "pybuilddir.txt", "Modules/Setup.local")
"""Files beside a program in the folder where it was built, or in an environment without a `bin` folder."""


class StartFailure(Exception):  # noqa: N818 - of the Python that is modelled
    """Python exits during start-up; the message says why."""


@dataclass(frozen=True, slots=True)
class VirtualEnvironment:
    """A virtual environment, as its pyvenv.cfg describes it (PEP 405)."""

    prefix: str
    home: str | None
    """Folder of the Python that created it."""
    takes_system: bool
    """Whether it also uses the site folders of that Python."""


@dataclass(frozen=True, slots=True)
class PathConfig:
    """Path settings before site.py runs."""

    prefix: str
    """sys.base_prefix."""
    venv: VirtualEnvironment | None
    lib: str
    """sys.platlibdir."""
    library: str
    """`python3.12`."""
    path: tuple[str, ...]
    """sys.path, without entries relative to the current folder."""
    takes_user: bool
    """Whether the user's site folder is used (sys.flags.no_user_site)."""
    not_followed: tuple[str, ...]
    """Existing files that may make Python search elsewhere."""


def find_paths(root: RootFileSystem, build: PythonBuild, program: str, environment: Mapping[str, str]) -> PathConfig:
    """Return what getpath finds for a program. Raises StartFailure."""
    try:
        root.open_exec(program).close()
    except (OSError, BadInputError) as error:
        raise StartFailure(f"only its owner may run {program}") from error
    home, _, of_extensions = environment.get("PYTHONHOME", "").partition(":")
    if home and not home.startswith("/"):
        raise StartFailure(f"PYTHONHOME={home} depends on the current folder")
    is_new = build.version >= _FROZEN_SINCE
    executable = (environment.get("PYTHONEXECUTABLE") if is_new else None) or program
    real = _link_target(root, executable, is_lexical=is_new)
    lib = (environment.get("PYTHONPLATLIBDIR") if build.version >= (3, 9) else None) or build.lib
    thread = "t" if build.is_free_threaded else ""
    library = f"python3.{build.version[1]}{thread}"
    marks = (f"{lib}/{library}/os.py", f"{lib}/{library}/os.pyc")
    venv = _environment_of(root, executable)
    made_by = venv if is_new else _environment_of(root, real)
    is_named = is_new and bool(environment.get("PYTHONEXECUTABLE"))
    folder = dirname(executable if is_named else real)  # of a program named by the variable, no link is followed
    if made_by is not None and made_by.home:
        folder = made_by.home
        if build.prefers_base:
            bases: tuple[str, ...] = (real,)
            if is_named:
                bases = (program,)  # as it was started: no link is followed
            elif real == executable:
                names = (basename(executable), "python3", f"python3.{build.version[1]}")
                bases = tuple(f"{folder}/{name}" for name in names)
            base = dirname(next(filter(root.is_file, bases), ""))
            folder = base if _above(root, base, marks) else folder
        if is_new and root.is_file(folder):
            raise StartFailure(f"{program} does not start: home in {made_by.prefix}/pyvenv.cfg is a file")
    own = (f"{lib}/{library.replace('.', '')}.zip", f"{lib}/{library}", f"{lib}/{library}/lib-dynload")
    by_zip = _above(root, folder, own[:1]) if is_new else None  # takes precedence over os.py, however far up it is
    prefix = home or by_zip or _above(root, folder, marks) or build.prefix
    variable = environment.get("PYTHONPATH", "").split(":")
    entries = (*(normpath(entry) for entry in variable if entry.startswith("/")), *(f"{prefix}/{each}" for each in own))
    unusual = [f"{dirname(path)}/{name}" for path in (executable, real) for name in _BESIDE_PROGRAM]
    unusual += [f"{path}._pth" for path in (executable, real, program) if is_new]
    there = [path for path in unusual if root.exists(path)]
    there += [of_extensions] if of_extensions not in {"", home} else []
    return PathConfig(prefix, venv, lib, library, entries, _takes_user(environment), tuple(dict.fromkeys(there)))


def dirname(path: str) -> str:
    """Return the parent folder, empty for the root (getpath_dirname, reduce)."""
    return path.rpartition("/")[0]


def _above(root: RootFileSystem, folder: str, marks: Sequence[str]) -> str | None:
    """Return the nearest folder, from this one upwards, with one of the files; the root is not checked (search_up)."""
    while folder:
        if any(root.is_file(f"{folder}/{mark}") for mark in marks):
            return folder
        folder = dirname(folder)
    return None


def _link_target(root: RootFileSystem, path: str, *, is_lexical: bool) -> str:
    """Follow links in the last component of a path only (getpath_realpath, resolve_symlinks)."""
    for _ in range(_MAX_LINKS):
        try:
            target = root.readlink(path)
        except (OSError, BadInputError):
            return path
        joined = f"{dirname(path)}/{target}"
        path = target if target.startswith("/") else normpath(joined) if is_lexical else joined
    return path


def _environment_of(root: RootFileSystem, program: str) -> VirtualEnvironment | None:
    """Return the virtual environment that contains a program (venv of site.py); None without one."""
    prefix = dirname(dirname(normpath(program)))
    if not root.is_file(path := f"{prefix}/pyvenv.cfg"):
        return None
    try:
        text = root.read_bytes(path, _MAX_BYTES).decode()
    except (OSError, BadInputError) as error:
        raise StartFailure(f"only its owner may read {path}, and Python does not start without it") from error
    except UnicodeDecodeError as error:
        raise StartFailure(f"{path} is not UTF-8, and Python does not start with it") from error
    home = _settings(text.split("\n")).get("home")  # only site.py has other line ends
    takes_system = _settings(StringIO(text, newline=None)).get("include-system-site-packages", "true")
    return VirtualEnvironment(prefix, home, takes_system.lower() == "true")


def _settings(lines: Iterable[str]) -> dict[str, str]:
    """Return the values of a pyvenv.cfg by key."""
    pairs = (line.partition("=") for line in lines)
    return {key.strip().lower(): value.strip() for key, equals, value in pairs if equals}


def _takes_user(environment: Mapping[str, str]) -> bool:
    """Whether PYTHONNOUSERSITE is not set; 0 does not set it (_Py_get_env_flag)."""
    value = environment.get("PYTHONNOUSERSITE", "")
    return not value or bool(re.fullmatch(r"\s*[+-]?0+", value))
