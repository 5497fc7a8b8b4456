"""Modules and wrappers with a real engine, a real image, and a real module system."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.engine.conftest import lumiimg
from tests.shared import fabric_builder
from tests.shared.elf_builder import library
from tests.shared.module_systems import SYSTEMS, environments, start
from tests.shared.programs import patient

if TYPE_CHECKING:
    from lumiimg.engine.engine import Engine

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("engine")]

ODD = "a 'b' \"c\" [d].sif"


def module(image: Path, folder: Path, *more: str | Path) -> Path:
    """Make a module called its/1; return the folder of its wrappers."""
    result = lumiimg("module", image, "-o", folder, "--name", "its/1", "--json", *more)
    assert result.code == 0, result.err
    return Path(result.data["files"]["wrappers"])


def ran(*argv: str | Path, env: dict[str, str] | None = None, cwd: Path | None = None) -> str:
    words = list(map(str, argv))
    done = subprocess.run(words, env=os.environ | (env or {}), cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_wrapper_is_the_image_s_python_with_the_arguments_as_they_are(demo: Path, tmp_path: Path) -> None:
    image = tmp_path / ODD
    shutil.copy(demo, image)
    bin_ = module(image, tmp_path / "mods")
    words = ["a b", "", "*", "$HOME", "`id`", "a\nb", "'", '"', "\\"]
    code = "import sys; print(sys.version_info[:2], sys.argv[1:])"
    assert ran(bin_ / "python3", "-c", code, *words) == f"(3, 13) {words!r}\n"
    assert ran(bin_ / "python3", "-c", "import os; print(os.environ['APPTAINER_CONTAINER'])") == f"{image}\n"
    link = tmp_path / "my python"
    link.symlink_to(bin_ / "python3")
    assert ran(link, "-c", code, "x") == "(3, 13) ['x']\n"
    done = subprocess.run([bin_ / "python3", "-c", "raise SystemExit(7)"], check=False)
    assert done.returncode == 7
    assert ran(bin_ / "start-shell", "-c", 'test -d /.singularity.d && echo "$0 $1"', "a", "b c") == "a b c\n"


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
    # nothing else binds the folder of the test
    env = {"SLURM_NODEID": "1", "APPTAINER_NO_MOUNT": "tmp,home,cwd"}
    lines = ran("bash", "-c", script, env=env, cwd=Path("/")).splitlines()
    assert lines == [f"x hsn0,hsn1 {data}/1 False", "x hsn0,hsn1 None False", "none none"]


def test_a_real_srun_starts_ranks_as_the_mpich_of_the_image_wants(tmp_path: Path, slurm: dict[str, str]) -> None:
    """Because of the module: variables of the image have no effect on srun, which runs outside it."""
    image = fabric_builder.image(tmp_path / "image")
    library(image / "usr/lib/libmpi.so.12")
    made = lumiimg("module", image, "-o", tmp_path / "mods", "--name", "mpi/1", "--site", "lumi")
    assert made.code == 0, made.err
    ((loaded,), _) = environments("lmod", tmp_path / "mods/modulefiles", ["load mpi"])
    # the variable of PMI-2 from which MPICH gets the number of ranks
    ask = ["srun", "-N1", "-n2", "--overlap", "sh", "-c", 'echo "of ${PMI_SIZE:-1}"']
    for environment, expected in ((slurm | {"SLURM_MPI_TYPE": loaded["SLURM_MPI_TYPE"]}, "of 2"), (slurm, "of 1")):
        done = subprocess.run(ask, env=environment, capture_output=True, text=True, check=False, timeout=patient(120))
        assert done.stdout.splitlines() == [expected] * 2, done.stderr
