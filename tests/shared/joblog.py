"""Logs as file content; the log of a large job: `srun -l`, NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET,COLL on LUMI-G.

The wording is that of RCCL 2.22.3 with aws-ofi-nccl 1.18.0. The ranks' lines are interleaved with one another and with
training output, warnings and collectives.
"""

from __future__ import annotations

import random
from typing import IO, TYPE_CHECKING

from lumiimg.joblog import LogReader, LogReport

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


def read_files(*files: tuple[str, Iterable[str]]) -> LogReport:
    """Return the report on the files of one job, each given as a name and its lines."""
    reader = LogReader()
    for name, lines in files:
        reader.begin(name)
        reader.feed(name, "".join(f"{line}\n" for line in lines).encode())
    return reader.report()


def bandwidth_table(
    nodes: int, ranks: int, busbw: float, *, name: str = "lumiimg-allreduce", wrong: int = 0, size: int = 256 << 20
) -> str:
    """Return the output of a bandwidth test with a single row, for messages of `size` bytes; `busbw` is in GB/s."""
    devices = "".join(
        f"#  Rank {rank:2} Group  0 Pid  4{rank:03} on  nid00000{rank * nodes // ranks + 1} device  {rank % 8} "
        "[0000:c1:00.0] AMD Instinct MI250X\n"
        for rank in range(ranks)
    )
    row = f"{size:12}  {size // 4:12}     float     sum      -1   6000.0   44.74  {busbw:6.2f}  {wrong:5}"
    return (
        f"# Collective test starting: {name}\n"
        f"# nThread 1 nGpus 1 minBytes 1048576 maxBytes {size} step: 4(factor) warmup iters: 5 iters: 20\n#\n"
        f"# Using devices\n{devices}#\n#                                     out-of-place\n"
        "#       size         count      type   redop    root     time   algbw   busbw #wrong\n"
        f"#        (B)    (elements)                               (us)  (GB/s)  (GB/s)\n{row}\n"
        f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}\n# Avg bus bandwidth    : {busbw:.4f}\n#\n"
    )


GPUS = 8
CHANNELS = 4
_COLLECTIVES = (b"AllReduce", b"AllGather", b"ReduceScatter", b"AllGather", b"ReduceScatter", b"Broadcast")
_WARNING = (
    b"/opt/venv/lib/python3.12/site-packages/torch/distributed/fsdp/_state_dict_utils.py:783: FutureWarning: "
    b"Please use DTensor instead and we are deprecating ShardedTensor.\n  warnings.warn("
)


class Rank:
    """One rank: where it runs, and the prefix of its lines."""

    def __init__(self, number: int, sick: frozenset[int] = frozenset()) -> None:
        self.number = number
        node, self.device = divmod(number, GPUS)
        self.host = b"nid%06d" % (5000 + node)
        self.sick = node in sick
        self.pid = 60_000 + (number * 37) % 40_000
        self.label = b"%d: " % number
        self.tag = b"%b%b:%d:%d [%d] NCCL INFO " % (self.label, self.host, self.pid, self.pid, self.device)
        self.comm = 0x7F3A00000000 + number * 0x1230


def channel_log(ranks: int, size: int) -> Iterator[bytes]:
    """Yield about `size` bytes: a job's start, and then only channels, which are most lines of a large job."""
    job = [Rank(number) for number in range(ranks)]
    written, channel = 0, CHANNELS
    for piece in _start(job):
        written += len(piece)
        yield piece
    while written < size:
        piece = b"".join(_channel(rank, channel, ranks) for rank in job)
        written, channel = written + len(piece), channel + 1
        yield piece


def job_log(ranks: int, size: int, *, sick: frozenset[int] = frozenset()) -> Iterator[bytes]:
    """Yield the log of a job in pieces, about `size` bytes in total, but at least its start.

    The nodes numbered in `sick` have no plugin and use TCP.
    """
    job = [Rank(number, sick) for number in range(ranks)]
    chance = random.Random(ranks)  # noqa: S311  (a log that can be written again)
    start = b"".join(_start(job))
    yield start
    written = len(start)
    for piece in _running(job, chance):
        if written >= size:
            return
        written += len(piece)
        yield piece


