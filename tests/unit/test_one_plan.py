"""One plan for every command that takes a request: what `explain` says, `build`, `lock` and `adapt` do."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import shlex
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, event, example, given, settings
from hypothesis import strategies as st

from lumiimg.catalog.catalogue import open_catalogue
from lumiimg.cli.main import main
from lumiimg.core.errors import ExitCode
from lumiimg.host.scan import scan_host
from lumiimg.host.snapshot import write_snapshot
from lumiimg.image import open_image
from tests.shared import fabric_builder
from tests.shared.layer_builder import BASE, LAYER
from tests.shared.programs import examples, unwrapped

CATALOGUE = open_catalogue({"HOME": "/nonexistent"})
TOKEN = "hf_" + "Canary9" * 5
SLOW = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
FREE = (
    LAYER + '[arguments.NOTE]\ndefault = ""\nhelp = "free text"\n[environment.set]\nNOTE = "{NOTE}"\n'
    '[sources.one]\nurl = "https://h.test/t.tar.gz"\nfile = "t.tar.gz"\nkey = "one"\nsource = "s"\n'
)
"""A layer of the user that accepts any text."""
TELLING = f'{LAYER}[environment.set]\nA_TOKEN = "{TOKEN}"\n'
"""A layer of the user that cannot be built, as it contains a secret."""
_COMMAND = re.compile(r"lumiimg (?:build|explain) .*?(?=\)?$)", re.MULTILINE)


class Answer(NamedTuple):
    """The result of a command."""

    code: int
    out: str
    err: str


def answer(*words: str) -> Answer:
    """Run a command; assert that it prints no secret, and that an error is one line."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(words)
        except SystemExit as error:
            code = int(error.code or 0)
    # without the line that names the machine, which may differ between commands
    lines = [line for line in err.getvalue().splitlines(keepends=True) if not line.startswith("lumiimg: for ")]
    found = Answer(code, out.getvalue(), "".join(lines))
    assert "Canary9" not in found.out + found.err, words
    if code == ExitCode.BAD_INPUT:
        assert (found.out, found.err.count("\n")) == ("", 1), found
    assert code in {*ExitCode}, found
    return found


def proposals(shown: Answer) -> list[list[str]]:
    """Return the commands that an answer proposes, as words."""
    return [shlex.split(command)[1:] for command in _COMMAND.findall(shown.out + shown.err)]


def dry(command: list[str]) -> Answer:
    """Run a proposed command without building anything."""
    at = command.index("-o") if "-o" in command else len(command)
    return answer(*command[:at], *(["--dry-run"] if command[0] == "build" else []))


