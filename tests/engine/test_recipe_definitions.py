"""A real engine accepts the definition files of every recipe: header, files, sections, scripts.

The scripts are not run: that needs a GPU vendor's images and hours. The engine passes each to the image's bash, which
parses it (`bash -n`) and runs nothing: this does not prove what a script does, only that bash receives a valid one.
"""

from __future__ import annotations

import io
import shlex
import shutil
import subprocess
import tarfile
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lumiimg.catalog.catalogue import open_catalogue
from lumiimg.catalog.folders import shipped_layers
from lumiimg.core.errors import ExitCode
from lumiimg.resolve.lock_file import read_document
from tests.engine.conftest import lumiimg
from tests.shared.layer_builder import RECIPES
from tests.shared.small_roots import small_root
from tests.shared.world import World, archive_of, serve, wheels_of_layers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lumiimg.engine.engine import Engine

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("engine")]

RUN = "%post -c /bin/bash\n"
READ = "%post -c /bin/bash -n\n"


@dataclass(frozen=True)
class Definitions:
    """What `lumiimg build --definitions` wrote, and the commands that it printed to run there."""

    folder: Path
    commands: tuple[tuple[str, ...], ...]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A registry in which every image is a root with bash; indexes with an empty wheel for every pin of a layer."""
    wheels, root = wheels_of_layers(), io.BytesIO()
    with tarfile.open(fileobj=root, mode="w") as archive:
        archive.add(small_root(tmp_path_factory.mktemp("small") / "root"), ".")
    with serve(World(of_layers=wheels, wheels=wheels, image=root.getvalue())) as world:
        yield world


def only_from_registry(base: Path) -> None:
    """Reduce a base (a layer's folder) to its registry image, as on a machine without debootstrap."""
    head, *bootstraps = (base / "layer.toml").read_text().split("[[bootstrap]]")
    docker = next(entry for entry in bootstraps if '"docker"' in entry)
    (base / "layer.toml").write_text(f"{head}[[bootstrap]]{docker}")


def rendered(recipe: str, world: World, folder: Path) -> Definitions:
    """Lock a recipe and write its definitions, with stand-ins for the source archives, whose digests are known."""
    base = folder / "layers" / "debian-13"
    shutil.copytree(shipped_layers() / "debian-13", base)
    only_from_registry(base)
    words = ["--layers", str(base.parent), *world.mirrors]

    def run(*argv: str) -> str:
        # A separate cache: stand-ins for wheels must not get into the user's.
        result = lumiimg(*argv, *words, cwd=folder, env={"LUMIIMG_CACHE": str(folder / "cache")})
        assert result.code == ExitCode.GOOD, result.err
        return result.out

    run("lock", "--recipe", recipe)
    lock = read_document(folder / "lumiimg.lock")
    layers = [(entry.release, open_catalogue({}).layer(entry.name)) for entry in lock.layer]
    chosen = [
        (next((row for row in layer.releases if row.version == release), None), layer) for release, layer in layers
    ]
    sources = [source.name for row, layer in chosen for source in layer.sources_of(row) if not source.optional]
    for name in sources:
        files = {"README": f"stands in for the archive of {name}"} | dict.fromkeys(requirement_files(name), "")
        (folder / f"{name}.tar.gz").write_bytes(archive_of(files))
    run("lock", "--recipe", recipe, *(word for name in sources for word in ("--source", f"{name}={name}.tar.gz")))
    printed = run("build", "--locked", "--trust-lock", "--definitions", "defs")
    lines = [line for line in printed.splitlines() if line.startswith("    apptainer build")]
    return Definitions(folder / "defs", tuple(tuple(shlex.split(line)) for line in lines))


def requirement_files(name: str) -> Iterator[str]:
    """Yield the files of an archive that the shipped layer of this name reads."""
    layer = shipped_layers() / name / "layer.toml"
    for source in tomllib.loads(layer.read_text())["sources"].values() if layer.exists() else ():
        yield from source.get("requirements", [])


def take(engine: Engine, folder: Path, command: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    """Run a command as printed, except that bash only parses the script, and no test is run."""
    definition = folder / command[-1]
    text = definition.read_text()
    if READ not in text:
        assert text.count(RUN) == 1
        definition.write_text(text.replace(RUN, READ))
    argv = [str(engine.path), command[1], "--notest", *command[2:]]
    return subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("recipe", [*RECIPES, "demo"])
def test_the_engine_takes_every_definition_of_a_recipe(
    recipe: str, world: World, engine: Engine, tmp_path: Path
) -> None:
    definitions = rendered(recipe, world, tmp_path)
    folder = definitions.folder
    texts = {path.name: path.read_text() for path in folder.glob("*.def")}
    assert {command[-1] for command in definitions.commands} == texts.keys()
    for command in definitions.commands:
        done = take(engine, folder, command)
        assert done.returncode == 0, f"{command[-1]}: {done.stderr[-2000:]}"


@pytest.fixture(scope="module")
def whole(world: World, tmp_path_factory: pytest.TempPathFactory) -> Definitions:
    return rendered("rccl-only", world, tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("\n%labels\n", "\n%labelz\n", "labelz"),
        ("rm -rf /opt/lumiimg/build\n", "(\n", "syntax error"),
        ("handshake.c ", "nowhere.c ", "nowhere.c"),
    ],
)
def test_the_same_call_refuses_a_definition_that_is_spoilt(
    old: str, new: str, expected: str, whole: Definitions, engine: Engine, tmp_path: Path
) -> None:
    folder = tmp_path / "defs"
    shutil.copytree(whole.folder, folder)
    text = (folder / "flat.def").read_text()
    assert old in text
    (folder / "flat.def").write_text(text.replace(old, new, 1))
    (flat,) = [command for command in whole.commands if command[-1] == "flat.def"]
    done = take(engine, folder, flat)
    assert (done.returncode != 0, expected in done.stderr) == (True, True), done.stderr
    assert not (folder / "image.sif").exists()
