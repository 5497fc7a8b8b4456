"""A conda environment instead of a requirements file: what is read from it, and what is reported about the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from lumiimg.cli.main import main
from lumiimg.core.errors import BadInputError, ExitCode, MissingHereError
from lumiimg.resolve.requirements import read_own
from tests.shared.world import World, serve

Capture = pytest.CaptureFixture[str]
# As in Lumi-supercomputer/Getting_Started_with_AI_workshop, bonus_material/exercise_container_recipes
OF_THE_WORKSHOP = """\
name: pytorch_transformers
channels:
  - conda-forge
dependencies:
  - datasets=2.19.1
    #  - fsspec=2024.2.0
  - git=2.45.1
  - python=3.12.8
  - pip=24.0
  - huggingface_hub=0.24.6
  - pip:
    - --extra-index-url https://download.pytorch.org/whl/rocm6.2/
    - accelerate==1.3.0
    - torch==2.5.1+rocm6.2
"""
FOR_PIP = """\
---
name: mine  # and nobody's
channels: [conda-forge, 'nodefaults']
dependencies:
- conda-forge::python >=3.10,<3.13
- pip
- pip:
  - accelerate==1.3.0  # as in the paper
  - "datasets[audio]>=3; python_version >= '3.8'"
  - -r more.txt
  - egg --hash=sha256:{digest}
