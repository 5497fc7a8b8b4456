"""The registry of findings: each code has its meaning, is produced as the registry says, and is written nowhere else."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from dataclasses import fields
from difflib import get_close_matches
from functools import cache
from pathlib import Path

import pytest

from lumiimg.check.codes import Meaning, meanings
from lumiimg.findings import Code, Family, Level, Severity

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "lumiimg"
WINGS = {Level.STATIC: "static", Level.PROBE: "probe", Level.RUN: "run"}
QUOTED = re.compile(r"""["']([a-z]+\.[a-z]+(?:-[a-z]+)*)["']""")
"""What may be a code where it stands alone between quotes."""
FILE_NAMES = {"c", "conf", "def", "h", "out", "py", "rccl", "root", "sh", "sif", "so", "sqfs", "tar", "toml"}
"""Endings of names that look like codes, and are those of files and modules."""


@cache
def is_meant_as_a_code(text: str) -> bool:
    """Whether a text with a dot is a code, or one with a slip in it."""
    family, _, rest = text.partition(".")
    return rest not in FILE_NAMES and (family in set(Family) or bool(get_close_matches(text, map(str, Code), 1, 0.85)))


def attributes(node: ast.AST, owner: str) -> set[str]:
    """Return the members of an enumeration that an expression names."""
    return {
        part.attr
        for part in ast.walk(node)
        if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name) and part.value.id == owner
    }


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


def test_the_table_has_no_key_that_nobody_reads() -> None:
    table = tomllib.loads((PACKAGE / "check" / "codes.toml").read_text())
    known = {field.name for field in fields(Meaning)}
    assert {key for entry in table.values() for key in entry} <= known


def test_what_answers_a_finding_is_seen_by_a_probe() -> None:
    for code, meaning in meanings().items():
        for answer in filter(None, (meaning.replaced_by, meaning.noted_beside)):
            assert Severity.OK in meanings()[answer].probe, code


def test_a_code_in_a_terminal_is_found_by_one_search() -> None:
    for code in Code:  # its member is its text in capitals
        assert code.name == code.value.upper().replace(".", "_").replace("-", "_")


def test_codes_are_written_as_members_in_the_package_and_never_wrong_in_tests() -> None:
    known = {code.value for code in Code}
    for folder in ("lumiimg", "tests", "tools"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if path == PACKAGE / "findings.py":
                continue
            source = path.read_text()
            meant = {text for text in QUOTED.findall(source) if is_meant_as_a_code(text)}
            wrong = meant if folder == "lumiimg" else meant - known
            # what is quoted inside another text is none
            for node in ast.walk(ast.parse(source)) if wrong else ():
                if isinstance(node, ast.Constant) and node.value in wrong:
                    why = "is a member of Code" if folder == "lumiimg" else "is not a code"
                    pytest.fail(f"{path}:{node.lineno}: {node.value!r} {why}")
