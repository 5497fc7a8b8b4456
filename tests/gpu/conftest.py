"""NCCL as librccl on an NVIDIA GPU (README.md): the libraries, the all-reduce on one node or two, an image of them."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from lumiimg.catalog.folders import shipped_layers
from tests.shared.programs import needs, wait_until
from tests.shared.small_roots import small_root

HERE = Path(__file__).parent
BUILD = Path(__file__).parents[2] / "build/gpu"
WANTED = os.environ.get("NCCL", "2.28.9 2.27.7").split()
"""The NCCL of all ranks, and that of a rank with another version: versions, or folders into which pip put one."""
ENVIRONMENT = {"NCCL_DEBUG": "INFO", "CUDA_VISIBLE_DEVICES": "0"}
DRIVER = ("libcuda.so.1", "libnvidia-ml.so.1", "libnvidia-ptxjitcompiler.so.1")
RUNTIME = "nvidia-cuda-runtime-cu12==12.8.90"


def why_no_gpu() -> str | None:
    """Ask CUDA's driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return f"no NVIDIA GPU here: {error}"
    code, count = driver.cuInit(0), ctypes.c_int()
    code = code or driver.cuDeviceGetCount(ctypes.byref(count))
    return None if code == 0 and count.value else f"no NVIDIA GPU here: CUDA's driver has {count.value} (error {code})"


@dataclass(frozen=True)
class Process:
    """A process of a job: the host name that it has, its network, its variables, its library."""

    host: str
    rccl: Path
    variables: dict[str, str] = field(default_factory=dict)
    address: str | None = None
    """Of a network of its own; None for that of this machine."""


@dataclass(frozen=True)
class Job:
    """A job that has ended."""

    log: Path
    codes: list[int]


