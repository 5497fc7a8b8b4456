"""Tables of bandwidth tests in a log: every layout, whatever precedes or interrupts their lines."""

from __future__ import annotations

import itertools
import pickle
import time
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lumiimg.joblog.bandwidth import TABLE_LIMIT, BandwidthReader
from lumiimg.joblog.lines import TABLE_WORDS
from tests.shared.programs import examples, patient

if TYPE_CHECKING:
    from lumiimg.joblog import Measurement

FIXTURES = Path(__file__).parents[1] / "fixtures" / "bandwidth"
LOGS = sorted(FIXTURES.glob("*.out"))
KNOWN = tomllib.loads(FIXTURES.with_name("log-prefixes.toml").read_text())["known"]
LABELS = [prefix.encode() for prefix in (*KNOWN, "0: ", "17: ", "[default0]:")]
NCCL_LINES = [
    b"nid005101:40100:40222 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/IPC\n",
    b"3: nid005101:40103:40225 [3] NCCL INFO comm 0x55d0 rank 3 nranks 8 cudaDev 3 busId c6000 - Init COMPLETE\n",
    b"nid005102:1:2 [0] NCCL INFO Trees [0] 1/-1/-1->0->-1 [1] 1/-1/-1->0->-1\n",
    b"srun: Step 1234.0 created\n",
    b"\n",
]
BEST = {
    "nccl-tests-2.18-timestamps.out": ("all_gather_perf", 4, 2, 105.2, 8 << 20, 62.325, 0),
    "nccl-tests-2.19-per-iteration.out": ("reduce_scatter_perf", 2, 1, 13.15, 1 << 20, 13.1, 7),
    "nccl-tests-old-sendrecv.out": (None, 2, 2, 8.74, 1 << 20, 8.685, None),
    "rccl-tests-all-reduce.out": ("all_reduce_perf", 8, 2, 87.43, 8 << 20, 35.6013, 0),
    "rccl-tests-error-column.out": (None, 2, 2, 13.97, 2 << 20, 10.41, 1),
    "rccl-tests-in-place-only.out": (None, 2, 1, 23.3, 4 << 20, 16.66, None),
    "rccl-tests-wrong.out": (None, 4, 2, 15.74, 2 << 20, 13.0375, 2_000_012),
}

logs = st.sampled_from(LOGS).map(Path.read_bytes)


def read(*blocks: bytes, reader: BandwidthReader | None = None, first: int = 0) -> tuple[Measurement, ...]:
    """Return the tables in blocks of one file; positions are line numbers starting at `first`."""
    reader = reader or BandwidthReader()
    for block in blocks:
        reader.feed("job.out", block, lambda n, start=first: start + n)  # type: ignore[misc]
        first += block.count(b"\n")
    return reader.measurements(lambda line: ("job.out", line))


def nowhere(tables: tuple[Measurement, ...]) -> list[Measurement]:
    """Return the tables without positions."""
    return [replace(t, line=0, wrong_line=None) for t in tables]


def test_every_layout_is_read() -> None:
    for log in LOGS:
        (table,) = read(log.read_bytes())
        lines = log.read_bytes().splitlines()
        assert (
            table.test, table.ranks, table.nodes, table.best_gb_s, table.best_size,
            table.average_gb_s, table.wrong,
        ) == BEST[log.name], log  # fmt: skip
        assert any(header in lines[table.line] for header in TABLE_WORDS), log
        assert (table.wrong_line is None) == (not table.wrong), log


def test_the_best_of_each_size_is_the_curve_and_of_many_sizes_the_largest() -> None:
    log = (FIXTURES / "rccl-tests-all-reduce.out").read_bytes()
    (measured,) = read(log)
    assert measured.points == ((1 << 20, 12.23), (2 << 20, 18.36), (4 << 20, 25.29), (8 << 20, 87.43))
    first = next(line for line in log.splitlines(keepends=True) if line.startswith(b"     1048576"))
    rows = b"".join(first.replace(b"1048576", b"%d" % (1048576 + 4 * number)) for number in range(1000))
    (measured,) = read(log.replace(first, rows))
    assert len(measured.points) == 256
    assert measured.points[-1] == (8 << 20, 87.43)


@settings(max_examples=examples(30), deadline=None)
@given(st.data())
def test_blocks_labels_and_lines_of_nccl_between_change_nothing(data: st.DataObject) -> None:
    log = b"".join(data.draw(st.lists(logs, min_size=1, max_size=3)))
    lines = log.splitlines(keepends=True)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(lines)), max_size=8)))
    blocks = [b"".join(lines[a:b]) for a, b in itertools.pairwise([0, *cuts, len(lines)])]
    assert read(*blocks) == read(log) == read(*lines)
    label = data.draw(st.sampled_from(LABELS))
    assert read(b"".join(label + line for line in lines)) == read(log)
    between = st.lists(st.sampled_from(NCCL_LINES), max_size=3)
    mixed = b"".join(b"".join(data.draw(between)) + line for line in lines)
    assert nowhere(read(mixed)) == nowhere(read(log))


