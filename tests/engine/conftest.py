"""Real parts: this machine's engine, a real Debian base that is built once, a stand-in net plugin on real libfabric.

Images are stored in the user's ordinary cache, so a second run of these tests builds only what the tests themselves change.

Two workers run them at a time (`make test-engine`). The first worker that needs a shared image builds it. A file of
tests stays on one worker, with its own images, and so do all tests on the one Slurm.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
import subprocess
import sys
import tarfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import requests

from lumiimg.core.access import BytesInMemory
from lumiimg.core.errors import MissingHereError
from lumiimg.elf import read_elf
from lumiimg.engine.engine import PACKED, Engine, clean_environment, find_engine
from lumiimg.fetch.mirrors import apt_mirror
from tests.engine.groups import SLURM, Groups, group, place
from tests.shared.gpu_standin import standin_libraries
from tests.shared.layer_builder import LAYER
from tests.shared.programs import needs, patient
from tests.shared.validation import validated_output

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from xdist.remote import Producer

STANDIN = Path(__file__).parent / "standin"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Groups | None:
    return Groups(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: place(item.nodeid))


@dataclass(frozen=True)
class Result:
    """The result of a run of `lumiimg`."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        return json.loads(self.out)


def lumiimg(*argv: str | Path, env: dict[str, str] | None = None, cwd: Path | None = None) -> Result:
    """Run the program as a user does; validate its JSON with the schemas of the command."""
    done = subprocess.run(
        [sys.executable, "-m", "lumiimg", *map(str, argv)],
        env=os.environ | (env or {}),
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )
    if "--json" in argv and done.stdout:
        validated_output(str(argv[0]), done.stdout)
    return Result(done.returncode, done.stdout, done.stderr)


def inside(engine: Engine, image: Path, *argv: str, options: Sequence[str] = ()) -> str:
    """Run a program in the container; return its standard output."""
    done = subprocess.run([engine.path, "exec", *options, image, *argv], capture_output=True, text=True, check=True)
    return done.stdout


@pytest.fixture(scope="session")
def engine() -> Engine:
    try:
        return find_engine(os.environ)
    except MissingHereError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of this worker."""
    return tmp_path_factory.mktemp("images")


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of all workers of this run."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shared"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def demo(shared: Path) -> Path:
    """debian-13 + netprobe: a real RCCL 2.13.4, no plugin."""
    return built(shared / "demo.sif", "--recipe", "demo")


@pytest.fixture(scope="session")
def bare(shared: Path) -> Path:
    """Only debian-13, without probes."""
    return built(shared / "bare.sif", "--base", "debian-13")


@pytest.fixture(scope="session")
def small(shared: Path, images: Path) -> Path:
    """Debian 12 with a Python, for layers that change files: a third of `bare`, with an older C library."""
    layers = images / "layers-of-small"
    return built(shared / "small.sif", "--layers", layers, "--base", debian_12(layers))


@pytest.fixture(scope="session")
def with_plugin(shared: Path, images: Path) -> Path:
    """debian-13 + netprobe + the stand-in plugin, built by the script of the aws-ofi-nccl layer."""
    source = standin_archive(images / "a stand-in's archive.tar.gz")
    return built(
        shared / "with-plugin.sif", "--recipe", "demo", "--add", "aws-ofi-nccl", "--source", f"aws-ofi-nccl={source}"
    )


@pytest.fixture(scope="session")
def with_old_plugin(shared: Path, images: Path) -> Path:
    """The stand-in with only net API v4 to v6, like old plugins, built by the script of the aws-ofi-rccl layer."""
    source = standin_archive(images / "old.tar", old_abi=True)
    return built(
        shared / "old-plugin.sif", "--recipe", "demo", "--add", "aws-ofi-rccl", "--source", f"aws-ofi-rccl={source}"
    )


def standin_archive(path: Path, *, old_abi: bool = False) -> Path:
    """Pack the stand-in's sources; the same bytes each time, so that the layer is built once."""

    def plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.mtime = info.uid = info.gid = 0
        info.uname = info.gname = ""
        info.mode = 0o755 if info.isdir() or info.name.endswith("configure") else 0o644
        return info

    # uncompressed, which avoids gzip's time stamp; tar(1) recognizes that
    with tarfile.open(path, "w") as archive:
        archive.add(STANDIN, "standin-1.0", filter=plain, recursive=False)
        for file in sorted(STANDIN.iterdir()):
            archive.add(file, f"standin-1.0/{file.name}", filter=plain)
        if old_abi:
            archive.addfile(plain(tarfile.TarInfo("standin-1.0/old-abi")))
    return path


