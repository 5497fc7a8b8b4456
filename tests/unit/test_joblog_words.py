"""Each kind of job ending has its own cause, in every wording of programs, launchers, containers and libraries."""

from __future__ import annotations

import tomllib
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from lumiimg.core.findings import Severity
from lumiimg.joblog import read_lines
from tests.shared.job_deaths import EXITED, TORCHRUN
from tests.shared.joblog import read_files

WORDS: dict[str, Any] = tomllib.loads((Path(__file__).parents[1] / "fixtures/job-words.toml").read_text())
ALONE: list[str] = []
SRUN = [line.format(rank=3, node="nid005101") for line in EXITED]
BEHIND = {"program": (ALONE, SRUN, TORCHRUN), "launcher": (ALONE,), "raised": (ALONE,)}
BEFORE = {"launcher": ("",), "raised": ("",), "gpu-memory": ("", "3: ", "[rank3]: ")}


@pytest.mark.parametrize("group", [group for group in WORDS if isinstance(WORDS[group], list)])
def test_each_way_in_which_a_job_ends_is_named_by_its_cause(group: str) -> None:
    behind, before = BEHIND.get(group, (ALONE, SRUN)), BEFORE.get(group, ("", "3: "))
    for row, prefix, launcher in product(WORDS[group], before, behind):
        report = read_lines("job.out", ["loading modules", *(prefix + line for line in row["lines"]), *launcher])
        ended, first = report.ended, report.causes[0]
        assert (ended.cause, first.id, ended.is_failure) == (row["cause"], row["cause"], True), row
        assert ended.is_likely is (launcher is ALONE and "likely" in row), row
        assert report.severity is (Severity.UNKNOWN if ended.is_likely else Severity.PROBLEM), row
        assert ended.ranks == row.get("rank") or group != "launcher", row
        assert row.get("words", "") in ended.summary, row
        assert "(not named)" not in first.summary, row
        assert first.remedy, row
        assert group != "gpu-memory" or "64" not in " ".join(first.because), "other GPUs have less"


def test_a_step_that_never_started_ended_no_job_that_went_on() -> None:
    for row in WORDS["refused"]:
        lines = row["lines"][: row["cause"] != "step-waits"]
        ended = read_lines("job.out", [*lines, *["epoch 1 of 9: loss 2.3"] * 200]).ended
        assert ended.cause is None or row["cause"] == "program-not-started", row


# -- beside the table


def test_a_look_at_the_queue_that_failed_and_a_missing_command_of_a_script_ended_nothing() -> None:
    for expected in (
        "squeue: error: slurm_load_jobs error: Unable to contact slurm controller (connect failure)",
        "slurm_load_jobs error: Socket timed out on send/recv operation",
        "bash: line 3: module: command not found",
    ):
        going_on = ["epoch 1 of 9: loss 2.3"] * 20
        report = read_lines("job.out", [expected, *going_on, "srun: error: nid005101: task 3: Exited with exit code 1"])
        assert report.ended.cause == "step-ended", expected


@pytest.mark.parametrize("line", ["qsub: waiting for job 4242.pbs to start", "qsub: job 4242.pbs ready"])
def test_a_queue_that_took_the_job_refused_nothing(line: str) -> None:
    assert not read_lines("job.out", [line]).ended.is_failure


def test_of_memory_that_was_used_up_the_rank_is_named_by_the_line_behind() -> None:
    lines = [
        "slurmstepd: error: Detected 1 oom_kill event in StepId=1.0.",
        "srun: error: nid001277: tasks 1-3: Out Of Memory",
    ]
    ended = read_lines("job.out", lines).ended
    assert (ended.cause, ended.ranks, ended.node) == ("out-of-memory", "1-3", "nid001277")


CAUGHT = [
    "Traceback (most recent call last):",
    '  File "x.py", line 1, in <module>',
    "torch.OutOfMemoryError: HIP out of memory.",
]
AGAIN = "I1129 15:00:14.000000 1 torch/distributed/elastic/agent/server/api.py:950] [default] Worker group FAILED. 3/3 attempts left; will restart worker group"
FAILED = "E1129 15:00:13.552000 1 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) local_rank: 1 (pid: 2) of binary: /opt/python"


COUNTERS = (
    "step      {} | loss 2.1",
    " iteration       {}/    500 | consumed samples: 100 | elapsed time per iteration (ms): 20.1",
    "{{'loss': 2.1, 'grad_norm': 0.4, 'learning_rate': 5e-05, 'epoch': 0.{}}}",
    "2026-11-29 10:00:00,100 - train - INFO - step {} loss 2.1",
    "[2026-11-29 10:00:00,100] [INFO] [logging.py:96:log_dist] [Rank 0] step={}, skipped=0",
    "Epoch: [0][{}/200]\tTime 0.2 (0.3)",
    "[rank0] Epoch 0 Step {}",
)
"""As programs print how far they are."""


