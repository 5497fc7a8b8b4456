"""Real programs that tests ask: where one is missing a test skips, which CI does not allow (tests/conftest.py)."""

from __future__ import annotations

import shutil

import pytest


def needs(*programs: str) -> None:
    """Skip a test whose program is not here."""
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
