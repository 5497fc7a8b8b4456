"""The Dockerfile of a stack: its content, the files beside it, and stacks that cannot have one. Podman's Buildah builds
real ones in `tests/engine/test_dockerfile.py`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from lumiimg.cli.main import main
from lumiimg.core.errors import ExitCode
from lumiimg.definition.docker.read import read_dockerfile
from lumiimg.definition.docker.writer import write_dockerfile
from lumiimg.definition.text import DefinitionError
from lumiimg.definition.writer import write_chain
from tests.shared.layer_builder import BASE, FREE, LAYER, ODD, catalogue_of, locked

if TYPE_CHECKING:
    from pathlib import Path

    from tests.shared.layer_builder import MakeLayer

DIGEST = f"sha256:{'ab' * 32}"
PINNED = BASE.replace("busybox", f"busybox@{DIGEST}")
TOP = LAYER + (
    'files = ["tool.c"]\n[environment.set]\nPYTHONNOUSERSITE = "1"\nMODE = "it\'s on"\n'
    '[environment.prepend]\nPATH = "/opt/top/bin"\n'
)
WRITTEN = f"""\

FROM --platform=linux/amd64 docker.io/library/busybox@{DIGEST} AS layer-01-base
USER root
RUN --mount=type=bind,source=files/base/script,target=/opt/lumiimg/build/base/script \\
    ["/bin/bash", "/opt/lumiimg/build/base/script/post.sh"]
ENV PATH="${{PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}}"
LABEL lumiimg.version="0.1.0"
LABEL lumiimg.layer.01="base"

FROM layer-01-base AS layer-02-top
RUN --mount=type=bind,source=files/top/script,target=/opt/lumiimg/build/top/script \\
    --mount=type=bind,source=files/top/files,target=/opt/lumiimg/build/top/files \\
    ["/bin/bash", "/opt/lumiimg/build/top/script/post.sh"]
ENV PYTHONNOUSERSITE="1"
ENV MODE="it's on"
ENV PATH="/opt/top/bin${{PATH:+:$PATH}}"
LABEL lumiimg.layer.02="top"