def test_an_error_behind_which_the_program_counts_on_ended_nothing() -> None:
    steps = [f"0: step {step} | loss 2.0" for step in range(9)]
    assert read_lines("job.out", [*steps[:2], *CAUGHT, "trying 4", *steps[2:]]).ended.cause is None
    assert (
        read_lines("job.out", [*steps, *CAUGHT, "trying 4", "step 10", "0: training done: 0 failed"]).ended.cause
        is None
    )
    assert read_lines("job.out", [*steps, *CAUGHT, "trying 4", "job finished"]).ended.is_likely, "said the script"
    assert read_lines("job.out", [*steps, *CAUGHT, "trying 4"]).ended.is_likely
    assert read_lines("job.out", [*steps, *CAUGHT, "trying 4", *steps[:1]]).ended.is_likely, "another rank's, perhaps"
    assert not read_lines("job.out", [FAILED, AGAIN, *steps]).ended.is_failure, "torchrun started it again"
    for counter in COUNTERS:
        counted = [counter.format(number) for number in range(10, 60, 10)]
        assert read_lines("job.out", [*counted[:2], *CAUGHT, "trying 4", *counted[2:]]).ended.cause is None, counter
        assert read_lines("job.out", [*counted, *CAUGHT, "trying 4", counted[0]]).ended.is_likely, counter
    lost = [
        "Traceback (most recent call last):",
        '  File "a.py", line 1, in f',
        "BrokenPipeError: [Errno 32] Broken pipe",
    ]
    assert read_lines("job.out", [*steps[:2], *lost, *steps[2:]]).ended.cause is None
    assert not read_lines("job.out", [*steps, "Exception in thread NetStatThr:", *lost]).ended.is_failure
    assert read_lines("job.out", [*steps, *lost]).ended.is_failure
    # other ranks may print what they had counted before
    died = "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task."
    assert read_lines("job.out", [*steps[:2], died, *steps[2:]]).ended.is_failure
    assert read_lines("job.out", [FAILED, AGAIN, *steps, FAILED]).ended.is_failure


def test_the_first_words_of_a_fault_win_over_those_that_follow_on_it() -> None:
    """ROCm prints the assertion, then the queue's error, then PyTorch's; a broken GPU may look like a memory fault."""
    exception = ":0:rocdevice.cpp            :2984: 41227351357d us: [pid:4711 tid:0x15] Callback: Queue 0x14e aborting with error : HSA_STATUS_ERROR_EXCEPTION: An HSAIL operation resulted in a hardware exception. code: 0x1016"
    for first, id_ in (
        ("/scratch/a.hip:6: void f(): Device-side assertion `false' failed.", "gpu-assertion"),
        ("HW Exception by GPU node-6 (Agent handle: 0x5d2c10) reason :GPU Hang", "gpu-broken"),
    ):
        report = read_lines("job.out", [first, exception, "RuntimeError: HIP error: unspecified launch failure", *SRUN])
        assert [cause.id for cause in report.causes] == [id_]


def test_what_the_runtime_or_a_compiler_prints_behind_an_error_is_more_of_it() -> None:
    isa = ":1:devprogram.cpp :1838: 200571714934d us:  Error: The program ISA amdgcn-amd-amdhsa--gfx942 is not compatible with the device ISA amdgcn-amd-amdhsa--gfx90a"
    after_isa = [
        "Error: create kernel metadata map using COMgr",
        "Error: Cannot Find Global Var Sizes",
        "Error: Cannot create kernels.",
    ]
    header = "/tmp/x.hpp:14:10: fatal error: hip/hip_runtime.h: No such file or directory"
    after_header = [
        "   14 | #include <hip/hip_runtime.h>",
        "      |          ^~~~~~~~~~~~~~~~~~~",
        "compilation terminated.",
    ]
    for lines, id_ in (([isa, *after_isa], "gpu-code-of-another"), ([header, *after_header], "header-not-found")):
        ended = read_lines("job.out", lines).ended
        assert (ended.cause, ended.is_likely) == (id_, False)
        assert read_lines("job.out", [*lines, "step 12"]).ended.is_likely


def test_rocm_smi_without_a_driver_is_to_be_run_in_the_job_that_has_the_gpus() -> None:
    (cause,) = (
        one
        for one in read_lines("job.out", ["ERROR:root:Driver not initialized (amdgpu not found in modules)"]).causes
        if one.id == "amdgpu-not-loaded"
    )
    commands = [step.command or "" for step in cause.remedy]
    assert all(command.startswith("srun --overlap --jobid=") for command in commands), "no new node is asked for"
    assert "rocm-smi" in commands[0]


