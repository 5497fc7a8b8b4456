"""`lumiimg log` as users and scripts see it: the page, JSON, JUnit, the image beside the log, benchmarks."""

from __future__ import annotations

import gzip
import io
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from lumiimg.cli.main import main
from lumiimg.core.errors import ExitCode
from lumiimg.core.findings import Severity
from lumiimg.joblog import files as sources
from lumiimg.report.document import Document, Item, Section
from lumiimg.report.junit import junit_text
from lumiimg.report.read_progress import ReadProgress
from tests.shared import fabric_builder
from tests.shared.job_deaths import died, job
from tests.shared.joblog import bandwidth_table, job_log
from tests.shared.programs import patient, unwrapped

Capture = pytest.CaptureFixture[str]
CXI = b"""\
n1:7:7 [0] NCCL INFO RCCL version : 2.20.5
n1:7:7 [0] NCCL INFO NET/OFI Selected Provider is cxi
n1:7:7 [0] NCCL INFO Using network AWS Libfabric
n1:7:7 [0] NCCL INFO Channel 00/0 : 0[c1000] -> 8[c1000] [send] via NET/AWS Libfabric/0/GDRDMA comm 0x7f00 nRanks 16
"""
SOCKET = b"""\
n1:7:7 [0] NCCL INFO RCCL version : 2.20.5
n1:7:7 [0] NCCL INFO NET/Plugin : Plugin load returned 0 : (null).
n1:7:7 [0] NCCL INFO Using network Socket
"""


def table(bus: float, wrong: int = 0, *, nodes: int = 2, ranks: int = 16, size: int = 128 << 20) -> bytes:
    return CXI + bandwidth_table(nodes, ranks, bus, name="all_reduce_perf", wrong=wrong, size=size).encode()


def ask(tmp_path: Path, capsys: Capture, log: bytes, *words: str) -> tuple[int, dict[str, Any], str]:
    file = tmp_path / "job.out"
    file.write_bytes(log)
    code = main(["log", str(file), "--json", *words])
    out, err = capsys.readouterr()
    return code, json.loads(out), err


def test_nodes_that_differ_are_named_folded_with_their_cause(tmp_path: Path, capsys: Capture) -> None:
    code, data, page = ask(tmp_path, capsys, b"".join(job_log(64, 0, sick=frozenset({3}))))
    assert (code, data["verdict"], data["confidence"]) == (ExitCode.NO, "mixed", "proved")
    assert [(g["verdict"], g["count"], g["names"], g["cause"]) for g in data["nodes"]] == [
        ("socket", 1, "nid005003", "plugin-absent"),
        ("ofi-cxi", 7, "nid[005000-005002,005004-005007]", None),
    ]
    assert data["coverage"] == {"ranks": 64, "of_ranks": 64, "nodes": 8, "of_nodes": 8}
    assert "nid[005000-005002,005004-005007]" in page


def test_one_line_says_of_how_many_nodes_it_is(tmp_path: Path, capsys: Capture) -> None:
    for sick, extent in (({3}, "; 1 node socket, 7 nodes ofi-cxi"), (set[int](), "; 64 of 64 ranks, 8 of 8 nodes")):
        (file := tmp_path / "job.out").write_bytes(b"".join(job_log(64, 0, sick=frozenset(sick))))
        main(["log", str(file), "--quiet"])
        assert capsys.readouterr().out.endswith(f"{extent}\n")


def test_a_log_that_few_ranks_wrote_says_so(tmp_path: Path, capsys: Capture) -> None:
    few = b"".join(line for line in b"".join(job_log(64, 0)).splitlines(keepends=True) if line.startswith(b"0: "))
    code, data, page = ask(tmp_path, capsys, few)
    assert (code, data["verdict"]) == (ExitCode.GOOD, "ofi-cxi")
    assert data["coverage"] == {"ranks": 1, "of_ranks": 64, "nodes": 1, "of_nodes": 8}
    assert "reported their network: 1 of 64 ranks, 1 of 8 nodes" in page
    assert "(proved by the log of 1 of 64 ranks)" in unwrapped(page)


