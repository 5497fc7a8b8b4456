"""The survivors that were looked at are still mutants of the code."""

from __future__ import annotations

import ast
import datetime as dt
import importlib

from tools import mutation
from tools.mutants import mutants


def test_each_survivor_that_was_looked_at_is_a_mutant_of_the_code_and_says_why() -> None:
    entries = mutation.read_survivors()
    for module in {entry["module"] for entry in entries}:
        tree = ast.parse(mutation.path_of(module).read_text())
        names = vars(importlib.import_module(mutation.name_of(module)))
        texts = {mutation.shown(mutant) for mutant in mutants(tree, names)}
        gone = [entry["mutant"] for entry in entries if entry["module"] == module and entry["mutant"] not in texts]
        assert gone == [], f"take them out of {mutation.SURVIVORS}, or run make mutate MODULE={module}"
    assert all(entry["reason"] and isinstance(entry["date"], dt.date) for entry in entries)


def test_each_module_that_is_measured_is_there() -> None:
    assert [module for module in mutation.MODULES if not (mutation.ROOT / f"lumiimg/{module}.py").is_file()] == []
