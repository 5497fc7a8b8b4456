"""Real programs that tests ask: where one is missing, CI fails and anybody else's run skips."""

from __future__ import annotations

import os
import shutil

import pytest


def need(*programs: str) -> str:
    """Return the path of the first of these programs that is there."""
    for program in programs:
        found = shutil.which(program)
        if found is not None:
            return found
    message = f"none of {', '.join(programs)} is on PATH"
    if os.environ.get("CI") == "true":
        pytest.fail(f"{message}, and CI must not skip")
    pytest.skip(message)