@pytest.mark.parametrize("prefix", ["", "0: "], ids=["as it is", "srun -l"])
def test_what_it_quotes_of_another_job_is_no_line_of_this_one(tmp_path: Path, capsys: Capture, prefix: str) -> None:
    """A job script may print the log of an earlier run."""
    before, job = tmp_path / "before.out", tmp_path / "job.out"
    before.write_bytes(b"".join(job_log(16, 0)))
    assert main(["log", str(before)]) == ExitCode.GOOD
    job.write_text("".join(f"{prefix}{line}\n" for line in capsys.readouterr().out.splitlines()))
    assert main(["log", str(job)]) == ExitCode.UNDECIDED


def test_how_the_network_was_used_is_reported(tmp_path: Path, capsys: Capture) -> None:
    _, data, _ = ask(tmp_path, capsys, b"".join(job_log(16, 0)))
    assert (data["gdr"], data["nics"]) == (True, 4)
    assert data["environment"] == {"NCCL_SOCKET_IFNAME": "hsn0,hsn1,hsn2,hsn3"}
    assert (data["library"]["version"], data["plugin"]["version"], data["provider"]) == ("2.22.3", "1.18.0", "cxi")


def test_junit_fails_what_is_slow_and_does_not_pass_what_is_not_known(tmp_path: Path, capsys: Capture) -> None:
    results = tmp_path / "log.xml"
    code, _, _ = ask(tmp_path, capsys, b"".join(job_log(64, 0, sick=frozenset({3}))), "--junit", str(results))
    suite = ET.fromstring(results.read_text())  # noqa: S314 - our own
    assert (code, suite.get("failures"), suite.get("errors"), suite.get("tests")) == (1, "2", "0", "3")
    code, _, _ = ask(tmp_path, capsys, b"hello\n", "--junit", str(results))
    suite = ET.fromstring(results.read_text())  # noqa: S314 - our own
    assert (code, suite.get("failures"), suite.get("errors")) == (ExitCode.UNDECIDED, "0", "1")
    selected = b"nid000001:1:1 [0] NCCL INFO NET/OFI Selected Provider is cxi\n"
    for log in (selected, selected + b"nid000001:1:1 [0] NCCL INFO comm 0xa rank 0 nRanks 8 nNodes 1 localRanks 8\n"):
        ask(tmp_path, capsys, log, "--junit", str(results))
        assert "the traffic went over Slingshot" not in results.read_text(), "as on the page"


@pytest.mark.threat
def test_junit_holds_hostile_text_as_text(tmp_path: Path, capsys: Capture) -> None:
    results = tmp_path / "log.xml"
    ask(tmp_path, capsys, SOCKET[:-1] + b' ]]></failure><x a="&\x00\x1b">\n', "--junit", str(results))
    assert ET.fromstring(results.read_text()).find("x") is None  # noqa: S314 - our own
    hostile = '\x00\x1b</testcase><x a="&'
    items = (Item(severity, hostile, evidence=(hostile,), case=hostile) for severity in Severity)
    text = junit_text(Document(hostile[2:], hostile, hostile, sections=(Section("x", items),), case=hostile))
    assert [case.tag for case in ET.fromstring(text)] == ["testcase"] * 5  # noqa: S314


