"""A user's requirement file in an image, from an index on loopback: built, imported, and what is below is unchanged.

torch is a stand-in with the metadata of ROCm's. Everything else is real, including pip and the scripts of the layer.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lumiimg.catalog.folders import shipped_layers
from lumiimg.core.errors import ExitCode
from lumiimg.resolve.lock_file import read_document
from tests.engine.conftest import Result, inside, lumiimg
from tests.shared.git_server import commit, serving
from tests.shared.layer_builder import LAYER
from tests.shared.world import World, serve, wheel

if TYPE_CHECKING:
    from lumiimg.engine.engine import Engine

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("engine")]

TORCH = "2.9.1+rocm5.4"
OF_TORCH = f"""\
{LAYER}requires = ["python3"]
lib = ["check.py", "packages.sh", "python.sh"]
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
FROM_GIT = {
    "pyproject.toml": """\
[build-system]
requires = ["helper"]
build-backend = "backend"
backend-path = ["."]
[project]
name = "from-git"
dynamic = ["version"]
dependencies = ["torch>=2"]
""",
    "from_git.py": "import helper\n\ndef greeting():\n    return helper.greeting()\n",
    "backend.py": """\
import os
import zipfile

import helper


def build_wheel(folder, settings=None, metadata=None):
    version = os.environ["SETUPTOOLS_SCM_PRETEND_VERSION"]
    about, name = f"from_git-{version}.dist-info", f"from_git-{version}-py3-none-any.whl"
    with zipfile.ZipFile(f"{folder}/{name}", "w") as wheel:
        wheel.write("from_git.py")
        wheel.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\\nName: from-git\\nVersion: {version}\\nRequires-Dist: torch>=2\\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(f"{about}/RECORD", "")
    return name
""",
}
"""A project whose build requires a package from the index, and uses its version."""
USE = "import little_tool, torch; print(little_tool.greeting(), torch.__version__)"


@dataclass(frozen=True)
class Made:
    """The image, and the folder in which it was made."""

    folder: Path
    common: tuple[str, ...]

    def run(self, *words: str) -> Result:
        return lumiimg(*words, *self.common, cwd=self.folder)

    def run_with(self, engine: Engine, environment: str, *argv: str) -> str:
        """Run a program in the container with an environment over the image; return its output."""
        bind = ["--bind", f"{self.folder / environment}:/user-software:image-src=/,ro"]
        return inside(engine, self.image, *argv, options=bind)

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
    greeting = "from helper import greeting\n"
    files = []
    for name, version, requires, text in (
        ("torch", TORCH, (), torch),
        ("little_tool", "1.5", ("torch>=2", "helper"), greeting),
        ("helper", "0.1", (), "def greeting():\n    return 'hello'\n"),
        ("helper", "0.0.5", (), "def greeting():\n    return 'bye'\n"),
        ("beside", "1.0", ("torch>=2", "helper"), greeting),
    ):
        files.append(folder / f"{name}-{version}-py3-none-any.whl")
        files[-1].write_bytes(wheel(name, version, requires, text))
    (folder / "requirements.txt").write_text("# mine\nLittle.Tool>=1\ntorch\n")
    with serve(World(files=tuple(files))) as world:
        mirrors = (f"https://download.pytorch.org={world.url}", f"pypi={world.url}/whl")
        common = ("--layers", str(folder / "layers"), *(word for pair in mirrors for word in ("--mirror", pair)))
        made = Made(folder, common)
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
    own = read_document(made.folder / "lumiimg.lock").layer[-1]
    assert own.name == "own-packages"
    assert sorted(wheel.name for wheel in own.locked_wheels) == ["helper", "little-tool"]


def test_the_image_names_what_was_asked_for_and_all_that_came(made: Made) -> None:
    shown = lumiimg("show", made.image, "--json").data
    assert [one["text"] for one in shown["plan"]["request"]["own"]] == ["Little.Tool>=1", "torch"]
    found = {component["purl"] for component in shown["sbom"]["components"] if "purl" in component}
    assert {"pkg:pypi/little-tool@1.5", "pkg:pypi/helper@0.1"} <= found
    assert "own-packages, 2 Python distributions, for Little.Tool>=1, torch" in lumiimg("show", made.image).out


