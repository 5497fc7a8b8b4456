"""What ends a job in its program is distinguished in each form in which Python, a shell, PyTorch and Gloo say it."""

from __future__ import annotations

import pytest

from lumiimg.joblog import LogReader, LogReport, read_lines
from tests.shared.job_deaths import EXITED

TORCHRUN = [
    "W1129 14:14:56.106000 17458 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 17460 closing signal SIGTERM",
    "E1129 14:14:56.122000 17458 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) local_rank: 1 (pid: 17461) of binary: /opt/venv/bin/python3",
    "Traceback (most recent call last):",
    '  File "/opt/venv/bin/torchrun", line 8, in <module>',
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
]
PRINT = "CollectiveFingerPrint(SequenceNumber=0, OpType={}, TensorShape=[{}], TensorDtypes=Float, TensorDeviceTypes=TensorOptions(dtype=float (default), device=cuda, layout=Strided (default), requires_grad=false (default), pinned_memory=false (default), memory_format=(nullopt)))"
MISMATCH = f"RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running collective: {PRINT}, but Rank 5 is running collective: {PRINT}.Collectives differ in the following aspects:"
SETTING_UP = "torch.distributed.DistBackendError: [1] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value store by key '0', but "
LAUNCH = "[2023-04-14 13:11:27,885] [ERROR] [launch.py:434:sigkill_handler] ['/usr/bin/python3', '-u', 'main.py', '--local_rank=0'] "
GLOO = "[/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/"


def died(line: str, launcher: list[str]) -> LogReport:
    """Return what is read of a job of which a rank prints this line as its last."""
    return read_lines("job.out", [line, *(one.format(rank=3, node="nid005101") for one in launcher)])


