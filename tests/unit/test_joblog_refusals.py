"""What never started is named by its cause: a step that Slurm refused, a container, a program. Words of Slurm 22.05 and Apptainer 1.4.5
where no other is named, as they printed them in these situations."""

from __future__ import annotations

from lumiimg.core.findings import Severity
from lumiimg.joblog import read_lines

DENIED = "srun: error: Unable to allocate resources: "
STEP = "srun: error: Unable to create step for job 18: "
CREATION = "FATAL:   container creation failed: "
OPEN = "FATAL:   While checking container encryption: could not open image /scratch/a.sif: "
REFUSED = {
    # Slurm
    f"{STEP}Memory required by task is not available": "step-refused",
    f"{STEP}Requested nodes are busy": "step-refused",
    f"{STEP}More processors requested than permitted": "step-layout",
    f"{STEP}Requested node configuration is not available": "step-layout",
    "srun: error: Only allocated 2 nodes asked for 4": "step-layout",
    f"srun: error: Step requested GRES but job doesn't have GRES\n{STEP}Invalid generic resource (gres) specification": "step-gpus",
    "srun: error: CPU binding outside of job step allocation, allocated CPUs are: 0x3.\n"
    "srun: error: Task launch for StepId=18.2 failed on node nid000002: Unable to satisfy cpu bind request\n"
    "srun: error: Application launch failed: Unable to satisfy cpu bind request\nsrun: Job step aborted": "cpu-binding-refused",
    f"{STEP}Zero Bytes were transmitted or received": "slurm-does-not-answer",
    "srun: error: slurm_receive_msg: Zero Bytes were transmitted or received": "slurm-does-not-answer",
    "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation": "slurm-does-not-answer",
    f"{DENIED}Invalid account or account/partition combination specified": "account-refused",
    f"{DENIED}User's group not permitted to use this partition": "account-refused",
    "sbatch: error: AssocMaxSubmitJobLimit\nsbatch: error: Batch job submission failed: Job violates accounting/QOS policy "
    "(job submit limit, user's size and/or time limits)": "account-refused",
    f"srun: error: invalid partition specified: nosuch\n{DENIED}Invalid partition name specified": "job-refused",
    f"srun: error: Memory specification can not be satisfied\n{DENIED}Requested node configuration is not available": "job-refused",
    f"{DENIED}Requested time limit is invalid (missing or exceeds some limit)": "job-refused",
    "srun: error: Unable to confirm allocation for job 4242: Invalid job id specified\n"
    "srun: Check SLURM_JOB_ID environment variable. Expired or invalid job 4242": "job-expired",
    "srun: error: Slurm job 4242 has expired\nsrun: Check SLURM_JOB_ID environment variable. Expired or invalid job 4242": "job-expired",
    "srun: error: timeout waiting for task launch, started 3 of 8 tasks\nsrun: Job step 42.0 aborted before step completely "
    "launched.": "task-launch-failed",
    "srun: error: nid000001: task 0: Exited with exit code 2\n"
    "slurmstepd-nid000001: error: execve(): singularity: No such file or directory": "program-not-started",
    "srun: fatal: SLURM_MEM_PER_CPU, SLURM_MEM_PER_GPU, and SLURM_MEM_PER_NODE are mutually exclusive.": "srun-options",
    "srun: fatal: cpus-per-task set by two different environment variables SLURM_CPUS_PER_TASK=8 != SLURM_TRES_PER_TASK=cpu=4": "srun-options",
    "srun: error: Could not open stdout file: No such file or directory": "srun-options",
    "srun: error: slurm_receive_msgs: [[localhost]:18101] failed: Socket timed out on send/recv operation\nsrun: error: Task launch for "
    "StepId=29.0 failed on node nid000001: Socket timed out on send/recv operation\nsrun: error: Application launch failed: Socket timed out on "
    "send/recv operation\nsrun: Job step aborted": "slurm-does-not-answer",
    "slurmstepd: error: execve(): bad interpreter(/no/such/sh): No such file or directory": "program-not-started",
    "/var/spool/slurmd/job42/slurm_script: line 9: apptainer: command not found": "command-not-found",
    # containers
    f"{CREATION}mount hook function failure: mount /opt/cray->/opt/cray error: while mounting /opt/cray: destination /opt/cray doesn't "
    "exist in container": "bind-point-missing",
    f"{CREATION}mount hook function failure: mount /appl/x->/mnt error: while mounting /appl/x: mount source /appl/x doesn't "
    "exist": "bind-source-missing",
    f"{CREATION}mount hook function failure: mount /etc/passwd->/tmp error: while mounting /etc/passwd: could not mount /etc/passwd: not "
    "a directory": "bind-failed",
    "FATAL:   While setting bind mount configuration: while parsing bind path: while getting bind path: xx is not a valid bind "
    "option": "bind-failed",
    # Singularity 3.0, 3.8, as pasted
    f"{CREATION}mount error: can't mount image /proc/self/fd/8: failed to find loop device: could not attach image file too loop device: "
    "operation not permitted": "container-no-loop-device",
    f"{CREATION}mount /proc/self/fd/3->/usr/local/var/singularity/mnt/session/rootfs error: while mounting image /proc/self/fd/3: failed "
    "to find loop device: could not attach image file to loop device: no loop devices available": "container-no-loop-device",
    f"{CREATION}failed to resolve session directory /var/lib/apptainer/mnt/session: lstat /var/lib/apptainer/mnt: no such file or "
    "directory": "container-no-session",
    "FATAL:   While performing build: packer failed to pack: while unpacking local image: copy Failed: write /tmp/build-temp-17/rootfs/bin/"
    "sh: no space left on device": "container-no-session",
    f"{OPEN}failed to retrieve path for /scratch/a.sif: lstat /scratch/a.sif: no such file or directory": "container-image-missing",
    f"{OPEN}/scratch/a.sif is not readable by the current user, check permissions": "container-image-missing",
    f"{OPEN}image format not recognized": "container-image-broken",
    f"{OPEN}reading descriptors: unexpected EOF": "container-image-broken",
    f"{CREATION}image driver mount failure: image driver squashfuse_ll instance exited with error: squashfuse_ll exited: Something went "
    "wrong trying to read the squashfs image.": "container-image-broken",
    "/bin/sh: error while loading shared libraries: /lib/libc.so.6: cannot read file data: Input/output error": "container-image-broken",
    f"{OPEN}the image's architecture (arm64) could not run on the host's (amd64)": "container-architecture",
    'FATAL:   "python3": executable file not found in $PATH': "container-program-missing",
    "FATAL:   stat /opt/venv/bin/python: no such file or directory": "container-program-missing",
    "FATAL:   exec /bin/sh failed: a shared library is likely missing in the image": "container-program-missing",
    'docker: Error response from daemon: failed to create shim task: OCI runtime create failed: runc create failed: unable to start container '
    'process: exec: "python": executable file not found in $PATH: unknown.': "container-program-missing",
    "Error: crun: executable file `python` not found in $PATH: No such file or directory: OCI runtime attempted to invoke a command that "
    "was not found": "container-program-missing",
    "/.singularity.d/actions/exec: 21: exec: python3: not found": "container-program-missing",
    'docker: Error response from daemon: OCI runtime create failed: unable to start container process: exec: "/x": stat /x: no such file or '
    "directory: unknown.": "container-program-missing",
    f"{CREATION}hook function for tag layers returns error: failed to create /opt/x directory: mkdir /opt/x: read-only file system": "bind-failed",
    f"{CREATION}mount /proc/self/fd/3->/var/singularity/mnt/session/rootfs error: while mounting image /proc/self/fd/3: failed to mount squashfs "
    "filesystem: invalid argument": "container-image-broken",
    "FATAL:   container creation failed: failed to create session directory: mkdir /var/x: permission denied": "container-no-session",
    "slurmstepd: error: pyxis:     [ERROR] No such file or directory: /scratch/image.sqsh": "container-image-missing",
    "srun: error: Unable to create job step: Requested nodes are busy": "step-refused",
    "srun: Job 18 step creation temporarily disabled, retrying (Requested nodes are busy)\n"
    "srun: Job 18 step creation still disabled, retrying (Requested nodes are busy)": "step-waits",
    "ERROR  : Failed to create user namespace: not allowed to create user namespace": "container-no-user-namespace",
    "FATAL:   while extracting lolcow.sif: root filesystem extraction failed: extract command failed: ERROR  : Failed to create user "
    "namespace: maximum number of user namespaces exceeded, check /proc/sys/user/max_user_namespaces": "container-no-user-namespace",
    f"{CREATION}image driver mount failure: image driver squashfuse_ll instance exited with error: squashfuse_ll exited: fuse: failed to "
    "open /dev/fuse: Permission denied": "container-no-fuse",
    f"{CREATION}mount /proc/self/fd/3->/var/apptainer/mnt/session/rootfs error: while mounting image /proc/self/fd/3: squashfuse_ll exited "
    "with status 1: fuse: failed to exec fusermount3: No such file or directory": "container-no-fuse",
    "slurmstepd: error: pyxis: failed to import docker image\nslurmstepd: error: pyxis: printing contents of log file ...\n"
    "slurmstepd: error: pyxis:     mkdir: cannot create directory '/run/enroot': Permission denied": "enroot-not-started",
    "srun: error: task 0 launch failed: Plugin initialization failed": "enroot-not-started",
    "FATAL:   failed to set working directory: chdir /work: no such file or directory": "container-directory",
}  # fmt: skip


