"""Thousands of jobs whose verdicts are known by construction, and which quotations of other jobs do not change."""

from __future__ import annotations

import json
import random
from itertools import pairwise, product

import pytest

from lumiimg.core.findings import Severity
from lumiimg.joblog import LogReport, read_lines
from tests.shared.composed_jobs import LAUNCHERS, QUOTED, QUOTES, ComposedJob, recipes
from tests.shared.joblog import read_files
from tests.shared.nccl_wordings import FAMILIES, OUTCOMES, outcomes, written
from tests.shared.programs import EVERYTHING, sampled

PARTS = 16 if EVERYTHING else 1
"""Parts of the whole, which takes about twenty minutes, to be shared by all workers."""


@pytest.mark.parametrize("part", range(PARTS))
def test_each_job_is_read_as_it_was_composed_and_what_it_quotes_changes_nothing(part: int) -> None:
    every = list(enumerate(recipes()))
    assert len(every) > 19_000
    jobs = [(seed, compose()) for seed, compose in sampled(every[part::PARTS], 200)]
    assert {job.launcher for _, job in jobs} == LAUNCHERS.keys()
    assert {job.version for _, job in jobs} == FAMILIES.keys()
    assert {job.outcome for _, job in jobs} >= OUTCOMES.keys()
    wrong = [fault for seed, job in jobs if (fault := _fault(job, seed))]
    assert not wrong, f"{len(wrong)} of {len(jobs)}: {wrong[:3]}"


LEARNED = {"stern"}
"""Launchers whose prefix is only learned after enough lines."""


def _fault(job: ComposedJob, seed: int) -> str:
    plain = read_lines("job.out", job.lines)
    quoting = read_lines("job.out", job.with_quotes(seed))
    name = f"{job.launcher}, {job.version}, {job.outcome}, {job.elsewhere}"
    if (plain.verdict, job.confidence or plain.confidence) != (job.verdict, plain.confidence):
        return f"{name}: {plain.verdict}, {plain.confidence} for {job.verdict}, {job.confidence}"
    # a prefix cannot be learned from the few lines of a part
    kept = _kept(job, seed) if job.launcher != "stern" else plain
    if (kept.verdict, kept.confidence, kept.severity) != (plain.verdict, plain.confidence, plain.severity):
        return f"{name}: {kept.verdict}, {kept.confidence} in other files and another order"
    if job.launcher in LEARNED and quoting.verdict == "none":
        return ""  # most lines are quotations, so it is not learned
    # one that begins with ERROR and is the last line reports a failure, whatever it quotes
    is_open = quoting.ended.cause == "failure-reported" and plain.ended.cause is None
    if quoting.ended != plain.ended and not is_open:
        return f"{name}: ended by {quoting.ended} with quotes, by {plain.ended} without"
    severity = Severity.UNKNOWN if is_open and plain.severity is Severity.OK else plain.severity
    if (quoting.verdict, quoting.confidence, quoting.severity) != (plain.verdict, plain.confidence, severity):
        return (
            f"{name}: {quoting.verdict}, {quoting.confidence} with quotes, {plain.verdict}, {plain.confidence} without"
        )
    return ""


def _kept(job: ComposedJob, seed: int) -> LogReport:
    """Return the report on a job whose nodes' lines are interleaved at random, in a file per node, one, or several."""
    chance = random.Random(seed)  # noqa: S311 - an order that can be repeated
    waiting: dict[str, list[str]] = {}
    for line in job.lines:
        node = next(
            (f"nid00510{n}" for n in range(9) if f"nid00510{n}" in line),
            "nid005101" if ":4243:" not in line else "4243",
        )
        waiting.setdefault(node, []).append(line)
    files = list(waiting.values())
    if seed % 3:
        mixed = []
        while left := [lines for lines in files if lines]:
            mixed.append(chance.choice(left).pop(0))
        cuts = sorted(chance.choices(range(len(mixed) + 1), k=2 if seed % 3 == 1 else 0))
        files = [mixed[start:end] for start, end in pairwise([0, *cuts, len(mixed)])]
    return read_files(*((f"job.{number}", lines) for number, lines in enumerate(files)))


VERSIONS = [version for version, family in FAMILIES.items() if "cxi" in outcomes(family)]


@pytest.mark.parametrize(("version", "launcher"), sampled(product(VERSIONS, ["none", "srun -l", "torchrun"]), 6))
def test_what_a_run_proved_is_no_answer_about_one_that_began_after_it(version: str, launcher: str) -> None:
    lines = written(FAMILIES[version], outcomes(FAMILIES[version])["cxi"])
    first = [LAUNCHERS[launcher](8 if ":4243:" in line else 0, line) for line in lines]
    again = [line.replace(":424", ":524") for line in first]
    assert read_lines("job.out", first).severity is Severity.OK
    assert any(":524" in line for line in again)
    for begun in (again[: cut + 1] for cut in range(len(again)) if ":524" in again[cut]):
        alone, both = read_lines("job.out", begun), read_lines("job.out", [*first, "step 1", *begun])
        assert (both.verdict, both.confidence, both.severity) == (alone.verdict, alone.confidence, alone.severity), (
            begun[-1]
        )
        assert both.runs == 2


BESIDE: tuple[dict[str, object], ...] = (
    {"stream": "chat"},
    {"time": "2026"},
    {"@timestamp": "2026"},
    {"stream": ["stderr"]},
    {},
)


def test_records_that_no_collector_writes_are_text() -> None:
    for key, beside, kind in product(("log", "message", "MESSAGE", "textPayload"), BESIDE, QUOTED):
        lines = [f"n{rank}:7:7 [0] NCCL INFO {message}" for rank in range(4) for message in QUOTED[kind]]
        records = [json.dumps({key: line, **beside}) for line in lines]
        assert read_lines("job.out", records).verdict == "none", (key, beside, kind)


def test_a_collectors_records_among_other_lines_are_what_a_program_printed() -> None:
    for kind in QUOTED:
        messages = [f"n{rank}:7:7 [0] NCCL INFO {message}" for rank in range(4) for message in QUOTED[kind]]
        records = [LAUNCHERS["Docker"](0, line) for line in messages]
        assert read_lines("job.out", records).verdict == read_lines("job.out", messages).verdict != "none", kind
        assert read_lines("job.out", ["==> a.log <==", *records]).verdict != "none", kind
        for lines in ([*records, "step 1", "step 2"], ["step 1", *records, "step 2"], ["step 1", "step 2", *records]):
            assert read_lines("job.out", lines).verdict == "none", kind


def test_a_job_that_only_quotes_is_never_proved() -> None:
    for kind, quote in product(QUOTED, QUOTES):
        lines = [
            quote.format(line=f"nid009999:7:7 [0] NCCL INFO {expected}", message=expected) for expected in QUOTED[kind]
        ]
        report = read_lines("job.out", ["step 1", *lines, "step 2"])
        assert report.confidence != "proved" or report.verdict.startswith("plugin-"), (kind, quote)
        assert report.severity is not Severity.OK, (kind, quote)