def test_an_assertion_of_the_program_is_named_and_none_that_is_printed_before_a_quotation() -> None:
    traceback = "[rank3]: Traceback (most recent call last):"
    for line in ("AssertionError", "AssertionError: batch must divide"):
        ended = read_lines("job.out", [traceback, f"[rank3]: {line}", *SRUN]).ended
        assert (ended.cause, ended.summary) == ("assertion-failed", f"Python stopped at an assertion: {line}")
        assert read_lines("job.out", [f"[rank3]: {line}"]).ended.cause is None


def test_an_error_that_may_have_been_caught_leaves_no_answer_without_what_to_do() -> None:
    report = read_lines("job.out", ["ValueError: TP rank 1 is late", "epoch 2: loss 2.1"])
    assert (report.ended.cause, [cause.id for cause in report.causes]) == (None, ["nothing-decided"])


def test_what_miopen_only_warns_of_is_not_what_ended_the_job() -> None:
    warning = "MIOpen(HIP): Warning [FindWinogradSolutions] /MIOpen/src/sqlite_db.cpp:108: open memvfs: unable to open database file"
    error = "MIOpen Error: /MIOpen/src/ocl/convolutionocl.cpp:831: Forward Convolution cannot be executed due to incorrect params"
    assert read_lines("job.out", [warning]).ended.cause is None
    report = read_lines("job.out", [warning, error, "RuntimeError: miopenStatusUnknownError"])
    assert [cause.id for cause in report.causes] == ["kernel-not-available"]


GLOO = "[/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/"
LOST = f"[rank0]: RuntimeError: {GLOO}pair.cc:537] Read error [10.0.0.2]:9940: Connection reset by peer. This is typically caused by a remote worker hanging or bugs in the application."
TIMED_OUT = (
    f"[rank0]: RuntimeError: {GLOO}unbound_buffer.cc:78] Timed out waiting 6000ms for recv operation to complete"
)
OWN = "[rank1]: RuntimeError: a rank fails in a real job"
FAILED = TORCHRUN[1]


def test_how_a_rank_ended_says_more_than_that_another_one_lost_it() -> None:
    for last, cause in (
        ([OWN, *TORCHRUN], "python-error"),
        ([FAILED.replace("exitcode: 1", "exitcode: -9")], "worker-killed"),
        ([FAILED.replace("exitcode: 1", "exitcode: -11")], "segmentation-fault"),
        ([FAILED.replace("exitcode: 1", "exitcode: 7")], "first-to-fail"),
        (["srun: error: nid005101: task 1: Killed"], "worker-killed"),
        (["srun: error: nid005101: task 0: Exited with exit code 1"], "peer-gone"),
    ):
        assert read_lines("job.out", [LOST, *last]).ended.cause == cause, cause
    assert read_lines("job.out", [TIMED_OUT, FAILED]).ended.cause == "wait-timed-out", "which says why it failed"
    # if three ranks print the same words, those of the second are a loss, too
    lost = [LOST.replace("rank0", f"rank{rank}").replace("9940", port) for rank, port in enumerate(("1", "2", "2"))]
    assert read_lines("job.out", [*lost, FAILED.replace("exitcode: 1", "exitcode: 7")]).ended.cause == "first-to-fail"


def test_an_error_of_a_rank_in_another_file_was_before_those_who_waited_for_it() -> None:
    exits = [one.format(rank=1, node="nid005101") for one in EXITED]
    for waiting in (LOST, TIMED_OUT):
        for first, second in ((waiting, OWN), (OWN, waiting)):
            report = read_files(("a", [first]), ("b", [second]), ("c", exits))
            assert (report.ended.cause, report.ended.ranks) == ("python-error", "1"), first


def test_the_launcher_names_the_rank_and_the_node_of_a_line_that_names_none() -> None:
    hang = "HW Exception by GPU node-6 (Agent handle: 0x5d2c10) reason :GPU Hang"
    ended = read_lines(
        "job.out", [hang, "srun: error: nid007003: task 12: Aborted", "srun: error: nid007004: task 3: Killed"]
    ).ended
    assert (ended.cause, ended.ranks, ended.node) == ("gpu-broken", "12", "nid007003")
    steps = read_lines("job.out", [hang, "srun: error: nid007003: task 12: Aborted"]).causes[0].remedy
    assert [step.command for step in steps if "--exclude" in step] == ["#SBATCH --exclude=nid007003"]
    assert read_lines("job.out", ["srun: error: nid007003: task 12: Aborted", hang]).ended.node is None
