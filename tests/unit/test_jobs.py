"""`lumiimg job`: scripts are judged by what they do: they are run, with stand-ins for Slurm's programs."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lumiimg.catalog import sites
from lumiimg.catalog.sites import find_site
from lumiimg.cli.main import main
from lumiimg.cluster.nodes.slurm import OTHER_SHAPE
from lumiimg.core.errors import ExitCode
from lumiimg.core.text import shell_quote
from tests.shared import fabric_builder
from tests.shared.elf_builder import library
from tests.shared.fabric_builder import rocm_image, snapshot
from tests.shared.lumi_node import LUMI_MASKS
from tests.shared.programs import EVERYTHING, examples, needs, wait_until

Capture = pytest.CaptureFixture[str]
TRAIN = ("python3", "train.py")
FRAMEWORKS = ("ddp", "fsdp", "deepspeed", "lightning", "vllm", "ray", "plain")
TWO_GPUS = ("--gpus", "2", "--partition", "standard-g")
BY_TORCHRUN = ("ddp", "fsdp", "deepspeed", "lightning")
ME = f"me{os.getpid()}"
"""The user of the jobs, unique because they write to /tmp."""
HOSTILE = (*'"\\*\x1b', "it's", "$HOME", "a\nb", "`id`", "#SBATCH --uid=0", "-o", "\u2019\u201c", "")
HOSTILE += ("END_OF_TASK_SH", "\udcff")

STAND_INS = Path("tests/fixtures/jobs").resolve()
"""Stand-ins for Slurm's programs and the engine; `train`, which each rank runs, records its environment."""


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """An image whose metadata lists ROCm 6.4 and torch."""
    return rocm_image(tmp_path / "image", "6.4.4")


def short(image: Path, *words: str, site: str = "lumi", command: tuple[str, ...] = TRAIN) -> str:
    """Return the default script."""
    path = image.parent / "job.sh"
    path.unlink(missing_ok=True)
    assert main(["job", str(image), "--site", site, *words, "-o", str(path), "--", *command]) == ExitCode.GOOD
    assert os.access(path, os.X_OK)
    return path.read_text()


def job(image: Path, *words: str, site: str = "lumi", command: tuple[str, ...] = TRAIN) -> str:
    """Return the script with all guards and reasons."""
    return short(image, "--robust", "--annotate", *words, site=site, command=command)


def script_json(
    image: Path, capsys: Capture, *words: str, site: str = "lumi", command: tuple[str, ...] = TRAIN
) -> dict[str, Any]:
    """Return the JSON printed for the same script."""
    capsys.readouterr()
    argv = ["job", str(image), "--site", site, "--robust", "--annotate", *words, "--json", "--", *command]
    assert main(argv) == ExitCode.GOOD
    data: dict[str, Any] = json.loads(capsys.readouterr().out)
    return data


def refused(image: Path, capsys: Capture, *words: str, site: str = "lumi", code: ExitCode = ExitCode.NO) -> str:
    """Return the one line with the reason of a refusal; an existing script is unchanged."""
    path = image.parent / "job.sh"
    path.write_text("before\n")
    capsys.readouterr()
    argv = ["job", str(image), "--site", site, "-o", str(path), *words]
    try:
        answer = main(argv if "--" in words else [*argv, "--", "python", "train.py"])
    except SystemExit as error:
        answer = error.code if isinstance(error.code, int) else 70
    assert answer == code
    assert path.read_text() == "before\n"
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    return message


def directives(script: str) -> list[str]:
    """Return what the script requests from Slurm."""
    return re.findall(r"^#SBATCH (.*)$", script, re.MULTILINE)


def files_of(script: str) -> dict[str, str]:
    """Return the files that the script writes for the container, by name."""
    found = re.findall(r"^cat >\"\$LUMIIMG_JOB/(\S+)\" <<'(\w+)'\n(.*?)^\2$", script, re.MULTILINE | re.DOTALL)
    return {name: text for name, _, text in found}


class Run:
    """A run of a script with stand-ins for srun, scontrol and singularity."""

    def __init__(self, script: str, folder: Path, *, nodes: int = 1, **more: str) -> None:
        programs, record = folder / "programs", folder / "record"
        for made in (programs, record, folder / "work", folder / "modules/torch/distributed"):
            made.mkdir(parents=True, exist_ok=True)
        shutil.copy(STAND_INS / "torchrun", folder / "modules/torch/distributed/run.py")
        shutil.copy(STAND_INS / "train", folder / "work/train.py")
        for program in (programs / "vllm", folder / "work/program"):
            program.write_text(
                f'#!/bin/sh\nexec {shlex.join([sys.executable, str(folder / "work" / "train.py")])} "$@"\n'
            )
            program.chmod(0o755)
        tasks = next(line for line in directives(script) if line.startswith("--ntasks-per-node=")).partition("=")[2]
        env = {
            "PATH": f"{programs}:{STAND_INS}/slurm:/usr/bin:/bin",
            "PYTHONPATH": str(folder / "modules"),
            "USER": ME,
            "RECORD": str(record),
            "TASKS": tasks,
            "SLURM_JOB_ID": "123456",
            "SLURM_JOB_NODELIST": "nid[000007-000008]",
            "SLURM_JOB_NUM_NODES": str(nodes),
            "SINGULARITY_BIND": "/of/a/module",
        }
        done = subprocess.run(
            ["bash"], input=script, env=env | more, cwd=folder / "work", capture_output=True, text=True, check=False
        )
        self.code, self.out, self.err = done.returncode, done.stdout, done.stderr
        self._record = record
        if "srun --overlap --input" in script and (record / "srun").exists():
            self._end_the_step_beside()

    def _end_the_step_beside(self) -> None:
        """Do what Slurm does at the end of a job, whatever its cause."""
        files = [self._record / name for name in ("beside", "waiting")]  # a file appears before its number
        wait_until(lambda: all(file.exists() and file.read_text() for file in files), 30)
        shell, sleep = (int(file.read_text()) for file in files)
        os.kill(shell, signal.SIGTERM)
        os.kill(sleep, signal.SIGTERM)
        # it is not our child: its command line is empty once it has ended
        wait_until(lambda: not Path(f"/proc/{shell}").exists() or not Path(f"/proc/{shell}/cmdline").read_bytes())

    def lines(self, name: str) -> list[str]:
        return (self._record / name).read_text(errors="surrogateescape").splitlines()

    @property
    def ranks(self) -> list[dict[str, Any]]:
        return [ast.literal_eval(line) for line in self.lines("ranks")]

    def all_ranks(self, name: str) -> Any:
        """Return the value of a variable in all ranks of a successful job."""
        assert self.code == 0, self.err
        (one,) = {rank[name] for rank in self.ranks}
        return one


