"""The mutations that `make mutate MODULE=promises` puts into guards are still of the code, and of every promise."""

from __future__ import annotations

import ast
from collections import Counter

from tools.mutation import ROOT
from tools.promises import mutated, named_tests, read_mutations


def test_each_promise_has_mutations_and_each_mutation_is_one_of_the_code() -> None:
    mutations = read_mutations()
    number = Counter(mutation.promise for mutation in mutations)
    assert {promise: number[promise] for promise in named_tests() if number[promise] < 2} == {}
    assert set(number) <= set(named_tests())
    assert len({(one.promise, one.file, one.guard, one.broken) for one in mutations}) == len(mutations)
    for mutation in mutations:
        path = ROOT / "lumiimg" / mutation.file
        text = mutated(mutation, path.read_text())  # one whose guard is gone, or no longer the only one, is told
        if path.suffix == ".py":
            ast.parse(text)
        assert mutation.why
