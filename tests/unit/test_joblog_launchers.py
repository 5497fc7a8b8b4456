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
]  # fmt: skip


@pytest.mark.parametrize(("lines", "cause", "rank"), HOW)
def test_a_launcher_says_how_a_process_ended_and_which(lines: list[str], cause: str, rank: str | None) -> None:
    ended = read_lines("job.out", ["step 1", *lines]).ended
    assert (ended.cause, ended.ranks, ended.is_failure) == (cause, rank, True)


NOT_STARTED = [
    (["sbatch: error: Batch script contains DOS line breaks (\\r\\n)", "sbatch: error: instead of expected UNIX line breaks"], "script-refused"),
    (["sbatch: error: Unable to open file nofile.sh"], "script-refused"),
    (["/usr/bin/srun: unrecognized option '--gpus-per-nod=8'"], "script-refused"),
    (["salloc: error: QOSMaxSubmitJobPerUserLimit", "salloc: error: Job submit/allocate failed: Job violates accounting/QOS policy (job submit limit)"], "account-refused"),
    (["qsub: Job exceeds queue resource limits MSG=cannot satisfy queue max walltime requirement"], "job-refused"),
    (["srun: error: Unable to create job step: More processors requested than permitted"], "step-layout"),
    (["srun: error: task 0 launch failed: Unspecified error"], "task-launch-failed"),
    (["srun: error: _fwd_tree_get_addr: can't find address for host nid006677, check slurm.conf"], "slurm-at-fault"),
    (["[proxy:0:0@vm] HYDU_create_process (utils/launch/launch.c:73): execvp error on file ./m (No such file or directory)"], "program-not-started"),
    (["mpirun.openmpi was unable to launch the specified application as it could not access"], "mpirun-no-program"),
    (["[vm:1] *** An error occurred in MPI_Send", "[vm:1] *** MPI_ERR_RANK: invalid rank", "[vm:1] *** MPI_ERRORS_ARE_FATAL (processes"], "open-mpi-error"),
    (["*** An error occurred in MPI_Init", "*** on a NULL communicator"], "open-mpi-init"),
    (["[1] [1] MPI startup(): ofi fabric is not available and fallback fabric is not enabled"], "mpi-no-provider"),
    (["srun: Force Terminated job 4242", "slurmstepd: error: *** STEP 4242.0 ON nid01934 CANCELLED AT 2020-07-03T02:59:56 DUE TO TIME LIMIT ***", "srun: error: nid01934: tasks 2,4-5,7: Terminated"], "time-limit"),
    (["^Csrun: sending Ctrl-C to StepId=4242.1"], "cancelled"),
    (["srun: error: nid000003: task 0: Exited with exit code 1", "-----", 'The application appears to have been direct launched using "srun",', "but OMPI was not built with SLURM's PMI support and therefore cannot", "execute. There are several options for building PMI support under"], "mpi-launcher"),
    (["Error: statfs /dev/ss0: no such file or directory", "srun: error: nid001117: tasks 0-1: Exited with exit code 125"], "podman-not-started"),
    (["Error: could not get runtime: error generating default config from memory: cannot mkdir /run/user/16869/libpod"], "podman-not-started"),
    (["FATAL:   failed to set working directory: chdir /nodir: no such file or directory"], "container-directory"),
    (['Error for command "exec": unknown flag: --rocmm', "srun: error: n1: task 0: Exited with exit code 1"], "container-option"),
    (["FATAL:   Unable to handle docker://r/x uri: failed to get checksum for docker://r/x: pinging container registry r: dial tcp: i/o timeout"], "container-not-fetched"),
    (["BrokenPipeError: [Errno 108] Cannot send after transport endpoint shutdown: '/lustre/x'", "srun: error: n1: task 1: Exited with exit code 1"], "file-system-failed"),
    (["Stopping coordination service as cluster registration failed. This may be due to 1) some tasks"], "jax-tasks-missing"),
    (["slurmstepd: error:  mpi/pmix_v4: _errhandler: dgx142 [24]: pmixp_client_v2.c:211: Error handler invoked: status = -61, source = [slurm.pmix.1.0:199]"], "peer-gone"),
    (["/var/spool/slurm/job42/slurm_script: line 31:  6521 Killed singularity exec --nv x.sif python"], "worker-killed"),
    (["sbatch.bin: error: Invalid directive found in batch script: /log/TCO1279-DART-1D-"], "script-refused"),
    (["slurmstepd: error: execve(): /tmp/slurmd/job2997814/slurm_script: No such file or directory"], "script-not-started"),
    (["[unset]:_pmi_set_af_in_use:PMI ERROR", "srun: error: nid001234: task 0: Exited with exit code 1"], "mpi-launcher"),
    (["Unable to write to EQ: Missing or unavailable event queue. err: Input/output error (5) prov_errno: Unknown error -11 (-11) prov/efa/src/rxr/rxr.h:1343"], "efa-internal-error"),
    (["ERROR: LoadError: TaskFailedException:", "MethodError: no method matching replace(::String)", "Stacktrace:", " [1] launch()"], "julia-error"),
    (['standard_init_linux.go:211: exec user process caused "permission denied"'], "container-not-started"),
]  # fmt: skip


@pytest.mark.parametrize(("lines", "cause"), NOT_STARTED)
def test_what_never_started_is_named_by_its_cause(lines: list[str], cause: str) -> None:
    ended = read_lines("job.out", lines).ended
    assert (ended.cause, ended.is_failure, ended.is_likely) == (cause, True, False)


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
FIRST = "E1129 15:00:13.552000 1 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) local_rank: 1 (pid: 2) of binary: /opt/python"


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
    assert not read_lines("job.out", [FIRST, AGAIN, *steps]).ended.is_failure, "torchrun started it again"
    assert read_lines("job.out", [FIRST, AGAIN, *steps, FIRST]).ended.is_failure
