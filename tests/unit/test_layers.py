"""The layers and bases that ship: each names its source, its scripts hold together, and what it needs is to be had."""

from __future__ import annotations

import json
import os
import re
import subprocess
from typing import TYPE_CHECKING

import pytest
from packaging.version import Version

from lumiimg.catalog.catalogue import open_catalogue
from lumiimg.catalog.folders import shipped_layers
from lumiimg.catalog.layers import Layer, expand, read_layer
from lumiimg.catalog.sites import find_site
from lumiimg.cli.main import main
from lumiimg.definition.text import checked_body
from lumiimg.errors import ExitCode

if TYPE_CHECKING:
    from pathlib import Path

CATALOGUE = open_catalogue({"HOME": "/nonexistent"})
LUMI = find_site("lumi", {"HOME": "/nonexistent"})
NAMES = CATALOGUE.layer_names()
FOLDERS = sorted(file.parent for file in shipped_layers().glob("*/layer.toml"))
SCRIPTS = sorted(file for folder in FOLDERS for file in folder.glob("*.sh") if not file.is_symlink())
# A person, or a base that is adapted, offers these; no entry of the catalogue has them as its own.
KNOWN = {"python", "glibc", "rocm", "libfabric"}
# What pip is given is pinned by name, by a file, by an argument of the layer, or it is what a wheel is built with.
PIP = re.compile(r"\bpip3? +(install|wheel|download)\b")


def entries() -> list[Layer]:
    return [CATALOGUE.entry(name) for name in NAMES]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_every_fact_has_a_source_and_a_date(folder: Path) -> None:
    layer = read_layer(folder)
    assert len(layer.source) > 10
    assert layer.date.year >= 2026
    for source in (*(r.source for r in layer.releases), *(t.source for t in layer.troubles)):
        assert source


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_release_fills_in_the_arguments_that_the_layer_has(folder: Path) -> None:
    layer = read_layer(folder)
    defaults = {name: argument.default for name, argument in layer.arguments.items()}
    for release in layer.releases:
        Version(release.version)
        values = {**defaults, "VERSION": release.version, **release.arguments}
        for name, argument in layer.arguments.items():
            assert argument.pattern is None or argument.pattern.fullmatch(values[name]), (release.version, name)
        for source in layer.sources:
            assert "{" not in expand(source.url, values)
        for component, version in release.has.items():
            Version(expand(version, values)), component
    versions = [Version(release.version) for release in layer.releases]
    if folder.name != "mpich":  # 4 is preferred: it is what most of LUMI's images have
        assert versions == sorted(versions, reverse=True), "the newest first"


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_proved_layer_has_digests_of_all_its_archives(folder: Path) -> None:
    layer = read_layer(folder)
    for source in layer.sources:
        assert source.sha256 or source.optional or layer.status == "unproved", f"{source.name} has no digest"


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_script_finds_the_files_that_it_reads(folder: Path) -> None:
    layer = read_layer(folder)
    read = {name for script in (folder / "post.sh", *map(folder.joinpath, layer.files)) for name in _reads(script)}
    optional = {"check.py"} if "python.sh" in layer.files else set()  # for layers that have nothing to do with torch
    assert read - optional <= {*layer.files}
    for name in layer.files:
        target = (folder / name).resolve()
        assert shipped_layers().resolve() in target.parents, f"{name} leaves the folder of the layers"
    assert {"post.sh", "test.sh", "layer.toml"} | {*layer.files} >= {file.name for file in folder.iterdir()}


def _reads(script: Path) -> set[str]:
    return set(re.findall(r"\$LAYER_FILES/([A-Za-z0-9._-]+)", script.read_text()))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: f"{script.parent.name}/{script.name}")
def test_a_script_is_bash_that_a_definition_can_carry(script: Path) -> None:
    subprocess.run(["bash", "-n", str(script)], check=True)
    checked_body(script.read_text(), str(script))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: f"{script.parent.name}/{script.name}")
def test_pip_runs_under_the_constraints_of_the_image(script: Path) -> None:
    """Bare pip takes today's torch, which is CUDA's: only python.sh calls pip, with the image's pins."""
    lines = [line for line in script.read_text().splitlines() if not line.lstrip().startswith("#")]
    assert not [line for line in lines if PIP.search(line) and "fail" not in line]
    for line in lines:
        if "-m pip" in line:
            assert script.name == "python.sh"
    if script.name == "python.sh":
        assert 'PIP_CONSTRAINT="$constraints"' in script.read_text()