DEBIAN_12 = """\
kind = "base"
summary = "Debian 12: its Python is the one that wheels of the tests are for, its C library older than a node's"
source = "the tests"
date = 2026-11-21
provides = ["debian", "python3"]
has = { os = "Debian 12", glibc = "2.36", python = "3.11" }
include = ["ca-certificates", "libnl-3-200", "libnss-wrapper", "libstdc++6", "python3"]
[[bootstrap]]
agent = "debootstrap"
from = "bookworm"
mirror = "debian"
"""


def debian_12(layers: Path) -> str:
    """Write the base to a folder of layers, always the same, so that it is built once; return its name."""
    needs("debootstrap")
    write_layer(base := layers / "debian-12-of-tests", "apt-get clean\n", DEBIAN_12)
    return base.name


def write_layer(folder: Path, post: str = "true\n", toml: str = LAYER, **files: str) -> Path:
    """Write a layer to a new folder; return the folder of all layers. Other files by name, `_` for `.`: test_sh="…"."""
    folder.mkdir(parents=True)
    for name, text in {"layer.toml": toml, "post.sh": post, **files}.items():
        (folder / name.replace("_", ".")).write_text(text)
    return folder.parent


def built(path: Path, *argv: str | Path) -> Path:
    """Build an image, unless another worker has done so."""
    with path.with_name(f"{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.is_file():
            result = lumiimg("build", *argv, "-o", path)
            assert result.code == 0, result.err
    assert path.is_file()
    return path


def built_by_engine(engine: Engine, target: Path, *argv: str | Path, flags: Sequence[str] = ()) -> Path:
    """Build an image with only the engine, from the output of `build --definitions`, by a `build` for each layer."""
    folder = target.with_suffix(".definitions")
    written = lumiimg("build", *argv, "--definitions", folder, "--json")
    assert written.code == 0, written.err
    *chain, _ = (definition["name"] for definition in written.data["definitions"])
    for name in chain:
        engine_builds(engine, folder / f"{name}.def", folder / f"{name}.sif", *flags)
    (folder / f"{chain[-1]}.sif").rename(target)
    return target


def engine_builds(engine: Engine, definition: Path, target: Path, *flags: str) -> None:
    """Let the engine build a definition file, in the folder of that file."""
    fakeroot = ["--fakeroot"] if os.geteuid() else []
    packed = [PACKED_AS_OURS] if "--mksquashfs-args" in engine.build_flags else []
    words: list[str | Path] = [engine.path, "build", *fakeroot, *packed, *flags, target, definition.name]
    env = clean_environment(os.environ)
    done = subprocess.run(words, cwd=definition.parent, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


PACKED_AS_OURS = f"--mksquashfs-args={' '.join(PACKED)}"
"""How `lumiimg build` makes an engine pack; the engine's default takes four times the processor time."""
LIBFABRIC = "/usr/lib/x86_64-linux-gnu/libfabric.so.1"


def check(image: Path, *argv: str, env: dict[str, str] | None = None) -> Result:
    return lumiimg("check", image, "--json", *argv, env=env)


def findings(result: Result) -> dict[str, dict[str, Any]]:
    # the finding of the highest level for each id
    return {entry["id"]: entry for entry in reversed(result.data["findings"])}


LIB = "/usr/lib/x86_64-linux-gnu"
GPU_SITE = """\
title = "The machine of the stand-ins"
source = "this test"
date = 2026-11-22
[[bandwidth]]
test = "all_reduce_perf"
nodes = 2
ranks = 4
from_bytes = 134217728
gb_s = 60
least_gb_s = 1
source = "STANDIN_GB_S"
remedy = ["none"]
"""


@pytest.fixture(scope="module")
def gpus(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a user on a node with stand-in GPUs."""
    if shutil.which("gcc") is None:
        pytest.skip("no gcc here")
    folder = tmp_path_factory.mktemp("gpus")
    return {"APPTAINER_BIND": ",".join(f"{file}:{LIB}/{file.name}" for file in standin_libraries(folder))}


REGISTRY_CONFIG = """\
version: 0.1
storage: {{filesystem: {{rootdirectory: {folder}}}}}
http: {{addr: "127.0.0.1:{port}"}}
"""


@pytest.fixture(scope="module")
def mirror() -> str:
    found = apt_mirror("debian")
    if found is None:
        pytest.skip("this machine's apt sources name no Debian mirror")
    return found


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an empty registry, without TLS."""
    needs("docker-registry")
    folder = tmp_path_factory.mktemp("registry")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = folder / "config.yml"
    config.write_text(REGISTRY_CONFIG.format(folder=folder / "data", port=port))
    address = f"127.0.0.1:{port}"
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen(["docker-registry", "serve", config], stdout=log, stderr=log) as server,
    ):
        deadline = time.monotonic() + patient(20)
        while True:
            try:
                requests.get(f"http://{address}/v2/", timeout=patient(1)).raise_for_status()
                break
            except requests.RequestException:
                assert time.monotonic() < deadline, (folder / "log").read_text()
                time.sleep(0.1)
        yield address
        server.terminate()


SLURM_CONF_FILE = Path("/run/lumiimg-slurm/slurm.conf")


FOUR_NODES = """\
title = "four nodes on one machine"
source = "the tests"
date = 2026-11-26
scheduler = "Slurm"
engine = "Apptainer"

[[partition]]
name = "four"
nodes = 4
hours = 1
whole_nodes = true
source = "the tests"

[binding]
cores = 2
group = 1
near = [1, 0]
source = "the tests: crosswise, so that no default comes out the same"
"""
"""The site of `.ci/slurm`."""


@pytest.fixture
def slurm(request: pytest.FixtureRequest) -> dict[str, str]:
    """The environment of a user of the Slurm."""
    assert group(request.node.nodeid) == SLURM, "another worker may use it: name this test in groups.py"
    if not SLURM_CONF_FILE.exists():
        pytest.skip("no Slurm here: .ci/slurm start")
    return os.environ | {"SLURM_CONF": str(SLURM_CONF_FILE)}


# all four nodes are this machine, and RCCL counts nodes by their names
NAMED = "echo export APPTAINER_HOSTNAME=$SLURMD_NODENAME"


def prolog(folder: Path, *lines: str) -> dict[str, str]:
    """Return the variables that make each task of a step begin with these lines of shell."""
    file = folder / "prolog"
    file.write_text("\n".join(("#!/bin/sh", *lines, "")))
    file.chmod(0o755)
    return {"SLURM_TASK_PROLOG": str(file)}


def other_libfabric(engine: Engine, image: Path, folder: Path) -> str:
    """Return the bind of a copy of the image's libfabric with another build ID."""
    data = subprocess.run([engine.path, "exec", image, "cat", LIBFABRIC], capture_output=True, check=True).stdout
    built = bytes.fromhex(read_elf(BytesInMemory(data)).build_id or "")
    (folder / "other.so").write_bytes(data.replace(built, bytes(len(built))))
    return f"{folder}/other.so:{LIBFABRIC}"
