"""An all-reduce with the torch of an image, checked and timed: what `lumiimg check --level run` starts there.

One process a GPU, as many as the task is told to start on its node. They meet through a folder that all of them see,
in which the first rank leaves the address of torch's store. The table is in the format of rccl-tests (src/common.cu),
which the log reader knows; busbw is algbw * 2 (n - 1) / n (nccl-tests doc/PERFORMANCE.md).

The numbers are small whole ones, of two periods that share no factor, so that another element, or the lack of a rank,
shows. A sum is at most 15 a rank on the average, and float holds whole numbers up to 2^24: every sum is exact, in any
order, for up to 1118481 ranks.
"""

from __future__ import annotations

import argparse
import datetime as dt
import multiprocessing
import os
import re
import socket
import sys
import threading
import time
from multiprocessing import connection
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

SIZES = [1 << 20, 1 << 22, 1 << 24, 1 << 26, 1 << 28]
WARM_UP, ROUNDS = 5, 20
OF_INDEX, OF_RANK = 13, 7
WRONG, LATE = 24, 16
FIRST_POLL_S, LAST_POLL_S, PATIENCE_S = 0.02, 1, 5


def tell(topic: str, **values: object) -> None:
    """Print an event as the programs beside this one do (probe.h): by one write, on a line of its own."""
    words = [f"{key}={quote(str(value), safe='/:+')}" for key, value in values.items()]
    os.write(1, f"\n@probe {topic} {' '.join(words)}\n".encode())


def guard(options: argparse.Namespace, rank: int) -> None:
    """End this rank at the deadline, wherever it waits: torch lets other threads run meanwhile.

    The deadline is the same for all ranks of a task, and comes before each of torch's own limits.
    """

    def late() -> None:
        sys.stdout.flush()
        tell("timeout", rank=rank, seconds=options.timeout, during=options.stage)
        os._exit(LATE)

    timer = threading.Timer(options.deadline - time.monotonic(), late)
    timer.daemon = True
    timer.start()


def leave(path: Path, text: str) -> None:
    """Write a file that appears whole."""
    unfinished = path.with_suffix(".part")
    unfinished.write_text(text)
    unfinished.rename(path)


def collect(path: Path) -> str:
    """Wait for a file of another rank until the guard ends this one, and return what is in it.

    It is asked for less and less often, as thousands of ranks ask the same metadata server.
    """
    wait_s = FIRST_POLL_S
    while not path.exists():
        time.sleep(wait_s)
        wait_s = min(wait_s * 1.5, LAST_POLL_S)
    return path.read_text()


def meet(options: argparse.Namespace, rank: int, ranks: int) -> None:
    """Make the group of all ranks."""
    limit = dt.timedelta(seconds=options.timeout)
    address = options.folder / "store"
    if rank == 0:
        host = "127.0.0.1" if options.tasks == 1 else socket.gethostname()
        store = dist.TCPStore(host, 0, ranks, is_master=True, timeout=limit, wait_for_workers=False)
        leave(address, f"{host} {store.port}")
    else:
        host, port = collect(address).split()
        store = dist.TCPStore(host, int(port), ranks, is_master=False, timeout=limit)
    dist.init_process_group(options.backend, store=store, rank=rank, world_size=ranks, timeout=limit)


def take_part(options: argparse.Namespace, local: int) -> None:
    """Be one rank."""
    rank, ranks = options.task * options.local + local, options.tasks * options.local
    guard(options, rank)
    options.stage = "devices"
    device, name, bus = torch.device("cpu"), "CPU", "none"
    if options.backend == "nccl":
        # tasks of one node see all its GPUs, or each its own
        of_task = int(os.environ.get("SLURM_LOCALID", "0")) * options.local if options.tasks > 1 else 0
        index = (of_task + local) % torch.cuda.device_count()
        torch.cuda.set_device(index)
        device, name, bus = torch.device("cuda", index), torch.cuda.get_device_name(index), str(index)
    shown = f"Pid {os.getpid():6} on {socket.gethostname():>10} device {local:2} [{bus}] {name}"
    options.stage = "meeting"
    leave(options.folder / f"rank-{rank}", shown)
    meet(options, rank, ranks)
    if local == 0:
        tell_mapped()
    if rank == 0:
        print_head(options, ranks)
    options.stage = "allreduce"
    wrong = measure(device, rank, ranks, sizes=[size for size in SIZES if size <= options.largest])
    dist.destroy_process_group()
    sys.exit(WRONG if wrong else 0)


def tell_mapped() -> None:
    """Say which RCCL this process has, and of which torch: one of ~/.local comes before that of an image."""
    with Path("/proc/self/maps").open() as maps:
        files = {found[0] for line in maps if (found := re.search(r"/.*/librccl\.so(\.\d+)*$", line))}
    for file in sorted(files):
        tell("mapped", path=file, torch=torch.__file__)


