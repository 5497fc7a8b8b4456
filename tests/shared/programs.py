"""What tests share: real programs that they ask (where one is missing a test skips, which CI does not allow), effort."""

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
    """Return how many inputs a property test makes: LUMIIMG_FUZZ times as many as usual (`make fuzz`)."""
    return count * int(os.environ.get("LUMIIMG_FUZZ", "1"))


EVERYTHING = bool(os.environ.get("LUMIIMG_ALL"))
"""Whether what is exhaustive runs whole (`make test-all`)."""


def tenth_of(count: int) -> int:
    """Return how many of something exhaustive a test takes: all in `make test-all`, else a tenth."""
    return count if EVERYTHING else max(1, count // 10)


def sampled(cases: Iterable[T], count: int) -> list[T]:
    """Return some of the cases of a product, the same each time; all of them in `make test-all`."""
    every = list(cases)
    return every if EVERYTHING else random.Random(35).sample(every, min(count, len(every)))  # noqa: S311


def unwrapped(text: str) -> str:
    """Return what a command printed, without the line breaks that the width of a terminal made."""
    return " ".join(text.split())


def patient(limit_s: float) -> float:
    """Return a limit of a test, times LUMIIMG_TEST_PATIENCE: CI gives ten times the usual, as nothing there depends on speed."""
    return limit_s * float(os.environ.get("LUMIIMG_TEST_PATIENCE", "1"))


def wait_until(condition: Callable[[], object], limit_s: float = 90) -> None:
    """Wait for what another process or thread does; on a busy machine each step of it takes its time."""
    deadline = time.monotonic() + patient(limit_s)
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    """Whether a process is there, and not waiting to be taken note of."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def needs(*programs: str) -> None:
    """Skip a test whose program is not here."""
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")


def squashed(folder: Path, target: Path, *options: str, offset: int = 0) -> Path:
    """Pack a folder as a build does, or with other options of mksquashfs."""
    needs("mksquashfs")
    words = ["-noappend", "-quiet", "-no-progress", "-offset", str(offset), *(options or PACKED)]
    times = {} if "-all-time" in options else {"SOURCE_DATE_EPOCH": str(EPOCH)}
    subprocess.run(
        ["mksquashfs", folder, target, *words], check=True, stdout=subprocess.DEVNULL, env=os.environ | times
    )
    return target


HEAVY = ("msgspec", "requests", "docker", "spython", "rich.progress", "urllib3", "packaging")


def loaded_after_each(commands: Iterable[tuple[str, ...]]) -> dict[tuple[str, ...], set[str]]:
    """Return the modules that each command has loaded at its end: each is a fork of one Python that has loaded `main` only."""
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
