"""Job scripts, really submitted: four nodes of a Slurm on one machine, an image with torch for CPUs, two nodes per job.

The scheduler, the container, torch and its collectives (gloo), torchrun, Ray, Lightning and the cores are real: a node
has two cores, which the site of these tests gives to two ranks, crosswise. The GPUs are stand-ins: scripts request two,
but the nodes have none, so sbatch gets 0. So are the node names (all four are this machine: libnss-wrapper gives each a
loopback address), and vLLM, of which a small program has the command line.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from lumiimg.catalog import sites
from lumiimg.core.errors import ExitCode
from tests.engine.conftest import FOUR_NODES, built, debian_12, lumiimg
from tests.shared.programs import EVERYTHING, patient, unwrapped, wait_until

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("engine")]

WHEELS = ("torch==2.13.0+cpu", "numpy", "ray", "lightning")
PYTHON = "3.11"
LAYER = """\
kind = "layer"
summary = "What the jobs of the tests run"
source = "the tests"
date = 2026-11-21
files = [{files}]
"""
# unpacking wheels does not create their scripts; vLLM's is a stand-in
POST = """\
site=/usr/local/lib/python3.11/dist-packages
mkdir -p "$site"
for wheel in "$LAYER_FILES"/*.whl; do python3 -m zipfile -e "$wheel" "$site"; done
chmod -R a+rX "$site"
find "$site/ray" -type f -path '*/core/src/ray/*' -exec chmod a+x {} +
cat >/usr/local/bin/ray <<'END'
#!/usr/bin/python3
from ray.scripts.scripts import main
main()
END
cat >/usr/local/bin/vllm <<'END'
#!/usr/bin/python3
import os, sys
os.execvp("python3", ["python3", "work.py", *sys.argv[1:]])
END
chmod 755 /usr/local/bin/ray /usr/local/bin/vllm
ln -s python3 /usr/bin/python
"""
# torch requests IPv6 addresses, mapped if there are none, and libnss-wrapper does not map them
HOSTS = "".join(f"{v6}127.0.1.{number} nid00000{number}\n" for number in range(1, 5) for v6 in ("", "::ffff:"))
SITE = f"""{FOUR_NODES}
[[environment]]
name = "LD_PRELOAD"
value = "libnss_wrapper.so"
nodes = "any"
because = "the nodes of the tests are names of one machine"
source = "the tests"

[[environment]]
name = "NSS_WRAPPER_HOSTS"
value = "$LUMIIMG_JOB/../hosts"
nodes = "any"
because = "with its table of names"
source = "the tests"

[[environment]]
name = "GLOO_SOCKET_IFNAME"
value = "lo"
nodes = "several"
because = "one machine has no network between its nodes"
source = "the tests"

[[environment]]
name = "OF_RANK"
value = "/tmp/of-$SLURM_LOCALID"
nodes = "any"
because = "a variable of each rank"
source = "the tests"
"""
SEEN = """
import json, os, re, sys
def seen():
    allowed = re.search(r"Cpus_allowed_list:\\s*(\\S+)", open("/proc/self/status").read())[1]
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "OF_RANK", "SLURMD_NODENAME",
             "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "OMP_NUM_THREADS", "SINGULARITY_BIND")
    return {"cores": allowed, "argv": sys.argv[1:]} | {name: os.environ.get(name) for name in names}
"""
TORCH = (
    SEEN
    + """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(total)
everyone = [None] * dist.get_world_size()
dist.all_gather_object(everyone, seen() | {"total": total.item(), "in_group": dist.get_rank()})
if dist.get_rank() == 0:
    json.dump(everyone, open("seen.json", "w"))
dist.destroy_process_group()
"""
)
LIGHTNING = (
    SEEN
    + """
import lightning, torch
from lightning.pytorch.demos.boring_classes import BoringModel
trainer = lightning.Trainer(accelerator="cpu", devices=2, num_nodes=2, strategy="ddp", max_steps=2, logger=False,
                            enable_checkpointing=False, enable_progress_bar=False, use_distributed_sampler=False)
trainer.fit(BoringModel())
mine = seen() | {"in_group": trainer.global_rank, "total": trainer.world_size,
                 "environment": type(trainer.strategy.cluster_environment).__name__}
everyone = [None] * trainer.world_size
torch.distributed.all_gather_object(everyone, mine)
if trainer.is_global_zero:
    json.dump(everyone, open("seen.json", "w"))
torch.distributed.destroy_process_group()  # else a thread of gloo may abort the process at its end
"""
)
RAY = (
    SEEN
    + """
import ray
ray.init(address=os.environ["RAY_ADDRESS"], log_to_driver=False)
nodes = [node for node in ray.nodes() if node["Alive"]]
@ray.remote(num_gpus=1)
def square(n):
    return n * n
json.dump([seen() | {"addresses": sorted(node["NodeManagerAddress"] for node in nodes),
                     "gpus": ray.cluster_resources()["GPU"],
                     "squares": ray.get([square.remote(n) for n in range(8)])}], open("seen.json", "w"))
"""
)


@pytest.fixture(scope="session")
def with_torch(images: Path) -> Path:
    """Debian 12 with torch for CPUs, Ray and Lightning; its layers are cached, so it is built once."""
    wheels = images / "wheels"
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:", "--python-version", PYTHON]
    done = subprocess.run([*pip, "--dest", wheels, *WHEELS], capture_output=True, text=True, check=False)
    if done.returncode:
        message = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        pytest.skip(f"pip finds no {', '.join(WHEELS)} for Python {PYTHON} here; it says: {message}")
    layers = images / "layers-of-jobs"
    work = layers / "work"
    work.mkdir(parents=True)
    # files of a layer must have plain names
    names = [f.rename(work / f"wheel-{n:02}.whl").name for n, f in enumerate(sorted(wheels.glob("*.whl")))]
    (work / "layer.toml").write_text(LAYER.format(files=", ".join(f'"{name}"' for name in names)))
    (work / "post.sh").write_text(POST)
    image = built(images / "jobs.sif", "--layers", layers, "--base", debian_12(layers), "--add", work.name)
    for name in names:
        (work / name).unlink()
    return image


@dataclass
class Ended:
    """A job that ran."""

    code: int
    out: str
    folder: Path
    seen: list[dict[str, Any]]
    """What the ranks saw, by rank."""


def submit(
    folder: Path,
    image: Path,
    slurm: dict[str, str],
    program: str,
    *options: str,
    robust: bool = False,
) -> Ended:
    """Write a script with `lumiimg job`, submit it, and wait for its end."""
    (folder / "four.toml").write_text(SITE)
    (folder / "hosts").write_text(HOSTS)
    (folder / "work.py").write_text(program)
    command = ["vllm", "serve"] if "vllm" in options else ["python", "work.py"]
    words: list[str | Path] = [
        "--site",
        folder / "four.toml",
        "--nodes",
        "2",
        *options,
        *(["--robust"] if robust else []),
    ]
    ran = lumiimg("job", image, *words, "-o", folder / "job.sh", "--", *command, "it's one word")
    assert ran.code == ExitCode.GOOD, ran.err
    # the shell's own binds must not reach the container, and the lumiimg on PATH is that of the tests
    bound = {"SINGULARITY_BIND": "/nonexistent"} if robust else {}
    env = slurm | bound | {"PATH": f"{lumiimg_on_path(folder)}:{slurm['PATH']}"}
    done, text = waited(folder, env)
    assert "Submitted batch job" in done.stdout, done.stderr
    (job,) = folder.glob("lumiimg-*")
    seen = json.loads((folder / "seen.json").read_text()) if (folder / "seen.json").exists() else []
    return Ended(done.returncode, text, job, sorted(seen, key=lambda rank: rank.get("in_group", 0)))


def waited(folder: Path, env: dict[str, str], *options: str) -> tuple[subprocess.CompletedProcess[str], str]:
    """Submit job.sh and wait for its end; return the result of sbatch, and the output of the job."""
    out = folder / "job.out"
    argv = ["sbatch", "--wait", "--gpus-per-node=0", "--time=5", f"--output={out}", *options, "job.sh"]
    done = subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=patient(400))
    return done, out.read_text() if out.exists() else ""


def lumiimg_on_path(folder: Path) -> Path:
    program = folder / "bin" / "lumiimg"
    program.parent.mkdir()
    root = Path(__file__).parents[2]
    program.write_text(f'#!/bin/sh\nPYTHONPATH={root} exec {sys.executable} -m lumiimg "$@"\n')
    program.chmod(0o755)
    return program.parent


@pytest.mark.parametrize(
    ("framework", "launch", "robust"),
    [
        ("ddp", "srun", False),
        ("deepspeed", "srun", True),
        ("ddp", "torchrun", False),
    ],
)
def test_ranks_of_two_nodes_meet_with_their_numbers_and_cores(
    framework: str, launch: str, robust: bool, with_torch: Path, slurm: dict[str, str], tmp_path: Path
) -> None:
    ended = submit(tmp_path, with_torch, slurm, TORCH, "--framework", framework, "--launch", launch, robust=robust)
    assert ended.code == 0, ended.out
    assert [rank["in_group"] for rank in ended.seen] == [0, 1, 2, 3]
    assert [rank["RANK"] for rank in ended.seen] == ["0", "1", "2", "3"]
    assert [rank["LOCAL_RANK"] for rank in ended.seen] == ["0", "1", "0", "1"]
    assert {rank["WORLD_SIZE"] for rank in ended.seen} == {"4"}
    assert [rank["total"] for rank in ended.seen] == [10.0] * 4
    nodes = [rank["SLURMD_NODENAME"] for rank in ended.seen]
    assert nodes[0] == nodes[1] != nodes[2] == nodes[3]
    assert {rank["MASTER_ADDR"] for rank in ended.seen} == {nodes[0]}
    # crosswise, as the site says: rank 0 on core 1
    assert [rank["cores"] for rank in ended.seen] == ["1", "0", "1", "0"]
    assert [rank["OF_RANK"] for rank in ended.seen] == ["/tmp/of-0", "/tmp/of-1"] * 2
    assert {rank["OMP_NUM_THREADS"] for rank in ended.seen} == {"1"}
    assert all(rank["argv"] == ["it's one word"] for rank in ended.seen)
    # the binds that the engine reports: none from the shell in which the job was submitted
    assert {rank["SINGULARITY_BIND"] for rank in ended.seen} == {str(ended.folder)}
    # gloo is not RCCL: the log reader at the end reports that there is nothing to read, and leaves the exit code alone
    assert str(ended.folder / "nccl") in ended.out


def test_lightning_takes_its_ranks_from_slurm(with_torch: Path, slurm: dict[str, str], tmp_path: Path) -> None:
    ended = submit(tmp_path, with_torch, slurm, LIGHTNING, "--framework", "lightning")
    assert ended.code == 0, ended.out
    assert [rank["in_group"] for rank in ended.seen] == [0, 1, 2, 3]
    assert {rank["environment"] for rank in ended.seen} == {"SLURMEnvironment"}
    assert [rank["cores"] for rank in ended.seen] == ["1", "0", "1", "0"]


@pytest.mark.parametrize("framework", ["ray", "vllm"])
def test_a_ray_cluster_of_two_nodes_runs_the_program_once(
    framework: str, with_torch: Path, slurm: dict[str, str], tmp_path: Path
) -> None:
    ended = submit(tmp_path, with_torch, slurm, RAY, "--framework", framework)
    assert ended.code == 0, ended.out
    (program,) = ended.seen
    assert len(program["addresses"]) == 2
    assert program["gpus"] == 4
    assert program["squares"] == [n * n for n in range(8)]
    assert (program["HIP_VISIBLE_DEVICES"], program["ROCR_VISIBLE_DEVICES"]) == ("0,1", None)
    assert program["cores"] == "0-1"
    if framework == "vllm":
        asked = "--tensor-parallel-size 2 --pipeline-parallel-size 2 --distributed-executor-backend ray"
        assert " ".join(program["argv"]).endswith(asked)


@pytest.mark.parametrize("launch", ["srun", "torchrun"])
def test_a_rank_that_dies_ends_the_job_with_a_failure(
    launch: str, with_torch: Path, slurm: dict[str, str], tmp_path: Path
) -> None:
    program = "import os, sys, time\nif os.environ['RANK'] == '3': sys.exit(7)\ntime.sleep(600)\n"
    ended = submit(tmp_path, with_torch, slurm, program, "--launch", launch, robust=launch == "torchrun")
    # srun returns the largest exit code of all ranks, including those that it ended
    assert ended.code >= (7 if launch == "srun" else 1), ended.out
    assert "TIME LIMIT" not in ended.out
    assert str(ended.folder / "nccl") in ended.out, "the log is read where the program failed, too"


def test_what_a_user_binds_is_in_the_container_and_read_only_where_he_says_so(
    demo: Path, slurm: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "site.toml").write_text(SITE)
    data = tmp_path / "some data"
    (data / "below").mkdir(parents=True)
    (data / "x").write_text("read\n")
    binds = ["--bind", f"{data}:/in/data:ro", "--bind", f"{data}/below:/out"]
    program = "cat /in/data/x; touch /in/data/y 2>/dev/null || echo not written; touch /out/$RANK"
    words = ["--site", str(tmp_path / "site.toml"), "--framework", "plain", *binds, "-o", str(tmp_path / "job.sh")]
    ran = lumiimg("job", demo, *words, "--", "sh", "-c", program, "sh", "/in/data/x", "/elsewhere/x")
    assert ran.code == ExitCode.GOOD, ran.err
    assert "x is neither in the image nor under a bind of the job: add --bind /elsewhere" in unwrapped(ran.out)
    assert "/in/data/x" not in ran.out
    done, out = waited(tmp_path, slurm)
    assert done.returncode == 0, out
    assert out.count("read\n") == out.count("not written\n") == 2
    assert sorted(file.name for file in (data / "below").iterdir()) == ["0", "1"]


CACHES = """\
caches = "/tmp/caches-$USER-$SLURM_JOB_ID"

[[environment]]
name = "OF_JOB"
value = "/tmp/caches-$USER-$SLURM_JOB_ID/cache"
nodes = "any"
because = "a cache of the job"
source = "the tests"

[[partition]]
"""


def script_with_caches(image: Path, folder: Path, program: str, *more: str) -> None:
    """Write job.sh for two nodes: a program of the image that has caches in /tmp."""
    (folder / "site.toml").write_text(SITE.replace("[[partition]]\n", CACHES))
    words: list[str | Path] = ["--site", folder / "site.toml", "--nodes", "2", *more, "-o", folder / "job.sh"]
    assert lumiimg("job", image, *words, "--", "sh", "-c", program).code == ExitCode.GOOD


@pytest.mark.core
def test_ranks_have_what_the_script_sets_however_it_was_submitted(
    demo: Path, slurm: dict[str, str], tmp_path: Path
) -> None:
    script_with_caches(demo, tmp_path, 'echo "rank $RANK of $WORLD_SIZE at $MASTER_ADDR, $OF_JOB"; id >/dev/null')
    done, out = waited(tmp_path, slurm, "--export=NONE")
    assert done.returncode == 0, out
    assert re.findall(r"rank \d of 4 at nid00000\d, /tmp/\S+/cache", out) != []
    number = re.search(r"batch job (\d+)", done.stdout)
    assert number is not None
    wait_until(lambda: not list(Path("/tmp").glob(f"caches-*-{number[1]}*")))


@pytest.mark.parametrize("robust", [False, True])
def test_a_job_submitted_from_inside_of_another_has_its_ranks_in_order(
    robust: bool, demo: Path, slurm: dict[str, str], tmp_path: Path
) -> None:
    guard, profile = (["--robust"], {"APPTAINER_CLEANENV": "1"}) if robust else ([], {})
    script_with_caches(demo, tmp_path, 'echo "rank $RANK, $LOCAL_RANK of its node"', *guard)
    # srun passes on SLURM_DISTRIBUTION=cyclic, and salloc SLURM_MEM_PER_CPU, which srun refuses beside the job's own
    inner = "sbatch --wait --mem=100 --gpus-per-node=0 --time=5 --output=job.out job.sh"
    outer = ["salloc", "--nodes=1", "--mem-per-cpu=20", "srun", "--ntasks=1", "sh", "-c", inner]
    done = subprocess.run(
        outer, cwd=tmp_path, env=slurm | profile, capture_output=True, text=True, check=False, timeout=patient(400)
    )
    out = (tmp_path / "job.out").read_text()
    assert done.returncode == 0, out
    wanted = ["rank 0, 0 of", "rank 1, 1 of", "rank 2, 0 of", "rank 3, 1 of"]
    assert sorted(re.findall(r"rank \d, \d of", out)) == wanted


@pytest.mark.parametrize("gpus", [1, 2])
def test_what_a_cancelled_job_has_in_tmp_goes_with_it(
    gpus: int, demo: Path, slurm: dict[str, str], tmp_path: Path
) -> None:
    """On a node with one task, the epilog of that task removes it, even if the task ignores SIGTERM."""
    program = 'trap "" TERM; touch "$OF_JOB/of-$RANK"; sleep 600; sleep 600'
    script_with_caches(demo, tmp_path, program, "--gpus", str(gpus))
    argv = ["sbatch", "--parsable", "--gpus-per-node=0", "--time=5", "--output=job.out", "job.sh"]
    done = subprocess.run(argv, cwd=tmp_path, env=slurm, capture_output=True, text=True, check=True)
    number = done.stdout.strip()
    # all nodes are this machine
    wait_until(lambda: len(list(Path("/tmp").glob(f"caches-*-{number}*/cache/of-*"))) == 2 * gpus)
    subprocess.run(["scancel", number], env=slurm, check=True)
    wait_until(lambda: not list(Path("/tmp").glob(f"caches-*-{number}*")))
    queue = ["squeue", "-h", "--jobs", number]
    wait_until(lambda: not subprocess.run(queue, env=slurm, capture_output=True, check=False).stdout)


