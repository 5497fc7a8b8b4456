"""The shipped layers and recipes: facts, scripts, and that each recipe can be planned and rendered."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.version import Version

from lumiimg.catalog.catalogue import open_catalogue
from lumiimg.catalog.folders import shipped_layers
from lumiimg.catalog.layers import own_values, read_layer
from lumiimg.catalog.releases import expand
from lumiimg.catalog.sites import find_site
from lumiimg.cli.main import main
from lumiimg.core.decode import DecodeError
from lumiimg.core.errors import ExitCode
from lumiimg.definition.text import checked_body
from lumiimg.definition.writer import write_chain, write_flat
from lumiimg.engine.failures import explain
from lumiimg.fabric.path import Fabric
from lumiimg.fetch.mirrors import Mirrors
from lumiimg.resolve.lock import layer_digest
from lumiimg.resolve.lock_check import lock_of
from lumiimg.resolve.lock_file import read_document
from lumiimg.resolve.stack import OWN_PACKAGES
from tests.shared.layer_builder import RECIPES
from tests.shared.programs import needs
from tests.shared.world import World, serve, wheels_of_layers

CATALOGUE = open_catalogue({"HOME": "/nonexistent"})
LUMI = find_site("lumi", {"HOME": "/nonexistent"})
NAMES = CATALOGUE.layer_names()
WITHOUT_DIGEST = {"aiter", "deepspeed", "flash-attn", "vllm", "xformers"}
"""Layers with an archive whose digest the project does not know; the set may only shrink."""
FOLDERS = sorted(file.parent for file in shipped_layers().glob("*/layer.toml"))
SCRIPTS = sorted(shipped_layers().glob("*/*.sh"))
# Arguments of pip are pinned by name, by a file or by an argument of the layer, or they are build tools of a wheel.
PIP = re.compile(r"\bpip3? +(install|wheel|download)\b")


def test_every_fact_has_a_source_and_a_date_and_what_a_layer_needs_is_to_be_had() -> None:
    entries = [CATALOGUE.entry(name) for name in NAMES]
    # a person, or a base that is adapted, offers these; no entry of the catalogue has them as its own
    offered = {"python", "glibc", "rocm", "libfabric", LUMI.arch or "", *NAMES}
    for layer in entries:
        assert len(layer.source) > 10, layer.name
        assert layer.date.year >= 2026, layer.name
        assert all([*(release.source for release in layer.releases), *(one.source for one in layer.troubles)]), (
            layer.name
        )
        offered |= {*layer.provides, *layer.has}
        offered |= {component for release in layer.releases for component in release.has}
    for layer in entries:
        needs = [*layer.requires, *(need for release in layer.releases for need in release.requires)]
        needs += [need for trouble in layer.troubles for need in trouble.given]
        assert {need.component for need in needs} | {*layer.conflicts} <= offered, layer.name
        # options of srun as variables are read on the host, before there is a container
        assert not [name for name in layer.environment.set if name.startswith(("SLURM_", "SRUN_", "SBATCH_"))]
        if "ARCH" in layer.arguments and layer.arguments["ARCH"].default != LUMI.arch:
            refused = [trouble for trouble in layer.troubles if trouble.refused]
            assert any(need.component == LUMI.arch for trouble in refused for need in trouble.given), layer.name


def test_a_release_fills_in_the_arguments_that_the_layer_has() -> None:
    for folder in FOLDERS:
        layer = read_layer(folder)
        defaults = {name: argument.default for name, argument in layer.arguments.items()}
        for release in layer.releases:
            Version(release.version)
            values = {**defaults, "VERSION": release.version, **release.arguments}
            for name, argument in layer.arguments.items():
                assert argument.pattern is None or argument.pattern.fullmatch(values[name]), (release.version, name)
            for source in layer.sources:
                assert "{" not in expand(source.url, values), folder
            for component, version in release.has.items():
                Version(expand(version, values)), component
        versions = [Version(release.version) for release in layer.releases]
        if folder.name != "mpich":  # 4 is preferred: it is what most of LUMI's images have
            assert versions == sorted(versions, reverse=True), f"{folder}: the newest first"


def test_a_layer_has_digests_of_its_archives() -> None:
    for folder in FOLDERS:
        lacking = [source.name for source in read_layer(folder).sources if not source.sha256 and not source.optional]
        assert bool(lacking) is (folder.name in WITHOUT_DIGEST), (folder, lacking)


def test_a_vllm_that_is_compiled_has_its_kernels_of_triton_in_the_lock() -> None:
    """From 0.12 on, vLLM clones the tag in cmake/external_projects/triton_kernels.cmake unless a source is given."""
    layer = read_layer(shipped_layers() / "vllm")
    names = {row.version: {source.name for source in layer.sources_of(row)} for row in layer.releases}
    tags = {row.version: own_values(layer, row)["TRITON"] for row in layer.releases if "triton" in names[row.version]}
    assert tags == {"0.25.0": "3.5.1", "0.22.1": "3.5.1", "0.20.1": "3.6.0", "0.12.0": "3.5.0"}
    assert names["0.18.0"] == set()  # a wheel


def test_a_script_finds_the_files_that_it_reads() -> None:
    for folder in FOLDERS:
        layer = read_layer(folder)
        read = {name for script in (folder / "post.sh", *layer.staged.values()) for name in _reads(script)}
        # for layers that have nothing to do with torch
        optional = {"check.py"} if "python.sh" in layer.staged else set()
        assert read - optional <= {*layer.staged}, folder
        own = {
            "post.sh",
            "test.sh",
            "layer.toml",
            *(file.name for file in layer.staged.values() if file.parent == folder),
        }
        assert own >= {file.name for file in folder.iterdir()}, folder
    shared = {file.name for folder in FOLDERS for file in read_layer(folder).staged.values() if file.parent != folder}
    assert shared == {file.name for file in (shipped_layers() / "lib").iterdir()}


def _reads(script: Path) -> set[str]:
    return set(re.findall(r"\$LAYER_FILES/([A-Za-z0-9._-]+)", script.read_text()))


def test_no_script_ends_a_pipe_early() -> None:
    """`grep -q` stops at its first match; under pipefail, a program that still writes then turns "yes" into "no"."""
    found = [f"{file.parent.name}/{file.name}: {line}" for file in SCRIPTS for line in file.read_text().splitlines()]
    assert [line for line in found if re.search(r"\| *grep +-[a-zA-Z]*q", line)] == []


def test_a_script_is_bash_that_a_definition_can_carry() -> None:
    for script in SCRIPTS:
        subprocess.run(["bash", "-n", str(script)], check=True)
        checked_body(script.read_text(), str(script))


def test_pip_runs_under_the_constraints_of_the_image() -> None:
    """Bare pip installs the latest torch, which is for CUDA: only python.sh calls pip, with the image's pins."""
    for script in SCRIPTS:
        lines = [line for line in script.read_text().splitlines() if not line.lstrip().startswith("#")]
        assert not [line for line in lines if PIP.search(line) and "fail" not in line], script
        for line in lines:
            if "-m pip" in line:
                assert script.name == "python.sh", script
        if script.name == "python.sh":
            assert 'PIP_CONSTRAINT="$constraints"' in script.read_text()


