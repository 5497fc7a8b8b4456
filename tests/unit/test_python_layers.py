"""What python.sh of the Python layers leaves in an environment: run by bash, with a real pip, without an index."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lumiimg.catalog.folders import shipped_layers
from tests.shared.elf_builder import library
from tests.shared.world import World, serve, wheel

pytestmark = pytest.mark.everything
ROCM_TORCH = {"torch": ("2.7.1+rocm6.2.4", ("pytorch-triton-rocm==3.3.1",)), "pytorch-triton-rocm": ("3.3.1", ())}


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with pip, to be copied."""
    venv = tmp_path_factory.mktemp("python") / "venv"
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    return venv


def run(
    venv: Path, tmp_path: Path, script: str, index: str = "", **wheels: dict[str, tuple[str, tuple[str, ...]]]
) -> tuple[int, str]:
    """Run python.sh and then a script; `index` is pip's, and each other keyword is a folder of wheels."""
    for folder, projects in wheels.items():
        (tmp_path / folder).mkdir()
        for name, (version, requires) in projects.items():
            file = f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
            (tmp_path / folder / file).write_bytes(wheel(name, version, requires))
    head = f"layer=test\nvenv={venv}\nconstraints={tmp_path}/constraints.txt\npython={venv}/bin/python\n"
    library = shipped_layers() / "lib" / "python.sh"
    text = f'set -euo pipefail\nadd_packages() {{ echo "apt: $*"; }}\n. {library}\n{head}{script}'
    environment = {"PATH": os.environ["PATH"], "LAYER_FILES": str(tmp_path), "HOME": str(tmp_path)}
    environment |= {"PIP_INDEX_URL": index, "KEPT": str(tmp_path / "kept")} if index else {}
    if "lock" in wheels:
        environment["WHEELS"] = str(tmp_path / "lock")
    done = subprocess.run(
        ["bash", "-c", text],
        env=environment,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    return done.returncode, done.stdout.decode()


@pytest.fixture
def venv(empty: Path, tmp_path: Path) -> Path:
    """An environment for one test."""
    subprocess.run(["cp", "-a", empty, tmp_path / "venv"], check=True)
    return tmp_path / "venv"


def test_what_requires_triton_has_rocms_and_no_other_takes_its_place(venv: Path, tmp_path: Path) -> None:
    script = """
    WHEELS=$PWD/torch install_wheels
    write_constraints
    WHEELS=$PWD/user install_wheels
    "$python" -m pip check
    cat "$constraints"
    "$python" -m pip show -f triton
    run_pip install --no-index --find-links "$PWD/pypi" --upgrade triton
    run_pip install --no-index --find-links "$PWD/pypi" --force-reinstall triton || echo "and no other"
    refuse_cuda
    """
    code, done = run(
        venv,
        tmp_path,
        script,
        torch=ROCM_TORCH,
        user={"xgrammar": ("0.1", ("triton>=3.2",))},
        pypi={"triton": ("3.9.0", ())},
    )
    assert code == 0, done
    assert "No broken requirements found" in done
    assert "triton==3.3.1+rocm\n" in done
    assert "Requires: pytorch-triton-rocm" in done
    assert "and no other" in done
    assert "triton<0" not in done


def test_a_wheel_that_requires_more_than_its_metadata_ends_the_layer(venv: Path, tmp_path: Path) -> None:
    script = 'run_pip install --no-index --no-deps "$PWD"/base/*.whl\nWHEELS=$PWD/user install_wheels'
    # what was unmet before does not count
    code, done = run(venv, tmp_path, script, base={"old": ("1.0", ("gone",))}, user={"egg": ("1.0", ("yolk>=2",))})
    assert code == 1
    assert done.splitlines()[-1] == (
        "test: the lock leaves unmet: yolk>=2, which egg 1.0 requires; the index said something else of a wheel"
    )


BACKEND = """
import pathlib, subprocess, sys
def build_wheel(folder, settings=None, metadata=None):
    subprocess.run([sys.executable, "-m", "pip", "download", "--no-deps", "--dest", folder + "/more", "yolk"])
    (wheel,) = pathlib.Path(__file__).parent.glob("*.whl")
    pathlib.Path(folder, wheel.name).write_bytes(wheel.read_bytes())
    return wheel.name
"""
INDEX: dict[str, dict[str, tuple[str, ...]]] = {"yolk": {"2.0": ()}}


def project(tmp_path: Path, *requires: str) -> None:
    """Write a project that builds the wheel of `snake` and runs pip to do so, as a setup.py may."""
    (tmp_path / "snake").mkdir()
    (tmp_path / "snake/pyproject.toml").write_text(
        '[build-system]\nrequires = ["gone"]\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    )
    (tmp_path / "snake/backend.py").write_text(BACKEND)
    (tmp_path / "snake/snake-1.0-py3-none-any.whl").write_bytes(wheel("snake", "1.0", requires))


def test_beside_a_lock_no_index_is_asked_and_what_the_lock_lacks_is_named(venv: Path, tmp_path: Path) -> None:
    project(tmp_path, "egg", "yolk>=2")
    with serve(World(wheels=INDEX)) as world:
        script = "install_wheels\n(pip_install yolk) || true\nbuild_wheel snake\n"
        code, done = run(venv, tmp_path, script, f"{world.url}/pypi/simple", lock={"egg": ("1.0", ())})
        assert world.asked == []
    assert code == 1
    hint = "name it in packages of layer.toml"
    assert f"test: 'pip install yolk' failed; beside a lock no index is asked: {hint}" in done
    assert done.splitlines()[-1] == f"test: not in the lock: yolk>=2, which snake 1.0 requires; {hint}"


@pytest.mark.skipif(Path("/opt/venv/bin/python").exists(), reason="an environment of the machine is in the way")
def test_a_plugin_of_jax_whose_libraries_are_missing_fails_its_layer(venv: Path, tmp_path: Path) -> None:
    """A stand-in for JAX that still computes, as the real one does if a plugin does not load."""
    (site,) = venv.glob("lib/python*/site-packages")
    (site / "jax").mkdir()
    (site / "jax/__init__.py").write_text(
        "class numpy:\n    def arange(n):\n        class A:\n            def sum(self): return 6\n        return A()\n"
        "__version__ = '0'\n"
    )
    for part in ("plugin", "pjrt"):
        info = site / f"jax_rocm7_{part}-0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Name: jax-rocm7-{part}\nVersion: 0\n")
        (info / "RECORD").write_text(f"jax_{part}.so,,\n")
    missing = library(tmp_path / "librocm_smi64.so.7", source="int x;")
    environment = {"PATH": f"{venv}/bin:{os.environ['PATH']}", "PLUGIN": "rocm7", "HOME": str(tmp_path)}
    words = ["bash", "-euo", "pipefail", str(shipped_layers() / "jax/test.sh")]
    for needed, code in (([], 0), ([missing], 1)):
        for part in ("plugin", "pjrt"):
            library(site / f"jax_{part}.so", *needed, source="int y;")
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stdout + done.stderr
    assert "librocm_smi64.so.7 => not found" in done.stdout