def test_bandwidth_is_compared_with_the_site_where_it_is_of_the_same_kind(tmp_path: Path, capsys: Capture) -> None:
    lumi = ("--site", "lumi")
    without_rows = b"\n".join(line for line in table(84.2).split(b"\n") if b" float " not in line)
    for measured, words, code, severity, expected in (
        (table(84.2), lumi, ExitCode.GOOD, "ok", "84.2 GB/s at 128 MiB"),
        (table(9.1), lumi, ExitCode.NO, "problem", "9.1 GB/s at 128 MiB"),
        (table(84.2, 3), lumi, ExitCode.NO, "problem", "wrong results"),
        (table(9.1), (), ExitCode.GOOD, "info", ""),
        (table(9.1, nodes=1, ranks=8), lumi, ExitCode.GOOD, "info", ""),
        (table(9.1, ranks=2), lumi, ExitCode.GOOD, "info", ""),
        (table(9.1, nodes=4, ranks=32), lumi, ExitCode.GOOD, "info", ""),
        (table(9.1, size=1 << 20), lumi, ExitCode.GOOD, "info", ""),
        (without_rows, lumi, ExitCode.GOOD, "info", "no result"),
    ):
        answered, data, page = ask(tmp_path, capsys, measured, *words)
        assert (answered, data["findings"][0]["severity"]) == (code, severity), measured
        assert (data["verdict"], data["confidence"]) == ("ofi-cxi", "proved"), measured
        assert data["answer"] == ("no" if code else "good"), measured
        assert expected in page, measured
        assert severity == "info" or data["measurements"][0]["nodes"] == 2, measured