@pytest.mark.parametrize("launcher", [EXITED, TORCHRUN])
@pytest.mark.parametrize(
    ("line", "id_", "words"),
    [
        ("/opt/venv/bin/python: Error while finding module specification for 'vllm.entrypoints.openai.api_server' (ModuleNotFoundError: No module named 'vllm')", "layer-not-in-image", "vllm"),
        ("/opt/venv/bin/python3.12: Error while finding module specification for 'einops.x' (ModuleNotFoundError: No module named 'einops')", "module-missing", "'einops'"),
        ("/usr/bin/python: No module named vllm", "layer-not-in-image", "vllm"),
        ("python3: No module named torch.distributed.runn", "layer-not-in-image", "torch"),
        ("/usr/bin/python3: No module named accelerate", "module-missing", "accelerate"),
        ("ModuleNotFoundError: No module named 'flash_attn'", "layer-not-in-image", "flash_attn"),
        ("/usr/bin/python: No module named json.__main__; 'json' is a package and cannot be directly executed", "module-not-a-program", "json is a package"),
        ("/usr/bin/python: No module named vllm.__main__; 'vllm' is a package and cannot be directly executed", "module-not-a-program", "vllm is a package"),
        ("/tmp/tv/bin/python: can't open file '/scratch/train.py': [Errno 2] No such file or directory", "script-missing", "/scratch/train.py: No such file"),
        ("python: can't open file 'train.py': [Errno 13] Permission denied", "script-missing", "Permission denied"),
        ("bash: line 1: vllm: command not found", "command-not-found", "vllm"),
        ("/var/spool/slurmd/job42/slurm_script: line 17: hf: command not found", "command-not-found", "hf"),
        ("/bin/sh: 1: deepspeed: not found", "command-not-found", "deepspeed"),
        ("/usr/bin/env: \u2018python\u2019: No such file or directory", "command-not-found", "python"),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'vllm'", "command-not-found", "vllm"),
        ("AssertionError: Torch not compiled with CUDA enabled", "torch-without-gpu", ""),
        ("RuntimeError: Distributed package doesn't have NCCL built in", "torch-without-gpu", ""),
        ("FileExistsError: [Errno 17] File exists: '/scratch/data/S043'", "file-made-twice", "/scratch/data/S043"),
        ("FileExistsError: [Errno 17] File exists: '/users/me/.triton/cache/x'", "compile-cache", ""),
        ("RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory. This is an internal miniz error.", "file-damaged", ""),
        ("_pickle.UnpicklingError: invalid load key, '<'.", "file-damaged", ""),
        ("EOFError: Ran out of input", "file-damaged", ""),
        ("EOFError", "python-error", "EOFError"),
        ("RuntimeError: unexpected EOF, expected 4711 more bytes. The file might be corrupted.", "file-damaged", ""),
        ("RuntimeError: The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in use).", "port-taken", ""),
        ("RuntimeError: can't start new thread", "threads-refused", ""),
        ("OpenBLAS blas_thread_init: pthread_create failed for thread 63 of 64: Resource temporarily unavailable", "threads-refused", ""),
        ("train.py: error: unrecognized arguments: --gpu-memory-utilisation 0.9", "option-not-known", "--gpu-memory-utilisation 0.9"),
        ("usage.py: error: argument --dtype: invalid choice: 'bf8' (choose from 'auto', 'half')", "option-not-known", "--dtype"),
        ("safetensors_rust.SafetensorError: Error while deserializing header: HeaderTooLarge", "file-damaged", ""),
        ("zipfile.BadZipFile: File is not a zip file", "file-damaged", ""),
        ("_pickle.UnpicklingError: Weights only load failed. This file can still be loaded, to do so you have two options, \x1b[1mdo those steps only if you trust the source of the checkpoint\x1b[0m. ", "checkpoint-not-only-weights", ""),
        ("RuntimeError: Error(s) in loading state_dict for DistributedDataParallel:", "checkpoint-of-another-model", "DistributedDataParallel"),
        (MISMATCH.format("ALLREDUCE", "2097152", "ALLREDUCE", "4, 1048576"), "collectives-differ", "rank 0 ALLREDUCE, TensorShape=[2097152], rank 5 ALLREDUCE, TensorShape=[4, 1048576]"),
        (MISMATCH.format("BROADCAST", "4", "ALLREDUCE", "4"), "collectives-differ", "rank 0 BROADCAST, TensorShape=[4], rank 5 ALLREDUCE"),
        (f"  what():  [enforce fail at {GLOO[1:]}pair.cc:456] op.preamble.length <= op.nbytes. 52 vs 4. Received data size doesn't match expected size.", "gloo-sizes-differ", "52 bytes came where 4"),
        ("[rank0]: RuntimeError: [Rank 0]: Rank 1 failed to pass monitoredBarrier in 4000 ms", "rank-did-not-come", "Rank 1 did not"),
        (SETTING_UP + "store->get('0') got error: wait timeout after 8000ms, keys: /default_pg/0//2//cuda//0", "group-not-set-up", "Rank 1 waited for rank 0 to set up a process group, without success (wait timeout)"),
        (LAUNCH + "exits with return code = -9", "worker-killed", ""),
        (LAUNCH + "exits with return code = -11", "segmentation-fault", ""),
        (LAUNCH + "exits with return code = -7", "bus-error", ""),
        ("*** SIGSEGV received at time=1720159248 on cpu 5 ***", "segmentation-fault", ""),
        ("*** SIGABRT received at time=1720159248 on cpu 5 ***", "aborted", ""),
        ("libgomp: Thread creation failed: Resource temporarily unavailable", "threads-refused", ""),
        ("  what():  thread: Resource temporarily unavailable", "threads-refused", ""),
        ("  what():  /src/exec_utils.cpp:58: miopen::exec::Run(): popen() failed", "threads-refused", ""),
        ("bash: fork: retry: Resource temporarily unavailable", "threads-refused", ""),
        ("ValueError: Cannot provide a placement group of placement_group_specs=[{'GPU': 1.0}] within 1800 seconds.", "ray-no-room", ""),
        ("  what():  the mesh has no cells", "exception-not-caught", "the mesh has no cells"),
        ("[rank3]:[E909 08:45:30.167 ProcessGroupNCCL.cpp:2252] [PG ID 2 PG GUID 3 Rank 7]  failure detected by watchdog at work sequence id: 40231 PG status: last enqueued work: 40267, last completed work: 40230", "collective-failed", ""),
        ("[E929 22:14:53.1128 ProcessGroupNCCL.cpp:1487] [PG ID 0 PG GUID  Rank 3] ProcessGroupNCCL's watchdog got stuck for 10 seconds", "collective-timeout", ""),
        ("  what():  [PG 1 Rank 7] Process group watchdog thread terminated with exception: [Rank 7] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=199)", "collective-timeout", ""),
        ("[rank6]:[E624 04:14:29.2255 ProcessGroupNCCL.cpp:698] [Rank 6] To avoid data inconsistency, we are taking the entire process down.", "collective-failed", ""),
        ("jaxlib.xla_extension.XlaRuntimeError: DEADLINE_EXCEEDED: Barrier timed out. Barrier_id: PjRT_Client_Connect. Timed out task names:", "jax-tasks-missing", ""),
        (f"[rank0]: RuntimeError: {GLOO}unbound_buffer.cc:78] Timed out waiting 6000ms for recv operation to complete", "wait-timed-out", ""),
        ("torch.distributed.DistStoreError: Timed out after 9 seconds waiting for clients. 1/2 clients joined.", "ranks-missing", "Only 1 of 2"),
    ],
)  # fmt: skip
def test_each_way_in_which_a_program_ends_has_its_own_cause(
    line: str, id_: str, words: str, launcher: list[str]
) -> None:
    report = died(line, launcher)
    assert (report.ended.cause, report.causes[0].id) == (id_, id_)
    assert words in report.ended.summary
    assert report.causes[0].remedy


