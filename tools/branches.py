"""`make coverage`: how many branches of the rooms that read foreign bytes and text the unit tests take, and the floor of each.

As a plugin of pytest (`-p tools.branches`) it measures each worker's own process; `python -m tools.branches` then adds up
what all wrote and compares each room with its floor in pyproject.toml. Exit code 0 if no room is below its floor, else 1.
Programs that a test starts are not measured: their start is what some tests look at.
"""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import coverage

if TYPE_CHECKING:
    import pytest

ROOT = Path(__file__).parents[1]
DATA = ROOT / "build/coverage/data"
FLOORS: dict[str, float] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["lumiimg"]["branches"]

_measured = coverage.Coverage(
    data_file=DATA,
    data_suffix=True,
    branch=True,
    config_file=False,
    source=[str(ROOT / "lumiimg" / room) for room in FLOORS],
)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Begin, unless this process only hands tests to workers; what is imported before has no branches of its own."""
    if not session.config.getoption("numprocesses", None):
        _measured.start()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write what this process saw."""
    if not session.config.getoption("numprocesses", None):
        _measured.stop()
        _measured.save()


def branches_by_room() -> dict[str, tuple[int, int]]:
    """Return how many branches of each room were taken, and of how many."""
    whole = coverage.Coverage(data_file=DATA, branch=True, config_file=False)
    whole.combine()
    report = DATA.with_suffix(".json")
    whole.json_report(outfile=str(report))
    files = json.loads(report.read_text())["files"]
    taken = dict.fromkeys(FLOORS, (0, 0))
    for name, file in files.items():
        room = (ROOT / name).relative_to(ROOT / "lumiimg").parts[0]
        seen, of = taken[room]
        summary = file["summary"]
        taken[room] = seen + summary["covered_branches"], of + summary["num_branches"]
    return taken


def main() -> int:
    below = 0
    for room, (taken, of) in branches_by_room().items():
        percent, floor = 100 * taken / of, FLOORS[room]
        below += percent < floor
        print(f"{room + '/':10} {taken:5} of {of:5} branches, {percent:5.1f} %, floor {floor:4.1f} %", end="")
        print(" - BELOW" if percent < floor else "")
    return int(below > 0)


if __name__ == "__main__":
    sys.exit(main())
