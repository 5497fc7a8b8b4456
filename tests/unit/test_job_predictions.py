"""Is a yes or a no of `check --level static` what then happens? Images with real Pythons, run by the real loader.

`tests/shared/job/` makes them: each known-good image with each fault and decoy, on nodes, with variables. CI tries some
of the pairs, `make test-all` tries all.
"""

from __future__ import annotations

import pytest

from tests.shared.job.bases import BASES
from tests.shared.job.examiner import KINDS, WRONG, Examiner
from tests.shared.job.generator import CHANGES, ONCE_WRONG, Case, Machine, cases
from tests.shared.job.pairs import Grade, pair_of
from tests.shared.job.system import system_here
from tests.shared.programs import EVERYTHING, sampled

PARTS = 8
"""Parts of the pairs, so that several workers can share them."""
_CI_TAKES_ONE_OF = 400
_PLANTED_OF_A_KIND = 390
"""5,070 images."""


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    folder = tmp_path_factory.mktemp("jobs")
    return Machine(folder / "images", system_here(folder / "system"))


@pytest.mark.parametrize("part", range(PARTS if EVERYTHING else 1))
def test_no_answer_of_the_files_is_another_than_what_happens(machine: Machine, part: int) -> None:
    wanted = cases()[part::PARTS] if EVERYTHING else cases()[::_CI_TAKES_ONE_OF]
    pairs = [*machine.pairs(wanted)]
    wrong = [str(pair) for pair in pairs if pair.grade not in {Grade.RIGHT, Grade.OPEN}]
    assert not wrong, "\n".join(wrong)
    assert any(pair.is_fast for pair in pairs)
    assert any(not pair.is_fast for pair in pairs)


@pytest.fixture(scope="module")
def examiner(tmp_path_factory: pytest.TempPathFactory) -> Examiner:
    folder = tmp_path_factory.mktemp("planted")
    return Examiner(folder / "images", system_here(folder / "system"))


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_planted_is_answered_as_it_then_happens_or_left_open(examiner: Examiner, kind: str) -> None:
    """In a process of a real Python that runs as nobody: start-up code, package folders, forms of torch, file modes."""
    names = [f"{kind}-{number}" for number in range(_PLANTED_OF_A_KIND if EVERYTHING else 2)]
    assert [str(each) for each in examiner.examined(names) if each.mark in WRONG] == []


@pytest.mark.parametrize("case", sampled(ONCE_WRONG, 4), ids=str)
def test_what_was_wrong_once_is_not_again(machine: Machine, case: Case) -> None:
    (pair,) = machine.pairs([case])
    assert pair.grade in {Grade.RIGHT, Grade.OPEN}, pair


def test_a_module_that_replaces_one_of_the_standard_library_leaves_the_answer_open(machine: Machine) -> None:
    with machine.image(Case("torch-with-rccl")) as world:
        assert world is not None
        world.set(PYTHONPATH="/opt/own")
        for file, grade in (("mine.py", Grade.RIGHT), ("struct/data", Grade.RIGHT), ("struct.py", Grade.OPEN)):
            world.put(f"/opt/own/{file}", "raise ImportError('not the real one')", 0o644)
            pair = pair_of(file, world, {}, None)
            assert (pair.grade, pair.is_fast) == (grade, grade is Grade.RIGHT), pair
            assert ("replaces the standard library's module struct" in pair.asked) is not pair.is_fast, pair.asked


def test_each_known_good_image_is_a_yes_and_what_it_opens_is_known_file_by_file(machine: Machine) -> None:
    known_good = [case for case in cases() if not case.changes and not case.variables and not case.node]
    assert [case.base for case in known_good] == [*BASES]
    some = sampled(known_good, 5)
    assert [str(pair) for pair in machine.pairs(some) if pair.grade is not Grade.RIGHT or not pair.is_fast] == []


def test_the_pairs_are_a_thousand_and_more_and_each_change_is_made_to_each_image() -> None:
    every = cases()
    assert len(every) > 1000
    assert {(base, change) for base in BASES for change in CHANGES} <= {
        (case.base, case.changes[0]) for case in every if len(case.changes) == 1 and not case.variables
    }
