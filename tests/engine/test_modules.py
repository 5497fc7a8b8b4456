"""Modules and wrappers with a real engine, a real image, and a module system on top."""

from __future__ import annotations

import os
import shutil
import subprocess
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.engine.conftest import built, lumiimg
from tests.shared import fabric_builder
from tests.shared.elf_builder import library
from tests.shared.module_systems import SYSTEMS, environments, start

if TYPE_CHECKING:
    from lumiimg.engine.engine import Engine

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("engine")]

PIP = """\
kind = "layer"
summary = "pip of the tests"
source = "packages of Debian"
date = 2026-11-22
"""
ODD = "a 'b' \"c\" [d].sif"


POST = """\
apt-get update -q
apt-get install -q -y --no-install-recommends python3-pip python3-venv
apt-get clean
PREFIX=/usr PACKAGES=/usr/lib/python3/dist-packages BIN=/usr/local/bin
if [ -n "@VENV@" ]; then
    python3 -m venv /opt/venv
    PREFIX=/opt/venv PACKAGES=$(echo /opt/venv/lib/python3*/site-packages) BIN=/opt/venv/bin
fi
mkdir "$PACKAGES/torch-2.7.1+rocm6.2.4.dist-info"
printf 'Name: torch\\nVersion: 2.7.1+rocm6.2.4\\n' > "$PACKAGES/torch-2.7.1+rocm6.2.4.dist-info/METADATA"
echo 'WORD = "of the image"' > "$PACKAGES/inner.py"
printf '%s\\n' "#!$PREFIX/bin/python3" 'import sys, inner, extra' \\
    'print(sys.prefix); print(inner.WORD, extra.WORD, sys.argv[1:])' > "$BIN/torchrun"
chmod 755 "$BIN/torchrun"
"""


@pytest.fixture(scope="module", params=["the system's Python", "a virtual environment"])
def with_pip(images: Path, request: pytest.FixtureRequest) -> Path:
    """The demo image with Debian's pip, a torch by name, and a script that names its Python as installers write it.

    In the second one, Python is a virtual environment that is not on the image's path (LUMI AI Factory, AMD for LUMI).
    """
    venv = "yes" if request.param == "a virtual environment" else ""
    name = f"pip-of-tests{'-venv' if venv else ''}"
    layer = images / "layers" / name
    layer.mkdir(parents=True)
    (layer / "layer.toml").write_text(PIP)
    (layer / "post.sh").write_text(POST.replace("@VENV@", venv))
    (layer / "test.sh").write_text("python3 -m pip --version\n")
    return built(images / f"{name}.sif", "--layers", images / "layers", "--recipe", "demo", "--add", name)


def module(image: Path, folder: Path, *more: str | Path) -> Path:
    """Make a module called its/1 and return the folder of its wrappers."""
    result = lumiimg("module", image, "-o", folder, "--name", "its/1", "--json", *more)
    assert result.code == 0, result.err
    return Path(result.data["files"]["wrappers"])


def write_wheel(folder: Path, name: str, version: str, text: str, requires: str = "") -> Path:
    info = f"{name}-{version}.dist-info"
    needs = f"Requires-Dist: {requires}\n" if requires else ""
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"{name}.py", text)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return wheel


