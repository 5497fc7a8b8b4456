"""Deaths of jobs: what is printed when a job ends so, by whom, and what is to be read in it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DeathOfJob:
    """What a rank, and then the launcher, print."""

    id: str
    """Of the signature that is to be named first."""
    rank: tuple[str, ...] = ()
    """Lines of the rank that dies."""
    launcher: tuple[str, ...] = ()
    """Lines of the launcher: `{rank}` and `{node}` are those of the rank that dies."""


EXITED = ("srun: error: {node}: task {rank}: Exited with exit code 1", "srun: Terminating StepId=4242.0")
"""What srun prints of any program that ends with an error."""
_WATCHDOG = (
    "[rank{other}]:[E1124 10:00:00.123456789 ProcessGroupNCCL.cpp:629] [Rank {other}] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=12, OpType=ALLREDUCE, Timeout(ms)=600000)"
)
CASCADE = (
    _WATCHDOG,
    "torch.distributed.DistBackendError: NCCL error in: /src/NCCLUtils.cpp:2251, remote process exited or there was a network error",
    "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
    "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.253.1.200]:24863",
    "slurmstepd: error: *** STEP 4242.0 ON nid005101 CANCELLED AT 2026-11-24T16:20:46 ***",
)
"""What other ranks and Slurm print of it afterwards."""
_TRACEBACK = ("Traceback (most recent call last):", '  File "/scratch/train.py", line 212, in <module>')


def _raised(ending: str, line: str) -> DeathOfJob:
    return DeathOfJob(ending, (*_TRACEBACK, line), EXITED)


DEATHS = {
    "oom kill": DeathOfJob("out-of-memory", (), ("srun: error: {node}: task {rank}: Out Of Memory", "slurmstepd: error: Detected 1 oom_kill event in StepId=4242.0. Some of the step tasks have been OOM Killed.")),
    "oom of cgroup": DeathOfJob("out-of-memory", (), ("slurmstepd: error: Detected 2 oom-kill event(s) in StepId=4242.batch cgroup. Some of your processes may have been killed by the cgroup out-of-memory handler.",)),
    "kernel's words": DeathOfJob("out-of-memory", (), ("[12345.678901] Memory cgroup out of memory: Killed process 4711 (python) total-vm:4kB, anon-rss:2kB", *EXITED)),
    "Ray's memory": DeathOfJob("out-of-memory", ("ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.",), EXITED),
    "bad alloc": DeathOfJob("memory-refused", ("terminate called after throwing an instance of 'std::bad_alloc'",), EXITED),
    "HIP memory": _raised("gpu-out-of-memory", "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 63.98 GiB"),
    "CUDA memory": _raised("gpu-out-of-memory", "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB"),
    "cache of vLLM": _raised("gpu-out-of-memory", "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine."),
    "JAX memory": _raised("gpu-out-of-memory", "jaxlib._jax.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 68719476736 bytes."),
    "time limit": DeathOfJob("time-limit", (), ("srun: Job step aborted: Waiting up to 32 seconds for job step to finish.", "slurmstepd: error: *** JOB 4242 ON {node} CANCELLED AT 2026-11-24T16:20:46 DUE TO TIME LIMIT ***")),
    "cancelled": DeathOfJob("cancelled", (), ("slurmstepd: error: *** JOB 4242 ON {node} CANCELLED AT 2026-11-24T16:20:46 ***",)),
    "node failed": DeathOfJob("node-failed", (), ("srun: error: Node failure on {node}", "slurmstepd: error: *** JOB 4242 ON {node} CANCELLED AT 2026-11-24T16:20:46 DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***")),
    "no kernel image": _raised("gpu-code-missing", "RuntimeError: CUDA error: no kernel image is available for execution on the device"),
    "invalid device function": _raised("gpu-code-missing", "RuntimeError: HIP error: invalid device function"),
    "rocBLAS": DeathOfJob("gpu-code-missing", ("rocBLAS error: Cannot read /opt/rocm/lib/rocblas/library/TensileLibrary.dat: Illegal seek for GPU arch : gfx90a",), EXITED),
    "no GPUs": _raised("gpu-not-seen", "RuntimeError: No HIP GPUs are available"),
    "GPU fault": DeathOfJob("gpu-memory-fault", ("Memory access fault by GPU node-4 (Agent handle: 0x26ff9f00) on address 0x7edbdee00000. Reason: Unknown.",), EXITED),
    "library": _raised("library-missing", "ImportError: libamdhip64.so.6: cannot open shared object file: No such file or directory"),
    "library of a program": DeathOfJob("library-missing", ("/opt/bin/train: error while loading shared libraries: libhsa-runtime64.so.1: cannot open shared object file: No such file or directory",), EXITED),
    "glibc": _raised("glibc-of-image-too-old", "ImportError: /lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.38' not found (required by /opt/venv/lib/python3.12/site-packages/aiter/module.so)"),
    "other torch": _raised("other-torch", "ImportError: /opt/venv/lib/python3.12/site-packages/flash_attn_2_cuda.so: undefined symbol: _ZN3c104cuda9SetDeviceEi"),
    "layer": _raised("layer-not-in-image", "ModuleNotFoundError: No module named 'flash_attn'"),
    "module": _raised("module-missing", "ImportError: cannot import name 'Qwen3Config' from 'transformers' (/opt/venv/lib/python3.12/site-packages/transformers/__init__.py)"),
    "quota": _raised("quota-exceeded", "OSError: [Errno 122] Disk quota exceeded: '/users/me/.cache/huggingface/hub'"),
    "read-only": _raised("read-only", "OSError: [Errno 30] Read-only file system: '/opt/venv/cache'"),
    "tmp full": _raised("no-space", "OSError: [Errno 28] No space left on device: '/tmp/checkpoint.pt'"),
    "dev shm": _raised("shared-memory-full", "RuntimeError: DataLoader worker (pid 4711) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory."),
    "Triton's cache": _raised("compile-cache", "FileNotFoundError: [Errno 2] No such file or directory: '/users/me/.triton/cache/6JX2/add_kernel.json.tmp.pid_4711_8ab1'"),
    "MIOpen's cache": DeathOfJob("miopen-cache", ("MIOpen(HIP): Error [Prepare] Internal error while accessing SQLite database: database is locked",), EXITED),
    "port": _raised("port-taken", "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"),
    "meeting": _raised("ranks-did-not-meet", "torch.distributed.DistNetworkError: The client socket has timed out after 600000ms while trying to connect to (nid005101, 29500)."),
    "NaN": _raised("not-a-number", "FloatingPointError: Loss is nan, stopping training"),
    "UCX": DeathOfJob("ucx", ("[1700000000.123456] [{node}:4711:0]     select.c:643  UCX  ERROR no active messages transport to <no debug data>: Unsupported operation",), EXITED),
    "segfault": DeathOfJob("segmentation-fault", ("Fatal Python error: Segmentation fault",), ("srun: error: {node}: task {rank}: Segmentation fault (core dumped)",)),
    "bus error": DeathOfJob("bus-error", (), ("srun: error: {node}: task {rank}: Bus error",)),
    "Hugging Face": _raised("hugging-face", "OSError: We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find them in the cached files."),
    "container": DeathOfJob("container-not-started", ('FATAL:   "python": executable file not found in $PATH',), EXITED),
    "bind point": DeathOfJob("bind-point-missing", ("FATAL:   container creation failed: mount /var/spool/slurmd->/var/spool/slurmd error: while mounting /var/spool/slurmd: destination /var/spool/slurmd doesn't exist in container",), EXITED),
    "unknown": _raised("python-error", "KeyError: 'model.layers.0.weight'"),
    "no word": DeathOfJob("step-ended", (), EXITED),
}  # fmt: skip
NETWORKS: dict[str, tuple[str, ...]] = {
    "cxi": (
        "NET/OFI Selected provider is cxi, fabric is cxi (found 4 nics)",
        "comm 0xa rank {rank} nRanks 16 nNodes 2 localRanks 8 localRank 0 MNNVL 0",
        "Using network AWS Libfabric",
        "Channel 00/0 : 0[c1000] -> 8[c1000] [send] via NET/AWS Libfabric/0/GDRDMA",
        "Connected all rings",
    ),
    "tcp": (
        "Using network Socket",
        "Channel 00/0 : 0[c1000] -> 8[c1000] [send] via NET/Socket/0",
        "Connected all rings",
    ),
    "none": (),
}
"""What a rank prints of its network; `none`: nothing."""


def job(network: str, *ranks: int) -> list[str]:
    """Return what ranks print of their network, of NETWORKS."""
    return [
        f"{rank}: nid00510{1 + rank // 8}:{100 + rank}:1 [0] NCCL INFO {line.format(rank=rank)}"
        for rank in ranks
        for line in NETWORKS[network]
    ]


def died(name: str, rank: int, *, cascade: bool = True) -> list[str]:
    """Return what is printed when a rank dies."""
    death = DEATHS[name]
    where = {"rank": rank, "node": f"nid00510{1 + rank // 8}", "other": 15 - rank}
    after = [*death.launcher, *(CASCADE if cascade else ())]
    return [f"{rank}: {line.format(**where)}" for line in death.rank] + [line.format(**where) for line in after]