# -- cores --


SHARED = {"--gpus-per-node=2", "--ntasks-per-node=2", "--cpus-per-task=7", "--hint=nomultithread", "--mem-per-gpu=60G"}
# if Slurm picked three GPUs, it would be unknown which ones they are
THREE = {"--gpus-per-node=8", "--ntasks-per-node=3"}
SHAPES: list[tuple[str, str, int, set[str], str]] = [
    ("", "standard-g", 8, set(), ""),
    ("--nodes 16", "standard-g", 8, set(), ""),
    ("--gpus 3 --partition standard-g", "standard-g", 3, THREE, "5 GPUs of each stay idle"),
    ("--partition dev-g --exclusive", "dev-g", 8, set(), ""),
    ("--gpus 2 --partition small-g", "small-g", 0, SHARED, "small-g shares its nodes"),
    ("--gpus 2 --partition dev-g", "dev-g", 0, SHARED, "dev-g shares its nodes"),
    # dev-g has room for these, and is for tests
    ("--nodes 5 --gpus 2", "standard-g", 2, set(), "small-g gives at most 4 nodes, not 5"),
    ("--gpus 8 --time 60:00:00", "small-g", 0, set(), "with --exclusive, ranks could be bound"),
    ("--gpus 2 --exclusive", "standard-g", 2, set(), ""),
]
"""Options; the partition, the number of bound ranks per node, what is requested from Slurm, and what is reported."""


def test_whole_nodes_have_the_published_masks_and_on_shared_ones_nothing_is_bound(image: Path, capsys: Capture) -> None:
    for words, partition, bound, asked, expected in SHAPES:
        data = script_json(image, capsys, *words.split())
        script, shape = data["script"], data["shape"]
        assert shape["partition"] == partition, words
        assert [int(rank["mask"], 16) for rank in data["binding"]["ranks"]] == list(LUMI_MASKS[:bound]), words
        masks = re.findall(r"--cpu-bind=mask_cpu:(\S+)", script)
        assert masks == ([",".join(f"0x{mask:016x}" for mask in LUMI_MASKS[:bound])] if bound else []), words
        assert ("--exclusive" in directives(script)) == (bound > 0), words
        assert asked <= set(directives(script)), words
        assert expected in " ".join((*data["notes"], data["binding"]["because"], shape["because"])), words
        above = " ".join(script.partition(f"\n#SBATCH --partition={partition}\n")[0].replace("\n#", "").split())
        assert above.endswith(f"{partition}: {shape['because']}"), words
        if "--partition" in words:
            assert shape["because"] == "as you asked", words
        else:
            assert "dev-g is for tests, and used only with --partition" in shape["because"], words


# -- ranks --


PROFILE = {"SINGULARITY_CLEANENV": "1", "SINGULARITY_CONTAINALL": "1", "SINGULARITYENV_SLURM_PROCID": "7"}
PROFILE |= {"SINGULARITYENV_MASTER_ADDR": "elsewhere", "SLURM_PROCID": "7", "SLURM_LOCALID": "7", "RANK": "7"}
PROFILE |= {"MASTER_ADDR": "elsewhere", "WORLD_SIZE": "9", "SINGULARITYENV_LD_LIBRARY_PATH": "/of/a/module"}
# what `srun --pty bash` and salloc set: cyclic ranks, memory in another unit (srun ends with 1)
OTHERS = {"SLURM_DISTRIBUTION": "cyclic", "SLURM_MEM_PER_CPU": "100", "SLURM_MEM_PER_NODE": "200"}
OTHERS |= {"SLURM_CPUS_PER_TASK": "1", "SLURM_CPU_BIND": "none", "SLURM_GPUS_PER_TASK": "1", "SLURM_EXACT": "1"}


@pytest.mark.parametrize(
    ("launch", "inherited"),
    # the last: from inside of another job, with few variables (sbatch --export=NAME)
    [("srun", PROFILE), ("torchrun", {}), ("srun", OTHERS | {"SLURM_EXPORT_ENV": "NONE"})],
    ids=["profile", "torchrun", "inside"],
)
def test_each_rank_has_its_numbers_its_variables_and_the_words_of_the_user(
    launch: str, inherited: dict[str, str], tmp_path: Path, image: Path
) -> None:
    (image / "opt/venv/lib/python3.12/site-packages/aiter-0.1.0.dist-info").mkdir()
    (image / "opt/venv/lib/python3.12/site-packages/aiter-0.1.0.dist-info/METADATA").touch()
    words = ("--nodes", "2", "--gpus", "3", "--partition", "standard-g", "--launch", launch)
    write = job if inherited is PROFILE else short  # both forms of the script protect the job
    run = Run(write(image, *words, command=("python3", "train.py", *HOSTILE)), tmp_path / "run", nodes=2, **inherited)
    assert run.code == 0, run.err
    ranks = run.ranks
    assert [rank["RANK"] for rank in ranks] == ["0", "1", "2", "3", "4", "5"]
    assert [rank["LOCAL_RANK"] for rank in ranks] == ["0", "1", "2"] * 2
    (caches,) = {rank["MIOPEN_USER_DB_PATH"].removesuffix("/miopen") for rank in ranks[:3]}  # of the first node
    assert caches == f"/tmp/{ME}-123456" if launch == "srun" else caches.startswith(f"/tmp/{ME}-123456-")
    for name, wanted in {
        "WORLD_SIZE": "6",
        "MASTER_ADDR": "nid000007",
        "MASTER_PORT": "26912",
        "NCCL_SOCKET_IFNAME": "hsn0,hsn1,hsn2,hsn3",
        # with --robust, the binds and variables of a module do not override it
        "SINGULARITY_BIND": None if write is job else "/of/a/module",
        "LD_LIBRARY_PATH": None,
    }.items():
        assert run.all_ranks(name) == wanted, name
    assert [rank["AITER_JIT_DIR"] for rank in ranks[:3]] == [f"{caches}/aiter-{number}" for number in range(3)]
    assert all(rank["argv"] == list(HOSTILE) for rank in ranks)
    assert all(rank["NCCL_DEBUG_FILE"].endswith("/lumiimg-123456/nccl/%h.%p.log") for rank in ranks)
    assert not [*Path("/tmp").glob(f"{ME}-123456*")], "the caches of a job go with it"
    assert not {*run.lines("environment")} & OTHERS.keys()
    (binding,) = [option for option in run.lines("srun") if option.startswith("--cpu-bind")]
    if launch == "srun":
        assert binding == "--cpu-bind=mask_cpu:" + ",".join(f"0x{mask:016x}" for mask in LUMI_MASKS[:3])
        return
    # the ranks of torchrun bind themselves
    assert binding == "--cpu-bind=none"
    assert [_mask(rank["environment"]["CORES"]) for rank in ranks] == [*LUMI_MASKS[:3]] * 2
    plain = rocm_image(tmp_path / "plain", "6.4.4")
    assert "taskset" not in short(plain, "--launch", "torchrun", "--gpus", "2", "--partition", "small-g")


