"""What ended a job comes first: the death of which the others are consequences, and none that is only quoted."""

from __future__ import annotations

from itertools import product

import pytest

from lumiimg.errors import ExitCode
from lumiimg.nccl.reader import LogReader, read_lines
from lumiimg.nccl.report import Confidence, LogReport, Verdict
from lumiimg.report.log import headline
from tests.shared.job_deaths import DEATHS, EXITED, NETWORKS, died, job

VERDICTS = {"cxi": "ofi-cxi", "tcp": "socket", "none": "none"}


def read(lines: list[str]) -> LogReport:
    return read_lines("job.out", lines)


def ended_by(lines: list[str]) -> str | None:
    ended = read(lines).ended
    return ended.id if ended else None


def raised(name: str) -> list[str]:
    """Return what the program alone prints of a death."""
    return [line for line in died(name, 3, cascade=False) if "srun" not in line]


def test_a_death_is_named_first_and_the_network_second() -> None:
    for name, network in product(DEATHS, NETWORKS):
        report = read([*job(network, 0, 3, 9), *died(name, 3)])
        assert report.ended is not None, (name, network)
        assert (report.ended.id, report.causes[0].id) == (DEATHS[name].id, DEATHS[name].id), (name, network)
        assert (report.verdict, report.answer) == (VERDICTS[network], ExitCode.NO), (name, network)
        assert report.causes[0].remedy, (name, network)


def test_it_is_said_which_rank_died_first_and_where() -> None:
    for name in ["oom kill", "HIP memory", "segfault", "no GPUs", "no word"]:
        ended = read([*job("cxi", 0, 3, 9), *died(name, 9)]).ended
        assert ended is not None, name
        assert ended.rank == "9", name
        assert ended.node in {"nid005102", None}, name


def test_an_error_without_a_rank_is_not_given_the_rank_of_whoever_else_speaks() -> None:
    ended = read([*job("cxi", 0), "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2 GiB"]).ended
    assert ended is not None
    assert (ended.rank, ended.node) == (None, None)


PASTED = [
    (
        "(E pid=2) ValueError: To serve at least one request with the models's max seq len (131072), …",
        "gpu-out-of-memory",
    ),
    ("ERROR: Could not install packages due to an OSError: [Errno 122] Disk quota exceeded", "quota-exceeded"),
    (
        "/var/spool/slurmd/job42/slurm_script: line 12: 4711 Killed                  python train.py",
        "worker-killed",
    ),
    (
        "/var/spool/slurmd/job42/slurm_script: line 12: 4711 Segmentation fault      (core dumped) python",
        "segmentation-fault",
    ),
    (
        "(raylet) [2023-04-09 07:23:59,445 E 395 395] (raylet) node_manager.cc:3: 10 Workers (tasks / actors) killed due to memory pressure (OOM)",
        "out-of-memory",
    ),
    (
        "(raylet, ip=10.0.0.2) node_manager.cc:3040: 1 Workers (tasks / actors) killed due to memory pressure (OOM)",
        "out-of-memory",
    ),
    (
        "(EngineCore_DP0 pid=638) ERROR 11-24 10:00:00 [core.py:700] torch.OutOfMemoryError: HIP out of memory.",
        "gpu-out-of-memory",
    ),
    ("(Worker_TP1_EP1 pid=72, ip=10.0.0.3) torch.OutOfMemoryError: HIP out of memory.", "gpu-out-of-memory"),
    ("(APIServer pid=7) ModuleNotFoundError: No module named 'vllm'", "layer-not-in-image"),
    ("socket.gaierror: [Errno -2] Name or service not known", "ranks-did-not-meet"),
    (
        "Abort(1) on node 3 (rank 3 in comm 0): application called MPI_Abort(MPI_COMM_WORLD, 1) - process 3",
        "step-ended",
    ),
    ("[Tue Nov 24 05:31:08 2026] Out of memory: Killed process 4711 (python) total-vm:1kB", "out-of-memory"),
    ("Nov 24 05:31:08 nid005101 kernel: Out of memory: Killed process 4711 (python)", "out-of-memory"),
    (
        "(EngineCore_0 pid=638) ERROR 11-24 10:00:00 [core.py:700] torch.OutOfMemoryError: HIP out of memory.",
        "gpu-out-of-memory",
    ),
]


def test_deaths_as_users_paste_them() -> None:
    for line, ended in PASTED:
        assert ended_by(["step 1", line]) == ended, (line, ended)


