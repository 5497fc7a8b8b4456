"""The registry of findings: each code has a meaning, is produced as registered, and is written nowhere else."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from lumiimg.check.registry import Findings, finding_types
from lumiimg.check.static.commands import usable_remedies
from lumiimg.core.findings import STAND_INS, Level, Severity

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


def codes_in(node: ast.AST) -> set[str]:
    """Return the codes of findings in a piece of syntax."""
    return {part.value for part in ast.walk(node) if isinstance(part, ast.Constant) and part.value in finding_types()}


SURE = frozenset({"image.architecture", "image.driver", "program.venv-python", "program.venv-torch"})
"""About the machine and what is bound: variables do not affect them. All others are open if a variable is in doubt."""


def pairs(table: ast.AST) -> Iterator[tuple[str, Severity]]:
    """Yield each code and severity in the same row of a table."""
    rows = [node for node in ast.walk(table) if isinstance(node, ast.Tuple)]
    for code, severity in (p for row in rows for p in product(codes_in(row), attributes(row, "Severity"))):
        yield code, Severity[severity]


def produced(level: Level) -> Iterator[tuple[str, Severity]]:
    """Yield each (code, severity) that the code for a level in check/ produces."""
    for path in (PACKAGE / "check" / WINGS[level]).glob("*.py"):
        module = ast.parse(path.read_text())
        tables = [node for node in module.body if isinstance(node, ast.Assign) and codes_in(node)]
        for call in ast.walk(module):
            if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "add"):
                continue
            if len(call.args) < 2:
                continue
            if not codes_in(call.args[0]) and (rows := [row for table in tables for row in pairs(table)]):
                yield from rows
                continue
            codes = codes_in(call.args[0]) or {name for table in tables for name in codes_in(table)}
            # a severity in a variable is one of these two
            severities = attributes(call.args[1], "Severity") or {"PROBLEM", "UNKNOWN"}
            yield from ((code, Severity[severity]) for code in codes for severity in severities)
    if level is Level.STATIC:  # what `as_doubts` of check/static/variables.py makes of problems
        problems = {code for code, meaning in finding_types().items() if Severity.PROBLEM in meaning.static}
        yield from ((code, Severity.UNKNOWN) for code in problems - SURE)


@pytest.mark.parametrize("level", Level)
def test_each_level_finds_what_the_registry_says_with_the_severities_that_it_says(level: Level) -> None:
    reported = {(code, severity) for code, meaning in finding_types().items() for severity in meaning.severities(level)}
    assert reported == set(produced(level))


def test_each_code_has_one_meaning_and_is_found_at_some_level() -> None:
    for code, meaning in finding_types().items():
        assert any(meaning.severities(level) for level in Level), code
        assert meaning.text.endswith("."), code
        assert (meaning.no is None) or Severity.PROBLEM in (*meaning.static, *meaning.probe, *meaning.run), code


def test_what_looks_like_a_code_is_one() -> None:
    """A misspelt code in a lookup of findings would never match."""
    families = {code.partition(".")[0] for code in finding_types()}
    looks = re.compile(rf"(?:{'|'.join(families)})\.[a-z][a-z-]+")
    for path in (path for room in ("check", "cluster", "report", "cli") for path in (PACKAGE / room).rglob("*.py")):
        found = (node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant))
        for text in (text for text in found if isinstance(text, str) and looks.fullmatch(text)):
            assert text in finding_types() or text == "image.sif", (path, text)


def test_what_answers_a_finding_is_seen_by_a_probe() -> None:
    for code, meaning in finding_types().items():
        for answer in filter(None, (meaning.answered_by, meaning.demoted_by)):
            assert Severity.OK in finding_types()[answer].probe, code
        assert meaning.demoted_by is None or finding_types()[meaning.demoted_by].outweighs, code


def test_every_text_of_the_registry_is_whole_and_gets_the_names_that_it_has() -> None:
    """A placeholder that no caller fills would be printed as it is; a reason that none gives would never be printed."""
    given: dict[str, set[str]] = {}
    reasons: dict[str, set[str]] = {}
    for path in (PACKAGE / "check").rglob("*.py"):
        module = ast.parse(path.read_text())
        nodes = list(ast.walk(module))
        texts = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
        texts |= {node.arg for node in nodes if isinstance(node, ast.keyword) and node.arg}
        for code in codes_in(module):
            given.setdefault(code, set()).update(texts)
            reasons.setdefault(code, set()).update(texts)
    for code, kind in finding_types().items():
        assert kind.reasons.keys() <= reasons[code], code
        for of in (kind, *kind.reasons.values()):
            for text in (of.summary, of.cause, of.source, *(part for remedy in of.remedy for part in remedy.values())):
                assert text is None or (text and text == text.strip() and not text.endswith(".")), (code, text)
                names = set(re.findall(r"(?<!\$)\{(\w+)\}", text or ""))
                assert names <= given[code] | {*STAND_INS, "where"}, (code, text)
            assert all(remedy.keys() <= {"text", "command", "where"} for remedy in of.remedy), code
            assert of is kind or of.summary or of.cause or of.remedy or of.source, code


@pytest.mark.threat
def test_a_name_out_of_an_image_ends_no_quotes_of_a_command() -> None:
    """Nor is `{image}` in the path of a plugin replaced by the name of the image."""
    for name in ("/opt/a b/x.so", "/opt/$(id)/x.so", "/opt/'; id; '/x.so", "/opt/{image}/x.so", "/opt/{path}"):
        found = Findings(Level.STATIC)
        found.add("rccl.several", Severity.INFO, "two", reason="other", names={"path": name})
        (remedy,) = usable_remedies(found.found[0].remedy, "it's; id; ' {site}.sif", "lumi")
        assert shlex.split(str(remedy.command)) == ["lumiimg", "ldd", "it's; id; ' {site}.sif", name], name


def test_what_a_finding_says_of_an_image_is_no_text_of_the_registry() -> None:
    found = Findings(Level.STATIC)
    found.add("image.covered", Severity.INFO, reason="hidden", where="/{folder}", cause="/opt/{where} is bound")
    assert (found.found[0].summary, found.found[0].cause) == (
        "/{folder} is in the image but not in the container",
        "/opt/{where} is bound",
    )