def test_an_environment_over_it_sees_its_torch_and_what_else_it_has(made: Made, engine: Engine) -> None:
    """The Python of the image is itself in a venv, which a venv over it would skip."""
    mirrors = made.common[2:]
    done = lumiimg("venv", "image.sif", "beside", "-o", "env.sqsh", *mirrors, cwd=made.folder)
    assert done.code == ExitCode.GOOD, done.err
    assert f"its torch {TORCH} stays" in " ".join(done.err.split()) + done.out
    record = json.loads(
        subprocess.run(
            ["unsquashfs", "-cat", made.folder / "env.sqsh", "lumiimg-venv.json"], capture_output=True, check=True
        ).stdout
    )
    assert record["torch"] == TORCH
    assert record["packages"] == {"beside": "1.0"}
    run = partial(made.run_with, engine, "env.sqsh")
    use = "import beside, torch, little_tool; print(beside.greeting(), torch.__version__, torch.__file__)"
    ran = run("/user-software/bin/python", "-c", use).split()
    assert ran == ["hello", TORCH, "/opt/venv/lib/python3.13/site-packages/torch/__init__.py"]
    assert run("head", "-1", "/user-software/bin/pip").strip() == "#!/user-software/bin/python"
    assert "No broken requirements found" in run("/user-software/bin/pip", "check")


def test_what_is_replaced_on_purpose_is_another_in_an_environment_and_in_an_image_over_it(
    made: Made, engine: Engine
) -> None:
    done = made.run(
        "build", "--base", "image.sif", "--replace", "helper==0.0.5", "--site", "generic", "-o", "other.sif"
    )
    assert done.code == ExitCode.GOOD, done.err
    assert inside(engine, made.folder / "other.sif", "python3", "-c", USE).split() == ["bye", TORCH]
    assert "as you asked, helper==0.0.5 replaces helper 0.1" in json.dumps(
        lumiimg("show", made.folder / "other.sif", "--json").data["plan"]["rule"]
    )
    venv = ("venv", "image.sif", "--replace", "helper==0.0.5", "-o", "replaced.sqsh")
    done = lumiimg(*venv, *made.common[2:], cwd=made.folder)
    assert done.code == ExitCode.GOOD, done.err
    assert "1 package, replacing the image's helper 0.1" in " ".join(done.out.split())
    assert made.run_with(engine, "replaced.sqsh", "/user-software/bin/python", "-c", USE).split() == ["bye", TORCH]


def test_a_project_at_a_commit_is_built_in_the_image_and_in_an_environment_without_a_network(
    made: Made, engine: Engine, tmp_path: Path
) -> None:
    at = commit(tmp_path / "served/from-git", FROM_GIT)
    line, mirrors = f"from-git @ git+https://git.test/from-git@{at}", made.common[2:]
    (made.folder / "git.txt").write_text(f"{line}\n")
    request = ("--base", "image.sif", "-r", "git.txt", "--site", "generic", "-o", "git.lock")
    with serving(tmp_path / "served") as url:
        locked = made.run("lock", *request, "--mirror", f"https://git.test={url}")
        assert locked.code == ExitCode.GOOD, locked.err
    done = made.run("build", "--locked", "--lock", "git.lock", "--trust-lock", "-o", "git.sif")
    log = made.folder / "git.sif.log"
    assert done.code == ExitCode.GOOD, done.err + (log.read_text()[-3000:] if log.exists() else "")
    use = "import from_git, importlib.metadata as m; print(from_git.greeting(), m.version('from-git'))"
    assert inside(engine, made.folder / "git.sif", "python3", "-c", use).split() == ["hello", f"0+g{at[:12]}"]
    with serving(tmp_path / "served") as url:
        venv = ("venv", "image.sif", line, "-o", "git.sqsh", *mirrors, "--mirror", f"https://git.test={url}")
        done = lumiimg(*venv, cwd=made.folder)
    assert done.code == ExitCode.GOOD, done.err
    output = made.run_with(engine, "git.sqsh", "/user-software/bin/python", "-c", use)
    assert output.split() == ["hello", f"0+g{at[:12]}"]