def test_a_layer_names_for_its_lock_all_that_it_takes_from_a_package_index() -> None:
    """So that `lock` finds a conflict, not pip after hours of compiling; with a lock, python.sh uses no index."""
    layers = [layer for layer in map(read_layer, FOLDERS) if "python.sh" in layer.staged]
    assert len(layers) > 10
    for layer in layers:
        folder, script = layer.folder, layer.post
        assert layer.packages or any(release.wheels for release in layer.releases) or layer.name == OWN_PACKAGES
        assert all(release.date for release in layer.releases), f"{folder}: by which what it requires is bounded"
        assert "install_wheels" in script, folder
        assert "pip_install" not in script, folder
        if "build_wheel" in script:
            assert layer.packages, folder
            assert script.index("install_wheels") < script.index("build_wheel"), folder


CHECK = """
import runpy, sys, types
torch = types.ModuleType("torch")
torch.__version__, torch.version = {version!r}, types.SimpleNamespace(hip={hip!r}, cuda=None)
sys.modules["torch"] = torch
import importlib.metadata as m
m.distributions = lambda: [types.SimpleNamespace(metadata={{"Name": name}}) for name in {names!r}]
sys.argv = ["check.py", "json"]
runpy.run_path({path!r}, run_name="__main__")
"""


def test_the_check_of_torch() -> None:
    path = shipped_layers() / "lib" / "check.py"
    cuda = ["torch", "nvidia_cublas_cu12", "NVIDIA-nccl-cu12"]
    for version, hip, names, fault in (
        ("2.10.0+lumi_aif_gfx90a", "7.0.51831", ["torch"], ""),
        ("2.9.1+cu128", None, ["torch"], "is not built for ROCm"),
        ("2.9.1+rocm6.4", "6.3.42131", ["torch"], "not that of the ROCm in its name"),
        ("2.9.1+rocm6.4", "6.4.43484", cuda, "NVIDIA-nccl-cu12, nvidia"),
    ):
        program = CHECK.format(version=version, hip=hip, names=names, path=str(path))
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        assert (done.returncode, fault in done.stderr) == (1 if fault else 0, True), done.stderr
        assert fault or done.stdout == f"torch {version}, HIP {hip}, json\n"


