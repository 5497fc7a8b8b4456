"""Real collectives and real failures of NCCL, as librccl, on an NVIDIA GPU; what `check` and `log` make of them (README.md)."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lumiimg.check.run.log_answer import answer_of_log
from lumiimg.core.errors import ExitCode
from lumiimg.joblog import Verdict, read_log

if TYPE_CHECKING:
    from tests.gpu.conftest import Gpu, Job

pytestmark = pytest.mark.gpu


def test_one_rank_sums_right_and_has_no_bandwidth(gpu: Gpu, tmp_path: Path) -> None:
    job = gpu.run(tmp_path, gpu.two()[:1])
    assert job.codes == [0]
    report = read_log([str(job.log)], print)
    (measured,) = report.measurements
    assert (measured.wrong, measured.ranks, measured.best_gb_s) == (0, 1, None)
    assert report.nothing_crossed


def test_two_nodes_go_over_sockets(gpu: Gpu, tmp_path: Path) -> None:
    job = gpu.run(tmp_path, gpu.two())
    assert job.codes == [0, 0]
    report = read_log([str(job.log)], print)
    (measured,) = report.measurements
    assert (measured.wrong, measured.ranks, measured.nodes) == (0, 2, 2)
    assert measured.best_gb_s
    assert report.verdict is Verdict.SOCKET


def test_a_wrong_element_is_found(gpu: Gpu, tmp_path: Path) -> None:
    job = gpu.run(tmp_path, gpu.two(HIPSHIM_FLIP="1"))
    assert set(job.codes) == {24}
    assert "FAILED" in job.log.read_text()


@pytest.mark.parametrize("spoiled", [False, True])
def test_level_run_in_the_engine_of_the_kernel(image: Path, spoiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LUMIIMG_ENGINE", "namespaces")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    if spoiled:
        monkeypatch.setenv("HIPSHIM_FLIP", "1")
    words = [sys.executable, "-m", "lumiimg", "check", str(image), "--level", "run", "--json"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    report = json.loads(done.stdout)
    assert report["levels"]["run"] == "done: lumiimg's own all-reduce, 1 rank"
    found = {finding["id"] for finding in report["findings"] if finding["level"] == "run"}
    assert ("run.data-errors" in found) is spoiled
    assert found.isdisjoint({"run.failed", "run.hang", "run.bandwidth"})
    assert done.returncode != ExitCode.GOOD


@dataclass(frozen=True)
class Failure:
    """A job of two nodes that fails, and the cause that its log is given."""

    cause: str
    variables: dict[str, str] = field(default_factory=dict)
    other_rccl: bool = False
    """On the second node."""
    address: str | None = None
    """Of the second node, on a network of its own."""
    nodes: int = 2
    """That start."""
    kill: str = ""
    left_mib: int = 0
    """Of the GPU's memory; 0: all."""


FAILURES = {
    "a rank is killed": Failure("remote-error", kill=r"^ +1048576 "),
    "no GPU": Failure("gpu-not-seen", {"CUDA_VISIBLE_DEVICES": ""}),
    "memory is full": Failure("gpu-out-of-memory", left_mib=800),
    "an algorithm that does not exist": Failure("setting-not-known", {"NCCL_ALGO": "Nope"}),
    "an interface that does not exist": Failure("bootstrap-no-interface", {"NCCL_SOCKET_IFNAME": "nope"}),
    "a rank of another version": Failure("library-versions-differ", other_rccl=True),
    "no route": Failure("connect-failed", address="10.253.1.12"),
    "a network that no plugin has": Failure("no-network", {"NCCL_NET": "AWS Libfabric"}),
    "a rank that never starts": Failure("probe-waited", nodes=1),
}


@pytest.mark.parametrize("name", FAILURES)
def test_log_names_what_ended_a_job_that_failed(gpu: Gpu, name: str, tmp_path: Path) -> None:
    failure = FAILURES[name]
    nodes = gpu.two(other_rccl=failure.other_rccl, address=failure.address, **failure.variables)[: failure.nodes]
    with gpu.nearly_full(failure.left_mib) if failure.left_mib else nullcontext():
        job = gpu.run(tmp_path, nodes, tasks=2, limit_s=60 if failure.kill else 15, kill=failure.kill)
    assert_died_of(failure.cause, job)


def test_log_names_two_ranks_that_share_a_gpu(gpu: Gpu, tmp_path: Path) -> None:
    nodes = gpu.two()[:1]
    assert_died_of("duplicate-gpu", gpu.run(tmp_path, nodes, local=2))


def assert_died_of(cause: str, job: Job) -> None:
    assert any(job.codes)
    answer = answer_of_log(read_log([str(job.log)], print), None, {})
    assert answer.exit_code != ExitCode.GOOD
    assert answer.report.ended.cause == cause, job.log.read_text()