def test_an_assertion_of_the_program_is_named_and_none_that_is_printed_before_a_quotation() -> None:
    traceback = "[rank3]: Traceback (most recent call last):"
    exits = [one.format(rank=3, node="nid005101") for one in EXITED]
    for line in ("AssertionError", "AssertionError: batch must divide"):
        ended = read(out=[traceback, f"[rank3]: {line}", *exits]).ended
        assert (ended.cause, ended.summary) == ("assertion-failed", f"Python stopped at an assertion: {line}")
        assert read(out=[f"[rank3]: {line}"]).ended.cause is None


@pytest.mark.parametrize(("line", "id_", "words"), [
    (SETTING_UP + "store->get('0') got error: Connection reset by peer. This may indicate a possible application crash on rank 0", "group-peer-ended", "(Connection reset by peer)"),
    ("torch.distributed.elastic.multiprocessing.api.SignalException: Process 22413 got signal: 15", "launcher-asked-to-end", "signal 15"),
    ("Exit code: 137", "worker-killed", ""),
    ("stderr:   what():  [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=ALLGATHER)", "collective-timeout", ""),
    ("ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.", "ray-worker-ended", ""),
    ("(EngineCore_DP0 pid=17834) ERROR 04-15 14:37:14 [v1/engine/core.py:936] EngineCore failed to start.", "engine-worker-ended", ""),
    ("Exception: WorkerProc initialization failed due to an exception in a background process. See stack trace for root cause.", "engine-worker-ended", ""),
    ("ValueError: TP rank 1 could finish the model loading, but there are other ranks that didn't finish loading.", "engine-worker-ended", ""),
    ("2024-10-09 15:47:38.568412: E external/xla/xla/tsl/distributed_runtime/coordination/coordination_service.cc:1170] /job:jax_worker/replica:0/task:0 has been set to ERROR in coordination service: UNAVAILABLE: Task /job:jax_worker/replica:0/task:0 heartbeat timeout.", "jax-task-ended", ""),
    ("F0929 17:42:48.594200 1044529 client.h:77] Terminating process because the JAX distributed service detected fatal errors.", "jax-task-ended", ""),
])  # fmt: skip
def test_what_follows_on_the_end_of_another_process_is_reported_where_nothing_else_is(
    line: str, id_: str, words: str
) -> None:
    report = died(line, EXITED)
    assert (report.ended.cause, words in report.ended.summary) == (id_, True)


