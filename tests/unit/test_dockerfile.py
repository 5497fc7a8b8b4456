"""`lumiimg draft`: a Dockerfile is read as Docker reads it, told, and written down as the draft of a layer."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from spython.main.parse.parsers import DockerParser

from lumiimg.catalog.catalogue import open_catalogue
from lumiimg.cli.main import main
from lumiimg.definition.docker.dockerfile import FILE_LIMIT_BYTES, parse_dockerfile
from lumiimg.definition.docker.draft import make_draft, write_draft
from lumiimg.definition.docker.stages import follow
from lumiimg.definition.docker.substitution import text_of
from lumiimg.errors import ExitCode
from tests.shared.programs import examples, needs, patient, unwrapped

if TYPE_CHECKING:
    from lumiimg.definition.docker.steps import BuildPath

pytestmark = pytest.mark.usefixtures("clean_home")

# In the style of vLLM's: build stages, wheels that are mounted, arguments that are declared again.
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


def build_path(text: str, target: str | None = None, **arguments: str) -> BuildPath:
    return follow(parse_dockerfile(text.encode(), "Dockerfile"), target, arguments)


def commands(path: BuildPath) -> list[str]:
    return [step.instruction.text for step in path.steps if step.keyword == "RUN"]


def environment(text: str, **arguments: str) -> dict[str, str]:
    return {name: text_of(value) for name, value in build_path(text, **arguments).environment.items()}


def told(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    assert main(["draft", *argv, "--json"]) == ExitCode.GOOD
    data = json.loads(capsys.readouterr().out)
    assert isinstance(data, dict)
    return data


def drafted(tmp_path: Path, text: str, **arguments: str) -> Path:
    """The folder of a draft, in a folder of layers."""
    file, folder = tmp_path / "Dockerfile", tmp_path / "layers" / "drafted"
    file.write_text(text)
    folder.parent.mkdir()
    catalogue = open_catalogue(os.environ)
    write_draft(make_draft(file, None, arguments, catalogue), folder, catalogue)
    return folder


def shown(folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["show", "--layers", str(folder.parent), folder.name, "--json"]) == ExitCode.GOOD
    data = json.loads(capsys.readouterr().out)
    assert isinstance(data, dict)
    return data


# ---- what is read


def test_steps_are_read_as_docker_reads_them() -> None:
    for text, steps, contents in (
        ("FROM a\nRUN one \\\n# no\n\n  # nor this\n  two\\\nthree\n", ["one   twothree"], []),
        ("\ufefffrom a as B\r\nrun one \\\r\n  two\r\n", ["one   two"], []),
        ("# escape=`\nFROM a\nRUN dir C:\\ `\n  /w\n", ["dir C:\\   /w"], []),
        ("FROM a\nRUN <<EOF\nFROM b\nENV A=$A\nEOF\nRUN last\n", ["<<EOF", "last"], ["FROM b\nENV A=$A\n"]),
        (
            "FROM a\nRUN cat <<A >x && cat <<'B' >y\none\nA\ntwo\nB\n",
            ["cat <<A >x && cat <<'B' >y"],
            ["one\n", "two\n"],
        ),
        ("FROM a\nRUN <<-EOF\n\techo\n\tEOF\n", ["<<-EOF"], ["\techo\n"]),
        ("FROM a\nRUN cat <<< word\n", ["cat <<< word"], []),
        # a trigger runs in the stage that starts there, and not again
        (
            "FROM a AS one\nONBUILD RUN trigger\nFROM one AS two\nRUN own\nFROM two\nRUN last\n",
            ["trigger", "own", "last"],
            [],
        ),
    ):
        path = build_path(text)
        found = [heredoc.content for step in path.steps for heredoc in step.instruction.heredocs]
        assert (path.base, commands(path), found) == ("a", steps, contents), text


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("ENV X two  words", "two  words"),
        ("ENV X=two\\ words", "two words"),
        ("""ENV X="two 'words'" """, "two 'words'"),
        ("""ENV X='$A'""", "$A"),
        ("ENV X=\\$A", "$A"),
        ("ENV X=$A-${A}_$AB", "value-value_"),
        ("ENV X=${NO:-d} Y=1", "d"),
        ("ENV X=${A:-d}", "value"),
        ("ENV X=${A:+more}", "more"),
        ("ENV X=${EMPTY-d}", ""),
        ("ENV X=${EMPTY:-${NO:-deep}}", "deep"),
        ("ENV X=${F%.*}", "a.tar"),
        ("ENV X=${F%%.*}", "a"),
        ("ENV X=${F#*.}", "tar.gz"),
        ("ENV X=${F##*.}", "gz"),
        ("ENV X=${F/tar/zip}", "a.zip.gz"),
        ("ENV A=bye X=$A", "value"),  # all of one ENV see what was before it
    ],
)
def test_variables_are_replaced_as_docker_does(line: str, value: str) -> None:
    assert environment(f"FROM scratch\nENV A=value EMPTY= F=a.tar.gz\n{line}\n")["X"] == value


def test_a_global_argument_is_seen_where_it_is_declared_again() -> None:
    text = "ARG V=1\nFROM a AS x\nENV BEFORE=$V\nARG V\nENV AFTER=$V\nFROM x\nENV INHERITED=$V\n"
    assert environment(text) == {"BEFORE": "${V}", "AFTER": "1", "INHERITED": "1"}
    assert environment(text, V="2")["INHERITED"] == "2"


def test_the_way_goes_through_stages_that_arguments_choose() -> None:
    path = build_path(SERVER)
    assert [stage.label for stage in path.stages] == ["base", "final"]
    assert path.base == "rocm/dev-ubuntu-24.04:6.4.4-complete"
    assert [stage.label for stage in path.needed] == ["fetch_1", "fetch", "wheels"]
    other = build_path(SERVER, "fetch", FROM_REMOTE="0", BASE_IMAGE="other:1")
    assert [stage.label for stage in other.stages] == ["base", "fetch_0", "fetch"]
    assert other.base == "other:1"


def test_a_trigger_runs_in_the_stage_that_starts_there_and_not_again() -> None:
    path = build_path("FROM a AS one\nONBUILD RUN trigger\nFROM one AS two\nRUN own\nFROM two\nRUN last\n")
    assert commands(path) == ["trigger", "own", "last"]


@pytest.mark.parametrize(("target", "stages"), [("0", ["x"]), ("x", ["x"]), ("1", ["1"]), (None, ["x", "last"])])
def test_a_target_is_a_name_or_a_number(target: str | None, stages: list[str]) -> None:
    assert [s.label for s in build_path("FROM a AS x\nFROM b\nFROM X AS last\n", target).stages] == stages


def test_a_platform_is_that_of_the_sites_unless_it_is_given() -> None:
    text = "FROM --platform=$TARGETPLATFORM base-${TARGETARCH}\nARG TARGETARCH\nENV A=$TARGETARCH\n"
    path = build_path(text)
    assert (path.base, path.platform, environment(text)) == ("base-amd64", "linux/amd64", {"A": "amd64"})
    assert build_path(text, TARGETARCH="arm64").base == "base-arm64"


def test_folders_and_shells_go_on() -> None:
    path = build_path('FROM a\nWORKDIR /x\nWORKDIR y/../z\nSHELL ["/bin/bash", "-c"]\nRUN one\n')
    assert text_of(path.steps[1].values[0][1] or ()) == "/x/z"
    assert path.steps[-1].shell == ("/bin/bash", "-c")


# ---- what is refused

REFUSED = {
    "empty": ("", "Dockerfile: has no FROM"),
    "unknown": ("FROM a\nRUM x\n", "Dockerfile:2: 'RUM' is not a Dockerfile instruction; did you mean RUN?"),
    "before FROM": ("ENV A=1\nFROM a\n", "Dockerfile:1: ENV before any FROM"),
    "no name": ("FROM a AS\n", "Dockerfile:1: FROM a AS"),
    "heredoc": ("FROM a\nRUN <<EOF\necho\n", "Dockerfile:2: the heredoc 'EOF' has no end"),
    "quote": ('FROM a\nENV A="x\n', "Dockerfile:2: a quote has no end"),
    "brace": ("FROM a\nENV A=${x\n", "Dockerfile:2: ${x has no closing brace"),
    "required": ('FROM a\nARG V\nENV A="${V:?say it}"\n', "Dockerfile:3: V is not set: say it; give it: --arg V=VALUE"),
    "no image": ("ARG V\nFROM $V\n", "Dockerfile:2: FROM $V names nothing"),
    "bomb": ("FROM scratch\nENV A=aaaaaaaa\n" + "ENV A=$A$A$A$A\n" * 12, "a value of more than"),
    "deep": ("FROM a\nENV A=" + "${A:-" * 2000 + "}" * 2000 + "\n", "Dockerfile:2: variables nested more than"),
    "many": ("FROM a\n" + "RUN a\n" * 2001, "Dockerfile:2001: more than 2000 instructions"),
    "stages": ("FROM a\n" * 301, "Dockerfile:301: more than 300 stages"),
    "large": ("#" * (FILE_LIMIT_BYTES + 1), f"larger than {FILE_LIMIT_BYTES} bytes"),
    "NUL": ("FROM a\nRUN \0\n", "Dockerfile:2: holds a NUL byte"),
    "twice": ("# escape=`\n# escape=`\nFROM a\n", "Dockerfile:2: the directive 'escape' is given twice"),
    "image": ("FROM a:b:c d e f\n", "Dockerfile:1: FROM a:b:c d e f"),
    "onbuild": ("FROM a\nONBUILD FROM b\n", "Dockerfile:2: ONBUILD FROM"),
}


@pytest.mark.threat
def test_what_cannot_be_read_is_one_line_with_its_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, (text, what) in REFUSED.items():
        Path("Dockerfile").write_text(text)
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
        (["--arg", "GPU_TARGET=gfx90a"], "--arg GPU_TARGET: no ARG of that name; did you mean GPU_TARGETS?"),
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


@pytest.mark.parametrize("copy", ["COPY it's /x", 'ADD "a /x', "COPY a", "COPY <<EOF /it's\ntext\nEOF"])
def test_a_copy_that_docker_refuses_is_refused(copy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "Dockerfile").write_text(f"FROM x\n{copy}\n")
    assert main(["draft", str(tmp_path / "Dockerfile")]) == ExitCode.BAD_INPUT
    error = capsys.readouterr().err
    assert "Dockerfile:2" in error
    assert "without an open quote" in error


def test_scratch_is_told_and_makes_no_layer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "Dockerfile"
    file.write_text("FROM scratch\nCOPY a /\n")
    assert told(capsys, str(file))["base"] is None
    assert main(["draft", str(file), "-o", str(tmp_path / "x")]) == ExitCode.BAD_INPUT
    assert "the stage is FROM scratch, so it has no base image for a layer" in capsys.readouterr().err


# ---- what the catalogue has


def test_base_software_and_gpus_are_recognised(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "Dockerfile"
    file.write_text(SERVER)
    data = told(capsys, str(file))
    assert data["schema"] == 1
    assert data["base"]["name"] == "rocm-6.4.4"
    assert [(e["layer"], e["version"], e["stage"]) for e in data["layers"]] == [("vllm", "0.12.0", "fetch")]
    assert data["layers"][0]["what"] == "git clone https://github.com/vllm-project/vllm.git at v0.12.0"
    gpus = {entry["name"]: entry["has_gfx90a"] for entry in data["architectures"]}
    assert gpus == {"GPU_TARGETS": False, "PYTORCH_ROCM_ARCH": False}
    assert main(["draft", str(file)]) == ExitCode.GOOD
    text = unwrapped(capsys.readouterr().out)
    assert "is the base rocm-6.4.4: --base rocm-6.4.4" in text
    assert "lumiimg explain --base rocm-6.4.4 --add vllm==0.12.0" in text
    assert "gfx942 gfx950; without gfx90a" in text
    assert main(["draft", str(file), "--arg", "GPU_TARGETS=gfx90a"]) == ExitCode.GOOD
    assert "without gfx90a" not in capsys.readouterr().out


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
        data = told(capsys, str(file))
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
    assert "the layer vllm brings part of it (line 2): take that out and --add vllm==0.10.1" in text
    for tag, near in (("6.9-complete", "rocm-6.4.4"), ("7.0.2-complete", "rocm-7.0"), ("latest", "rocm-10.0.0")):
        file.write_text(f"FROM rocm/dev-ubuntu-24.04:{tag}\nRUN pip install vllm\n")
        assert told(capsys, str(file))["base"]["near"][0] == near, tag


def test_what_the_base_has_is_not_proposed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "Dockerfile"
    file.write_text(
        "FROM rocm/pytorch:rocm7.2_ubuntu22.04_py3.10_pytorch_release_2.9.1\nRUN pip install torch deepspeed\n"
    )
    assert main(["draft", str(file)]) == ExitCode.GOOD
    text = capsys.readouterr().out
    assert re.search(r"pip install torch \(line 2, stage 0\); the base has it$", text, re.MULTILINE)
    assert "explain --base rocm-pytorch-2.9.1 --add deepspeed" in text


# ---- the draft


def test_a_draft_is_a_layer_that_can_be_shown_and_planned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, layers = tmp_path / "Dockerfile", tmp_path / "layers"
    file.write_text(SERVER)
    layers.mkdir()
    assert main(["draft", str(file), "-o", str(layers / "engine")]) == ExitCode.GOOD
    text = capsys.readouterr().out
    assert "2 places where its build ends until you see to it" in text
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


def test_the_script_says_what_it_cannot_do_and_ends_there(tmp_path: Path) -> None:
    script = (drafted(tmp_path, SERVER) / "post.sh").read_text()
    todo = re.findall(r"^todo '(line \d+: \w+): (.*)'$", script, re.MULTILINE)
    assert [place for place, _ in todo] == ["line 32: RUN", "line 33: COPY"]
    assert all("files of the stage wheels (line 28)" in why for _, why in todo)
    assert "not carried over: the steps behind it ran as nobody" in script
    assert "--mount=type=cache" not in script


def test_what_is_left_out_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "Dockerfile"
    for line, what, ends in (
        ("COPY a /b", "files of the build context: name them in `files` of layer.toml", True),
        ("COPY --from=one a /b", "files of the stage one (line 1)", True),
        ("COPY --from=host.example/x:1 a /b", "files of the image host.example/x:1", True),
        ("ADD https://host.example/a.git#v1 /b", "a repository or an address", True),
        ("RUN --mount=source=a,target=/b true", "--mount=source=a,target=/b: files of the build context", True),
        ("RUN --mount=type=secret,id=x,required=true true", "the secret of --mount=", True),
        ("RUN --mount=type=secret,id=x true", "the secret of --mount=", False),
        ("USER 1000:1000", "the steps behind it ran as 1000:1000", False),
        ("VOLUME /data", "bind a folder", False),
        ("HEALTHCHECK --interval=5m CMD true", "nothing monitors", False),
    ):
        file.write_text(f"FROM a AS one\nFROM b\n{line}\n")
        (entry,) = told(capsys, str(file))["left_out"]
        assert (entry["line"], entry["ends_build"]) == (3, ends), line
        assert entry["what"].startswith(what), line
    for line in ("USER root", "RUN --mount=type=cache,target=/x true", "RUN --network=none true"):
        file.write_text(f"FROM a\n{line}\n")
        assert told(capsys, str(file))["left_out"] == [], line


SECRETS = """\
FROM rocm/pytorch:latest
ARG GIT_TOKEN=c4nary01
ARG PLAIN=c4nary02
ARG CI_TOKEN
ENV MY_PASSWORD=c4nary03 API=https://me:c4nary04@host.example/x WANDB_API_KEY=$PLAIN PORT=1
ENV COPIED="--user $MY_PASSWORD" SHORT_KEY=k3
ENV MADE=x-$SHORT_KEY ALSO=c4nary03
RUN git clone https://token:c4nary05@host.example/x
RUN export HF_TOKEN=c4nary06 && echo hi
RUN curl -H "X-Key: $WANDB_API_KEY" host.example
RUN --mount=type=secret,id=hf HF_TOKEN=$(cat /run/secrets/hf) true
RUN echo c4nary03 > /etc/word
RUN <<EOF
curl https://me:c4nary07@host.example/
EOF
RUN ["sh", "-c", "login --password=c4nary08"]
COPY <<EOF /etc/settings
password = $MY_PASSWORD
EOF
ADD https://host.example/file?sig=c4nary09 /opt/file
ADD https://me:c4nary10@host.example/file /opt/file
LABEL token=c4nary11
CMD ["serve", "--api-key", "c4nary12"]
ONBUILD ENV NEXT_TOKEN c4nary13
ENV MY_PASSWORD=
RUN echo "${MY_PASSWORD}done"
ARG PLACE=me:0f-them@host.example
ADD https://$PLACE/x /opt/x
"""


@pytest.mark.threat
def test_a_draft_leaves_secrets_out_and_says_which_and_where(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, folder = tmp_path / "Dockerfile", tmp_path / "layers" / "drafted"
    file.write_text(SECRETS)
    said = ""
    for argv in (["draft", str(file)], ["draft", str(file), "--json"], ["draft", str(file), "-o", str(folder)]):
        assert main(argv) == ExitCode.GOOD
        said = "".join(capsys.readouterr())
        assert "c4nary" not in said
        assert "k3" not in said
        assert "API, MY_PASSWORD, WANDB_API_KEY, left out" in " ".join(said.split())
    lines = {int(line): what for line, what in re.findall(r"line (\d+) \w+: (\S+ \S+)", said)}
    assert lines == {
        2: "GIT_TOKEN, left",
        3: "PLAIN, left",
        5: "API, MY_PASSWORD,",
        6: "COPIED, SHORT_KEY,",
        7: "ALSO, MADE,",
        8: "holds a",
        9: "holds a",
        10: "uses WANDB_API_KEY,",
        12: "holds a",
        13: "holds a",
        16: "holds a",
        17: "uses MY_PASSWORD,",
        20: "holds a",
        21: "holds a",
        22: "holds a",
        23: "holds a",
        24: "holds a",
        28: "holds a",
    }
    for written in folder.iterdir():
        assert "c4nary" not in written.read_text()
    script = (folder / "post.sh").read_text()
    assert re.findall(r"^todo 'line (\d+)", script, re.MULTILINE) == [
        str(n) for n in lines if n not in {2, 3, 5, 6, 7, 22, 23, 24}
    ]
    assert "HF_TOKEN=$(cat /run/secrets/hf)" in script
    assert 'echo "${MY_PASSWORD}done"' in script
    layer = shown(folder, capsys)
    assert layer["environment"]["set"] == {"PORT": "1"}
    assert list(layer["arguments"]) == ["CI_TOKEN", "PLACE"]


def test_what_only_sounds_like_a_secret_stays_in_a_draft(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "Dockerfile"
    file.write_text(
        "FROM a\nENV TOKENIZERS_PARALLELISM=false PWD=/x MAX_TOKENS=4096 SSL_KEY_FILE=/x POSTGRES_PASSWORD=postgres\n"
        "ENV API_KEY=$KEY_OF_THE_BASE HF_TOKEN=\n"
        "RUN sort --key=2 a && apt-get install postgres && git clone git+ssh://git@host.example/x\n"
        'RUN API_KEY="$(cat /k)" && pip install auth==1.0 && echo KEYBOARD=us\n'
        "LABEL org.example.keywords=a\n"
    )
    (left,) = [entry["what"] for entry in told(capsys, str(file))["left_out"] if "secret" in entry["what"]]
    assert left.startswith("POSTGRES_PASSWORD, left out as a secret, by name or value; give it to the job")


def test_the_script_is_clean(tmp_path: Path) -> None:
    needs("shellcheck")
    script = drafted(tmp_path, SERVER) / "post.sh"
    done = subprocess.run(["shellcheck", "-s", "bash", str(script)], capture_output=True, text=True, check=False)
    assert done.stdout == ""


def outcome(script: Path, **variables: str) -> str:
    """Run a script as the build would; its steps print."""
    argv = ["bash", "-euo", "pipefail", str(script)]
    env = {"PATH": os.environ["PATH"], **variables}
    return subprocess.run(argv, env=env, capture_output=True, text=True, check=True).stdout


STEPS = {
    "break in quotes": ("echo 'a \\\n  b'", "a   b"),  # Docker takes the break out before the shell sees it
    "break in double quotes": ('echo "a \\\n  b"', "a   b"),
    "break in a comment": ("echo a \\\n  # no\n  b # 'c \\\n  d", "a b"),
    "command in quotes": ('echo "$(printf %s x)" \\\n y', "x y"),
    "quotes in a command in quotes": ("echo \"$(printf '%s' 'x \\\n y')\"", "x  y"),
    "section": ("printf '%s|' \\\n%runscript", "%runscript|"),
    "build argument": ("echo '{{ word }}'", "{{ word }}"),
    "heredocs": ("cat <<A ; cat <<'B'\n$X 1\nA\n$X 2\nB", "value 1\n$X 2"),
    "heredoc alone": ("<<EOF\necho $X\necho two\nEOF", "value\ntwo"),
    "heredoc with an interpreter": ("<<EOF\n#!/usr/bin/env bash\necho ${BASH_VERSION:+bash}\nEOF", "bash"),
    "heredoc that ends as ours does": ("<<EOF\n: <<'RUN_4'\nRUN_4\necho one\nEOF", "one"),
    "no JSON": ("[ -d / ] && echo y", "y"),
    "JSON": ('["printf", "%s,", "$X", "a b"]', "$X,a b,"),
    "no -e": ("false; echo on", "on"),
    "bash's own variable": ("cat; echo uid $UID", "uid 77"),
    "letters": ("echo \u00e9 '\t'", "\u00e9 \t"),
}


@pytest.mark.parametrize(("step", "printed"), STEPS.values(), ids=STEPS.keys())
def test_a_step_does_what_it_does_under_docker(step: str, printed: str, tmp_path: Path) -> None:
    folder = drafted(tmp_path, f"FROM a\nENV X=value\nARG UID=77\nRUN {step}\n")
    assert outcome(folder / "post.sh").rstrip("\n") == printed


WORDS = [
    "echo ",
    "a",
    " ",
    "'",
    '"',
    "$X",
    "\\",
    "\\\\",
    "#",
    " # ",
    ";",
    " && ",
    "$(echo ",
    ")",
    "`",
    "{{",
    "%",
    " \\\n",
    " \\\n  # c\n",
]


@given(words=st.lists(st.sampled_from(WORDS), max_size=25))
@settings(deadline=None, max_examples=examples(12), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_shell_gets_the_words_that_docker_gives_it(words: list[str], tmp_path: Path) -> None:
    text = f"FROM a\nENV X=value\nRUN echo {''.join(words)}\n"
    shutil.rmtree(tmp_path / "layers", ignore_errors=True)
    script = drafted(tmp_path, text) / "post.sh"
    (command,) = commands(build_path(text))
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
ENV FLAGS="$FLAGS -a"
ENV FLAGS="$FLAGS -b" SAVED=$ONE
ENV ONE=env
ENV LATER="$SAVED it's \\"quoted\\" \\$HOME `x`"
RUN echo "$FLAGS|$SAVED|$ONE|$LATER|${none-unset}"
"""
    folder = drafted(tmp_path, text)
    assert outcome(folder / "post.sh", ONE="9", FLAGS="-O") == '-O -a -b|9|env|9 it\'s "quoted" $HOME `x`|unset\n'


