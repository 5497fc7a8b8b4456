"""The answer does not depend on how a log is stored, split or compressed."""

from __future__ import annotations

import bz2
import errno
import gzip
import io
import json
import lzma
import os
import sys
import threading
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest

from lumiimg.cli.main import main
from lumiimg.core.errors import BadInputError, ExitCode
from lumiimg.core.findings import Severity
from lumiimg.joblog import LogReader, LogReport, read_log
from lumiimg.joblog import files as sources
from lumiimg.joblog.files import blocks, follow, log_files, whole_lines
from tests.shared.joblog import job_log

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd


FIXTURES = Path(__file__).parents[1] / "fixtures"
SOCKET = b"n1:1:1 [0] NCCL INFO Using network Socket\n"
JOB = b"".join(job_log(32, 0, sick=frozenset({3})))


def unexpected(text: str) -> None:
    raise AssertionError(text)


def verdict_of(*files: Path) -> str:
    return read_log([str(file) for file in files], unexpected).verdict.value


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "plain": bytes,
    "gzip": gzip.compress,
    "gzip of two members": lambda data: gzip.compress(data[:9]) + gzip.compress(data[9:]),
    "xz": lzma.compress,
    "zstd": lambda data: zstd.compress(data, options={zstd.CompressionParameter.checksum_flag: 1}),
}


def test_a_compressed_log_is_read_as_the_plain_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "job.out"
    for name, pack in PACKERS.items():
        log.write_bytes(pack(JOB))
        assert main(["log", str(log), "--json"]) == ExitCode.NO
        report = json.loads(capsys.readouterr().out)
        assert report["verdict"] == "mixed", name
        assert report["proof"][0]["line"] == JOB[: JOB.index(b"via NET/Socket")].count(b"\n") + 1, name
        if name == "plain":
            continue
        packed = pack(SOCKET + os.urandom(400_000))
        log.write_bytes(packed[: len(packed) * 3 // 4])
        main(["log", str(log)])
        assert "ends too early" in capsys.readouterr().err, name
        damaged = bytearray(pack(SOCKET + os.urandom(4000)))
        damaged[len(damaged) // 2] ^= 255
        damaged[-6] ^= 255
        log.write_bytes(damaged)
        assert main(["log", str(log)]) == ExitCode.BAD_INPUT, name
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"lumiimg: {log}: cannot be "), name


def test_standard_input_may_be_compressed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(gzip.compress(SOCKET)))))
    assert main(["log", "-"]) == ExitCode.NO
    assert capsys.readouterr().out.startswith("socket")


def test_a_folder_is_one_job_and_what_is_no_text_in_it_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "attempt_0/1").mkdir(parents=True)
    (tmp_path / "nccl.n1.1").write_bytes(SOCKET)
    (tmp_path / "nccl.n1.10").write_bytes(SOCKET.replace(b"n1:1", b"n1:10"))
    (tmp_path / "nccl.n1.2").write_bytes(SOCKET.replace(b"n1:1", b"n1:2"))
    (tmp_path / "attempt_0/1/stdout.log.gz").write_bytes(gzip.compress(SOCKET.replace(b"n1:1", b"n2:7")))
    (tmp_path / "core.17").write_bytes(b"\x7fELF\2\1\1\0")
    (tmp_path / "pipe").symlink_to("/dev/zero")
    names = [os.path.relpath(name, tmp_path) for name in log_files([str(tmp_path)])]
    assert names == ["nccl.n1.1", "nccl.n1.2", "nccl.n1.10", "attempt_0/1/stdout.log.gz"]
    report = read_log([str(tmp_path)], unexpected)
    assert [rank.process for rank in report.ranks] == ["n1:1", "n1:10", "n1:2", "n2:7"]


def test_a_folder_that_may_not_be_read_is_reported_and_not_taken_for_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: str) -> None:  # root may read all
        raise PermissionError(errno.EACCES, "Permission denied", path)

    monkeypatch.setattr(os, "scandir", refused)
    with pytest.raises(BadInputError, match="cannot be read: Permission denied"):
        log_files([str(tmp_path)])


