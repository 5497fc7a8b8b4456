"""Helpers of all tests: real programs (a test skips if one is missing, which CI does not allow), limits and effort."""

from __future__ import annotations

import ast
import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

import pytest

from lumiimg.core.files import EPOCH
from lumiimg.engine.engine import PACKED

T = TypeVar("T")


def examples(count: int) -> int:
    """Return the number of inputs of a property test: the usual number times LUMIIMG_FUZZ (`make fuzz`)."""
    return count * int(os.environ.get("LUMIIMG_FUZZ", "1"))


EVERYTHING = bool(os.environ.get("LUMIIMG_ALL"))
"""Whether exhaustive tests run in full (`make test-all`)."""


def tenth_of(count: int) -> int:
    """Return how many of `count` cases an exhaustive test runs: all in `make test-all`, otherwise a tenth."""
    return count if EVERYTHING else max(1, count // 10)


def sampled(cases: Iterable[T], count: int) -> list[T]:
    """Return a fixed sample of the cases; all of them in `make test-all`."""
    every = list(cases)
    return every if EVERYTHING else random.Random(35).sample(every, min(count, len(every)))  # noqa: S311


def unwrapped(text: str) -> str:
    """Return the output of a command without line breaks, which depend on the terminal's width."""
    return " ".join(text.split())


def patient(limit_s: float) -> float:
    """Return a time limit times LUMIIMG_TEST_PATIENCE, which is 10 in CI, where nothing depends on speed."""
    return limit_s * float(os.environ.get("LUMIIMG_TEST_PATIENCE", "1"))


def wait_until(condition: Callable[[], object], limit_s: float = 90) -> None:
    """Wait for another process or thread, which may be slow on a busy machine."""
    deadline = time.monotonic() + patient(limit_s)
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    """Return whether a process exists and is not a zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def needs(*programs: str) -> None:
    """Skip the test if a program is not installed."""
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")


def squashed(folder: Path, target: Path, *options: str, offset: int = 0) -> Path:
    """Pack a folder with mksquashfs, with the options of a build unless others are given."""
    needs("mksquashfs")
    words = ["-noappend", "-quiet", "-no-progress", "-offset", str(offset), *(options or PACKED)]
    times = {} if "-all-time" in options else {"SOURCE_DATE_EPOCH": str(EPOCH)}
    subprocess.run(
        ["mksquashfs", folder, target, *words], check=True, stdout=subprocess.DEVNULL, env=os.environ | times
    )
    return target


HEAVY = ("msgspec", "requests", "docker", "spython", "rich.progress", "urllib3", "packaging")


def loaded_after_each(commands: Iterable[tuple[str, ...]]) -> dict[tuple[str, ...], set[str]]:
    """Return the modules loaded at the end of each command, run in a fork of a Python that has only imported `main`."""
    program = (
        "import os, sys\nfrom lumiimg.cli.main import main\n"
        f"for argv in {[list(argv) for argv in commands]!r}:\n"
        "    if os.fork():\n        os.wait()\n        continue\n"
        "    try: main(argv)\n    except SystemExit: pass\n"
        "    sys.stderr.write('MODULES ' + repr((argv, sorted(sys.modules))) + '\\n')\n"
        "    break\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    found = re.findall(r"MODULES (.*)$", done.stderr, re.MULTILINE)
    return {tuple(argv): set(names) for argv, names in map(ast.literal_eval, found)}