def test_the_path_of_the_fabric_is_added_to_and_never_replaced(tmp_path: Path) -> None:
    text = "FROM a\nENV LD_LIBRARY_PATH=/x/lib PATH=/x/bin BLANK=' '\nRUN echo $LD_LIBRARY_PATH\nENV LD_LIBRARY_PATH=$ELSE/lib\n"
    folder = drafted(tmp_path, f"{text}RUN echo $LD_LIBRARY_PATH\n")
    path = os.environ["PATH"]
    done = outcome(folder / "post.sh", LD_LIBRARY_PATH="/fabric", PATH=path, ELSE="/y")
    assert done == "/x/lib:/fabric\n/y/lib:/x/lib:/fabric\n"
    layer = (folder / "layer.toml").read_text()
    assert '[environment.prepend]\nPATH = "/x/bin"' in layer
    assert "[environment.set]" not in layer
    assert "# LD_LIBRARY_PATH: set while this is built only" in layer
    assert "# BLANK: empty in the Dockerfile's image" in layer


def test_files_in_the_dockerfile_are_carried_over(tmp_path: Path) -> None:
    text = f"FROM a\nARG Y=1\nENV X=$Y\nWORKDIR {tmp_path}/with\\ blank\nCOPY <<A <<'B' sub/\n$X\n%x\nA\n$X\nB\nRUN cat sub/*\n"
    assert outcome(drafted(tmp_path, text) / "post.sh", Y="2") == "2\n%x\n$X\n"