def _start(job: list[Rank]) -> Iterator[bytes]:
    """Yield what the ranks print until they are connected: each message by all ranks before the next message."""
    ranks, nodes = len(job), max(1, len(job) // GPUS)
    banner: tuple[str, ...] = (
        "RCCL version : 2.22.3-HEAD:7d8d67c",
        "HIP version  : 6.4.43484-123eb5128",
        "ROCm version : 6.4.2.0-120-6a8c8b2",
        f"Hostname     : {job[0].host.decode()}",
        "Librccl path : /opt/rocm-6.4.2/lib/librccl.so.1",
    )
    yield b"".join(b"%b%b\n" % (job[0].label, line.encode()) for line in banner)
    yield b"".join(b"%bBootstrap: Using hsn0:10.253.%d.%d<0>\n" % (r.tag, r.number // 250, r.number % 250) for r in job)
    for message in (
        b"NCCL_SOCKET_IFNAME set by environment to hsn0,hsn1,hsn2,hsn3",
        b"Kernel version: 5.14.21-150500.55.49_13.0.57-cray_shasta_c",
    ):
        yield b"".join(b"%b%b\n" % (r.tag, message) for r in job)
    yield b"".join(_network(r) for r in job)
    yield from _init(job, b"START")
    yield b"".join(
        b"%bcomm 0x%x rank %d nRanks %d nNodes %d localRanks %d localRank %d MNNVL 0\n"
        % (r.tag, r.comm, r.number, ranks, nodes, GPUS, r.device)
        for r in job
    )
    for channel in range(CHANNELS):
        yield b"".join(_channel(r, channel, ranks) for r in job)
    yield b"".join(b"%bConnected all rings comm 0x%x nRanks %d\n" % (r.tag, r.comm, ranks) for r in job)
    yield from _init(job, b"COMPLETE")


def _init(job: list[Rank], what: bytes) -> Iterator[bytes]:
    yield b"".join(
        b"%bncclCommInitRank comm 0x%x rank %d nranks %d cudaDev %d busId %x commId 0xb1de7f4e3c5a - Init %b\n"
        % (r.tag, r.comm, r.number, len(job), r.device, 0xC1000 + r.device * 0x5000, what)
        for r in job
    )


def _network(rank: Rank) -> bytes:
    if rank.sick:
        return (
            b"%bNET/Plugin: Could not find: librccl-net.so. Using internal network plugin.\n"
            b"%bNET/IB : No device found.\n%bNET/Socket : Using [0]hsn0:10.253.1.%d<0> [1]hsn1:10.253.2.%d<0>\n"
            b"%bUsing network Socket\n" % (rank.tag, rank.tag, rank.tag, rank.device, rank.device, rank.tag)
        )
    return (
        b"%bNET/Plugin: Failed to find ncclCollNetPlugin_v8 symbol.\n%bNET/OFI Initializing aws-ofi-nccl 1.18.0\n"
        b"%bNET/OFI Selected provider is cxi, fabric is cxi (found 4 nics)\n%bUsing network Libfabric\n"
        % (rank.tag, rank.tag, rank.tag, rank.tag)
    )


def _channel(rank: Rank, channel: int, ranks: int) -> bytes:
    """Return the line of a ring channel: P2P within the node, the network from its last rank to the next node."""
    after = (rank.number + 1) % ranks
    bus, next_bus = 0xC1000 + rank.device * 0x5000, 0xC1000 + after % GPUS * 0x5000
    network = b"Socket/0" if rank.sick else b"Libfabric/%d/GDRDMA" % (rank.device // 2)
    way = b"[send] via NET/" + network if rank.device == GPUS - 1 else b"via P2P/IPC"
    return b"%bChannel %02d/0 : %d[%x] -> %d[%x] %b comm 0x%x nRanks %02d\n" % (
        rank.tag,
        channel,
        rank.number,
        bus,
        after,
        next_bus,
        way,
        rank.comm,
        ranks,
    )


def _running(job: list[Rank], chance: random.Random) -> Iterator[bytes]:
    """Yield the output of the running job, endlessly."""
    step = 0
    yield b"".join(b"%b%b\n" % (r.label, _WARNING.replace(b"\n", b"\n" + r.label)) for r in job)
    while True:
        step += 1
        for kind in _COLLECTIVES:
            count = chance.choice((4096, 1 << 20, 16_777_216, 67_108_864))
            buffer = 0x7E1000000000 + chance.randrange(1 << 24) * 512
            yield b"".join(
                b"%b%b: opCount %x sendbuff 0x%x recvbuff 0x%x count %d datatype 9 op 0 root 0 comm 0x%x [nranks=%d] "
                b"stream 0x%x task 0 globalrank %d\n"
                % (
                    r.tag,
                    kind,
                    step,
                    buffer + r.number * 256,
                    buffer + r.number * 512,
                    count,
                    r.comm,
                    len(job),
                    r.comm ^ 0x5555,
                    r.number,
                )
                for r in job
            )
        loss, rate = 12.5 / (1 + step / 100), chance.uniform(400, 430)
        yield b"".join(
            b"%b[2026-11-21 03:%02d:%02d,%03d] [INFO] [train.py:%d:step] step %d loss %.4f lr %.3e %.1f TFLOPS/GPU\n"
            % (r.label, step // 60 % 60, step % 60, chance.randrange(1000), 412, step, loss, 3e-4, rate + r.device)
            for r in job[::GPUS]
        )


def write(file: IO[bytes], ranks: int, size: int, *, sick: frozenset[int] = frozenset()) -> None:
    """Write a log to an open file."""
    for piece in job_log(ranks, size, sick=sick):
        file.write(piece)
