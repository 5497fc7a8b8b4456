"""`lumiimg module`: modules that Lmod and Tcl modules load and unload, wrappers that start programs of the image.

The engine is a stand-in that prints what it gets; tests/engine/test_modules.py uses a real one.
"""

from __future__ import annotations

import json
import os
import pwd
import subprocess
from pathlib import Path
from typing import Any

import pytest

from lumiimg.cli.main import main
from lumiimg.fabric.path import HOST_LIB_DIR
from tests.shared import fabric_builder
from tests.shared.elf_builder import library
from tests.shared.fabric_builder import snapshot
from tests.shared.module_systems import SYSTEMS, environments
from tests.shared.oci_builder import docker_save, member, tar
from tests.shared.programs import needs, unwrapped

Capture = pytest.CaptureFixture[str]
CACHE = "/$USER-cache-${SLURM_NODEID}"
HOSTILE = "an 'image' \"x\" $HOME `id` \\ [ex]===] }b{, #;&.sif"
SITE = Path("tests/fixtures/modules/site.toml").resolve()
ENGINE = """\
#!/bin/bash
# a stand-in for an engine
printf '%s\\0' "$@"
printf '%s\\0' "-- environment"
env -0
"""


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """A folder with RCCL, a plugin and some programs."""
    return with_programs(fabric_builder.image(tmp_path / "their image.sif"))


def with_programs(root: Path) -> Path:
    programs = {"usr/bin/python3.12": "\x7fELF", "usr/bin/bash": "\x7fELF", "usr/bin/torchrun": "#!/usr/bin/python3\n"}
    programs |= {"usr/bin/pip": "#!/usr/bin/python3\n", "usr/bin/vllm": "#!/bin/sh\n"}
    for name, text in programs.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
        (root / name).chmod(0o755)
    (root / "usr/bin/python3").symlink_to("/usr/bin/python3.12")
    (root / "usr/bin/ray").write_text("not a program\n")
    return root


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return write_site(tmp_path)


def write_site(folder: Path, bind: str = "/scratch", cache: str | None = None) -> Path:
    """Write a site file; by default, its cache is below `folder`."""
    path = folder / "here.toml"
    text = SITE.read_text().replace('"BIND"', json.dumps(bind))
    path.write_text(text.replace('"CACHE"\nnodes', f'"{cache or f"{folder}{CACHE}"}"\nnodes'))
    return path


def made(capsys: Capture, image: Path, folder: Path, *more: str | Path, code: int = 0) -> dict[str, Any]:
    assert main(["module", str(image), "-o", str(folder), "--json", *map(str, more)]) == code
    out = capsys.readouterr().out
    data: dict[str, Any] = json.loads(out) if out else {}
    return data