def test_what_never_started_is_named_by_its_cause_in_the_words_of_the_program() -> None:
    for expected, cause in REFUSED.items():
        for lines in (expected.split("\n"), [f"3: {line}" for line in expected.split("\n")]):
            report = read_lines("job.out", ["loading modules", *lines])
            assert (report.ended.cause, report.severity) == (cause, Severity.PROBLEM), expected
            assert [one.id for one in report.causes][:1] == [cause], expected
            assert "(not named)" not in report.causes[0].summary, expected
        report = read_lines(
            "job.out",
            [*([expected.split("\n")[0]] if cause != "step-waits" else ()), *["epoch 1 of 9: loss 2.3"] * 200],
        )
        assert report.ended.cause is None or cause == "program-not-started", "the job went on"


def test_a_look_at_the_queue_that_failed_and_a_missing_command_of_a_script_ended_nothing() -> None:
    for expected in (
        "squeue: error: slurm_load_jobs error: Unable to contact slurm controller (connect failure)",
        "slurm_load_jobs error: Socket timed out on send/recv operation",
        "bash: line 3: module: command not found",
    ):
        going_on = ["epoch 1 of 9: loss 2.3"] * 20
        report = read_lines("job.out", [expected, *going_on, "srun: error: nid005101: task 3: Exited with exit code 1"])
        assert report.ended.cause == "step-ended", expected
