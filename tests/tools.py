"""Real programs that tests ask: where one is missing a test skips, which CI does not allow (tests/conftest.py)."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest


def needs(*programs: str) -> None:
    """Skip a test whose program is not here."""
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")


def needs_mksquashfs(*wanted: int) -> None:
    """Skip a test whose options this mksquashfs does not know yet."""
    needs("mksquashfs")
    printed = subprocess.run(["mksquashfs", "-version"], capture_output=True, text=True, check=False).stdout
    version = re.search(r"version (\d+)\.(\d+)", printed)
    if version is None or (int(version[1]), int(version[2])) < wanted:
        pytest.skip(f"mksquashfs is older than {'.'.join(map(str, wanted))}")