def _mask(cores: str) -> int:
    """Return cores as one number, core 0 the lowest bit."""
    first, last = map(int, cores.split("-"))
    return sum(1 << core for core in range(first, last + 1))


@pytest.mark.threat
def test_caches_are_in_no_folder_that_another_has_made(image: Path, tmp_path: Path) -> None:
    (others := tmp_path / "of-others").mkdir()
    caches = Path(f"/tmp/{ME}-123456")
    for place in (others, tmp_path / "nowhere"):
        caches.symlink_to(place)
        try:
            run = Run(short(image), tmp_path / f"run-{place.name}")
        finally:
            caches.unlink(missing_ok=True)
        assert run.code == 1, run.err
        assert not list(others.iterdir())
        assert f"not a folder of this user: {caches}" in run.err
        assert not (tmp_path / f"run-{place.name}/record/ranks").exists(), "no program was started"


def test_a_rank_sees_its_gpu_or_all_of_them_by_its_framework(image: Path, tmp_path: Path) -> None:
    plain = Run(job(image, "--framework", "plain"), tmp_path / "plain")
    assert [rank["ROCR_VISIBLE_DEVICES"] for rank in plain.ranks] == [str(number) for number in range(8)]
    torch = Run(job(image, *TWO_GPUS), tmp_path / "torch", ROCR_VISIBLE_DEVICES="0,1")
    assert torch.all_ranks("ROCR_VISIBLE_DEVICES") == "0,1", "as Slurm has set it"
    script = job(image, "--gpus", "2", "--framework", "vllm")
    (rank,) = Run(script, tmp_path / "vllm", ROCR_VISIBLE_DEVICES="0,1").ranks
    assert rank["argv"] == []
    assert (rank["HIP_VISIBLE_DEVICES"], rank["ROCR_VISIBLE_DEVICES"]) == ("0,1", None), "all, by HIP's numbers"
    assert "--cpus-per-task=14" in directives(script)


def test_the_python_of_torch_comes_first_and_a_program_that_is_missing_is_reported(
    image: Path, capsys: Capture
) -> None:
    """The image itself does not put that Python on PATH."""
    python = image / "opt/venv/bin/python3"
    python.parent.mkdir()
    python.touch(0o755)
    assert "# torch is in the Python of /opt/venv/bin, which is" in (text := job(image))
    assert 'export PATH="/opt/venv/bin:$PATH"' in text
    for command, expected in (
        ("python3 train.py", []),
        ("/opt/mine/run x", []),
        ("python train.py", ["python is not on the image's PATH: its Python is /opt/venv/bin/python3"]),
        ("vllm serve m", ["vllm is not on the image's PATH"]),
    ):
        notes = script_json(image, capsys, command=tuple(command.split()))["notes"]
        assert [note for note in notes if "not on the image's PATH" in note] == expected, command


TENSOR, PIPELINE = "--tensor-parallel-size 8", "--pipeline-parallel-size 2"
RAY = "--distributed-executor-backend ray"
COMMANDS = [
    ("", "vllm serve m", TENSOR),
    ("--nodes 2", "vllm serve m", f"{TENSOR} {PIPELINE} {RAY}"),
    ("", "python3 -u -m vllm.entrypoints.openai.api_server --model m", TENSOR),
    # what its user specified, in any form; one size is enough, as their product is the number of GPUs
    ("", "vllm serve m --tensor_parallel_size=4", ""),
    ("", "vllm serve m -tp=4", ""),
    ("--nodes 2", "vllm serve m -tp 16", RAY),
    ("--nodes 2", "vllm serve m -tp 4 --pipeline_parallel_size=4", RAY),
    ("--nodes 2", "vllm serve m -tp 4 -pp=4 --distributed-executor-backend=mp", ""),
    ("--nodes 2", "vllm serve m --distributed_executor_backend mp", f"{TENSOR} {PIPELINE}"),
    # what is not a server, or may specify it elsewhere
    ("--framework vllm", "x.py -m vllm.entrypoints.openai.api_server", None),
    ("--framework vllm", "vllm bench x", None),
    ("", "vllm serve m --config c.yaml", None),
]
"""Options, a command, and what a job adds to it; None: a note says what the command itself must specify."""


def test_a_server_of_vllm_gets_the_options_that_its_user_has_not_given(image: Path, capsys: Capture) -> None:
    for options, command, added in COMMANDS:
        data = script_json(image, capsys, *options.split(), command=tuple(command.split()))
        assert (data["framework"], data["launch"]) == ("vllm", "ray" if "2" in options else "srun"), command
        assert data["command"] == [*command.split(), *(added or "").split()], command
        assert any(f"the job has {TENSOR}" in n or f"to vLLM ({TENSOR})" in n for n in data["notes"]) == (
            added is None
        ), command
    for command in ("x.py -m torch.distributed.run", "-c -m torch.distributed.run", "-W -m x.py"):
        data = script_json(image, capsys, command=("python", *command.split()))
        assert data["framework"] == "ddp", "no launcher, nor vLLM: python starts something else"


