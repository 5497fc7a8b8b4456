"""What engines write into an image is written here, too: each file, mode, link and byte is that of the real one."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
from typing import TYPE_CHECKING

import pytest

from lumiimg.build.engine_metadata import VERSION, begin_base, begin_layer, build_date, write_facts
from lumiimg.build.inspection import INSPECTED, inspected
from lumiimg.build.layer_root import LayerRoot
from lumiimg.definition.engine_reader import read_definition
from lumiimg.engine.engine import EngineKind
from lumiimg.image import open_image, sif_writer
from tests.shared.nasty_metadata import chains
from tests.shared.oci_builder import tar
from tests.shared.programs import needs, tenth_of

if TYPE_CHECKING:
    from pathlib import Path

    from lumiimg.engine.engine import Engine
    from tests.shared.nasty_metadata import Chain

pytestmark = pytest.mark.engine

CHAINS = chains(tenth_of(200), seed=20)
DATE = re.compile(rb'(org\.label-schema\.build-date\\?":\s*\\?")[A-Z][a-z]+day_\d+_[0-9A-Za-z_:]+')


@pytest.fixture(scope="module")
def apptainer(engine: Engine) -> Engine:
    if engine.kind is not EngineKind.APPTAINER or not engine.version.startswith(VERSION):
        pytest.skip(f"what is written is that of Apptainer {VERSION}, and here is {engine.kind} {engine.version}")
    return engine


def dated(content: bytes) -> bytes:
    """Return text with our date in place of the day's: results are the same whenever they are built."""
    return DATE.sub(lambda found: found[1] + build_date().encode(), content)


def seen(root: Path) -> dict[str, tuple[int, object]]:
    """Return mode and content of everything in a folder, by path."""
    found: dict[str, tuple[int, object]] = {}
    for path in (root, *root.rglob("*")):
        mode = path.lstat().st_mode
        content: object = None
        if stat.S_ISLNK(mode):
            content = str(path.readlink())
        elif stat.S_ISREG(mode):
            content = dated(path.read_bytes())
        found[f"/{path.relative_to(root)}"] = (mode, content)
    return found


def differences(ours: Path, theirs: Path) -> dict[str, tuple[object, object]]:
    mine, real = seen(ours), seen(theirs)
    return {path: (mine.get(path), real.get(path)) for path in mine | real if mine.get(path) != real.get(path)}


def real(engine: Engine, folder: Path, target: str) -> None:
    words: list[str] = ["--sandbox"] if not target.endswith(".real.sif") else []
    argv: list[str | Path] = [engine.path, "build", "--fakeroot", "--notest", *words, target, "it.def"]
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def unpacked(chain: Chain, folder: Path) -> Path:
    folder.mkdir()
    subprocess.run(["tar", "-xpf", "-", "-C", folder], input=tar(*chain.members), check=True)
    return folder


def setup(text: str, root: Path) -> None:
    """Run a definition's script for the machine, as the engine does before `%post`."""
    section = read_definition(text).sections.get("setup")
    if section is not None:
        script = f"umask 002\n{section.text}"  # that of the engine
        subprocess.run(
            ["sh", "-e"], input=script, env=os.environ | {"APPTAINER_ROOTFS": f"{root}"}, text=True, check=True
        )


@pytest.mark.parametrize("chain", CHAINS, ids=range(len(CHAINS)))
def test_each_file_of_a_chain_is_that_of_the_engine(chain: Chain, apptainer: Engine, tmp_path: Path) -> None:
    needs("mksquashfs")
    ours = unpacked(chain, tmp_path / "ours") if chain.agent != "scratch" else tmp_path / "ours"
    ours.mkdir(exist_ok=True)
    (tmp_path / "base").mkdir()
    if chain.agent == "oci":
        chain.layout().write_folder(tmp_path / "base")
    elif chain.agent == "localimage":
        shutil.copytree(ours, tmp_path / "base", symlinks=True, dirs_exist_ok=True)
    for number, text in enumerate(chain.definitions):
        (tmp_path / "it.def").write_text(text, encoding="utf-8")
        real(apptainer, tmp_path, "next.sif")
        if number == 0 and chain.agent != "localimage":
            begin_base(LayerRoot(ours), chain.config if chain.agent == "oci" else None)
        else:
            ours.chmod(0o755)  # of a folder, the engine copies what is in it
            begin_layer(LayerRoot(ours))
        setup(text, ours)
        write_facts(LayerRoot(ours), read_definition(text))
        assert differences(ours, tmp_path / "next.sif") == {}, text
        if number + 1 < len(chain.definitions):
            shutil.rmtree(tmp_path / "below.sif", ignore_errors=True)
            (tmp_path / "next.sif").rename(tmp_path / "below.sif")
    real(apptainer, tmp_path, "it.real.sif")
    packed = sif(ours, read_definition(chain.definitions[-1]).text, tmp_path / "it.ours.sif")
    assert shown(apptainer, packed) == shown(apptainer, tmp_path / "it.real.sif")


def sif(root: Path, text: str, target: Path) -> Path:
    with open_image(root) as image:
        front = sif_writer.Front(text, {INSPECTED: inspected(image.root, text)})
    argv: list[str | Path] = [
        "mksquashfs",
        root,
        target,
        "-quiet",
        "-no-progress",
        "-all-root",
        "-offset",
        f"{front.size_bytes}",
    ]
    subprocess.run(argv, check=True, capture_output=True)
    sif_writer.write_front(target, front, identity="it")
    return target


def shown(engine: Engine, image: Path) -> tuple[bytes, object]:
    """Return what the engine put into the SIF to be shown, and what it shows."""
    table = subprocess.run([engine.path, "sif", "list", image], capture_output=True, text=True, check=True).stdout
    numbers = [line.split("|")[0].strip() for line in table.splitlines() if "JSON" in line]
    held = [
        subprocess.run([engine.path, "sif", "dump", number, image], capture_output=True, check=True).stdout
        for number in numbers
    ]
    told = subprocess.run([engine.path, "inspect", "--all", image], capture_output=True, check=True).stdout
    return dated(next(data for data in held if data.startswith(b'{"data":'))), json.loads(dated(told))
