"""A Python of an image after its start, before the first line of a job: what an `import` finds, and its variables.

Nothing is run. Files are seen as non-root users see them (`RootFileSystem.for_users`). The current folder and the home
folder are the host's: neither counts.
Sources: CPython Lib/importlib/_bootstrap.py (_find_spec: the finders of sys.meta_path in their order),
Python/preconfig.c and initconfig.c (variables); setuptools command/editable_wheel.py (its finder is appended).
"""

from __future__ import annotations

import codecs
import re
import sys
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from lumiimg.core.errors import one_safe_line
from lumiimg.host.getpath import StartFailure, dirname, find_paths
from lumiimg.host.job_process import Failure, JobProcess, OpenQuestion, QuestionKind, Setting
from lumiimg.host.module_finder import ModuleFinder, SpecKind
from lumiimg.host.python_build import read_build
from lumiimg.host.python_site import Site
from lumiimg.host.root_queries import names_in, read_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from lumiimg.host.module_finder import ModuleSpec
    from lumiimg.host.python_build import PythonBuild
    from lumiimg.host.startup_code import CodeEffects, StartupCode
    from lumiimg.image import RootFileSystem

_FIRST_MODULES = ("encodings", "encodings.aliases", "encodings.utf_8")
_SITE_MODULES = ("codecs", "io", "abc", "site", "os", "stat", "posixpath", "genericpath", "_collections_abc")
"""Modules that are frozen since 3.11, and read from files before."""
_FROZEN_SINCE = (3, 11)
_GIL_SINCE = (3, 13)
"""First version that can be built without a GIL, and that reads `PYTHON_…` variables."""
_CHILD_VARIABLES = ("LD_", "PYTHONPATH", "PYTHONHOME")
"""Prefixes of variables that count when a program starts: for the children of torchrun or of a worker pool."""
_DECIMAL = re.compile(r"[ \t]*[+-]?[0-9]{1,20}")
_VALUES: Mapping[str, tuple[range, str]] = {
    "PYTHONUTF8": (range(0), "0 1"),
    "PYTHONHASHSEED": (range(1 << 32), "random"),
    "PYTHONMALLOC": (range(0), "default debug malloc malloc_debug pymalloc pymalloc_debug"),
    "PYTHONTRACEMALLOC": (range(1 << 16), ""),
    "PYTHONINTMAXSTRDIGITS": (range(640, 1 << 31), "0"),
    "PYTHON_CPU_COUNT": (range(1, 1 << 20), "default"),
    "PYTHON_GIL": (range(0), "1"),
    "PYTHON_FROZEN_MODULES": (range(0), "on off"),
}
"""Numbers and words that Python accepts, for variables that can keep it from starting."""
_ENCODING = "PYTHONIOENCODING"
STARTING = (
    *(f"PYTHON{name}" for name in ("HOME", "PATH", "EXECUTABLE", "PLATLIBDIR", "USERBASE", "NOUSERSITE")),
    *_VALUES,
    _ENCODING,
)
"""Variables that decide whether and how a Python starts."""


@dataclass(frozen=True)
class PythonProcess:
    """A Python that has started."""

    root: RootFileSystem
    program: str
    finder: ModuleFinder
    path: tuple[str, ...]
    """sys.path after site and the code that it ran, without the script's folder."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment that it was started with."""
    builtins: frozenset[str] = sys.stdlib_module_names
    """Modules that need no file."""
    effects: Mapping[StartupCode, CodeEffects] = field(default_factory=dict)
    """Effects of the code that runs at each start, in execution order."""
    files: tuple[str, ...] = ()
    """Files that the process has read; a file that it needs and cannot read is the failure."""
    failure: Failure | None = None
    """Why Python does not start."""
    modules: Mapping[str, str] = field(default_factory=dict)
    """Paths of modules that editable installs map."""
    sets: tuple[Setting, ...] = ()
    questions: tuple[OpenQuestion, ...] = ()

    @property
    def plain(self) -> JobProcess:
        """The process before it imports anything."""
        return JobProcess(self.program, is_python=True, sets=self.sets, questions=self.questions, reads=self.files)

    def find_spec(self, name: str) -> ModuleSpec | None:
        """Return where a module is imported from; None where it is not found."""
        return self.finder.find_spec(name, self.path, self.modules)

    def variable(self, name: str) -> str | None:
        """Return a variable as start-up code leaves it."""
        own = [setting.value for setting in self.sets if setting.name == name]
        return own[-1] if own else self.environment.get(name)

    def read(self, spec: ModuleSpec) -> str | None:
        """Return the source of a module; None where it has none."""
        return read_text(self.root, spec.origin) if spec.kind is SpecKind.SOURCE and spec.origin else None