def ran(*argv: str | Path, env: dict[str, str] | None = None, cwd: Path | None = None) -> str:
    words = list(map(str, argv))
    done = subprocess.run(words, env=os.environ | (env or {}), cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_wrapper_is_the_image_s_python_with_the_arguments_as_they_are(demo: Path, tmp_path: Path) -> None:
    bin_ = module(demo, tmp_path / "mods")
    words = ["a b", "", "*", "$HOME", "`id`", "a\nb", "'", '"', "\\"]
    code = "import sys; print(sys.version_info[:2], sys.argv[1:])"
    assert ran(bin_ / "python3", "-c", code, *words) == f"(3, 13) {words!r}\n"
    link = tmp_path / "my python"
    link.symlink_to(bin_ / "python3")
    assert ran(link, "-c", code, "x") == "(3, 13) ['x']\n"
    done = subprocess.run([bin_ / "python3", "-c", "raise SystemExit(7)"], check=False)
    assert done.returncode == 7
    assert ran(bin_ / "start-shell", "-c", 'test -d /.singularity.d && echo "$0 $1"', "a", "b c") == "a b c\n"


def test_an_image_with_an_odd_name_runs(demo: Path, tmp_path: Path) -> None:
    image = tmp_path / ODD
    shutil.copy(demo, image)
    bin_ = module(image, tmp_path / "mods")
    code = "import os; print(os.environ['APPTAINER_CONTAINER'])"
    assert ran(bin_ / "python3", "-c", code) == f"{image}\n"


def test_in_the_container_a_wrapper_starts_no_second_one(demo: Path, engine: Engine, tmp_path: Path) -> None:
    bin_ = module(demo, tmp_path / "mods")
    folder = ("--bind", str(tmp_path), str(demo))
    code = "import os; print(os.getpid(), os.environ['SINGULARITY_CONTAINER'])"
    script = f'echo "$$"; exec "{bin_}/python3" -c "{code}"'
    shell, python, container = ran(engine.path, "exec", *folder, "bash", "-c", script).split()
    assert (python, container) == (shell, str(demo))
    done = subprocess.run(
        [engine.path, "exec", *folder, "bash", "-c", f'"{bin_}/../enter" x program /no/such; echo $?'],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "126\n"
    assert "this container has no /no/such" in done.stderr


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_job_script_loads_the_module_and_has_binds_and_variables_inside(
    system: str, demo: Path, tmp_path: Path
) -> None:
    """Both through a wrapper and through `singularity exec $SIF`; packages in the user's own folder are not seen."""
    data = tmp_path / "data"
    data.mkdir()
    (data / "x").write_text("x")
    site = tmp_path / "here.toml"
    variable = '[[environment]]\nname = "{}"\nvalue = "{}"\nnodes = "any"\nbecause = "x"\nsource = "x"\n'
    site.write_text(
        f'title = "x"\nsource = "x"\ndate = 2026-11-22\n[[bind]]\npath = "{data}"\nreason = "x"\n'
        + variable.format("NCCL_SOCKET_IFNAME", "hsn0,hsn1")
        + variable.format("CACHE_OF_RANK", f"{data}/$SLURM_NODEID")
    )
    module(demo, tmp_path / "mods", "--site", site)
    inside = (
        "import os, site; e = os.environ.get; "
        f"print(os.listdir('{data}')[0], e('NCCL_SOCKET_IFNAME'), e('CACHE_OF_RANK'), site.ENABLE_USER_SITE)"
    )
    script = "\n".join(
        (
            start(system),
            f"module use {tmp_path}/mods/modulefiles",
            "module load its",
            f'python3 -c "{inside}"',
            f'apptainer exec "$SIF" python3 -c "{inside}"',
            "module unload its",
            'echo "${SIF-none} ${SINGULARITY_BIND-none}"',
        )
    )
    # the folder of the test is bound by nothing else
    env = {"SLURM_NODEID": "1", "APPTAINER_NO_MOUNT": "tmp,home,cwd"}
    lines = ran("bash", "-c", script, env=env, cwd=Path("/")).splitlines()
    assert lines == [f"x hsn0,hsn1 {data}/1 False", "x hsn0,hsn1 None False", "none none"]


def test_packages_of_ones_own_lie_over_the_image_they_were_installed_with(
    with_pip: Path, demo: Path, tmp_path: Path
) -> None:
    bin_ = module(with_pip, tmp_path / "mods")
    wheel = write_wheel(tmp_path, "extra", "1.0", "WORD = 'seen'")
    install = ("install", "--no-index", "--quiet", str(wheel))
    home = tmp_path / "home"
    home.mkdir()
    done = subprocess.run([bin_ / "pip", *install], env=os.environ | {"HOME": str(home)}, check=False)
    assert done.returncode == 1
    assert list(home.rglob("extra*")) == []
    env = {"LUMIIMG_VENV": str(tmp_path / "my packages")}
    ran(bin_ / "pip", *install, env=env)
    assert ran(bin_ / "python3", "-c", "import extra; print(extra.WORD)", env=env) == "seen\n"
    # a script of the image that names the image's Python sees them, too
    assert ran(bin_ / "torchrun", "a b", env=env) == f"{tmp_path}/my packages\nof the image seen ['a b']\n"
    assert ran(bin_ / "start-shell", "-c", "command -v python3", env=env) == f"{tmp_path}/my packages/bin/python3\n"
    assert "extra" in ran(bin_ / "pip", "list", env=env)
    # one that wants another torch does not get it: it would be one for CUDA
    write_wheel(tmp_path, "torch", "2.8", "")
    other_torch = write_wheel(tmp_path, "needs_torch", "1.0", "", requires="torch==2.8")
    refused = subprocess.run(
        [bin_ / "pip", "install", "--no-index", "--find-links", tmp_path, other_torch],
        env=os.environ | env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (refused.returncode, "ResolutionImpossible" in refused.stderr) == (1, True)
    # another image does not take them
    other = module(demo, tmp_path / "other")
    refused = subprocess.run(
        [other / "python3", "-c", ""], env=os.environ | env, capture_output=True, text=True, check=False
    )
    assert (refused.returncode, "was not made for this image" in refused.stderr) == (125, True)


def test_what_lmod_loads_is_what_tcl_modules_load(demo: Path, tmp_path: Path) -> None:
    module(demo, tmp_path / "mods", "--site", "lumi")
    loaded = [environments(system, tmp_path / "mods/modulefiles", ["load its"])[0][0] for system in SYSTEMS]
    ours = ("SIF", "SINGULARITY", "NCCL", "FI_", "CXI", "PATH")
    first, second = ({k: v for k, v in found.items() if k.startswith(ours)} for found in loaded)
    assert first == second


def test_a_real_srun_starts_ranks_as_the_mpich_of_the_image_wants(tmp_path: Path, slurm: dict[str, str]) -> None:
    """By the module; by what the image sets itself it does not, as srun is outside of it."""
    image = fabric_builder.image(tmp_path / "image")
    library(image / "usr/lib/libmpi.so.12")
    made = lumiimg("module", image, "-o", tmp_path / "mods", "--name", "mpi/1", "--site", "lumi")
    assert made.code == 0, made.err
    ((loaded,), _) = environments("lmod", tmp_path / "mods/modulefiles", ["load mpi"])
    # what PMI-2 gives a rank by which MPICH knows how many they are
    ask = ["srun", "-N1", "-n2", "--overlap", "sh", "-c", 'echo "of ${PMI_SIZE:-1}"']
    for environment, said in ((slurm | {"SLURM_MPI_TYPE": loaded["SLURM_MPI_TYPE"]}, "of 2"), (slurm, "of 1")):
        done = subprocess.run(ask, env=environment, capture_output=True, text=True, check=False, timeout=120)
        assert done.stdout.splitlines() == [said] * 2, done.stderr
