"""How a Python of an image starts: the folders in which it finds modules, and the code that runs before any script.

Nothing is run. All is judged for a stranger: a user who is not root, and owns nothing of the image. The current folder
is the host's, and so is the home folder: neither is counted.
Sources: CPython Modules/getpath.py (3.11 and later), Modules/getpath.c (before), Lib/site.py; Debian's patch of site.py
(dist-packages), Fedora's (/usr/local). Which patches there are is read from the image's own site.py.
"""

from __future__ import annotations

import ast
import re
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from posixpath import normpath
from typing import TYPE_CHECKING

from lumiimg.core.errors import BadInputError, one_safe_line
from lumiimg.host.module_finder import ModuleFinder, ModuleSpec, SpecKind
from lumiimg.host.python_build import NoPythonError, PythonBuild, read_build
from lumiimg.host.root_queries import stranger_can_list, stranger_can_reach, stranger_can_read
from lumiimg.image import FileKind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lumiimg.image import RootFileSystem

__all__ = ["NoPythonError", "PythonStart", "StartupCode", "start_python"]

_MAX_TEXT_BYTES = 1 << 20
_MAX_PTH_FILES, _MAX_ENTRIES = 500, 1000
_CONFIGURATION = "pyvenv.cfg"
_ADDS_SITE = re.compile(r"import site; site\.addsitedir\('(/[^'\\]{1,500})'\)")
_LOCAL_PREFIX = re.compile(r"if ENABLE_USER_SITE and .*\n\s+PREFIXES\.insert\(0, ['\"](/[^'\"]{1,200})['\"]\)")
_FIRST_MODULES = ("encodings", "encodings.aliases", "encodings.utf_8")
_NOT_FROZEN_BEFORE = (3, 11)
_SITE_MODULES = ("codecs", "io", "abc", "site", "os", "stat", "posixpath", "genericpath", "_collections_abc")
"""What is frozen since 3.11, and read from files before."""


@dataclass(frozen=True, slots=True)
class StartupCode:
    """Code that runs at each start."""

    path: str
    """The `.pth` file, sitecustomize.py, …"""
    text: str | None
    """A line of the `.pth` file, or the source; None for what has no source: bytecode, an extension, in a zip."""


@dataclass(frozen=True, slots=True)
class PythonStart:
    """A Python that has started, up to where it runs a script."""

    program: str
    version: tuple[int, int]
    is_free_threaded: bool
    suffixes: tuple[str, ...]
    """Of extension modules, in importlib's order."""
    path: tuple[str, ...]
    """sys.path after site, without the folder of the script."""
    startup: tuple[StartupCode, ...]
    """In the order in which it runs."""
    files: tuple[str, ...]
    """What the process has opened, or tried to."""
    failure: str | None
    """Why Python does not start."""
    finder: ModuleFinder = field(repr=False, compare=False)

    def find_spec(self, name: str) -> ModuleSpec | None:
        """Return where a module is imported from; None where it is not found."""
        return self.finder.find_spec(name, self.path)


def start_python(root: RootFileSystem, program: str, environment: Mapping[str, str]) -> PythonStart:
    """Return how a Python starts, by its absolute path; `environment` is that of its process.

    Raises NoPythonError for a script, which may start any other, and for what is not Python.
    """
    build = _build_of(root, program, environment)
    files = _Files(root)
    files.opened.append(program)
    finder = ModuleFinder(root, build.suffixes, build.version)
    site = _Site(files, finder, build)
    failure: str | None = None
    try:
        prefixes = _Prefixes(files, build, environment, program)
        site.path = prefixes.path
        site.load(_FIRST_MODULES)
        if build.version < _NOT_FROZEN_BEFORE:
            site.load(_SITE_MODULES)
        if prefixes.imports_site:
            site.main(prefixes, environment)
    except _FailureError as error:
        failure = str(error)
    return PythonStart(
        program=program,
        version=build.version,
        is_free_threaded=build.is_free_threaded,
        suffixes=build.suffixes,
        path=tuple(folder for folder in site.path if folder.startswith("/")),
        startup=tuple(dict.fromkeys(site.startup)),
        files=tuple(dict.fromkeys(files.opened)),
        failure=failure,
        finder=finder,
    )


