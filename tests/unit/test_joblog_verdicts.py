"""The reader says about each log what a careful network engineer would say: logs of users, and of real runs."""

from __future__ import annotations

import csv
import tomllib
from pathlib import Path
from typing import Any

import pytest

from lumiimg.joblog import LogReport, Verdict, read_lines
from tests.shared.nccl_wordings import FAMILIES, outcomes, written

FIXTURES = Path(__file__).parents[1] / "fixtures"
SHARED = Path(__file__).parents[2].parent / "shared"
GREEN = {Verdict.OFI_CXI, Verdict.OFI_EFA}


def logs_of(table: str) -> list[dict[str, Any]]:
    logs: list[dict[str, Any]] = tomllib.loads((FIXTURES / table).read_text())["log"]
    return logs


def read(log: dict[str, Any], path: Path) -> LogReport:
    """Read a log, and assert what holds for all: a verdict other than the fast path has causes with remedies."""
    with path.open("rb") as lines:
        report = read_lines(log["file"], lines)
    if report.verdict not in GREEN:
        assert report.causes, log
        assert all(cause.remedy and cause.source for cause in report.causes), log
    return report


def test_each_log_is_read_as_a_careful_engineer_reads_it() -> None:
    for log in logs_of("nccl/index.toml"):
        name, path = log["file"], FIXTURES / "nccl" / log["file"]
        report = read(log, path)
        assert (report.verdict, report.confidence) == (log["verdict"], log["confidence"]), name
        assert [cause.id for cause in report.causes] == log["causes"], name
        reported = {
            "library": report.library and report.library.version,
            "plugin": report.plugin and report.plugin.version,
            "provider": report.provider,
            "gdr": report.transport.gdr,
        }
        assert {key: reported[key] for key in reported if key in log} == {
            key: log[key] for key in reported if key in log
        }, name
        assert bool(report.proof) == (report.verdict is not Verdict.NONE), name
        count = len(path.read_bytes().splitlines())
        assert all(one.file == name and 1 <= one.line <= count for one in report.proof), name


def test_each_output_of_a_real_nccl_gets_its_verdict_and_its_cause_first() -> None:
    """One log of each minor version, run here with unusable plugins."""
    for log in logs_of("nccl-wheels.toml"):
        report = read_lines("job.log", log["output"].encode().splitlines(keepends=True))
        assert (report.verdict, report.causes[0].id) == (log["verdict"], log["cause"]), log
        if (log["version"], log["situation"]) == ("2.21.5", "empty"):  # it tries two names, and misses the first
            assert "plugin-not-loaded" not in {cause.id for cause in report.causes}


@pytest.mark.skipif(not SHARED.is_dir(), reason="the outputs of the runs are not beside this checkout")
def test_each_output_of_a_probe_gets_its_verdict_and_its_cause() -> None:
    with (SHARED / "probe-logs/INDEX.tsv").open(newline="") as index:
        rows = list(csv.DictReader(index, delimiter="\t"))
    logs = logs_of("probe-logs.toml")
    assert sorted(log["file"] for log in logs) == sorted(row["file"] for row in rows)
    for log in logs:
        report = read(log, SHARED / "probe-logs" / log["file"])
        causes = [cause.id for cause in report.causes]
        assert (report.verdict, causes[0] if causes else "") == (log["verdict"], log["cause"]), log["why"]
        assert set(causes) >= set(log.get("also", ())), log["why"]
        assert any(log.get("names", "") in cause.summary for cause in report.causes) or not causes, log["file"]


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared excerpts are not beside this checkout")
def test_the_shared_excerpts_are_read_as_a_careful_reader_does() -> None:
    with (SHARED / "nccl-logs/INDEX.tsv").open(newline="") as index:
        rows = list(csv.DictReader(index, delimiter="\t"))
    wrong: dict[str, tuple[str, str, str]] = {}
    for row in rows:
        expected = "none" if row["expected_verdict"] == "incomplete/none" else row["expected_verdict"]
        verdict = read(row, SHARED / "nccl-logs" / row["file"]).verdict
        assert verdict == expected or verdict not in GREEN, f"{row['file']} is no fast path"
        if verdict != expected:
            wrong[row["file"]] = (row["confidence"], expected, verdict)
    assert not [row for row in wrong.values() if row[0] == "high"], wrong
    assert len(rows) - len(wrong) >= len(rows) * 60 // 66, wrong


def test_each_wording_of_each_outcome_is_read_and_names_its_library() -> None:
    for family in FAMILIES.values():
        for outcome in outcomes(family).values():
            lines = written(family, outcome)
            shown = "\n".join(lines)
            assert "{" not in shown, "the table's templates are filled, none is left over"
            report = read_lines("job.out", lines)
            expected = outcome.cause_of(family)
            assert report.verdict == outcome.verdict, shown
            assert [cause.id for cause in report.causes][:1] == ([expected] if expected else []), shown
            assert outcome.confidence in {None, report.confidence.value}, shown
            assert report.library is not None, shown
            assert report.library.name == ("RCCL" if family.rccl else "NCCL"), shown
