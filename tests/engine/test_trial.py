"""`lumiimg trial` rehearsed on the four nodes of a real Slurm: GPUs, RCCL and the network are stand-ins, as the file
says; Slurm, the containers, the ranks, their logs and the program are real. Planted faults must be found."""

from __future__ import annotations

import json
import os
import random
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from tests.engine.conftest import NAMED, other_libfabric, prolog
from tests.shared.programs import patient, wait_until
from tests.shared.validation import validated

if TYPE_CHECKING:
    from pathlib import Path

    from lumiimg.engine.engine import Engine

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("engine")]

SITE = """\
title = "The machine of the stand-ins"
source = "this test"
date = 2026-11-26
arch = "gfx90a"
processors = "aarch64"  # planted: it is x86_64
scheduler = "Slurm"
engine = "{engine}"
[fabric]
slingshot = "12.0"
libfabric = "1.22.0"
glibc = "2.38"
source = "this test"
date = 2026-11-26
[[bind]]
path = "/var"
reason = "it is there"
[[bind]]
path = "/nowhere"  # planted
reason = "it is not"
[[partition]]
name = "four"
nodes = 4
hours = 2  # planted: it is 1
whole_nodes = true
source = "this test"
[binding]
cores = 2
group = 1
reserved = []
near = [1, 0]
source = "this test"
[[environment]]
name = "TRIAL_HARMLESS"
value = "1"
nodes = "several"
because = "it does nothing"
source = "this test"
[[measured]]
name = "TRIAL_HARMLESS"
effect = "inert"
because = "it does nothing"
source = "this test"
date = 2026-11-26
[[measured]]
name = "TRIAL_BRAKE"
value = "1"
effect = "inert"  # planted: it halves the bandwidth
because = "somebody said so"
source = "this test"
date = 2026-11-26
[[bandwidth]]
test = "all_reduce_perf"
nodes = 2
ranks = 4
from_bytes = 134217728
gb_s = 4
least_gb_s = 1
source = "STANDIN_GB_S"
remedy = ["none"]
"""


@dataclass(frozen=True)
class Rehearsal:
    """A trial, and the environment in which it runs."""

    folder: Path
    environment: dict[str, str]

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "lumiimg", "trial", *words]
        return subprocess.run(
            argv, env=self.environment, capture_output=True, text=True, check=False, timeout=patient(300)
        )

    def plan(self, *words: str) -> None:
        done = self.run("run", str(self.folder), *words)
        assert done.returncode == 0, done.stderr

    def submit(self) -> str:
        """Write the job script for what is left, and submit it; return the number of the job."""
        self.plan()
        # faults are planted on one of these nodes, whoever else uses the four
        argv = ["sbatch", "--parsable", "--partition=four", "--nodelist=nid[000001-000002]", "--output=job-%j.out"]
        script = self.folder / "job.sh"
        done = subprocess.run([*argv, script], env=self.environment, cwd=self.folder, capture_output=True, check=True)
        return done.stdout.decode().strip()

    def jobs(self) -> list[str]:
        identity = json.loads((self.folder / "plan.json").read_text())["id"]
        argv = ["squeue", "--noheader", f"--name=lumiimg-trial-{identity}", "--format=%i"]
        return subprocess.run(argv, env=self.environment, capture_output=True, text=True, check=True).stdout.split()

    def wait(self) -> None:
        wait_until(lambda: not self.jobs(), 600)

    def done(self) -> dict[str, bytes]:
        """Return the results of the finished steps."""
        found = {path.name: path.read_bytes() for path in (self.folder / "steps").glob("*.json")}
        return {name: text for name, text in found.items() if json.loads(text)["ending"] == "done"}

    def report(self) -> dict[str, Any]:
        data: dict[str, Any] = validated(self.run("report", str(self.folder), "--json").stdout, "trial")
        return data


@pytest.fixture
def rehearsal(slurm: dict[str, str], gpus: dict[str, str], engine: Engine, tmp_path: Path) -> Rehearsal:
    (tmp_path / "mine.toml").write_text(SITE.format(engine=engine.name))
    standin = {"STANDIN_NETWORK": "cxi", "STANDIN_GB_S": "4", "STANDIN_SLOW_IF": "TRIAL_BRAKE"}
    return Rehearsal(tmp_path / "trial", slurm | gpus | standin | prolog(tmp_path, NAMED))


