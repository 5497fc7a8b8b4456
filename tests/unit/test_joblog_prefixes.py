"""A message is read after the prefix of a launcher, known or not; a quotation is read after neither."""

from __future__ import annotations

import json
import time
import tomllib
from itertools import product
from pathlib import Path

import pytest

from lumiimg.joblog import LogReader, LogReport, read_lines
from tests.shared.composed_jobs import QUOTED
from tests.shared.programs import patient, sampled

FIXTURES = Path(__file__).parents[1] / "fixtures"

JOB = [
    "nid005101:7:7 [0] NCCL INFO NET/OFI Selected provider is cxi, fabric is cxi (found 4 nics)",
    "nid005101:7:7 [0] NCCL INFO Using network AWS Libfabric",
    "nid005101:7:7 [0] NCCL INFO Channel 00/0 : 0[c1000] -> 8[c1000] [send] via NET/AWS Libfabric/0/GDRDMA",
    "Traceback (most recent call last):",
    '  File "train.py", line 3, in <module>',
    "    main()",
    "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB.",
]


_DATA = tomllib.loads((FIXTURES / "log-prefixes.toml").read_text())
KNOWN, UNKNOWN, WORDS = (list[str](_DATA[name]) for name in ("known", "learned", "words"))


def read(*lines: str) -> LogReport:
    return read_lines("job.out", lines)


def ended(report: LogReport) -> str | None:
    return report.ended.cause


@pytest.mark.parametrize("prefix", [*KNOWN, *UNKNOWN])
def test_a_message_is_read_behind_what_a_launcher_puts_before_each_line(prefix: str) -> None:
    alone = read(*JOB)
    assert (alone.verdict, ended(alone)) == ("ofi-cxi", "gpu-out-of-memory")
    report = read(*(prefix.replace("{i}", f"{number}") + line for number, line in enumerate(JOB)))
    assert (report.verdict, report.confidence, ended(report)) == (alone.verdict, alone.confidence, ended(alone))


def test_no_prefix_changes_what_is_read_of_a_log() -> None:
    for log, prefix in sampled(product(sorted((FIXTURES / "nccl").glob("*.log")), [*KNOWN, *UNKNOWN]), 60):
        lines = log.read_text(errors="replace").splitlines()[:2000]
        if prefix.startswith("x3005") or (prefix in UNKNOWN and len([*filter(None, lines)]) < 3):
            continue  # oneCCL names no host, and two lines teach nothing
        alone = read(*lines)
        report = read(*(prefix.replace("{i}", f"{number % 8}") + line for number, line in enumerate(lines)))
        same = (alone.verdict, alone.ended.cause, alone.severity)
        assert (report.verdict, report.ended.cause, report.severity) == same, (log.name, prefix)


@pytest.mark.parametrize("record", [
    {"line": "", "labels": {"pod": "train-0"}, "timestamp": "2026"},
    {"LogMessage": "", "PodName": "train-0"},
    {"data": "", "event": "line", "pipe": "stderr"},
    {"message": "", "podName": "train-0", "containerName": "pytorch"},
    {"message": "", "logStreamName": "train", "timestamp": 1},
])  # fmt: skip
def test_records_of_collectors_are_read(record: dict[str, object]) -> None:
    text = next(iter(record))
    assert read(*(json.dumps(record | {text: line}) for line in JOB)).verdict == "ofi-cxi"


@pytest.mark.threat
@pytest.mark.parametrize("words", [*WORDS, *UNKNOWN])
def test_what_a_text_quotes_of_a_log_is_no_message(words: str) -> None:
    """In a paper, advice or report, whatever precedes the quotation once, or each of its lines."""
    text = [f"Section {number} has other words." for number in range(8)]
    for kind in QUOTED:
        lines = [f"{words}nid009999:7:7 [0] NCCL INFO {message}" for message in QUOTED[kind]]
        assert read(*text, *lines[:2], *text).verdict == "none", kind
        assert words in UNKNOWN or read(*lines).verdict == "none", kind
        real = "nid000001:7:7 [0] NCCL INFO Using network IB"
        assert "ib" in {rank.verdict for rank in read(real, *lines * 3).ranks}
        assert len(read(real, *lines * 3).ranks) == 1


def test_a_library_is_read_without_its_origin_and_behind_its_function() -> None:
    for place in ("", "[3] ", "include/alloc.h:320 ", "ibvwrap.c:115  ", "[0] include/alloc.h:320 (ncclCuMemAlloc) "):
        report = read(f"{place}NCCL WARN Cuda failure 2 'out of memory'", "Traceback (most recent call last):")
        assert report.causes[0].id == "library-out-of-memory", place


def test_bash_names_the_line_of_its_script() -> None:
    killed = "bash: line 1:  1382 Killed                  python3 train.py"
    assert ended(read(killed)) == "worker-killed"


def test_a_prefix_that_is_learned_late_counts_from_there_on() -> None:
    reader = LogReader()
    quiet = "".join(f"<nid001/3> step {number}\n" for number in range(500))
    reader.feed("job.out", quiet.encode())
    reader.feed("job.out", "".join(f"<nid001/3> {line}\n" for line in JOB).encode())
    reader.feed("job.err", b"<nid001/3> nid001:7:7 [0] NCCL INFO Using network IB\n")
    report = reader.report()
    assert (report.verdict, report.proof[0].line) == ("ofi-cxi", 503)
    other = LogReader()
    other.feed("job.out", quiet.replace("<nid001/3> ", "").encode())
    other.feed("job.out", "".join(f"of run 3: {line}\n" for line in JOB[:4]).encode())
    assert other.report().verdict == "none", "only the last lines have it: they are quoted"


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_a_prefix_is_learned_in_pieces_of_any_size(size: int) -> None:
    """A followed file or a pipe delivers a line at a time."""
    lines = [f"<job 17 of n{number % 3}> {line}" for number, line in enumerate(["begin", *JOB])]
    whole = read_lines("job.out", lines)
    assert (whole.verdict, whole.ended.cause) == ("ofi-cxi", "gpu-out-of-memory")
    reader = LogReader()
    for start in range(0, len(lines), size):
        reader.feed("job.out", "".join(f"{line}\n" for line in lines[start : start + size]).encode())
    report = reader.report()
    assert (report.verdict, report.ended, report.proof) == (whole.verdict, whole.ended, whole.proof)


@pytest.mark.threat
def test_a_hostile_prefix_teaches_in_bounded_time() -> None:
    sign = b"n1:1:1 [0] NCCL INFO Using network IB"
    for filler in (b"1 ", b"a1.", b"<", b"1<1> ", b"\x1b[1m", b" ", b"[1,"):
        for size in (118, 10_000):
            block = (filler * size)[:size] + sign + b"\n" + ((filler * size)[:size] + b"\n") * (50_000 // size)
            started = time.process_time()
            reader = LogReader()
            for _ in range(4):
                reader.feed("j", block)
            reader = LogReader()
            for line in 20 * block.splitlines(keepends=True)[:50]:
                reader.feed("j", line)
            assert time.process_time() - started < patient(5), (filler, size)
