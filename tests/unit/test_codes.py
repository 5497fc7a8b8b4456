"""The registry of findings: each code has its meaning, is produced as the registry says, and is written nowhere else."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from lumiimg.check.codes import meanings
from lumiimg.findings import Code, Level, Severity

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "lumiimg"
WINGS = {Level.STATIC: "static", Level.PROBE: "probe", Level.RUN: "run"}


def attributes(node: ast.AST, owner: str) -> set[str]:
    """Return the members of an enumeration that an expression names."""
    return {
        part.attr
        for part in ast.walk(node)
        if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name) and part.value.id == owner
    }


DOUBTED = (Code.PROVIDER_EXCLUDED, Code.RCCL_LOAD, Code.LIBRARY_CUT_OFF, Code.PROGRAM_CUDA, Code.GPU_XNACK)
"""Found as problems, and open where they hang on a variable that only a shell knows."""


def produced(level: Level) -> Iterator[tuple[Code, Severity]]:
    """Yield what the code of a wing of check/ gives to findings: (code, severity)."""
    for path in (PACKAGE / "check" / WINGS[level]).glob("*.py"):
        module = ast.parse(path.read_text())
        tables = [node for node in module.body if isinstance(node, ast.Assign) and attributes(node, "Code")]
        for call in ast.walk(module):
            if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "add"):
                continue
            if len(call.args) < 3:
                continue
            codes = attributes(call.args[0], "Code") or {name for table in tables for name in attributes(table, "Code")}
            # a severity in a variable is one of these two
            severities = attributes(call.args[1], "Severity") or {"PROBLEM", "UNKNOWN"}
            yield from ((Code[code], Severity[severity]) for code in codes for severity in severities)
    if level is Level.STATIC:  # what `doubted` of check/static/variables.py makes of problems
        yield from ((code, Severity.UNKNOWN) for code in DOUBTED)


@pytest.mark.parametrize("level", Level)
def test_each_level_finds_what_the_registry_says_with_the_severities_that_it_says(level: Level) -> None:
    said = {(code, severity) for code, meaning in meanings().items() for severity in meaning.severities(level)}
    assert said == set(produced(level))


def test_each_code_has_one_meaning_and_is_found_at_some_level() -> None:
    assert set(meanings()) == set(Code)
    for code, meaning in meanings().items():
        assert any(meaning.severities(level) for level in Level), code
        assert meaning.text.endswith("."), code
        assert (meaning.no is None) or Severity.PROBLEM in (*meaning.static, *meaning.probe, *meaning.run), code


def test_what_answers_a_finding_is_seen_by_a_probe() -> None:
    for code, meaning in meanings().items():
        for answer in filter(None, (meaning.replaced_by, meaning.noted_beside)):
            assert Severity.OK in meanings()[answer].probe, code
