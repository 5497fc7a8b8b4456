"""The definition files of every recipe are taken by a real engine: header, files, environment, labels, tests, scripts.

The scripts are not run: that needs a GPU vendor's images and hours. The engine hands each to the image's bash, which
reads it (`bash -n`) and runs nothing: what a script does is not proved here, but that what bash gets of it is a script.
"""

from __future__ import annotations

import io
import re
import shlex
import shutil
import subprocess
import tarfile
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lumiimg.catalog.folders import shipped_layers
from lumiimg.errors import ExitCode
from lumiimg.image import open_image
from tests.engine.conftest import inside, lumiimg, only_from_registry
from tests.shared.layer_builder import RECIPES
from tests.shared.programs import needs
from tests.shared.world import World, archive_of, serve, wheels_of_layers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lumiimg.engine.engine import Engine

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("engine")]

RUN = "%post -c /bin/bash\n"
READ = "%post -c /bin/bash -n\n"


def root_with_bash() -> bytes:
    """Return the smallest root in which an engine can build: this machine's bash, and what it loads."""
    needs("bash", "ldd")
    listed = subprocess.run(["ldd", "/bin/bash"], capture_output=True, text=True, check=True).stdout
    libraries = re.findall(r"(/\S+) \(0x", listed)
    assert libraries, listed
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for target, source in {"bin/bash": "/bin/bash", "bin/sh": "/bin/bash", **{x[1:]: x for x in libraries}}.items():
            archive.add(Path(source).resolve(), target)
        for name in ("dev", "etc", "proc", "sys", "tmp"):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(folder)
    return buffer.getvalue()


@dataclass(frozen=True)
class Definitions:
    """What `lumiimg build --definitions` wrote, and the commands that it said to run there."""

    folder: Path
    commands: tuple[tuple[str, ...], ...]


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """A registry whose every image is a root with bash; indexes with every wheel that a layer pins, empty."""
    wheels = wheels_of_layers()
    with serve(World(of_layers=wheels, wheels=wheels, image=root_with_bash())) as world:
        yield world


def rendered(recipe: str, world: World, folder: Path) -> Definitions:
    """Lock a recipe and write its definitions, with stand-ins for the source archives, whose digests are known."""
    base = folder / "layers" / "debian-13"
    shutil.copytree(shipped_layers() / "debian-13", base)
    only_from_registry(base)
    words = ["--layers", str(base.parent), *world.mirrors]

    def run(*argv: str) -> str:
        # A cache of its own: what stands in for wheels has no place in the user's.
        result = lumiimg(*argv, *words, cwd=folder, env={"LUMIIMG_CACHE": str(folder / "cache")})
        assert result.code == ExitCode.GOOD, result.err
        return result.out

    run("lock", "--recipe", recipe)
    lock = tomllib.loads((folder / "lumiimg.lock").read_text())
    sources = [source["name"] for layer in lock["layer"] for source in layer["source"]]
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
    """Run a command as it was printed, but that bash reads the script instead of running it, and no test is run."""
    definition = folder / command[-1]
    text = definition.read_text()
    if READ not in text:
        assert text.count(RUN) == 1
        definition.write_text(text.replace(RUN, READ))
    argv = [str(engine.path), command[1], "--notest", *command[2:]]
    return subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)


def section(text: str, name: str) -> list[str]:
    """Return the lines of a section, in our own reading of the file."""
    found = re.search(rf"^%{name}[^\n]*\n(.*?)(?=^%|\Z)", text, re.MULTILINE | re.DOTALL)
    return [line.strip() for line in found[1].splitlines() if line.strip()] if found else []


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
    # The last of the chain has what all the definitions of the chain say, as the flat one has it at once.
    chain = [name for name in texts if name != "flat.def"]
    assert len(chain) > 1
    last = folder / f"{max(chain).removesuffix('.def')}.sif"
    for image, of in ((last, [texts[name] for name in sorted(chain)]), (folder / "image.sif", [texts["flat.def"]])):
        holds_what_is_said(engine, image, of)


def holds_what_is_said(engine: Engine, image: Path, texts: list[str]) -> None:
    """Look for all that the definitions say in the image: files, labels, the environment, tests of every layer."""
    with open_image(image) as opened:
        for line in (line for text in texts for line in section(text, "files")):
            source, target = line.split()
            assert opened.root.read_bytes(target, 1 << 30) == (image.parent / source).read_bytes()
        labels = [line.split() for text in texts for line in section(text, "labels")]
        assert {name: opened.labels.get(name) for name, _ in labels} == dict(labels)
        test = opened.root.read_bytes("/.singularity.d/test", 1 << 20).decode()
    assert test.startswith("#!/bin/bash\n")
    assert [line for line in test.splitlines() if line.startswith("# lumiimg: layer")] == [
        line for line in section(texts[-1], "test") if line.startswith("# lumiimg: layer")
    ]
    inside(engine, image, "/bin/bash", "-n", "/.singularity.d/test")
    exports = [line for text in texts for line in section(text, "environment")]
    names = sorted({line.split("=")[0].removeprefix("export ") for line in exports})
    show = 'for name; do printf "%s\\n" "${!name}"; done'
    said = ["/bin/bash", "-c", "\n".join([*exports, show]), "bash", *names]
    wanted = subprocess.run(said, env={"PATH": ""}, capture_output=True, text=True, check=True).stdout.splitlines()
    has = inside(engine, image, "/bin/bash", "-c", show, "bash", *names).splitlines()
    assert len(has) == len(names)
    for name, value, there in zip(names, wanted, has, strict=True):
        # Behind a search path stands what the engine has of its own.
        assert there == value or (name.endswith("PATH") and there.startswith(f"{value}:")), name


def a_section_that_is_none(folder: Path) -> None:
    edit(folder, "\n%labels\n", "\n%labelz\n")


def a_file_that_is_not_there(folder: Path) -> None:
    (folder / "files/netprobe/files/handshake.c").unlink()


def a_script_that_breaks_off(folder: Path) -> None:
    edit(folder, "rm -rf /opt/lumiimg/build\n", "(\n")


def an_image_of_another_digest(folder: Path) -> None:
    text = (folder / "flat.def").read_text()
    edit(folder, found[0] if (found := re.search("@sha256:[0-9a-f]{64}", text)) else "", f"@sha256:{'0' * 64}")


def edit(folder: Path, old: str, new: str) -> None:
    path = folder / "flat.def"
    text = path.read_text()
    assert text.count(old) == 1, old
    path.write_text(text.replace(old, new))


@pytest.fixture(scope="module")
def whole(world: World, tmp_path_factory: pytest.TempPathFactory) -> Definitions:
    return rendered("rccl-only", world, tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (a_section_that_is_none, "labelz"),
        (a_file_that_is_not_there, "handshake.c"),
        (a_script_that_breaks_off, "syntax error"),
        (an_image_of_another_digest, "0" * 64),
    ],
)
def test_the_same_call_refuses_a_definition_that_is_spoilt(
    spoil: Callable[[Path], None], told: str, whole: Definitions, engine: Engine, tmp_path: Path
) -> None:
    folder = tmp_path / "defs"
    shutil.copytree(whole.folder, folder)
    spoil(folder)
    (flat,) = [command for command in whole.commands if command[-1] == "flat.def"]
    done = take(engine, folder, flat)
    assert done.returncode != 0
    assert told in done.stderr
    assert not (folder / "image.sif").exists()
