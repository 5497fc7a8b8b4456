"""The table of engine differences, tested with the engine of this machine: each row that can be tried is tried."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.shared.programs import needs, patient

if TYPE_CHECKING:
    from lumiimg.engine.engine import Engine

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("engine")]
# simulates, for an ordinary user, a machine on which /etc/subuid lists nobody
NOBODY_HAS_IDS = "mount --bind {nobody} /etc/subuid && exec setpriv --ambient-caps=-all --inh-caps=-all "
ROOT = Path(__file__).parents[2]


def shown(*words: str | Path) -> dict[str, str]:
    """Return what is printed about each row: `same`, `other` or `open`."""
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=ROOT, timeout=patient(300))
    assert done.returncode == 0, done.stdout + done.stderr
    return {line.split()[1].rstrip(":"): line.split()[0] for line in done.stdout.splitlines()[1:]}


def test_each_row_is_as_the_engine_of_this_machine_does_it(engine: Engine, bare: Path, tmp_path: Path) -> None:
    del engine
    needs("mksquashfs", "unshare", "setpriv")
    words = [sys.executable, "-m", "tools.engine_behaviour", str(bare)]
    found = shown(*words)
    if found["fakeroot-without-ids"] == "open":
        (tmp_path / "nobody").touch()
        script = NOBODY_HAS_IDS.format(nobody=tmp_path / "nobody") + shlex.join(words)
        own = shown("unshare", "--map-current-user", "--mount", "--keep-caps", "sh", "-c", script)
        found["fakeroot-without-ids"] = own["fakeroot-without-ids"]
    assert len(found) > 10
    assert {*found.values()} == {"same"}