def start_process(root: RootFileSystem, program: str, environment: Mapping[str, str]) -> PythonProcess:
    """Return the Python at an absolute path after its start-up code; `environment` is that of its process.

    Raises NoPythonError for a script, which may start any other program, and for anything that is not Python.
    """
    build = read_build(root.for_root(), program, environment)  # users who may run it need not be allowed to read it
    users = root.for_users()
    finder = ModuleFinder(users, build.suffixes, build.version)
    python = PythonProcess(root, program, finder, (), environment, build.builtins, files=(program,))
    if name := refused_value(build.version, environment, is_free_threaded=build.is_free_threaded):
        why = f"{program} does not start: {name} cannot be {one_safe_line(environment[name])}"
        return replace(python, failure=Failure(why, program))
    try:
        paths = find_paths(users, build, program, environment)
        elsewhere = "may make Python search elsewhere for its modules"
        questions = [OpenQuestion(QuestionKind.CODE, path, elsewhere) for path in paths.not_followed]
        python = replace(python, questions=tuple(questions))
        files = [program, *_read_first(finder, build, program, paths.path)]
    except StartFailure as error:
        file = _closed_file(root, build, program, environment)
        why = f"only root may read {file}" if file else str(error)
        return python if python.questions else replace(python, failure=Failure(why, file or program))
    site = Site(users, finder, paths, environment)
    modules, sets = dict[str, str](), list[Setting]()
    for code, effects in site.effects.items():
        modules = {**effects.modules, **modules}
        sets += (Setting(name, value, code.path) for name, value in effects.variables)
    questions += (OpenQuestion(QuestionKind.CODE, *each) for each in _open_questions(site, environment))
    no_files = build.builtins.union(_SITE_MODULES if build.version >= _FROZEN_SINCE else ())
    names, stdlib = sys.stdlib_module_names - no_files, f"{paths.prefix}/{paths.lib}/{paths.library}"
    for name, file in _replacing_modules(users, finder, site.path, stdlib, names):
        what = f"replaces the standard library's module {name}"
        questions.append(OpenQuestion(QuestionKind.CODE, file, what))
    return replace(
        python,
        path=tuple(folder for folder in site.path if folder.startswith("/")),
        effects=site.effects,
        files=tuple(dict.fromkeys((*files, *site.opened))),
        modules=modules,
        sets=tuple(sets),
        questions=tuple(dict.fromkeys(questions)),
    )


def refused_value(version: tuple[int, int], environment: Mapping[str, str], *, is_free_threaded: bool) -> str | None:
    """Return the variable whose value keeps a Python from starting; None if there is none."""
    since = {"PYTHONMALLOC": "mimalloc mimalloc_debug", "PYTHON_GIL": "0" if is_free_threaded else ""}
    for name, (numbers, words) in _VALUES.items():
        value = environment.get(name)
        if not value or (name.startswith("PYTHON_") and version < _GIL_SINCE):
            continue
        more = since.get(name, "") if version >= _GIL_SINCE else ""
        is_number = _DECIMAL.fullmatch(value) is not None and int(value) in numbers
        if not is_number and value not in f"{words} {more}".split():
            return name
    return None if _is_text_encoding(environment.get(_ENCODING, "").partition(":")[0]) else _ENCODING


def _is_text_encoding(name: str) -> bool:
    """Whether streams accept an encoding; an empty name stands for the locale's."""
    try:
        return not name or codecs.lookup(name)._is_text_encoding  # noqa: SLF001 - as io asks
    except (LookupError, ValueError):
        return False


def _read_first(finder: ModuleFinder, build: PythonBuild, program: str, path: Sequence[str]) -> Iterator[str]:
    """Yield the files of modules that Python cannot start without. Raises StartFailure."""
    for name in (*_FIRST_MODULES, *(_SITE_MODULES if build.version < _FROZEN_SINCE else ())):
        spec = finder.find_spec(name, path)
        file = finder.code_file(spec) if spec is not None else None
        if file is None:
            raise StartFailure(f"it does not find module {name} when started as {program}")
        yield file


def _closed_file(root: RootFileSystem, build: PythonBuild, program: str, environment: Mapping[str, str]) -> str | None:
    """Return the file to be read, or folder to be listed, that keeps users, but not root, from starting a Python."""
    root, users = root.for_root(), root.for_users()
    with suppress(StartFailure):
        paths = find_paths(root, build, program, environment)
        finder = ModuleFinder(root, build.suffixes, build.version)
        files = [f"{paths.venv.prefix}/pyvenv.cfg"] if paths.venv else []
        files += _read_first(finder, build, program, paths.path)
        obstacles = ((place, users.obstacle(place)) for place in (*files, *map(dirname, files), *paths.path))
        return next((place for place, each in obstacles if each is not None and not each.is_for_some), None)
    return None


def _replacing_modules(
    root: RootFileSystem, finder: ModuleFinder, path: Sequence[str], stdlib: str, names: frozenset[str]
) -> Iterator[tuple[str, str]]:
    """Yield (name, file) of modules with these names that precede the standard library: a random.py on PYTHONPATH."""
    for folder in path[: path.index(stdlib)] if stdlib in path else ():
        there = names.intersection(name.partition(".")[0] for name in names_in(root, folder))
        if there and root.resolve_where_possible(folder) != root.resolve_where_possible(stdlib):
            found = ((name, finder.find_spec(name, (folder,))) for name in sorted(there))
            yield from ((name, spec.origin) for name, spec in found if spec is not None and spec.origin is not None)


def _open_questions(site: Site, environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield (file, what is not known about the effects of its code)."""
    for code, effects in site.effects.items():
        if effects.question is not None:
            yield code.path, effects.question
        for name, value in effects.variables:
            if name.startswith(_CHILD_VARIABLES) and value != environment.get(name):
                yield code.path, f"sets {name} for the processes that Python then starts"
    for path in site.cut_short:
        yield path, "may end with an exception and not add its other folders"