def test_a_download_becomes_a_source_of_the_layer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    digest = "ab" * 32
    text = f"FROM a\nARG V=1.2\nADD --checksum=sha256:{digest} https://host.example/a-$V.tar.gz?x /tmp/\n"
    folder = drafted(tmp_path, text)
    source = {"url": "https://host.example/a-{V}.tar.gz?x", "sha256": {"1.2": digest}}
    assert shown(folder, capsys)["sources"] == {"add-3": source}
    assert 'install -D -m 600 -- "$SOURCE_ADD_3" /tmp/a-1.2.tar.gz' in (folder / "post.sh").read_text()


def test_an_argument_that_decided_something_is_fixed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "ARG ARCH=gfx90a-x\nFROM a AS gfx90a-x\nFROM ${ARCH}\nARG ARCH\nARG OTHER=1\nENV LIST=${ARCH%-*}\n"
    data = shown(drafted(tmp_path, text), capsys)
    assert list(data["arguments"]) == ["OTHER"]
    assert data["environment"]["set"] == {"LIST": "gfx90a"}


# ---- hostile


@pytest.mark.threat
def test_control_characters_reach_no_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "Dockerfile"
    evil = "\x1b[2J\u202e"
    file.write_text(
        f"FROM a\nARG A={evil}\nENV B={evil}\nRUN echo {evil}\nCOPY {evil} /\nLABEL {evil}=1\nUSER {evil}\n"
    )
    for argv in (["draft", str(file)], ["draft", str(file), "-o", str(tmp_path / "x")]):
        assert main(argv) == ExitCode.GOOD
        captured = capsys.readouterr()
        assert not set(captured.out + captured.err) & set("\x1b\u202e")
    for written in (tmp_path / "x").iterdir():
        assert all(c.isprintable() or c in "\n\t" for c in written.read_text())


