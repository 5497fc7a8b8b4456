"""What launchers say of a process that ended: how, which rank, and which line of several says it."""

from __future__ import annotations

import pytest

from lumiimg.joblog import read_lines

FRAME = "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES"
PRIMARY = "Primary job  terminated normally, but 1 process returned"
NOTICED = "mpirun.openmpi noticed that process rank 1 with PID 0 on node vm exited on signal"
LOST = "0: [rank0]: RuntimeError: [/x/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:28592. This"

HOW = [
    (["nid1: rank 27421 died from signal 6", "nid2: rank 7 died from signal 15"], "aborted", "27421"),
    (["nid1: rank 256 died from signal 11", "nid2: rank 0 died from signal 15"], "segmentation-fault", "256"),
    ([FRAME, "=   PID 15422 RUNNING AT vm", "=   EXIT CODE: 134"], "aborted", None),
    (
        [FRAME, "=   EXIT CODE: 6", "YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Aborted (signal 6)"],
        "aborted",
        None,
    ),
    ([FRAME, "=   RANK 0 PID 1 RUNNING AT n", "=   KILLED BY SIGNAL: 9 (Killed)"], "worker-killed", None),
    ([FRAME, "=   EXIT CODE: 139"], "segmentation-fault", None),
    ([FRAME, "=   EXIT CODE: 3"], "step-ended", None),
    ([PRIMARY, f"{NOTICED} 9 (Killed)."], "worker-killed", "1"),
    ([PRIMARY, f"{NOTICED} 6 (Aborted)."], "aborted", "1"),
    (
        [f"[ERROR] [launch.py:321:sigkill_handler] ['python', 'x'] exits with return code = -{n}" for n in "96"],
        "worker-killed",
        None,
    ),
    (
        [
            "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
            "  traceback : Signal 6 (SIGABRT) received by PID 2",
        ],
        "aborted",
        None,
    ),
    (["signal (11): Segmentation fault", "in expression starting at /x/hello.jl:3"], "segmentation-fault", None),
    (["[4711] signal (6.-6): Aborted", "in expression starting at none:1"], "aborted", None),
    (["*** Error in `/x/julia': corrupted double-linked list (not small): 0x0d0dcb0 ***"], "heap-corrupted", None),
    # the rank that lost another one speaks first
    ([LOST, "srun: error: nid000004: task 1: Aborted"], "aborted", "1"),
    ([LOST, "srun: error: nid000004: task 1: Exited with exit code 5"], "step-ended", "1"),
    ([LOST, "srun: error: nid000003: task 0: Exited with exit code 1"], "peer-gone", "0"),
    # an older srun
    (
        ["srun: error: n1: task 4: Aborted", "srun: Terminating job step 1.0", "srun: Force Terminated job step 1.0"],
        "aborted",
        "4",
    ),
]


@pytest.mark.parametrize(("lines", "cause", "rank"), HOW)
def test_a_launcher_says_how_a_process_ended_and_which(lines: list[str], cause: str, rank: str | None) -> None:
    ended = read_lines("job.out", ["step 1", *lines]).ended
    assert (ended.cause, ended.ranks, ended.is_failure) == (cause, rank, True)
