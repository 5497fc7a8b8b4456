"""A user's own Python packages on top of an image: from the user's files to the lock, with an index on loopback."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from lumiimg.cli.main import main
from lumiimg.core.errors import BadInputError, ExitCode
from lumiimg.resolve.lock_file import read_document
from lumiimg.resolve.python_target import is_of_cuda
from lumiimg.resolve.requirements import read_own
from tests.shared.layer_builder import BOX, LAYER, MakeLayer
from tests.shared.oci_builder import digest
from tests.shared.world import World, forged, serve, wheel

TORCH = "2.9.1+rocm6.4"
OF_TORCH = f"""\
{LAYER}requires = ["python3"]
provides = ["torch"]

[[release]]
version = "2.9.1"
date = 2025-11-12
has = {{ torch = "{TORCH}" }}
wheels = ["torch=={TORCH}", "pytorch-triton-rocm==3.5.1"]
indexes = ["https://download.pytorch.org/whl/rocm6.4"]
source = "the tests"
"""
HAM = f"""\
{LAYER}requires = ["torch"]

[[release]]
version = "1.0"
date = 2025-12-01
wheels = ["ham==1.0"]
source = "the tests"
"""
COMPILED = f"""\
{LAYER}requires = ["torch", "python3"]

[sources.fast-attn]
url = "https://github.com/x/fast-attn/archive/v1.tar.gz"
file = "fast-attn.tar.gz"
key = "1"
source = "the tests"
"""
Capture = pytest.CaptureFixture[str]
pytestmark = pytest.mark.usefixtures("clean_home", "impatient")


@pytest.fixture
def world() -> Iterator[World]:
    world = World(
        of_layers={
            "torch": {TORCH: ("egg>=1", "pytorch-triton-rocm==3.5.1")},
            "pytorch-triton-rocm": {"3.5.1": ()},
        },
        wheels={
            "egg": {"1.0": (), "1.5": ()},
            "ham": {"1.0": ("egg<1.5",), "2.0": ()},
            "spam": {"1.0": ("torch>=2", "triton>=3", "yolk"), "2.0rc1": ()},
            "yolk": {"1.0": (), "2.0": (), "2.5": ()},
            "torch": {"2.9.0": ("nvidia-cublas-cu12",), "2.9.1": ("nvidia-cublas-cu12",), "9.9": ()},
            "triton": {"3.5.1": (), "3.9": ()},
            "nvidia-cublas-cu12": {"1.0": ()},
            "cudaful": {"1.0": ("middle",)},
            "middle": {"1.0": ("nvidia-cublas-cu12",)},
            "muddle": {"1.0": ("nvidia-cublas-cu12",)},
            "fast-attn": {"1.0": ()},
            "trainer": {"1.0": ("fast-attn",)},
            "dotted-name": {"1.0": ()},
        },
    )
    with serve(world):
        yield world


@pytest.fixture
def folder(layers: Path, make_layer: MakeLayer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    make_layer("box", BOX)
    make_layer("torch-rocm-layer", OF_TORCH)
    make_layer("ham", HAM)
    make_layer("fast-attn", COMPILED)
    monkeypatch.chdir(tmp_path)
    return layers


STACK = ("--site", "generic", "--base", "box", "--add", "torch-rocm-layer")


def lock(world: World, layers: Path, *words: str, code: int = ExitCode.GOOD) -> None:
    assert main(["lock", "--layers", str(layers), *world.mirrors, *STACK, *words]) == code


def of_layer(name: str) -> dict[str, str]:
    (entry,) = [entry for entry in read_document(Path("lumiimg.lock")).layer if entry.name == name]
    return {wheel.name: wheel.version for wheel in entry.locked_wheels}


def refused(world: World, layers: Path, capsys: Capture, *words: str, code: int = ExitCode.NO) -> str:
    lock(world, layers, *words, code=code)
    error = [line for line in capsys.readouterr().err.splitlines() if line.startswith("lumiimg:")]
    assert len(error) == 1
    assert len(error[0]) < 1200
    assert not Path("lumiimg.lock").exists()
    return error[0]


def own(text: str, name: str = "requirements.txt") -> tuple[str, str]:
    Path(name).write_text(text)
    return "-r", name


# --- what is added


def test_own_packages_are_the_last_layer_and_what_is_below_stays(world: World, folder: Path, capsys: Capture) -> None:
    Path("mine.toml").write_text(
        'summary = "mine"\nbase = "box"\nadd = ["torch-rocm-layer", "ham", "pip:yolk==2.0"]\nsite = "generic"\n'
    )
    words = ["--layers", str(folder), *world.mirrors]
    lines = own("# mine\nspam ; python_version > '3.8'\n\nDotted_Name\n")
    assert main(["lock", *words, "--recipe", "mine.toml", *lines]) == ExitCode.GOOD
    assert [one["name"] for one in tomllib.loads(Path("lumiimg.lock").read_text())["layer"]][-1] == "own-packages"
    assert of_layer("own-packages") == {"spam": "1.0", "yolk": "2.0", "dotted-name": "1.0"}
    assert of_layer("torch-rocm-layer") == {"torch": TORCH, "pytorch-triton-rocm": "3.5.1", "egg": "1.0"}
    assert of_layer("ham") == {"ham": "1.0"}
    # from the lock alone
    Path("requirements.txt").unlink()
    assert main(["build", *words, "--locked", "--definitions", "defs"]) == ExitCode.GOOD
    assert Path("defs/files/own-packages/wheels/yolk-2.0-py3-none-any.whl").is_file()
    flat = Path("defs/flat.def").read_text()
    assert flat.index("layer own-packages, post.sh") > flat.index("layer torch-rocm-layer, post.sh")
    text = Path("lumiimg.lock").read_text()
    world.wheels["spam"]["2.0"] = ()
    assert main(["lock", *words]) == ExitCode.GOOD
    assert Path("lumiimg.lock").read_text() == text
    assert main(["lock", *words, "--upgrade", "spam"]) == ExitCode.GOOD
    assert of_layer("own-packages")["spam"] == "2.0"
    capsys.readouterr()
    assert main(["build", *words, "--locked", *own("spam\n"), "--dry-run"]) == ExitCode.BAD_INPUT
    assert "--requirements and --locked" in capsys.readouterr().err


def test_the_pip_part_of_an_environment_of_conda_is_a_layer_on_the_images_python(
    world: World, folder: Path, capsys: Capture
) -> None:
    text = "channels: [conda-forge]\ndependencies:\n  - python={}\n  - pip\n  - pip:\n    - spam\n    - yolk<2.5\n"
    lock(world, folder, *own(text.format("3.12.8"), "environment.yml"))
    assert of_layer("own-packages") == {"spam": "1.0", "yolk": "2.0"}
    words = ["--layers", str(folder), *world.mirrors]
    assert main(["build", *words, "--locked", "--definitions", "defs"]) == ExitCode.GOOD
    Path("lumiimg.lock").unlink()
    refusal = refused(world, folder, capsys, *own(text.format("3.11"), "environment.yml"))
    assert (
        "line 3 of environment.yml requires python==3.11.*, and the image has Python 3.12, which is not replaced"
        in refusal
    )
    refusal = refused(world, folder, capsys, *own(text.format("3.12").replace("yolk<2.5", "torch==2.9.0"), "e.yml"))
    assert "line 7 of e.yml requires torch==2.9.0, and the layer torch-rocm-layer has torch" in refusal


def test_newer_withdrawn_extras_and_what_the_image_meets(world: World, folder: Path, capsys: Capture) -> None:
    world.yanked = ("yolk 2.5",)
    world.uploaded = {"yolk 2.0": "2026-10-01T00:00:00Z", "dotted-name 1.0": "2026-10-01T00:00:00Z"}
    world.wheels["ham"] = {"1.0": ("egg<1.5", "yolk; extra == 'more'")}
    # projects that the layers lack are added, and extras of those below; a triton below only counts by its version
    text = "ham[more]\ntorch[opt]\ntriton>=3\ntriton==3.5.1; sys_platform == 'linux'\negg\ndotted-name\n"
    lock(world, folder, "--add", "ham", *own(text))
    assert of_layer("own-packages") == {"yolk": "2.0", "dotted-name": "1.0"}
    assert "The package `torch==2.9.1+rocm6.4` does not have an extra named `opt`" in capsys.readouterr().err
    lock(world, folder, "--add", "pip:yolk==2.5", "--upgrade", "all")
    assert '`yolk==2.5` is yanked (reason: "it was wrong")' in capsys.readouterr().err
    lock(world, folder, "--add", "pip:yolk", "--exclude-newer", "2026-01-01", "--upgrade", "all")
    assert of_layer("own-packages") == {"yolk": "1.0"}


def test_own_packages_go_on_a_torch_that_a_lower_layer_requires_and_two_layers_pin(
    world: World, folder: Path, make_layer: MakeLayer
) -> None:
    make_layer("low", f'{LAYER}requires = ["python3"]\npackages = ["spam"]\n')
    make_layer("again", HAM.replace('["ham==1.0"]', f'["ham==1.0", "torch=={TORCH}"]'))
    words = ["--layers", str(folder), *world.mirrors, "--site", "generic", "--base", "box", "--add", "low"]
    words += ["--add", "torch-rocm-layer", "--add", "again"]
    assert main(["lock", *words]) == ExitCode.GOOD  # in the index of the first that pins it
    assert of_layer("low")["torch"] == TORCH
    assert main(["lock", *words, "--add", "pip:dotted-name"]) == ExitCode.GOOD
    assert of_layer("own-packages") == {"dotted-name": "1.0"}


# --- what is held


def test_a_line_that_conflicts_with_the_image_is_refused_without_an_index_by_file_and_line(
    world: World, folder: Path, capsys: Capture
) -> None:
    below = "and the layer torch-rocm-layer has"
    for text, expected in (
        ("yolk\ntorch==2.9.0", f"line 2 of requirements.txt requires torch==2.9.0, {below} torch"),
        ("triton==3.9", f"requires triton==3.9, {below} triton 3.5.1"),
        ("NVIDIA_cublas.CU12", "line 1 of requirements.txt names nvidia-cublas-cu12, which is for NVIDIA's GPUs"),
        ("Fast.Attn>=1", "names fast-attn, which the index does not have for this image; --add fast-attn"),
        ("vllm", "names vllm, which the index does not have for this image; --add vllm"),
    ):
        words = [*STACK, *own(text), "--layers", str(folder)]
        assert main(["explain", *words, "--offline", "--json"]) == ExitCode.NO
        answer = json.loads(capsys.readouterr().out)
        assert expected in " ".join(rule["because"] for rule in answer["rules"] if rule["outcome"] == "refused")
    assert expected in refused(world, folder, capsys, *own(text))
    of_cuda = "jax-cuda12-plugin cupy-cuda12x dgl-cu117 tensorrt-cu12-libs sgl-kernel paddlepaddle-gpu onnxruntime-gpu"
    assert all(is_of_cuda(name, of_index=True) for name in of_cuda.split())
    assert not any(is_of_cuda(name, of_index=True) for name in ("cupy-rocm-7-0", "cudatext", "docu-cu1"))


def test_what_the_layers_below_chose_stays_and_all_lines_that_conflict_are_named(
    world: World, folder: Path, capsys: Capture
) -> None:
    refusal = refused(world, folder, capsys, "--add", "ham", *own("egg>=1.5\nyolk\nEGG==1.5\n"))
    assert "layer-torch-rocm-layer depend on egg==1.0" in refusal
    assert (
        "change line 1 of requirements.txt (egg>=1.5); line 3 of requirements.txt (EGG==1.5): packages below stay"
        in refusal
    )
    # a conflict that only the index shows, with the full message of uv
    lock(world, folder, "--add", "pip:yolk==99", "--verbose", code=ExitCode.NO)
    assert "  error: No solution found when resolving dependencies\n" in capsys.readouterr().err
    world.wheels |= {
        "new": {"1.0": ("egg>=1.5",)},
        "exact": {"1.0": ("torch==2.9.0",)},
        "other-python": {},
        "onnxruntime-gpu": {"1.0": ()},
        "xgboost": {"1.0": ("nvidia-cublas-cu12",)},
    }
    for text, more, parts in (
        (
            "yolk\nnew\n",
            ("ham",),
            (
                "all versions of new depend on egg>=1.5",
                "depend on egg==1.0",
                "change line 2 of requirements.txt (new): ",
            ),
        ),
        (
            "",
            ("pip:exact",),
            (
                "depend on torch==2.9.0",
                "change the option --add (exact)",
                f"this-image depends on torch=={TORCH}",
            ),
        ),
        (
            "yolk<2\n",
            ("pip:yolk>=2",),
            ("yolk<2", "change line 1 of requirements.txt (yolk<2); the option --add (yolk>=2)"),
        ),
        (
            "triton==3.9; sys_platform == 'linux'\n",
            (),
            ("depends on triton==3.5.1+rocm", "so it stays: leave out line 1 of requirements.txt"),
        ),
        ("onnxruntime-gpu; sys_platform == 'linux'\n", (), ("is for NVIDIA's GPUs", "does the same without")),
        ("xgboost\n", (), ("requires nvidia-cublas-cu12", "xgboost-cpu does the same without")),
        ("cudaful\n", (), ("requires cudaful, for which middle requires nvidia-cublas-cu12, which is for NVIDIA's",)),
        ("cudaful\nmuddle\n", (), ("requires muddle, for which muddle requires nvidia-cublas-cu12, which is for",)),
        (
            "trainer\n",
            (),
            ("requires trainer, for which trainer requires fast-attn, which the index does not have for",),
        ),
        ("other-python\n", (), ("other-python", "change line 1 of requirements.txt (other-python)")),
        ("nowhere\n", (), ("nowhere was not found in the package registry", "change line 1")),
    ):
        words = [*(own(text) if text else ()), *(word for name in more for word in ("--add", name))]
        refusal = refused(world, folder, capsys, *words)
        assert [part for part in parts if part not in refusal] == [], refusal


def test_on_a_torch_whose_triton_is_not_known_that_of_the_index_is_refused(
    world: World, folder: Path, make_layer: MakeLayer, capsys: Capture
) -> None:
    make_layer("with-torch", BOX.replace("has = {", f'has = {{ torch = "{TORCH}",'))
    words = ["--layers", str(folder), *world.mirrors, "--site", "generic", "--base", "with-torch"]
    for name in ("triton", "torchvision"):
        assert main(["lock", *words, *own(f"{name}\n")]) == ExitCode.NO
        message = f"line 1 of requirements.txt names {name}, which the index has for CUDA, and the image has torch"
        assert message in capsys.readouterr().err
    assert main(["lock", *words, *own("spam\n")]) == ExitCode.GOOD
    assert of_layer("own-packages") == {"spam": "1.0", "yolk": "2.5"}
    capsys.readouterr()
    assert main(["explain", *words, *own("spam\n"), "--offline"]) == ExitCode.GOOD
    output = " ".join(capsys.readouterr().out.split())
    assert "no obstacle found among the layers, with doubts" in output
    assert "the other Python packages of with-torch are known only if the image is read" in output


# --- what is replaced on purpose


def test_a_package_that_is_below_is_replaced_where_it_is_named_and_all_else_goes_with_it(
    world: World, folder: Path, capsys: Capture
) -> None:
    lock(world, folder, "--replace", "Egg==1.0", *own("egg>=1\nyolk\n"))
    assert of_layer("torch-rocm-layer")["egg"] == "1.5"
    assert of_layer("own-packages") == {"egg": "1.0", "yolk": "2.5"}
    message = "as you asked, Egg==1.0 replaces"
    assert message in Path("lumiimg.lock").read_text()
    words = ["--layers", str(folder), *world.mirrors, "--locked"]
    assert main(["build", *words, "--definitions", "defs", "--dry-run"]) == ExitCode.GOOD
    assert message in " ".join(capsys.readouterr().out.split())
    assert main(["build", *words, "--definitions", "defs"]) == ExitCode.GOOD
    assert "export REPLACED=egg\n" in Path("defs/flat.def").read_text()
    lock(world, folder, "--add", "ham", "--replace", "ham==2.0")  # which a layer pins
    assert main(["build", *words, "--dry-run"]) == ExitCode.GOOD
    text = Path("lumiimg.lock").read_text()
    forged(
        text.replace("ham==2.0", "torch==9.9").replace("/ham-2.0-", "/torch-9.9-").replace("/ham/2.0/", "/torch/9.9/")
    )
    capsys.readouterr()
    assert main(["build", *words, "--dry-run"]) == ExitCode.BAD_INPUT
    assert (
        "uses parts that are not from the catalogue: Python package torch 9.9 of own-packages"
        in capsys.readouterr().err
    )
    Path("lumiimg.lock").unlink()
    message = refused(world, folder, capsys, "--add", "ham", "--replace", "egg==1.5")
    assert "layer-ham depend on ham==1.0" in message or "ham==1.0 depends on egg<1.5" in message
    assert "change the option --replace (egg==1.5), or also replace the others: --replace NAME==VERSION" in message


def test_what_is_of_rocm_or_is_not_there_is_not_replaced(world: World, folder: Path, capsys: Capture) -> None:
    names = "torch Triton pytorch_triton_rocm torchvision rocm-sdk-core jax-rocm7-plugin fast-attn"
    for name in names.split():
        refusal = refused(world, folder, capsys, "--replace", f"{name}==9.9")
        assert "is made for the image's ROCm and RCCL, so it stays" in refusal, name
    refusal = refused(world, folder, capsys, "--replace", "yolk==2.0")
    assert "the option --replace: yolk is not known to be in the image; add it: pip:yolk==2.0" in refusal
    for word in ("egg", "egg>=1", "egg==1.*", "egg[x]==1", "egg==1,==1", "egg==1; os_name == 'posix'"):
        refusal = refused(world, folder, capsys, "--replace", word, code=ExitCode.BAD_INPUT)
        assert "the option --replace: egg must have exactly one version; NAME==VERSION" in refusal, word
    assert "a path or an address" in refused(world, folder, capsys, "--replace", "./egg", code=ExitCode.BAD_INPUT)
    for other in ("--replace", "EGG==2.0"), ("--add", "pip:egg<1"):
        refusal = refused(world, folder, capsys, "--replace", "egg==1.0", *other, code=ExitCode.BAD_INPUT)
        assert "but the option --replace requires egg==1.0; use only one of them" in refusal


# --- hashes


def test_hashes_hold_for_all_that_is_put_in_or_for_nothing(world: World, folder: Path, capsys: Capture) -> None:
    good, bad = digest(wheel("yolk", "2.0", ())), f"sha256:{'0' * 64}"
    refusal = refused(world, folder, capsys, *own(f"# none\nyolk==2.0 --hash={bad}\n"))
    assert f"yolk-2.0-py3-none-any.whl has the sha256 {good.removeprefix('sha256:')}" in refusal
    refusal = refused(world, folder, capsys, *own(f"yolk==2.0 --hash={good}\ndotted-name\n"))
    assert "dotted_name-1.0-py3-none-any.whl" in refusal
    other = digest(wheel("dotted-name", "1.0", ()))
    refusal = refused(world, folder, capsys, *own(f"yolk==2.0 --hash={other}\ndotted-name --hash={good}\n"))
    assert "which no line for it names" in refusal
    torch = f"torch=={TORCH.partition('+')[0]} --hash={bad}\n"
    world.hashes = False
    lock(world, folder, *own(f"{torch}yolk==2.0 \\\n    --hash={bad} \\\n    --hash={good}\n"))
    assert of_layer("own-packages") == {"yolk": "2.0"}


# --- what cannot be read or locked


@pytest.mark.threat
def test_a_line_that_no_lock_can_hold_is_refused_in_words_and_keeps_its_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    for n in range(60):
        Path(f"{n}.txt").write_text("egg\n")
    for line, expected in (
        ("-e .", "the option -e is not supported; an image cannot contain a working copy"),
        ("--index-url https://me:sesame@h.test/simple", "--mirror pypi=URL names another index"),
        ("--extra-index-url https://download.pytorch.org/whl/cu128", "the image's torch is used"),
        ("-c constraints.txt", "the image's packages are pinned"),
        ("--whatever", "the option --whatever is not supported; leave the line out"),
        ("egg @ https://me:sesame@h.test/egg.whl", "egg has an address of its own"),
        ("git+https://me:sesame@h.test/egg.git#egg=egg", "egg has an unsupported address"),
        ("./egg-1.0-py3-none-any.whl", "one that is in no index needs a layer of your own"),
        ("egg-1.0-py3-none-any.whl; python_version > '3'", "egg-1.0-py3-none-any.whl has an address of its own"),
        ("egg.tar.gz", "egg.tar.gz has an address of its own"),
        ("egg.ZIP[all]", "egg.ZIP has an address of its own"),
        ("-r https://h.test/r.txt", "-r names an address; fetch the file"),
        ("-r nowhere.txt", "nowhere.txt: cannot be read"),
        ("egg --hash=md5:0123", "none of its hashes is a sha256"),
        ("egg --global-option=sesame", "the option --global-option is not supported; leave the option out"),
        ("egg; extra == 'x'", "egg is for an extra"),
        ("egg; import os", "is not a valid requirement"),
        ("a\x1b[2Jb", "is not a valid requirement"),
        ("\u202egnp", "is not a valid requirement"),
        ("--find-links /tmp", "the option --find-links is not supported"),
        ("egg" + "," * 2_000, "a requirement of more than 1000 characters"),
        ("name: conda\ndependencies:\n  - pip", "line 2 of r.txt: 'name: conda' is not a valid requirement"),
        ("-r r.txt\n", "requires nothing"),
        ("".join(f"-r {n}.txt\n" for n in range(60)), "more than 50 requirement files"),
        ("# nothing\n", "requires nothing"),
        ("".join(f"egg{n}\n" for n in range(2_100)), "more than 2000 requirements"),
        ("#" * (9 << 20), "is larger than 8388608 bytes"),
    ):
        Path("r.txt").write_text(f"# first\n{line}\n")
        with pytest.raises(BadInputError) as caught:
            read_own(["r.txt"], [])
        text = str(caught.value)
        assert expected in text
        assert text.isprintable(), expected
        assert len(text) < 400, expected
        assert "sesame" not in text
        assert text.partition(": ")[0].endswith(".txt")
    Path("pyproject.toml").write_text('[project]\nname="p"\ndependencies=["egg"]\n')
    Path("uv.lock").write_text("version = 1\n")
    for name, expected in (
        ("pyproject.toml", "uv export --no-emit-project --prune torch -o requirements.txt"),
        ("uv.lock", "line 1 of uv.lock: 'version = 1' is not a valid requirement"),
        ("/dev/zero", "cannot be read"),
        (".", "cannot be read"),
    ):
        with pytest.raises(BadInputError) as caught:
            read_own([name], [])
        assert expected in str(caught.value)
    for word, expected in (
        ("", "the option --add: '' is not a valid requirement"),
        ("./x", "the option --add: a path or an address is not a valid requirement"),
    ):
        with pytest.raises(BadInputError, match=expected):
            read_own([], [word])
    assert main(["explain", "--base", "debian-13", "--add", "own-packages"]) == ExitCode.BAD_INPUT
    assert "name the packages: -r FILE, or --add pip:NAME==VERSION" in capsys.readouterr().err


# --- what other commands report about them


def test_explain_asks_no_index_about_own_packages_and_says_that_a_lock_decides_them(
    world: World, folder: Path, capsys: Capture
) -> None:
    words = ["explain", "--layers", str(folder), *world.mirrors, *STACK, *own("spam\n"), "--json"]
    assert main(words) == ExitCode.GOOD
    answer = json.loads(capsys.readouterr().out)
    assert answer["layers"][-1]["name"] == "own-packages"
    message = "1 requirement of yours (requirements.txt); `lumiimg lock` chooses their packages from the index"
    assert message in next(rule["because"] for rule in answer["rules"] if rule["have"] == "own-packages")
    assert not world.asked


def test_a_lock_that_does_not_agree_with_its_own_packages_is_refused(
    world: World, folder: Path, capsys: Capture
) -> None:
    lock(world, folder, *own("yolk<2.5\ndotted-name\n"))
    text = Path("lumiimg.lock").read_text()
    for old, new, expected in (
        ('text = "yolk<2.5"', 'text = "yolk<2"', "request.own names yolk<2, but the lock has 2.0"),
        ('text = "dotted-name"', 'text = "left"', "request.own names left, which is missing"),
        ('text = "dotted-name"', 'text = "-e ."', "the option -e is not supported"),
    ):
        forged(text.replace(old, new))
        words = ["build", "--layers", str(folder), *world.mirrors, "--locked", "--dry-run"]
        assert main(words) == ExitCode.BAD_INPUT
        assert expected in capsys.readouterr().err


def test_an_image_without_rccl_is_offered_a_build_without_a_plugin(folder: Path, capsys: Capture) -> None:
    words = ["explain", "--layers", str(folder), "--base", "box", "--add", "pip:spam", "--site", "lumi"]
    assert main(words) == ExitCode.NO
    (proposal,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("next")]
    assert "lumiimg build --base box --add pip:spam" in proposal
    assert "--fabric none" in proposal
