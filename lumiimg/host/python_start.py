"""How a Python of an image starts: the folders in which it finds modules, and the code that runs before any script.

Nothing is run. Files are seen as users have them who are not root (`RootFileSystem.for_users`). The current folder is
the host's, and so is the home folder: neither is counted.
Sources: CPython Lib/site.py; Debian's patch of it (dist-packages), Fedora's (/usr/local). Which of them an image has is
read from its own site.py: since 3.11 a frozen one runs, which was made from that.
"""

from __future__ import annotations

import ast
import re
import sys
from contextlib import closing, suppress
from dataclasses import dataclass, field
from itertools import islice, takewhile
from posixpath import normpath
from typing import TYPE_CHECKING, Protocol, TypeAlias

from lumiimg.core.errors import BadInputError, one_safe_line
from lumiimg.host.getpath import CONFIGURATION, PathConfig, StartFailure, dirname, executable_of, find_paths
from lumiimg.host.module_finder import ModuleFinder, ModuleSpec, SpecKind
from lumiimg.host.python_build import NoPythonError, PythonBuild, read_build

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lumiimg.image import RootFileSystem

__all__ = ["NoPythonError", "PythonStart", "StartupCode", "start_python"]

_HEAD_BYTES = 256
_MAX_TEXT_BYTES = 1 << 20
_MAX_PTH_FILES, _MAX_LINES, _MAX_ENTRIES = 500, 20_000, 1000
"""What lies beyond is code that is not read."""
_MAX_WITHIN = 50
"""Site folders that add each other."""
_MAX_LINE, _MAX_NAMES = 64 << 10, 50
"""Of a line of code: characters that are parsed, names that are looked for."""
_LOCAL_PREFIX = re.compile(r"if ENABLE_USER_SITE and .*\n\s+PREFIXES\.insert\(0, ['\"](/[^'\"]{1,200})['\"]\)")
_FIRST_MODULES = ("encodings", "encodings.aliases", "encodings.utf_8")
_NOT_FROZEN_BEFORE = (3, 11)
_GIL_SINCE = (3, 13)
"""The first version that can be built without a GIL, and reads variables `PYTHON_…`."""
_SITE_MODULES = ("codecs", "io", "abc", "site", "os", "stat", "posixpath", "genericpath", "_collections_abc")
"""What is frozen since 3.11, and read from files before."""


_DECIMAL = re.compile(r"[ \t]*[+-]?[0-9]{1,20}")
_RANGES = {
    "PYTHONHASHSEED": (0, (1 << 32) - 1),
    "PYTHONTRACEMALLOC": (0, (1 << 16) - 1),
    "PYTHONINTMAXSTRDIGITS": (640, (1 << 31) - 1),
    "PYTHON_CPU_COUNT": (1, 1 << 20),
}
_WORDS = {
    "PYTHONUTF8": {"0", "1"},
    "PYTHONMALLOC": {"default", "debug", "malloc", "malloc_debug", "pymalloc", "pymalloc_debug"},
    "PYTHONHASHSEED": {"random"},
    "PYTHON_CPU_COUNT": {"default"},
    "PYTHONINTMAXSTRDIGITS": {"0"},
    "PYTHON_GIL": {"1"},
    "PYTHON_FROZEN_MODULES": {"on", "off"},
}
REFUSING = tuple(dict.fromkeys((*_RANGES, *_WORDS)))
"""Variables with some values of which Python does not start."""
STARTING = (
    *(f"PYTHON{name}" for name in ("HOME", "PATH", "EXECUTABLE", "PLATLIBDIR", "USERBASE", "NOUSERSITE")),
    *REFUSING,
)
"""Variables on which hangs whether and how it starts."""


@dataclass(frozen=True, slots=True)
class StartupCode:
    """Code that runs at each start."""

    path: str
    """The `.pth` file, sitecustomize.py, …"""
    text: str | None
    """A line of the `.pth` file, or the source; None for what is not read: bytecode, an extension, a zip, too much."""


@dataclass(frozen=True, slots=True)
class PythonStart:
    """A Python that has started, up to where it runs a script."""

    program: str
    version: tuple[int, int]
    is_free_threaded: bool
    suffixes: tuple[str, ...]
    """Of extension modules, in importlib's order."""
    path: tuple[str, ...]
    """sys.path after site and the code that it ran, without the folder of the script."""
    startup: tuple[StartupCode, ...]
    """In the order in which it runs."""
    files: tuple[str, ...]
    """What the process has read; what it cannot read, and needs, is the failure."""
    failure: str | None
    """Why Python does not start."""
    cut_short: tuple[str, ...]
    """`.pth` files with folders behind a line of code that may fail, and end its file with it."""
    finder: ModuleFinder = field(repr=False, compare=False)

    def find_spec(self, name: str) -> ModuleSpec | None:
        """Return where a module is imported from; None where it is not found."""
        return self.finder.find_spec(name, self.path)


