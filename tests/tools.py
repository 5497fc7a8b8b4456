"""Real programs that tests ask: where one is missing, CI fails and anybody else's run skips."""

from __future__ import annotations

import os
import shutil

import pytest


def needs(*programs: str) -> None:
    """Skip a test whose program is not here; in CI every program has to be here."""
    for program in programs:
        if shutil.which(program) is None:
            if os.environ.get("CI") == "true":
                pytest.fail(f"{program} is not installed, and CI must not skip")
            pytest.skip(f"{program} is not installed")
