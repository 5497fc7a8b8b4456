"""`lumiimg job` in this process: the script that it writes, what it prints as JSON, the line by which it refuses."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from lumiimg.cli.main import main
from lumiimg.core.errors import ExitCode

Capture = pytest.CaptureFixture[str]
TRAIN = ("python3", "train.py")


def short(image: Path, *words: str, site: str = "lumi", command: tuple[str, ...] = TRAIN) -> str:
    """Return the script that is written by default."""
    path = image.parent / "job.sh"
    path.unlink(missing_ok=True)
    assert main(["job", str(image), "--site", site, *words, "-o", str(path), "--", *command]) == ExitCode.GOOD
    assert os.access(path, os.X_OK)
    return path.read_text()


def job(image: Path, *words: str, site: str = "lumi", command: tuple[str, ...] = TRAIN) -> str:
    """Return the script with all guards and reasons."""
    return short(image, "--robust", "--annotate", *words, site=site, command=command)


def told(
    image: Path, capsys: Capture, *words: str, site: str = "lumi", command: tuple[str, ...] = TRAIN
) -> dict[str, Any]:
    """Return what is printed as JSON of the same script."""
    capsys.readouterr()
    argv = ["job", str(image), "--site", site, "--robust", "--annotate", *words, "--json", "--", *command]
    assert main(argv) == ExitCode.GOOD
    data: dict[str, Any] = json.loads(capsys.readouterr().out)
    return data


def refused(image: Path, capsys: Capture, *words: str, site: str = "lumi", code: ExitCode = ExitCode.NO) -> str:
    """Return the one line that says why not; a script that was there stays."""
    path = image.parent / "job.sh"
    path.write_text("before\n")
    capsys.readouterr()
    argv = ["job", str(image), "--site", site, "-o", str(path), *words]
    try:
        answer = main(argv if "--" in words else [*argv, "--", "python", "train.py"])
    except SystemExit as error:
        answer = error.code if isinstance(error.code, int) else 70
    assert answer == code
    assert path.read_text() == "before\n"
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    return said


def directives(script: str) -> list[str]:
    """Return what Slurm is asked for."""
    return re.findall(r"^#SBATCH (.*)$", script, re.MULTILINE)
