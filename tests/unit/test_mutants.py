"""The mutants are what CONTRIBUTING.md says, and the survivors that were looked at are still mutants of the code."""

from __future__ import annotations

import ast
import datetime as dt
import importlib
import textwrap
from enum import StrEnum

import pytest

from tools import mutation
from tools.mutants import mutants


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


def made(source: str) -> list[str]:
    """The module after each mutation, and that it is as it was at the end."""
    tree = ast.parse(textwrap.dedent(source))
    before, found = ast.unparse(tree), []
    for mutant in mutants(tree, {"Colour": Colour}):
        mutant.make()
        found.append(ast.unparse(tree))
        compile(tree, "mutant", "exec")
        mutant.undo()
    assert ast.unparse(tree) == before
    return found


@pytest.mark.parametrize(
    ("line", "mutants_of_it"),
    [
        ("return a < 1", ["return a <= 1", "return a >= 1", "return a < 2", "return a < 0"]),
        ("return a and b", ["return a or b", "return b", "return a"]),
        ("return a not in b", ["return a in b"]),
        ("return b[:a]", ["return b[:]"]),
        ("return min(a, b)", ["return max(a, b)"]),
        ("return Colour.RED", ["return Colour.BLUE"]),
        ("a.append(b)", ["pass"]),
        ("yield a", ["yield from ()"]),
        ("return [c for c in a if c]", ["return [c for c in a if True]"]),
        ("return f'{a < b}' + 'text'", []),
        ("raise ValueError(a < b)", []),
        ("return zip(a, b, strict=True)", []),
    ],
)
def test_a_mutant_is_one_slip_of_the_hand(line: str, mutants_of_it: list[str]) -> None:
    assert [text.partition("\n")[2].strip() for text in made(f"def f(a, b):\n    {line}\n")] == mutants_of_it


def test_a_branch_is_taken_always_and_never() -> None:
    texts = made("def f(a):\n    if a:\n        g()\n")
    assert [text.splitlines()[1].strip() for text in texts] == ["if True:", "if False:", "if a:"]


def test_each_survivor_that_was_looked_at_is_a_mutant_of_the_code_and_says_why() -> None:
    entries = mutation.read_survivors()
    for module in {entry["module"] for entry in entries}:
        tree = ast.parse(mutation.path_of(module).read_text())
        names = vars(importlib.import_module(mutation.name_of(module)))
        texts = {mutation.shown(mutant) for mutant in mutants(tree, names)}
        gone = [entry["mutant"] for entry in entries if entry["module"] == module and entry["mutant"] not in texts]
        assert gone == [], f"take them out of {mutation.SURVIVORS}, or run make mutate MODULE={module}"
    assert all(entry["reason"] and isinstance(entry["date"], dt.date) for entry in entries)
