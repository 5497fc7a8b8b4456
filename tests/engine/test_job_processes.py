"""The process of a job on glibcs of other releases, and in an engine's container: what is predicted is opened."""

from __future__ import annotations

import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from lumiimg.core.errors import ExitCode
from lumiimg.core.findings import Answer
from lumiimg.fabric.rccl import generation_of
from tests.engine.conftest import check, findings
from tests.shared.elf_builder import library, rpath
from tests.shared.job import sources
from tests.shared.job.bases import BASES, make
from tests.shared.job.generator import Case, Machine, cases
from tests.shared.job.pairs import Grade, pair_of
from tests.shared.job.system import DEBIANS, debian_system, fetch_debian, system_here
from tests.shared.job.world import c_library_of, clone
from tests.shared.programs import EVERYTHING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.shared.job.pairs import Pair
    from tests.shared.job.system import SystemFiles
    from tests.shared.job.world import World


pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("engine")]

_ONE_OF = 90
_CI_TAKES_ONE_OF = 400


@pytest.fixture(scope="module")
def systems(mirror: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, SystemFiles]:
    folder = tmp_path_factory.mktemp("releases")
    with ThreadPoolExecutor() as pool:  # they wait for the network
        roots = [*pool.map(lambda suite: fetch_debian(suite, mirror, folder / suite), DEBIANS)]
    made = zip(DEBIANS, roots, strict=True)
    return {suite: debian_system(root, suite, folder / f"system-{suite}") for suite, root in made}


@pytest.mark.parametrize("suite", DEBIANS)
def test_on_an_older_glibc_no_answer_is_another_than_what_happens(
    suite: str, systems: dict[str, SystemFiles], tmp_path: Path
) -> None:
    """The newest one is that of this machine, which the unit tests use."""
    assert systems[suite].glibc == DEBIANS[suite]
    machine = Machine(tmp_path / "images", systems[suite])
    start = [*DEBIANS].index(suite)
    own = [*map(Case, BASES)] if EVERYTHING else [*map(Case, BASES)][start :: 2 * len(DEBIANS)]
    wanted = [*own, *cases()[start :: _ONE_OF if EVERYTHING else _CI_TAKES_ONE_OF]]
    assert [str(pair) for pair in machine.pairs(wanted) if pair.grade not in {Grade.RIGHT, Grade.OPEN}] == []


@pytest.mark.parametrize("suite", DEBIANS)
def test_of_parts_of_two_c_libraries_no_answer_is_another_than_what_happens(
    suite: str, systems: dict[str, SystemFiles], tmp_path: Path
) -> None:
    """One part at a time comes from another release: ld.so, libc and most others end the process, but not all do."""
    system = systems[suite]
    base = make("torch-with-rccl", tmp_path / "base", system)
    pairs: list[Pair] = []
    for other in (*DEBIANS.keys() - {suite},) if EVERYTHING else (next(iter(DEBIANS.keys() - {suite})),):
        parts = {file.name: file for file in systems[other].libraries} | {"": systems[other].loader}
        for name in ("", "libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0"):
            world = clone(base, tmp_path / f"{other}-{name}")
            path = f"{system.folder}/{name}" if name else "/usr/lib64/ld-linux-x86-64.so.2"
            world.take(path, parts[name])
            pairs.append(pair_of(f"{suite} with {name or 'ld.so'} of {other}", world, {}, None))
            if name in {"", "libc.so.6"}:
                assert pairs[-1].answer is Answer.NO, pairs[-1]
    assert [str(pair) for pair in pairs if pair.grade not in {Grade.RIGHT, Grade.OPEN}] == []


@pytest.fixture(scope="module")
def images_of_jobs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, World]:
    """A few of the known-good images; RCCL 2.21.5 opens its plugin when a unique id is requested."""
    folder = tmp_path_factory.mktemp("jobs")
    system = system_here(folder / "system")
    names = ("torch-with-rccl", "conda", "in-the-cache")
    worlds = {name: make(name, folder / name, system) for name in names}
    for world in worlds.values():
        for name in ("env", "sh", "readlink", "cat"):
            put_program(world, name)
    return worlds


def put_program(world: World, name: str) -> None:
    """Put a program of this machine and its libraries into an image: engines and probes start some."""
    path = f"/usr/bin/{name}"
    listed = subprocess.run(["ldd", path], capture_output=True, text=True, check=True).stdout.split()
    for file in [path, *(word for word in listed if word.startswith("/"))]:
        if not world.at(file).exists():
            with open(file, "rb") as source:  # noqa: PTH123
                world.put(os.path.realpath(file) if file == path else file, source.read())
            if os.path.realpath(file) != file and file == path:
                world.link(path, os.path.realpath(path))


def test_in_the_container_a_job_opens_what_the_files_say(images_of_jobs: dict[str, World]) -> None:
    for name, world in images_of_jobs.items():
        found = findings(check(world.root, "--level", "probe"))
        assert found["program.opens"]["severity"] == "ok", (name, found)
        assert "program.other-files" not in found, name


VERSION = "2.27.7"
FINDS = """\
import sys
from _frozen_importlib_external import PathFinder
class Finder:
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return PathFinder.find_spec(name, ['/opt/src']) if name == 'torch' else None
sys.meta_path.insert(0, Finder)
"""