def print_head(options: argparse.Namespace, ranks: int) -> None:
    """Print what stands above the rows, when every rank is there: torch's group is made before."""
    texts = [collect(options.folder / f"rank-{rank}") for rank in range(ranks)]
    print(
        "# Collective test starting: lumiimg-torch-allreduce\n"
        f"# nThread 1 nGpus 1 minBytes {SIZES[0]} maxBytes {options.largest} step: 4(factor) warmup iters: {WARM_UP} "
        f"iters: {ROUNDS} validation: 1\n#\n# Using devices"
    )
    for rank, text in enumerate(texts):
        print(f"#  Rank {rank:2} Group  0 {text}")
    print(
        "#\n#                                                              in-place\n"
        "#       size         count      type   redop    root     time   algbw   busbw #wrong\n"
        "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)",
        flush=True,
    )


def measure(device: torch.device, rank: int, ranks: int, sizes: list[int]) -> int:
    """Time and check every size; return how many elements were wrong here. The first rank prints its own."""
    all_wrong, bandwidths = 0, []
    of_ranks = sum(number % OF_RANK for number in range(ranks))
    for size in sizes:
        count = size // 4
        pattern = (torch.arange(count, device=device) % OF_INDEX).to(torch.float32)
        data = torch.zeros(count, device=device)
        for _ in range(WARM_UP):
            dist.all_reduce(data)
        finish(device)
        start = time.perf_counter()
        for _ in range(ROUNDS):
            dist.all_reduce(data)
        finish(device)
        seconds = (time.perf_counter() - start) / ROUNDS
        data = pattern + rank % OF_RANK
        dist.all_reduce(data)
        wrong = int((data != pattern * ranks + of_ranks).sum().item())
        all_wrong += wrong
        algbw = size / seconds / 1e9
        bandwidths.append(algbw * 2 * (ranks - 1) / ranks)
        if wrong:
            tell("wrong", rank=rank, bytes=size, elements=wrong)
        if rank == 0:
            cells = f"{seconds * 1e6:8.2f} {algbw:7.2f} {bandwidths[-1]:7.2f} {wrong:6}"
            print(f"{size:12} {count:13}     float     sum      -1 {cells}", flush=True)
    if rank == 0:
        print(f"# Out of bounds values : {all_wrong} {'FAILED' if all_wrong else 'OK'}")
        print(f"# Avg bus bandwidth    : {sum(bandwidths) / len(bandwidths):.4f}\n#", flush=True)
    return all_wrong


def finish(device: torch.device) -> None:
    """Wait until the device has done all that was asked for."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def attend(ranks: list[BaseProcess], options: argparse.Namespace) -> int:
    """Wait for the ranks of this task and return its exit code, as the shell counts.

    After the first that fails the others would wait for it for ever; who found a wrong sum was the last to take part.
    """
    limit = options.deadline + PATIENCE_S  # that each rank may say first where it waits
    while (
        (running := [process for process in ranks if process.exitcode is None])
        and not failure(ranks)
        and time.monotonic() < limit
    ):
        connection.wait([process.sentinel for process in running], timeout=limit - time.monotonic())
    code = failure(ranks)
    if running and not code:
        code = LATE
        tell("timeout", rank=options.task * options.local + ranks.index(running[0]), seconds=options.timeout)
    for process in running:
        process.kill()
    if not code and any(process.exitcode == WRONG for process in ranks):
        code = WRONG
    return code if code >= 0 else 128 - code


def failure(ranks: list[BaseProcess]) -> int:
    """Return the exit code of a rank that did not come to its end; 0 while there is none."""
    return next((process.exitcode for process in ranks if process.exitcode not in {None, 0, WRONG}), None) or 0


def main() -> int:
    """Start the ranks of this task, and wait for them."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--folder", type=Path, required=True, help="where the ranks meet: empty, and seen by all")
    parser.add_argument("--local", type=int, default=1, help="how many ranks this process starts")
    parser.add_argument("--task", type=int, default=0, help="the number of this process")
    parser.add_argument("--tasks", type=int, default=1, help="how many processes there are")
    parser.add_argument("--slurm", action="store_true", help="these two are those of this Slurm step")
    parser.add_argument("--timeout", type=int, default=300, help="seconds until a rank gives up")
    parser.add_argument("--backend", choices=("nccl", "gloo"), default="nccl", help="gloo: on CPUs, to try the script")
    parser.add_argument("--largest", type=int, default=SIZES[-1], help="bytes of the largest buffer")
    options = parser.parse_args()
    if options.slurm:
        options.task = int(os.environ["SLURM_PROCID"])
        options.tasks = int(os.environ["SLURM_STEP_NUM_TASKS"])
    options.stage, options.deadline = "start", time.monotonic() + options.timeout
    context = multiprocessing.get_context("spawn")
    ranks = [context.Process(target=take_part, args=(options, local)) for local in range(options.local)]
    for process in ranks:
        process.start()
    return attend(list(ranks), options)


if __name__ == "__main__":
    sys.exit(main())
