"""The order of rooms: a room imports only from rooms below it, and only the gate starts child processes."""

from __future__ import annotations

import ast
import importlib
import re
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import lumiimg

PACKAGE = Path(lumiimg.__file__).parent
TESTS = PACKAGE.parent / "tests"
FILES = sorted(PACKAGE.rglob("*.py"))
ROOM_FILES = [f for f in FILES if f.parent != PACKAGE]
# From the ground up; rooms on one floor do not know each other (docs/architecture.md).
FLOORS: list[set[str]] = [
    {"core"},
    {"elf", "image", "catalog", "joblog", "gpu"},
    {"engine"},
    {"fabric", "fetch"},
    {"inventory"},
    {"host"},
    {"resolve"},
    {"definition"},
    {"build", "check"},
    {"cluster"},
    {"report"},
    {"cli"},
]
FACES = {"elf": (), "gpu": (), "image": ("sif", "squashfs.format", "compare", "oci.layers", "oci.tar"), "joblog": ()}
"""Rooms of which others may use only the names in `__all__` of `__init__.py`, and these modules as a whole."""


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """Return all syntax nodes of a module, the module first; each file is parsed once."""
    return tuple(ast.walk(ast.parse(path.read_text())))


def floor(room: str) -> int:
    return next(i for i, rooms in enumerate(FLOORS) if room in rooms)


@cache
def imported_modules(path: Path) -> frozenset[str]:
    modules: set[str] = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            modules.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import; write the room's name"
            modules.add(node.module or "")
            modules.update(f"{node.module}.{alias.name}" for alias in node.names)
    return frozenset(modules)


def test_a_room_imports_only_from_rooms_below_it() -> None:
    for path in ROOM_FILES:
        room = path.relative_to(PACKAGE).parts[0]
        for module in imported_modules(path):
            parts = module.split(".")
            if parts[0] != "lumiimg" or len(parts) < 2 or parts[1] in {room, "__version__"}:
                continue
            assert floor(parts[1]) < floor(room), f"{path}: {room} imports {parts[1]}"


@pytest.mark.parametrize("room", FACES)
def test_a_room_with_a_face_is_known_by_that_alone(room: str) -> None:
    face = (*importlib.import_module(f"lumiimg.{room}").__all__, *FACES[room])
    outside = [path for path in FILES if PACKAGE / room not in path.parents]
    for path in (*outside, *TESTS.parent.glob("tools/**/*.py")):
        for module in imported_modules(path):
            if module.startswith(f"lumiimg.{room}."):
                name = module.removeprefix(f"lumiimg.{room}.")
                assert any(name == part or name.startswith(f"{part}.") for part in face), f"{path}: {module}"


def test_no_modules_import_each_other_in_a_circle_for_types_either() -> None:
    modules = {".".join(("lumiimg", *path.relative_to(PACKAGE).with_suffix("").parts)): path for path in FILES}
    modules = {name.removesuffix(".__init__"): path for name, path in modules.items()}
    TopologicalSorter(
        {name: (imported_modules(path) & modules.keys()) - {name} for name, path in modules.items()}
    ).prepare()  # the error names the circle


@pytest.mark.threat
def test_only_the_gate_starts_child_processes() -> None:
    starting = [path for path in FILES if "subprocess" in {module.split(".")[0] for module in imported_modules(path)}]
    assert starting == [PACKAGE / "engine" / "process.py"]
    imported = {module.split(".")[0] for path in FILES for module in imported_modules(path)}
    assert not imported & {"multiprocessing", "pty", "popen2", "posix", "_posixsubprocess"}
    begins = re.compile(r"system|popen|fork\w*|exec[lv]\w*|(posix_)?spawn\w*|create_subprocess_\w+|ProcessPoolExecutor")
    copies = "engine/copies.py"
    others = {
        copies if path == PACKAGE / copies else path.relative_to(PACKAGE).parent.as_posix()
        for path in FILES
        for node in nodes(path)
        if (
            isinstance(node, ast.Attribute)
            and begins.fullmatch(node.attr)
            and ast.unparse(node.value) in {"os", "asyncio"}
        )
        or (isinstance(node, ast.ImportFrom) and any(begins.fullmatch(alias.name) for alias in node.names))
    }
    assert others == {copies, "engine/namespaces"}, "the kernel's own engine is itself a child process of the gate"


@pytest.mark.threat
def test_only_one_module_parses_toml_and_it_bounds_what_is_parsed() -> None:
    parsing = [path for path in FILES if imported_modules(path) & {"tomllib", "tomli", "tomllib.loads", "tomllib.load"}]
    assert parsing == [PACKAGE / "core" / "toml.py"]