def test_a_script_that_is_not_submitted_or_in_a_heterogeneous_job_says_so(image: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        ["bash"], input=job(image), env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "this is a job script: submit it with sbatch" in done.stderr
    script = Run(job(image), tmp_path, SLURM_HET_SIZE="2", SLURM_JOB_ID_HET_GROUP_0="123456")
    assert (script.code, script.out) == (2, "")
    assert "submit this script without other parts (hetjob" in script.err
    inside = Run(job(image), tmp_path / "inside", SLURM_HET_SIZE="2", SLURM_JOB_ID_HET_GROUP_0="123450")
    assert inside.code == 0, inside.err


# -- what it depends on --


def test_a_step_on_one_node_asks_for_a_vni_where_the_image_opens_the_nic(tmp_path: Path) -> None:
    network = "export SLURM_NETWORK=single_node_vni"
    for rocm, nodes, asks in (("6.4.4", 1, False), ("7.0.2", 1, True), ("7.0.2", 2, False)):
        script = short(rocm_image(tmp_path / f"{rocm}-{nodes}", rocm), "--nodes", str(nodes))
        assert (network in script) == asks, (rocm, nodes)
    # so does an MPI of the image; srun reads the variable, so it is set outside the container
    image = tmp_path / "6.4.4-1"
    for name in ("libmpi.so.12", "libfabric.so.1"):
        library(image / "usr/lib" / name)
    script = short(image)
    assert Run(script, tmp_path / "run", TASKS="0").lines("network") == ["single_node_vni"]
    assert network not in short(image, "--nodes", "2")


MPI: list[tuple[str | None, tuple[str, ...], str | None]] = [
    ("libmpi.so.12", (), "pmi2"),
    ("libmpi.so.40", (), None),  # LUMI's Slurm has no pmix
    (None, ("mpi4py-4.0.0",), "cray_shasta"),
    (None, (), None),
]


def test_mpi_programs_are_started_by_the_mpi_that_the_image_has(tmp_path: Path, capsys: Capture) -> None:
    for number, (name, packages, option) in enumerate(MPI):
        image = rocm_image(tmp_path / f"image{number}", "6.4.4", *packages)
        if name:
            library(image / "usr/lib" / name)
        data = script_json(image, capsys)
        assert (data["mpi"] and data["mpi"]["value"]) == option
        assert any("cannot start the image's Open MPI" in n for n in data["notes"]) == ("40" in (name or ""))
        assert re.findall(r"--mpi=(?!none)(\S+)", data["script"]) == ([option] if option else [])


def test_what_was_measured_to_do_nothing_is_not_set_and_what_does_harm_is_reported(
    tmp_path: Path, capsys: Capture
) -> None:
    """What hangs with ROCm 7.0 hangs with torch's own 7.0, too, whatever /opt/rocm is (laifs-container-recipes#30)."""
    image = rocm_image(tmp_path / "image", "6.4.4")
    packages = image / "opt/venv/lib/python3.12/site-packages"
    (packages / "torch-2.9.1+rocm6.4.4.dist-info").rename(packages / "torch-2.10.0+rocm7.0.dist-info")
    (scripts := image / ".singularity.d/env").mkdir(parents=True)
    sets = "export NCCL_MIN_NCHANNELS=32\nexport NCCL_PROTO=Simple\nexport HSA_NO_SCRATCH_RECLAIM=1\n"
    sets += "export NCCL_NET_GDR_LEVEL=3\n"
    (scripts / "90-environment.sh").write_text(sets)
    plan = script_json(image, capsys, "--nodes", "2")
    names = {item["name"] for item in plan["environment"]}
    assert {"NCCL_SOCKET_IFNAME", "NCCL_DMABUF_ENABLE", "FI_HMEM_ROCR_USE_DMABUF"} <= names
    assert names.isdisjoint({"FI_CXI_DEFAULT_CQ_SIZE", "HSA_NO_SCRATCH_RECLAIM", "NCCL_NET_GDR_LEVEL"})
    notes = [note for note in plan["notes"] if note.startswith("the image sets ")]
    of_rocm_7 = "the image sets NCCL_NET_GDR_LEVEL=3, which is not for an image with rocm>=7.0"
    assert [note.partition(":")[0] for note in notes] == ["the image sets NCCL_MIN_NCHANNELS=32", of_rocm_7]
    assert "pipeline parallelism" in notes[0]


def test_variables_that_block_the_fast_network_are_reported_without_a_snapshot_too(
    tmp_path: Path, capsys: Capture
) -> None:
    image = fabric_builder.bundled(tmp_path / "image")
    script = image / ".singularity.d/env/90-environment.sh"
    for line, expected in (
        ("NCCL_NET=Socket", "NCCL_NET=Socket makes RCCL use TCP sockets"),
        ("FI_PROVIDER=tcp", "FI_PROVIDER=tcp keeps libfabric from using cxi"),
        ("FI_PROVIDER=cxi", ""),
    ):
        script.write_text(f"export LD_LIBRARY_PATH=/opt/rocm/lib\nexport {line}\n")
        for words, where in (("job --nodes 2 -o", "job.sh"), (f"module --name {line[-3:].lower()} -o", "modules")):
            verb, *options = words.split()
            program = ["--", "python", "x.py"] if verb == "job" else []
            main([verb, str(image), "--site", "lumi", *options, str(tmp_path / where), *program])
            captured = capsys.readouterr()
            shown = " ".join(f"{captured.out} {captured.err}".split())
            assert expected in shown, (verb, shown)
            assert ("keeps" in shown or "makes RCCL" in shown) is bool(expected), (verb, shown)


def test_what_keeps_a_job_of_several_nodes_off_the_fabric_is_cured_before_it_is_submitted(
    tmp_path: Path, capsys: Capture
) -> None:
    image, node = fabric_builder.bundled(tmp_path / "image"), snapshot(fabric_builder.host(tmp_path / "host"))
    script = image / ".singularity.d/env/90-environment.sh"
    lacking = fabric_builder.bundled(tmp_path / "lacking")
    (lacking / "usr/lib64/librccl-net.so").unlink()
    cases = (
        (image, "NCCL_NET_PLUGIN=none", "2", "do: start the program with `env -u NCCL_NET_PLUGIN …`"),
        (image, "NCCL_NET_PLUGIN=none", "1", f"sbatch {tmp_path}/job.sh"),
        (image, "NCCL_NET=Socket", "2", "do: start the program with `env -u NCCL_NET …`"),
        (image, "FI_PROVIDER=cxi", "2", f"sbatch {tmp_path}/job.sh"),
        (lacking, "", "2", f"next: lumiimg adapt {lacking} --site lumi"),
    )
    for path, line, nodes, cure in cases:
        script.write_text(f"export LD_LIBRARY_PATH=/opt/rocm/lib\nexport {line}\n")
        words = ["--site", "lumi", "--host", str(node), "--nodes", nodes, "-o", str(tmp_path / "job.sh")]
        assert main(["job", str(path), *words, "--", "./x"]) == ExitCode.GOOD
        captured = capsys.readouterr()
        shown = " ".join(f"{captured.err} {captured.out}".split())
        assert cure in shown, (line, nodes, shown)
        assert ("sbatch" in shown) == ("sbatch" in cure), shown
        sets_none = "the image sets NCCL_NET_PLUGIN=none, by which RCCL finds no net plugin"
        assert (sets_none in shown) == (line.endswith("none") and nodes == "2"), shown


def test_what_the_first_start_of_a_job_left_does_not_end_its_second(image: Path, tmp_path: Path) -> None:
    script = short(image, "--nodes", "2", "--framework", "ddp")
    folder = tmp_path / "run"
    Run(script, folder, nodes=2, TASKS="0")
    (left,) = folder.rglob("nccl")
    for file in (log := left / "of-the-first.log", left.parent / "ended"):
        file.touch()
    run = Run(script, folder, nodes=2)
    assert log.exists()
    (logs,) = {rank["NCCL_DEBUG_FILE"] for rank in run.ranks}
    (second,) = {path.parent for path in folder.rglob("nccl")} - {left.parent}
    assert logs.startswith(f"{second}/nccl/")
    assert not (second / "ended").exists()


@pytest.mark.threat
def test_nobody_else_may_write_to_the_folder_of_a_job_from_its_first_moment(image: Path, tmp_path: Path) -> None:
    (programs := tmp_path / "programs").mkdir()
    stand_in = programs / "mkdir"
    stand_in.write_text('#!/bin/sh\n/bin/mkdir "$@" && case $* in *nccl) stat -c %a "$@" ;; esac\n')
    stand_in.chmod(0o755)
    for mask, mode in (("000", "755"), ("002", "755"), ("077", "700")):
        run = Run(f"umask {mask}\n{short(image, *TWO_GPUS)}", tmp_path, SLURM_JOB_ID=f"1{mask}")
        assert run.code == 0, run.err
        assert run.out.split()[:2] == [mode, mode]


def test_what_must_come_from_the_host_is_bound_with_its_reason(tmp_path: Path, capsys: Capture) -> None:
    node = snapshot(fabric_builder.host(tmp_path / "host"))
    image = fabric_builder.image(tmp_path / "image", glibc=41)
    (image / "etc").mkdir(exist_ok=True)
    script = job(image, *TWO_GPUS, "--nodes", "2", "--host", str(node), "--framework", "plain")
    assert "none is bound" not in script
    run = Run(script, tmp_path / "run", nodes=2)
    assert run.all_ranks("LD_LIBRARY_PATH") == "/opt/lumiimg/host:/opt/rocm/lib"
    bound = run.lines("binds")
    assert "/opt/cray/libfabric/1.22.0/lib64/libfabric.so.1:/opt/lumiimg/host/libfabric.so.1" in bound
    assert "/var/spool/slurmd" in bound, "and what the site wants"
    assert "# /usr/lib64/libnl-3.so.200: libcxi.so.1 needs it, and the image has none\n" in script
    older = fabric_builder.image(tmp_path / "older", glibc=35)
    refusal = refused(older, capsys, "--host", str(node))
    assert "no libfabric with the cxi provider loads in it" in refusal
    assert "GLIBC_2.38" in refusal


def test_a_site_of_which_nothing_is_known_gets_a_plain_script_that_says_so(image: Path) -> None:
    script = job(image, "--gpus", "4", "--partition", "gpu", site="generic")
    assert "not known: nothing is bound" in script
    assert "their limits are not known: the job's shape was not checked" in " ".join(
        script.replace("\n# ", " ").split()
    )
    asked = {"--partition=gpu", "--nodes=1", "--ntasks-per-node=4", "--gpus-per-node=4", "--time=01:00:00"}
    assert set(directives(script)) == asked


# -- what is bound --


def test_a_users_binds_are_as_engines_take_them_and_come_before_the_sites(image: Path, capsys: Capture) -> None:
    own = ("/d,/d/", "/in put:/opt/in:ro", "/other:/scratch", "/x/:/opt", r"/a\:b", "data:/mine")
    binds = script_json(image, capsys, *(word for bind in own for word in ("--bind", bind)))["binds"]
    sources = {bind["target"]: bind["source"] for bind in binds}
    assert len(sources) == len(binds), "one bind per target"
    assert sources["/scratch"] == "/other", "the user's comes in the place of the site's"
    assert [*sources].index("/opt") < [*sources].index("/opt/in"), "a folder does not hide what is bound below it"
    assert (sources["/a:b"], sources["/mine"]) == ("/a:b", f"{Path.cwd()}/data")
    assert {bind["target"] for bind in binds if bind["read_only"]} == {"/opt/in"}


def test_a_folder_that_cannot_be_bound_ends_the_job_with_one_line(image: Path, tmp_path: Path) -> None:
    fault = "no engine binds a folder with ':', ',' or a backslash, submit from another"
    for script in (job(image, *TWO_GPUS), short(image, *TWO_GPUS), short(image, "--launch", "torchrun")):
        for name in ("a:b", "a,b"):
            run = Run(script, tmp_path / name)
            assert (run.code, run.err) == (2, f"{fault}: {tmp_path}/{name}/work\n")
    assert Run(job(image, *TWO_GPUS), tmp_path / "it's a (good) one; $X").code == 0


PATHS = [
    ("/data/set/x", "/data"),
    ("--input=/data/x", "/data"),
    ("/opt/sets/x", "/opt/sets"),  # /opt is in the image: a bind there would hide ROCm
    ("/opt/rocm/.info/version", None),
    ("/scratch/project_1/x", None),
    ("/scratchy/x", "/scratchy"),
    ("/", None),
    ("--url=//host/x", None),
]


def test_a_path_of_the_command_that_nothing_brings_is_reported(
    image: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def noted(*words: str, command: tuple[str, ...]) -> list[str]:
        notes = script_json(image, capsys, *words, command=command)["notes"]
        return [note.rpartition("add ")[2] for note in notes if "nor under a bind of the job" in note]

    for path, bind in PATHS:
        assert noted(command=("python", path)) == ([f"--bind {bind}"] if bind else []), path
        assert not bind or not noted("--bind", bind, command=("python", path)), path
    # home and the submission folder are bound
    monkeypatch.setenv("HOME", "/home-of/me")
    assert not noted(command=("python", "/home-of/me/x.py", str(Path.cwd() / "absent")))
    assert noted(command=("python", "/home-of/you/x"))


# -- what is refused --


REFUSED = tomllib.loads(Path("tests/fixtures/jobs/refused.toml").read_text())


def test_what_cannot_be_had_is_one_line(image: Path, tmp_path: Path, capsys: Capture) -> None:
    for code in (ExitCode.NO, ExitCode.BAD_INPUT):
        for row in REFUSED[code.name.lower()]:
            assert row["says"] in refused(image, capsys, *shlex.split(row["words"]), code=code), row
    assert "No such file" in refused(tmp_path / "absent.sif", capsys, code=ExitCode.BAD_INPUT)
    (tmp_path / "host.json").write_text("{}")
    refused(image, capsys, "--host", str(tmp_path / "host.json"), code=ExitCode.BAD_INPUT)


def test_a_site_with_a_topology_that_cannot_be_is_one_line_with_the_key(
    image: Path, tmp_path: Path, capsys: Capture
) -> None:
    text = (Path(sites.__file__).with_name("sites") / "lumi.toml").read_text()
    for row in REFUSED["site"]:
        assert row["line"] in text
        (tmp_path / "mine.toml").write_text(text.replace(row["line"], row["instead"], 1))
        refusal = refused(image, capsys, site=str(tmp_path / "mine.toml"), code=ExitCode.BAD_INPUT)
        assert row["says"] in refusal, row


# -- as text --


def test_every_script_and_what_it_writes_is_clean_for_shellcheck(tmp_path: Path) -> None:
    """The default script for torch on two nodes has at most 44 lines, with torchrun 40."""
    needs("shellcheck")
    image = rocm_image(tmp_path / "an image's $(id) `x` \\ \u2019.sif", "7.0.2", "aiter-0.1", "mpi4py-4.0")
    shapes = ("--nodes 1", "--gpus 2", "--gpus 2 --partition standard-g")
    cases = [("lumi", *case) for case in (*product(FRAMEWORKS, ("--nodes 4",)), *product(("ddp", "vllm"), shapes))]
    cases += product(("frontier", "aurora"), ("ddp", "plain"), ("--nodes 1", "--nodes 2"))
    of_torch = short(rocm_image(tmp_path / "image.sif", "6.4.4"), "--nodes", "2")
    by_torchrun = short(image.with_name("image.sif"), "--nodes", "2", "--launch", "torchrun")
    assert (of_torch.count("\n") <= 45, by_torchrun.count("\n") <= 41) == (True, True), "a line more for a long path"
    scripts = [of_torch, *(short(image, *options.split(), command=command) for options, command in FORMS.values())]
    assert "#?" not in "".join(scripts), "a reason of a template"
    for site, framework, shape in cases if EVERYTHING else cases[2::3]:
        for launch in ("srun", "torchrun") if site == "lumi" and framework in BY_TORCHRUN else (None,):
            words = ("--framework", framework, "--account", "project_1", *(("--launch", launch) if launch else ()))
            for write in (job, short):
                script = write(image, *words, *shape.split(), site=site, command=("python", *HOSTILE))
                written = files_of(script)
                scripts += [script, *(f"#!/bin/sh\n{text}" for text in written.values())]
    for number, script in enumerate(dict.fromkeys([of_torch, by_torchrun, *scripts])):
        (tmp_path / f"{number}.sh").write_text(script)
    # a user's arguments may look like quoting mistakes
    of_words = "--exclude=SC1003,SC1110,SC1111,SC1112,SC2016"
    for argv in (["0.sh", "1.sh"], [of_words, *(path.name for path in tmp_path.glob("[0-9]*.sh"))]):
        done = subprocess.run(["shellcheck", *argv], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


@settings(max_examples=examples(20), deadline=None)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20), max_size=16))
@example(["'\n; touch x; '", "\\'\n"])
@pytest.mark.threat
def test_a_word_is_one_line_and_comes_back_from_bash_as_it_was(texts: list[str]) -> None:
    words = [shell_quote(text) for text in texts]
    assert all(line.isprintable() for line in words)
    script = f"printf '%s\\0' {' '.join(words)}" if words else "true"
    done = subprocess.run(["bash"], input=script.encode(), capture_output=True, check=True)
    assert done.stdout.decode().split("\0")[:-1] == texts


