"""One style for all commands: what --quiet leaves, and what `lumiimg` alone prints."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from lumiimg.cli import start
from lumiimg.cli.commands import make_parser
from lumiimg.cli.main import main
from lumiimg.core.errors import ExitCode
from tests.shared import fabric_builder

Capture = pytest.CaptureFixture[str]
FIXTURES = Path(__file__).parents[1] / "fixtures"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an image that fits its node, one that does not, and a snapshot (tests/shared/fabric_builder.py)."""
    return fabric_builder.stand_ins(tmp_path_factory.mktemp("place"))


ANSWERS = (
    "check bare --level static",
    "explain old --host host.json",
    "explain --base rocm-6.2.4 --add sglang --site lumi",
    "explain --add vllm --site lumi",
    "drift host.json now.json --image fits old",
    "ldd fits /usr/lib64/librccl-net.so",
    "module fits -o modules --host host.json --force",
    "build --recipe demo --dry-run",
    "host scan",
    "cache ls",
    f"log {FIXTURES}/nccl/rccl-2.13.4-plugin-absent.log",
)


@pytest.mark.usefixtures("clean_home")
def test_quiet_leaves_the_answer_in_one_line_and_the_exit_code(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setenv("COLUMNS", "40")
    for words in map(str.split, ANSWERS):
        loud = main(words)
        whole = " ".join(capsys.readouterr().out.split())
        assert main([*words, "--quiet"]) == loud, words
        captured = capsys.readouterr()
        assert (captured.err, captured.out.count("\n")) == ("", 1), words
        if "ldd" not in words:  # one file is printed as a tree
            parts = captured.out.strip().split("; ")  # of how many ranks a log is, stands further down without --quiet
            assert all(part in whole for part in parts), "the same words as without --quiet"


def test_what_is_written_has_only_letters_that_a_terminal_has(place: Path) -> None:
    def written(*words: str) -> str:
        environment = os.environ | {"PYTHONIOENCODING": "ascii", "NO_COLOR": "1"}
        command = [sys.executable, "-m", "lumiimg", *words]
        return subprocess.run(
            command, cwd=place, env=environment, capture_output=True, encoding="ascii", check=False
        ).stdout

    own = written("explain", "fits", "--host", "host.json")
    assert "`-- " in own, "marks and lines of ours are others"
    assert "\\u" not in own
    assert "\\x" not in own
    (place / "log.out").write_bytes("nöde:1:1 [0] NCCL INFO Using network Socket\n".encode())
    assert "n\\xf6de" in written("log", "log.out")


# -- lumiimg alone --


def alone(monkeypatch: pytest.MonkeyPatch, folder: Path, capsys: Capture, environment: Mapping[str, str]) -> str:
    monkeypatch.chdir(folder)
    for name in ("SLURM_JOB_ID", "SLURM_JOB_NUM_NODES", "LUMIIMG_ENGINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", "")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert main([]) == ExitCode.GOOD
    text = capsys.readouterr().out
    assert text.count("\n") <= 24
    assert max(map(len, text.splitlines())) <= 80
    return text


def test_alone_it_proposes_what_suits_what_is_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    assert "can this machine build images?" in alone(monkeypatch, tmp_path, capsys, {})
    (tmp_path / "bin").mkdir()
    engine = tmp_path / "bin/apptainer"
    engine.write_text("#!/bin/sh\ntouch ran\n")
    engine.chmod(0o755)
    path = {"PATH": str(tmp_path / "bin")}
    for name in ("slurm-7.out", "slurm-12.out", "it's.sif", "-v.sif", "a\nb.sif", "lumiimg.lock", "Dockerfile"):
        (tmp_path / name).touch()
    os.utime(tmp_path / "slurm-12.out", (1, 1))
    (tmp_path / "slurm-13.out").symlink_to("nowhere")
    text = alone(monkeypatch, tmp_path, capsys, {**path, "SLURM_JOB_ID": "1", "SLURM_JOB_NUM_NODES": "4"})
    assert "lumiimg log slurm-7.out" in text, "the newest"
    assert """lumiimg check 'it'"'"'s.sif' --nodes 4""" in text
    assert "lumiimg build --locked" in text
    assert text.count("\n      lumiimg ") == 6, "three jobs, and three proposals"
    assert not (tmp_path / "ran").exists(), "nothing is run"


def test_alone_it_looks_at_a_bounded_part_of_a_huge_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    (tmp_path / "a.txt").touch()
    with os.scandir(tmp_path) as listing:
        (entry,) = listing
    seen = itertools.count()
    endless = (entry for _ in seen)
    monkeypatch.setattr(os, "scandir", lambda: contextlib.nullcontext(endless))
    alone(monkeypatch, tmp_path, capsys, {})
    assert next(seen) <= start._MAX_NAMES + 1


# -- options --

WITHOUT_ANSWER = {"completion", "node"}
"""Commands for a shell, and for lumiimg itself."""


def options() -> Iterator[tuple[str, argparse.Action]]:
    pending = [("", make_parser())]
    while pending:
        name, parser = pending.pop()
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                pending += [(f"{name} {below}".strip(), found) for below, found in action.choices.items()]
            elif name and action.help != argparse.SUPPRESS:
                yield name, action


def test_every_command_with_an_answer_can_be_asked_for_the_answer_alone() -> None:
    has: dict[str, set[str]] = defaultdict(set)
    for name, action in options():
        has[name].update(action.option_strings)
    leaves = {name for name in has if not any(other.startswith(f"{name} ") for other in has)}
    for option in ("--quiet", "--verbose", "--json"):
        assert {name for name in leaves if option not in has[name]} == WITHOUT_ANSWER, option


def test_the_help_of_every_option_is_whole() -> None:
    of_people = ((name, str(action.help)) for name, action in options() if name not in WITHOUT_ANSWER)
    assert not [(name, words) for name, words in of_people if not words or words.rstrip().endswith(":")]