def test_only_cli_and_report_print() -> None:
    for path in FILES:
        if path.relative_to(PACKAGE).parts[0] not in {"cli", "report"}:
            calls = [node for node in nodes(path) if isinstance(node, ast.Call)]
            assert not [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "print"], path


def test_no_module_grows_beyond_one_job() -> None:
    for path in FILES:
        assert len(path.read_text().splitlines()) <= 500, path


def test_the_architecture_names_each_room() -> None:
    named = set(re.findall(r"^\| `(\w+)/` \|", (PACKAGE.parent / "docs/architecture.md").read_text(), re.MULTILINE))
    assert named == {path.relative_to(PACKAGE).parts[0] for path in ROOM_FILES}


def test_a_test_imports_what_tests_share_and_no_other_test() -> None:
    imports = re.compile(r"^ *from tests\.\w+(?:\.test_\w+ import| import test_)", re.MULTILINE)
    for path in (*TESTS.rglob("*.py"), *(PACKAGE.parent / "tools").glob("*.py")):
        assert not imports.search(path.read_text()), f"{path}: what two tests share is in tests/shared/"


READ_DIRECTLY = {
    "core/toml.py:package_toml": "our own data, before anything is started",
    "core/files.py:regular_file": "all others call it",
    "core/files.py:open_regular": "of its descriptor",
    "build/compile_cache.py:unpack_files": "of what `open_regular` opened",
    "build/metadata.py:date_labels": "what `open_file` opened",
    "build/metadata.py:write_metadata": "files of this package",
    "build/safe_fs.py": "the same below a folder that others write to, link by link",
    "build/changes.py": "its own notes, in a folder that nobody else can enter, and what `open_file` opened",
    "build/venv_inside.py:_copy_scripts": "in a container, by the image's Python, which has no lumiimg",
    "cluster/trial/folder.py:locked": "a lock, of which nothing is read",
    "engine/namespaces": "devices and tables of the kernel, and /etc/subuid",
    "image/sif.py:write_sif": "the image that it has just written",
    "joblog/files.py:_opened": "a pipe that the user named, as a log",
    "resolve/source_archive.py:read_texts": "an answer of a server",
}
"""Modules that open files without lumiimg/core/files.py, which accepts only regular files, and why."""


def _reads_directly(call: ast.Call) -> bool:
    """Return whether a call opens a file for reading that might be a pipe, a device or endless."""
    text, name = ast.unparse(call), ast.unparse(call.func)
    if re.search(
        r"/proc/|os\.devnull|\bfiles\(|O_PATH|O_DIRECTORY|O_WRONLY", text
    ):  # of the kernel's or the package's, or no reading
        return False
    mode = next(
        (arg.value for arg in call.args[:2] if isinstance(arg, ast.Constant) and isinstance(arg.value, str)), "r"
    )
    reads = bool(re.fullmatch("[rwxab+t]{1,3}", mode)) and ("r" in mode or "+" in mode)
    if name.endswith(".open") and name not in {"os.open", "gzip.open", "tarfile.open"}:  # else of a path
        return reads and isinstance(call.args[0] if call.args else ast.Constant(""), ast.Constant)
    if name == "open" or name.endswith(".open"):
        return reads or name == "os.open"
    return name.endswith(".read_text") or (name.endswith(".read_bytes") and not call.args)


@pytest.mark.threat
def test_only_core_opens_files_that_somebody_else_may_have_made() -> None:
    found = set()
    for path in FILES:
        functions = [node for node in nodes(path) if isinstance(node, ast.FunctionDef)]
        for call in (node for node in nodes(path) if isinstance(node, ast.Call) and _reads_directly(node)):
            around = [one.name for one in functions if one.lineno <= call.lineno <= (one.end_lineno or 0)]
            place = path.relative_to(PACKAGE).as_posix()
            names = {place, path.relative_to(PACKAGE).parent.as_posix(), f"{place}:{around[-1] if around else ''}"}
            assert names & READ_DIRECTLY.keys(), f"{path}:{call.lineno}: {ast.unparse(call)}: use lumiimg/core/files.py"
            found |= names & READ_DIRECTLY.keys()
    assert found == READ_DIRECTLY.keys()


def test_the_makefile_names_tests_that_are_there() -> None:
    lists = re.findall(r"addprefix tests/unit/test_,([^)]*)\)", (PACKAGE.parent / "Makefile").read_text())
    assert lists
    for name in " ".join(lists).split():
        assert [*(TESTS / "unit").glob(f"test_{name}")], name