def test_slurms_word_of_a_kill_comes_last_and_is_the_cause_all_the_same() -> None:
    for name in [name for name in DEATHS if name not in {"no word", "unknown", "meeting"}]:
        lines = [line for line in died("no word", 3) if "srun" not in line]
        assert ended_by([*job("cxi", 0, 3, 9), *lines, *died(name, 3, cascade=False)]) == DEATHS[name].id, name


def test_the_first_of_two_deaths_is_the_cause() -> None:
    first, then = died("HIP memory", 3, cascade=False), died("segfault", 5)
    assert ended_by([*job("cxi", 0, 3, 5), *first, *then]) == "gpu-out-of-memory"
    assert ended_by([*job("cxi", 0, 3, 5), *then, *first]) == "segmentation-fault"


def test_an_error_that_the_program_outlived_is_not_what_ended_it() -> None:
    for end in ["time limit", "cancelled", "node failed"]:
        caught = raised("HIP memory")
        steps = [f"0: step {number} loss 2.3" for number in range(300)]
        assert ended_by([*job("cxi", 0, 3), *caught, *steps, *died(end, 0, cascade=False)]) == DEATHS[end].id, end
        exited = [line.format(rank=3, node="nid005101") for line in EXITED]
        assert (
            ended_by([*job("cxi", 0, 3), *caught, *exited, *steps, *died(end, 0, cascade=False)]) == "gpu-out-of-memory"
        ), end


def test_an_error_in_the_middle_of_a_job_that_went_on_changes_no_answer() -> None:
    caught = raised("port")
    report = read([*job("cxi", 0, 3), *caught, *(f"0: step {number}" for number in range(300))])
    assert (report.ended, report.answer) == (None, ExitCode.GOOD)
    assert "port-taken" in [cause.id for cause in report.causes]


WENT_ON = ("step 13 loss 2.31", "Checkpoint written", "retrying (1 of 3)", "0: step 13 loss 2.31", "100%|████| 13/13")
FOLLOWS = {
    "nothing": (),
    "an empty line": ("", "  "),
    "another rank's traceback": (
        "5: Traceback (most recent call last):",
        '5:   File "/scratch/train.py", line 212, in <module>',
        "5:     loss.backward()",
        "5:     ^^^^^^^^^^^^^^^",
        "5: torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2 GiB",
    ),
    "with PyTorch's own prefix": (
        "[rank5]: Traceback (most recent call last):",
        '[rank5]:   File "/scratch/train.py", line 212, in <module>',
        "[rank5]:     loss.backward()",
        "[rank5]: RuntimeError: HIP error: invalid device function",
    ),
    "the rest of its own text": (
        "HIP kernel errors might be asynchronously reported at some other API call, so the stacktrace is wrong.",
        "For debugging consider passing AMD_SERIALIZE_KERNEL=3",
        "Compile with `TORCH_USE_HIP_DSA` to enable device-side assertions.",
    ),
    "another error on it": (
        "During handling of the above exception, another exception occurred:",
        "Traceback (most recent call last):",
        '  File "/scratch/train.py", line 9, in main',
        "KeyError: 'x'",
    ),
    "c10d and NCCL that end": (
        "[W1124 10:00:00.123456789 ProcessGroupNCCL.cpp:1479] Warning: WARNING: destroy_process_group() was not called",
        "nid005101:103:1 [0] NCCL INFO comm 0x7f00 rank 3 nranks 16 cudaDev 0 busId c1000 - Abort COMPLETE",
    ),
    "the launcher": (
        "srun: error: nid005101: task 3: Exited with exit code 1",
        "slurmstepd: error: *** STEP 4242.0 ON nid005101 CANCELLED AT 2026-11-24T16:20:46 ***",
        "-----------------------------",
        "real\t0m3.2s",
    ),
}
"""What may stand behind the last word of a program, in the words of who prints it."""


LAST_WORDS = ("done", "Tue Nov 24 05:31:08 EET 2026", "3: [ERROR] training failed, shutting down", "Job finished")
"""What programs and job scripts print of their own when they end, in whichever way."""


