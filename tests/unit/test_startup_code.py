"""Effects of start-up code: those found by reading it, compared with those in a real Python."""

from __future__ import annotations

import importlib
import sys
import sysconfig
from importlib.machinery import ExtensionFileLoader, PathFinder, SourceFileLoader, SourcelessFileLoader
from pathlib import Path

import pytest

from lumiimg.host.code_names import facts
from lumiimg.host.module_finder import ModuleSpec, SpecKind
from lumiimg.host.startup_code import CodeEffects, StartupCode, StartupProcess
from tests.shared.programs import tenth_of
from tests.shared.startup_codes import ENVIRONMENT, HELPER, Code, random_codes, really

_KINDS: dict[object, SpecKind] = {
    SourceFileLoader: SpecKind.SOURCE,
    SourcelessFileLoader: SpecKind.BYTECODE,
    ExtensionFileLoader: SpecKind.EXTENSION,
}


class Reader:
    """A reader of start-up code in a folder that serves as the site folder of this machine's Python."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find(self, name: str) -> ModuleSpec | None:
        """Find a module as importlib does."""
        path = [sysconfig.get_path("stdlib"), str(Path(sysconfig.get_path("stdlib")) / "lib-dynload"), str(self.folder)]
        spec, names = None, name.split(".")
        for index in range(len(names)):
            spec = PathFinder.find_spec(".".join(names[: index + 1]), path)
            if spec is None:
                return None
            path = [*(spec.submodule_search_locations or ())]
        assert spec
        return ModuleSpec(name, _KINDS.get(type(spec.loader), SpecKind.NAMESPACE), spec.origin, tuple(path))

    def effects(self, code: Code, environment: dict[str, str]) -> list[CodeEffects]:
        """Return the effects of each line of a `.pth` file, or of another file as a whole."""
        path = str(self.folder / code.name)
        texts = code.text.splitlines() if path.endswith(".pth") else [code.text]
        codes = [StartupCode(path, text) for text in texts]
        process = StartupProcess(self.find, lambda path: Path(path).read_text(), environment)
        return [process.run(code) for code in codes]


@pytest.fixture
def reader(tmp_path: Path) -> Reader:
    (tmp_path / "helper.py").write_text(HELPER)
    return Reader(tmp_path)


HARMLESS = (
    "import os; x = os.environ.get('NCCL_NET')",
    "import os; os.environ['OF_NOBODY'] = str(len('x'))",
    "import sys; exec('import os\\nif os.getenv(\"COVERAGE_PROCESS_START\"):\\n import coverage')",
    "import os, sys;exec('if \"COV_CORE_SOURCE\" in os.environ:\\n try:\\n  from pytest_cov.embed import init\\n  init()\\n except Exception as e:\\n  sys.stderr.write(e)')",
    "import os; os.environ.get('__MODIN_AUTOIMPORT_PANDAS__', None) and __import__('pandas')",
    'import os; exec(\'try: __import__("coloredlogs").auto_install() if os.environ.get("COLOREDLOGS_AUTO_INSTALL") else None\\nexcept ImportError: pass\')',
    "import sys, types, os;p = os.path.join(sys._getframe(1).f_locals['sitedir'], *('zope',));importlib = __import__('importlib.util');__import__('importlib.machinery');m = sys.modules.setdefault('zope', importlib.util.module_from_spec(importlib.machinery.PathFinder.find_spec('zope', [os.path.dirname(p)])));m = m or sys.modules.setdefault('zope', types.ModuleType('zope'));mp = (m or []) and m.__dict__.setdefault('__path__',[]);(p not in mp) and mp.append(p)",
)


@pytest.mark.parametrize("line", HARMLESS)
def test_lines_that_many_packages_have_are_harmless(line: str, reader: Reader) -> None:
    (effects,) = reader.effects(Code("a.pth", line), {})
    assert (effects.question, effects.variables, effects.paths, effects.modules) == (None, (), (), {})


FOLLOWED = {
    "import os; os.environ['NCCL_NET'] = 'x'": CodeEffects(variables=(("NCCL_NET", "x"),)),
    "import os; os.environ.setdefault('NCCL_NET', 'x')": CodeEffects(variables=(("NCCL_NET", "x"),)),
    "import os; os.environ.setdefault('SET', 'x')": CodeEffects(),
    "import os; set = os.getenv('SET'); exec('if set: os.environ[\"NCCL_NET\"] = \"x\"')": CodeEffects(
        variables=(("NCCL_NET", "x"),)
    ),
    "import os, ctypes; not_set = os.getenv('OTHER'); exec('if not_set: ctypes.CDLL(\"x\")')": CodeEffects(),
    "import os; os.environ.pop('NCCL_NET', None)": CodeEffects(variables=(("NCCL_NET", None),)),
    "import sys; sys.path.insert(0, '/a'); sys.path.append('/b')": CodeEffects(paths=(("/a", True), ("/b", False))),
    "import site; site.addsitedir('/a')": CodeEffects(sites=("/a",)),
    'import os; exec(\'if os.getenv("SET"):\\n os.environ["NCCL_NET"] = "x"\')': CodeEffects(
        variables=(("NCCL_NET", "x"),)
    ),
}


@pytest.mark.parametrize("line", FOLLOWED)
def test_constants_at_the_top_level_are_followed(line: str, reader: Reader) -> None:
    assert reader.effects(Code("a.pth", line), {"SET": "1"}) == [FOLLOWED[line]]


def test_what_is_not_followed_is_named_with_its_line(reader: Reader) -> None:
    for text, words in {
        "import os\nos.environ['NCCL_NET'] = str(1)": "sets NCCL_NET in a way that lumiimg does not follow ({}, line 2)",
        "import ctypes\n\nctypes.CDLL('x')": "uses ctypes.CDLL ({}, line 3)",
        "import sys\nsys.meta_path.insert(0, None)": "uses sys.meta_path.insert ({}, line 2)",
        "import os\nx = os.getenv('A')\ndef f():\n global x\n x = 1\nf()\nif x:\n os.environ['NCCL_NET'] = 'x'": (
            "sets NCCL_NET in a way that lumiimg does not follow ({}, line 8)"
        ),
        "import os\nos.environ[str(1)] = 'x'": "sets a variable whose name is not constant ({}, line 2)",
        "import os\nif os.environ.get('SLURM_JOB_ID'):\n os.environ['NCCL_NET'] = 'x'": (
            "sets NCCL_NET in a way that lumiimg does not follow ({}, line 3)"
        ),
    }.items():
        (effects,) = reader.effects(Code("sitecustomize.py", text), {})
        assert effects.question == words.format(reader.folder / "sitecustomize.py")


def test_a_function_in_a_line_sees_the_names_of_site_py(reader: Reader) -> None:
    (reader.folder / "own.py").write_text("x = 1\n")
    importlib.invalidate_caches()
    line = "import own as os; (lambda: os.environ.setdefault('NCCL_NET', 'x'))()"
    (effects,) = reader.effects(Code("a.pth", line), {})
    assert effects.question == f"has a Lambda ({reader.folder}/a.pth, line 1)"


def test_what_an_import_brings_is_read_or_named(reader: Reader) -> None:
    importlib.invalidate_caches()
    (reader.folder / "sets.py").write_text("import os\nos.environ['NCCL_NET'] = 'x'\n")
    assert reader.effects(Code("a.pth", "import sets"), {}) == [CodeEffects(variables=(("NCCL_NET", "x"),))]
    (reader.folder / "compiled.so").write_bytes(b"")
    importlib.invalidate_caches()
    (effects,) = reader.effects(Code("a.pth", "import compiled"), {})
    assert effects.question == f"imports compiled, which is not available as source ({reader.folder}/a.pth, line 1)"


EDITABLES = """
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from types import ModuleType
from typing import Dict, Optional, Sequence, Union