@pytest.fixture
def everything_there(tmp_path: Path, clean_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with everything that options can name."""
    del clean_home
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LUMIIMG_CACHE", str(tmp_path / "cache"))
    for name, toml in (("own-base", BASE), ("free", FREE), ("telling", TELLING)):
        (tmp_path / "own" / name).mkdir(parents=True)
        (tmp_path / "own" / name / "layer.toml").write_text(toml)
        (tmp_path / "own" / name / "post.sh").write_text("true\n")
    fabric_builder.image(tmp_path / "image", glibc=39)
    with open_image(fabric_builder.host(tmp_path / "host")) as opened:
        write_snapshot(scan_host(os.environ, root=opened.root), tmp_path / "host.json")
    (tmp_path / "host.json.bad").write_text("{}")
    (tmp_path / "t.tar.gz").write_bytes(b"an archive")
    (tmp_path / "-mine.toml").write_text(
        'summary = "s"\nbase = "rocm-6.4.4"\nadd = ["netprobe"]\nsite = "lumi"\nfabric = "bundled"\n'
    )
    return tmp_path


ARGUMENTS = [
    f"{name}.{argument}"
    for name in ("vllm", "aws-ofi-nccl", "fabric-bundled", "apex", "mpi4py")
    for argument in CATALOGUE.layer(name).arguments
]
VALUES = ("", "gfx90a", "gfx942", "1.18.0", "/opt/x", "a b'\"$(x)", "a\nb", "x" * 5000, "0" * 40, TOKEN)
PINS = {"vllm": ("0.10.1", "0.12.0", "9.9"), "pytorch": ("2.7.1", "2.9.1"), "aws-ofi-nccl": ("1.18.0", "1.17.3")}
LAYERS = [
    *("vllm", "pytorch", "sglang", "apex", "mpi4py", "netprobe", "fabric-host", "fabric-bundled", "aws-ofi-nccl"),
    *("aws-ofi-rccl", "deepspeed", "free", "telling", "vlm", "vllm=0.1", "debian-13", f"x{TOKEN}"),
    *(f"{name}=={version}" for name, versions in PINS.items() for version in versions),
]
DIGEST = hashlib.sha256(b"an archive").hexdigest()
SOURCES = [
    *("one=t.tar.gz", f"one=t.tar.gz#sha256={DIGEST}", f"one=t.tar.gz#sha256={'0' * 64}", "one=nowhere.tar.gz"),
    *("one=https://h.test/other.tar.gz", f"one=https://me:{TOKEN}@h.test/x", "two=t.tar.gz", "one", "=x"),
    *("aws-ofi-nccl=t.tar.gz", "host-libfabric=t.tar.gz", f"one={TOKEN}.tar.gz"),
]
MIRRORS = ["debian=https://h.test/debian", "docker.io=localhost:1", "x", f"debian=https://me:{TOKEN}@h.test", "pypi=-x"]
HOW = [
    *([], ["--downloads", "2"], ["--offline"]),
    *(["--strategy", "sandbox"], ["-o", "other.sif", "--force"], ["--verbose"]),
]
"""Options that do not change the plan."""
BASES = [*CATALOGUE.base_names(), "own-base", "./image", "nowhere", "./host.json", "vllm", f"docker://me:{TOKEN}@h/x"]
_USUAL = st.sampled_from(["rocm-6.2.4", "rocm-6.4.4", "rocm-7.0", "./image"])


def several(option: str, values: st.SearchStrategy[str], most: int) -> st.SearchStrategy[list[str]]:
    """Return a strategy for an option that may be repeated."""
    return st.lists(values, max_size=most).map(lambda found: [word for value in found for word in (option, value)])


def once(option: str, values: list[str]) -> st.SearchStrategy[list[str]]:
    """Return a strategy for an option, left out in half of all cases; `-x` is a value only after an equals sign."""
    given_ = st.sampled_from(values).map(lambda v: [f"{option}={v}"] if v.startswith("-") else [option, v])
    return st.one_of(st.just([]), given_)


@st.composite
def requests(draw: st.DrawFn) -> list[str]:
    """Return the options of a request, most of which make sense."""
    arguments = st.tuples(st.sampled_from(ARGUMENTS), st.sampled_from(VALUES)).map("=".join)
    wrong = st.sampled_from(
        ["vllm.NOPE=1", "NOPE=1", "vllm.ARCH", f"my.HF_TOKEN={TOKEN}", f"x={TOKEN} y", "free.NOTE=b"]
    )
    parts = (
        draw(st.one_of(_USUAL, _USUAL, st.sampled_from(BASES)).map(lambda base: ["--base", base])),
        draw(st.one_of(st.just([]), once("--recipe", ["lumi-vllm", "demo", "-mine.toml", "nope"]))),
        draw(several("--add", st.sampled_from(LAYERS), 3)),
        draw(st.one_of(st.just([]), several("--arg", st.one_of(arguments, arguments, wrong), 2))),
        draw(st.one_of(st.just([]), several("--source", st.sampled_from(SOURCES), 1))),
        draw(st.one_of(st.just([]), several("--mirror", st.sampled_from(MIRRORS), 1))),
        draw(st.one_of(st.just(["--layers", "own"]), once("--layers", ["nowhere"]))),
        draw(once("--fabric", ["auto", "host", "bundled", "none"])),
        draw(st.one_of(st.just(["--site", "lumi"]), once("--site", ["generic", "alps", "frontier", "lumy"]))),
        draw(st.one_of(st.just([]), once("--host", ["host.json", "host.json.bad", "nowhere"]))),
    )
    return [word for part in parts for word in part]


@settings(max_examples=examples(4), deadline=None, suppress_health_check=SLOW)
@given(words=requests(), how=st.sampled_from(HOW))
@example(how=[], words=["--base", "rocm-6.4.4", "--add", "vllm", "--arg", "vllm.NOPE=1", "--site", "lumi"])
@example(how=[], words=["--base", "own-base", "--add", "free", "--layers", "own", "--arg", "free.NOTE=a\nb"])
@example(how=[], words=["--base", "lumi-pytorch-6.2.4", "--add", "vllm", "--layers", "own", "--site", "lumi"])
@example(how=[], words=["--base", "rocm-6.2.4", "--mirror", "x", "--layers", "nowhere", "--site", "lumi"])
@example(how=[], words=["--base", "./image", "--layers", "nowhere", "--site", "lumy"])
@example(how=[], words=["--base", "./image", "--arg", "NOPE=1", "--site", "lumy"])
@example(how=[], words=["--base", "./image", "--mirror", "x", "--host", "host.json.bad", "--site", "lumi"])
@example(how=[], words=["--recipe=-mine.toml"])
@example(how=["--offline"], words=["--base", "rocm-7.2.1", "--add", "aws-ofi-rccl", "--fabric", "bundled"])
@example(
    how=[], words=["--base", "rocm-6.4.4", "--add", "sglang", "--site", "lumi", "--source", "host-libfabric=t.tar.gz"]
)
def test_what_explain_says_is_what_every_command_does(words: list[str], how: list[str], everything_there: Path) -> None:
    del everything_there
    report = answer("explain", *words)
    built = answer("build", *words, *how, "--dry-run")
    event(f"exit code {report.code}")
    assert report.code == built.code, (report, built)
    others = [answer("lock", "--offline", *words), answer("build", "--why", "nothing", "--quiet", *words)]
    if (
        words[:2] == ["--base", "./image"]
        and "--site" in words
        and not any(word.startswith("--recipe") for word in words)
    ):
        others.append(answer("adapt", "./image", *words[2:], "--quiet", "--dry-run"))
    match ExitCode(report.code):
        case ExitCode.BAD_INPUT:
            assert all(other.err.replace("lumiimg lock", "") == report.err for other in (built, *others))
        case ExitCode.NO:
            refusal = built.err.removeprefix("lumiimg: ").partition(" (rule ")[0]
            assert unwrapped(refusal) in unwrapped(report.out)
            answers = [(other.code, other.err.replace("lumiimg lock", "lumiimg build")) for other in others]
            assert all(one == (built.code, built.err) for one in answers)
        case ExitCode.MISSING_HERE:
            assert unwrapped(built.err.removeprefix("lumiimg: ")) in unwrapped(report.out)
            assert all(other.err == built.err for other in others)
        case _:
            assert others[0].code == 0 or "--offline" in others[0].err
    accepted = {0, report.code} - {1}
    if report.code == ExitCode.NO and "on a machine that has its base" in unwrapped(report.out):
        accepted.add(ExitCode.MISSING_HERE)
    for command in proposals(report) + proposals(built):
        again = dry(command)
        assert again.code in ({0, 1} if command[0] == "explain" else accepted), (command, again)


def test_no_option_repeats_a_secret_of_the_environment(everything_there: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A secret of unknown shape is also recognized by the variable that contains it."""
    del everything_there
    secret = "Canary9" * 3
    monkeypatch.setenv("OUR_API_KEY", secret)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-north-1")
    explain = ["explain", "--base", "own-base", "--add", "free", "--layers", "own"]
    for words in (
        explain,
        ["build", "--why", "free", *explain[1:]],
        ["adapt", "./image", "--site", "lumi", *explain[3:]],
    ):
        for option in (
            ["--arg", f"free.NOTE=a {secret} b"],
            ["--source", f"one=https://h.test/{secret}/t.tar.gz#sha256={DIGEST}"],
            ["--mirror", f"debian=https://h.test/{secret}/debian"],
        ):
            assert answer(*words, *option).code == ExitCode.BAD_INPUT
    honest = ["--mirror", "debian=https://x.eu-north-1.test/debian", "--arg", "free.NOTE=eu-north-1"]
    assert answer(*explain, *honest).code == ExitCode.GOOD