def test_list_shows_what_is_not_proved(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--json"]) == ExitCode.GOOD
    shown = {entry["name"]: entry["status"] for entry in json.loads(capsys.readouterr().out)["entries"]}
    for layer in entries():
        assert shown[layer.name] == layer.status
    assert shown["vllm"] == "unproved"
    assert shown["aws-ofi-nccl"] == "proved"


def test_no_layer_sets_in_the_image_what_only_the_host_reads() -> None:
    """Options of srun as variables are read on the host, before there is a container."""
    for layer in entries():
        assert not [name for name in layer.set_environment if name.startswith(("SLURM_", "SRUN_", "SBATCH_"))]


def test_what_a_layer_needs_is_to_be_had() -> None:
    offered = {*KNOWN, *NAMES}
    for layer in entries():
        offered |= {*layer.provides, *layer.has}
        offered |= {component for release in layer.releases for component in release.has}
    offered |= {LUMI.arch or ""}
    for layer in entries():
        needs = [*layer.requires, *(need for release in layer.releases for need in release.requires)]
        needs += [need for trouble in layer.troubles for need in trouble.given]
        assert {need.component for need in needs} <= offered, layer.name
        assert {*layer.conflicts} <= offered, layer.name


def test_the_gpu_that_is_compiled_for_is_the_sites_or_one_that_it_refuses() -> None:
    lumi = LUMI.arch
    for layer in entries():
        if "ARCH" in layer.arguments and layer.arguments["ARCH"].default != lumi:
            refused = [trouble for trouble in layer.troubles if trouble.refused]
            assert any(need.component == lumi for trouble in refused for need in trouble.given), layer.name


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


@pytest.mark.parametrize(
    ("version", "hip", "names", "fault"),
    [
        ("2.9.1+rocm6.4", "6.4.43484-123eb5128", ["torch", "numpy"], ""),
        ("2.7.1+rocm6.2.4", "6.2.41134-65d174c3e", ["torch"], ""),
        ("2.10.0+lumi_aif_gfx90a", "7.0.51831", ["torch"], ""),
        ("2.9.1+cu128", None, ["torch"], "is not built for ROCm"),
        ("2.9.1+rocm6.4", "6.3.42131", ["torch"], "not that of the ROCm in its name"),
        ("2.7.1+rocm6.2.4", "6.2.21134", ["torch"], "not that of the ROCm in its name"),
        ("2.9.1+rocm6.4", "6.4.43484", ["torch", "nvidia_cublas_cu12", "NVIDIA-nccl-cu12"], "NVIDIA-nccl-cu12, nvidia"),
    ],
)
def test_the_check_of_torch(version: str, hip: str | None, names: list[str], fault: str) -> None:
    path = shipped_layers() / "pytorch" / "check.py"
    program = CHECK.format(version=version, hip=hip, names=names, path=str(path))
    done = subprocess.run(["python3", "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == (1 if fault else 0), done.stderr
    assert fault in done.stderr
    if not fault:
        assert done.stdout == f"torch {version}, HIP {hip}, json\n"


def test_a_wheel_without_its_extensions_is_not_kept(tmp_path: Path) -> None:
    """With stand-ins for what the script calls."""
    kept = tmp_path / "kept"
    (kept / "apex").mkdir(parents=True)
    (kept / "other").mkdir()
    for name in ("build.sh", "gpu.sh"):
        (tmp_path / name).touch()
    calls = "use_torch need_compilers need_python_headers use_arch unpack pip_install build_wheel restore_tools"
    stubs = "".join(f"{name}() {{ :; }}\n" for name in (*calls.split(), "extension_files"))
    (tmp_path / "python.sh").write_text(f'{stubs}fail() {{ echo "$*"; exit 1; }}\n')
    environment = {**os.environ, "LAYER_FILES": f"{tmp_path}", "KEPT": f"{kept}", "SOURCE_APEX": "x"}
    script = shipped_layers() / "apex/post.sh"
    run = subprocess.run(["bash", "-eu", script], env=environment, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout) == (1, "Apex was built without its extensions\n"), run.stderr
    assert [path.name for path in kept.iterdir()] == ["other"]