prefix: /home/me/envs/mine
"""


def test_its_pip_part_is_as_lines_of_a_requirements_file_and_python_is_the_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    digest = "ab" * 32
    Path("environment.yml").write_text(FOR_PIP.format(digest=digest))
    Path("more.txt").write_text("# more\ntqdm\n")
    assert [(one.text, one.where, one.hashes) for one in read_own(["environment.yml"], [])] == [
        ("python<3.13,>=3.10", "line 5 of environment.yml", ()),
        ("accelerate==1.3.0", "line 8 of environment.yml", ()),
        ('datasets[audio]>=3; python_version >= "3.8"', "line 9 of environment.yml", ()),
        ("tqdm", "line 2 of more.txt", ()),
        ("egg", "line 11 of environment.yml", (digest,)),
    ]
    for expected, meant in (
        ("python=3.12.8", "==3.12.*"),
        ("python==3.12", "==3.12.*"),
        ("python 3.12.8 h2628c8c_0_cpython", "==3.12.*"),
        ("python=3.12.8=h2628c8c_0_cpython", "==3.12.*"),
        ("python=3", "==3.*"),
        ("python=3.12.*", "==3.12.*"),
        ("python>=3.9", ">=3.9"),
        ("Python", ""),
    ):
        Path("x.yaml").write_text(f"dependencies:\n  - {expected}\n  - pip: [egg]\n")
        assert [one.text for one in read_own(["x.yaml"], [])] == [f"python{meant}", "egg"], expected
    Path("x.yaml").write_text("dependencies:\n  - pip: ['egg  # as in a requirements file', '# nothing']\n")
    assert [one.text for one in read_own(["x.yaml"], [])] == ["egg"]


def test_condas_packages_are_refused_with_what_pip_would_take_in_their_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture, clean_home: Path
) -> None:
    del clean_home
    monkeypatch.chdir(tmp_path)
    Path("workshop.yml").write_text(OF_THE_WORKSHOP)
    with serve(World(wheels={"datasets": {"2.19.1": ()}, "huggingface-hub": {"1.0": ()}})) as world:
        words = ["explain", "--base", "debian-13", "--site", "lumi", *world.mirrors, "-r", "workshop.yml"]
        assert main(words) == ExitCode.BAD_INPUT
        assert capsys.readouterr().err == (
            "lumiimg: line 5 of workshop.yml: conda packages are not installed: datasets=2.19.1 and 2 more; write under "
            "`pip:`, as the index has a project of that name: datasets==2.19.1 huggingface-hub==0.24.6; leave out, "
            "as pip has no package of that name: git=2.45.1\n"
        )
        assert world.asked == [f"/pypi/simple/{name}/" for name in ("datasets", "git", "huggingface-hub")]
        assert main([*words, "--offline"]) == ExitCode.BAD_INPUT
        message = "(not all were looked up): datasets==2.19.1 git==2.45.1 huggingface-hub==0.24.6\n"
        assert capsys.readouterr().err.endswith(message)
        assert len(world.asked) == 3


def test_versions_of_condas_are_in_pips_words_and_torch_and_cuda_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def refusal_of(*packages: str) -> str:
        Path("x.yml").write_text("dependencies:\n" + "".join(f"  - {package}\n" for package in packages))
        with pytest.raises(BadInputError) as caught:
            read_own(["x.yml"], [], has_project=lambda _: True)
        assert str(caught.value).isprintable()
        return str(caught.value).partition("that name: ")[2]

    for package, line in (
        ("numpy=1.26", "numpy==1.26.*"),
        ("numpy=1.26.4", "numpy==1.26.4"),
        ("numpy==1.26", "numpy==1.26"),
        ("numpy 1.26", "numpy==1.26"),
        ("numpy 1.26 py312_0", "numpy==1.26"),
        ("numpy=1.26=py312_0", "numpy==1.26"),
        ("numpy=1.26.*", "numpy==1.26.*"),
        ("numpy>=1.26, <2", "numpy>=1.26,<2"),
        ("nvidia/label/x::matplotlib-base", "matplotlib"),
        ("Msgpack_Python=1.0", "msgpack==1.0.*"),
        ("pytorch::pytorch=2.5", "torch"),
    ):
        assert refusal_of(package) == line, package
    for package in ("cudatoolkit=11.8", "pytorch-cuda", "jpeg=9e", "_libgcc_mutex=0.1=conda_forge", "a=1|2", "b[c]"):
        assert refusal_of(package) == package
    assert refusal_of(*(f"p{n}" for n in range(400))).endswith(" p59 and 240 more (--verbose)")
    Path("x.yml").write_text("dependencies: [p0, p1]\n")
    with pytest.raises(BadInputError, match=r"\(not all were looked up\): p0 p1$"):
        read_own(["x.yml"], [], has_project=_offline)


def _offline(_: str) -> bool:
    raise MissingHereError("no network")


@pytest.mark.threat
def test_what_is_no_environment_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    bomb = "a: &a [x]\n" + "".join(f"b{n}: &b{n} [*a, *a, *a, *a]\n" for n in range(20))
    for text, expected in (
        ("channels:\n  - conda-forge\n", "has no dependencies, so there is nothing to install"),
        ("dependencies:\n", "has no dependencies"),
        ("dependencies: [python=3.12, pip]\n", "has no pip part, so there is nothing to install; write the packages"),
        ("dependencies:\n  - pip:\n", "has no pip part"),
        ("dependencies: egg\n", "line 1 of x.yml: dependencies is not a list"),
        ("dependencies:\n  - pip: egg\n", "line 2 of x.yml: the pip part is not a list"),
        ("dependencies:\n  - pip: [egg]\n    npm: [x]\n", "line 2 of x.yml: is not a dependency"),
        ("dependencies:\n  - pip:\n    - - egg\n", "line 3 of x.yml: the pip part must be a list of lines"),
        ("dependencies:\n  - '\x00'\n", "x.yml: not YAML: it has unprintable characters"),
        ("dependencies:\n  - '='\n", "line 2 of x.yml: is not a conda package"),
        ("dependencies:\n  - pip:\n    - -e .\n", "line 3 of x.yml: the option -e is not supported"),
        (
            "dependencies:\n  - pip: [egg\u200b]\n",
            "line 2 of x.yml: YAML: text with several lines or a tab",
        ),
        ("variables:\n  A: sesame\ndependencies: [pip]\n", "line 1 of x.yml: the key 'variables' is not supported"),
        ("- egg\n", "it has no keys"),
        ("egg", "it has no keys"),
        ("", "it has no keys"),
        (
            "name: !!python/object/apply:os.system [sesame]\n",
            "line 1 of x.yml: YAML: tags, anchors and aliases are not",
        ),
        (bomb, "line 1 of x.yml: YAML: tags, anchors and aliases are not supported"),
        ("name: *a\n", "YAML: tags, anchors and aliases"),
        ("name: |\n  sesame\n  and more\n", "line 1 of x.yml: YAML: text with several lines"),
        ("dependencies:\n  - pip:\n    - |\n      egg\n      -e .\n", "line 3 of x.yml: YAML: text with several lines"),
        ("name: a\n\tsesame\n", "line 2 of x.yml: not YAML: found character"),
        ("name: a\nname: b\n", "line 2 of x.yml: YAML: a repeated key"),
        ("name: {[a]: b}\n", "line 1 of x.yml: YAML: a repeated key, or one that is not text"),
        ("name: a\n---\nname: b\n", "line 2 of x.yml: not YAML: but found another document"),
        ("name: [a\n", "line 2 of x.yml: not YAML: expected ',' or ']'"),
        ("dependencies: " + "[" * 60_000, "line 1 of x.yml: YAML: nesting deeper than 8"),
        ("dependencies:\n" + "- " * 30_000 + "a\n", "line 2 of x.yml: YAML: nesting deeper than 8"),
        ("# " + "a" * 70_000, "x.yml: has more than 65536 characters"),
        ("dependencies:\n  - '" + "''" * 30_000 + "\n", "not YAML: found unexpected end of stream"),
    ):
        Path("x.yml").write_text(text)
        assert main(["venv", "image.sif", "-r", "x.yml", "-o", "e.sqsh", "--offline"]) == ExitCode.BAD_INPUT
        (line,) = capsys.readouterr().err.splitlines()
        assert expected in line
        assert "sesame" not in line
        assert len(line) < 400
