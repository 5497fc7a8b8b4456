"""The run level end to end, in real containers, on stand-ins for librccl and libamdhip64 (standin_gpu/README.md)."""

from __future__ import annotations

from pathlib import Path

import pytest

from lumiimg.check.run.collective import CollectiveProgram
from lumiimg.core.errors import ExitCode
from tests.engine.conftest import check, findings
from tests.shared.programs import unwrapped

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("engine")]


@pytest.mark.core
def test_gpus_of_one_node_show_what_rccl_selects(with_plugin: Path, gpus: dict[str, str]) -> None:
    result = check(with_plugin, "--level", "run", "--site", "lumi", "--verbose", env=gpus)
    assert result.data["level"] == "run"
    assert result.data["levels"]["run"] == "done: lumiimg's own all-reduce, 2 ranks"
    found = findings(result)
    assert found["run.selected"]["severity"] == "ok"
    assert "2 ranks on 1 node" in found["run.selected"]["summary"]
    collective = result.data["collective"]
    assert (collective["program"], collective["ranks"]) == (CollectiveProgram.OWN.value, 2)
    (measured,) = collective["measurements"]
    assert (measured["wrong"], measured["nodes"], measured["points"][-1][0]) == (0, 1, 1 << 28)
    assert "2 ranks on 1 node: ofi-cxi selected, " in unwrapped(result.err)
    assert "lumiimg-allreduce on 1 node:" in unwrapped(result.err)
    assert result.code == ExitCode.UNDECIDED, "nothing crossed a network, and there is no NIC"


@pytest.mark.parametrize(
    ("standin", "key", "shown", "code"),
    [
        ({"STANDIN_WRONG": "1"}, "run.data-errors", "NO: a real collective gave wrong results", ExitCode.NO),
        ({"STANDIN_FAILS": "1"}, "run.failed", "unhandled%20system%20error", ExitCode.UNDECIDED),
        ({"STANDIN_DIED": "30"}, "run.failed", "A rank lost the connection to another one", ExitCode.UNDECIDED),
    ],
)
def test_what_fails_in_a_collective_is_found_by_what_its_ranks_left(
    standin: dict[str, str], key: str, shown: str, code: ExitCode, with_plugin: Path, gpus: dict[str, str]
) -> None:
    result = check(with_plugin, "--level", "run", env=gpus | standin)
    found = findings(result)
    assert found[key]["severity"] == ("problem" if code is ExitCode.NO else "unknown")
    assert shown in (unwrapped(result.err) if code is ExitCode.NO else str(found[key]))
    assert "run.hang" not in found
    assert result.code == code


def test_without_a_gpu_run_is_missing_here_and_the_rest_is_checked(demo: Path) -> None:
    asked = check(demo, "--level", "run")
    assert asked.code == ExitCode.MISSING_HERE
    assert "HIP finds no GPU in the container" in unwrapped(asked.err)
    assert asked.out == ""
    if not Path("/dev/kfd").exists():
        assert "skipped: no GPU here (/dev/kfd)" in check(demo).data["levels"]["run"]
