"""Expected behaviour of each engine, and what real ones printed; tests/engine/test_engine_behaviour.py runs one."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tools.engine_behaviour import TABLE, options_of, tried_differences

ROWS = {row["id"]: row for row in tried_differences()}
RECORDINGS = Path(__file__).parents[1] / "fixtures" / "engines"


@pytest.mark.parametrize("name", ["apptainer-1.4.5", "singularityce-4.1.3"])
def test_what_the_real_programs_printed_is_what_the_table_expects(name: str) -> None:
    report: dict[str, dict[str, Any]] = tomllib.loads((RECORDINGS / f"{name}.toml").read_text())
    shows = {key: row["shows"][name.partition("-")[0]] for key, row in ROWS.items()}
    asked = {text for row in ROWS.values() if "try" not in row for text in options_of(row) if text.startswith("build ")}
    shown = {text for key, row in ROWS.items() if "try" not in row for text in shows[key].split(", ")}
    there = {f"build {word}" for word in report["build-help"]["output"].split()}
    assert len(asked) >= 8
    assert asked & shown == asked & there
    one, two, both = report["told"]["output"].splitlines()[-1].split(" ")
    assert shows["engine-variables"] == f"one={one} two={two} both={both}"
    variables = re.findall(r"^((?:APPTAINER|SINGULARITY)_[A-Z]+)=", report["environment"]["output"], re.MULTILINE)
    assert shows["variables-inside"].split() == sorted(variables)
    goes_on = "trying root-mapped namespace" in report["no-subuid"]["output"]
    assert shows["fakeroot-without-ids"] == ("goes on" if goes_on else "ends")


def test_the_files_that_a_row_names_are_there() -> None:
    rows = tomllib.loads(TABLE.read_text())["difference"]
    named = [part.split()[0].rstrip(",;") for row in rows for part in row.get("code", "").split("; ") if part]
    assert named
    assert [name for name in named if not (TABLE.parents[1] / "lumiimg" / name).exists()] == []
