"""Any bytes are a log: there is no exception, and memory grows only with the number of processes."""

from __future__ import annotations

import gc
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lumiimg.joblog import LogReader, death, gate, read_lines, state
from lumiimg.joblog.state import COMMUNICATOR_LIMIT, VALUE_LIMIT
from tests.shared.programs import examples

FIXTURES = Path(__file__).parents[1] / "fixtures" / "nccl"


@settings(max_examples=examples(30), deadline=None)
@given(st.data())
@pytest.mark.threat
def test_a_line_cut_anywhere_never_turns_a_slow_path_into_a_fast_one(data: st.DataObject) -> None:
    log = data.draw(st.sampled_from(sorted(FIXTURES.glob("*.log"))))
    verdict = read_lines(log.name, log.read_bytes().splitlines()).verdict
    if verdict in {"ofi-cxi", "ofi-efa", "mixed", "plugin-init-error"}:
        return  # these hold a fast provider's line, which the cut may leave as the only one
    lines = log.read_bytes().splitlines()
    at = data.draw(st.integers(0, len(lines) - 1))
    lines[at] = lines[at][: data.draw(st.integers(0, len(lines[at])))]
    assert read_lines(log.name, lines).verdict not in {"ofi-cxi", "ofi-efa"}


@pytest.mark.threat
def test_memory_is_bounded_for_one_process() -> None:
    reader = LogReader()
    for n in range(2000):
        missing = f"n1:1:2 [0] NCCL INFO NET/Plugin: libx{n}.so.1: cannot open shared object file: No such file or directory\n"
        reader.feed("j", missing.encode())
        reader.feed("j", b"n1:1:2 [0] NCCL INFO comm 0x%d rank 0 nRanks 8 nNodes 2 localRanks 4\n" % n)
    report = reader.report()
    assert len(report.causes) == VALUE_LIMIT
    assert len(report.communicators) <= COMMUNICATOR_LIMIT


@pytest.mark.threat
def test_shapes_are_remembered_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "_CACHE_SIZE", 3)
    lines = [f"n1:1:1 [0] NCCL INFO {'z' * n} Using network Socket" for n in range(50)]
    assert len(read_lines("j", [*lines, *("q" * n for n in range(50))]).ranks) == 1


@pytest.mark.threat
def test_processes_beyond_the_bound_are_read_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "PROCESS_LIMIT", 3)
    lines = [f"n{n}:{n}:1 [0] NCCL INFO Using network Socket" for n in range(10)]
    assert len(read_lines("j", lines).ranks) == 4
    # processes that were known before are still recognized
    again = read_lines("j", [*lines, *lines[:3], "n1:1:1 [0] NCCL INFO Using network IB"])
    assert len(again.ranks) == 4
    assert {rank.process: rank.verdict.value for rank in again.ranks}["n1:1"] == "mixed"


_OF_MANY = {
    "a warning": ["nid{i}:{i}:1 [0] NCCL INFO NET/Plugin: Could not find: librccl-net.so\nnid{i}:{i}:1 [0] NCCL INFO Using network Socket"],
    "a death": [
        "{i}: slurmstepd: error: *** STEP 1.0 ON nid{i} CANCELLED AT 2026-11-21T10:00:00 ***",
        "{i}: srun: error: nid{i}: task {i}: Segmentation fault",
        "{i}: RuntimeError: HIP error: invalid argument {i}",
    ],
}  # fmt: skip
"""Lines that each process of a job prints; all processes print a line before the next line follows."""

_MORE = "it goes on\n" * 200


@pytest.mark.threat
@pytest.mark.parametrize("parts", _OF_MANY.values(), ids=_OF_MANY.keys())
def test_an_answer_takes_time_that_grows_with_the_processes_alone(
    parts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(death, "_NEAR_LINES", 0)
    monkeypatch.setattr(death, "_NEAR_PER_PROCESS", 0)

    def seconds(processes: int) -> float:
        reader = LogReader()
        for part in parts:
            lines = "\n".join(part.replace("{i}", f"{n}") for n in range(processes))
            reader.feed("j", f"{lines}\n{_MORE}".encode())
        gc.disable()  # as read_log does
        started = time.process_time()
        reader.report()
        taken = time.process_time() - started
        gc.enable()
        return taken

    assert min(seconds(1200) for _ in range(3)) < 16 * min(seconds(150) for _ in range(3))


@pytest.mark.threat
@pytest.mark.parametrize(
    "died",
    [
        ["NCCL WARN the last words"],
        ["NCCL WARN the last words", "NCCL INFO transport/net.cc:99 -> 3", "NCCL INFO enqueue.cc:991 -> 3"],
    ],
)
@pytest.mark.parametrize("before", [0, 3, VALUE_LIMIT - 1, VALUE_LIMIT, 3 * VALUE_LIMIT])
def test_the_last_words_of_a_process_count_however_much_it_printed_before(before: int, died: list[str]) -> None:
    odd = [[f"NCCL WARN odd {n}", f"NCCL INFO misc/odd.cc:{n} -> 2"] for n in range(before)]
    lines = [
        "NCCL INFO comm 0x1 rank 0 nRanks 16 nNodes 2 localRanks 8 localRank 0 MNNVL 0",
        "NCCL INFO NET/OFI Selected provider is cxi, fabric is cxi (found 4 nics)",
        "NCCL INFO Using network AWS Libfabric",
        *(line for pair in odd for line in pair),
        "NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/AWS Libfabric/0/GDRDMA",
        "NCCL INFO Connected all rings",
    ]
    went_on = [f"n1:1:1 [0] {line}" for line in lines]
    assert read_lines("j", went_on).ended.cause is None
    assert "the last words" in read_lines("j", [*went_on, *(f"n1:1:1 [0] {line}" for line in died)]).ended.summary
    # a line that was read before, when its table was full
    again = [*died, *lines[-2:], *died]
    assert read_lines("j", [*went_on, *(f"n1:1:1 [0] {line}" for line in again)]).ended.cause is not None
