"""The ReFrame test of docs/support/, run by a real ReFrame. The `lumiimg` that it starts is a stand-in."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.shared.documents import ROOT
from tests.shared.programs import needs

pytestmark = pytest.mark.engine
IMAGE = "an 'image' $HOME `id` {b}.sif"
SAYS = json.dumps(
    {"run": [{"measurements": [{"test": "lumiimg-torch-allreduce", "points": [[8, 1.5], [1024, 84.2]]}]}]}
)
NO_YES = {1: "does not use the fast network", 3: "cannot be decided"}


def reframe(folder: Path, *options: str, says: str = "{}", code: int = 0) -> str:
    """Run ReFrame with a `lumiimg` on PATH that writes its arguments to a file, prints a text and exits with a code."""
    needs("reframe")
    standin = folder / "bin/lumiimg"
    standin.parent.mkdir(exist_ok=True)
    standin.write_text(f"#!/bin/bash\nprintf '%s\\0' \"$@\" > '{folder}/argv'\necho '{says}'\nexit {code}\n")
    standin.chmod(0o755)
    env = {**os.environ, "PATH": f"{standin.parent}:{os.environ['PATH']}", "HOME": str(folder), "RFM_COLORIZE": "0"}
    test = ROOT / "docs/support/lumiimg_check.py"
    words: list[str | Path] = ["reframe", "-c", test, "--prefix", folder / "rfm", "-S", f"image={IMAGE}", *options]
    done = subprocess.run(words, env=env, cwd=folder, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def test_it_runs_the_check_and_compares_the_bandwidth(tmp_path: Path) -> None:
    words = ["-r", "--performance-report", "-S", "site=lumi", "-S", "gb_s=85", "-S", "least_gb_s=29"]
    printed = reframe(tmp_path, *words, says=SAYS)
    assert "all_reduce_perf: 84.2 GB/s (r:85.0, l:-0.658" in printed
    assert (tmp_path / "argv").read_text().split("\0")[:-1] == [
        *("check", IMAGE, "--site", "lumi", "--nodes", "2", "--json")
    ]
    assert "failed to meet reference" in reframe(tmp_path, *words, says=SAYS.replace("84.2", "20"))
    # without GPUs nothing is measured, and nothing is compared
    assert "PASSED" in reframe(tmp_path, *words)


@pytest.mark.parametrize("code", NO_YES)
def test_what_is_not_a_yes_fails_in_words(tmp_path: Path, code: int) -> None:
    printed = reframe(tmp_path, "-r", code=code)
    assert "FAILED" in printed
    assert NO_YES[code] in printed
    assert f"(exit {code})" in printed
