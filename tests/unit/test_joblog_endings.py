"""Jobs whose endings are known by construction: no failure is green, and the death that ended a job comes first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from lumiimg.core.findings import Severity
from lumiimg.joblog import LogReport, read_lines
from tests.shared.ended_jobs import DATA, VERSIONS, EndedJob, after_healthy, composed
from tests.shared.joblog import read_files
from tests.shared.programs import EVERYTHING, sampled

PARTS = 16 if EVERYTHING else 1
GOOD = {"ofi-cxi": Severity.OK, "ib": Severity.OK, "intra-node-only": Severity.OK, "none": Severity.UNKNOWN}
FOLLOWS = {id_ for ids in DATA["follows"].values() for id_ in ids}
CARRIED = ("the traffic went over", "libfabric was used", "ranks used", "carried")
ON_TCP, OF_SLOW_NODES = {"socket", "ofi-other", "mixed"}, {"nodes-on-tcp", "some-nodes"}


@pytest.mark.parametrize("part", range(PARTS))
def test_each_job_ends_as_it_was_composed(part: int) -> None:
    seeds = sampled(range(part, 16_000, PARTS), 130)
    faults = {seed: found for seed in seeds if (found := faults_of(composed(seed), seed))}
    kinds = Counter(kind for found in faults.values() for kind in found).most_common(5)
    assert not faults, (len(faults), kinds, [*faults][:5])


def faults_of(job: EndedJob, seed: int) -> set[str]:
    """Return the errors in the answers on a job, in two orders of its lines and as files of its ranks."""
    one, other = (read_lines("job.out", job.log(seed + order)) for order in range(2))
    apart = read_files(*job.files().items())
    found = {fault for report in (one, other) for fault in _faults(job, report)}
    # the lines in its files have no prefix, and their order across files is unknown
    follows = frozenset() if job.order_is_known else FOLLOWS | {"step-ended", "first-to-fail"}
    found |= {f"{fault}, in files" for fault in _faults(replace(job, names_rank=False, ids=job.ids | follows), apart)}
    is_known = job.order_is_known and len(job.ids) == 1
    answers = {(read.severity, read.verdict, read.ended.cause if is_known else "") for read in (one, other, apart)}
    return found | ({f"answers differ: {sorted(map(str, answers))}"} if len(answers) > 1 else set())


def _faults(job: EndedJob, report: LogReport) -> Iterator[str]:
    ended, first = report.ended, report.causes[0].id if report.causes else ""
    if job.how in {"completed", "runs"}:
        if (ended.is_failure, ended.cause, report.severity) != (False, None, GOOD.get(job.verdict, Severity.PROBLEM)):
            yield f"{report.severity}, {ended.cause} of one that ran over {job.verdict}"
    else:
        if report.severity is Severity.OK:
            yield f"{report.severity} of one that ended by {sorted(job.ids)}"
        if not (ended.how == job.how and (ended.cause in job.ids or (job.words and job.words in ended.summary))):
            yield f"{ended.how}, {ended.cause} for {job.how}, {sorted(job.ids) or job.words}"
        if not report.headline.startswith(f"{ended.cause}: "):
            yield f"{report.headline!r} first"
        leads = {ended.cause}
        if job.how == "time-limit" and job.verdict in ON_TCP:  # nodes that differ may be why it hung
            leads = (
                {*OF_SLOW_NODES}
                if job.connected
                else {ended.cause, *(["some-nodes"] if job.verdict == "mixed" else [])}
            )
        if first not in leads or not report.causes[0].remedy:
            yield f"first {first} of {ended.cause}, {job.verdict}"
        named = _ranks(ended.ranks)
        if not (named <= {*job.dying} or (ended.cause in FOLLOWS and named <= job.survivors)):
            yield f"rank {ended.ranks} died for {job.dying} ({ended.cause})"
        if job.names_rank and not named:
            yield f"the rank is not named ({ended.cause})"
    carried = [any(expected in line for expected in CARRIED) for line in (report.network_line, report.headline)]
    crosses = job.connected and job.verdict != "intra-node-only"
    if carried[0] is not crosses or (carried[1] and not job.connected):
        yield f"{report.network_line!r} where it was{' ' if crosses else ' not '}connected"
    verdict = "intra-node-only" if report.nothing_crossed else report.verdict
    if job.connected and verdict != job.verdict:
        yield f"{verdict} for {job.verdict}"


def _ranks(ranges: str | None) -> set[int]:
    spans = [part.partition("-") for part in (ranges or "").split(",") if part]
    return {rank for first, _, last in spans for rank in range(int(first), int(last or first) + 1)}


def test_no_warn_that_ends_a_job_leaves_a_healthy_log_green() -> None:
    for version, words in VERSIONS.items():
        assert read_lines("job.out", after_healthy(version, "peer").log(0)[:-6]).verdict == "ofi-cxi"
        for warn in [*DATA["fatal"], *(words.keys() & {"duplicate", "unreachable", "memory", "peer", "algorithm"})]:
            job = after_healthy(version, warn)
            report = read_lines("job.out", job.log(1))
            assert report.severity is not Severity.OK, job.name
            shown = [report.headline, *(one.text for cause in report.causes for one in cause.evidence)]
            assert any(job.words.strip() in text for text in shown), job.name