FRAMEWORKS = ["ddp", "fsdp", "deepspeed", "lightning", "vllm", "ray", "plain"]
SHAPES = ["--nodes 1", "--nodes 2", "--nodes 4 --gpus 2"]
SCRIPTS = list(product([True, False], FRAMEWORKS, SHAPES))
"""Scripts of jobs on whole and on shared nodes."""
SOME_SCRIPTS = [(bool(n % 2), framework, SHAPES[n % len(SHAPES)]) for n, framework in enumerate(FRAMEWORKS)]
"""Each framework and each shape, but not every combination."""


@pytest.mark.parametrize(("whole", "framework", "shape"), SCRIPTS if EVERYTHING else SOME_SCRIPTS)
def test_a_script_for_lumi_is_one_that_slurm_accepts(
    whole: bool, framework: str, shape: str, bare: Path, slurm: dict[str, str], tmp_path: Path
) -> None:
    """The partition `lumi-like` has the cores, memory and GPUs of LUMI-G only in the configuration of Slurm."""
    text = (Path(sites.__file__).with_name("sites") / "lumi.toml").read_text()
    site = tmp_path / "like.toml"
    site.write_text(text.replace(f'name = "{"standard-g" if whole else "small-g"}"', 'name = "lumi-like"'))
    words = ["--site", str(site), "--partition", "lumi-like", "--framework", framework, *shape.split()]
    for launch in ("srun", "torchrun") if framework in ("ddp", "lightning") else ("srun",):
        script = tmp_path / f"{launch}.sh"
        words += ["--robust"] if framework in ("fsdp", "vllm") else []
        ran = lumiimg("job", bare, *words, "--launch", launch, "-o", script, "--", "python", "train.py")
        assert ran.code == ExitCode.GOOD, ran.err
        argv = ["sbatch", "--test-only", str(script)]
        done = subprocess.run(argv, env=slurm, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        processors = re.search(r"Job \d+ to start at \S+ using (\d+) processors", done.stderr)
        assert processors, done.stderr
        if not whole:  # 7 cores go with each GPU, and Slurm counts both threads of each
            nodes, gpus = re.findall(r"--(?:nodes|gpus-per-node)=(\d+)", script.read_text())
            assert int(processors[1]) == 2 * 7 * int(nodes) * int(gpus)