class PathChanges(Protocol):
    """What a piece of start-up code does to sys.path."""

    @property
    def paths(self) -> Sequence[tuple[str, bool]]:
        """Folders that it adds; True: in front."""

    @property
    def sites(self) -> Sequence[str]:
        """Folders that it adds by site.addsitedir."""

    @property
    def may_fail(self) -> bool:
        """Whether it may end with an exception."""


Find: TypeAlias = "Callable[[str], ModuleSpec | None]"
Follow: TypeAlias = "Callable[[StartupCode, Find], PathChanges]"
"""Returns what a piece of code does; the other argument finds modules on sys.path as it then is."""


def start_python(
    root: RootFileSystem, program: str, environment: Mapping[str, str], follow: Follow | None = None
) -> PythonStart:
    """Return how a Python starts, by its absolute path; `environment` is that of its process.

    Without `follow`, start-up code is taken to change nothing.

    Raises NoPythonError for a script, which may start any other, and for what is not Python.
    """
    build = _build_of(root.for_root(), program, environment)  # who may run it need not be allowed to read it
    root = root.for_users()
    finder = ModuleFinder(root, build.suffixes, build.version)
    executable = executable_of(build.version, program, environment)
    site = _Site(root, finder, build.version, executable, environment, follow)
    failure: str | None = None
    try:
        _require_values(program, build, environment)
        paths = find_paths(root, build, program, environment)
        site.path, site.opened = [*paths.path], [program, *paths.opened]
        site.load(_FIRST_MODULES)
        if build.version < _NOT_FROZEN_BEFORE:
            site.load(_SITE_MODULES)
        if paths.imports_site:
            site.main(paths)
    except StartFailure as error:
        failure = str(error)
    return PythonStart(
        program=program,
        version=build.version,
        is_free_threaded=build.is_free_threaded,
        suffixes=build.suffixes,
        path=tuple(folder for folder in site.path if folder.startswith("/")),
        startup=tuple(site.startup),
        files=tuple(dict.fromkeys(site.opened)),
        failure=failure,
        cut_short=tuple(dict.fromkeys(site.cut_short)),
        finder=finder,
    )


def refused_value(version: tuple[int, int], environment: Mapping[str, str], *, is_free_threaded: bool) -> str | None:
    """Return the variable whose value keeps a Python from starting (CPython Python/preconfig.c, initconfig.c)."""
    for name in REFUSING:
        value = environment.get(name)
        if not value or (name.startswith("PYTHON_") and version < _GIL_SINCE):
            continue
        words = {*_WORDS.get(name, ())}
        if version >= _GIL_SINCE:
            words |= {"mimalloc", "mimalloc_debug"} if name == "PYTHONMALLOC" else set()
            words |= {"0"} if name == "PYTHON_GIL" and is_free_threaded else set()
        least, most = _RANGES.get(name, (1, 0))
        is_number = _DECIMAL.fullmatch(value) is not None and least <= int(value) <= most
        if value not in words and not is_number:
            return name
    return None


def _require_values(program: str, build: PythonBuild, environment: Mapping[str, str]) -> None:
    if name := refused_value(build.version, environment, is_free_threaded=build.is_free_threaded):
        raise StartFailure(f"{program} does not start: {name} cannot be {one_safe_line(environment[name])}")


def _build_of(root: RootFileSystem, program: str, environment: Mapping[str, str]) -> PythonBuild:
    try:
        with closing(root.open(program)) as file:
            head = file.read_at(0, min(file.size, _HEAD_BYTES))
    except (OSError, BadInputError) as error:
        raise NoPythonError(f"{program} leads nowhere in the image, or cannot be read") from error
    if head[:2] == b"#!":
        shown = one_safe_line(head.split(b"\n")[0].decode("utf-8", "replace"))
        raise NoPythonError(f"{program} is a script ({shown}): which program it starts is not known")
    return read_build(root, program, environment)


