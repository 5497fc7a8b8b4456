"""Real runs of `lumiimg venv`: a Python environment over an image, with a small package of the real index.

The engine, Debian's Python in the image, the index and its packages, mksquashfs, Slurm and the script's bind are real.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lumiimg.core.errors import ExitCode
from tests.engine.conftest import FOUR_NODES, Result, check, findings, inside, lumiimg
from tests.shared.programs import needs, patient

if TYPE_CHECKING:
    from lumiimg.engine.engine import Engine

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("engine")]

USE = "import einops, sys; print(einops.__version__, einops.__file__, sys.prefix)"


def made(image: Path, output: str, folder: Path, *more: str, env: dict[str, str] | None = None) -> Result:
    needs("mksquashfs")
    return lumiimg("venv", image, "-r", "requirements.txt", *more, "-o", output, cwd=folder, env=env)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, demo: Path) -> Path:
    """A folder with spaces and quotes in its name, and the environment in it."""
    folder = tmp_path_factory.mktemp("venv") / "it's a $folder"
    folder.mkdir()
    (folder / "requirements.txt").write_text("einops==0.8.1\n")
    result = made(demo, "env.sqsh", folder)
    assert result.code == ExitCode.GOOD, result.err
    return folder


def test_it_has_what_was_asked_for_and_says_for_which_image(place: Path, demo: Path, engine: Engine) -> None:
    file = place / "env.sqsh"
    bound = ["--mount", f'type=bind,"source={file}",destination=/user-software,image-src=/']
    version, path, prefix = inside(engine, demo, "/user-software/bin/python", "-c", USE, options=bound).split()
    assert (version, prefix) == ("0.8.1", "/user-software")
    assert path == "/user-software/lib/python3.13/site-packages/einops/__init__.py"
    record = json.loads(
        subprocess.run(["unsquashfs", "-cat", file, "lumiimg-venv.json"], capture_output=True, check=True).stdout
    )
    assert record["image"] == str(demo)
    assert record["python"] == "3.13"
    assert record["packages"]["einops"] == "0.8.1"
    assert not [one for one in place.iterdir() if "partial" in one.name]


def test_a_real_srun_starts_ranks_with_the_environment_of_the_script(
    place: Path, demo: Path, slurm: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "four.toml").write_text(FOUR_NODES)
    program = f"{USE}; import os; print('rank', os.environ['RANK'])"
    words = ["--venv", str(place / "env.sqsh"), "--site", "four.toml", "--nodes", "2", "--framework", "plain"]
    written = lumiimg("job", demo, *words, "-o", "job.sh", "python", "-c", program, cwd=tmp_path)
    assert written.code == ExitCode.GOOD, written.err
    assert len((tmp_path / "job.sh").read_text().splitlines()) <= 40
    argv = ["sbatch", "--wait", "--gpus-per-node=0", "--time=5", "--output=job.out", "job.sh"]
    done = subprocess.run(
        argv, cwd=tmp_path, env=slurm, capture_output=True, text=True, check=False, timeout=patient(400)
    )
    out = (tmp_path / "job.out").read_text()
    assert done.returncode == 0, out
    assert out.count("0.8.1 /user-software/lib/python3.13/site-packages/einops/__init__.py /user-software") == 4
    assert sorted(line for line in out.splitlines() if line.startswith("rank ")) == [f"rank {n}" for n in range(4)]
    assert "not writable" not in out


def test_a_check_probes_with_it_bound(place: Path, demo: Path, bare: Path) -> None:
    result = check(demo, "--venv", str(place / "env.sqsh"))
    assert result.data["levels"]["probe"] == "done", result.data["levels"]
    assert result.code == ExitCode.NO, "as without it: it has no plugin"
    assert "program.venv-image" not in findings(result)
    other = findings(check(bare, "--venv", str(place / "env.sqsh"), "--level", "static"))
    assert f"was made for another image, {demo}" in other["program.venv-image"]["summary"]


@pytest.mark.parametrize("env", [{}, {"LUMIIMG_ENGINE": "namespaces"}], ids=["engine", "namespaces"])
def test_a_folder_is_made_and_checked_by_either_engine(
    env: dict[str, str], place: Path, demo: Path, engine: Engine
) -> None:
    folder = place / f"env {len(env)}"
    result = made(demo, f"{folder.name}/", place, env=env)
    assert result.code == ExitCode.GOOD, result.err
    # not with `--bind`, which does not support a comma
    bound = ["--mount", f'type=bind,"source={folder}",destination=/user-software']
    used = inside(engine, demo, "/user-software/bin/python", "-c", USE, options=bound)
    assert used.startswith("0.8.1 /user-software/")
    assert check(demo, "--venv", str(folder), env=env).data["levels"]["probe"] == "done"
    if env:
        packed = check(demo, "--venv", str(place / "env.sqsh"), env=env)
        assert "cannot bind a squashfs file" in packed.data["levels"]["probe"]


def test_whatever_the_umask_others_can_read_it(place: Path, demo: Path) -> None:
    """In the squashfs, its files belong to root: nobody could read files that only their owner may read."""
    words = [sys.executable, "-m", "lumiimg", "venv", str(demo), "einops", "-o", str(place / "masked.sqsh"), "--quiet"]
    subprocess.run(["sh", "-c", 'umask 077; exec "$@"', "sh", *words], check=True)
    listed = subprocess.run(["unsquashfs", "-lln", place / "masked.sqsh"], capture_output=True, text=True, check=True)
    modes = [line.split()[0] for line in listed.stdout.splitlines() if line[:1] in "-d"]
    assert len(modes) > 10
    assert all(mode[7] == "r" and (mode[0] == "-" or mode[9] == "x") for mode in modes)


def test_an_image_cannot_have_another_file_written(demo: Path, tmp_path: Path, engine: Engine) -> None:
    """Its Python runs code of the image, which can access the new environment."""
    image, mine = tmp_path / "image", tmp_path / "mine"
    subprocess.run([engine.path, "build", "--sandbox", image, demo], capture_output=True, check=True)
    mine.write_text("mine")
    code = f"""\
import os
try:
    open("/user-software/was-here", "w").close()
    os.symlink({str(mine)!r}, "/user-software/lumiimg-venv.json")
except OSError:
    pass
"""
    packages = image / "usr/lib/python3/dist-packages"
    (packages / "hostile.py").write_text(code)
    (packages / "hostile.pth").write_text("import hostile\n")
    result = lumiimg("venv", image, "einops", "-o", "env/", cwd=tmp_path)
    assert result.code == ExitCode.GOOD, result.err
    assert mine.read_text() == "mine"
    assert (tmp_path / "env/was-here").exists(), "it has tried"
    assert json.loads((tmp_path / "env/lumiimg-venv.json").read_text())["python"] == "3.13"
