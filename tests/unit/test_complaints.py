"""What stops a command: at a terminal an error and a hint, wrapped and coloured; elsewhere one line for tools."""

from __future__ import annotations

import os
import pty
import re
import shlex
import subprocess
import sys

import pytest

SLIPS = {
    "show nowhere": ("nowhere", "lumiimg list"),
    "chek image.sif": ("chek", "did you mean check?"),
    "check": ("IMAGE", "lumiimg check --help"),
    "check image.sif --lvel static": ("--lvel", "did you mean --level?"),
    "check nowhere.sif": ("nowhere.sif", ""),
    "build --add vllm": ("no base", "--base NAME"),
    "build --base rocm-6.2.4 --add own-packages": ("own-packages", "-r FILE"),
    "explain": ("either an image or a request", "--base NAME"),
    "log": ("no log to read", "- for standard input"),
    "log nowhere.out": ("nowhere.out", ""),
    "bind image.sif": ("--host", "lumiimg bind --help"),
    "check image.sif --sbatch=-A": ("--sbatch", "--nodes N"),
    "job /etc/passwd --site lumi": ("", ""),
}


def at_a_terminal(words: list[str], columns: int = 60) -> tuple[int, str]:
    """Run a command whose standard error is a terminal, and return (its exit code, what it shows)."""
    ours, theirs = pty.openpty()
    environment = os.environ | {"COLUMNS": str(columns), "TERM": "xterm"}
    environment.pop("NO_COLOR", None)
    argv = [sys.executable, "-m", "lumiimg", *words]
    done = subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=theirs, env=environment, check=False)
    os.close(theirs)
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
    return done.returncode, text.decode()


@pytest.mark.parametrize("slip", SLIPS)
def test_a_slip_has_an_error_and_a_hint_at_a_terminal_and_one_line_elsewhere(slip: str, clean_home: object) -> None:
    del clean_home
    what, hint = SLIPS[slip]
    code, shown = at_a_terminal(slip.split())
    assert code in {1, 2}
    assert "\x1b[1;31merror:\x1b[0m " in shown
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown).replace("\r", "")
    error, _, told = plain.partition("\nhint: ")
    words = " ".join(error.split())
    assert what in words
    assert hint in words + " ".join(told.split())
    assert all(len(line) <= 60 or " " not in line.strip() for line in plain.splitlines())
    piped = subprocess.run(
        [sys.executable, "-m", "lumiimg", *slip.split()], capture_output=True, text=True, check=False
    )
    assert piped.returncode == code
    assert piped.stderr.count("\n") == 1
    assert "\x1b" not in piped.stderr


def test_help_is_a_word_too() -> None:
    def printed(*words: str) -> str:
        done = subprocess.run([sys.executable, "-m", "lumiimg", *words], capture_output=True, text=True, check=True)
        return done.stdout

    assert printed("help") == printed("--help")
    assert printed("help", "check") == printed("check", "--help")


@pytest.mark.parametrize("end", ["2>&-", "2>/dev/full"])
@pytest.mark.parametrize("words", ["check nowhere.sif", "chek image.sif", "check image.sif --lvel static"])
def test_where_nothing_can_be_printed_the_exit_code_is_not_that_of_an_answer(end: str, words: str) -> None:
    script = f"{shlex.quote(sys.executable)} -m lumiimg {words} {end}"
    assert subprocess.run(["sh", "-c", script], check=False).returncode == 2


@pytest.mark.parametrize(
    "name", ["\x1b[2J\x07.sif", "a\nerror: forged\nhint: rm -rf ~", "\u202efis.sif", "hint: x", "a  b.sif", "\udcff"]
)
@pytest.mark.parametrize("columns", [1, 12, 40, 99999])
def test_a_name_is_text_at_a_terminal_whatever_it_holds(name: str, columns: int) -> None:
    code, shown = at_a_terminal(["check", name], columns)
    assert code == 2
    plain = shown.replace("\r\n", "\n").removeprefix("\x1b[1;31merror:\x1b[0m ").removesuffix("\n")
    assert all(line.isprintable() for line in plain.split("\n"))
    assert all(line.startswith("       ") for line in plain.split("\n")[1:]), "none of them is a message of its own"
