"""Thousands of jobs whose verdict is known by construction, and what they quote of other jobs changes none."""

from __future__ import annotations

import pytest

from lumiimg.nccl.reader import read_lines
from tests.shared.composed_jobs import LAUNCHERS, QUOTED, QUOTES, ComposedJob, composed_jobs, dying_jobs
from tests.shared.job_deaths import DEATHS
from tests.shared.programs import EVERYTHING

JOBS = [*composed_jobs(), *dying_jobs()]
STEP = 1 if EVERYTHING else 29
"""Of the jobs of a launcher each so many-th is read; all of them in `make test-all`."""


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_each_job_is_read_as_it_was_composed_and_what_it_quotes_changes_nothing(launcher: str) -> None:
    jobs = [(seed, job) for seed, job in enumerate(JOBS) if job.launcher == launcher]
    wrong = [fault for seed, job in jobs[::STEP] if (fault := _fault(job, seed))]
    assert not wrong, f"{len(wrong)} of {len(jobs)}: {wrong[:3]}"


def test_there_are_enough_of_them() -> None:
    assert len(JOBS) >= 5000


def _fault(job: ComposedJob, seed: int) -> str:
    plain = read_lines("job.out", job.lines)
    quoting = read_lines("job.out", job.with_quotes(seed))
    name = f"{job.launcher}, {job.version}, {job.outcome}, {job.elsewhere}"
    if (plain.verdict, job.confidence or plain.confidence) != (job.verdict, plain.confidence):
        return f"{name}: {plain.verdict}, {plain.confidence} for {job.verdict}, {job.confidence}"
    ended = DEATHS[job.death].id if job.death else None
    for report in (plain, quoting):
        if (report.ended.id if report.ended else None) != ended:
            return f"{name}: ended by {report.ended}, not {job.death}"
    if job.death and not plain.ranks:
        return ""  # no line of it is of a network: then what is pasted may be all that there is of one
    if (quoting.verdict, quoting.confidence, quoting.answer) != (plain.verdict, plain.confidence, plain.answer):
        return (
            f"{name}: {quoting.verdict}, {quoting.confidence} with quotes, {plain.verdict}, {plain.confidence} without"
        )
    return ""


@pytest.mark.parametrize("quote", QUOTES)
@pytest.mark.parametrize("kind", QUOTED)
def test_a_job_that_only_quotes_is_never_proved(quote: str, kind: str) -> None:
    lines = [quote.format(line=f"nid009999:7:7 [0] NCCL INFO {said}", message=said) for said in QUOTED[kind]]
    report = read_lines("job.out", ["step 1", *lines, "step 2"])
    assert report.confidence != "proved" or report.verdict.startswith("plugin-")
    assert report.answer.name != "GOOD"