def test_each_planted_difference_is_found_and_nothing_else(
    rehearsal: Rehearsal, engine: Engine, with_plugin: Path, tmp_path: Path
) -> None:
    bound = f"{rehearsal.environment['APPTAINER_BIND']},{other_libfabric(engine, with_plugin, tmp_path)}"
    prolog(
        tmp_path, NAMED, f"[ $SLURMD_NODENAME != nid000002 ] || echo {shlex.quote(f'export APPTAINER_BIND={bound}')}"
    )
    rehearsal.plan(str(with_plugin), "--site", str(tmp_path / "mine.toml"))
    rehearsal.submit()
    rehearsal.wait()
    report = rehearsal.report()
    rows = {row["id"]: row for row in report["rows"]}
    reported = json.dumps(report, indent=1)
    assert {name for name, row in rows.items() if row["outcome"] == "differs"} - {"site.cores"} == {
        "site.processors",
        "site.path:/nowhere",
        "site.partition:four",
        "image-1.alike",
        "image-1.rccl-version",  # the stand-in of RCCL says another than the image's own
        "image-1.maps",  # it needs fewer libraries, too
        "image-1.network",  # its libfabric has no cxi: what carried it here was the stand-in
        "image-1.with:TRIAL_BRAKE=1",
    }, reported
    assert "another libfabric.so.1 (build 00000000 instead of " in rows["image-1.alike"]["measured"]
    assert (rows["image-1.network"]["predicted"], rows["image-1.network"]["measured"]) == ("socket", "ofi-cxi")
    assert rows["image-1.with:TRIAL_BRAKE=1"]["measured"].startswith("slower: ")
    same = ("rccl", "plugin", "libfabric", "gpu-code", "socket.network", "without:TRIAL_HARMLESS")
    assert {rows[f"image-1.{name}"]["outcome"] for name in same} == {"same"}, reported
    assert rows["site.libfabric"]["why"].startswith("has no libfabric that loads with libcxi")
    assert report["stand_in"] == "GPUs were used, but no node showed an AMD GPU"
    assert report["steps_done"] == report["steps"], reported
    assert 0 < report["node_minutes"] < report["node_minutes_most"]
    text = (rehearsal.folder / "trial.json").read_text()
    assert not any(word in text for word in (str(tmp_path), os.environ["USER"], "nid00000"))
    again = rehearsal.run("run", str(rehearsal.folder))
    assert again.returncode == 1, "nothing is left to be done: the table, and its answer"
    assert not rehearsal.jobs()


def test_a_trial_that_is_killed_goes_on_where_it_was_and_leaves_no_job(
    rehearsal: Rehearsal, demo: Path, tmp_path: Path
) -> None:
    rehearsal.plan(str(demo), "--site", str(tmp_path / "mine.toml"), "--node-minutes", "1000")
    kept: dict[str, bytes] = {}
    drawn = random.Random(int(os.environ.get("LUMIIMG_TEST_SEED", "1")))  # noqa: S311 - no secret
    for number in range(int(os.environ.get("LUMIIMG_TEST_KILLS", "2"))):
        job = rehearsal.submit()
        wait_until(lambda: list((rehearsal.folder / "jobs").glob(f"{job}.json")) or not rehearsal.jobs(), 60)  # noqa: B023
        time.sleep(drawn.uniform(0, 20))
        # as the owner of a job cancels it, or so that none of its processes can print anything
        how = ["--signal=KILL", "--full"] if number % 5 == 1 else []
        subprocess.run(["scancel", *how, job], env=rehearsal.environment, check=False)
        rehearsal.wait()
        done = rehearsal.done()
        assert kept.items() <= done.items(), "what was done is kept"
        kept = done
        rehearsal.report()
    rehearsal.submit()
    rehearsal.wait()
    report = rehearsal.report()
    assert report["steps_done"] == report["steps"], json.dumps(report, indent=1)
    assert kept.items() <= rehearsal.done().items()
    assert not list((rehearsal.folder / "steps").glob("*.part"))