def _build_of(root: RootFileSystem, program: str, environment: Mapping[str, str]) -> PythonBuild:
    try:
        head = _Files(root).head(program)
    except (OSError, BadInputError) as error:
        raise NoPythonError(f"{program} leads nowhere in the image, or cannot be read") from error
    if head[:2] == b"#!":
        shown = one_safe_line(head.split(b"\n")[0].decode("utf-8", "replace"))
        raise NoPythonError(f"{program} is a script ({shown}): which program it starts is not known")
    return read_build(root, program, environment)


class _FailureError(Exception):
    """Python ends while it starts; the message says why."""


class _Files:
    """The files of an image as a stranger's process sees them, and which it has opened."""

    def __init__(self, root: RootFileSystem) -> None:
        self.root = root
        self.opened: list[str] = []

    def head(self, path: str) -> bytes:
        """Return the beginning of a file."""
        file = self.root.open(path)
        try:
            return file.read_at(0, min(file.size, 256))
        finally:
            file.close()

    def exists(self, path: str) -> bool:
        return stranger_can_reach(self.root, path)

    def is_file(self, path: str) -> bool:
        return self.root.is_file(path) and stranger_can_reach(self.root, path)

    def is_dir(self, path: str) -> bool:
        return self.root.is_dir(path) and stranger_can_reach(self.root, path)

    def read(self, path: str) -> bytes:
        """Return a file. Raises FileNotFoundError, PermissionError, other OSErrors, or BadInputError."""
        way = [step.kind is FileKind.DIRECTORY and not step.permissions & 1 for _, step in self.root.lookup_steps(path)]
        if any(way[:-1]):
            raise PermissionError(path)
        kind = self.root.stat(path).kind
        self.opened.append(path)
        if not stranger_can_read(self.root, path):
            raise PermissionError(path)
        return b"" if kind is FileKind.DIRECTORY else self.root.read_bytes(path, _MAX_TEXT_BYTES)

    def lines(self, path: str) -> list[str] | None:
        """Return the lines of a file as getpath reads it; None where there is none, or it may not be read."""
        try:
            text = self.read(path).decode("utf-8", "surrogateescape")
        except (FileNotFoundError, PermissionError):
            return None
        except (OSError, BadInputError) as error:
            raise _FailureError(f"{path} cannot be opened: {error}") from error
        return [line.rstrip("\r") for line in text.split("\n")]

    def link_target(self, path: str) -> str:
        """Follow the links of the last part of a path, and only those (getpath_realpath, resolve_symlinks)."""
        for _ in range(40):
            try:
                target = self.root.readlink(path)
            except (OSError, BadInputError):
                return path
            path = normpath(target if target.startswith("/") else f"{_dirname(path)}/{target}")
        return path


def _dirname(path: str) -> str:
    return path.rpartition("/")[0]


def _above(folder: str, test: Callable[[str], bool]) -> str | None:
    """Return the nearest folder from one upwards that passes a test; the root itself is not asked (search_up)."""
    while folder:
        if test(folder):
            return folder
        folder = _dirname(folder)
    return None