def test_julia_is_set_to_the_mpi_of_the_image_wherever_that_is(tmp_path: Path) -> None:
    """With stand-ins for what the script calls: it finds mpicc, and the library beside it or through ldconfig."""
    known = "\tlibmpi.so.12 (libc6,x86-64) => /a b/libmpi.so.12\n\tlibmpi.so.12 (libc6) => /c/libmpi.so.12"
    of_open_mpi = "\tlibmpi.so.40 (libc6,x86-64) => /a/libmpi.so.40\n\tlibmpich.so.12 (libc6) => /a/x"
    stand_ins = """
need_compilers() { :; }
unpack() { mkdir -p "$2/bin"; printf '#!/bin/sh\\n' >"$2/bin/julia"; chmod 755 "$2/bin/julia"; }
"""
    for number, (file, listed, library) in enumerate(
        (
            ("lib/libmpi.so.12", "", "{mpi}/lib/libmpi.so.12"),
            (None, known, "/a b/libmpi.so.12"),
            (None, of_open_mpi, ""),
        )
    ):
        mpi, work = tmp_path / f"{number}/mpi", tmp_path / f"{number}/work"
        for at in (work, mpi / "bin", mpi / "lib"):
            at.mkdir(parents=True)
        if file:
            (mpi / file).touch()
        for name, text in (("mpicc", ""), ("ldconfig", f"cat <<'END'\n{listed}\nEND\n")):
            (mpi / "bin" / name).write_text(f"#!/bin/sh\n{text}")
            (mpi / "bin" / name).chmod(0o755)
        (work / "build.sh").write_text(stand_ins)
        text = (shipped_layers() / "julia/post.sh").read_text().replace("/opt/lumiimg/julia", f"{work}/set")
        env = {"LAYER_FILES": f"{work}", "PREFIX": f"{work}/prefix", "SOURCE_JULIA": "x"}
        env["PATH"] = f"{mpi}/bin:/usr/bin:/bin"
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", text], cwd=work, env=env, capture_output=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        preferences = work / "set/LocalPreferences.toml"
        assert preferences.exists() is bool(library), number
        assert (b"no MPI of MPICH's kind" in done.stdout) is not bool(library), number
        if library:
            found = tomllib.loads(preferences.read_text())["MPIPreferences"]
            assert (found["libmpi"], found["abi"]) == (library.format(mpi=mpi), "MPICH")


