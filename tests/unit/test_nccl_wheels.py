"""What real NCCL of each minor version printed here is read right, each fault by its own cause."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from lumiimg.nccl.reader import read_lines

TABLE = Path(__file__).parents[1] / "fixtures" / "nccl-wheels.toml"
LOGS: list[dict[str, Any]] = tomllib.loads(TABLE.read_text())["log"]


def test_each_output_of_a_real_nccl_gets_its_verdict_and_its_cause_first() -> None:
    for log in LOGS:
        report = read_lines("job.log", log["output"].encode().splitlines(keepends=True))
        assert (report.verdict, report.causes[0].id) == (log["verdict"], log["cause"]), log


def test_a_plugin_of_the_wrong_kind_is_not_also_called_one_that_was_not_found() -> None:
    """2.21 tries two names and says of the first that it was not found."""
    (log,) = [log for log in LOGS if (log["version"], log["situation"]) == ("2.21.5", "empty")]
    report = read_lines("job.log", log["output"].encode().splitlines(keepends=True))
    assert "plugin-not-loaded" not in {cause.id for cause in report.causes}
