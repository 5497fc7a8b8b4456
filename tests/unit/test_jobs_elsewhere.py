"""Job scripts for machines beyond LUMI: what they ask for, what they do with hostile words, and that they say who never ran them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from lumiimg.catalog.sites import find_site
from lumiimg.cli.main import main
from lumiimg.core.errors import ExitCode
from tests.shared.job_scripts import Capture, job, told

# ALCF, frameworks/pytorch.md and running-jobs-aurora.md
FOR_TORCH = "list:4-7:8-11:12-15:16-19:20-23:24-27:56-59:60-63:64-67:68-71:72-75:76-79"


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """A folder that is an image."""
    folder = tmp_path / "image"
    (folder / "bin").mkdir(parents=True)
    (folder / "etc").mkdir()
    (folder / "etc/os-release").write_text("ID=debian\nVERSION_ID=13\n")
    shutil.copy("/bin/true", folder / "bin/true")
    return folder


FILE_SYSTEMS = {"frontier": {"/lustre/orion", "/ccs/home", "/ccs/proj"}, "aurora": {"/lus/flare", "/home"}}


def test_a_script_says_that_it_never_ran_there_and_binds_the_file_systems_of_its_site(
    image: Path, capsys: Capture
) -> None:
    for site, folders in FILE_SYSTEMS.items():
        data = told(image, capsys, "--bind", "/data:/in:ro", site=site)
        head = re.split(r"^#(?:SBATCH|PBS)", data["script"], flags=re.MULTILINE)[0]
        assert f"never run on {site} by the project" in " ".join(head.replace("\n#", " ").split())
        assert folders <= {bind["target"] for bind in data["binds"]}
        assert all(bind.source for bind in find_site(site, {}).binds)
        for word in (*folders, "/data:/in:ro"):
            assert f" --bind {word}" in data["script"]


def test_frontier_is_asked_for_the_rendezvous_that_its_variables_use(image: Path) -> None:
    several = job(image, "--nodes", "2", site="frontier")
    assert "#SBATCH --network=disable_rdzv_get\n" in several
    assert "export FI_CXI_RDZV_PROTO=alt_read" in several
    one = job(image, site="frontier")
    assert "disable_rdzv_get\n" not in one
    assert "alt_read" not in one
    assert "apptainer exec" in several


def test_the_hooks_of_alps_are_listed_where_no_job_script_is_written(capsys: Capture) -> None:
    assert main(["show", "alps"]) == ExitCode.GOOD
    assert "com.hooks.aws_ofi_nccl.enabled" in capsys.readouterr().out


def test_aurora_is_asked_through_pbs(image: Path) -> None:
    options = ("--nodes", "4", "--time", "00:30:00", "--account", "mine", "--partition", "debug-scaling")
    script = job(image, *options, site="aurora")
    asked = re.findall(r"^#PBS (.*)$", script, re.MULTILINE)
    assert asked == [
        "-q debug-scaling",
        "-A mine",
        "-l select=4",
        "-l walltime=00:30:00",
        "-l filesystems=home:flare",
        "-l place=scatter",
        "-k doe",
    ]
    assert script.index("module load apptainer") < script.index("set -euo pipefail")
    assert "Copper" in script
    assert "NCCL_DEBUG" not in script
    days = job(image, "--partition", "capacity", "--time", "3-00:00:00", site="aurora")
    assert "walltime=72:00:00" in days, "days are hours to PBS"


def test_what_is_for_mpis_ranks_is_not_set_for_others(image: Path) -> None:
    assert "CCL_KVS_MODE" in job(image, "--nodes", "2", "--framework", "ddp", site="aurora")
    assert "CCL_PROCESS_LAUNCHER" not in job(image, "--framework", "vllm", site="aurora")


STAND_INS = Path("tests/fixtures/jobs/pbs").resolve()
"""PALS's mpiexec starts the tasks here one after the other, apptainer runs the command as it is."""


def submitted(script: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """Run a script for Aurora on two nodes, with stand-ins for mpiexec, apptainer and lumiimg."""
    (tmp_path / "job.sh").write_text(script)
    nodes = tmp_path / "nodes"
    nodes.write_text("x4117c4s0b0n0.hostmgmt.example\nx4117c4s1b0n0.hostmgmt.example\n")
    environment = {
        "PATH": f"{STAND_INS}:{os.environ['PATH']}",
        "PBS_NODEFILE": str(nodes),
        "PBS_JOBID": "4711.aurora-pbs",
        "PBS_O_WORKDIR": str(tmp_path),
    }
    shell = ["bash", "-c", f'module() {{ :; }}; export -f module; bash "{tmp_path}/job.sh"']
    return subprocess.run(shell, env=environment, capture_output=True, text=True, check=False)


def said(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Return what the ranks of a job printed, one after another."""
    return [line.partition(": ")[2] for line in done.stdout.splitlines() if line.startswith("x4117")]


def test_auroras_script_starts_each_rank_with_its_numbers_and_cores(image: Path, tmp_path: Path) -> None:
    line = "$RANK $LOCAL_RANK $WORLD_SIZE $CORES $MASTER_ADDR $CCL_LOG_LEVEL|$1"
    words = ("sh", "-c", f'echo "{line}"; exit 7', "sh", "it's")
    options = ("--nodes", "2", "--framework", "ddp")
    done = submitted(job(image, *options, site="aurora", command=words), tmp_path)
    assert done.returncode == 7, done.stderr
    address = "x4117c4s0b0n0.hsn.cm.aurora.alcf.anl.gov"
    cores = FOR_TORCH.removeprefix("list:").split(":")
    assert said(done) == [f"{rank} {rank % 12} 24 {cores[rank % 12]} {address} info|it's" for rank in range(24)]
    log = tmp_path / "lumiimg-4711" / "ranks.log"
    assert len(log.read_text().splitlines()) == 24
    assert f"read: log {log}" in done.stdout


def test_lightning_makes_the_right_rank_where_it_knows_no_scheduler(image: Path, tmp_path: Path) -> None:
    """As LightningEnvironment and its DDP strategy have it: node_rank * devices + local_rank."""
    words = ("sh", "-c", 'echo "$RANK $((NODE_RANK * 12 + LOCAL_RANK)) $MASTER_PORT"')
    script = job(image, "--nodes", "2", "--framework", "lightning", site="aurora", command=words)
    assert said(submitted(script, tmp_path)) == [f"{rank} {rank} 29422" for rank in range(24)]
    assert "SLURM" not in script
    assert "NODE_RANK" not in job(image, "--framework", "ddp", site="aurora")
    assert "NODE_RANK" not in job(image, "--framework", "lightning", site="lumi")