def test_an_answer_of_lumiimg_quotes_logs_and_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log, answer = tmp_path / "job.out", tmp_path / "answer.json"
    log.write_bytes(SOCKET)
    assert main(["log", str(log), "--json"]) == ExitCode.NO
    answer.write_text(capsys.readouterr().out)
    with pytest.raises(BadInputError, match=r"answer\.json: is --json output of lumiimg"):
        log_files([str(answer)])
    assert log_files([str(tmp_path)]) == [str(log)]


def test_zeros_and_progress_bars_without_end_hide_no_message(tmp_path: Path) -> None:
    log = tmp_path / "job.out"
    bar = b"".join(b"\r%3d%%|####   | %d/100" % (n % 100, n) for n in range(20_000)) + b"\r"
    for before in (b"\0" * 5000 + b"\n", bar, b"step " * 20 + b"\n\0\0\n"):
        log.write_bytes(before + SOCKET)
        assert verdict_of(*map(Path, log_files([str(tmp_path)]))) == "socket"
    log.write_bytes(SOCKET + b"  \t")
    assert verdict_of(log) == "socket", "blanks without an end are no line"


def pieces(data: bytes) -> list[bytes]:
    return [data[at : at + sources.BLOCK_BYTES] for at in range(0, len(data), sources.BLOCK_BYTES)]


def test_a_pipe_beside_a_file_is_read(tmp_path: Path) -> None:
    log, pipe = tmp_path / "job.out", tmp_path / "pipe"
    log.write_bytes(SOCKET)
    os.mkfifo(pipe)
    table = (FIXTURES / "bandwidth" / "rccl-tests-all-reduce.out").read_bytes()
    writer = threading.Thread(target=pipe.write_bytes, args=(table,))
    writer.start()
    report = read_log([str(log), str(pipe)], unexpected)
    writer.join()
    assert (report.verdict.value, report.measurements[0].best_gb_s) == ("socket", 87.43)


def test_an_overlong_line_costs_neither_memory_nor_the_next_line() -> None:
    lines = b"x" * (5 * sources.LINE_LIMIT_BYTES) + b"\n" + SOCKET
    read = list(whole_lines(pieces(lines), "j", unexpected))
    assert sum(map(len, read)) < 2 * sources.LINE_LIMIT_BYTES
    reader = LogReader()
    for block in read:
        reader.feed("j", block)
    (proof,) = reader.report().proof
    assert proof.line == 2


def test_a_growing_log_is_followed_line_by_line_and_from_the_start_where_it_is_another(tmp_path: Path) -> None:
    log = tmp_path / "job.out"
    reports: list[LogReport] = []
    again = [b"n2:1:1 [0] NCCL INFO Using network IB\n", b"step\n" * 9 + SOCKET.replace(b"n1", b"n3")]
    steps = [SOCKET[:20], SOCKET, *again]  # written anew, and then another file under the name

    def sleep(_: float) -> None:
        if not steps:
            raise KeyboardInterrupt
        if len(steps) == 1:
            log.rename(tmp_path / "job.out.1")
        log.write_bytes(steps.pop(0))

    with pytest.raises(KeyboardInterrupt):
        reports.extend(follow([str(log)], sleep))
    assert [[rank.process for rank in report.ranks] for report in reports] == [[], ["n1:1"], ["n2:1"], ["n3:1"]]
    assert reports[-1].proof[0].line == 10
    for before, line in ((b"progress\n" * 40_000, 40_001), (b"x" * (3 * sources.LINE_LIMIT_BYTES) + b"\n", 2)):
        log.write_bytes(before + SOCKET)
        _, report = islice(follow([str(log)]), 2)
        assert report.proof[0].line == line, "once, and a line of any length is one"


@pytest.mark.parametrize("follows", [False, True])
@pytest.mark.parametrize(
    "cut", ["NET/OFI Selected Provider is c", "Using network AWS Lib", "comm 0x5 rank 0 nRanks 128 nNodes 1"]
)
@pytest.mark.threat
def test_a_last_line_without_an_end_is_not_taken_for_the_whole(tmp_path: Path, cut: str, follows: bool) -> None:
    """Jobs write in blocks: provider `cxi`, network `AWS Libfabric`, 16 nodes."""
    log = tmp_path / "job.out"
    whole = "NET/OFI Selected Provider is cxi (found 4 nics)", "Using network AWS Libfabric"
    log.write_text("".join(f"n1:1:1 [0] NCCL INFO {line}\n" for line in whole) + f"n1:1:1 [0] NCCL INFO {cut}")
    reported: list[str] = []

    def sleep(_: float) -> None:
        raise KeyboardInterrupt

    if follows:
        reports: list[LogReport] = []
        with pytest.raises(KeyboardInterrupt):
            reports.extend(follow([str(log)], sleep))
        report = reports[-1]
    else:
        report = read_log([str(log)], reported.append)
        assert reported == [f"{log}: its last line may be cut off, so it counts only if it reports a failure"]
    assert (report.verdict.value, report.severity, report.provider) == ("ofi-cxi", Severity.UNKNOWN, "cxi")