FROM layer-02-top AS image
COPY image/ /
RUN ["rm", "-rf", "/opt/lumiimg/build"]
RUN ["/.singularity.d/test"]
"""
Capture = pytest.CaptureFixture[str]


@pytest.mark.usefixtures("clean_home")
def test_a_dockerfile_is_written_with_all_that_it_needs(
    make_layer: MakeLayer, layers: Path, tmp_path: Path, capsys: Capture
) -> None:
    make_layer("base", PINNED)
    make_layer("top", TOP, post='cc "$LAYER_FILES/tool.c"\n', tool_c="int main;\n", test_sh="true\n")
    folder = tmp_path / "context"
    words = ["build", "--layers", str(layers), "--base", "base", "--add", "top", "--definitions", str(folder)]
    assert main([*words, "--as", "dockerfile"]) == ExitCode.GOOD
    out = capsys.readouterr().out
    assert "wrote a Dockerfile" in out
    assert "docker build --platform linux/amd64 --tag image ." in out
    assert (folder / "Dockerfile").read_text().partition("\n")[2] == WRITTEN
    files = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    carried = {f"image/.lumiimg/layers/0/{name}" for name in ("base/layer.toml", "base/post.sh", "top/tool.c")}
    assert files.keys() > carried | {"files/top/files/tool.c", "files/top/script/post.sh"}
    post = files["files/top/script/post.sh"].read_text()
    assert "export LAYER_FILES=/opt/lumiimg/build/top/files\n" in post
    assert post.endswith("\nrm -rf /opt/lumiimg/build/top/work /opt/lumiimg/build/top/kept\n"), "what is mounted stays"
    own = files["image/.singularity.d/env/91-lumiimg.sh"]
    assert "export PYTHONNOUSERSITE='1'\n" in own.read_text()
    assert {path.stat().st_mode & 0o777 for path in (own, files["image/.singularity.d/test"], folder / "image")} == {
        0o755
    }
    plan = json.loads(files["image/.lumiimg/dockerfile.json"].read_text())
    assert [layer["name"] for layer in (plan["base"], *plan["layer"])] == ["base", "top"]
    assert main([*words, "--as", "dockerfile", "--force", "--json"]) == ExitCode.GOOD
    report = json.loads(capsys.readouterr().out)
    assert (report["dockerfile"], report["definitions"]) == (str(folder / "Dockerfile"), [])


@pytest.mark.usefixtures("clean_home")
def test_nothing_of_an_earlier_stack_comes_into_an_image(
    make_layer: MakeLayer, layers: Path, tmp_path: Path, capsys: Capture
) -> None:
    make_layer("base", PINNED)
    make_layer("top", TOP, tool_c="int main;\n")
    folder, secret = tmp_path / "context", tmp_path / "secret"
    words = ["build", "--layers", str(layers), "--base", "base", "--as", "dockerfile", "--definitions", str(folder)]
    assert main([*words, "--add", "top"]) == ExitCode.GOOD
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    capsys.readouterr()
    assert main([*words, "--force"]) == ExitCode.BAD_INPUT, "the variables of top would be in an image without it"
    assert (
        f"is not part of this stack, and would end up in it; remove image and files in {folder}"
        in capsys.readouterr().err
    )
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    secret.write_text("x")
    secret.chmod(0o600)
    record = folder / "image/.lumiimg/dockerfile.json"
    for link in (folder / "image/.lumiimg/link", record):
        link.unlink(missing_ok=True)
        link.symlink_to(secret)
        assert main([*words, "--add", "top", "--force"]) == ExitCode.BAD_INPUT
        link.unlink()
    assert (secret.read_text(), secret.stat().st_mode & 0o777) == ("x", 0o600)
    assert main([*words, "--add", "top", "--force"]) == ExitCode.GOOD
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


@pytest.mark.usefixtures("clean_home")
def test_what_cannot_be_a_dockerfile_is_one_line(
    make_layer: MakeLayer, layers: Path, tmp_path: Path, capsys: Capture
) -> None:
    (tmp_path / "root/etc").mkdir(parents=True)
    make_layer("made", LAYER.replace('"layer"', '"base"', 1) + '[[bootstrap]]\nagent = "debootstrap"\nfrom = "x"\n')
    make_layer("base", PINNED)
    make_layer("top", LAYER + "[environment.set]\nA = 'say \"x\"'\n")
    words = ["build", "--layers", str(layers), "--site", "generic", "--as", "dockerfile"]
    there = [*words, "--definitions", str(tmp_path / "context"), "--mirror", "debian=http://127.0.0.1:9/debian"]
    for request, code, expected in (
        ([*words, "--base", "base"], ExitCode.BAD_INPUT, "--as needs --definitions"),
        ([*there, "--base", str(tmp_path / "root")], ExitCode.NO, f"and {tmp_path}/root is not in one; push an image"),
        (
            [*there, "--base", "made"],
            ExitCode.NO,
            "a Dockerfile starts from an image in a registry, and x is not in one",
        ),
        ([*there, "--base", "base", "--add", "top"], ExitCode.BAD_INPUT, "which Apptainer garbles when it converts"),
    ):
        assert main(request) == code
        error = capsys.readouterr().err
        assert expected in error
        assert error.count("\n") == 1
    assert not (tmp_path / "context").exists()


def test_a_value_arrives_in_a_dockerfile_as_it_is_or_is_refused(tmp_path: Path) -> None:
    catalogue = catalogue_of(tmp_path, base=PINNED, free=FREE)
    arrived = 0
    for value in ODD:
        lock = locked(catalogue, "base", "free", arguments={"free.NOTE": value})
        try:
            text = write_dockerfile(lock, write_chain(lock)).text
        except DefinitionError as error:
            assert error.where == "free/layer.toml [environment]"  # noqa: PT017 - others are right
            continue
        (tmp_path / "Dockerfile").write_text(text)
        stage = read_dockerfile(tmp_path / "Dockerfile").stages[1]
        found = [one.text for one in stage.instructions if one.keyword == "ENV"]
        assert found == [f'V="{value}"', f'W="{value}${{W:+:$W}}"']
        arrived += 1
    assert arrived >= 10


def test_spython_is_imported_for_a_dockerfile_alone() -> None:
    code = "import sys; import lumiimg.cli.image_build, lumiimg.cli.build; print('spython' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
