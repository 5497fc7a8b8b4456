"""Level run from one end to the other, in real containers, on stand-ins for librccl and libamdhip64 (standin_gpu/README.md)."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lumiimg.catalog.sites import find_site
from lumiimg.check.probe.tools import ALL_REDUCE, provide_tools
from lumiimg.check.run.collective import LOGS, CollectiveProgram, choose, prepare
from lumiimg.check.run.execution import judge
from lumiimg.check.static.evidence import StaticResult
from lumiimg.engine.process import run
from lumiimg.errors import ExitCode
from lumiimg.fabric.path import FabricPath
from lumiimg.findings import Code, Severity
from lumiimg.image import open_image
from tests.engine.conftest import GPU_SITE, LIB, check, findings, lumiimg
from tests.shared.programs import patient, unwrapped

if TYPE_CHECKING:
    from lumiimg.engine.engine import Engine

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("engine")]


@pytest.mark.core
def test_gpus_of_one_node_show_what_rccl_selects(with_plugin: Path, gpus: dict[str, str]) -> None:
    result = check(with_plugin, "--level", "run", "--site", "lumi", "--verbose", env=gpus)
    assert result.data["level"] == "run"
    assert result.data["levels"]["run"] == "done: lumiimg's own all-reduce"
    found = findings(result)
    assert found["run.selected"]["severity"] == "ok"
    assert "2 ranks on 1 node" in found["run.selected"]["summary"]
    collective = result.data["collective"]
    assert (collective["program"], collective["ranks"]) == (CollectiveProgram.OWN.value, 2)
    (measured,) = collective["measurements"]
    assert (measured["wrong"], measured["nodes"], measured["largest_size"]) == (0, 1, 1 << 28)
    assert "lumiimg-allreduce on 1 node:" in unwrapped(result.err)
    assert result.code == ExitCode.UNDECIDED, "nothing crossed a network, and there is no NIC"


def test_sums_that_are_wrong_are_a_no(with_plugin: Path, gpus: dict[str, str]) -> None:
    result = check(with_plugin, "--level", "run", env=gpus | {"STANDIN_WRONG": "1"})
    assert findings(result)["run.data-errors"]["severity"] == "problem"
    assert "NO: a real collective gave wrong results" in unwrapped(result.err)
    assert result.code == ExitCode.NO


def test_ranks_that_cannot_make_a_communicator_end_and_are_told(with_plugin: Path, gpus: dict[str, str]) -> None:
    result = check(with_plugin, "--level", "run", env=gpus | {"STANDIN_FAILS": "1"})
    failed = findings(result)["run.failed"]
    assert failed["severity"] == "unknown"
    assert any("unhandled%20system%20error" in line for line in failed["evidence"])
    assert result.code == ExitCode.UNDECIDED


def test_without_a_gpu_run_is_missing_here_and_the_rest_is_checked(demo: Path) -> None:
    asked = check(demo, "--level", "run")
    assert asked.code == ExitCode.MISSING_HERE
    assert "HIP finds no GPU in the container" in unwrapped(asked.err)
    assert asked.out == ""
    if not Path("/dev/kfd").exists():
        assert "not taken: no GPU here (/dev/kfd)" in check(demo).data["levels"]["run"]


@pytest.mark.parametrize(("network", "severity"), [("cxi", Severity.OK), ("socket", Severity.PROBLEM)])
def test_the_same_command_on_two_nodes_proves_the_network(
    engine: Engine, demo: Path, gpus: dict[str, str], tmp_path: Path, network: str, severity: Severity
) -> None:
    """What a launcher does: the command once on each node, with Slurm's variables, and a folder that both see."""
    site = tmp_path / "mine.toml"
    site.write_text(GPU_SITE)
    environment = os.environ | gpus | {"STANDIN_NETWORK": network, "STANDIN_GB_S": "60", "SLURM_STEP_NUM_TASKS": "2"}
    (folder := tmp_path / "shared").mkdir()
    (programs := tmp_path / "programs").mkdir()
    prepare(folder)
    static = StaticResult(FabricPath(rccl=f"{LIB}/librccl.so.1"))
    with open_image(demo) as image:
        tools = provide_tools(engine, demo, image, environment, programs, [ALL_REDUCE])
        collective = choose(image, static, environment, tools, gpus=2, nodes=2)
    words = collective.command(engine, demo, folder)

    def node(number: int) -> int:
        own = {"SLURM_PROCID": str(number), "SLURM_LOCALID": "0", "APPTAINER_HOSTNAME": f"nid00000{number + 1}"}
        with (folder / LOGS / f"output-{number}.log").open("wb") as log:
            return run(words, env=environment | own, timeout_s=patient(120), log=log).exit_code

    with ThreadPoolExecutor() as nodes:
        second = nodes.submit(node, 1)
        ended = run(["true"], env=environment)
        assert (node(0), second.result()) == (0, 0), (folder / LOGS / "output-0.log").read_text()
    result = judge(folder / LOGS, ended, collective, "2.22.3", site=find_site(str(site), {}), excuse=None)
    found = {finding.id: finding for finding in result.findings.found}
    assert found[Code.RUN_NETWORK].severity is severity
    assert found[Code.RUN_BANDWIDTH].severity is Severity.OK, "4 ranks on 2 nodes, as the site has it"
    read = lumiimg("log", folder / LOGS, "--site", site, "--json")
    assert read.code == (ExitCode.GOOD if severity is Severity.OK else ExitCode.NO)
