"""A Python environment over an image: which ones are refused, and how job, check and module use it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from lumiimg.build.venv import VenvPlan, _Listing, _refuse_wrong, make_venv, plan_venv, request_for_venv
from lumiimg.catalog.catalogue import open_catalogue
from lumiimg.cli.main import main
from lumiimg.core.decode import to_json
from lumiimg.core.errors import BadInputError, ExitCode, FailedError, MissingHereError, RefusedError
from lumiimg.fetch.http import Http
from lumiimg.fetch.mirrors import parse_mirrors
from lumiimg.fetch.store import Sources, Store
from lumiimg.host.python_process import start_process
from lumiimg.image import open_image
from lumiimg.resolve.venv import RECORD, VenvRecord, image_fingerprint, open_venv, with_venv
from tests.shared import fabric_builder
from tests.shared.elf_builder import library
from tests.shared.programs import squashed
from tests.shared.python_image import SITE, python, torch
from tests.shared.world import World, serve

Capture = pytest.CaptureFixture[str]
TORCH = "2.9.1+rocm6.4"


def image_at(root: Path, torch_version: str = TORCH) -> Path:
    """Make an image with RCCL, a plugin, and torch in the system's Python."""
    fabric_builder.image(root)
    python(root, "usr")
    torch(root, "usr", version="2.22.3")
    dist(root / "usr" / SITE, f"torch-{torch_version}")
    dist(root / "usr" / SITE, "numpy-2.1.0")
    return root


def dist(folder: Path, name: str) -> None:
    (folder / f"{name}.dist-info").mkdir(parents=True)
    (folder / f"{name}.dist-info/METADATA").touch()