# -- each form of it --

FORMS = {
    "torch": ("--framework ddp --nodes 2", ("python3", "train.py")),
    "vLLM": ("--framework vllm", ("vllm", "serve", "MODEL")),
    "MPI": ("--framework plain --nodes 4 --gpus 2 --partition small-g", ("./program", *HOSTILE)),
    "Lightning": ("--framework lightning --nodes 2 --account project_1", ("python3", "train.py")),
}


@pytest.mark.parametrize("form", FORMS)
def test_ranks_have_the_same_with_all_guards_and_reasons(form: str, image: Path, tmp_path: Path) -> None:
    options, command = FORMS[form]
    ranks = []
    for write in (short, job):
        # both in one folder, as variables contain its name
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        run = Run(write(image, *options.split(), command=command), tmp_path / "run", FAILS="7")
        assert run.code == 7, run.err
        # guards remove the binds of a module; each server has its own key, each folder on a node its own name
        for rank in (seen := run.ranks):
            rank["environment"] |= {"SINGULARITY_BIND": "", "VLLM_API_KEY": ""}
            for name, text in rank["environment"].items():
                rank["environment"][name] = re.sub(rf"({ME}-123456)-\w{{6}}\b", r"\1", text)
        ranks.append([(rank["argv"], rank["environment"]) for rank in seen])
    assert ranks[0]
    assert ranks[0] == ranks[1]