@pytest.mark.parametrize(
    "last",
    [
        "slurmstepd: error: *** JOB 42 ON nid005000 CANCELLED AT 2026-11-24T16:20:46 DUE TO TIME LIMIT ***",
        "srun: error: nid005001: task 8: Segmentation fault (core dumped)",
        "Memory access fault by GPU node-4 (Agent handle: 0x55) on address 0x7f. Reason: Unknown.",
        "n1:1:1 [0] NCCL WARN NET/OFI Request 0x55 completed with error. RC: 5. Error: 5 (I/O)",
    ],
)
@pytest.mark.threat
def test_a_last_line_without_an_end_that_says_how_the_job_ended_takes_the_green_away(tmp_path: Path, last: str) -> None:
    log = tmp_path / "job.out"
    good = (
        "NET/OFI Selected Provider is cxi (found 4 nics)",
        "comm 0xa rank 0 nRanks 16 nNodes 2 localRanks 8 localRank 0 MNNVL 0",
        "Channel 00/0 : 0[c1000] -> 8[c1000] [send] via NET/AWS Libfabric/0/GDRDMA",
    )
    log.write_text("".join(f"n1:1:1 [0] NCCL INFO {line}\n" for line in good))
    assert read_log([str(log)], unexpected).severity is Severity.OK
    log.write_text(log.read_text() + last)
    assert read_log([str(log)], lambda _: None).severity is Severity.PROBLEM


def test_what_is_no_log_is_refused_in_a_line(tmp_path: Path) -> None:
    log = tmp_path / "job.out"
    with pytest.raises(BadInputError, match="no log in this folder"):
        log_files([str(tmp_path)])
    for data in ("n1:1:1 [0] NCCL INFO Using network Socket\n".encode("utf-16"), b"\x7fELF\0\0"):
        log.write_bytes(data)
        with pytest.raises(BadInputError, match="is not text"):
            log_files([str(log)])
    for data in (gzip.compress(SOCKET), b"\x7fELF\0\0"):
        log.write_bytes(data)
        with pytest.raises(BadInputError, match="is not text"):
            list(follow([str(log)]))
    with pytest.raises(BadInputError, match="cannot be read"):
        list(follow(["/proc/self/mem"]))
    with pytest.raises(BadInputError, match="No such file"):
        next(blocks("/no/such.log", unexpected))


def test_a_file_is_read_once_and_folders_to_a_depth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "again").symlink_to(tmp_path)
    logs = [str(tmp_path / "a" / "job.out"), str(tmp_path / "a" / "b" / "job.out")]
    for log in logs:
        Path(log).write_bytes(SOCKET)
    assert log_files([logs[0], str(tmp_path), logs[0], "-", "-"]) == [*logs, "-"]
    monkeypatch.setattr(sources, "DEPTH_LIMIT", 1)
    assert log_files([str(tmp_path)]) == logs[:1]


def test_a_log_that_is_packed_with_bzip2_is_named_and_not_read(tmp_path: Path) -> None:
    logs = [tmp_path / f"job.{number}.bz2" for number in range(3)]
    for log in logs:
        log.write_bytes(bz2.compress(SOCKET))
    with pytest.raises(BadInputError, match="is compressed with bzip2"):
        read_log([str(logs[0])], unexpected)
    with pytest.raises(BadInputError, match="no log in this folder, except those with bzip2"):
        read_log([str(tmp_path)], unexpected)
    (tmp_path / "job.out").write_bytes(SOCKET)
    reported: list[str] = []
    assert read_log([str(tmp_path)], reported.append).verdict == "socket"
    assert reported == [f"{logs[0]} is compressed with bzip2 and not read, as are 2 more"]
