"""Rooms stay in order: a room imports only from rooms below it, and only the gate starts child processes."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

import pytest

from tests.rooms import CONTRIBUTING, FLOORS, PACKAGE, PICTURE, picture, rooms, with_table

if TYPE_CHECKING:
    from pathlib import Path

FILES = sorted(PACKAGE.rglob("*.py"))
ROOM_FILES = [f for f in FILES if f.parent != PACKAGE]


def floor(room: str) -> int:
    return next(i for i, rooms in enumerate(FLOORS) if room in rooms)


def imported_modules(path: Path) -> set[str]:
    modules: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            modules.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import; write the room's name"
            modules.add(node.module or "")
            modules.update(f"{node.module}.{alias.name}" for alias in node.names)
    return modules


@pytest.mark.parametrize("path", ROOM_FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_a_room_imports_only_from_rooms_below_it(path: Path) -> None:
    room = path.relative_to(PACKAGE).parts[0]
    for module in imported_modules(path):
        parts = module.split(".")
        if parts[0] != "lumiimg" or len(parts) < 2 or parts[1] in {room, "__version__"}:
            continue
        other = parts[1]
        assert floor(other) < floor(room), f"{room} imports {other}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
@pytest.mark.threat("S44")
def test_only_the_gate_starts_child_processes(path: Path) -> None:
    if path == PACKAGE / "engine" / "process.py":
        return
    assert "subprocess" not in {m.split(".")[0] for m in imported_modules(path)}


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_only_cli_and_report_print(path: Path) -> None:
    if path.relative_to(PACKAGE).parts[0] in {"cli", "report"}:
        return
    calls = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call)]
    assert not [c for c in calls if isinstance(c.func, ast.Name) and c.func.id == "print"]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_no_module_grows_beyond_one_job(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 500


def test_the_rooms_are_drawn_and_told_as_they_are() -> None:
    assert PICTURE.read_text() == picture(), "run `make docs`"
    text = CONTRIBUTING.read_text()
    assert text == with_table(text), "run `make docs`"
    longest = max(rooms(), key=lambda room: room.longest_lines)
    assert f"`{longest.longest}`** is the longest" in text, "say why it may be"
