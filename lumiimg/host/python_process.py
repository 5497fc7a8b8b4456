"""A Python once its start-up code has run: what an `import` takes, and the variables that this code has set.

Sources: CPython Lib/importlib/_bootstrap.py (_find_spec: the finders of sys.meta_path in their order); setuptools
command/editable_wheel.py (the finder of an editable install is appended: it comes behind the path finder).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from lumiimg.host.job_process import JobProcess, OpenQuestion, QuestionKind, Setting
from lumiimg.host.module_finder import ModuleSpec, SpecKind
from lumiimg.host.python_start import PythonStart, StartupCode, start_python
from lumiimg.host.root_queries import read_text
from lumiimg.host.startup_code import CodeEffects, StartupProcess, read_source

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lumiimg.image import RootFileSystem

_OF_CHILDREN = ("LD_", "PYTHONPATH", "PYTHONHOME")
"""With what variables begin that count when a program starts: for what torchrun or a pool of workers starts."""


@dataclass(frozen=True)
class PythonProcess:
    """A Python that has started, up to the first line of a job."""

    root: RootFileSystem
    start: PythonStart
    path: tuple[str, ...]
    """sys.path, without the folder of the script."""
    modules: Mapping[str, str] = field(default_factory=dict)
    """Paths of modules that editable installs map."""
    sets: tuple[Setting, ...] = ()
    questions: tuple[OpenQuestion, ...] = ()

    @property
    def program(self) -> str:
        """Return its path, as it is started."""
        return self.start.program

    @property
    def plain(self) -> JobProcess:
        """The process before it imports anything."""
        return JobProcess(
            self.program, is_python=True, sets=self.sets, questions=self.questions, reads=self.start.files
        )

    def find_spec(self, name: str) -> ModuleSpec | None:
        """Return where a module is imported from, by the locations of the packages above it; None without one."""
        parts, path, spec = name.split("."), self.path, None
        for count, part in enumerate(parts, 1):
            found = self.start.finder.find_spec(part, path)
            spec = found or self._mapped(".".join(parts[:count]))
            if spec is None:
                return None
            path = spec.locations
        return replace(spec, name=name) if spec is not None else None

    def variable(self, name: str, given: Callable[[str], str | None]) -> str | None:
        """Return a variable, `given` being that of the process when it was started."""
        own = [setting.value for setting in self.sets if setting.name == name]
        return own[-1] if own else given(name)

    def read(self, spec: ModuleSpec) -> str | None:
        """Return the source of a module; None where it has none."""
        return read_text(self.root, spec.origin) if spec.kind is SpecKind.SOURCE and spec.origin else None

    def _mapped(self, name: str) -> ModuleSpec | None:
        """Return what the finder of an editable install finds: a package by its folder, else a file without its end."""
        place = self.modules.get(name)
        if place is None:
            return None
        if self.root.is_file(origin := f"{place}/__init__.py"):
            return ModuleSpec(name, SpecKind.SOURCE, origin, (place,))
        folder, _, tail = place.rpartition("/")
        found = self.start.finder.find_spec(tail, (folder,))
        return found if found is not None and found.kind is not SpecKind.NAMESPACE else None


def start_process(root: RootFileSystem, program: str, environment: Mapping[str, str]) -> PythonProcess:
    """Return a Python after its start-up code, which is read and not run; `environment` is that of its process.

    Raises NoPythonError for a script, which may start any other, and for what is not Python.
    """
    effects: list[CodeEffects] = []
    processes: list[StartupProcess] = []

    def follow(code: StartupCode, find: Callable[[str], ModuleSpec | None]) -> CodeEffects:
        processes[:] = processes or [StartupProcess(find, partial(read_source, root), environment)]
        effects.append(processes[0].run(code))
        return effects[-1]

    start = start_python(root, program, environment, follow)
    modules, sets, questions = dict[str, str](), list[Setting](), list[OpenQuestion]()
    for code, own in zip(start.startup, effects, strict=True):
        modules = {**own.modules, **modules}
        sets += (Setting(name, value, code.path) for name, value in own.variables)
        whats = [own.question] if own.question is not None else []
        whats += (
            f"sets {name}, which counts for the processes that Python then starts"
            for name, value in own.variables
            if name.startswith(_OF_CHILDREN) and value != environment.get(name)
        )
        questions += (OpenQuestion(QuestionKind.CODE, code.path, what) for what in whats)
    unsure = "may end with an exception, and add no more of its folders"
    questions += (OpenQuestion(QuestionKind.CODE, path, unsure) for path in start.cut_short)
    return PythonProcess(root, start, start.path, modules, tuple(sets), tuple(dict.fromkeys(questions)))
