"""What the Inspector of RCCL and NCCL wrote of the job's own collectives: how large, how long, at which bandwidth.

It is a profiler plugin (NCCL_PROFILER_PLUGIN, plugins/profiler/inspector), whose files have a JSON object a line, for
each collective of each communicator: inspector_json.cc, formats v4.0 to v4.2; RCCL's documentation "Using the RCCL
Inspector plugin". Bus bandwidth is in 1e9 bytes a second, over the time of the kernel, waiting for others included.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from lumiimg.nccl.report import Measurement

_BEGIN = b'{"header"'
_LINE_LIMIT = 65_536
_FASTEST_GB_S = 100_000
KINDS_LIMIT = 64
"""Kinds of collectives, by ranks and nodes."""
_TESTS = {"AllReduce": "all_reduce_perf", "AllGather": "all_gather_perf", "ReduceScatter": "reduce_scatter_perf"}
_TESTS |= {"Broadcast": "broadcast_perf", "Reduce": "reduce_perf", "AlltoAll": "alltoall_perf"}
"""The tests that measure the same."""
LARGE_BYTES = 1 << 20
"""Of smaller messages the bandwidth is that of the latency."""


@dataclass(slots=True)
class _Seen:
    """Of one kind of collective."""

    position: int
    best: float = 0.0
    best_size: int = 0
    largest: int = 0
    total: float = 0.0
    """Of the bandwidths of the large messages, `count` of them."""
    count: int = 0


def may_hold(block: bytes) -> bool:
    """Whether a block of lines may have such objects."""
    # one byte is found ten times as fast as several
    return b"{" in block and (block.startswith(_BEGIN) or b"\n" + _BEGIN in block)


class Inspected:
    """What was read so far, by the kind of collective; memory does not grow with the lines."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[str, int, int], _Seen] = {}

    def feed(self, block: bytes, position: Callable[[int], int]) -> None:
        """Take in whole lines; `position(n)` is that of the n-th."""
        for index, line in enumerate(block.split(b"\n")):
            if line.startswith(_BEGIN) and (found := _collective(line)) is not None:
                self._take(*found, position(index))

    def _take(self, kind: tuple[str, int, int], size: int, bandwidth: float, at: int) -> None:
        if kind not in self._kinds and len(self._kinds) >= KINDS_LIMIT:
            return
        seen = self._kinds.setdefault(kind, _Seen(at))
        seen.position = min(seen.position, at)
        seen.largest = max(seen.largest, size)
        if size >= LARGE_BYTES:
            seen.total, seen.count = seen.total + bandwidth, seen.count + 1
        if bandwidth > seen.best:
            seen.best, seen.best_size = bandwidth, size

    def absorb(self, other: Inspected) -> None:
        """Take in what was read of another part."""
        for kind, theirs in other._kinds.items():
            mine = self._kinds.setdefault(kind, _Seen(theirs.position))
            mine.position = min(mine.position, theirs.position)
            mine.total, mine.count = mine.total + theirs.total, mine.count + theirs.count
            mine.largest = max(mine.largest, theirs.largest)
            if theirs.best > mine.best:
                mine.best, mine.best_size = theirs.best, theirs.best_size

    def measurements(self, place: Callable[[int], tuple[str, int]]) -> Iterator[Measurement]:
        """Yield a measurement for each kind of collective."""
        for (name, ranks, nodes), seen in sorted(self._kinds.items()):
            file, line = place(seen.position)
            yield Measurement(
                name=f"the job's own {name}",
                program="inspector",
                test=_TESTS.get(name),
                ranks=ranks,
                nodes=nodes,
                best_gb_s=seen.best,
                best_size=seen.best_size,
                largest_size=seen.largest,
                average_gb_s=seen.total / seen.count if seen.count else None,
                latency_us=None,
                wrong=None,
                file=file,
                line=line,
                wrong_line=None,
            )


def _collective(line: bytes) -> tuple[tuple[str, int, int], int, float] | None:
    """Return kind, bytes and bandwidth of a collective; None for any other object, and for what is none."""
    if len(line) > _LINE_LIMIT:
        return None
    try:
        record = json.loads(line)
        header, of = record["header"], record["coll_perf"]
        name, kind = of["coll"], (header["n_ranks"], header["nnodes"])
        size, bandwidth = of["coll_msg_size_bytes"], of["coll_busbw_gbs"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    known = isinstance(name, str) and name.isalnum() and len(name) < 32 and "metadata" in record
    counts = all(type(number) is int and 0 < number < 1 << 50 for number in (*kind, size))
    if not known or not counts or type(bandwidth) not in {int, float} or not 0 < bandwidth < _FASTEST_GB_S:
        return None
    return (name, *kind), size, float(bandwidth)