class _Site:
    """What site.py does."""

    def __init__(
        self,
        root: RootFileSystem,
        finder: ModuleFinder,
        version: tuple[int, int],
        program: str,
        environment: Mapping[str, str],
        follow: Follow | None,
    ) -> None:
        self._root, self._finder, self._version, self._program = root, finder, version, program
        self._environment = environment
        self._follow = follow
        self._changes: dict[StartupCode, PathChanges | None] = {}
        self._known: set[str] = set()
        self._within: set[str] = set()
        self._pth_files = self._lines = 0
        self.path: list[str] = []
        self.opened = [program]
        self.startup: list[StartupCode] = []
        self.cut_short: list[str] = []

    def load(self, names: Sequence[str]) -> None:
        """Import modules without which Python ends."""
        for name in names:
            spec = self._finder.find_spec(name, self.path)
            if spec is None or spec.kind is SpecKind.NAMESPACE:
                raise StartFailure(f"it finds no module {name} from {self._program}")
            file = self._finder.code_file(spec)
            if not self._finder.can_load(spec):
                raise StartFailure(f"{file} may be read by its owner only, and Python does not start without it")
            self.opened.append(file or "")

    def main(self, paths: PathConfig) -> None:
        """Add the site folders, and run what is run there."""
        self._paths, self._text = paths, self._own_text()
        self._prefix = paths.venv_prefix or paths.prefix
        self.path = [*dict.fromkeys(map(normpath, self.path))]
        self._known = set(self.path)
        roots = [self._prefix, paths.venv_prefix or paths.exec_prefix]
        enables_user = paths.takes_user
        takes_system = self._takes_system()
        if takes_system is not None:
            if self._version < (3, 14):
                self._prefix = dirname(dirname(normpath(self._program)))
            self._add_sites([self._prefix])
            base = [paths.prefix, paths.exec_prefix] if takes_system else []
            roots = [self._prefix, *base]
            enables_user = enables_user and takes_system
        user_base = self._environment.get("PYTHONUSERBASE", "")
        user = f"{user_base}/lib/{paths.library}/site-packages"
        if enables_user and user.startswith("/") and user_base and self._root.is_dir(user):
            self._add_site(user)
        if enables_user and (local := _LOCAL_PREFIX.search(self._text)):
            roots.insert(0, local[1])
        self._add_sites(roots)
        self._customize("sitecustomize")
        if enables_user:
            self._customize("usercustomize")

    def _read(self, path: str) -> bytes:
        data = self._root.read_bytes(path, _MAX_TEXT_BYTES)
        self.opened.append(path)
        return data

    def _own_text(self) -> str:
        """Return the image's own site.py."""
        spec = self._finder.find_spec("site", self.path)
        with suppress(OSError, BadInputError):
            if spec is not None and spec.kind is SpecKind.SOURCE and spec.origin:
                return self._root.read_bytes(spec.origin, _MAX_TEXT_BYTES).decode("utf-8", "replace")
        return ""

    def _takes_system(self) -> bool | None:
        """Return whether a virtual environment takes the site folders of the system; None outside of one (venv)."""
        folder = dirname(normpath(self._program))
        places = (f"{place}/{CONFIGURATION}" for place in (folder, dirname(folder)))
        path = next((path for path in places if self._root.is_file(path)), None)
        if path is None:
            return None
        try:
            lines = self._read(path).decode().splitlines()
        except (OSError, BadInputError) as error:
            raise StartFailure(f"{path} may be read by its owner only, and Python does not start without it") from error
        except UnicodeDecodeError as error:
            raise StartFailure(f"{path} is not UTF-8, and Python does not start with it") from error
        pairs = (line.partition("=") for line in lines)
        values = {key.strip().lower(): value.strip().lower() for key, equals, value in pairs if equals}
        return values.get("include-system-site-packages", "true") == "true"

    def _add_sites(self, prefixes: Sequence[str]) -> None:
        """Add the site folders of prefixes, those that are there (getsitepackages, addsitepackages)."""
        lib, library = self._paths.lib, self._paths.library
        libs = [lib] if lib == "lib" else [lib, "lib"]
        by_variable = "'VIRTUAL_ENV' in os.environ" in self._text and "VIRTUAL_ENV" in self._environment
        is_virtual = by_variable or self._paths.prefix != self._prefix
        for prefix in dict.fromkeys(filter(None, prefixes)):
            folders = [f"{each}/{library}/site-packages" for each in libs]
            if "dist-packages" in self._text:  # Debian's patch
                short = library.removesuffix("t")
                folders = [f"lib/{short}/site-packages"] if is_virtual else []
                folders += [f"local/lib/{short}/dist-packages", "lib/python3/dist-packages"]
                folders += [f"{each}/{library}/dist-packages" for each in libs]
            for folder in folders:
                if self._root.is_dir(f"{prefix}/{folder}"):
                    self._add_site(f"{prefix}/{folder}")

    def _add_site(self, folder: str) -> None:
        """Add a folder, then what the lines of its `.pth` files add (addsitedir)."""
        folder = normpath(folder)
        self._add(folder)
        names = (name for name in self._finder.names_in(folder) if name.endswith(".pth"))
        hides = 'not name.startswith(".")' in self._text
        for name in sorted(name for name in names if not (hides and name.startswith("."))):
            self._pth_files += 1
            if self._pth_files > _MAX_PTH_FILES:
                self._run(StartupCode(folder, None))
                return
            self._add_package(folder, f"{folder}/{name}")

    def _run(self, code: StartupCode) -> bool:
        """Take what a piece of code does to sys.path, and return whether it may fail; an environment's runs twice."""
        if code not in self._changes:
            self.startup.append(code)
            self._changes[code] = self._follow(code, self._find) if self._follow is not None else None
        changes = self._changes[code]
        if changes is None:
            return False
        for folder, is_in_front in changes.paths:
            self.path.insert(0 if is_in_front else len(self.path), folder)
        for folder in changes.sites:
            if folder not in self._within and len(self._within) < _MAX_WITHIN:
                self._add_site_by_code(folder)
        return changes.may_fail

    def _find(self, name: str) -> ModuleSpec | None:
        return self._finder.find_spec(name, self.path)

    def _add_site_by_code(self, folder: str) -> None:
        """Add a folder: what is known then is what is there, and what is added is not known later."""
        outer, self._known = self._known, {each for each in self.path if self._root.exists(each)}
        self._within.add(folder)
        try:
            self._add_site(folder)
        except StartFailure:
            pass  # an exception of code ends its file, and not Python
        finally:
            self._known = outer
            self._within.discard(folder)

    def _add(self, path: str) -> None:
        if path not in self._known and len(self.path) < _MAX_ENTRIES:
            self.path.append(path)
            self._known.add(path)

    def _add_package(self, folder: str, path: str) -> None:
        """Go through the lines of a `.pth` file (addpackage)."""
        try:
            data = self._read(path)
        except OSError:
            return
        except BadInputError:
            self._run(StartupCode(path, None))  # too large to be read here
            return
        is_new = "utf-8-sig" in self._text
        try:
            text = data.decode("utf-8-sig" if is_new else "utf-8")
        except UnicodeDecodeError as error:
            raise StartFailure(f"{path} is not UTF-8, and Python does not start with it") from error
        may_have_failed = False
        for line in text.splitlines() if is_new else re.split(r"\r\n?|\n", text):
            if line.startswith("#") or not line.strip():
                continue
            self._lines += 1
            if self._lines > _MAX_LINES:
                self._run(StartupCode(path, None))
                return
            if line.startswith(("import ", "import\t")):
                if not self._runs(line):
                    return
                may_have_failed |= self._run(StartupCode(path, line))
            else:
                line = line.rstrip()  # noqa: PLW2901 - as site.py does it
                entry = normpath(line if line.startswith("/") else f"{folder}/{line}")
                if self._root.exists(entry):
                    self.cut_short += [path] if may_have_failed and entry not in self._known else []
                    self._add(entry)

    def _runs(self, line: str) -> bool:
        """Whether a line of code begins to run: it can be read, and what it imports first is there."""
        if len(line) > _MAX_LINE:
            return True
        try:
            body = ast.parse(line).body
        except (SyntaxError, ValueError):
            return self._version > sys.version_info[:2]  # which may know more
        except (RecursionError, MemoryError):
            return True
        imports = takewhile(lambda statement: isinstance(statement, ast.Import), body)
        names = [alias.name.partition(".")[0] for statement in imports for alias in statement.names]  # type: ignore[attr-defined]
        there = (name in sys.stdlib_module_names or self._finder.find_spec(name, self.path) for name in names)
        return all(islice(there, _MAX_NAMES))

    def _customize(self, name: str) -> None:
        """Import a module of the site's where there is one; what goes wrong in it does not end Python."""
        spec = self._finder.find_spec(name, self.path)
        file = self._finder.code_file(spec) if spec is not None else None
        if spec is None or file is None or not self._finder.can_load(spec):
            return
        self.opened.append(file)
        text = None
        with suppress(OSError, BadInputError, UnicodeDecodeError):
            if spec.kind is SpecKind.SOURCE and spec.origin:
                text = self._root.read_bytes(spec.origin, _MAX_TEXT_BYTES).decode()
        self._run(StartupCode(spec.origin or file, text))
