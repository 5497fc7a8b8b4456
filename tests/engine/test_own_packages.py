"""A user's requirement file in an image, out of an index on loopback: built, imported, and what is below is as it was.

torch is a stand-in: a module that says of itself what ROCm's says. Everything else is real, pip and the scripts of the layer included.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tomllib
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lumiimg.catalog.folders import shipped_layers
from lumiimg.errors import ExitCode
from tests.engine.conftest import Result, inside, lumiimg
from tests.shared.layer_builder import LAYER
from tests.shared.world import World, metadata_of, serve

if TYPE_CHECKING:
    from lumiimg.engine.engine import Engine

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("engine")]

TORCH = "2.9.1+rocm5.4"
OF_TORCH = f"""\
{LAYER}requires = ["python3"]
files = ["check.py", "packages.sh", "python.sh"]
[environment.prepend]
PATH = "/opt/venv/bin"
[[release]]
version = "2.9.1"
has = {{ torch = "{TORCH}" }}
wheels = ["torch=={TORCH}"]
indexes = ["https://download.pytorch.org/whl/rocm5.4"]
source = "the tests"
"""
POST = 'layer=torch-of-tests\n. "$LAYER_FILES/python.sh"\nuse_venv\ninstall_wheels\nwrite_constraints\nfinish_python\n'
USE = "import little_tool, torch; print(little_tool.greeting(), torch.__version__)"


def write_wheel(folder: Path, name: str, version: str, requires: tuple[str, ...], text: str) -> Path:
    """Write a wheel of one module."""
    file = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(f"{name}/__init__.py", text)
        archive.writestr(f"{info}/METADATA", metadata_of(name, version, requires))
        about = "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        archive.writestr(f"{info}/WHEEL", about)
        archive.writestr(f"{info}/RECORD", "")
    return file


@dataclass(frozen=True)
class Made:
    """The image, and where it was made."""

    folder: Path
    common: tuple[str, ...]
    env: dict[str, str]

    def run(self, *words: str) -> Result:
        return lumiimg(*words, *self.common, cwd=self.folder, env=self.env)

    @property
    def image(self) -> Path:
        return self.folder / "image.sif"


@pytest.fixture(scope="module")
def made(images: Path) -> Iterator[Made]:
    folder = images / "own"
    layer = folder / "layers/torch-of-tests"
    shutil.copytree(shipped_layers() / "pytorch", layer)
    (layer / "layer.toml").write_text(OF_TORCH)
    (layer / "post.sh").write_text(POST)
    (layer / "test.sh").unlink()
    torch = f'from types import SimpleNamespace\n__version__ = "{TORCH}"\nversion = SimpleNamespace(hip="5.4.43121")\n'
    files = (
        write_wheel(folder, "torch", TORCH, (), torch),
        write_wheel(folder, "little_tool", "1.5", ("torch>=2", "helper"), "from helper import greeting\n"),
        write_wheel(folder, "helper", "0.1", (), "def greeting():\n    return 'hello'\n"),
        write_wheel(folder, "beside", "1.0", ("torch>=2", "helper"), "from helper import greeting\n"),
        write_wheel(folder, "other_torch", "1.0", ("torch==9.9",), ""),
    )
    (folder / "requirements.txt").write_text("# mine\nLittle.Tool>=1\ntorch\n")
    with serve(World(files=files)) as world:
        mirrors = (f"https://download.pytorch.org={world.url}", f"pypi={world.url}/whl")
        common = ("--layers", str(folder / "layers"), *(word for pair in mirrors for word in ("--mirror", pair)))
        made = Made(folder, common, {})
        request = ("--base", "debian-13", "--site", "generic", "--add", "torch-of-tests", "-r", "requirements.txt")
        locked = made.run("lock", *request)
        assert locked.code == ExitCode.GOOD, locked.err
        done = made.run("build", "--locked", "-o", "image.sif")
        log = folder / "image.sif.log"
        assert done.code == ExitCode.GOOD, done.err + (log.read_text()[-3000:] if log.exists() else "")
        yield made


def test_what_was_asked_for_is_imported_beside_the_torch_of_the_layer_below(made: Made, engine: Engine) -> None:
    assert inside(engine, made.image, "python3", "-c", USE).split() == ["hello", TORCH]
    assert "No broken requirements found" in inside(engine, made.image, "python3", "-m", "pip", "check")
    packages = tomllib.loads((made.folder / "lumiimg.lock").read_text())["python"]["packages"]
    own = [one["name"] for one in packages if one["tool"]["lumiimg"]["layer"] == "own-packages"]
    assert sorted(own) == ["helper", "little-tool"]


def test_the_image_names_what_was_asked_for_and_all_that_came(made: Made) -> None:
    shown = lumiimg("show", made.image, "--json").data
    (own,) = [one for one in shown["plan"]["layers"] if one["name"] == "own-packages"]
    assert own["requirements"] == ["Little.Tool>=1", "torch"]
    found = {component["purl"] for component in shown["sbom"]["components"] if "purl" in component}
    assert {"pkg:pypi/little-tool@1.5", "pkg:pypi/helper@0.1"} <= found
    assert "own-packages, 2 sources, for Little.Tool>=1, torch" in lumiimg("show", made.image).out


def test_the_image_alone_is_built_again(made: Made) -> None:
    mirrors = made.common[2:]
    done = lumiimg("rebuild", made.image, "-o", "again.sif", *mirrors, cwd=made.folder, env=made.env)
    assert done.code == ExitCode.GOOD, done.err


def test_what_is_read_in_a_finished_image_is_held_too(made: Made) -> None:
    (made.folder / "more.txt").write_text("helper\ntorch==2.9.0\nlittle-tool<1\n")
    request = ("lock", "--base", "image.sif", "--site", "generic", "-r", "more.txt", "-o", "more.lock")
    refused = made.run(*request)
    assert refused.code == ExitCode.NO
    assert f"line 2 of more.txt requires torch==2.9.0, and the image has torch {TORCH}, which stays" in refused.err
    (made.folder / "more.txt").write_text("helper\ntorch>=2.9\n")
    assert made.run(*request).code == ExitCode.GOOD
    assert "packages" not in tomllib.loads((made.folder / "more.lock").read_text()).get("python", {})


def test_an_environment_over_it_sees_its_torch_and_what_else_it_has(made: Made, engine: Engine) -> None:
    """The Python of the image is a venv itself, which a venv over it looks past."""
    mirrors = made.common[2:]
    done = lumiimg("venv", "image.sif", "beside", "-o", "env.sqsh", *mirrors, cwd=made.folder, env=made.env)
    assert done.code == ExitCode.GOOD, done.err
    assert f"its torch {TORCH} stays" in " ".join(done.err.split()) + done.out
    record = json.loads(
        subprocess.run(
            ["unsquashfs", "-cat", made.folder / "env.sqsh", "lumiimg-venv.json"], capture_output=True, check=True
        ).stdout
    )
    assert record["torch"] == TORCH
    assert record["packages"] == {"beside": "1.0"}
    bind = ["--bind", f"{made.folder / 'env.sqsh'}:/user-software:image-src=/,ro"]

    def run(*argv: str) -> str:
        words: list[str | Path] = [engine.path, "exec", *bind, made.image, *argv]
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout

    use = "import beside, torch, little_tool; print(beside.greeting(), torch.__version__, torch.__file__)"
    said = run("/user-software/bin/python", "-c", use).split()
    assert said == ["hello", TORCH, "/opt/venv/lib/python3.13/site-packages/torch/__init__.py"]
    assert run("head", "-1", "/user-software/bin/pip").strip() == "#!/user-software/bin/python"
    assert "No broken requirements found" in run("/user-software/bin/pip", "check")


def test_an_environment_never_brings_another_torch(made: Made) -> None:
    mirrors = made.common[2:]
    for package in ("other-torch", "torch==2.9.0", "little-tool==1.4"):
        done = lumiimg("venv", "image.sif", package, "-o", "no.sqsh", *mirrors, cwd=made.folder, env=made.env)
        assert done.code == ExitCode.NO, done.err
        name = "little-tool 1.5" if "little" in package else f"torch {TORCH}"
        assert f"the image has {name}" in done.err
        assert not (made.folder / "no.sqsh").exists()
