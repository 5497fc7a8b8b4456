"""The Slurm of four nodes that `.ci/slurm start` starts on one machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

CONF = Path("/run/lumiimg-slurm/slurm.conf")


@pytest.fixture(scope="session")
def slurm() -> dict[str, str]:
    """The environment of somebody who uses it."""
    if not CONF.exists():
        pytest.skip("no Slurm here: .ci/slurm start")
    return os.environ | {"SLURM_CONF": str(CONF)}