def test_what_comes_next_is_the_first_command_that_lacks_no_name(tmp_path: Path, capsys: Capture) -> None:
    log = (Path(__file__).parents[1] / "fixtures/nccl/rccl-2.21.5-plugin-absent.log").read_bytes()
    _, data, page = ask(tmp_path, capsys, log)
    first, *_ = data["causes"][0]["remedy"]
    assert "image.sif" in first, "the log does not say which image it was"
    assert data["advice"]["next"] == "ls /appl/local/laifs/containers/"
    assert f"do:  {first}" in page
    image = fabric_builder.image(tmp_path / "image")
    _, data, _ = ask(tmp_path, capsys, log, "--image", str(image), "--site", "lumi")
    assert data["causes"][0]["remedy"][0].endswith(data["advice"]["next"])
    assert str(image) in data["advice"]["next"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_lines_that_are_proposed_are_printed_whatever_the_file_is_called(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = "step\n" * 30 + "srun: error: nid005101: task 3: Exited with exit code 1\n"
    for name in ("-n.out", "a b.out", "it's.out", "a\nb.out", "$(id).out", "{lines}.out", "job.out.gz"):
        Path(name).write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
        assert main(["log", "--json", "--", name]) == ExitCode.NO
        command = json.loads(capsys.readouterr().out)["advice"]["next"]
        assert command.startswith("sed -n ")
        printed = subprocess.run(
            ["bash", "-c", command], check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL
        )
        assert "task 3: Exited" in printed.stdout, command


def test_how_far_a_long_log_was_read_is_shown_on_a_terminal_and_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    def shown(stream: io.StringIO, total: int | None = 1_000_000_000, *, quiet: bool = False) -> str:
        clock = iter(range(100))
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
        seen = ReadProgress(quiet=quiet)
        for part in range(1, 6):
            seen(part * 200_000_000, total)
        seen.close()
        return stream.getvalue()

    monkeypatch.setenv("TERM", "xterm")
    lines = shown(Terminal()).split("\r\x1b[K")  # from the third second on
    assert [line.rpartition(", ")[2] for line in lines[1:4]] == ["60 %", "80 %", "100 %"]
    assert lines[1].startswith("read ")
    assert lines[4:] == [""], "then it is gone"
    assert "read " in (of_a_pipe := shown(Terminal(), None))
    assert "%" not in of_a_pipe
    assert (shown(io.StringIO()), shown(Terminal(), quiet=True)) == ("", "")
    for plain in ("", "dumb", "unknown"):
        monkeypatch.setenv("TERM", plain)
        assert shown(Terminal()) == "", "it would show the codes"


def test_the_list_of_what_is_known(capsys: Capture) -> None:
    assert main(["log", "--signatures", "--json"]) == ExitCode.GOOD
    known = json.loads(capsys.readouterr().out)["signatures"]
    assert all(s["id"] and s["pattern"] and s["remedy"] and s["source"] and s["example"] for s in known)
    assert main(["log", "--signatures"]) == ExitCode.GOOD
    page = capsys.readouterr().out
    assert [s["id"] for s in known if s["id"] not in page] == []


def test_following_reports_each_change_and_the_whole_answer_at_the_end(tmp_path: Path) -> None:
    log = tmp_path / "job.out"
    program = subprocess.Popen(
        [sys.executable, "-m", "lumiimg", "log", "--follow", str(log)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert program.stderr
    assert program.stdout
    assert "waiting for" in program.stderr.readline()
    log.write_bytes(CXI)
    assert program.stderr.readline().startswith("ofi-cxi: the traffic went over Slingshot")
    with log.open("ab") as stream:
        stream.write(b"n2:9:9 [0] NCCL INFO Using network Socket\n")
    assert program.stderr.readline().startswith("mixed")
    program.send_signal(signal.SIGINT)
    deadline = time.monotonic() + patient(20)
    assert program.stdout.read().startswith("mixed: ranks used different networks")
    assert program.wait(max(1, deadline - time.monotonic())) == ExitCode.NO
    program.stderr.close()
    program.stdout.close()


def test_an_excerpt_and_two_runs_are_reported_in_the_text_and_on_the_page(tmp_path: Path, capsys: Capture) -> None:
    log, page = tmp_path / "job.out", tmp_path / "job.html"
    again = [line.replace(":10", ":20") for line in job("cxi", 0, 3)]
    excerpt = "an excerpt: no relevant line names its process"
    runs = "the log contains 2 runs; this is about the last one, from line 14 on"
    for lines, code, messages in (
        (["NCCL INFO Using network Socket"], ExitCode.NO, {excerpt}),
        (job("tcp", 0), ExitCode.NO, set()),
        (
            [*job("tcp", 0, 3), *died("oom kill", 3), *again],
            ExitCode.GOOD,
            {runs},
        ),
    ):
        log.write_text("".join(f"{line}\n" for line in lines))
        assert main(["log", str(log), "--html", str(page)]) == code
        text = capsys.readouterr().out
        for shown in (" ".join(text.split()), page.read_text()):
            assert {words for words in (excerpt, runs) if words in shown} == messages & {excerpt, runs}
            assert all(words in shown for words in messages)
    assert "next:" not in text, "a good answer needs no command"


@pytest.mark.threat
def test_a_stream_of_one_line_without_end_is_left_and_that_is_reported(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Endless(io.RawIOBase):
        def __init__(self, line: bytes, step: int) -> None:
            self.given, self._line, self._step, self._rest = 0, line, step, b""

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
            while len(self._rest) < len(buffer):
                self._rest += self._line % self.given * 8192
                self.given += self._step
            buffer[:], self._rest = self._rest[: len(buffer)], self._rest[len(buffer) :]
            return len(buffer)

    monkeypatch.setattr(sources, "REPEATED_BYTES", 4 << 20)
    monkeypatch.setattr(sources, "STREAM_BYTES", 16 << 20)
    for step, expected in ((0, "repeats one line forever"), (1, "never ends")):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(Endless(b"step %d\n", step))))
        assert main(["log", "-"]) == ExitCode.UNDECIDED
        assert f"-: {expected}; the first " in capsys.readouterr().err


NAMELESS = """\
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
     1048576        262144     float     sum      -1    95.20   11.01   20.65      0    95.10   11.03   20.67      0
     2097152        524288     float     sum      -1   140.20   14.96   28.05      0   140.10   14.97   28.07      0
"""


def test_what_a_table_lacks_to_be_compared_is_reported(tmp_path: Path, capsys: Capture) -> None:
    log = tmp_path / "job.out"
    log.write_text(NAMELESS)
    main(["log", str(log), "--site", "lumi"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "not compared with lumi: the log does not give the name of its test and its number of nodes" in shown
    main(["log", str(log)])
    assert "not compared" not in capsys.readouterr().out