@pytest.fixture(scope="module")
def of_torch(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A good image, whose RCCL only searches for its plugin if there is a GPU."""
    folder = tmp_path_factory.mktemp("start-up")
    world = make("torch-with-rccl", folder / "good", system_here(folder / "system"))
    package = world.torch("/usr", "librccl.so", VERSION)
    speaking_rccl(world, package, VERSION)
    world.remove(world.plugin_file)
    world.plugin("/opt/plugin/lib/libnccl-net.so")
    for name in ("env", "sh", "readlink", "cat"):
        put_program(world, name)
    return world


def speaking_rccl(world: World, package: str, version: str) -> None:
    """Put an RCCL that reports this version into a torch."""
    known = generation_of(version)
    assert known is not None
    major, minor, patch = version.split(".")
    says = f"int ncclGetVersion(int *version) {{ *version = {major}{minor:>02}{patch:>02}; return 0; }}"
    source = sources.rccl(version, known.files, known.accepts, known.naming) + says
    hip = world.at(f"{package}/lib/libamdhip64.so.6")
    library(world.new(f"{package}/lib/librccl.so"), hip, *c_library_of(world.parts), *rpath("$ORIGIN"), source=source)


def sets_network(world: World) -> None:
    world.put(
        f"{world.folder_of('/usr')}/zz.pth", "import os; os.environ['NCCL_NET'] = ''.join(['So', 'cket'])\n", 0o644
    )


def hooks_nothing(world: World) -> None:
    site = world.folder_of("/usr")
    world.put(f"{site}/hook.py", FINDS.replace("'torch'", "'another'"), 0o644)
    world.put(f"{site}/hook.pth", "import hook\n", 0o644)


def is_editable(world: World) -> None:
    site = world.folder_of("/usr")
    world.move(f"{site}/torch", "/opt/src/torch")
    world.put(f"{site}/__editable___torch_finder.py", FINDS, 0o644)
    world.put(f"{site}/__editable__.torch.pth", "import __editable___torch_finder\n", 0o644)


def imports_another(world: World) -> None:
    """Make start-up code import another torch, whose RCCL searches for a plugin of another name."""
    site = world.folder_of("/usr")
    shutil.copytree(world.at(f"{site}/torch"), world.at("/opt/src/torch"))
    speaking_rccl(world, "/opt/src/torch", "2.26.6")
    world.put(f"{site}/hook.py", FINDS, 0o644)
    world.put(f"{site}/hook.pth", "import hook\n", 0o644)


def evaluates(world: World, text: str = "export NCCL_NET=$(printf Socket)") -> None:
    world.put("/.singularity.d/env/91-more.sh", f'eval "{text}"\n')


def evaluates_to_nothing(world: World) -> None:
    evaluates(world, "export NCCL_NET=$(printf x); unset NCCL_NET")


def is_started_by_a_script(world: World) -> None:
    for name in ("python", "python3"):
        world.put(f"/usr/bin/{name}", f'#!/bin/sh\nexec /usr/bin/python{world.system.version} "$@"\n')


START_UPS: dict[str, tuple[Callable[[World], None], str | None]] = {
    "sets NCCL_NET": (sets_network, "network.forced"),
    "a hook that is not about torch": (hooks_nothing, None),
    "an editable install": (is_editable, None),
    "a hook that imports another torch": (imports_another, "plugin.other-name"),
    "a script that only a shell follows": (evaluates, "network.forced"),
    "a script that comes to nothing": (evaluates_to_nothing, None),
    "python is a script": (is_started_by_a_script, None),
}


@pytest.mark.parametrize("engine_of", [{}, {"LUMIIMG_ENGINE": "namespaces"}], ids=["engine", "kernel"])
@pytest.mark.parametrize(("change", "identity"), START_UPS.values(), ids=START_UPS.keys())
def test_what_files_leave_open_of_a_process_is_answered_by_the_process(
    of_torch: World,
    tmp_path: Path,
    change: Callable[[World], None],
    identity: str | None,
    engine_of: dict[str, str],
) -> None:
    world = clone(of_torch, tmp_path / "image")
    change(world)
    files = check(world.root, "--level", "static")
    assert files.code == ExitCode.UNDECIDED
    assert "not examined: /" in files.data["levels"]["static"]
    result = check(world.root, "--level", "probe", env=engine_of)
    found = findings(result)
    assert found["program.opens"]["severity"] == "ok", found
    if identity is None:
        assert result.code == ExitCode.GOOD, found
        assert "without a NIC" in result.data["sentence"]
    else:
        assert result.code == ExitCode.NO, found
        assert (found[identity]["severity"], found[identity]["level"]) == ("problem", "probe")


def test_a_library_that_a_bind_puts_in_front_is_found_by_starting_the_program(
    images_of_jobs: dict[str, World], tmp_path: Path
) -> None:
    """A host folder over one that Python's DT_RPATH names, which the files cannot show."""
    world = images_of_jobs["conda"]
    stray = tmp_path / "stray"
    stray.mkdir()
    world.fabric("/stray-fabric")
    for file in (world.at("/stray-fabric")).iterdir():
        file.rename(stray / file.name)
    target = "/opt/conda/lib/libfabric.so.1"
    binds = f"{stray / 'libfabric.so.1'}:{target}"
    found = findings(check(world.root, "--level", "probe", env={"APPTAINER_BIND": binds}))
    difference = found["program.other-files"]
    assert difference["severity"] == "unknown"
    assert f"opened unexpectedly: {target}" in difference["evidence"]


def test_the_plain_python_of_a_real_image_opens_its_rccl_and_rccl_its_plugin(with_plugin: Path) -> None:
    result = check(with_plugin)
    found = findings(result)
    assert found["program.opens"]["severity"] == "ok", found
    run = next(run for run in result.data["probes"] if run["name"] == "job")
    opened = [event["path"] for event in run["events"] if event["topic"] == "opened"]
    assert any(path.rpartition("/")[2].startswith("librccl-net") for path in opened)