def test_what_would_give_ranks_another_shape_is_unset_by_name() -> None:
    """`check --nodes` unsets the same ones (srun(1), input environment variables)."""
    lines = re.findall(r"^unset .*$", Path("lumiimg/cluster/job/slurm.sh").read_text(), re.MULTILINE)
    script = "; ".join(line.replace("unset", "printf '%s\\n'") for line in lines)
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert sorted(done.stdout.split()) == sorted(OTHER_SHAPE)


@pytest.mark.parametrize("write", [short, job])
def test_vllm_without_ray_connects_the_nodes_itself(write: Callable[..., str], tmp_path: Path) -> None:
    """Each node gets its number; only the first serves clients."""
    serve = ("vllm", "serve", "MODEL")
    image = rocm_image(tmp_path / "image", "7.2.0", "vllm-0.18.0")
    script = write(image, "--nodes", "2", command=serve)
    assert "ray start" not in script
    assert "RAY_" not in script
    sizes = "--tensor-parallel-size 8 --pipeline-parallel-size 2 --distributed-executor-backend mp"
    ranks = Run(script, tmp_path / "run", nodes=2).ranks
    for node, (rank, headless) in enumerate(zip(ranks, ([], ["--headless"]), strict=True)):
        nodes = f"--nnodes 2 --node-rank {node} --master-addr nid000007 --master-port 26912"
        assert rank["argv"] == [*f"serve MODEL {sizes} --uds /tmp/{ME}-123456/vllm {nodes}".split(), *headless]
    for version, by in (("0.11.0", "ray"), ("0.11.1", "mp")):
        image = rocm_image(tmp_path / version, "7.2.0", f"vllm-{version}")
        assert f"--distributed-executor-backend {by}" in write(image, "--nodes", "2", command=serve)