class _Prefixes:
    """What getpath finds: the prefixes, and the first entries of sys.path."""

    def __init__(self, files: _Files, build: PythonBuild, environment: Mapping[str, str], program: str) -> None:
        self._files, self._build, self._environment = files, build, environment
        major, minor = build.version
        thread = "t" if build.is_free_threaded else ""
        lib = environment.get("PYTHONPLATLIBDIR") or build.lib
        self.lib = lib if build.version >= (3, 9) else build.lib
        self.library = f"python{major}.{minor}{thread}"
        self._stdlib = f"{self.lib}/{self.library}"
        self._zip = f"{self.lib}/python{major}{minor}{thread}.zip"
        self.executable = program
        self.environment = environment
        self.imports_site = True
        self.venv_prefix: str | None = None
        home = environment.get("PYTHONHOME") or None
        if home and not home.startswith("/"):
            raise _FailureError(f"PYTHONHOME={home} depends on the current folder")
        is_new = build.version >= (3, 11)
        folder, is_home_set = self._program_folder(home, is_new=is_new)
        if not folder.startswith("/"):
            raise _FailureError(f"home = {folder} in pyvenv.cfg depends on the current folder")
        if any(files.exists(f"{folder}/{mark}") for mark in ("pybuilddir.txt", "Modules/Setup.local")):
            raise NoPythonError(f"{program} runs from the folder in which it was built")
        del is_home_set
        self.base_prefix = self.base_exec_prefix = ""
        self._find(folder, home, is_new=is_new)
        entries = [one for one in environment.get("PYTHONPATH", "").split(":") if one.startswith("/")]
        self.path = [*map(normpath, entries), *self._own]
        if is_new:
            self._take_pth(program)

    def _program_folder(self, home: str | None, *, is_new: bool) -> tuple[str, bool]:
        """Return the folder from which the prefixes are looked for: that of the program, or `home` of a pyvenv.cfg."""
        files = self._files
        real = files.link_target(self.executable)
        own = _dirname(self.executable) if is_new else _dirname(real)
        places = (_dirname(own), own) if is_new else (own, _dirname(own))
        lines = None
        if not is_new or not home or self._build.version >= (3, 14):
            for place in places:
                lines = files.lines(f"{place}/{_CONFIGURATION}")
                if lines is not None:
                    break
        if lines is not None and self._build.version >= (3, 14):
            self.venv_prefix = place
        named = _home_of(lines or [], is_new=is_new) if not home else None
        return (named, True) if named is not None else (_dirname(real), False)

    def _find(self, folder: str, home: str | None, *, is_new: bool) -> None:
        """Find prefix and exec_prefix by their landmarks."""
        files, stdlib, build = self._files, self._stdlib, self._build
        dynload = f"{stdlib}/lib-dynload"
        prefix = exec_prefix = None
        own_stdlib = None
        if home:
            prefix, delimiter, exec_prefix = (part.rstrip("/") for part in home.partition(":"))
            exec_prefix = exec_prefix if delimiter else prefix
        elif is_new and (prefix := _above(folder, lambda each: files.is_file(f"{each}/{self._zip}"))):
            own_stdlib = f"{prefix}/{stdlib}"
        prefix = prefix or _above(
            folder, lambda each: any(files.is_file(f"{each}/{stdlib}/os.{end}") for end in ("py", "pyc"))
        )
        prefix = prefix or build.prefix
        if not exec_prefix and build.version >= (3, 14) and files.is_dir(f"{prefix}/{dynload}"):
            exec_prefix = prefix
        exec_prefix = exec_prefix or _above(folder, lambda each: files.is_dir(f"{each}/{dynload}"))
        last = f"{exec_prefix or build.prefix}/{dynload}"
        if not is_new and not exec_prefix and not files.is_dir(last):
            last = f"{build.prefix}/{self.lib}/lib-dynload"
        self.base_prefix, self.base_exec_prefix = prefix, exec_prefix or build.prefix
        self._own = [f"{prefix}/{self._zip}", own_stdlib or f"{prefix}/{stdlib}", last]

    def _take_pth(self, program: str) -> None:
        """Take sys.path from a file `PROGRAM._pth`, where there is one: then no variable counts."""
        for path in (f"{program}._pth", f"{self._files.link_target(program)}._pth"):
            try:
                lines = self._files.read(path).decode("utf-8", "surrogateescape").split("\n")
            except (OSError, BadInputError):
                continue
            named = [line.partition("#")[0].strip() for line in lines]
            self.imports_site = "import site" in named
            self.environment = {}
            folder = _dirname(path)
            self.path = [normpath(f"{folder}/{line}") for line in named if line and not line.startswith("import ")]
            return


def _home_of(lines: Sequence[str], *, is_new: bool) -> str | None:
    """Return `home` of a pyvenv.cfg; before 3.11 with blanks around `=`, and a line break behind it."""
    for line in lines if is_new else lines[:-1]:
        key, equals, value = line.partition("=")
        if is_new and equals and key.strip().lower() == "home":
            return value.strip()
        if not is_new and (found := re.fullmatch(r"[ \t]*home[ \t]+=[ \t]([^\n]+)", line)):
            return found[1]
    return None


