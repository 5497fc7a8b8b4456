"""`lumiimg draft`: a Dockerfile is read as Docker reads it, and written as the draft of a layer."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from spython.main.parse.parsers import DockerParser

from lumiimg.catalog.catalogue import open_catalogue
from lumiimg.cli.main import main
from lumiimg.core.errors import BadInputError, ExitCode
from lumiimg.definition.docker.draft import Draft, make_draft, write_draft
from lumiimg.definition.docker.read import FILE_LIMIT_BYTES
from lumiimg.report.views.draft import draft_document
from tests.shared.programs import examples, needs, patient, unwrapped

pytestmark = pytest.mark.usefixtures("clean_home")

# In the style of vLLM's: build stages, mounted wheels, arguments that are declared again.
SERVER = """\
# syntax=docker/dockerfile:1
ARG BASE_IMAGE=rocm/dev-ubuntu-24.04:6.4.4-complete
ARG ENGINE_BRANCH="v0.12.0"
ARG ENGINE_REPO="https://github.com/vllm-project/vllm.git"
ARG FROM_REMOTE=1

FROM ${BASE_IMAGE} AS base
ENV PATH=/opt/rocm/bin:$PATH
ARG GPU_TARGETS="gfx942;gfx950"
ENV PYTORCH_ROCM_ARCH=${GPU_TARGETS}
ARG max_jobs
ENV MAX_JOBS=${max_jobs}
RUN --mount=type=cache,target=/root/.cache/pip \\
    # a comment in between

    pip install --upgrade pip \\
    && pip install 'ninja>=1'
WORKDIR /app

FROM base AS fetch_0
ONBUILD COPY ./ vllm/
FROM base AS fetch_1
ARG ENGINE_REPO
ARG ENGINE_BRANCH
ONBUILD RUN git clone ${ENGINE_REPO} && cd vllm && git checkout ${ENGINE_BRANCH}
FROM fetch_${FROM_REMOTE} AS fetch

FROM fetch AS wheels
RUN cd vllm && python3 setup.py bdist_wheel --dist-dir=/dist