@dataclass(frozen=True)
class Gpu:
    """What the tests run."""

    program: Path
    rccls: list[Path]
    """A librccl for each of WANTED, in a folder with all that it needs."""

    def two(self, *, other_rccl: bool = False, address: str | None = None, **variables: str) -> list[Process]:
        """Return two nodes; the second one with another version, or on a network of its own."""
        own, other = self.rccls[0], self.rccls[-1 if other_rccl else 0]
        return [Process("nid000001", own, variables), Process("nid000002", other, variables, address)]

    def run(
        self, folder: Path, nodes: list[Process], *, local: int = 1, tasks: int = 0, limit_s: int = 60, kill: str = ""
    ) -> Job:
        """Run a job to its end; when its log has a line with `kill`, the rank of the last node is killed."""
        (folder / "meeting").mkdir()
        log, running = folder / "job.log", list[subprocess.Popen[bytes]]()
        common: list[str | Path] = ["--folder", folder / "meeting", "--timeout", str(limit_s), "--local", str(local)]
        common += ["--tasks", str(tasks or len(nodes))]
        with log.open("ab") as output:
            for number, node in enumerate(nodes):
                words: list[str | Path] = [*_node(node), self.program, *common, "--task", str(number), node.rccl]
                variables = os.environ | ENVIRONMENT | node.variables
                running.append(
                    subprocess.Popen(words, env=variables, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
                )
            try:
                if kill:
                    wait_until(lambda: re.search(kill, log.read_text(errors="replace"), re.MULTILINE))
                    _kill_children(running[-1].pid)
                codes = [process.wait(limit_s + 60) for process in running]
            finally:
                for process in running:
                    process.kill()
        return Job(log, codes)

    @contextmanager
    def nearly_full(self, left_mib: int) -> Iterator[None]:
        """Have another process take the GPU's memory but for this."""
        words: list[str | Path] = [
            sys.executable,
            HERE / "hog.py",
            _only(self.rccls[0].parent, "libcudart.so.1?"),
            str(left_mib),
        ]
        pipe, variables = subprocess.PIPE, os.environ | ENVIRONMENT
        with subprocess.Popen(words, env=variables, stdin=pipe, stdout=pipe, text=True) as hog:
            assert hog.stdout is not None
            assert hog.stdout.readline().split() == ["0", "0"]
            yield
            hog.communicate()


def _node(process: Process) -> list[str | Path]:
    """Return what starts a program as on that node."""
    user = ["--user", "--map-root-user"] if os.geteuid() else []
    network, address = (["--net"], [process.address]) if process.address else ([], [])
    return ["unshare", *user, "--uts", *network, sys.executable, HERE / "node.py", process.host, *address, "--"]


def _kill_children(pid: int) -> None:
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        os.kill(int(child), signal.SIGKILL)


def _install(target: Path, *packages: str) -> Path:
    if not target.exists():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--target"]
        subprocess.run([*pip, f"{target}.part", *packages], check=True)
        Path(f"{target}.part").rename(target)
    return target


def build(folder: Path) -> Gpu:
    """Compile the all-reduce and the shim; lay out, for each NCCL, a librccl that is it by its dependencies."""
    gcc, program = ["gcc", "-std=c11", "-O2"], folder / "allreduce"
    subprocess.run([*gcc, "-o", program, shipped_layers() / "netprobe/allreduce.c", "-ldl"], check=True)
    shared = [*gcc, "-shared", "-fPIC", "-Wl,-rpath,$ORIGIN", "-Wl,--no-as-needed", "-Wl,--no-undefined"]
    (empty := folder / "empty.c").touch()
    rccls = []
    for number, wanted in enumerate(WANTED):
        (place := folder / str(number)).mkdir()
        site = Path(wanted) if "/" in wanted else _install(BUILD / wanted, f"nvidia-nccl-cu12=={wanted}", RUNTIME)
        nccl, runtime = (
            shutil.copy(_only(site, f"nvidia/*/lib/{name}"), place) for name in ("libnccl.so.2", "libcudart.so.1?")
        )
        hip, rccl = place / "libamdhip64.so.7", place / "librccl.so.1"
        subprocess.run([*shared, f"-Wl,-soname,{hip.name}", "-o", hip, HERE / "hipshim.c", runtime], check=True)
        subprocess.run([*shared, f"-Wl,-soname,{rccl.name}", "-o", rccl, empty, nccl, hip], check=True)
        rccls.append(rccl)
    return Gpu(program, rccls)


def _only(folder: Path, pattern: str) -> Path:
    return next(folder.glob(pattern), None) or pytest.fail(f"no {pattern} in {folder}")


@pytest.fixture(scope="session")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> Gpu:
    if why := why_no_gpu():
        pytest.skip(why)
    needs("gcc", "unshare")
    return build(tmp_path_factory.mktemp("gpu"))


@pytest.fixture(scope="session")
def image(gpu: Gpu, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder image with NCCL as its librccl, and the driver of this machine, as `--nv` would bring it."""
    root = small_root(tmp_path_factory.mktemp("image") / "root")
    libraries = gpu.rccls[0].parent
    shutil.copytree(libraries, root / "opt/rocm/lib")
    needed = subprocess.run(["ldd", libraries / "libnccl.so.2"], capture_output=True, text=True, check=True).stdout
    mapped = Path("/proc/self/maps").read_text()  # CUDA's driver is there since it was asked for GPUs
    driver = next(Path(word) for word in mapped.split() if "/libcuda.so" in word)
    files = {Path(word) for word in needed.split() if word.startswith("/")}
    files |= {driver.with_name(name) for name in DRIVER if driver.with_name(name).exists()}
    (root / "usr/lib").mkdir(exist_ok=True)
    for file in files:
        shutil.copy(file, root / "usr/lib" / file.name)
    (root / "etc/ld.so.conf").write_text("/opt/rocm/lib\n/usr/lib\n")
    subprocess.run(["ldconfig", "-r", root], check=True, env=os.environ | {"PATH": "/usr/sbin:/sbin:/usr/bin:/bin"})
    return root