class _Site:
    """What site.py does."""

    def __init__(self, files: _Files, finder: ModuleFinder, build: PythonBuild) -> None:
        self._files, self._finder, self._build = files, finder, build
        self._known: set[str] = set()
        self._pth_files = 0
        self.path: list[str] = []
        self.startup: list[StartupCode] = []

    def load(self, names: Sequence[str]) -> None:
        """Import modules without which Python ends."""
        for name in names:
            spec = self._finder.find_spec(name, self.path)
            if spec is None or spec.kind is SpecKind.NAMESPACE:
                raise _FailureError(
                    f"{self._files.opened[0]} finds no module {name}, without which Python does not start"
                )
            file = self._finder.code_file(spec)
            self._files.opened.append(file or "")
            if not self._finder.can_load(spec):
                raise _FailureError(f"{file} cannot be read by others, and Python does not start without it")

    def main(self, prefixes: _Prefixes, environment: Mapping[str, str]) -> None:
        """Add the site folders, and run what is run there."""
        self._prefixes, self._text = prefixes, self._own_text(prefixes)
        self._prefix, self._exec_prefix = prefixes.base_prefix, prefixes.base_exec_prefix
        if prefixes.venv_prefix:
            self._prefix = self._exec_prefix = prefixes.venv_prefix
        self._in_environment = "VIRTUAL_ENV" in environment and "'VIRTUAL_ENV' in os.environ" in self._text
        self.path = [*dict.fromkeys(map(normpath, self.path))]
        self._known = set(self.path)
        roots = [self._prefix, self._exec_prefix]
        enables_user: bool | None = None
        if (system := self._configuration()) is not None:
            site_prefix = _dirname(_dirname(normpath(prefixes.executable)))
            if self._build.version < (3, 14):
                self._prefix = self._exec_prefix = site_prefix
            self._add_sites([self._prefix])
            if not system:
                enables_user = False
            if self._build.version >= (3, 14):
                roots += [prefixes.base_prefix, prefixes.base_exec_prefix] if system else []
            else:
                roots = [self._prefix, *roots] if system else [self._prefix]
        if enables_user is None:
            enables_user = not _is_set(prefixes.environment.get("PYTHONNOUSERSITE", ""))
        base = prefixes.environment.get("PYTHONUSERBASE", "")
        user = normpath(f"{base}/lib/{prefixes.library}/site-packages")
        if enables_user and base.startswith("/") and self._files.is_dir(user):
            self._add_site(user)
        if enables_user and (local := _LOCAL_PREFIX.search(self._text)):
            roots.insert(0, local[1])
        self._add_sites(roots)
        self._customize("sitecustomize")
        if enables_user:
            self._customize("usercustomize")

    def _own_text(self, prefixes: _Prefixes) -> str:
        """Return the image's own site.py: since 3.11 the frozen one runs, which was made from it."""
        spec = self._finder.find_spec("site", prefixes.path)
        with suppress(OSError, BadInputError):
            if spec is not None and spec.kind is SpecKind.SOURCE and spec.origin:
                return self._files.root.read_bytes(spec.origin, _MAX_TEXT_BYTES).decode("utf-8", "replace")
        return ""

    def _configuration(self) -> bool | None:
        """Return whether a virtual environment takes the site folders of the system; None outside of one (venv)."""
        folder = _dirname(normpath(self._prefixes.executable))
        places = (f"{place}/{_CONFIGURATION}" for place in (folder, _dirname(folder)))
        path = next((path for path in places if self._files.is_file(path)), None)
        if path is None:
            return None
        try:
            lines = self._files.read(path).decode().splitlines()
        except (OSError, BadInputError) as error:
            raise _FailureError(
                f"{path} may be read by its owner only, and Python does not start without it"
            ) from error
        except UnicodeDecodeError as error:
            raise _FailureError(f"{path} is not UTF-8, and Python does not start with it") from error
        pairs = (line.partition("=") for line in lines)
        values = {key.strip().lower(): value.strip().lower() for key, equals, value in pairs if equals}
        return values.get("include-system-site-packages", "true") == "true"

    def _add_sites(self, prefixes: Sequence[str]) -> None:
        """Add the site folders of prefixes, those that are there (getsitepackages, addsitepackages)."""
        lib, library = self._prefixes.lib, self._prefixes.library
        libs = [lib] if lib == "lib" else [lib, "lib"]
        for prefix in dict.fromkeys(filter(None, prefixes)):
            folders = [f"{each}/{library}/site-packages" for each in libs]
            if "dist-packages" in self._text:  # Debian's patch
                short = library.removesuffix("t")
                is_virtual = self._prefixes.base_prefix != self._prefix or self._in_environment
                folders = [f"lib/{short}/site-packages"] if is_virtual else []
                folders += [f"local/lib/{short}/dist-packages", "lib/python3/dist-packages"]
                folders += [f"{each}/{library}/dist-packages" for each in libs]
            for folder in folders:
                if self._files.is_dir(f"{prefix}/{folder}"):
                    self._add_site(f"{prefix}/{folder}")

    def _add_site(self, folder: str) -> None:
        """Add a folder, then what the lines of its `.pth` files add (addsitedir)."""
        folder = normpath(folder)
        self._add(folder)
        if not stranger_can_list(self._files.root, folder):
            return
        names: list[str] = []
        with suppress(OSError, BadInputError):
            names = [entry.name for entry in self._files.root.list_dir(folder) if entry.name.endswith(".pth")]
        if 'not name.startswith(".")' in self._text:
            names = [name for name in names if not name.startswith(".")]
        for name in sorted(names):
            self._pth_files += 1
            if self._pth_files <= _MAX_PTH_FILES:
                self._add_package(folder, f"{folder}/{name}")

    def _add(self, path: str) -> None:
        if path not in self._known and len(self.path) < _MAX_ENTRIES:
            self.path.append(path)
            self._known.add(path)

    def _add_package(self, folder: str, path: str) -> None:
        """Go through the lines of a `.pth` file (addpackage)."""
        try:
            data = self._files.read(path)
        except (OSError, BadInputError):
            return
        is_new = "utf-8-sig" in self._text
        try:
            text = data.decode("utf-8-sig" if is_new else "utf-8")
        except UnicodeDecodeError as error:
            raise _FailureError(f"{path} is not UTF-8, and Python does not start with it") from error
        for line in text.splitlines() if is_new else re.split(r"\r\n?|\n", text):
            if line.startswith("#") or not line.strip():
                continue
            if added := _ADDS_SITE.fullmatch(line.rstrip()):  # as `lumiimg venv` writes it
                self._known |= {each for each in self.path if self._files.exists(each)}
                self._add_site(added[1])
            elif line.startswith(("import ", "import\t")):
                if not self._runs(line):
                    return
                self.startup.append(StartupCode(path, line))
            else:
                line = line.rstrip()  # noqa: PLW2901 - as site.py does it
                entry = normpath(line if line.startswith("/") else f"{folder}/{line}")
                if self._files.exists(entry):
                    self._add(entry)

    def _runs(self, line: str) -> bool:
        """Whether a line of code begins to run: it can be read, and what it imports first is there."""
        try:
            body = ast.parse(line).body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return False
        for statement in body:
            if not isinstance(statement, ast.Import):
                break
            for alias in statement.names:
                first = alias.name.partition(".")[0]
                if first not in sys.stdlib_module_names and not self._finder.find_spec(first, self.path):
                    return False
        return True

    def _customize(self, name: str) -> None:
        """Import a module of the site's where there is one; what goes wrong in it does not end Python."""
        spec = self._finder.find_spec(name, self.path)
        file = self._finder.code_file(spec) if spec is not None else None
        if spec is None or file is None:
            return
        self._files.opened.append(file)
        if not self._finder.can_load(spec):
            return
        text = None
        with suppress(OSError, BadInputError, UnicodeDecodeError):
            if spec.kind is SpecKind.SOURCE and spec.origin:
                text = self._files.root.read_bytes(spec.origin, _MAX_TEXT_BYTES).decode()
        self.startup.append(StartupCode(spec.origin or file, text))


def _is_set(value: str) -> bool:
    """Whether a flag variable counts: 0 does not (_Py_get_env_flag)."""
    return bool(value) and not re.fullmatch(r"\s*[+-]?0+", value)