def test_an_error_near_the_end_of_a_log_ends_nothing_and_leaves_no_green_answer() -> None:
    for after, name in product(WENT_ON + LAST_WORDS, ["HIP memory", "quota", "module", "no GPUs", "NaN"]):
        caught = raised(name)
        report = read([*job("cxi", 0, 3), *caught, after])
        assert (report.ended, report.end_unclear, report.answer) == (None, True, ExitCode.UNDECIDED), (after, name)
        assert (report.verdict, report.confidence) == (Verdict.OFI_CXI, Confidence.PROVED), (after, name)
        assert [cause.id for cause in report.causes[:2]] == ["end-unclear", DEATHS[name].id], (after, name)
        for more in (["5: step 14"] * 100, job("cxi", 5)):
            report = read([*job("cxi", 0, 3), *caught, after, *more])
            assert (report.ended, report.end_unclear, report.answer) == (None, False, ExitCode.GOOD), (after, name)
            assert DEATHS[name].id in [cause.id for cause in report.causes], (after, name)


_FRAMES = ("Traceback (most recent call last):", '  File "/scratch/train.py", line 212, in <module>', "    f(x)")


def test_with_a_traceback_near_its_end_no_log_is_green() -> None:
    for tag, error in product(
        ["", "3: ", "[rank3]: ", "(EngineCore_0 pid=638) ERROR 11-24 10:00:00 [core.py:700] "],
        ["KeyError: 'x'", "AssertionError: batch size", "KeyboardInterrupt", "x.MyError"],
    ):
        lines = [f"{tag}{line}" for line in (*_FRAMES, error)]
        for end in (lines, [*lines, ""], [*lines, *lines], [*lines, "done"]):
            report = read([*job("cxi", 0, 3), *end])
            assert (report.ended, report.end_unclear, report.answer) == (None, True, ExitCode.UNDECIDED), (tag, error)
        apart = LogReader()
        apart.feed("job.out", "".join(f"{line}\n" for line in job("cxi", 0, 3)).encode())
        apart.feed("job.err", "".join(f"{line}\n" for line in lines).encode())
        assert apart.report().answer is ExitCode.UNDECIDED, (tag, error)
        assert read([*job("cxi", 0, 3), *lines, *(["step 14 loss 2.3"] * 120)]).answer is ExitCode.GOOD, (tag, error)


def test_of_a_job_on_one_node_an_error_near_the_end_says_nothing_of_other_nodes() -> None:
    tag = "nid005101:103:1 [0] NCCL INFO"
    lines = [f"{tag} comm 0xa rank 0 nRanks 8 nNodes 1 localRanks 8 localRank 0 MNNVL 0", f"{tag} Using network Socket"]
    assert read(lines).answer is ExitCode.GOOD
    report = read([*lines, *_FRAMES, "KeyError: 'x'"])
    assert (report.answer, report.causes[0].id) == (ExitCode.UNDECIDED, "end-unclear")
    assert "other nodes" not in headline(report)


IGNORED = [
    "TypeError: 'NoneType' object is not callable",
    "OSError: [Errno 28] No space left on device",
    "BrokenPipeError: [Errno 32] Broken pipe",
]


def test_what_python_ignores_while_it_ends_is_no_end_of_a_job() -> None:
    for error in IGNORED:
        ignored = "Exception ignored in: <function Pool.__del__ at 0x7f00>"
        for lines in ([ignored, *_FRAMES, error], [ignored, error]):
            report = read([*job("cxi", 0, 3), *lines])
            assert (report.ended, report.answer) == (None, ExitCode.GOOD), error


_WARNING = (
    "WARNING:root:",
    "Warning: ",
    "[W1124 10:00:00.123456789 socket.cpp:767] [c10d] ",
    "[rank3]:[W1124 10:00:00.123456789 socket.cpp:767] ",
    "W1124 10:00:00.123000 4711 torch/distributed/elastic/api.py:900] ",
    "(EngineCore_DP0 pid=638) WARNING 11-24 10:00:00 [core.py:700] ",
    "INFO 11-24 10:00:00 [core.py:700] ",
    "/opt/venv/lib/python3.12/site-packages/x.py:129: UserWarning: ",
)


def test_what_a_program_only_warns_of_ended_nothing() -> None:
    for name, warning in product(DEATHS, _WARNING):
        said = [warning + line.partition(": ")[2] for line in died(name, 3, cascade=False) if "srun" not in line]
        for before in (job("cxi", 0, 3), []):
            assert read([*before, *said]).ended is None, (name, warning)


