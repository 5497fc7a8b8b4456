"""The reader says of each output of a real run, made without GPU or NIC, what its row of the truth table says."""

from __future__ import annotations

import csv
import tomllib
from pathlib import Path
from typing import Any

import pytest

from lumiimg.nccl.reader import read_lines
from lumiimg.nccl.report import Verdict
from lumiimg.nccl.vocabulary import vocabulary

SHARED = Path(__file__).parents[2].parent / "shared" / "probe-logs"
TABLE = Path(__file__).parents[1] / "fixtures" / "probe-logs.toml"
LOGS: list[dict[str, Any]] = tomllib.loads(TABLE.read_text())["log"]
GREEN = {Verdict.OFI_CXI, Verdict.OFI_EFA}


def test_the_table_names_only_verdicts_and_causes_that_there_are() -> None:
    known = {*vocabulary().signatures, *(advice.id for advice in vocabulary().advice), ""}
    assert {cause for log in LOGS for cause in (log["cause"], *log.get("also", ()))} <= known
    assert {log["verdict"] for log in LOGS} <= set(Verdict)


@pytest.mark.skipif(not SHARED.is_dir(), reason="the outputs of the runs are not beside this checkout")
def test_each_output_gets_its_verdict_its_cause_and_unless_it_is_the_fast_path_a_remedy() -> None:
    with (SHARED / "INDEX.tsv").open(newline="") as index:
        rows = list(csv.DictReader(index, delimiter="\t"))
    assert sorted(log["file"] for log in LOGS) == sorted(row["file"] for row in rows)
    for log in LOGS:
        with (SHARED / log["file"]).open("rb") as lines:
            report = read_lines(log["file"], lines)
        causes = [cause.id for cause in report.causes]
        assert (report.verdict, causes[0] if causes else "") == (log["verdict"], log["cause"]), log["why"]
        assert set(causes) >= set(log.get("also", ())), log["why"]
        assert not log.get("names") or log["names"] in report.causes[0].summary, log["file"]
        if report.verdict not in GREEN:
            assert report.causes, log["file"]
            assert all(cause.remedy and cause.source for cause in report.causes), log["file"]
