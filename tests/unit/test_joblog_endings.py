"""Jobs that end in every way, of which the end is known by construction: nothing green that failed, the death first."""

from __future__ import annotations

from collections import Counter

import pytest

from lumiimg.core.findings import Severity
from lumiimg.joblog import LogReader, LogReport, read_lines
from tests.shared.ended_jobs import DATA, VERSIONS, EndedJob, after_healthy, composed
from tests.shared.programs import EVERYTHING, sampled

PARTS = 16 if EVERYTHING else 1
GOOD = {"ofi-cxi": Severity.OK, "ib": Severity.OK, "none": Severity.UNKNOWN}
SAID_TO_CARRY = ("the traffic went over", "libfabric was used", "carried")


@pytest.mark.parametrize("part", range(PARTS))
def test_each_job_ends_as_it_was_composed(part: int) -> None:
    seeds = sampled(range(part, 16_000, PARTS), 130)
    faults = {seed: found for seed in seeds if (found := faults_of(composed(seed), seed))}
    assert not faults, (Counter(one for found in faults.values() for one in found).most_common(3), [*faults][:5])


def faults_of(job: EndedJob, seed: int) -> list[str]:
    """Return what is wrong in the answers about a job in two orders of its lines, and in files of its ranks."""
    reports = [read_lines("job.out", job.log(seed + order)) for order in range(2)]
    reports.append(read_apart(job.files()))
    return [f"{job.name}: {fault}" for report in reports for fault in _faults(job, report)]


def _faults(job: EndedJob, report: LogReport) -> list[str]:
    goes_on = job.how in {"completed", "runs"}
    expected = GOOD.get(job.verdict, Severity.PROBLEM)
    said = report.headline
    return [
        fault
        for fault, holds in {
            f"{report.severity} of one that failed": not goes_on and report.severity is Severity.OK,
            f"{report.severity}, {report.ended} of one that ran": goes_on
            and (report.severity, report.ended.cause) != (expected, None),
            f"{said!r} where nothing was connected": not job.connected and any(one in said for one in SAID_TO_CARRY),
            f"{report.verdict} for {job.verdict}": job.connected and report.verdict != job.verdict,
        }.items()
        if holds
    ]


def read_apart(files: dict[str, list[str]]) -> LogReport:
    """Return what is read of several files of one job."""
    reader = LogReader()
    for name, lines in files.items():
        reader.begin(name)
        reader.feed(name, "".join(f"{line}\n" for line in lines).encode())
    return reader.report()


def test_no_warn_that_ends_a_job_leaves_a_healthy_log_green() -> None:
    for version, words in VERSIONS.items():
        assert read_lines("job.out", after_healthy(version, "peer").log(0)[:-6]).verdict == "ofi-cxi"
        for warn in [*DATA["fatal"], *(words.keys() & {"duplicate", "unreachable", "memory", "peer", "algorithm"})]:
            job = after_healthy(version, warn)
            report = read_lines("job.out", job.log(1))
            assert report.severity is not Severity.OK, job.name