@pytest.mark.parametrize(
    "text",
    [
        "FROM a\nENV A=$(touch${IFS}MARK)\nRUN true\n",
        "FROM a\nARG A='`touch MARK`'\nENV B=$A\n",
        "FROM a\nENV A=';touch MARK;'\nLABEL a=';touch MARK'\n",
        "FROM a\nCOPY <<X /dev/null\n$(touch MARK)\nX\n",
        'FROM a\nENV A="${PATH:-$(touch MARK)}"\n',
        'FROM a\nCOPY "\'$(touch MARK)" /x\n',
    ],
)
@pytest.mark.threat
def test_no_value_becomes_a_command(text: str, tmp_path: Path) -> None:
    """Neither when it is drafted nor when the draft is run: only RUN is code."""
    mark = tmp_path / "mark"
    script = drafted(tmp_path, text.replace("MARK", str(mark))) / "post.sh"
    script.write_text(script.read_text().replace("\ncd /\n", f"\ncd {tmp_path}\n"))
    subprocess.run(["bash", "-euo", "pipefail", str(script)], cwd=tmp_path, capture_output=True, check=False)
    assert not mark.exists()


@pytest.mark.threat
def test_a_pattern_of_stars_is_not_slow() -> None:
    stars = "*a" * 100
    text = f"FROM a\nARG A={'a' * 8000}\nENV B=${{A%%{stars}b}}\nENV C=${{A##{stars}b}}\nENV D=${{A%%b{stars}}}\n"
    began = time.monotonic()
    assert {len(environment(text)[name]) for name in "BCD"} == {8000}
    assert time.monotonic() - began < patient(5)


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
    path = build_path(text)
    assert recipe.fromHeader == path.base
    ours: list[str] = []
    for step in path.steps:
        if step.keyword == "RUN":
            ours.append(step.instruction.text)
        elif step.keyword == "ENV":
            ours += [f"{name}={text_of(value or ())}" for name, value in step.values]
        elif step.keyword == "WORKDIR":
            folder = text_of(step.values[0][1] or ())
            ours += [f"mkdir -p {folder}", f"cd {folder}"]
    assert recipe.install == ours
    assert recipe.files == [
        [text_of(value or ()) for _, value in step.values] for step in path.steps if step.keyword == "COPY"
    ]
    starts = [list(step.instruction.words or ()) for step in path.steps if step.keyword == "CMD"]
    assert recipe.cmd == (starts[0] if starts else None)