@pytest.mark.threat
def test_a_script_runs_nothing_of_names_and_of_a_site_that_are_hostile(tmp_path: Path) -> None:
    image = rocm_image(tmp_path / "an image's $(touch here) `x` \\ \u2019.sif", "6.4.4")
    site = tmp_path / "mine.toml"
    site.write_text(
        'title = "mine"\nsource = "x"\ndate = 2026-11-21\n[[environment]]\nname = "A"\nnodes = "any"\nsource = "s"\n'
        'value = """$(touch here)`touch here`"\';touch here;\'"$USER\\\\"""\nbecause = "a;touch here"\n'
        '[[bind]]\npath = "/a b\';touch here"\nreason = "r;touch here"\n'
    )
    caches = tmp_path / "c'$USER $(touch here)"
    words = ("--gpus", "1", "--bind", "/q'$(touch here)", "--caches", str(caches))
    for number, more in enumerate(((), ("--annotate",), ("--robust",))):
        script = short(image, *words, *more, command=("python3", "train.py", *HOSTILE, "$(touch here)"), site=str(site))
        run = Run(script, tmp_path / f"run{number}")
        assert run.code == 0, run.err
        assert not [*tmp_path.rglob("here")]
        (rank,) = run.ranks
        assert rank["argv"] == [*HOSTILE, "$(touch here)"]
        assert {"/a b';touch here", "/q'$(touch here)"} <= set(",".join(run.lines("binds")).split(","))


# -- who reaches a server of vLLM --


SERVED = [
    ("0.18.0", "", "socket"),
    ("0.10.1", "", "socket"),
    ("0.10.0", "", "key"),
    ("0.18.0", "--port 8001", "key"),
    ("0.18.0", "--host=0.0.0.0", "key"),
    ("0.18.0", "--api-key x", ""),
    ("0.18.0", "--uds /x", ""),
    ("0.18.0", "--config c.yaml", ""),
]
"""A version of vLLM, the user's options, and what protects it from others; empty: the user has specified it."""


def test_a_server_of_vllm_is_open_to_its_user_alone(tmp_path: Path, capsys: Capture) -> None:
    for number, (version, more, place) in enumerate(SERVED):
        image = rocm_image((folder := tmp_path / str(number)) / "image", "6.4.4", f"vllm-{version}")
        data = script_json(image, capsys, command=("vllm", "serve", "m", *more.split()))
        message = " ".join(data["notes"])
        assert ("a socket that only you can use" in message) == (place == "socket"), (version, more)
        assert ("the key: vllm.key" in message) == (place == "key"), (version, more)
        assert ("curl " in data["script"]) == bool(place), (version, more)
        task = files_of(data["script"])["task.sh"]
        assert ('--uds "$private/vllm"' in task, "VLLM_API_KEY" in task) == (place == "socket", place == "key")
        if number not in (0, 2):
            continue
        # what a rank has before its program starts; it is removed with the job
        ask = f'stat -c "%a %n" /tmp/{ME}-123456* "$LUMIIMG_JOB"/*.key 2>/dev/null; echo "$VLLM_API_KEY"; exec "$@"'
        run = Run(data["script"].replace('exec "$@"', ask), folder / "run")
        of_rank = " ".join(line for line in run.out.splitlines() if not line.startswith("on "))
        private, *of_key = of_rank.split()
        assert private == "700", run.err
        key = folder / "run/work/lumiimg-123456/vllm.key"
        assert of_key[1:] == (["600", str(key), key.read_text()] if place == "key" else [])
        assert place != "key" or re.fullmatch(r"[0-9a-f]{48}", key.read_text())