def test_an_error_is_the_end_where_only_what_follows_on_an_end_comes_after_it() -> None:
    for name, after in product(["HIP memory", "quota", "module"], FOLLOWS.values()):
        own = raised(name)
        assert ended_by([*job("cxi", 0, 3), *own, *after]) == DEATHS[name].id, (name, after)


def test_lines_behind_an_error_are_looked_at_wherever_a_block_ends() -> None:
    own = raised("quota")
    text = "".join(f"{line}\n" for line in [*job("cxi", 0, 3), *own, *FOLLOWS["another rank's traceback"]]).encode()
    for after, ends in ((b"", True), (b"step 14\n", False)):
        for cut in range(0, len(text), 97):
            at = text.find(b"\n", cut) + 1
            reader = LogReader()
            for block in filter(None, (text[:at], text[at:] + after)):
                reader.feed("job.out", block)
            assert (reader.report().ended is not None) is ends, cut


def test_an_error_long_before_a_process_ended_is_not_what_ended_it() -> None:
    caught = raised("HIP memory")
    exited = [line.format(rank=3, node="nid005101") for line in EXITED]
    for steps, ending in ((300, "gpu-out-of-memory"), (3000, "step-ended")):
        lines = [*job("cxi", 0, 3), *caught, *(f"0: step {number}" for number in range(steps)), *exited]
        assert ended_by(lines) == ending


def test_what_follows_an_error_is_kept_of_its_end_only() -> None:
    own = raised("quota")
    blank = [""] * 20_000
    assert read([*job("cxi", 0, 3), *own, *blank]).ended is None


def test_a_process_that_speaks_of_its_network_later_has_outlived_its_error() -> None:
    own = "nid005101:103:1 [0] NCCL INFO"
    lines = [f"{own} {line.format(rank=3)}" for line in NETWORKS["cxi"]]
    error = "nid005101:103:1 [0] init.cc:1 NCCL WARN HIP failure 'out of memory'"
    assert read([*lines[:3], error, *lines[3:]]).ended is None
    assert read([*lines, error]).ended is not None


def test_of_a_job_that_was_started_again_the_last_run_counts() -> None:
    before = [*job("cxi", 0, 8), *died("node failed", 8)]
    again = [line.replace(":10", ":20") for line in job("cxi", 0, 8)]
    report = read([*before, *again])
    assert (report.ended, report.verdict, report.confidence) == (None, Verdict.OFI_CXI, Confidence.PROVED)
    assert ended_by([*before, *again, *died("quota", 0)]) == "quota-exceeded"


def test_an_error_in_a_file_of_its_own_ends_the_job_if_its_last_lines_say_so() -> None:
    reader = LogReader()
    reader.feed("job.out", "".join(f"{line}\n" for line in job("cxi", 0, 3)).encode())
    reader.feed("job.err", "".join(f"{line}\n" for line in died("quota", 3)).encode())
    ended = reader.report().ended
    assert ended is not None
    assert ended.id == "quota-exceeded"


def test_what_the_network_died_of_is_the_verdict_and_needs_no_other_word() -> None:
    lines = [
        "nid005101:103:1 [0] NCCL INFO NET/Plugin: Could not find: librccl-net.so.",
        "nid005101:103:1 [0] net.cc:626 NCCL WARN Error: network AWS Libfabric not found.",
    ]
    report = read([*lines, *died("no word", 3)])
    assert (report.verdict, report.ended) == (Verdict.PLUGIN_MISSING, None)


def test_a_death_that_is_quoted_ends_nothing() -> None:
    for name, mark in product(
        DEATHS, ["    ", "# ", "- ", "> ", "The model wrote: ", '+ grep "', "E       ", "AssertionError: "]
    ):
        quoted = [mark + line.removeprefix("3: ") for line in died(name, 3, cascade=False)]
        quiet = [f"step {number}" for number in range(len(quoted) + 2)]
        report = read([*job("cxi", 0, 3), *quoted, *quiet])
        assert (report.ended, report.answer) == (None, ExitCode.GOOD), (name, mark)
        assert read([*quoted, *quiet]).ended is None, (name, mark)


def test_a_whole_log_that_was_copied_into_a_mail_is_read_as_the_log() -> None:
    assert ended_by([f"> {line}" for line in [*job("cxi", 0, 3), *died("quota", 3)]]) == "quota-exceeded"