def test_an_error_that_may_have_been_caught_leaves_no_answer_without_what_to_do() -> None:
    report = read_lines("job.out", ["ValueError: TP rank 1 is late", "epoch 2: loss 2.1"])
    assert (report.ended.cause, [cause.id for cause in report.causes]) == (None, ["nothing-decided"])


def test_what_miopen_only_warns_of_is_not_what_ended_the_job() -> None:
    warning = "MIOpen(HIP): Warning [FindWinogradSolutions] /MIOpen/src/sqlite_db.cpp:108: open memvfs: unable to open database file"
    error = "MIOpen Error: /MIOpen/src/ocl/convolutionocl.cpp:831: Forward Convolution cannot be executed due to incorrect params"
    assert read_lines("job.out", [warning]).ended.cause is None
    report = read_lines("job.out", [warning, error, "RuntimeError: miopenStatusUnknownError"])
    assert [cause.id for cause in report.causes] == ["kernel-not-available"]


LOST = f"[rank0]: RuntimeError: {GLOO}pair.cc:537] Read error [10.0.0.2]:9940: Connection reset by peer. This is typically caused by a remote worker hanging or bugs in the application."
TIMED_OUT = (
    f"[rank0]: RuntimeError: {GLOO}unbound_buffer.cc:78] Timed out waiting 6000ms for recv operation to complete"
)
OWN = "[rank1]: RuntimeError: a rank fails in a real job"
FIRST = TORCHRUN[1]


def read(**files: list[str]) -> LogReport:
    """Return what is read of several files of one job."""
    reader = LogReader()
    for name, lines in files.items():
        reader.feed(f"job.{name}", "".join(f"{line}\n" for line in lines).encode())
    return reader.report()


def test_how_a_rank_ended_says_more_than_that_another_one_lost_it() -> None:
    for last, cause in (
        ([OWN, *TORCHRUN], "python-error"),
        ([FIRST.replace("exitcode: 1", "exitcode: -9")], "worker-killed"),
        ([FIRST.replace("exitcode: 1", "exitcode: -11")], "segmentation-fault"),
        ([FIRST.replace("exitcode: 1", "exitcode: 7")], "first-to-fail"),
        (["srun: error: nid005101: task 1: Killed"], "worker-killed"),
        (["srun: error: nid005101: task 0: Exited with exit code 1"], "peer-gone"),
    ):
        assert read(out=[LOST, *last]).ended.cause == cause, cause
    assert read(out=[TIMED_OUT, FIRST]).ended.cause == "wait-timed-out", "which says why it failed"
    # of the same words on three ranks those of the second are a loss, too
    lost = [LOST.replace("rank0", f"rank{rank}").replace("9940", port) for rank, port in enumerate(("1", "2", "2"))]
    assert read(out=[*lost, FIRST.replace("exitcode: 1", "exitcode: 7")]).ended.cause == "first-to-fail"


def test_an_error_of_a_rank_in_another_file_was_before_those_who_waited_for_it() -> None:
    exits = [one.format(rank=1, node="nid005101") for one in EXITED]
    for waiting in (LOST, TIMED_OUT):
        for files in ({"a": [waiting], "b": [OWN], "c": exits}, {"a": [OWN], "b": [waiting], "c": exits}):
            report = read(**files)
            assert (report.ended.cause, report.ended.ranks) == ("python-error", "1"), files


def test_the_launcher_names_the_rank_and_the_node_of_a_line_that_names_none() -> None:
    hang = "HW Exception by GPU node-6 (Agent handle: 0x5d2c10) reason :GPU Hang"
    ended = read(out=[hang, "srun: error: nid007003: task 12: Aborted", "srun: error: nid007004: task 3: Killed"]).ended
    assert (ended.cause, ended.ranks, ended.node) == ("gpu-broken", "12", "nid007003")
    steps = read(out=[hang, "srun: error: nid007003: task 12: Aborted"]).causes[0].remedy
    assert [step.command for step in steps if "--exclude" in step] == ["#SBATCH --exclude=nid007003"]
    assert read(out=["srun: error: nid007003: task 12: Aborted", hang]).ended.node is None
