"""Completion in real bash, zsh and fish, with the script that the program prints."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.shared.programs import needs, patient

pytestmark = pytest.mark.engine
BASH = """\
eval "$(lumiimg completion bash)"
COMP_LINE=$1 COMP_POINT=${#1} COMP_TYPE=9 COMP_WORDS=($1) COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
function=$(complete -p lumiimg | sed 's/.*-F \\([^ ]*\\).*/\\1/')
"$function" lumiimg "${COMP_WORDS[-1]}" ""
printf '%s\\n' "${COMPREPLY[@]}"
"""
ZSH = """\
zmodload zsh/zpty
zpty -b shell zsh -f -i
zpty -w shell 'PS1="READY "; autoload -Uz compinit; compinit -u -D; eval "$(lumiimg completion zsh)"; bindkey "^I" complete-word'
zpty -w shell 'print -r -- is"-"set'
zpty -m -r shell seen '*is-set*READY *'
zpty -n -w shell "$1"$'\\t'
zpty -n -w shell $' #end'
zpty -m -r shell seen '*#end*'
print -r -- "$seen"
zpty -d shell
"""
FISH = """\
lumiimg completion fish | source
complete -C $argv[1]
"""
LINES = (
    ("lumiimg che", "check"),
    ("lumiimg check --lev", "--level"),
    ("lumiimg check --level st", "static"),
    ("lumiimg build --base rocm-6.2", "rocm-6.2.4"),
    ("lumiimg check my", "my.sif"),
)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """The environment of a user with an empty home, and `lumiimg` on PATH."""
    program = tmp_path / "bin/lumiimg"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m lumiimg "$@"\n')
    program.chmod(0o755)
    (tmp_path / "my.sif").touch()
    (tmp_path / "my.txt").touch()
    return {"HOME": str(tmp_path), "PATH": f"{program.parent}:{os.environ['PATH']}", "TERM": "dumb", "LANG": "C.UTF-8"}


def test_bash_completes(environment: dict[str, str], tmp_path: Path) -> None:
    for line, wanted in LINES:
        assert ask(["bash", "-c", BASH, "bash", line], environment, tmp_path).split() == [wanted]


def test_fish_completes(environment: dict[str, str], tmp_path: Path) -> None:
    needs("fish")
    for line, wanted in LINES:
        answer = ask(["fish", "-c", FISH, line], environment, tmp_path)
        assert [row.partition("\t")[0] for row in answer.splitlines()] == [wanted]


def test_zsh_completes(environment: dict[str, str], tmp_path: Path) -> None:
    needs("zsh")
    for line, wanted in LINES:
        seen = ask(["zsh", "-f", "-c", ZSH, "zsh", line], environment, tmp_path)
        plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|.\x08", "", seen)
        assert f"{line.rpartition(' ')[0]} {wanted}" in plain, repr(seen)


def ask(argv: list[str], environment: dict[str, str], folder: Path) -> str:
    done = subprocess.run(
        argv, cwd=folder, env=environment, capture_output=True, text=True, timeout=patient(60), check=False
    )
    assert done.stderr == ""
    return done.stdout
