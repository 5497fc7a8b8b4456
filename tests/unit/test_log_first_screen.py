"""The first screen of a terminal of 80 columns and 24 lines holds the verdict, the reason and one command."""

from __future__ import annotations

import io
import json
import re
import sys
import textwrap
from pathlib import Path

import pytest

from lumiimg.cli.main import main
from lumiimg.errors import ExitCode
from lumiimg.nccl import sources
from lumiimg.nccl.vocabulary import vocabulary
from lumiimg.report.log import next_command
from tests.shared.job_deaths import DEATHS, died, job
from tests.shared.remedies import COMMAND

Capture = pytest.CaptureFixture[str]


def screen(text: str) -> list[str]:
    """Return what a terminal shows of a text first."""
    rows = [row for line in text.splitlines() for row in (textwrap.wrap(line, 80, drop_whitespace=False) or [""])]
    return rows[:24]


@pytest.mark.parametrize("network", ["cxi", "tcp", "none"])
@pytest.mark.parametrize("name", DEATHS)
def test_each_death_has_its_verdict_its_reason_and_one_command_first(
    name: str, network: str, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    log = tmp_path / "job.out"
    log.write_text("".join(f"{line}\n" for line in [*job(network, 0, 3, 9), *died(name, 3)]))
    assert main(["log", str(log)]) == ExitCode.NO
    shown = screen(capsys.readouterr().out)
    assert shown[0].startswith(f"{DEATHS[name].id}: ")
    (why,) = [number for number, row in enumerate(shown) if row.startswith("why: ")]
    (command,) = [number for number, row in enumerate(shown) if re.match("next(, [^:]+)?:  ", row)]
    assert 0 < why < command <= 6
    assert COMMAND.match(shown[command].partition(":  ")[2])
    assert any(row.startswith("network: ") for row in shown)


def test_each_known_trouble_has_a_command_that_can_be_typed() -> None:
    known = vocabulary()
    remedies = [one.remedy for one in known.signatures.values()] + [one.remedy for one in known.advice]
    assert [remedy for remedy in remedies if not COMMAND.match(next_command(remedy)[0])] == []


def test_the_first_cure_is_printed_once_with_what_it_is_for(tmp_path: Path, capsys: Capture) -> None:
    log = tmp_path / "job.out"
    for name in DEATHS:
        log.write_text("".join(f"{line}\n" for line in [*job("cxi", 0, 3, 9), *died(name, 3)]))
        main(["log", str(log), "--json"])
        captured = capsys.readouterr()
        cause, advice = (json.loads(captured.out)[key] for key in ("causes", "advice"))
        command = cause[0]["remedy"][0]
        assert advice["next"] in command
        assert captured.err.count(advice["next"]) == 1, name
        purpose = command.removesuffix(advice["next"]).removesuffix(": ")
        assert (advice["where"] or "").lower() == purpose.lower()


def test_a_good_answer_needs_no_command(tmp_path: Path, capsys: Capture) -> None:
    log = tmp_path / "job.out"
    log.write_text("".join(f"{line}\n" for line in job("cxi", 0, 3, 9)))
    assert main(["log", str(log)]) == ExitCode.GOOD
    assert "next:" not in capsys.readouterr().out


@pytest.mark.parametrize("form", ["text", "page"])
def test_an_excerpt_is_said_to_be_one(form: str, tmp_path: Path, capsys: Capture) -> None:
    log, page = tmp_path / "job.out", tmp_path / "job.html"
    said = "an excerpt: no line of it that counts here names its process"
    for lines, expected in ((["NCCL INFO Using network Socket"], True), (job("tcp", 0), False)):
        log.write_text("".join(f"{line}\n" for line in lines))
        main(["log", str(log), "--html", str(page)])
        shown = " ".join(capsys.readouterr().out.split()) if form == "text" else page.read_text()
        assert (said in shown) is expected


@pytest.mark.parametrize("form", ["text", "page"])
def test_that_the_log_holds_two_runs_is_said(form: str, tmp_path: Path, capsys: Capture) -> None:
    log, page = tmp_path / "job.out", tmp_path / "job.html"
    lines = [*job("tcp", 0, 3), *died("oom kill", 3), *(line.replace(":10", ":20") for line in job("cxi", 0, 3))]
    log.write_text("".join(f"{line}\n" for line in lines))
    assert main(["log", str(log), "--html", str(page)]) == ExitCode.GOOD
    shown = " ".join(capsys.readouterr().out.split()) if form == "text" else page.read_text()
    assert "the log holds 2 runs; this is about the last one, from line 14 on" in shown
    assert "from line 1 on socket, ended by out-of-memory" in shown


@pytest.mark.threat
def test_a_stream_of_one_line_without_end_is_left_and_that_is_said(
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
    for step, said in ((0, "repeats one line without an end"), (1, "goes on without an end")):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(Endless(b"step %d\n", step))))
        assert main(["log", "-"]) == ExitCode.UNDECIDED
        assert f"-: {said}; the first " in capsys.readouterr().err


NAMELESS = """\
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
     1048576        262144     float     sum      -1    95.20   11.01   20.65      0    95.10   11.03   20.67      0
     2097152        524288     float     sum      -1   140.20   14.96   28.05      0   140.10   14.97   28.07      0
"""


def test_what_a_table_lacks_to_be_compared_is_said(tmp_path: Path, capsys: Capture) -> None:
    log = tmp_path / "job.out"
    log.write_text(NAMELESS)
    main(["log", str(log), "--site", "lumi"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "not compared with lumi: the log does not say the name of its test and its number of nodes" in shown
    main(["log", str(log)])
    assert "not compared" not in capsys.readouterr().out