def test_slurms_line_behind_a_progress_bar_counts() -> None:
    bar = "20%|██        | 10/50 [1:45:54<7:03:50, 635.76s/it] 22%|██▏       | 11/50 [1:56:28<6:52:58, 635.36s/it]"
    line = "slurmstepd: error: *** JOB 42187 ON clr1247 CANCELLED AT 2022-04-14T16:17:16 DUE TO TIME LIMIT ***"
    assert ended_by([f"{bar}{line}"]) == "time-limit"


OF_SLURM = [
    ("4242.0        train   project_465     512 OUT_OF_ME+    0:125", "out-of-memory"),
    ("4242|train|TIMEOUT|0:0", "time-limit"),
    ("4242|FAILED|1:0", "step-ended"),
    ("4242|CANCELLED by 1000|0:15", "cancelled"),
    ("State: OUT_OF_MEMORY (exit code 0)", "out-of-memory"),
    ("State: CANCELLED (exit code 0)", "cancelled"),
    ("4242          train   project_465     512 CANCELLED+      0:0", "cancelled"),
    ("4242|train|CANCELLED by 1000|0:0", "cancelled"),
    ("4242|train|DEADLINE|0:0", "time-limit"),
    ("4242|train|PREEMPTED|0:0", "preempted"),
    ("4242.0|train|FAILED|1:0", "step-ended"),
    ("4242.0|FAILED", "step-ended"),
    ("4242.0|12345K|nid005101|3|TIMEOUT", "time-limit"),
    ("4242.0            TIMEOUT", "time-limit"),
    ("JobState=FAILED Reason=NonZeroExitCode Dependency=(null)", "step-ended"),
    ("the job 4242 FAILED, said the model", None),
    ("1024 tests FAILED", None),
    ("1024 tests FAILED, 3 passed", None),
    ("5000 ms TIMEOUT", None),
    ("5000 ms TIMEOUT of the request to 10.0.0.1", None),
    ("2048 requests CANCELLED by the client", None),
    ("4242.batch    batch   project_465     512  NODE_FAIL      0:0", "node-failed"),
    ("4242          train   project_465     512  COMPLETED      0:0", None),
    ("the TIMEOUT of the queue is 4242", None),
]


def test_what_slurm_says_of_the_job_beside_its_log_counts() -> None:
    for line, ended in OF_SLURM:
        lines = ["       JobID    JobName    Account  AllocCPUS      State ExitCode", line]
        assert ended_by([*job("cxi", 0, 3), *lines]) == ended, (line, ended)


STATES = {
    "FAILED": "step-ended",
    "TIMEOUT": "time-limit",
    "OUT_OF_MEMORY": "out-of-memory",
    "NODE_FAIL": "node-failed",
    "PREEMPTED": "preempted",
    "CANCELLED": "cancelled",
}
ROWS = (
    "{job}|{state}|{code}",
    "{job}|train|{state}|{code}",
    "{job:<12}     train  project_4+      512 {state:>13} {code:>8} ",
)
"""sacct's, with --parsable2 and in columns."""


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("state", STATES)
def test_of_sacct_the_rows_count_that_are_of_the_job_as_it_ended(state: str, row: str) -> None:
    def ended(own: str, *rows: tuple[str, str]) -> str | None:
        table = [row.format(job=job, state=of, code="0:0" if of == "COMPLETED" else "1:0") for job, of in rows]
        apart = LogReader()
        for file, lines in (("job.out", [*([f"SLURM_JOB_ID={own}"] if own else []), *job("cxi", 0, 3)]), ("s", table)):
            apart.feed(file, "".join(f"{line}\n" for line in lines).encode())
        report = apart.report()
        assert report.answer is (ExitCode.NO if report.ended else ExitCode.GOOD)
        return report.ended.id if report.ended else None

    good, bad = ("4242", "COMPLETED"), ("4242", state)
    for own in ("", "4242"):
        assert ended(own, good) is None
        assert ended(own, bad) == ended(own, ("4242.0", state), bad) == STATES[state]
        assert ended(own, good, ("4242.0", state)) == STATES[state], "the script went on behind its step"
        assert ended(own, bad, ("4242.0", state), good, ("4242.0", "COMPLETED")) is None, "queued again"
        assert ended(own, good, bad) == STATES[state]
    assert ended("4242", ("4200", state), good, ("4300.0", state)) is None, "of other jobs"
    assert ended("4242", ("4200", "COMPLETED"), bad, ("4300", "COMPLETED")) == STATES[state]
    assert ended("4250", ("4242_7", state)) == STATES[state], "an array's own number is another one"