@settings(max_examples=examples(20), deadline=None)
@given(st.data())
def test_tables_of_two_labelled_processes_do_not_mix(data: st.DataObject) -> None:
    one, two = (data.draw(logs).splitlines(keepends=True) for _ in range(2))
    turns = data.draw(st.permutations([0] * len(one) + [1] * len(two)))
    rest = [iter(one), iter(two)]
    mixed = b"".join(b"%d: " % turn + next(rest[turn]) for turn in turns)
    expected = nowhere(read(b"".join(one))) + nowhere(read(b"".join(two)))
    assert sorted(map(repr, nowhere(read(mixed)))) == sorted(map(repr, expected))


@settings(max_examples=examples(30), deadline=None)
@given(st.sampled_from([p for p in LOGS if "tests" in p.name]).map(Path.read_bytes), st.data())
def test_a_cut_row_never_shows_more_than_the_row(log: bytes, data: st.DataObject) -> None:
    (whole,) = read(log)
    lines = log.splitlines()
    at = data.draw(st.integers(whole.line + 1, len(lines) - 3))
    start = data.draw(st.integers(0, len(lines[at])))
    end = data.draw(st.integers(start, len(lines[at])))
    lines[at] = lines[at][start:end]
    (table,) = read(b"\n".join(lines) + b"\n")
    assert (table.best_gb_s or 0) <= (whole.best_gb_s or 0)


def test_rows_in_parts_joined_or_cut_off_are_distinguished() -> None:
    log = (FIXTURES / "rccl-tests-all-reduce.out").read_bytes()
    lines = log.splitlines(keepends=True)
    info = b"nid005101:40100:40222 [0] NCCL INFO Connected all rings\n"
    parts = log.replace(b"-1    170.5", b"-1" + info + info + b"    170.5")
    parts = parts.replace(b"0    167.9", b"0" + info + b"    167.9")
    assert nowhere(read(parts)) == nowhere(read(log))
    joined = b"".join(line.removesuffix(b"\n") if b"float" in line else line for line in lines)
    assert nowhere(read(joined)) == nowhere(read(log))
    garbage = log.replace(b"87.43      0\n", b"87.43      0nid1:1:1 [0] NCCL INFO comm 0x1 destroyed\n")
    assert read(garbage) == read(log)
    (aborted,) = read(b"".join(lines[:-6]))
    assert (aborted.best_gb_s, aborted.average_gb_s, aborted.wrong) == (25.29, None, 0)
    assert read(b"".join(lines[-4:])) == (), "a summary alone"
    (wrong,) = read(b"".join(lines[-4:]).replace(b": 0 OK", b": 7 FAILED"))
    assert (wrong.points, wrong.wrong) == ((), 7), "but for wrong results"
    rows = [line for line in lines if line.strip()[:1].isdigit()]
    assert len(rows) > 3
    assert read(b"".join(rows)) == (), "a table without its head is none"
    assert nowhere(read(b"# a line of no program\n" + log)) == nowhere(read(log))
    reader = BandwidthReader()
    reader.feed("a", b"".join(lines[:16]), lambda n: n)
    reader.feed("b", b"".join(lines[16:]), lambda n: 100 + n)
    measurements = reader.measurements(lambda line: ("job.out", line))
    assert [table.best_gb_s for table in measurements] == [None], "another file ends the table"


def test_the_number_of_tables_and_names_is_bounded() -> None:
    log = (FIXTURES / "rccl-tests-all-reduce.out").read_bytes()
    reader = BandwidthReader()
    for n in range(100):
        read(b"".join(b"%d: " % n + line for line in log.splitlines(keepends=True)), reader=reader, first=n * 100)
    assert len(reader.measurements(lambda line: ("job.out", line))) == TABLE_LIMIT
    devices = b"".join(
        b"#  Rank %d Group  0 Pid  1 on n%d device  0 [0000:c1:00] AMD\n" % (n, n) for n in range(20_000)
    )
    header = b"#       size         count      type   redop    root     time   algbw   busbw #wrong\n"
    (table,) = read(b"# Using devices\n", devices, header)
    assert (table.ranks, table.nodes) == (20_000, None)
    assert len(pickle.dumps(reader)) < 100_000


HOSTILE = [
    b"# nThread " * 5_000,
    b"busbw " * 8_000,
    b" " * 50_000,
    b"1  " * 16_000,
    b"1  2.3 " * 8_000,
    b"8  4  float  sum  -1 " * 2_500,
    b"1" * 50_000,
    b"#  Rank 0 Group 0 Pid" * 2_500,
    b"[" * 50_000,
    b"Out of bounds values " * 2_500,
    b"Avg bus bandwidth : 1 " * 2_500,
]


@pytest.mark.threat
def test_a_hostile_line_takes_time_that_grows_with_its_length_only() -> None:
    for line in HOSTILE:
        log = (FIXTURES / "rccl-tests-all-reduce.out").read_bytes()
        table_open = b"".join(log.splitlines(keepends=True)[:17])
        start = time.process_time()
        read(table_open, line + b"\n", b"0: " + line + b"\n", line.replace(b" ", b"\n") + b"\n")
        assert time.process_time() - start < patient(1), line
