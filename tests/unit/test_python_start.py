"""How a Python of an image starts, and what it imports: compared with real ones, in random trees."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest

from lumiimg.host.import_closure import imported_files
from lumiimg.host.module_finder import SpecKind
from lumiimg.host.python_build import read_build
from lumiimg.host.python_process import PythonProcess, refused_value, start_process
from lumiimg.image import open_image
from tests.shared import fabric_builder
from tests.shared.elf_builder import library, program
from tests.shared.programs import EVERYTHING, needs
from tests.shared.python_image import SITE, python
from tests.shared.python_trees import NAMES, Happened, Maker, Tree, kit_of, start_in

PYTHONS = [sys.executable, *filter(None, os.environ.get("LUMIIMG_TEST_PYTHONS", "").split(":"))]
LOADERS = {
    SpecKind.SOURCE: "SourceFileLoader",
    SpecKind.BYTECODE: "SourcelessFileLoader",
    SpecKind.EXTENSION: "ExtensionFileLoader",
    SpecKind.ZIP: "zipimporter",
    SpecKind.NAMESPACE: "",
}


@pytest.mark.parametrize("interpreter", PYTHONS)
def test_a_python_starts_and_imports_as_a_real_one_does_for_nobody(interpreter: str) -> None:
    needs("ldd")
    umask = os.umask(0o022)
    with tempfile.TemporaryDirectory(prefix="lumiimg-pythons-") as folder:
        maker = Maker(kit_of(interpreter, Path(folder, "kit")), Path(folder))
        seeds = range(1000 if EVERYTHING else 80 // len(PYTHONS))
        opened = 0
        for seed in seeds:
            tree = maker.tree(seed)
            happened, (found, question) = start_in(tree), modelled(tree)
            is_same = (None if isinstance(happened, str) else happened) == found
            assert is_same or question, (seed, tree, happened, found)
            opened += question is not None
            tree.remove()
        assert opened <= len(seeds) // 10
    os.umask(umask)


@pytest.mark.parametrize("interpreter", PYTHONS)
def test_the_zip_of_a_standard_library_gives_the_prefix_however_far_up_it_is(interpreter: str) -> None:
    needs("ldd")
    umask, changed = os.umask(0o022), set()
    with tempfile.TemporaryDirectory(prefix="lumiimg-pythons-") as folder:
        maker = Maker(kit_of(interpreter, Path(folder, "kit")), Path(folder))
        for tree in map(maker.tree, range(6)):
            usual = start_in(tree)
            if isinstance(usual, str) or not (zips := [path for path in usual.path if path.endswith(".zip")]):
                continue
            for above in list(PurePosixPath(tree.program).parents)[1:-1]:
                file = Path(f"{tree.root}{above}/lib") / PurePosixPath(zips[-1]).name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.touch()
                happened, (found, question) = start_in(tree), modelled(tree)
                assert (None if isinstance(happened, str) else happened) == found or question, (tree, above, happened)
                changed.add(happened == usual)
                file.unlink()
    os.umask(umask)
    assert changed == {True, False}


VALUES = {
    "PYTHONUTF8": ("", "0", "1", "01", "yes", "true", " 1"),
    "PYTHONHASHSEED": ("random", "0", "+5", " 5", "-1", "-0", "4294967295", "4294967296", "5 ", "abc", "RANDOM"),
    "PYTHONMALLOC": ("malloc", "pymalloc_debug", "debug", "mimalloc", "jemalloc", "Malloc"),
    "PYTHONTRACEMALLOC": ("0", "1", "65535", "65536", "-1", "x", "1 "),
    "PYTHONINTMAXSTRDIGITS": ("0", "640", "639", "x", "-1"),
    "PYTHONIOENCODING": ("utf-8", "latin1:strict", ":bogus", "bogus", "bogus:strict", "rot13", "mbcs", "utf 8"),
    "PYTHON_GIL": ("0", "1", "2"),
    "PYTHON_CPU_COUNT": ("default", "4", "0", "-1", "x"),
    "PYTHON_FROZEN_MODULES": ("on", "off", "1"),
}


@pytest.mark.parametrize("interpreter", PYTHONS)
def test_a_python_refuses_the_values_of_variables_that_a_real_one_does(interpreter: str) -> None:
    words = ["-c", "import sys; print(*sys.version_info[:2], 't' in sys.abiflags)"]
    major, minor, threads = subprocess.run(
        [interpreter, *words], capture_output=True, text=True, check=True
    ).stdout.split()
    for name, value in ((name, value) for name, values in VALUES.items() for value in values):
        done = subprocess.run([interpreter, "-S", "-c", ""], env={name: value}, capture_output=True, check=False)
        refused = refused_value((int(major), int(minor)), {name: value}, is_free_threaded=threads == "True")
        assert (refused is None) is (done.returncode == 0), (name, value)


def modelled(tree: Tree) -> tuple[Happened | None, str | None]:
    """Return (prediction for a tree, None if its Python does not start; what the model leaves open)."""
    with open_image(tree.root) as image:
        process = start_process(image.root, tree.program, tree.environment)
        open_ones = (each.what for each in process.questions if not each.what.startswith("sets sys.ran"))
        question = next(open_ones, None)
        if process.failure is not None:
            return None, question
        specs = [_spec(process, name) for name in NAMES]
    marks = {code: re.search(r"\[\((.*), (\d+)\)\]", code.text or "") for code in process.effects}
    ran = [(ast.literal_eval(mark[1]), int(mark[2])) for mark in marks.values() if mark]
    unsure = {code.path for code, effects in process.effects.items() if effects.may_fail}
    # a mark names the path under which its file was written, perhaps through links
    question = question or next(
        (f"{code.path} may end before" for code in marks if marks[code] and code.path in unsure), None
    )
    return Happened([*process.path], specs, [*dict.fromkeys(ran)]), question


def _spec(python: PythonProcess, name: str) -> tuple[str | None, list[str], str, bool] | None:
    spec = python.find_spec(name)
    if spec is None:
        return None
    return (
        spec.origin,
        [*spec.locations],
        LOADERS[spec.kind],
        spec.origin is None or python.finder.code_file(spec) is not None,
    )


def test_a_build_is_known_by_its_own_strings_and_not_by_its_name(tmp_path: Path) -> None:
    """Folders of other versions are beside it, and its name contains no version."""
    for version in ("3.9", "3.14"):
        (tmp_path / f"usr/lib/python{version}").mkdir(parents=True)
    cases = {
        ("cpython-312-x86_64-linux-gnu", ".abi3.so", "lib64", "/usr"): ((3, 12), False, "lib64", "/usr"),
        ("cpython-313t-aarch64-linux-gnu", "x", "lib", "/opt"): ((3, 13), True, "lib", "/opt"),
    }
    for number, ((tag, stable, lib, prefix), expected) in enumerate(cases.items()):
        text = "\\0".join(("", f".{tag}.so", stable, lib, "", prefix, "EXEC_PREFIX", ""))
        source = f'__attribute__((used)) const char strings[] = "{text}";'
        program(tmp_path / f"usr/bin/python-{number}", source=f"{source} void start(void) {{}}")
        shared = library(tmp_path / "usr/lib/libpython3.12.so.1.0", "-Wl,-soname,libpython3.12.so.1.0", source=source)
        program(tmp_path / f"usr/bin/shared-{number}", shared, "-Wl,-rpath,$ORIGIN/../lib")
        for name in ("python", "shared"):
            with open_image(tmp_path) as image:
                found = read_build(image.root, f"/usr/bin/{name}-{number}", {})
            assert (found.version, found.is_free_threaded, found.lib, found.prefix) == expected, name
            abi3 = [stable] if stable != "x" else []
            assert [*found.suffixes] == [f".{tag}.so", *abi3, ".so"]


@pytest.mark.threat
def test_more_lines_than_any_environment_has_are_code_that_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = fabric_builder.image(tmp_path / "image")
    python(root, "usr")
    folder = root / "usr" / SITE
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(4):
        (folder / f"{number}.pth").write_text("/usr\nimport sys\n/usr/lib\n")
        (root / f"site-{number}").mkdir()
        (root / f"site-{number}/a.pth").write_text(f"import site; site.addsitedir('/site-{(number + 1) % 4}')\n")
    (folder / "z.pth").write_text("import site; site.addsitedir('/site-0')\n")

    def unread() -> set[str]:
        with open_image(root) as image:
            process = start_process(image.root, "/usr/bin/python3.12", {})
        assert process.failure is None
        return {code.path.rpartition("/")[2] for code in process.effects if code.text is None}

    assert unread() == set()
    for name, most, paths in (
        ("_MAX_LINES", 4, {"1.pth", "2.pth", "3.pth", "z.pth"}),
        ("_MAX_PTH_FILES", 2, {"site-packages"}),
        ("_MAX_ENTRIES", 5, {"lib", *(f"site-{number}" for number in range(4))}),
        ("_MAX_WITHIN", 2, {"site-2"}),
        ("_MAX_TEXT_BYTES", 20, {f"{name}.pth" for name in "0123z"}),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(f"lumiimg.host.python_site.{name}", most)
            assert unread() == paths, name


def test_the_standard_library_of_a_real_python_lacks_nothing_that_it_imports() -> None:
    """Its binary shows which modules need no file, and `_ctypes` may be absent if it was built without libffi."""
    prefix = Path(sys.base_prefix)
    here = Path(sys.executable).resolve().relative_to(prefix)
    with open_image(prefix) as image:
        python = start_process(image.root, f"/{here}", {"PYTHONHOME": "/", "LD_LIBRARY_PATH": "/lib"})
        python = replace(python, questions=())  # of start-up code on this machine
        assert {"posix", "sys"} <= python.builtins
        for name in ("ctypes", "multiprocessing", "inspect", "socket", "typing", "uuid", "zipfile", "rlcompleter"):
            assert imported_files(python, name).missing is None, name
        without = replace(python, path=tuple(path for path in python.path if "lib-dynload" not in path))
        assert without.find_spec("_ctypes") is None
        assert imported_files(without, "ctypes").missing == "_ctypes"
