"""Errors of commands: on a terminal an error and a hint, wrapped and coloured; elsewhere one line for tools."""

from __future__ import annotations

import itertools
import os
import pty
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from lumiimg.cli.main import main
from lumiimg.core.errors import ExitCode
from lumiimg.image.sif import MAGIC, MAGIC_OFFSET
from tests.shared import fabric_builder

SLIPS = tomllib.loads((Path(__file__).parents[1] / "fixtures/refused.toml").read_text())["slip"]
NAMES = ("\x1b[2J\x07.sif", "a\nerror: forged\nhint: rm -rf ~", "\u202efis.sif", "hint: x", "a  b.sif", "\udcff")


Capture = pytest.CaptureFixture[str]


def left_with(words: list[str]) -> int:
    """Run a command in this process; return its exit code."""
    try:
        return main(words)
    except SystemExit as leaving:
        return int(leaving.code or 0)


def at_a_terminal(words: list[str], monkeypatch: pytest.MonkeyPatch, columns: int = 60) -> tuple[int, str]:
    """Run a command whose standard error is a terminal; return (exit code, what it shows)."""
    ours, theirs = pty.openpty()
    with monkeypatch.context() as patch, os.fdopen(theirs, "w", errors="backslashreplace") as terminal:
        patch.setenv("COLUMNS", str(columns))
        patch.setenv("TERM", "xterm")
        patch.delenv("NO_COLOR", raising=False)
        patch.setattr("sys.stderr", terminal)
        code = left_with(words)
    text = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # EIO: the other end is closed
            break
        if not part:
            break
        text += part
    os.close(ours)
    return code, text.decode()


@pytest.fixture
def here(clean_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an image, and with files that are not images."""
    del clean_home
    monkeypatch.chdir(tmp_path)
    fabric_builder.image(tmp_path / "my.sif")
    (tmp_path / "notes.yaml").write_text("a: 1\n")
    (tmp_path / "data.json").write_text('{"a": 1}\n')
    for log in ("job.out", "slurm-2.out"):
        (tmp_path / log).write_text("step 1\n")
    (tmp_path / "host.json").write_text("kept")
    (tmp_path / "packed.sif").write_bytes(bytes(MAGIC_OFFSET) + MAGIC)
    return tmp_path


@pytest.mark.usefixtures("here")
def test_a_slip_has_an_error_and_a_hint_at_a_terminal_and_one_line_elsewhere(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    for slip, (what, hint) in SLIPS.items():
        code, shown = at_a_terminal(slip.split(), monkeypatch)
        assert code in {1, 2}, slip
        assert "\x1b[1;31merror:\x1b[0m " in shown, slip
        plain = re.sub(r"\x1b\[[0-9;]*m", "", shown).replace("\r", "")
        error, _, reported = plain.partition("\nhint: ")
        words = " ".join(error.split())
        assert what in words, slip
        assert hint in words + " ".join(reported.split()), slip
        assert all(len(line) <= 60 or " " not in line.strip() for line in plain.splitlines()), slip
        capsys.readouterr()
        assert left_with(slip.split()) == code, slip
        piped = capsys.readouterr().err
        assert piped.count("\n") == 1, slip
        assert "\x1b" not in piped, slip


@pytest.mark.usefixtures("here")
def test_the_name_that_a_hint_proposes_works(monkeypatch: pytest.MonkeyPatch) -> None:
    for slip in ("check my", "check mi.sif"):
        shown = " ".join(at_a_terminal(slip.split(), monkeypatch, 200)[1].split())
        found = re.search(r"did you mean (\S+)\?", shown)
        assert found, shown
        assert left_with(["check", found[1], "--level", "static"]) == ExitCode.UNDECIDED


def test_help_is_a_word_too(capsys: Capture) -> None:
    def printed(*words: str) -> str:
        assert left_with([*words]) == ExitCode.GOOD
        return capsys.readouterr().out

    assert printed("help") == printed("--help")
    assert printed("help", "check") == printed("check", "--help")


@pytest.mark.parametrize("end", ["2>&-", "2>/dev/full"])
def test_where_nothing_can_be_printed_the_exit_code_is_not_that_of_an_answer(end: str) -> None:
    for words in ("check nowhere.sif", "chek image.sif"):
        script = f"{shlex.quote(sys.executable)} -m lumiimg {words} {end}"
        assert subprocess.run(["sh", "-c", script], check=False).returncode == 2


def test_a_name_is_text_at_a_terminal_whatever_it_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    head, hint = "\x1b[1;31merror:\x1b[0m ", "\n\x1b[1;36mhint:\x1b[0m "
    for name, columns in itertools.product(NAMES, (1, 12, 40, 99999)):
        code, shown = at_a_terminal(["check", name], monkeypatch, columns)
        assert code == ExitCode.BAD_INPUT
        plain, _, reported = shown.replace("\r\n", "\n").removeprefix(head).removesuffix("\n").rpartition(hint)
        assert all(line.isprintable() for line in [*plain.split("\n"), *reported.split("\n")])
        assert all(line.startswith("       ") for line in plain.split("\n")[1:]), "none of them is a message of its own"
        assert all(line.startswith("      ") for line in reported.split("\n")[1:])