def test_a_job_that_serves_says_how_a_client_reaches_it(tmp_path: Path, capsys: Capture) -> None:
    """In the written job with placeholders for its number and node, and in the running job with both."""
    image = rocm_image(tmp_path / "image", "7.2.0", "vllm-0.18.0")
    by_socket = (
        "srun --overlap --jobid=JOBID{first} curl --unix-socket /tmp/$USER-JOBID/vllm http://localhost/v1/models"
    )
    by_key = (
        "curl -H @<(sed 's/^/Authorization: Bearer /' lumiimg-JOBID/vllm.key) http://NODE:8001/v1/models",
        "ssh -N -L 8001:NODE:8001 lumi",
    )
    for number, (options, more, clients) in enumerate(
        (
            ("", "", (by_socket.format(first=""),)),
            ("--nodes 2", "", (by_socket.format(first=" -N1 -n1 -w NODE"),)),
            ("", "--port 8001", by_key),
            ("", "--port=8000 --port=8001", by_key),
        )
    ):
        words = ["job", str(image), "--site", "lumi", *options.split(), "-o", str(tmp_path / "job.sh")]
        assert main([*words, "--", "vllm", "serve", "m", *more.split()]) == ExitCode.GOOD
        output = capsys.readouterr().out
        run = Run((tmp_path / "job.sh").read_text(), folder := tmp_path / str(number), nodes=2 if options else 1)
        for client in clients:
            assert client in output
            seen = client.replace("lumiimg-JOBID/vllm.key", f'"{folder / "work"}/lumiimg-JOBID/vllm.key"')
            for name, value in {"$USER": ME, "JOBID": "123456", "NODE": "nid000007"}.items():
                seen = seen.replace(name, value)
            assert f": {seen}\n" in run.out


# -- a program without `--` before it --


def test_the_dashes_before_the_program_may_be_left_out_but_for_a_word_that_the_job_takes_too(
    image: Path, capsys: Capture
) -> None:
    for before, command in (
        (f"{image} --site lumi", "python x.py --lr 1"),
        (f"--site=lumi --annotate {image} --gpus 8", "python -c pass"),
        (f"--site lumi {image}", "vllm"),
    ):
        assert main(["job", "--json", *before.split(), *command.split()]) == ExitCode.GOOD
        assert json.loads(capsys.readouterr().out)["command"] == command.split()
    for option in ("--nodes", "--nodes=2", "-o", "--json", "--site"):
        assert main(["job", str(image), "--site", "lumi", "python", "x.py", option, "2"]) == ExitCode.BAD_INPUT
        (line,) = capsys.readouterr().err.splitlines()
        assert f"{option} may be an option of lumiimg job or of python; put `--` before the program: -- python" in line


def test_quiet_leaves_where_the_script_is(
    image: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["job", "--quiet", str(image), "--site", "lumi", "-o", "job.sh", "vllm"]) == ExitCode.GOOD
    assert capsys.readouterr() == ("wrote job.sh\n", "")
    assert main(["job", "--quiet", str(image), "--site", "lumi", "vllm"]) == ExitCode.GOOD
    assert capsys.readouterr() == (Path("job.sh").read_text(), "")


# -- beyond LUMI --


# ALCF, frameworks/pytorch.md and running-jobs-aurora.md
FOR_TORCH = "list:4-7:8-11:12-15:16-19:20-23:24-27:56-59:60-63:64-67:68-71:72-75:76-79"
FILE_SYSTEMS = {"frontier": {"/lustre/orion", "/ccs/home", "/ccs/proj"}, "aurora": {"/lus/flare", "/home"}}


def test_a_script_says_that_it_never_ran_there_and_binds_the_file_systems_of_its_site(
    image: Path, capsys: Capture
) -> None:
    for site, folders in FILE_SYSTEMS.items():
        data = script_json(image, capsys, "--bind", "/data:/in:ro", site=site)
        head = re.split(r"^#(?:SBATCH|PBS)", data["script"], flags=re.MULTILINE)[0]
        assert f"this project has never run a job on {site}" in " ".join(head.replace("\n#", " ").split())
        assert folders <= {bind["target"] for bind in data["binds"]}
        assert all(bind.source for bind in find_site(site, {}).binds)
        for word in (*folders, "/data:/in:ro"):
            assert f" -B {word}" in data["script"]


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
    assert "Untried under PBS" in short(image, site="aurora").partition("#PBS")[0]
    assert "NCCL_DEBUG" not in script
    days = job(image, "--partition", "capacity", "--time", "3-00:00:00", site="aurora")
    assert "walltime=72:00:00" in days, "days are hours to PBS"


def test_what_is_for_mpis_ranks_is_not_set_for_others(image: Path) -> None:
    assert "CCL_KVS_MODE" in job(image, "--nodes", "2", "--framework", "ddp", site="aurora")
    assert "CCL_PROCESS_LAUNCHER" not in job(image, "--framework", "vllm", site="aurora")


def submitted(script: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """Run a script for Aurora on two nodes; the stand-in for PALS's mpiexec starts the tasks one after the other."""
    (tmp_path / "job.sh").write_text(script)
    nodes = tmp_path / "nodes"
    nodes.write_text("x4117c4s0b0n0.hostmgmt.example\nx4117c4s1b0n0.hostmgmt.example\n")
    environment = {
        "PATH": f"{STAND_INS}/pbs:{os.environ['PATH']}",
        "PBS_NODEFILE": str(nodes),
        "PBS_JOBID": "4711.aurora-pbs",
        "PBS_O_WORKDIR": str(tmp_path),
    }
    shell = ["bash", "-c", f'module() {{ :; }}; export -f module; bash "{tmp_path}/job.sh"']
    return subprocess.run(shell, env=environment, capture_output=True, text=True, check=False)


def printed_by_ranks(done: subprocess.CompletedProcess[str]) -> list[str]:
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
    assert printed_by_ranks(done) == [
        f"{rank} {rank % 12} 24 {cores[rank % 12]} {address} info|it's" for rank in range(24)
    ]
    log = tmp_path / "lumiimg-4711" / "ranks.log"
    assert len(log.read_text().splitlines()) == 24
    assert f"read: log {log}" in done.stdout


def test_lightning_makes_the_right_rank_where_it_knows_no_scheduler(image: Path, tmp_path: Path) -> None:
    """As in LightningEnvironment and its DDP strategy: node_rank * devices + local_rank."""
    words = ("sh", "-c", 'echo "$RANK $((NODE_RANK * 12 + LOCAL_RANK)) $MASTER_PORT"')
    script = job(image, "--nodes", "2", "--framework", "lightning", site="aurora", command=words)
    assert printed_by_ranks(submitted(script, tmp_path)) == [f"{rank} {rank} 29422" for rank in range(24)]
    assert "SLURM" not in script
    assert "NODE_RANK" not in job(image, "--framework", "ddp", site="aurora")
    assert "NODE_RANK" not in job(image, "--framework", "lightning", site="lumi")
