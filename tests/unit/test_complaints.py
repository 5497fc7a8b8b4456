"""What stops a command: at a terminal an error and a hint, wrapped and coloured; elsewhere one line for tools."""

from __future__ import annotations

import os
import pty
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.shared import fabric_builder

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
    "bind image.sif": ("--host", "lumiimg host scan -o host.json"),
    "check image.sif --sbatch=-A": ("--sbatch", "--nodes N"),
    "job /etc/passwd --site lumi": ("", ""),
    "run image.sif python train.py": ("no command 'run'", "lumiimg --help"),
    "build vllm": ("vllm", "--add vllm"),
    "build --base rocm-6.2.4 --add vllm 0.10.1": ("0.10.1", "--add vllm==0.10.1"),
    "build --base rocm/6.2.4 --add vllm": ("rocm/6.2.4", "did you mean rocm-6.2.4"),
    "build --base rocm-6.2.4 --add vllm -o .": ("is a folder", "names the image file"),
    "check my": ("my", "did you mean my.sif?"),
    "check mi.sif": ("mi.sif", "did you mean my.sif?"),
    "check *.nosif": ("*.nosif", "the images here: my.sif"),
    "check rocm/pytorch:latest": ("rocm/pytorch:latest", "pull image.sif docker://rocm/pytorch:latest"),
    "check image.sif --nodes two": ("'two'", "lumiimg check --help"),
    "check image.sif --site LUMI": ("'LUMI'", "did you mean lumi?"),
    "check image.sif -v": ("did you mean --verbose?", ""),
    "check image.sif --level full": ("'full'", "'static', 'probe', 'run'"),
    "log notes.yaml": ("notes.yaml", "lumiimg log slurm-123.out"),
    "log data.json": ("data.json", "lumiimg log slurm-123.out"),
    "log my.sif/lib64/libc.so.6": ("is not text", "lumiimg log reads what a job printed"),
    "drift host.json image.sif other.sif": ("other.sif", "--image image.sif other.sif"),
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
@pytest.mark.usefixtures("clean_home")
def test_a_slip_has_an_error_and_a_hint_at_a_terminal_and_one_line_elsewhere(
    slip: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    fabric_builder.image(tmp_path / "my.sif")
    (tmp_path / "notes.yaml").write_text("a: 1\n")
    (tmp_path / "data.json").write_text('{"a": 1}\n')
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


@pytest.mark.parametrize(
    "slip",
    ["check my", "check mi.sif"],
)
@pytest.mark.usefixtures("clean_home")
def test_the_command_of_a_hint_works(slip: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    fabric_builder.image(tmp_path / "my.sif")
    hint = at_a_terminal(slip.split(), 200)[1].replace("\r", "").partition("hint:")[2].removeprefix("\x1b[0m ")
    command = re.search(r"lumiimg ((?:--?|\w)[^;`]*?)(?: shows |$|\n)", hint)
    found = re.search(r"did you mean (\S+)\?", hint)
    words = command[1].split() if command else ["check", found[1] if found else "nothing"]
    done = subprocess.run([sys.executable, "-m", "lumiimg", *words], capture_output=True, text=True, check=False)
    assert done.returncode in {0, 3}, (words, done.stderr)


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
    head, hint = "\x1b[1;31merror:\x1b[0m ", "\n\x1b[1;36mhint:\x1b[0m "
    plain, _, told = shown.replace("\r\n", "\n").removeprefix(head).removesuffix("\n").rpartition(hint)
    assert all(line.isprintable() for line in [*plain.split("\n"), *told.split("\n")])
    assert all(line.startswith("       ") for line in plain.split("\n")[1:]), "none of them is a message of its own"
    assert all(line.startswith("      ") for line in told.split("\n")[1:])