ENDS = (
    "srun: error: nid[005101-005102]: tasks 0-15: Exited with exit code 1",
    "srun: error: nid005101: task 3: Floating point exception (core dumped)",
    "srun: error: nid005101: tasks 3,5-7: User defined signal 1",
    "[2026-11-24 10:00:00,123] [ERROR] [launch.py:322:sigkill_handler] ['/opt/python', '-u', 'train.py'] exits with return code = 1",
    "x3005c0s13b0n0.hsn.cm.polaris.alcf.anl.gov: rank 3 exited with code 1",
    "x3005c0s13b0n0.hsn.cm.polaris.alcf.anl.gov: rank 3 died from signal 9",
    "mpirun detected that one or more processes exited with non-zero status, thus causing",
    "prterun has exited due to process rank 3 with PID 0 on node nid005101 exiting",
    "MPICH ERROR [Rank 3] [job id 4242.0] [Tue Nov 24 05:31:08 2026] [nid005101] - Abort(1) (rank 3 in comm 0): application called MPI_Abort(MPI_COMM_WORLD, 1) - process 3",
    "E1124 10:00:00.123000 4711 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: 1) local_rank: 3 (pid: 4712) of binary: python",
    "command terminated with exit code 1",
    "flux-job: task(s) exited with exit code 1",
    "Exited with exit code 1.",
    "TERM_OWNER: job killed by owner.",
    "Fatal Python error: Aborted",
    "/var/spool/slurmd/job42/slurm_script: line 12: 4711 Aborted                 (core dumped) python train.py",
    "Killed",
)
"""What launchers, queues and shells print of a program that did not end well, each alone."""


def test_a_launchers_word_that_a_process_failed_is_never_overlooked() -> None:
    for line in ENDS:
        steps = [f"0: step {number} loss 2.31" for number in range(200)]
        report = read([*job("cxi", 0, 3), *steps, line])
        assert report.ended is not None, line
        assert (report.ended.id, report.answer) == (
            "worker-killed" if line == "Killed" else "step-ended",
            ExitCode.NO,
        ), line
        own = raised("quota")
        assert ended_by([*job("cxi", 0, 3), *steps, *own, line]) == "quota-exceeded", line
        for quoted in (f"The log says: {line}", f"# {line}", f"AssertionError: {line}"):
            assert read([*job("cxi", 0, 3), *steps, quoted]).answer is ExitCode.GOOD, line


def test_the_time_limit_is_no_cancelling() -> None:
    causes = [cause.id for cause in read([*job("cxi", 0, 3), *died("time limit", 3, cascade=False)]).causes]
    assert causes == ["time-limit"]


NUMBERED = (
    "SLURM_JOB_ID=4711",
    "slurmstepd: error: *** JOB 4711 ON nid005101 CANCELLED AT 2026-11-24T16:20:46 ***",
    "srun: Terminating StepId=4711.0",
)


def test_a_command_names_the_job_where_the_log_says_its_number() -> None:
    for line in NUMBERED:
        own = raised("HIP memory")
        for lines, number in (
            ([line], "4711"),
            ([line, f"The log says: {line.replace('4711', '42')}"], "4711"),
            ([line, line.replace("4711", "4712")], "$SLURM_JOB_ID"),
            (["SLURM_JOB_ID=4711)(rm", ""], "$SLURM_JOB_ID"),
            ([], "$SLURM_JOB_ID"),
        ):
            report = read([*lines, *job("cxi", 0, 3), *own, "done"])
            steps = [step for cause in report.causes for step in cause.remedy if "sacct -j" in step]
            assert all(f"sacct -j {number} " in step for step in steps), line
            assert steps or report.ended, line


def test_a_crash_while_the_plugin_starts_is_told_from_one_in_the_program() -> None:
    for seen in ["Loaded net plugin", "Using network Socket"]:
        start = ["nid005101:103:1 [0] NCCL INFO NET/OFI Initializing aws-ofi-nccl 1.18.0"]
        if seen == "Using network Socket":
            start.append(f"nid005101:103:1 [0] NCCL INFO {seen}")
        assert ended_by([*start, "srun: error: nid005101: task 3: Segmentation fault (core dumped)"]) == (
            "plugin-crash" if seen == "Loaded net plugin" else "segmentation-fault"
        ), seen