ModulePath = Optional[Sequence[Union[bytes, str]]]


class RedirectingFinder(importlib.abc.MetaPathFinder):
    _redirections: Dict[str, str] = {}

    @classmethod
    def map_module(cls, name: str, path: str) -> None:
        cls._redirections[name] = path

    @classmethod
    def find_spec(
        cls, fullname: str, path: ModulePath = None, target: Optional[ModuleType] = None
    ) -> Optional[importlib.machinery.ModuleSpec]:
        if "." in fullname:
            return None
        if path is not None:
            return None
        try:
            redir = cls._redirections[fullname]
        except KeyError:
            return None
        spec = importlib.util.spec_from_file_location(fullname, redir)
        return spec

    @classmethod
    def install(cls) -> None:
        if cls not in sys.meta_path:
            sys.meta_path.append(cls)

    @classmethod
    def invalidate_caches(cls) -> None:
        pass
"""
"""editables/redirector.py of editables 0.6 (Paul Moore, MIT license), without its comments."""


def test_an_editable_install_maps_its_modules(reader: Reader) -> None:
    assert {"_distutils_hack/__init__.py", "setuptools/command/editable_wheel.py"} < facts().templates.keys()
    importlib.invalidate_caches()
    (reader.folder / "_editable_impl_x.py").write_text(
        "from editables.redirector import RedirectingFinder as F\nF.install()\nF.map_module('x', '/src/x/__init__.py')\n"
    )
    (effects,) = reader.effects(Code("a.pth", "import _editable_impl_x"), {})
    assert (effects.modules, effects.may_fail) == ({}, True)  # editables itself is not there
    (reader.folder / "editables").mkdir()
    (reader.folder / "editables" / "__init__.py").touch()
    (reader.folder / "editables" / "redirector.py").write_text(EDITABLES)
    importlib.invalidate_caches()
    (effects,) = reader.effects(Code("a.pth", "import _editable_impl_x"), {})
    assert effects == CodeEffects(modules={"x": "/src/x/__init__.py"})
    line = "import editables.redirector as e; len(str(1)); e.RedirectingFinder.install()"
    assert reader.effects(Code("a.pth", line), {}) == [CodeEffects(may_fail=True)]
    line = "import editables.redirector as e; e.sys.path.insert(0, '/other')"
    assert "uses editables/redirector.py.sys.path.insert" in str(reader.effects(Code("a.pth", line), {})[0].question)
    (reader.folder / "editables" / "redirector.py").write_text(EDITABLES.replace("redir)", "'/other' + redir)"))
    (effects,) = reader.effects(Code("a.pth", "import _editable_impl_x"), {})
    assert effects.question, "another finder than the known one"


def _alone(text: str) -> CodeEffects:
    code = StartupCode("/a/sitecustomize.py", text)
    return StartupProcess(dict[str, ModuleSpec]().get, dict[str, str]().get, {}).run(code)


@pytest.mark.parametrize(
    "text",
    [
        "(" * 1000,
        "x = " + "-" * 5000 + "1",
        "\0",
        "a" * 300_000,
        "def f(:",
        "# coding: utf-7\n# +AAo-import os",
        "x=" + "[" * 150 + "]" * 150,
        "1" * 5000,
    ],
)
def test_hostile_code_is_a_question_or_harmless(text: str) -> None:
    assert _alone(text).variables == ()


def test_an_encoding_in_which_a_comment_may_be_code_is_a_question() -> None:
    assert "its encoding is utf-7" in str(_alone("# coding: utf-7\n# +AAo-import os\n").question)


def test_real_pythons_do_what_was_found(reader: Reader, tmp_path: Path) -> None:
    codes = [*random_codes(41, tenth_of(1000))]
    variables = ("NCCL_NET", "LD_PRELOAD_X", "FI_PROVIDER", "NCCL_SET")
    for code, real in zip(codes, really(sys.executable, tmp_path, codes), strict=True):
        effects = reader.effects(code, dict(ENVIRONMENT))
        if any(each.question for each in effects):
            continue
        expected = {name: ENVIRONMENT.get(name) for name in variables}
        front, behind = list[str](), list[str]()
        for each in effects:
            expected |= {name: value for name, value in each.variables if name in expected}
            behind += [path for path, is_front in each.paths if not is_front] + [*each.sites]
            front = [path for path, is_front in reversed(each.paths) if is_front] + front
        assert real["changed"] <= {"environ", "c", "path"}, code.text
        assert {name: real["environ"][name] for name in variables} == expected, code.text
        assert {name: real["c"][name] for name in variables} == expected, code.text
        assert real["path"][: len(front)] == front, code.text
        assert real["path"][real["path"].index(str(tmp_path)) + 1 :] == behind, code.text
        assert ("path" in real["changed"]) is bool(front or behind), code.text
