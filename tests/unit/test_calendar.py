"""No answer changes with the day: commands have the exit codes of today by a clock that is months and years ahead."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from lumiimg.catalog.catalogue import open_catalogue
from lumiimg.core.errors import ExitCode
from tests.shared import fabric_builder
from tests.shared.programs import EVERYTHING, needs

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

CLOCKS = ("+0d", "+100d", "+1095d")
RUN = """
import io, json, sys
from lumiimg.cli.main import main
codes, out = [], sys.stdout
for argv in json.load(sys.stdin):
    sys.stdout = io.StringIO()
    try: codes.append(main(argv))
    except SystemExit as error: codes.append(error.code)
json.dump(codes, out)
"""
BASES = ("rocm-6.1.2", "rocm-6.4.4", "rocm-7.0", "rocm-7.2.4", "rocm-7.14.0", "lumi-multitorch-u24r70")


def codes_by(clock: str, commands: Sequence[Sequence[str]]) -> list[int]:
    environment = {name: value for name, value in os.environ.items() if name != "LUMIIMG_TODAY"}
    done = subprocess.run(
        ["faketime", "-f", clock, sys.executable, "-c", RUN],
        input=json.dumps(commands),
        env=environment | {"DONT_FAKE_MONOTONIC": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


@pytest.mark.usefixtures("clean_home")
def test_exit_codes_are_the_same_in_a_hundred_days_and_in_three_years(tmp_path: Path) -> None:
    """A process per clock: some of the commands here, all of them in `make test-all`."""
    needs("faketime")
    image = str(fabric_builder.bundled(tmp_path / "image"))
    info = tmp_path / "image/opt/rocm/.info"
    info.mkdir(parents=True)
    (info / "version").write_text("6.4.4-1\n")
    node = str(fabric_builder.snapshot(fabric_builder.host(tmp_path / "node"), taken="2026-11-20T00:00:00Z"))
    log = tmp_path / "job.out"
    log.write_text("NCCL INFO NET/OFI Selected provider is cxi, fabric is cxi (found 4 nics)\n")
    lumi, on_node = ["--site", "lumi"], ["--host", node]
    request = ["--base", "rocm-6.4.4", *lumi]
    good = [["explain", *request], ["check", image, "--level", "static", *lumi]]
    more = [
        *(
            ["explain", "--base", base, "--add", "pytorch", *fabric, *lumi]
            for base in BASES
            for fabric in ([], ["--fabric", "bundled"])
        ),
        *(["explain", "--recipe", recipe] for recipe in open_catalogue({"HOME": str(tmp_path)}).recipe_names()),
        ["explain", "--base", "rocm-7.0", "--add", "vllm==0.30.0", "--offline", *lumi],
        ["explain", "--add", "vllm", *lumi],
        ["explain", image, *lumi],
        ["explain", image, *on_node],
        ["lock", "--recipe", "demo", "--offline", "-o", str(tmp_path / "lock.toml")],
        ["check", image, "--level", "static", *on_node],
        ["check", image, "--level", "static", *lumi, *on_node],
        ["adapt", image, *lumi, "--dry-run"],
        ["bind", image, *on_node, *lumi],
        ["drift", node, node, "--image", image, *lumi],
        ["job", image, *lumi, "--", "true"],
        ["build", *request, "--add", "pytorch", "--dry-run"],
        ["log", str(log), *lumi],
        ["show", "lumi"],
        ["list"],
    ]
    commands = good + (more if EVERYTHING else [])
    by_clock = {clock: dict(zip(map(" ".join, commands), codes_by(clock, commands), strict=True)) for clock in CLOCKS}
    today = by_clock["+0d"]
    assert {today[" ".join(words)] for words in good} == {ExitCode.GOOD}, today
    assert all(found == today for found in by_clock.values()), by_clock