def venv_at(folder: Path, image: Path | None, *, python_version: str = "3.12", made_beside: str | None = TORCH) -> Path:
    """Write the files of an environment over an image; `image` is the one that it names as its own."""
    (folder / "bin").mkdir(parents=True)
    (folder / "bin/python").symlink_to(f"/usr/bin/python{python_version}")
    (folder / "bin/tool").write_text("#!/user-software/bin/python\n")
    (folder / "bin/tool").chmod(0o755)
    (folder / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = true\n")
    dist(folder / f"lib/python{python_version}/site-packages", "einops-0.8.1")
    if image is not None:
        record = VenvRecord(
            str(image), image_fingerprint(image), python_version, made_beside, ("einops",), {"einops": "0.8.1"}
        )
        (folder / RECORD).write_text(to_json(record))
    return folder


def packed(folder: Path, file: Path) -> Path:
    return squashed(folder, file)


@pytest.fixture
def image(tmp_path: Path) -> Path:
    return image_at(tmp_path / "image")


# -- what an environment is --


def test_what_is_no_environment_is_refused_in_one_line(image: Path, tmp_path: Path, capsys: Capture) -> None:
    paths = {
        name: tmp_path / f"it's {name}.sqsh"
        for name in ("text", "empty", "folder", "squashfs", "nothing", "record", "lines")
    }
    paths["text"].write_text("hsqs and no more")
    paths["empty"].touch()
    paths["folder"].mkdir()
    (tmp_path / "x/etc").mkdir(parents=True)
    packed(tmp_path / "x", paths["squashfs"])
    (venv_at(paths["record"], image) / RECORD).write_text('{"image": "x", "image_mark": "\\u001b[2J"}')
    lines = VenvRecord("/x.sif\n/y.sif", None, "3.12", None)
    (venv_at(paths["lines"], image) / RECORD).write_text(to_json(lines))
    for path in paths.values():
        for command, *words in (
            ("check", "--level", "static"),
            ("job", "--site", "lumi", "--", "true"),
            ("module", "-o", str(tmp_path / "modules")),
        ):
            assert main([command, str(image), "--venv", str(path), *words]) == ExitCode.BAD_INPUT, (command, path)
            (line,) = capsys.readouterr().err.splitlines()
            assert str(path) in line
            assert line.isprintable()


def test_packages_of_a_venv_that_the_image_is_itself_are_seen(tmp_path: Path, image: Path) -> None:
    """As `lumiimg venv` writes it: without this line, a venv over a venv would skip that one and use its Python."""
    dist(image / "opt/venv" / SITE, "inner-1.0")
    (image / "opt/venv" / SITE / "paths.pth").write_text("/opt/more\n")
    (image / "opt/more").mkdir()
    over = venv_at(tmp_path / "env", image)
    (over / SITE / "_image.pth").write_text(f"import site; site.addsitedir('/opt/venv/{SITE}')\n")
    with open_image(image) as plain, with_venv(plain, open_venv(over)) as whole:
        found = start_process(whole.root, "/user-software/bin/python", {})
    assert found.questions == ()
    own = [folder for folder in found.path if "site-packages" in folder]
    assert own[:2] == [f"/user-software/{SITE}", f"/opt/venv/{SITE}"]
    assert "/opt/more" in found.path


# -- job --


def script(image: Path, venv: Path, *words: str, code: int = ExitCode.GOOD) -> str:
    path = image.with_name("job.sh")
    words = (*words, "-o", str(path), "--", "python", "train.py")
    assert main(["job", str(image), "--site", "lumi", "--venv", str(venv), *words]) == code
    return path.read_text() if path.exists() else ""


@pytest.mark.parametrize("robust", [(), ("--robust",), ("--launch", "torchrun")])
def test_a_job_binds_the_environment_and_starts_its_python(
    robust: tuple[str, ...], image: Path, tmp_path: Path, capsys: Capture
) -> None:
    file = packed(venv_at(tmp_path / "env", image), tmp_path / "my $env's.sqsh")
    text = script(image, file, *robust)
    assert 'PATH="/user-software/bin:$PATH"' in text
    # as bash reads it
    bound = subprocess.run(
        ["bash", "-c", f"f() {{ printf '%s\\n' \"$@\"; }}; {_line_with(text, 'image-src')}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"{file}:/user-software:image-src=/,ro" in bound.stdout
    subprocess.run(["bash", "-n", image.with_name("job.sh")], check=True)
    assert "environment" not in capsys.readouterr().err, "nothing stands against it"


def _line_with(text: str, part: str) -> str:
    """Return the words of the line that binds, as arguments of a function `f`."""
    line = next(line for line in text.splitlines() if part in line and not line.lstrip().startswith("#"))
    words = line.strip().removesuffix("\\").replace("singularity exec", "").partition(" sh -c '")[0]
    return f"LUMIIMG_JOB=x; f {words}"


def test_a_job_with_packages_of_another_python_is_refused_with_both(
    image: Path, tmp_path: Path, capsys: Capture
) -> None:
    over = venv_at(tmp_path / "env", image, python_version="3.11")
    assert script(image, over, code=ExitCode.NO) == ""
    error = capsys.readouterr().err
    assert "env was made for Python 3.11, and the image has Python 3.12" in error
    assert f"make it for this image: lumiimg venv {image} einops -o {over}-new/" in error
    # what a stranger wrote into a record does not become an option of a command
    record = VenvRecord("/x.sif", None, "3.11", TORCH, ("--mirror=pypi=http://x.example",), {})
    (over / RECORD).write_text(to_json(record))
    script(image, over, code=ExitCode.NO)
    error = capsys.readouterr().err
    assert "`lumiimg venv` makes one for this image" in error
    assert "x.example" not in error


def test_a_job_says_what_else_blocks_the_environment(image: Path, tmp_path: Path, capsys: Capture) -> None:
    other = packed(image_at(tmp_path / "other"), tmp_path / "other.sqsh")
    script(image, venv_at(tmp_path / "a", other))
    assert "made for another image" in " ".join(capsys.readouterr().out.split())
    script(image, venv_at(tmp_path / "b", image, made_beside="2.7.1+rocm6.3"))
    output = " ".join(capsys.readouterr().out.split())
    assert (
        f"another image, {image} (a folder, torch 2.7.1+rocm6.3); this is {image} (a folder, torch {TORCH})" in output
    )
    own = venv_at(tmp_path / "c", image)
    dist(own / SITE, "torch-2.9.0")
    script(image, own)
    assert "carries torch 2.9.0, which is imported instead of the image's torch" in " ".join(
        capsys.readouterr().out.split()
    )
    script(image, venv_at(tmp_path / "d", None))
    assert "does not say which image it was made for" in " ".join(capsys.readouterr().out.split())


def test_a_path_that_no_engine_binds_with_options_is_refused(image: Path, tmp_path: Path, capsys: Capture) -> None:
    for name in ("a,b", "a:b", "a\\b"):
        script(image, venv_at(tmp_path / name, image), code=ExitCode.BAD_INPUT)
        assert "cannot be bound; rename it" in capsys.readouterr().err


# -- check --


def findings(image: Path, venv: Path, capsys: Capture, code: int) -> dict[str, str]:
    capsys.readouterr()
    assert main(["check", str(image), "--level", "static", "--json", "--venv", str(venv)]) == code
    data = json.loads(capsys.readouterr().out)
    return {one["id"]: f"{one['severity']} {one['summary']}" for one in data["findings"]} | {
        "rccl": data["path"]["rccl"]
    }


def test_a_check_judges_the_process_with_the_python_of_the_environment(
    image: Path, tmp_path: Path, capsys: Capture
) -> None:
    over = venv_at(tmp_path / "env", image)
    found = findings(image, over, capsys, ExitCode.UNDECIDED)
    assert found["rccl"] == f"/usr/{SITE}/torch/lib/librccl.so"
    assert not [one for one in found if one.startswith("program.")]


def test_a_torch_for_cuda_in_the_environment_is_a_no(image: Path, tmp_path: Path, capsys: Capture) -> None:
    over = venv_at(tmp_path / "env", image)
    package = over / SITE / "torch"
    cuda = library(package / "lib/libtorch_cuda.so", source="int cuda;")
    library(package / "_C.cpython-312-x86_64-linux-gnu.so", cuda, source="int PyInit__C;")
    dist(over / SITE, "torch-2.9.0+cu128")
    found = findings(image, over, capsys, ExitCode.NO)
    assert "carries torch 2.9.0+cu128" in found["program.venv-torch"]


def test_a_check_names_both_images_and_both_pythons(image: Path, tmp_path: Path, capsys: Capture) -> None:
    other = packed(image_at(tmp_path / "other"), tmp_path / "other.sqsh")
    found = findings(image, venv_at(tmp_path / "a", other), capsys, ExitCode.UNDECIDED)
    assert found["program.venv-image"] == (
        f"unknown a was made for another image, {other} ({(image_fingerprint(other) or '')[:12]}, torch {TORCH}); "
        f"this is {image} (a folder, torch {TORCH})"
    )
    found = findings(image, venv_at(tmp_path / "b", image, python_version="3.11"), capsys, ExitCode.NO)
    assert found["program.venv-python"] == "problem b was made for Python 3.11, and the image has Python 3.12"


# -- module --


def test_a_module_has_the_programs_of_the_environment(image: Path, tmp_path: Path) -> None:
    file = packed(venv_at(tmp_path / "env", image), tmp_path / "env.sqsh")
    words = ["-o", str(tmp_path / "modules"), "--name", "x/1", "--site", "lumi", "--venv", str(file)]
    assert main(["module", str(image), *words]) == ExitCode.GOOD
    text = (tmp_path / "modules/modulefiles/x/1").read_text()
    assert f"append-path --delim , SINGULARITY_BIND {file}:/user-software:image-src=/\n" in text
    assert "prepend-path SINGULARITYENV_PREPEND_PATH /user-software/bin\n" in text
    home = tmp_path / "modules/software/x/1"
    assert "/user-software/bin/python" in (home / "bin/python").read_text()
    engine = tmp_path / "programs/singularity"
    engine.parent.mkdir()
    engine.write_text('#!/bin/bash\nprintf "%s\\n" "$@" "$SINGULARITY_BIND" "$SINGULARITYENV_PREPEND_PATH"\n')
    engine.chmod(0o755)

    def run(*argv: str | Path) -> subprocess.CompletedProcess[str]:
        env = {"PATH": f"{engine.parent}:/usr/bin:/bin", "HOME": "/"}
        return subprocess.run(argv, env=env, capture_output=True, text=True, check=False)

    started = run(home / "bin/python", "train.py").stdout.splitlines()
    assert started[:4] == ["exec", str(image), "/user-software/bin/python", "train.py"]
    assert f"{file}:/user-software:image-src=/" in started[4]
    assert started[5] == "/user-software/bin"
    listed = run(home / "enter", "pip", "pip", "/usr/bin/pip", "list").stdout.splitlines()
    assert listed[:5] == ["exec", str(image), "/user-software/bin/python", "-m", "pip"]


# -- venv, up to where it needs an engine --


@pytest.fixture
def world(clean_home: Path, impatient: None) -> Iterator[World]:
    del clean_home, impatient
    wheels: dict[str, dict[str, tuple[str, ...]]] = {
        "torch": {"2.9.0": ("nvidia-cublas-cu12",), "2.9.1": ()},
        "numpy": {"1.26.0": (), "2.1.0": ()},
        "einops": {"0.8.1": ()},
        "old": {"1.0": ("numpy<2",)},
        "cudaful": {"1.0": ("nvidia-cublas-cu12",)},
        "nvidia-cublas-cu12": {"1.0": ()},
        "trainer": {"1.0": ("vllm",)},
        "vllm": {"0.12.0": ()},
        "pip": {"25.0": ()},
    }
    with serve(World(wheels=wheels)) as world:
        yield world


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("torch==2.9.0", f"this-image depends on torch=={TORCH} and torch==2.9.0"),
        ("old", "numpy<2"),
        ("cudaful", "nvidia-cublas-cu12, which is for NVIDIA's GPUs"),
        ("vllm", "/image --add vllm"),
        ("trainer", "/image --add vllm"),
        (
            "numpy>=2\neinops; os_name == 'nt'",
            "no environment is needed: the image already has everything (numpy 2.1.0)",
        ),
        ("nowhere-at-all", "nowhere-at-all was not found in the package registry"),
    ],
)
def test_what_the_image_has_is_never_replaced(
    line: str, shown: str, world: World, image: Path, tmp_path: Path, capsys: Capture
) -> None:
    (tmp_path / "r.txt").write_text(f"{line}\n")
    output = tmp_path / "env.sqsh"
    words = ["venv", str(image), "-r", str(tmp_path / "r.txt"), "-o", str(output), *world.mirrors]
    assert main(words) == ExitCode.NO
    (refusal,) = [one for one in capsys.readouterr().err.splitlines() if one.startswith("lumiimg:")]
    assert shown in refusal
    assert not output.exists()


def test_an_environment_of_conda_is_resolved_beside_the_image_and_its_python(
    world: World, image: Path, tmp_path: Path
) -> None:
    def plan(python_version: str) -> VenvPlan:
        file.write_text(f"dependencies:\n  - python={python_version}\n  - pip:\n    - einops\n    - torch\n")
        mirrors = parse_mirrors({}, world.mirrors[1::2])
        sources = Sources(Http(), Store(tmp_path / "s", Http(), mirrors, 1), mirrors, tmp_path, lambda _: None)
        asked = request_for_venv(image, [str(file)], [])
        return plan_venv(image, asked, open_catalogue({"HOME": str(tmp_path)}, ()), sources, None)

    file = tmp_path / "environment.yml"
    record = plan("3.12").record
    assert record.requirements == ("einops", "torch")
    assert record.packages["einops"] == "0.8.1"
    assert record.packages.keys() == {"einops", "pip"}
    with pytest.raises(RefusedError) as caught:
        plan("3.11")
    assert str(caught.value).startswith(f"line 2 of {file} requires python==3.11.*, and the image has Python 3.12")


def test_offline_no_server_is_asked(world: World, image: Path, tmp_path: Path, capsys: Capture) -> None:
    words = ["venv", str(image), "einops", "-o", str(tmp_path / "x.sqsh"), "--offline", *world.mirrors]
    assert main(words) == ExitCode.MISSING_HERE
    assert "--offline forbids asking the index" in capsys.readouterr().err
    assert world.asked == []


@pytest.mark.parametrize("code", [1, 255])
def test_an_engine_that_starts_no_container_has_the_hint_that_check_has(
    code: int, world: World, image: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = tmp_path / "programs/apptainer"
    engine.parent.mkdir()
    message = "ERROR  : Requesting capability set 0x1ffff while permitted capability set is 0x1fffe"
    engine.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && echo apptainer version 1.4.5 && exit\necho "{message}" >&2\nexit {code}\n'
    )
    engine.chmod(0o755)
    monkeypatch.setenv("PATH", f"{engine.parent}:/usr/bin:/bin")
    words = ["venv", str(image), "einops", "-o", f"{tmp_path / 'env'}/", *world.mirrors]
    assert main(words) == ExitCode.MISSING_HERE
    error = capsys.readouterr().err
    assert "cannot start a container here: root lacks capabilities here" in error
    assert "run lumiimg as an ordinary user" in error


def test_what_pip_says_is_not_met_ends_it_where_it_is_of_what_was_put_in(tmp_path: Path) -> None:
    dist(tmp_path, "mine-1.0")
    (tmp_path / "mine-1.0.dist-info/METADATA").write_text(
        "Name: Mine\nVersion: 1.0\nRequires-Dist: nowhere-at-all>=2\n"
    )
    pip = [sys.executable, "-m", "pip", "check", "--disable-pip-version-check"]
    env = {"PYTHONPATH": str(tmp_path)}
    output = subprocess.run(pip, env=env, capture_output=True, text=True, check=False).stdout
    there = _Listing("3.12", {"mine": "1.0", "other": "1.0"})
    for name, is_refused in (("mine", True), ("other", False)):
        record = VenvRecord("/x.sif", None, "3.12", None, (name,), {name: "1.0"})
        with pytest.raises(FailedError, match="requires nowhere-at-all") if is_refused else nullcontext():
            _refuse_wrong(record, _Listing("3.12", {}), there, output)


def test_what_is_replaced_on_purpose_is_named_and_goes_with_what_the_image_has(
    world: World, image: Path, tmp_path: Path, capsys: Capture
) -> None:
    dist(tmp_path, "of_image-1.0")
    (tmp_path / "of_image-1.0.dist-info/METADATA").write_text("Name: of-image\nVersion: 1.0\nRequires-Dist: Mine<2\n")
    dist(tmp_path, "mine-2.0")
    (tmp_path / "mine-2.0.dist-info/METADATA").write_text("Name: Mine\nVersion: 2.0\n")
    pip = [sys.executable, "-m", "pip", "check", "--disable-pip-version-check"]
    env = {"PYTHONPATH": str(tmp_path)}
    output = subprocess.run(pip, env=env, capture_output=True, text=True, check=False).stdout
    before, after = (_Listing("3.12", {"mine": version, "of-image": "1.0"}) for version in ("1.0", "2.0"))
    record = VenvRecord("/x.sif", None, "3.12", None, (), {"mine": "2.0"}, {"mine": "1.0"})
    with pytest.raises(FailedError, match=r"of-image 1\.0 has requirement Mine<2, but you have mine 2\.0"):
        _refuse_wrong(record, before, after, output)
    _refuse_wrong(record, before, after, "")
    words = ["venv", str(image), "-o", str(tmp_path / "x.sqsh"), *world.mirrors]
    assert main([*words, "--replace", "torch==2.9.0"]) == ExitCode.NO
    assert "the option --replace: torch is made for the image's ROCm and RCCL, so it stays" in capsys.readouterr().err
    with pytest.raises(FailedError, match="would be replaced: of-image"):
        _refuse_wrong(record, before, _Listing("3.12", {"mine": "2.0"}), "")


def test_without_mksquashfs_a_folder_is_proposed(tmp_path: Path) -> None:
    (tmp_path / "apptainer").write_text("#!/bin/sh\necho apptainer version 1.4.5\n")
    (tmp_path / "apptainer").chmod(0o755)
    with pytest.raises(MissingHereError, match="load the site's module for it; -o FOLDER/ needs none"):
        make_venv(None, tmp_path / "x", None, {"PATH": str(tmp_path)}, as_folder=False)  # type: ignore[arg-type]


def test_nothing_is_overwritten(image: Path, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "there.sqsh").write_text("mine")
    (tmp_path / "there").mkdir()
    (tmp_path / "folder").mkdir()
    for output in ("image", "there.sqsh", "there/", "nowhere/env.sqsh", "folder"):
        assert main(["venv", str(image), "einops", "-o", f"{tmp_path}/{output}"]) == ExitCode.BAD_INPUT, output
        assert len(capsys.readouterr().err.splitlines()) == 1, output
    assert (tmp_path / "there.sqsh").read_text() == "mine"


def test_an_image_without_a_python_or_no_image_is_refused(tmp_path: Path, capsys: Capture) -> None:
    bare = fabric_builder.image(tmp_path / "bare")
    for path, expected in ((bare, "has no Python"), (tmp_path / "none.sif", "cannot be opened")):
        assert main(["venv", str(path), "einops", "-o", str(tmp_path / "x.sqsh")]) == ExitCode.BAD_INPUT
        assert expected in capsys.readouterr().err
    with pytest.raises(BadInputError, match="is not a Python environment"):
        open_venv(bare)
