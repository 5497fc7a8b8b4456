"""The output of lumiimg's own programs in a job is decoded: a failed call of HIP or RCCL ended it."""

from __future__ import annotations

from itertools import product
from urllib.parse import quote

import pytest

from lumiimg.core.findings import Severity
from lumiimg.joblog import LogReport, read_lines
from tests.shared.composed_jobs import LAUNCHERS

HEALTHY = [f"n{rank}:7:7 [0] NCCL INFO Using network Socket" for rank in (1, 2)]
ENDED = {
    "hipMalloc rank=3 rc=2 error=out%20of%20memory|end stage=memory code=20": "gpu-out-of-memory",
    "hipGetDeviceCount rank=3 rc=100 error=no%20ROCm-capable%20device%20is%20detected|end code=20": "gpu-not-seen",
    "hipGetDeviceCount rank=3 rc=100 error=no%20CUDA-capable%20device%20is%20detected|end code=20": "gpu-not-seen",
    "hipStreamCreate rank=3 rc=999 error=unknown%20error|end stage=memory code=20": "probe-gpu-call",
    "timeout rank=3 seconds=300 during=meeting|end stage=ranks code=16": "probe-waited",
    "communicator rank=3 rc=5 error=invalid%20usage|end stage=communicator code=22": "library-call-raised",
    "allreduce rank=3 rc=6 error=remote%20process%20exited|end stage=allreduce code=23": "probe-ended",
}
HARMLESS = (
    "hipMalloc rank=3 rc=0 error=",
    "communicator rank=3 rc=0 error=",
    "end stage=ranks code=0",
    "wrong rank=0 bytes=1048576 elements=1",
    f"mapped path={quote('/x/HIP error: out of memory')}",
    f"gpus count=0 note={quote('n1:1:1 [0] NCCL INFO Using network AWS Libfabric')}",
)


def read(events: str, launcher: str) -> LogReport:
    lines = [part for event in events.split("|") for part in ("", f"@probe {event}")]
    return read_lines("job.out", [LAUNCHERS[launcher](3, line) for line in (*HEALTHY, *lines)])


@pytest.mark.parametrize(("events", "launcher"), [*product(ENDED, ("none", "srun -l", "PALS", "time", "Docker"))])
def test_a_call_that_failed_in_a_probe_ended_the_job(events: str, launcher: str) -> None:
    report = read(events, launcher)
    assert (report.ended.cause, report.ended.ranks) == (ENDED[events], "3")
    assert report.severity is Severity.PROBLEM
    shown = [one.text for cause in report.causes if cause.id == report.ended.cause for one in cause.evidence]
    assert any("probe " in text and "rank=3" in text for text in shown)
    assert "%20" not in "".join(shown)


@pytest.mark.parametrize(("event", "launcher"), [*product(HARMLESS, ("none", "srun -l"))])
def test_what_a_probe_reports_beside_errors_ends_nothing(event: str, launcher: str) -> None:
    report = read(event, launcher)
    assert report.ended.cause is None
    assert report.verdict == "socket"


def test_libfabric_may_find_no_gpu_and_go_on() -> None:
    message = "libfabric:1569:1795225042::core:core:rocr_hmem_init():934<info> Failed to perform hsa_init: "
    assert (
        read_lines("fi_info.log", [f"{message}HSA_STATUS_ERROR_OUT_OF_RESOURCES: The runtime failed"]).ended.cause
        is None
    )


@pytest.mark.parametrize(
    ("warning", "cause"),
    [
        ("bootstrap.cc:114 NCCL WARN Bootstrap : no socket interface found", "bootstrap-no-interface"),
        ("misc/socket.cc:339 NCCL WARN NET/Socket : No usable listening interface found", "listen-no-interface"),
    ],
)
def test_the_librarys_own_words_go_before_the_call_that_failed_and_the_rank_that_waited(
    warning: str, cause: str
) -> None:
    failed = "@probe uniqueid rank=0 rc=5 error=invalid%20usage", "@probe end stage=uniqueid code=22"
    lines = [f"n1:7:7 [0] {warning}", *failed, "@probe timeout seconds=20 during=meeting", "@probe end code=16"]
    assert read_lines("job.out", lines).ended.cause == cause
