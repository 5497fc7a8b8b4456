"""How a job's output was caught and kept (tags, colours, order, files) does not change what is read in it."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from lumiimg.joblog import LogReader, read_lines
from tests.shared.composed_jobs import LAUNCHERS
from tests.shared.nccl_wordings import FAMILIES, outcomes, written
from tests.shared.programs import examples

if TYPE_CHECKING:
    from collections.abc import Callable

    from lumiimg.joblog import LogReport

LOGS = [(version, kind) for version, family in FAMILIES.items() for kind in outcomes(family)]
TAGS: dict[str, Callable[[int, str], str]] = {
    **LAUNCHERS,
    "red": lambda _, line: f"\x1b[31m{line}\x1b[0m",
    "CRLF": lambda _, line: f"{line}\r",
}
KEEPINGS = ("one file", "a file a rank", "files in turn")


def by_rank(lines: list[str]) -> list[list[str]]:
    """Return the lines of rank 0 and of the other; what names no process is rank 0's."""
    ranks: tuple[list[str], list[str]] = ([], [])
    for line in lines:
        ranks["nid005102" in line or ":4243:" in line].append(line)
    return [rank for rank in ranks if rank]


def interleaved(ranks: list[list[str]], chance: random.Random) -> list[str]:
    """Return all lines in an order that keeps that of each rank."""
    waiting = [list(reversed(rank)) for rank in ranks]
    lines = []
    while waiting := [rank for rank in waiting if rank]:
        lines.append(chance.choice(waiting).pop())
    return lines


def kept(ranks: list[list[str]], keeping: str, chance: random.Random) -> list[list[str]]:
    """Return the files that hold the job's output."""
    if keeping == "a file a rank":
        return ranks
    lines = interleaved(ranks, chance)
    if keeping == "one file":
        return [lines]
    first, second = sorted(chance.choices(range(len(lines) + 1), k=2))
    return [lines[:first], lines[first:second], lines[second:]]


def read_files(files: list[list[str]]) -> LogReport:
    reader = LogReader()
    for number, lines in enumerate(files):
        reader.begin(f"job.{number}")
        reader.feed(f"job.{number}", "".join(f"{line}\n" for line in lines).encode())
    return reader.report()


@settings(max_examples=examples(40), deadline=None)
@given(
    st.sampled_from(LOGS),
    st.sampled_from(sorted(TAGS)),
    st.sampled_from(KEEPINGS),
    st.integers(0, 1 << 30),
)
def test_how_the_output_was_caught_does_not_change_the_answer(
    log: tuple[str, str], tag: str, keeping: str, seed: int
) -> None:
    family = FAMILIES[log[0]]
    lines = written(family, outcomes(family)[log[1]])
    plain, ranks = read_lines("job", lines), by_rank(lines)
    tagged = [[TAGS[tag](rank, line) for line in own] for rank, own in enumerate(ranks)]
    files = kept(tagged, keeping, random.Random(seed))  # noqa: S311  (an order that can be repeated)
    report = read_files(files)
    assert (report.verdict, report.confidence, report.severity) == (plain.verdict, plain.confidence, plain.severity)
    assert [cause.id for cause in report.causes] == [cause.id for cause in plain.causes]