FROM base AS final
RUN --mount=type=bind,from=wheels,src=/dist,target=/wheels pip install /wheels/*.whl
COPY --from=wheels /app/vllm/examples ${PLACE:-/opt}/examples
COPY <<-"EOF" /etc/engine/settings
	level=$HOME
	EOF
RUN <<EOF
echo one
echo "two  three"
EOF
USER nobody
ENTRYPOINT ["vllm", "serve"]
"""


def draft_of(file: Path, text: str, target: str | None = None, **arguments: str) -> Draft:
    file.write_text(text)
    return make_draft(file, target, arguments, open_catalogue(os.environ))


def commands(draft: Draft) -> list[str]:
    return [step.text for step in draft.script.steps if step.keyword == "RUN"]


def printed_json(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    assert main(["draft", *argv, "--json"]) == ExitCode.GOOD
    data = json.loads(capsys.readouterr().out)
    assert isinstance(data, dict)
    return data


def drafted(tmp_path: Path, text: str, **arguments: str) -> Path:
    """Write a draft; return its folder, in a folder of layers."""
    folder = tmp_path / "layers" / "drafted"
    folder.parent.mkdir()
    write_draft(draft_of(tmp_path / "Dockerfile", text, **arguments), folder, open_catalogue(os.environ))
    return folder


def shown(folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["show", "--layers", str(folder.parent), folder.name, "--json"]) == ExitCode.GOOD
    data = json.loads(capsys.readouterr().out)
    assert isinstance(data, dict)
    return data


# ---- what is read


def test_steps_are_read_as_docker_reads_them(tmp_path: Path) -> None:
    for text, steps, heredocs in (
        ("FROM a\nRUN one \\\n# no\n\n  # nor this\n  two\\\nthree\n", ["one   twothree"], ""),
        ("\ufefffrom a as B\r\nrun one \\\r\n  two\r\n", ["one   two"], ""),
        ("FROM a\nRUN <<EOF\nFROM b\nENV A=$A\nEOF\nRUN last\n", ["<<EOF", "last"], "FROM b\nENV A=$A\nEOF\n"),
        ("FROM a\nRUN cat <<A && cat <<'B'\none\nA\ntwo\nB\n", ["cat <<A && cat <<'B'"], "one\nA\ntwo\nB\n"),
        ("FROM a\nRUN <<-EOF\n\techo\n\tEOF\n", ["<<-EOF"], "\techo\n\tEOF\n"),
        ("FROM a\nRUN cat <<< word\n", ["cat <<< word"], ""),
        ("FROM a\nRUN --mount=type=cache,\\\ntarget=/x --network=none y\n", ["y"], ""),
        ("FROM a AS one\nRUN one\nFROM b\nRUN no\nFROM one\nRUN last\n", ["one", "last"], ""),
    ):
        draft = draft_of(tmp_path / "Dockerfile", text)
        assert (commands(draft), "".join(step.heredocs for step in draft.script.steps)) == (steps, heredocs), text
        assert draft.base is not None
        assert draft.base.image == "docker.io/library/a:latest"


def test_the_way_goes_through_stages_that_arguments_choose(tmp_path: Path) -> None:
    file = tmp_path / "Dockerfile"

    def way(text: str, target: str | None = None, **arguments: str) -> tuple[list[str], str]:
        draft = draft_of(file, text, target, **arguments)
        assert draft.base is not None
        return [stage.label for stage in draft.stages], draft.base.image

    assert way(SERVER) == (["base", "final"], "docker.io/rocm/dev-ubuntu-24.04:6.4.4-complete")
    other = way(SERVER, "fetch", FROM_REMOTE="0", BASE_IMAGE="o/x:1")
    assert other == (["base", "fetch_0", "fetch"], "docker.io/o/x:1")
    for target, stages in (("0", ["x"]), ("X", ["x"]), ("1", ["1"]), (None, ["x", "last"])):
        assert way("FROM a AS x\nFROM b\nFROM X AS last\n", target)[0] == stages
    text = "ARG TARGETARCH\nFROM --platform=$TARGETPLATFORM o/base-${TARGETARCH}\n"
    assert way(text)[1] == "docker.io/o/base-amd64:latest"
    assert way(text, TARGETARCH="arm64")[1] == "docker.io/o/base-arm64:latest"
    for word, image in (
        ("a:${TAG:-1}", "a:1"),
        ("a:${EMPTY:-1}", "a:1"),
        ("${EMPTY-1}a", "a:latest"),
        ("a:${TAG-$TWO}", "a:2"),
        ("a:${TWO:-1}", "a:2"),
        ("a:${TAG:-${EMPTY:-3}}", "a:3"),
        ("a:$MADE", "a:2"),
        ("${TARGETOS}-${BUILDARCH}$TARGETVARIANT", "linux-amd64:latest"),
    ):
        assert way(f"ARG EMPTY=\nARG TWO=2\nARG MADE=${{TAG:-$TWO}}\nFROM {word}\n")[1] == f"docker.io/library/{image}"
    assert way("FROM x AS x\n") == (["x"], "docker.io/library/x:latest")
    twice = "FROM a AS x\nFROM x AS y\nFROM b AS x\nFROM x AS x\nFROM y\n"
    for target, found in (("y", ["x", "y"]), ("3", ["x", "x"]), (None, ["x", "y", "4"])):
        assert way(twice, target)[0] == found, "of two of one name, the nearest above"


# ---- what is refused

REFUSED: dict[str, tuple[str | bytes, str]] = {
    "empty": ("", "Dockerfile: has no FROM"),
    "unknown": ("FROM a\nRUM x\n", "Dockerfile:2: 'RUM' is not a Dockerfile instruction"),
    "before FROM": ("ENV A=1\nFROM a\n", "Dockerfile:1: ENV before any FROM"),
    "no name": ("FROM a AS\n", "Dockerfile:1: FROM a AS"),
    "heredoc": ("FROM a\nRUN <<EOF\necho\n", "Dockerfile:2: the heredoc 'EOF' has no end"),
    "no image": ("ARG V\nFROM $V\n", "Dockerfile:2: FROM: '$V' is not a valid image reference"),
    "escape": ("# syntax=x\n# escape=`\nFROM a\n", "Dockerfile:2: an escape directive is not supported"),
    "doubled": (
        "FROM a\nENV A0=ab\n" + "".join(f"ENV A{i + 1}=$A{i}$A{i}\n" for i in range(60)),
        "Dockerfile:19: values that contain others exceed",
    ),
    "many": ("FROM a\n" + "RUN a\n" * 2001, "Dockerfile:2001: more than 2000 instructions"),
    "large": ("#" * (FILE_LIMIT_BYTES + 1), f"is larger than {FILE_LIMIT_BYTES} bytes"),
    "NUL": ("FROM a\nRUN \0\n", "Dockerfile:2: contains a control character"),
    "terminal": ("FROM a\nLABEL \x1b[2J=1\n", "Dockerfile:2: contains a control character, '\\x1b'"),
    "letters": (b"FROM a\nRUN \xff\n", "Dockerfile: is not UTF-8"),
    "image": ("FROM a:b:c d e f\n", "Dockerfile:1: FROM a:b:c d e f"),
}


@pytest.mark.threat
def test_what_cannot_be_read_is_one_line_with_its_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, (text, what) in REFUSED.items():
        Path("Dockerfile").write_bytes(text if isinstance(text, bytes) else text.encode())
        began = time.monotonic()
        assert main(["draft", "Dockerfile"]) == ExitCode.BAD_INPUT, name
        assert time.monotonic() - began < patient(5), name
        captured = capsys.readouterr()
        assert (captured.out, captured.err.count("\n")) == ("", 1), name
        assert what in captured.err


def test_what_cannot_be_asked_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("Dockerfile").write_text(SERVER)
    Path("there").mkdir()
    before = sorted(tmp_path.rglob("*"))
    for argv, what in (
        (["--arg", "GPU_TARGET=gfx90a"], "--arg GPU_TARGET: no ARG of that name"),
        (["--arg", "GPU_TARGETS"], "not of the form NAME=VALUE"),
        (["--arg", "BASE_IMAGE=a b"], "is not a valid image reference"),
        (["--target", "finel"], "there is no stage 'finel'; known: base, fetch_0"),
        (["-o", "Bad_Name"], "is not a valid layer name"),
        (["-o", "vllm"], "'vllm' is already in the catalogue"),
        (["-o", "there"], "exists already"),
    ):
        assert main(["draft", "Dockerfile", *argv]) == ExitCode.BAD_INPUT
        captured = capsys.readouterr()
        assert captured.err.count("\n") == 1
        assert what in captured.err
        assert sorted(tmp_path.rglob("*")) == before


def test_scratch_is_reported_and_makes_no_layer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "Dockerfile"
    file.write_text("FROM scratch\nCOPY a /\n")
    assert printed_json(capsys, str(file))["base"] is None
    assert main(["draft", str(file), "-o", str(tmp_path / "x")]) == ExitCode.BAD_INPUT
    assert "the stage is FROM scratch, so it has no base image for a layer" in capsys.readouterr().err


# ---- what the catalogue has


def test_base_and_software_are_recognised(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "Dockerfile"
    file.write_text(SERVER)
    data = printed_json(capsys, str(file))
    assert data["schema"] == 1
    assert data["base"]["name"] == "rocm-6.4.4"
    assert [(e["layer"], e["stage"], e["what"]) for e in data["layers"]] == [
        ("vllm", "fetch_1", "git clone https://github.com/vllm-project/vllm.git"),
    ]
    assert main(["draft", str(file)]) == ExitCode.GOOD
    text = unwrapped(capsys.readouterr().out)
    assert "is the base rocm-6.4.4: --base rocm-6.4.4" in text
    assert "lumiimg explain --base rocm-6.4.4 --add vllm" in text


def test_software_is_found_as_recipes_get_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "Dockerfile"
    for step, layer, version in (
        ("pip install torch==2.9.1", "pytorch", "2.9.1"),
        ("python3 -m pip install --no-cache-dir 'xformers==0.0.35'", "xformers", "0.0.35"),
        ("uv pip install flash_attn==2.8", "flash-attn", None),
        ("pip3 install git+https://github.com/ROCm/aiter.git@abc", "aiter", None),
        ("git clone -b v0.10.1 https://github.com/someone/vllm", "vllm", "0.10.1"),
        ("pip install /dist/torch-2.9.1+rocm7-cp312-cp312-linux_x86_64.whl", "pytorch", "2.9.1"),
    ):
        file.write_text(f"FROM rocm/dev-ubuntu-24.04:6.9-complete\nRUN cd /x && {step} && pip install wheel\n")
        data = printed_json(capsys, str(file))
        assert [(entry["layer"], entry["version"]) for entry in data["layers"]] == [(layer, version)], step
        assert data["base"]["name"] is None
        assert "rocm-6.4.4" in data["base"]["near"]


def test_a_tag_that_the_catalogue_lacks_leads_to_the_base_of_its_version(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "Dockerfile"
    file.write_text("FROM rocm/dev-ubuntu-22.04:6.2.4\nRUN pip install vllm==0.10.1\nRUN pip install transformers\n")
    assert main(["draft", str(file)]) == ExitCode.GOOD
    assert "lumiimg explain --base rocm-6.2.4 --add vllm==0.10.1 --add transformers" in capsys.readouterr().out
    assert main(["draft", str(file), "-o", str(tmp_path / "mine")]) == ExitCode.GOOD
    text = unwrapped(capsys.readouterr().out)
    assert "the layer vllm provides part of it (line 2): remove that part and use --add vllm==0.10.1" in text
    for tag, near in (("6.9-complete", "rocm-6.4.4"), ("7.0.2-complete", "rocm-7.0"), ("latest", "rocm-10.0.0")):
        file.write_text(f"FROM rocm/dev-ubuntu-24.04:{tag}\nRUN pip install vllm\n")
        assert printed_json(capsys, str(file))["base"]["near"][0] == near, tag


def test_what_the_base_has_is_not_proposed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "Dockerfile"
    file.write_text(
        "FROM rocm/pytorch:rocm7.2_ubuntu22.04_py3.10_pytorch_release_2.9.1\nRUN pip install torch deepspeed\n"
    )
    assert main(["draft", str(file)]) == ExitCode.GOOD
    text = capsys.readouterr().out
    assert re.search(r"pip install torch \(line 2, stage 0\); the base has it$", text, re.MULTILINE)
    assert "explain --base rocm-pytorch-2.9.1 --add deepspeed" in text


def test_what_stands_behind_the_target_is_not_searched(tmp_path: Path) -> None:
    text = "FROM a AS one\nARG W=wheel\nRUN pip install $W\nFROM one AS two\nARG W=vllm LATER\nRUN pip install vllm\n"
    file = tmp_path / "Dockerfile"
    assert draft_of(file, text, "one", LATER="1").layers == (), "an ARG of a later stage is known"
    assert draft_of(file, text, "two").layers == ("vllm",)


# ---- the draft


def test_a_draft_is_a_layer_that_can_be_shown_and_planned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, layers = tmp_path / "Dockerfile", tmp_path / "layers"
    file.write_text(SERVER)
    layers.mkdir()
    assert main(["draft", str(file), "-o", str(layers / "engine")]) == ExitCode.GOOD
    text = capsys.readouterr().out
    assert "3 places where its build stops until you finish it" in text
    assert f"lumiimg build --base rocm-6.4.4 --layers {layers} --add engine --dry-run" in text
    assert sorted(path.name for path in layers.rglob("*")) == ["engine", "layer.toml", "post.sh"]
    data = shown(layers / "engine", capsys)
    assert data["status"] == "documented"
    assert data["arguments"]["GPU_TARGETS"] == {"default": "gfx942;gfx950", "help": "ARG of the Dockerfile, line 9"}
    assert data["environment"]["set"]["PYTORCH_ROCM_ARCH"] == "{GPU_TARGETS}"
    assert data["environment"]["prepend"] == {"PATH": "/opt/rocm/bin"}
    request = ["build", "--base", "rocm-6.4.4", "--layers", str(layers), "--add", "engine", "--dry-run"]
    assert main(request) == ExitCode.GOOD
    assert "warning: the build ends at each `todo`" in capsys.readouterr().out
    assert main([*request, "--arg", "engine.GPU_TARGETS=gfx90a", "--json"]) == ExitCode.GOOD
    definition = json.loads(capsys.readouterr().out)["definitions"][1]["text"]
    assert "export PYTORCH_ROCM_ARCH='gfx90a'" in definition
    assert main([*request, "--arg", "engine.GPU_TARGETS=a b"]) == ExitCode.BAD_INPUT


def test_what_is_left_out_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "Dockerfile"
    for line, what, ends in (
        ("COPY a /b", "files: put them beside layer.toml, name them in its `files`", True),
        ("COPY --from=host.example/x:1 a /b", "files of host.example/x:1, another", True),
        ("ADD https://host.example/a.tgz /b", "a URL: put it under [sources] of layer.toml", True),
        ("COPY <<EOF /b\nx\nEOF", "files: put them", True),
        ("RUN <<EOF\n#!/usr/bin/env python3\nEOF", "the heredoc has its own interpreter", True),
        ("ARG UID=1", "UID: write its value in bash syntax", True),
        ('ENV A="x', 'A="x: write its value in bash syntax', True),
        ("ENV A=${A%x}", "A: write its value in bash syntax", True),
        ("ENV A={x}", "A: write its value in bash syntax", True),
        ("WORKDIR a\\ b", "write this in bash: a", True),
        ("SHELL bash", "write this in bash: bash", True),
        ("ENV A=\n", "A is set only during the build: a layer cannot set an empty variable", False),
        ("ENV A=$B\n", "A is set only during the build: write [environment] of layer.toml", False),
        ("ONBUILD RUN true", "for stages that start from this one", False),
        ("RUN --mount=source=a,target=/b true", "--mount=source=a,target=/b: its source is not here", True),
        ("RUN --security=insecure true", "--security=insecure: a layer is built without it", True),
        ("RUN --mount=type=secret,id=x true", "contains or uses a secret", True),
        ("USER 1000:1000", "a layer is built as root", False),
        ("VOLUME /data", "bind a folder", False),
        ("HEALTHCHECK --interval=5m CMD true", "nothing monitors", False),
    ):
        file.write_text(f"FROM a AS one\nFROM b\n{line}\n")
        (entry,) = printed_json(capsys, str(file))["left_out"]
        assert (entry["line"], entry["ends_build"]) == (3, ends), line
        assert entry["what"].startswith(what), line
    file.write_text("FROM --platform=linux/arm64 a\n")
    (entry,) = printed_json(capsys, str(file))["left_out"]
    assert (entry["line"], entry["ends_build"]) == (1, False)
    assert entry["what"] == "--platform=linux/arm64: a layer is for linux/amd64"
    for line in (
        "RUN --mount=type=cache,target=/x true",
        "RUN --network=none true",
        "FROM --platform=$BUILDPLATFORM a",
    ):
        file.write_text(f"FROM a\n{line}\n")
        assert printed_json(capsys, str(file))["left_out"] == [], line


SECRETS = """\
FROM rocm/pytorch:latest
ARG GIT_TOKEN=c4nary01
ARG CI_TOKEN
ENV MY_PASSWORD=c4nary03 API=https://me:c4nary04@host.example/x PORT=1
ENV COPIED="--user $MY_PASSWORD" SHORT_KEY=k3
RUN git clone https://token:c4nary05@host.example/x
RUN export HF_TOKEN=c4nary06 && echo hi
RUN curl -H "X-Key: $MY_PASSWORD" host.example
RUN <<EOF
curl https://me:c4nary07@host.example/
EOF
RUN ["sh", "-c", "login --password=c4nary08"]
COPY <<EOF /etc/settings
password = $MY_PASSWORD
EOF
ADD https://host.example/file?sig=c4nary09 /opt/file
LABEL token=c4nary11
CMD ["serve", "--api-key", "c4nary12"]
ONBUILD ENV NEXT_TOKEN c4nary13
ARG LOGIN=me
ENV ADDRESS=https://$LOGIN:c4nary14@host.example
RUN --mount=type=secret,id=hf echo
ENV API_KEY=$PLAIN
RUN login $API_KEY
ENV API_KEY="c4nary15
"""


@pytest.mark.threat
def test_a_draft_leaves_secrets_out_and_says_which_and_where(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, folder = tmp_path / "Dockerfile", tmp_path / "layers" / "drafted"
    file.write_text(SECRETS)
    output = ""
    for argv in (["draft", str(file)], ["draft", str(file), "--json"], ["draft", str(file), "-o", str(folder)]):
        assert main(argv) == ExitCode.GOOD
        output = "".join(capsys.readouterr())
        assert "c4nary" not in output
        assert "k3" not in output
        assert "MY_PASSWORD, API, left out" in " ".join(output.split())
    lines = {int(line): what for line, what in re.findall(r"line (\d+) \w+: (\S+)", output)}
    named = {2: "GIT_TOKEN,", 3: "CI_TOKEN,", 4: "MY_PASSWORD,", 5: "COPIED,", 21: "ADDRESS,", 23: "API_KEY,"}
    steps = [6, 7, 8, 9, 12, 13, 16, 22, 24]
    assert lines == named | dict.fromkeys([*steps, 17, 18, 19, 25], "contains")
    for written in folder.iterdir():
        assert "c4nary" not in written.read_text()
    assert [int(n) for n in re.findall(r"^todo 'line (\d+)", (folder / "post.sh").read_text(), re.MULTILINE)] == steps
    layer = shown(folder, capsys)
    assert (layer["environment"]["set"], list(layer["arguments"])) == ({"PORT": "1"}, ["LOGIN"])


@pytest.mark.threat
def test_a_value_from_elsewhere_is_judged_as_one_of_the_step(tmp_path: Path) -> None:
    """From an ARG before FROM, from --arg, or from an ARG with a secret in it; what uses it is left out, too."""
    for head, body, arguments in (
        ("ARG X=https://bob:c4nary@host/x", "ARG X", {}),
        ("ARG P=c4nary\nARG X=https://bob:$P@host/x", "ARG X", {}),
        ("", "ARG X", {"X": "https://bob:c4nary@host/x"}),
        ("", "ARG X=https://host/x", {"X": "https://bob:c4nary@host/x"}),
        ("", "ARG X\nENV API_KEY=$X", {"X": "c4nary"}),
        ("ARG X=c4nary\nARG API_KEY=$X", "ARG X", {}),
        ("ARG X=c4nary", "ARG X\nENV API_KEY=${X:-none}", {}),
    ):
        draft = draft_of(tmp_path / "Dockerfile", f"{head}\nFROM a\n{body}\nRUN obtain $X\n", **arguments)
        post = "\n".join(draft.script.lines)
        shutil.rmtree(tmp_path / "drafted", ignore_errors=True)
        folder = write_draft(draft, tmp_path / "drafted", open_catalogue(os.environ)).folder
        assert folder is not None
        assert (
            "c4nary" not in f"{draft_document(draft)} {draft.script.steps} {[f.read_text() for f in folder.iterdir()]}"
        )
        assert ("X, left out as a secret" in post, "obtain" in post, draft.arguments) == (True, False, ()), body


def test_what_only_sounds_like_a_secret_stays_in_a_draft(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "Dockerfile"
    file.write_text(
        "FROM a\nENV TOKENIZERS_PARALLELISM=false PWD=/x MAX_TOKENS=4096 SSL_KEY_FILE=/x\n"
        "RUN apt-get install postgres && git clone git+ssh://git@host.example/x && pip install auth==1.0\n"
        "RUN echo KEYBOARD=us $PWD\nENV SSH_KEY=$HOME/key\nRUN ls $HOME\nLABEL org.example.keywords=a\n"
    )
    assert [one["line"] for one in printed_json(capsys, str(file))["left_out"]] == [5, 7]


def test_the_script_is_clean(tmp_path: Path) -> None:
    needs("shellcheck")
    script = drafted(tmp_path, SERVER) / "post.sh"
    done = subprocess.run(["shellcheck", "-s", "bash", str(script)], capture_output=True, text=True, check=False)
    assert done.stdout == ""


def outcome(script: Path, **variables: str) -> str:
    """Run a script as the build would; return what its steps print."""
    argv = ["bash", "-euo", "pipefail", str(script)]
    env = {"PATH": os.environ["PATH"], **variables}
    return subprocess.run(argv, env=env, capture_output=True, text=True, check=True).stdout


STEPS = {
    "break in quotes": ("echo 'a \\\n  b'", "a   b"),  # Docker removes the break before the shell sees it
    "break in double quotes": ('echo "a \\\n  b"', "a   b"),
    "break in a comment": ("echo a \\\n  # no\n  b # 'c \\\n  d", "a b"),
    "command in quotes": ('echo "$(printf %s x)" \\\n y', "x y"),
    "quotes in a command in quotes": ("echo \"$(printf '%s' 'x \\\n y')\"", "x  y"),
    "section": ("printf '%s|' \\\n%runscript", "%runscript|"),
    "build argument": ("echo '{{ word }}'", "{{ word }}"),
    "heredocs": ("cat <<A ; cat <<'B'\n$X 1\nA\n$X 2\nB", "value 1\n$X 2"),
    "heredoc alone": ("<<EOF\necho $X\necho two\nEOF", "value\ntwo"),
    "heredoc that ends as ours does": ("<<EOF\n: <<'RUN_4'\nRUN_4\necho one\nEOF", "one"),
    "no JSON": ("[ -d / ] && echo y", "y"),
    "JSON": ('["printf", "%s,", "$X", "a b"]', "$X,a b,"),
    "no -e": ("false; echo on", "on"),
    "input": ("cat; echo on", "on"),
    "letters": ("echo \u00e9 '\t'", "\u00e9 \t"),
}


def test_a_step_does_what_it_does_under_docker(tmp_path: Path) -> None:
    for name, (step, printed) in STEPS.items():
        shutil.rmtree(tmp_path / "layers", ignore_errors=True)
        folder = drafted(tmp_path, f'FROM a\nENV X=value\nSHELL ["/bin/sh", "-c"]\nRUN {step}\n')
        assert outcome(folder / "post.sh").rstrip("\n") == printed, name


WORDS = [
    *("echo ", "a", " ", "'", '"', "$X", "\\", "\\\\", "#", " # ", ";", " && ", "$(echo ", ")", "`", "{{", "%"),
    *(" \\\n", " \\\n  # c\n"),
]


@given(words=st.lists(st.sampled_from(WORDS), max_size=25))
@settings(deadline=None, max_examples=examples(12), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_shell_gets_the_words_that_docker_gives_it(words: list[str], tmp_path: Path) -> None:
    text = f"FROM a\nENV X=value\nRUN echo {''.join(words)}\n"
    shutil.rmtree(tmp_path / "layers", ignore_errors=True)
    script = drafted(tmp_path, text) / "post.sh"
    (command,) = commands(draft_of(tmp_path / "Dockerfile", text))
    env = {"PATH": os.environ["PATH"], "X": "value"}
    argvs = (["/bin/sh", "-c", command], ["bash", "-euo", "pipefail", str(script)])
    docker, ours = (
        subprocess.run(argv, env=env, cwd="/", stdin=subprocess.DEVNULL, capture_output=True, check=False)
        for argv in argvs
    )
    assert (ours.stdout, ours.returncode == 0) == (docker.stdout, docker.returncode == 0)


def test_variables_come_to_the_same_as_under_docker(tmp_path: Path) -> None:
    text = """\
FROM a
ARG ONE=1
ARG none
ARG NONE
ARG MADE="$ONE of it"
ENV FLAGS="$FLAGS -a"
ENV FLAGS="$FLAGS -b" OLD=$FLAGS SAVED=$ONE
ENV ONE=env
ARG ONE=2
ENV LATER="$SAVED; it & so"
ENV OLDER two  words
ENV LIST=${NO:-a;${ONE}}:${FLAGS:+x} PLAIN='a  b' DONE=${none-unset}
WORKDIR $DIR/with-$ONE
RUN echo "$FLAGS|$OLD|$SAVED|$ONE|$LATER|$OLDER|${none-unset}${NONE-unset}|$LIST|$PLAIN|$DONE|$MADE|${PWD##*/}"
"""
    folder = drafted(tmp_path, text)
    printed = outcome(folder / "post.sh", ONE="9", NONE="", FLAGS="-O", DIR=str(tmp_path))
    assert printed == "-O -a -b|-O -a|9|env|9; it & so|two  words|unsetunset|a;env:x|a  b|unset|9 of it|with-env\n"
    layer = (folder / "layer.toml").read_text()
    for line in ('LATER = "{ONE}; it & so"', 'SAVED = "{ONE}"', 'ONE = "env"', 'PLAIN = "a  b"', "[arguments.NONE]"):
        assert line in layer
    for name in ("FLAGS =", "LIST =", "[arguments.MADE]", "[arguments.none]"):
        assert name not in layer


def test_an_argument_that_is_declared_again_has_one_value(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "Dockerfile"
    file.write_text("ARG V=1\nFROM a AS x\nARG V\nARG W=1\nFROM x\nARG V\nARG W=1\nARG W\nARG W=2\n")
    data = printed_json(capsys, str(file))
    assert [(one["name"], one["value"]) for one in data["arguments"]] == [("V", "1"), ("W", "1")]
    assert [(one["line"], one["what"]) for one in data["left_out"]] == [(9, "W has the value from line 4 here")]


def test_the_path_of_the_fabric_is_added_to_and_never_replaced(tmp_path: Path) -> None:
    text = "FROM a\nENV LD_LIBRARY_PATH=/x/lib PATH=/x/bin BLANK=' '\nRUN echo $LD_LIBRARY_PATH\nENV LD_LIBRARY_PATH=$ELSE/lib\n"
    folder = drafted(tmp_path, f"{text}RUN echo $LD_LIBRARY_PATH\n")
    path = os.environ["PATH"]
    done = outcome(folder / "post.sh", LD_LIBRARY_PATH="/fabric", PATH=path, ELSE="/y")
    assert done == "/x/lib:/fabric\n/y/lib:/x/lib:/fabric\n"
    layer = (folder / "layer.toml").read_text()
    assert '[environment.prepend]\nLD_LIBRARY_PATH = "/x/lib"\nPATH = "/x/bin"' in layer
    assert "[environment.set]" not in layer
    assert "LD_LIBRARY_PATH is set only during the build" in (folder / "post.sh").read_text()


def test_an_argument_that_decided_the_base_is_fixed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "ARG TAG=1\nARG ARCH=b:$TAG\nFROM ${ARCH}\nARG ARCH\nARG TAG\nARG OTHER=1\nENV LIST=$ARCH B=$OTHER-x\n"
    data = shown(drafted(tmp_path, text), capsys)
    assert list(data["arguments"]) == ["OTHER"]
    assert data["environment"]["set"] == {"B": "{OTHER}-x", "LIST": "b:1"}
    shutil.rmtree(tmp_path / "layers")
    odd = drafted(tmp_path, "FROM a\nARG t=1\nENV A=$t\nARG T=1\nENV B=$T\nRUN echo $A\n", t='{x}`id`"', T="{y}`id`")
    assert shown(odd, capsys)["environment"]["set"] == {"B": "{T}"}
    assert outcome(odd / "post.sh", T="9") == '{x}`id`"\n'


# ---- hostile


@pytest.mark.threat
def test_control_characters_reach_no_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "Dockerfile"
    evil = "\u202e"
    file.write_text(
        f"FROM a\nARG A={evil}\nENV B={evil}\nRUN echo {evil}\nCOPY {evil} /\nLABEL {evil}=1\nUSER {evil}\n"
    )
    for argv in (["draft", str(file)], ["draft", str(file), "-o", str(tmp_path / "x")]):
        assert main(argv) == ExitCode.GOOD
        captured = capsys.readouterr()
        assert not set(captured.out + captured.err) & {"\u202e"}
    for written in (tmp_path / "x").iterdir():
        assert all(c.isprintable() or c in "\n\t" for c in written.read_text())


HOSTILE = [
    *("$(touch MARK)", "`touch MARK`", ";touch MARK;", "&touch MARK", "\n", "\\\n", "'", '"', "\\", "$", "{", "}"),
    *("${PATH:-", "${X#", "$PATH", "A=", " ", "#", "<<X", "|", ">MARK", "a", "\u2028", "!", "~", "[", "--from=", "X\n"),
    "MARK",
]


@pytest.mark.threat
@given(
    keyword=st.sampled_from(
        ["ENV A=", "ARG A=", "ENV A ", "WORKDIR ", "LABEL a=", "COPY ", "ADD ", "USER ", "CMD ", "SHELL "]
    ),
    words=st.lists(st.sampled_from(HOSTILE), min_size=1, max_size=12),
)
@settings(deadline=None, max_examples=examples(20), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_only_run_is_code(keyword: str, words: list[str], tmp_path: Path) -> None:
    runs_nothing_of(f"{keyword}{''.join(words)}", tmp_path)


@pytest.mark.threat
def test_no_value_becomes_a_command(tmp_path: Path) -> None:
    """Neither when it is drafted nor when the draft is run: only RUN is code."""
    for text in (
        "ENV A=$(touch${IFS}MARK)\nRUN true",
        "ARG A='`touch MARK`'\nENV B=$A",
        "ARG a='`touch MARK`'\nENV B=${a:-word}",
        "ENV A=';touch MARK;'\nLABEL a=';touch MARK'",
        'ENV A="\\\\\\"; touch MARK; \\""',
        "ENV A=${PATH:-;touch MARK;}",
        "ENV A=\u2028$(touch MARK)'\"$(touch MARK)\"'",
        "COPY <<X /dev/null\n$(touch MARK)\nX",
        'COPY "\'$(touch MARK)" /x',
        "COPY '\\';touch MARK;' /x",
        "USER '$(touch MARK)'",
        "WORKDIR /tmp/$(touch MARK)`touch MARK`",
        'SHELL ["$(touch MARK)", "\'; touch MARK"]',
        "LABEL a=1\\\n\u2028touch MARK",
        'ENV A="${PATH:-$(touch MARK)}"',
    ):
        runs_nothing_of(text, tmp_path)


def runs_nothing_of(text: str, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    assert not mark.is_file()
    shutil.rmtree(tmp_path / "layers", ignore_errors=True)
    try:
        script = drafted(tmp_path, f"FROM a\n{text}\n".replace("MARK", str(mark))) / "post.sh"
    except BadInputError:
        return
    script.write_text(
        script.read_text()
        .replace("\ncd /\n", f"\ncd {tmp_path}\n")
        .replace("return 1", "return 0")
        .replace("set -eo", "set -o")
    )
    # The draft is run to its end, whatever fails in it, and it is bash to the last line.
    assert subprocess.run(["bash", "-n", str(script)], capture_output=True, check=False).returncode == 0, text
    subprocess.run(["bash", "-uo", "pipefail", str(script)], cwd=tmp_path, capture_output=True, check=False)
    made = mark.is_file()  # a folder of WORKDIR is none
    mark.unlink(missing_ok=True) if made else shutil.rmtree(mark, ignore_errors=True)
    assert not made, text


# ---- the other opinion

SIMPLE = [
    "FROM ubuntu:24.04\nRUN apt-get update\nRUN make install\n",
    "FROM rocm/pytorch:latest\nENV A=1\nENV B=two\nRUN echo hello\nWORKDIR /app\n",
    'FROM a\nCOPY one /two\nCMD ["x", "y"]\n',
]


@pytest.mark.parametrize("text", SIMPLE)
def test_spython_reads_a_simple_file_the_same(text: str, tmp_path: Path) -> None:
    file = tmp_path / "Dockerfile"
    file.write_text(text)
    (recipe,) = DockerParser(str(file)).recipe.values()
    steps = draft_of(file, text).script.steps
    ours: list[str] = []
    for step in steps:
        if step.keyword == "RUN":
            ours.append(step.text)
        elif step.keyword == "ENV":
            ours += [f"{name}={value}" for name, value in step.pairs or ()]
        elif step.keyword == "WORKDIR":
            ours += [f"mkdir -p {step.text}", f"cd {step.text}"]
    assert recipe.install == ours
    assert recipe.files == [step.text.split() for step in steps if step.keyword == "COPY"]
    starts = [list(step.words or ()) for step in steps if step.keyword == "CMD"]
    assert recipe.cmd == (starts[0] if starts else None)