def started(
    wrapper: Path, *argv: str, path: str | Path, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    env = {"HOME": "/nonexistent", **(env or {}), "PATH": f"{path}:/usr/bin:/bin"}
    return subprocess.run([wrapper, *argv], env=env, capture_output=True, text=True, check=False)


def run(wrapper: Path, *argv: str, path: Path, env: dict[str, str] | None = None) -> tuple[list[str], dict[str, str]]:
    """Start a wrapper with the stand-in on PATH; return (arguments of the engine, its environment)."""
    done = started(wrapper, *argv, path=path, env=env)
    assert done.returncode == 0, done.stderr
    printed, _, environment = done.stdout.partition("-- environment\0")
    variables = dict(item.partition("=")[::2] for item in environment.split("\0") if item)
    return printed.split("\0")[:-1], variables


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    """The folder of a stand-in for singularity."""
    folder = tmp_path / "engine"
    folder.mkdir()
    (folder / "singularity").write_text(ENGINE)
    (folder / "singularity").chmod(0o755)
    return folder


# -- the modules --


def test_a_module_adds_to_what_was_there_and_takes_it_back(
    tmp_path: Path, image: Path, site: Path, capsys: Capture
) -> None:
    node = snapshot(fabric_builder.host(tmp_path / "host"))
    data = made(capsys, image, tmp_path / "mods", "--name", "vllm/0.10", "--host", node, "--site", site)
    text = " ".join(Path(data["files"]["modulefile"]).read_text().replace("\n#", "\n").split())
    for expected in (
        "never run on that machine",
        "librccl-net.so -> libfabric.so.1 -> libcxi.so.1",
        "over Slingshot (the tests)",
        "CACHE is set by the wrappers, as each rank has its own; in your scripts, for each rank: export",
        "SLURM_NETWORK=single_node_vni is left out, for jobs on one node only",
    ):
        assert expected in text
    before = {"SINGULARITY_BIND": "/mine", "NCCL_SOCKET_IFNAME": "mine", "SINGULARITYENV_LD_LIBRARY_PATH": "/mine:/x"}
    for system in SYSTEMS:
        (loaded, gone), expected = environments(system, Path(data["use"]), ["load vllm", "unload vllm"], before)
        assert loaded["PATH"].split(":")[0] == data["files"]["wrappers"]
        assert loaded["SIF"] == loaded["SIFVLLM"] == str(image)
        binds = loaded["SINGULARITY_BIND"].split(",")
        assert (binds[0], binds[-1]) == ("/mine", "/scratch")
        assert f"/usr/lib64/libcxi.so.1:{HOST_LIB_DIR}/libcxi.so.1" in binds
        assert loaded["SINGULARITYENV_LD_LIBRARY_PATH"] == f"{HOST_LIB_DIR}:/opt/rocm/lib"
        assert loaded["SINGULARITYENV_PYTHONNOUSERSITE"] == "1"
        assert loaded["NCCL_SOCKET_IFNAME"] == "hsn0,hsn1"
        # a module does not set what differs by rank, or what only some jobs want
        assert not {"CACHE", "SLURM_NETWORK"} & loaded.keys()
        # the snapshot's libraries are not on the machine of this test
        assert "/usr/lib64/libcxi.so.1 is not here: it was on 20" in " ".join(expected.split())
        assert gone["SINGULARITY_BIND"] == "/mine"
        assert not {"SIF", "SIFVLLM", "SINGULARITYENV_PYTHONNOUSERSITE"} & gone.keys()
        assert gone["PATH"] == "/usr/bin:/bin"
        if system == "lmod":  # Tcl modules cannot put back what was there
            assert {name: gone[name] for name in before} == before


@pytest.mark.threat
def test_names_that_shells_and_modules_would_evaluate_stay_names(tmp_path: Path, engine: Path, capsys: Capture) -> None:
    image = with_programs(fabric_builder.image(tmp_path / "image").rename(tmp_path / HOSTILE))
    strange = "/p 'q' $HOME `id` [ex] {c} ; #"
    site = write_site(tmp_path, bind=strange)
    data = made(capsys, image, tmp_path / "my+mods", "--site", site)
    name = data["module"]
    assert name.partition("/")[0] == "an-image-x-home-id-ex-b"
    # in a wrapper, as do the words of a program
    bin_ = Path(data["files"]["wrappers"])
    assert run(bin_ / "python3", path=engine)[1]["SINGULARITY_BIND"] == strange
    words = ["-c", "print('a b')", "", "*", "$HOME", "--", "a\nb", "\\"]
    assert run(bin_ / "python3", *words, path=engine)[0] == ["exec", str(image), "/usr/bin/python3", *words]
    assert run(bin_ / "vllm", "serve", path=engine)[0] == ["exec", str(image), "/usr/bin/vllm", "serve"]
    shell = ["exec", str(image), "/usr/bin/bash", "--norc", "-c", "pip list"]
    assert run(bin_ / "start-shell", "-c", "pip list", path=engine)[0] == shell
    # in a module
    for system in SYSTEMS:
        commands = [f"load {name}", f"help {name}", f"unload {name}"]
        before = {"SINGULARITY_BIND": "/mine"}
        (loaded, shown, gone), reported = environments(system, Path(data["use"]), commands, before)
        assert loaded["SIF"] == shown["SIF"] == str(image)
        assert loaded["PATH"].startswith(data["files"]["wrappers"])
        assert loaded["SINGULARITY_BIND"] == f"/mine,{strange}"
        assert gone["SINGULARITY_BIND"] == "/mine"
        assert HOSTILE.replace("]===]", "] ===]") in reported


def test_a_variable_that_the_image_sets_itself_is_left_to_it(
    tmp_path: Path, image: Path, site: Path, capsys: Capture
) -> None:
    script = image / ".singularity.d/env/91-more.sh"
    for text, is_left_out in (
        ("export NCCL_SOCKET_IFNAME=hsn\n", True),
        ("return\nexport NCCL_SOCKET_IFNAME=hsn\n", False),
    ):
        script.write_text(text)
        data = made(capsys, image, tmp_path / f"mods-{is_left_out}", "--site", site)
        note = "NCCL_SOCKET_IFNAME=hsn0,hsn1 is left out, the image sets 'hsn' itself (over Slingshot)"
        assert (note in data["notes"]) is is_left_out, text
    assert "CACHE" in {item["name"] for item in data["environment_of_wrappers"]}


def test_srun_gets_how_the_mpi_of_the_image_is_started(
    tmp_path: Path, image: Path, engine: Path, site: Path, capsys: Capture
) -> None:
    library(image / "usr/lib/libmpi.so.12")
    # srun reads it on the host: what an image sets, as images of earlier versions of lumiimg did, does not count
    (image / ".singularity.d/env/91-more.sh").write_text("export SLURM_MPI_TYPE=pmi2\n")
    site.write_text(f'{site.read_text()}[mpi]\nown = "pmi2"\nsource = "the tests"\n')
    data = made(capsys, image, tmp_path / "mods", "--name", "mpi/1", "--site", site)
    for system in SYSTEMS:
        (loaded, gone), _ = environments(system, Path(data["use"]), ["load mpi", "unload mpi"])
        assert (loaded["SLURM_MPI_TYPE"], gone.get("SLURM_MPI_TYPE")) == ("pmi2", None)
    # srun starts the wrapper, which therefore says what srun needs, but cannot set it
    python = Path(data["files"]["wrappers"]) / "python3"
    assert "SLURM_MPI_TYPE" not in run(python, path=engine)[1]
    text = unwrapped((python.parents[1] / "enter").read_text().replace("    # ", ""))
    early = "srun reads it before it starts this script, so here it would be too late: load the module, or"
    why = "the image has its own MPICH, libmpi.so.12 (the tests)"
    assert f"{early} export SLURM_MPI_TYPE=pmi2 ({why})" in text


# -- what is refused --


def test_nothing_is_written_where_no_binds_load(tmp_path: Path, capsys: Capture) -> None:
    image = fabric_builder.image(tmp_path / "image", glibc=35)
    node = snapshot(fabric_builder.host(tmp_path / "host"))
    assert main(["module", str(image), "-o", str(tmp_path / "mods"), "--host", str(node)]) == 1
    assert "needs GLIBC_2.38" in unwrapped(capsys.readouterr().err)
    assert not (tmp_path / "mods").exists()


@pytest.mark.threat
def test_what_cannot_be_written_so_that_it_stays_text_is_refused_by_name(
    tmp_path: Path, image: Path, capsys: Capture
) -> None:
    def refused(where: Path, *words: str) -> str:
        assert main(["module", str(where), "-o", str(tmp_path / "mods"), *words]) == 1
        err = capsys.readouterr().err
        assert err.count("\n") == 1
        return err

    for bind in ("/a,b", '/a"b', "/a\\b", "/a]=]b"):
        refusal = refused(image, "--site", str(write_site(tmp_path, bind)))
        assert "cannot be added to a module's list of binds" in refusal, bind
    evaluated = "contains a character that shells evaluate"
    for cache in ("$(touch x)", "`touch x`", "x\\\\$USER", "${USER:-x}"):
        assert evaluated in refused(image, "--site", str(write_site(tmp_path, "/a", cache))), cache
    site = write_site(tmp_path)
    site.write_text(site.read_text().replace("$JIT/build", "$(id)"))
    assert f"JIT=$(id): {evaluated}" in refused(image, "--site", str(site))
    named = image.rename(tmp_path / "a\x07b\x9b")
    assert "a path with such characters cannot be in a module" in refused(named)
    assert not (tmp_path / "mods").exists()


def test_a_name_or_a_folder_that_modules_cannot_have_is_bad_usage(tmp_path: Path, image: Path, capsys: Capture) -> None:
    for name in ("a/", "/1", "a b", "../x", "a/b/c", "default", "a/default", "a/1.lua", ".hidden"):
        assert main(["module", str(image), "-o", str(tmp_path / "mods"), "--name", name]) == 2, name
        assert "is not a valid NAME or NAME/VERSION" in capsys.readouterr().err, name
    for character in "$[]{}\\*?:\"' ;#`()&":
        assert main(["module", str(image), "-o", str(tmp_path / f"m{character}s")]) == 2, character
        assert f"module systems interpret {character!r}, and would not find the file" in capsys.readouterr().err


def test_an_image_that_no_engine_runs_as_it_is_gets_no_module(tmp_path: Path, capsys: Capture) -> None:
    archive = docker_save(tmp_path / "image.tar", tar(member("etc/os-release", b"ID=x\n")))
    assert main(["module", str(archive), "-o", str(tmp_path / "mods")]) == 2
    assert "singularity build image.sif oci:FOLDER" in capsys.readouterr().err


@pytest.mark.threat
def test_only_what_is_ours_and_of_this_image_is_replaced(tmp_path: Path, image: Path, capsys: Capture) -> None:
    folder = tmp_path / "mods"
    first = made(capsys, image, folder, "--name", "a/1")
    made(capsys, image, folder, "--name", "a/1")  # again: the same module
    (tmp_path / "other.sif").symlink_to(fabric_builder.image(tmp_path / "other"))
    other = tmp_path / "other.sif"
    assert main(["module", str(other), "-o", str(folder), "--name", "a/1"]) == 2
    assert f"module a/1 is for another image, {image}" in capsys.readouterr().err
    assert str(image) in Path(first["files"]["modulefile"]).read_text()
    replaced = made(capsys, other, folder, "--name", "a/1", "--force")
    assert replaced["image"] == str(tmp_path / "other")  # the link may move on, the module stays with the image
    (folder / "software/b/1").mkdir(parents=True)
    assert main(["module", str(image), "-o", str(folder), "--name", "b/1", "--force"]) == 2
    (folder / "modulefiles/c").mkdir()
    (folder / "modulefiles/c/1").write_text("-- mine\n")
    assert main(["module", str(image), "-o", str(folder), "--name", "c/1", "--force"]) == 2
    assert capsys.readouterr().err.count("exists, and was not written by lumiimg") == 2
    assert (folder / "modulefiles/c/1").read_text() == "-- mine\n"
    assert [path.name for path in (folder / "software/a").iterdir()] == ["1"]


# -- the wrappers --


def test_each_program_of_the_image_has_a_wrapper_and_no_other(
    tmp_path: Path, image: Path, engine: Path, capsys: Capture
) -> None:
    (image / "usr/bin/pip").rename(image / "usr/bin/pip3")
    data = made(capsys, image, tmp_path / "mods")
    bin_ = Path(data["files"]["wrappers"])
    expected = ["pip", "pip3", "python", "python3", "python3.12", "start-shell", "torchrun", "vllm"]
    assert sorted(path.name for path in bin_.iterdir()) == expected
    assert data["wrappers"]["python3"] == "/usr/bin/python3"
    # python and pip are those of the image, even if it has no programs of these names
    assert run(bin_ / "python", "-c", "x", path=engine)[0] == ["exec", str(image), "/usr/bin/python3", "-c", "x"]
    assert run(bin_ / "pip", "list", path=engine)[0] == ["exec", str(image), "/usr/bin/python3", "-m", "pip", "list"]


def test_pip_is_never_that_of_the_machine(tmp_path: Path, image: Path, engine: Path, capsys: Capture) -> None:
    (image / "usr/bin/pip").unlink()
    bin_ = Path(made(capsys, image, tmp_path / "mods")["files"]["wrappers"])
    for name in ("pip", "pip3"):
        assert run(bin_ / name, "list", path=engine)[0] == ["exec", str(image), "/usr/bin/python3", "-m", "pip", "list"]


def test_a_wrapper_alone_binds_and_sets_what_its_module_does(
    tmp_path: Path, image: Path, site: Path, engine: Path, capsys: Capture
) -> None:
    data = made(capsys, image, tmp_path / "mods", "--name", "a/1", "--site", site)
    wrapper = Path(data["files"]["wrappers"]) / "python3"
    rank = {"USER": "me", "SLURM_NODEID": "3", "SLURM_LOCALID": "2", "SINGULARITY_BIND": "/mine"}
    _, alone = run(wrapper, path=engine, env=rank)
    assert alone["SINGULARITY_BIND"] == "/mine,/scratch"
    assert alone["NCCL_SOCKET_IFNAME"] == "hsn0,hsn1"
    assert alone["CACHE"] == f"{tmp_path}/me-cache-3"
    assert alone["JIT"] == f"{tmp_path}/me-cache-3/of 2"
    assert Path(alone["JIT"], "build").is_dir(), "the wrapper made both, and the folder that the variable wants"
    assert alone["SINGULARITYENV_PYTHONNOUSERSITE"] == "1"
    # with the module loaded, nothing appears twice; what the user sets afterwards stays
    (loaded,), _ = environments("lmod", Path(data["use"]), ["load a"])
    _, after = run(wrapper, path=engine, env={**loaded, "NCCL_SOCKET_IFNAME": "lo", "CACHE": str(tmp_path)})
    assert after["SINGULARITY_BIND"] == "/scratch"
    assert (after["NCCL_SOCKET_IFNAME"], after["CACHE"]) == ("lo", str(tmp_path))


@pytest.mark.threat
def test_caches_of_a_job_are_in_a_folder_that_nobody_else_made(
    tmp_path: Path, image: Path, site: Path, engine: Path, capsys: Capture
) -> None:
    caches = f"{tmp_path}/$USER-$SLURM_JOB_ID"
    text = site.read_text().replace('scheduler = "Slurm"', f'scheduler = "Slurm"\ncaches = "{caches}"')
    site.write_text(text.replace(f"{tmp_path}{CACHE}", f"{caches}/triton"))
    wrapper = Path(made(capsys, image, tmp_path / "mods", "--site", site)["files"]["wrappers"]) / "python3"
    _, done = run(wrapper, path=engine, env={"USER": "me"})
    assert not list(tmp_path.glob("me-*")), "outside of a job there are none"
    assert "CACHE" not in done
    assert done["NCCL_SOCKET_IFNAME"] == "hsn0,hsn1"
    job = {"USER": "me", "SLURM_JOB_ID": "7"}
    _, done = run(wrapper, path=engine, env=job)
    assert done["CACHE"] == f"{tmp_path}/me-7/triton"
    assert (tmp_path / "me-7").stat().st_mode & 0o777 == 0o700
    (tmp_path / "others").mkdir()
    (tmp_path / "me-8").symlink_to(tmp_path / "others")
    _, done = run(wrapper, path=engine, env={**job, "SLURM_JOB_ID": "8", "TMPDIR": str(tmp_path)})
    place = Path(done["CACHE"])
    assert place.is_dir(), "a new folder"
    assert (place.name, place.parent.parent, place.parent.stat().st_mode & 0o777) == ("triton", tmp_path, 0o700)
    assert not list((tmp_path / "others").iterdir())
    # `srun --export=NONE` gives a wrapper no USER
    _, done = run(wrapper, path=engine, env={"SLURM_JOB_ID": "7"})
    assert done["CACHE"] == f"{tmp_path}/{pwd.getpwuid(os.getuid()).pw_name}-7/triton"


def test_a_wrapper_says_what_is_missing(tmp_path: Path, image: Path, engine: Path, capsys: Capture) -> None:
    def failing(wrapper: Path, path: Path = engine) -> str:
        done = subprocess.run([wrapper], env={"PATH": str(path)}, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (127, "")
        return done.stderr

    bin_ = Path(made(capsys, image, tmp_path / "mods")["files"]["wrappers"])
    (tmp_path / "empty").mkdir()
    assert (
        failing(bin_ / "python3", tmp_path / "empty") == "python3: neither singularity nor apptainer is on PATH here\n"
    )
    node = snapshot(fabric_builder.host(tmp_path / "host"))
    with_host = Path(made(capsys, image, tmp_path / "hosted", "--host", node)["files"]["wrappers"])
    missing = "/opt/cray/libfabric/1.22.0/lib64/libfabric.so.1 is not on this node: it was on 20"
    assert missing in failing(with_host / "torchrun")
    image.rename(tmp_path / "elsewhere")
    assert f"the image is missing: {image}" in failing(bin_ / "vllm")


PIP = {
    ("--quiet", "install", "-U", "lightning", "a<2"): "lightning a\\<2",
    ("install", "-r", "more.txt", "-c", "held.txt", "--index-url", "https://x", "b"): "-r more.txt b",
    ("install", "--requirement=more.txt", "-rmost.txt"): "-r more.txt -r most.txt",
    ("install", "-e", "."): "-r requirements.txt",
}
"""Arguments of pip, and words of the command that is proposed instead."""


def test_pip_install_names_the_command_that_does_it(tmp_path: Path, image: Path, engine: Path, capsys: Capture) -> None:
    pip = Path(made(capsys, image, tmp_path / "mods")["files"]["wrappers"]) / "pip"
    for words, packages in PIP.items():
        done = started(pip, *words, path=engine)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        command = f"lumiimg venv {tmp_path}/their\\ image.sif {packages} -o env.sqsh"
        assert f"Use: {command}, then the module again with --venv env.sqsh" in done.stderr
    done = started(pip, "uninstall", "torch", path=engine)
    assert (done.returncode, "no package of it can be removed" in done.stderr) == (2, True)
    for more in (["list"], ["install", "--target", "x", "y"], ["install", "--dry-run", "y"], ["show", "y"]):
        assert run(pip, *more, path=engine)[0] == ["exec", str(image), "/usr/bin/python3", "-m", "pip", *more]


def test_a_python_that_is_not_on_the_images_path_is_found_with_its_torch(
    tmp_path: Path, image: Path, engine: Path, capsys: Capture
) -> None:
    conda = image / "opt/conda/envs/pytorch"
    (conda / "bin").mkdir(parents=True)
    for name in ("python3", "torchrun"):
        (conda / "bin" / name).write_text("#!/bin/sh\n")
        (conda / "bin" / name).chmod(0o755)
    info = conda / "lib/python3.12/site-packages/torch-2.7.1+rocm6.2.4.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Name: torch\n")
    data = made(capsys, image, tmp_path / "mods")
    assert data["title"] == "their image.sif: torch 2.7.1+rocm6.2.4, ROCm 6.2, Python 3.12"
    assert data["wrappers"]["python3"] == "/opt/conda/envs/pytorch/bin/python3"
    assert data["wrappers"]["vllm"] == "/usr/bin/vllm"
    _, variables = run(Path(data["files"]["wrappers"]) / "torchrun", path=engine)
    assert variables["SINGULARITYENV_PREPEND_PATH"] == "/opt/conda/envs/pytorch/bin"


def test_shellcheck_finds_nothing_in_the_scripts(tmp_path: Path, site: Path, capsys: Capture) -> None:
    """Except that an odd name contains a $ or a `, which is the point (SC2016)."""
    needs("shellcheck")
    node = snapshot(fabric_builder.host(tmp_path / "host"))
    image = with_programs(fabric_builder.image(tmp_path / "image.sif"))
    for more in ((), ("--exclude=SC2016",)):
        data = made(capsys, image, tmp_path / f"mods{len(more)}", "--host", node, "--site", site)
        bin_ = Path(data["files"]["wrappers"])
        scripts = [*bin_.iterdir(), bin_.parent / "enter"]
        done = subprocess.run(["shellcheck", *more, *scripts], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout
        image = image.rename(tmp_path / HOSTILE)