IN_AN_OLD_IMAGE = """\
set -euo pipefail
for folder in /var/lib/apt/lists /var/cache/apt /opt; do mount -t tmpfs none "$folder"; done
mount --bind "$1" /etc/apt
if [ "$2" = complete ]; then mkdir -p /opt/rocm/include/rccl; touch /opt/rocm/include/rccl/rccl.h; fi
. "$3"
"""


@pytest.mark.parametrize("image", ["complete", "without RCCL's headers"])
def test_an_expired_key_of_amds_ends_no_build_that_can_do_without_and_has_its_line(image: str, tmp_path: Path) -> None:
    needs("apt-get", "gpg", "unshare")
    for name, packages in (("own", "autoconf automake libtool make pkg-config"), ("repo.radeon.com", "rccl-dev")):
        (tmp_path / name).mkdir()
        texts = (f"Package: {one}\nVersion: 99\nArchitecture: all\nFilename: x\nSize: 1\n" for one in packages.split())
        listed = "\n".join(texts).encode()
        (tmp_path / name / "Packages").write_bytes(listed)
        digest = f"{hashlib.sha256(listed).hexdigest()} {len(listed)} Packages"
        (tmp_path / name / "Release").write_text(f"Suite: x\nDate: Wed, 01 Jan 2020 00:00:00 UTC\nSHA256:\n {digest}\n")
    home = tmp_path / "gpg"
    home.mkdir(mode=0o700)
    gpg = ("gpg", "--homedir", home, "--batch", "--quiet", "--no-tty")
    made = ("--faked-system-time", "20200101T000000", "--passphrase", "", "--quick-generate-key", "AMD", "rsa2048")
    subprocess.run([*gpg, *made, "sign", "1d"], check=True, capture_output=True)
    amd, key = tmp_path / "repo.radeon.com", tmp_path / "amd.gpg"
    signed = ("--faked-system-time", "20200101T010000", "--output", amd / "InRelease", "--clearsign", amd / "Release")
    subprocess.run([*gpg, *signed], check=True, capture_output=True)
    key.write_bytes(subprocess.run([*gpg, "--export"], check=True, capture_output=True).stdout)
    for name in ("apt.conf.d", "preferences.d", "sources.list.d"):
        (tmp_path / "etc" / name).mkdir(parents=True)
    parts = tmp_path / "etc/sources.list.d"
    (parts / "own.sources").write_text(f"Types: deb\nURIs: file:{tmp_path}/own\nSuites: ./\nTrusted: yes\n")
    (parts / "rocm.list").write_text(f"deb [signed-by={key}] file:{amd} ./\n")
    # the real apt_get, without a system to install packages into
    library = (shipped_layers() / "lib/packages.sh").read_text()
    stub = 'add_packages() { apt_get update && apt_get -s install "$@" >/dev/null; }\n'
    (tmp_path / "packages.sh").write_text(library + stub)
    words = ["unshare", "--mount", "--map-root-user", "bash", "-c", IN_AN_OLD_IMAGE, "bash"]
    done = subprocess.run(
        [*words, tmp_path / "etc", image, shipped_layers() / "rocm/post.sh"],
        env=os.environ | {"LAYER_FILES": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    kept = sorted(path.name for path in parts.iterdir())
    if image == "complete":
        assert (done.returncode, kept) == (0, ["own.sources", "rocm.list.disabled"]), done.stderr
        assert "the key of AMD's archive in this image has expired" in done.stdout
        return
    found = explain(done.stdout + done.stderr)
    assert (done.returncode, kept) == (100, ["own.sources", "rocm.list"])
    assert found is not None
    assert f"file:{amd} has expired" in found.meaning


def test_a_layer_of_ones_own_has_the_shared_files_of_lumiimg_or_its_own(tmp_path: Path) -> None:
    shipped = read_layer(shipped_layers() / "osu")
    shutil.copytree(shipped.folder, tmp_path / "osu")
    copied = read_layer(tmp_path / "osu")
    assert copied.staged == shipped.staged
    assert layer_digest(copied) == layer_digest(shipped)
    (tmp_path / "lib").mkdir()
    own = tmp_path / "lib/build.sh"
    own.write_text("true\n")
    changed = read_layer(tmp_path / "osu")
    assert changed.staged == {**shipped.staged, "build.sh": own}
    assert layer_digest(changed) != layer_digest(shipped)
    own.unlink()
    own.symlink_to(shipped.staged["build.sh"])
    with pytest.raises(DecodeError, match=r"build\.sh of `lib` is a link"):
        read_layer(tmp_path / "osu")


GOLDENS = Path(__file__).parents[1] / "fixtures" / "recipes"
HOME = {"HOME": "/nonexistent"}
DEBIAN = ("demo", "debian-jax")  # their bases come from a mirror of Debian that the machine names
DOUBTED = {"debian-jax": ["fabric"]}
REFUSED = {"lumi-sglang": "lumiimg lock --base rocm-6.4.4 --add vllm --fabric bundled --site lumi"}


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    wheels = wheels_of_layers()
    with serve(World(of_layers=wheels, wheels=wheels)) as world:
        yield world


@pytest.mark.usefixtures("clean_home")
def test_a_recipe_is_locked_and_renders_its_definitions(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert set(open_catalogue(HOME).recipe_names()) == {*RECIPES, *REFUSED, *DEBIAN}
    for recipe in RECIPES:
        assert main(["lock", "--recipe", recipe, *world.mirrors, "--quiet", "-o", f"{recipe}.lock"]) == ExitCode.GOOD
        path = tmp_path / f"{recipe}.lock"
        lock = lock_of(read_document(path), [open_catalogue(HOME)], Mirrors({}), "", path)
        assert lock.fabric is Fabric.BUNDLED, recipe
        assert all(source.sha256 for layer in lock.stack for source in (*layer.sources, *layer.wheels)), recipe
        flat = write_flat(lock)
        golden = GOLDENS / f"{recipe}.def"
        if os.environ.get("LUMIIMG_WRITE_GOLDENS"):
            golden.write_text(flat.text)
        assert flat.text == golden.read_text(), "look at the difference; LUMIIMG_WRITE_GOLDENS=1 keeps it"
        chain = write_chain(lock)
        assert [definition.layers[0] for definition in chain] == [layer.layer.name for layer in lock.stack]


@pytest.mark.usefixtures("clean_home")
def test_a_recipe_is_a_plan_without_known_obstacles(capsys: pytest.CaptureFixture[str]) -> None:
    for recipe in open_catalogue(HOME).recipe_names():
        refused = recipe in REFUSED
        assert main(["explain", "--recipe", recipe, "--json"]) == (ExitCode.NO if refused else ExitCode.GOOD)
        rules = json.loads(capsys.readouterr().out)["rules"]
        assert [rule["id"] for rule in rules if rule["outcome"] == "warning"] == DOUBTED.get(recipe, []), recipe
        outcomes = {rule["outcome"] for rule in rules} - {"warning"}
        assert outcomes == ({"ok", "refused"} if refused else {"ok"}), recipe
        if refused:
            assert main(["lock", "--recipe", recipe]) == ExitCode.NO
            assert REFUSED[recipe] in capsys.readouterr().err
    for recipe, fabric in (("lumi-vllm", "bundled"), ("demo", "auto")):
        assert main(["show", recipe, "--json"]) == ExitCode.GOOD
        assert json.loads(capsys.readouterr().out)["fabric"] == fabric
