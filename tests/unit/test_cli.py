"""The program as users see it: help, one-line errors, exit codes, light start-up."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lumiimg.cli.commands import COMMANDS, GROUPS, make_parser
from lumiimg.cli.main import FAULT, main, parse
from lumiimg.core.errors import ExitCode, LumiimgError, one_line
from lumiimg.engine.engine import engine_word
from tests.shared.layer_builder import BASE, LAYER, MakeLayer
from tests.shared.programs import HEAVY, loaded_after_each, unwrapped

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lumiimg.cli.parser import Parser

FIXTURES = Path(__file__).parents[1] / "fixtures"


def test_what_starts_often_imports_nothing_heavy() -> None:
    log = str(FIXTURES / "nccl" / "rccl-2.13.4-plugin-absent.log")
    helps = [("--help",), ("--version",), *((name, "--help") for name in COMMANDS)]
    recipe = ("build", "--recipe", "demo", "--dry-run")
    for argv, loaded in loaded_after_each([*helps, ("log", log), ("log", log, "--json"), recipe]).items():
        assert "lumiimg.cli.main" in loaded, argv
        # msgspec reads the files of a catalogue, and packaging compares their versions
        assert not loaded & (set(HEAVY) - ({"msgspec", "packaging"} if argv == recipe else set())), argv

        if argv[0] not in {"--help", "--version", "log"} or "--help" in argv[1:]:
            continue  # help imports no room, and a log neither engines nor images
        rooms = {name.split(".")[1] for name in loaded if name.startswith("lumiimg.")}
        assert not rooms & {"build", "cluster", "definition", "elf", "engine", "host", "image", "resolve"}, argv
        assert argv[0] == "log" or rooms <= {"cli", "core"}, argv
        assert argv[0] == "log" or not loaded & {f"lumiimg.cli.{name}" for name in COMMANDS}, argv


def test_each_command_explains_itself_within_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    for name in COMMANDS:
        with pytest.raises(SystemExit) as caught:
            main([name, "--help"])
        assert caught.value.code == 0
        text = capsys.readouterr().out
        assert "usage: " in text, name
        assert max(map(len, text.splitlines())) <= 80, name


def test_the_help_of_each_command_and_action_says_what_each_exit_code_means() -> None:
    for name in COMMANDS:
        parser = make_parser().below[name]
        assert {"0"} <= {*parser.exits} <= {*map(str, map(int, ExitCode)), "of several images,"}, name
        for one in (parser, *parser.below.values()):
            end = unwrapped(one.format_help().partition("exit codes: ")[2])
            assert end == unwrapped(" ".join(f"{code} {sentence}" for code, sentence in parser.exits.items())), one.prog


def test_all_commands_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    text = capsys.readouterr().out
    assert all(len(re.findall(rf"^  {name} ", text, re.MULTILINE)) == 1 for name in COMMANDS)
    assert re.findall(r"^([a-z ]+):$", text, re.MULTILINE)[:-1] == list(GROUPS)


def test_list_is_show_without_a_name(capsys: pytest.CaptureFixture[str]) -> None:
    def printed(*words: str) -> str:
        assert main(list(words)) == ExitCode.GOOD
        return capsys.readouterr().out

    assert printed("list") == printed("show")
    assert printed("list", "--json") == printed("show", "--json")
    assert printed("list", "lumi") == printed("show", "lumi")


@pytest.mark.parametrize(
    ("here", "named", "word"),
    [
        ("apptainer singularity", "", "apptainer"),
        ("singularity", "", "singularity"),
        ("singularity", "namespaces", "singularity"),
        ("apptainer singularity", "singularity", "singularity"),
        ("", "", "apptainer"),
    ],
)
@pytest.mark.usefixtures("clean_home")
def test_a_command_that_is_proposed_is_of_the_engine_that_is_here(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    here: str,
    named: str,
    word: str,
) -> None:
    for name in here.split():
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("LUMIIMG_ENGINE", named)
    for argv, proposed in (
        (["check", "library://rocm/pytorch:latest"], f"; {word} pull image.sif library://rocm/pytorch:latest"),
        (
            ["adapt", "library://rocm/vllm:x", "--site", "lumi"],
            f"; fetch it first: {word} pull image.sif library://rocm/vllm:x; then name image.sif",
        ),
        (["build", "--base", "docker://me:secret@x.test/a"], f"`{word} registry login`"),
        (["build", "--base", "docker://a/b@nothing"], f"`{word} registry login`"),
    ):
        assert main(argv) == ExitCode.BAD_INPUT
        assert proposed in capsys.readouterr().err


REFUSED = tomllib.loads((FIXTURES / "refused.toml").read_text())
STAND_FOR = {"{engine}": engine_word(), "{python}": sys.executable, "{long}": "x" * 300, "{huge}": "x" * 100_000}


def stood_for(text: str) -> str:
    for name, value in STAND_FOR.items():
        text = text.replace(name, value)
    return text


@pytest.mark.usefixtures("clean_home")
@pytest.mark.parametrize("kind", ["usage", "input"])
def test_wrong_usage_and_bad_input_are_one_line_and_exit_2(
    kind: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    before = sorted(tmp_path.rglob("*"))
    for row in REFUSED[kind].items():
        line, what = map(stood_for, row)
        try:
            code = main(shlex.split(line))
        except SystemExit as leaving:
            code = int(leaving.code or 0)
        assert code == ExitCode.BAD_INPUT, line
        captured = capsys.readouterr()
        assert captured.out == "", line
        assert captured.err.count("\n") == 1, line
        assert what in captured.err, line
        assert "node?" not in captured.err, "the command that is for lumiimg itself"
        assert sorted(tmp_path.rglob("*")) == before, f"{line}: something was left"


@pytest.mark.usefixtures("clean_home")
def test_neither_an_output_nor_a_log_of_somebody_elses_is_written_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output, log = tmp_path / "it's mine.sif", tmp_path / "x.sif.log"
    for file, target, expected in (
        (output, output, "exists already; -o names another file, --force replaces it"),
        (log, tmp_path / "x.sif", "is not a build log"),
    ):
        file.write_text("precious")
        assert main(["build", "--recipe", "demo", "-o", str(target)]) == ExitCode.BAD_INPUT
        assert expected in capsys.readouterr().err
        assert file.read_text() == "precious"


@pytest.mark.usefixtures("clean_home")
def test_a_dry_run_needs_no_engine_and_says_what_it_would_take(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    argv = ["build", "--base", "debian-13", "--add", "aws-ofi-nccl", "--mirror", "debian=http://m/debian", "--dry-run"]
    assert main(argv) == ExitCode.GOOD
    text = capsys.readouterr().out
    assert "debian-13" in text
    assert "sha256 " in text
    assert main([*argv, "--json"]) == ExitCode.GOOD
    data = json.loads(capsys.readouterr().out)
    assert data["schema"] == 1
    assert [layer["name"] for layer in data["plan"]["layers"]] == ["debian-13", "aws-ofi-nccl"]
    assert "Bootstrap: localimage" in data["definitions"][1]["text"]


@pytest.mark.usefixtures("clean_home")
def test_definitions_are_written_with_all_that_they_need(
    make_layer: MakeLayer, layers: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_layer("base", BASE)
    make_layer("tool", LAYER + 'files = ["tool.c"]\n', tool_c="int main;\n")
    folder = tmp_path / 'it\'s "a" folder'
    argv = ["build", "--layers", str(layers), "--base", "base", "--add", "tool", "--definitions", str(folder)]
    assert main(argv) == ExitCode.GOOD
    output = capsys.readouterr().out
    assert "cd " in output
    commands = [line.strip() for line in output.splitlines() if " build --fakeroot" in line]
    assert commands == [
        f"{engine_word()} build --fakeroot 01-base.sif 01-base.def",
        f"{engine_word()} build --fakeroot 02-tool.sif 02-tool.def",
        f"{engine_word()} build --fakeroot image.sif flat.def",
    ]
    written = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    assert written == ["01-base.def", "02-tool.def", "files/tool/files/tool.c", "flat.def"]
    assert main(argv) == ExitCode.BAD_INPUT, "a folder with something in it is not written to by surprise"
    capsys.readouterr()
    assert main([*argv, "--force", "--mirror", "docker.io=http://localhost:5000"]) == ExitCode.GOOD
    # Without the option the engine expects TLS of a registry; only the first of the chain needs a registry.
    plain = [line.split()[-1] for line in capsys.readouterr().out.splitlines() if "--fakeroot --no-https" in line]
    assert plain == ["01-base.def", "flat.def"]
    assert main([*argv, "--force", "--mirror", "docker.io=http://registry.example"]) == ExitCode.NO
    assert "would be fetched without TLS" in capsys.readouterr().err


@pytest.mark.usefixtures("clean_home", "no_namespaces")
def test_without_an_engine_a_build_says_what_is_missing_and_exits_4(
    make_layer: MakeLayer,
    layers: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make_layer("base", BASE)
    monkeypatch.setenv("PATH", str(tmp_path))
    argv = ["build", "--layers", str(layers), "--base", "base", "-o", str(tmp_path / "x.sif")]
    assert main(argv) == ExitCode.MISSING_HERE
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "apptainer: not found" in error
    assert "singularity: not found" in error
    assert "install Apptainer" in error
    # a program of that name that fails at once is not taken for an engine
    broken = tmp_path / "singularity"
    broken.write_text("#!/bin/sh\necho 'bad library' >&2\nexit 127\n")
    broken.chmod(0o755)
    assert main(argv) == ExitCode.MISSING_HERE
    assert "exit 127, bad library" in capsys.readouterr().err
    assert not (tmp_path / "x.sif").exists()


@pytest.mark.usefixtures("clean_home")
def test_definitions_are_written_whole_or_not_at_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lumiimg.fetch.connection._PAUSE_S", 0.0)  # between attempts
    folder = tmp_path / "defs"
    argv = ["build", "--base", "debian-13", "--add", "aws-ofi-nccl==1.19.0", "--definitions", str(folder), "--quiet"]
    argv += ["--mirror", "debian=http://m/debian", "--mirror", "https://github.com=http://127.0.0.1:9"]
    assert main(argv) == ExitCode.MISSING_HERE
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "127.0.0.1:9" in error
    assert not folder.exists()


@pytest.mark.usefixtures("clean_home")
def test_list_shows_what_is_broken_as_broken_and_the_others_as_they_are(
    make_layer: MakeLayer, layers: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_layer("good", LAYER)
    make_layer("oops", 'kind = "lair"\n')
    for name in ("Cap", "sp ace", "--"):
        make_layer(name, LAYER)
    for name, file in (("waiting", "layer.toml"), ("script", "post.sh")):
        folder = make_layer(name, LAYER)
        (folder / file).unlink()
        os.mkfifo(folder / file)
    assert main(["list", "--layers", str(layers), "--json"]) == ExitCode.GOOD
    entries = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)["entries"]}
    assert (entries["good"]["kind"], entries["demo"]["kind"]) == ("layer", "recipe")
    assert {entries[name]["kind"] for name in ("oops", "Cap", "sp ace", "--", "waiting", "script")} == {"broken"}
    assert "allowed: base, layer" in entries["oops"]["summary"]


def test_output_into_a_closed_pipe_is_no_traceback() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    with os.fdopen(write_end, "wb") as gone:
        done = subprocess.run(
            [sys.executable, "-m", "lumiimg", "list"], stdout=gone, stderr=subprocess.PIPE, text=True, check=False
        )
    assert "Traceback" not in done.stderr
    assert done.stderr == ""


def test_a_fault_of_lumiimg_is_one_line_and_none_of_its_answers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("line one\nline two")

    monkeypatch.setattr("lumiimg.cli.inputs.open_for_check", broken)
    assert main(["check", "x"]) == FAULT
    assert FAULT not in set(ExitCode)
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "LUMIIMG_DEBUG=1" in error


@pytest.mark.threat
def test_a_message_stays_one_line_whatever_a_file_is_called() -> None:
    error = LumiimgError("bad\nthing", where="a\x1b[31m\r\nlumiimg: all is well", hint="do\tthis")
    assert str(error).isprintable()
    assert one_line("é\u202e") == "é\\u202e"


def test_an_option_before_its_command_works(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--json", "show", "lumi"]) == ExitCode.GOOD
    assert json.loads(capsys.readouterr().out)["name"] == "lumi"
    assert main(["--site", "lumi", "--offline", "explain", "--base", "rocm-6.4.4"]) == ExitCode.GOOD


def takes_several(parser: Parser, words: list[str]) -> Iterator[tuple[list[str], argparse.Action]]:
    """Yield each command that takes any number of arguments, with the other words that it needs."""
    for name, below in parser.below.items():
        yield from takes_several(below, [*words, name])
    several = [one for one in parser._actions if not one.option_strings and one.nargs in {"*", "+"}]
    if several and not parser.below:
        needed = [[one.option_strings[0], "x"] for one in parser._actions if one.option_strings and one.required]
        before = ["x" for one in parser._actions if not one.option_strings and one.nargs is None]
        yield [*words, *itertools.chain(*needed), *before], several[0]


def test_words_behind_an_option_are_as_those_before_it() -> None:
    found = list(takes_several(make_parser(), []))
    assert len(found) == 8
    for words, action in found:
        arguments = parse([*words, "a", "--json", "b", "--quiet", "c"])
        values = getattr(arguments, action.dest)
        assert [*map(str, values)] == [*"abc"], words
        assert len({*map(type, values)}) == 1, words
