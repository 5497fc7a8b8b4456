"""Commands proposed after `next:` can be typed as they are: no placeholders, and the program's own parser accepts them.

A hook checks that in all other tests, too (tests/shared/proposals.py).
"""

from __future__ import annotations

import gzip
import itertools
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lumiimg.check.run.log_answer import answer_of_log
from lumiimg.cli.main import main
from lumiimg.core.findings import STAND_INS, Advice, Remedy
from lumiimg.core.text import shell_quote
from lumiimg.joblog import read_log, vocabulary
from tests.shared import fabric_builder
from tests.shared.programs import sampled
from tests.shared.proposals import fault

FIXTURES = Path(__file__).parents[1] / "fixtures"
LOGS = sorted((*(FIXTURES / "nccl").glob("*.log"), *(FIXTURES / "bandwidth").glob("*.out")))
KNOWN = vocabulary().known_signatures


def test_a_command_with_a_place_for_a_name_is_refused_by_the_rule_of_these_tests() -> None:
    for bad in (
        "lumiimg explain --base IMAGE --site lumi",
        "lumiimg adapt {image} --site lumi",
        "lumiimg check x.sif --sbatch='-A PROJECT --gpus-per-node=8'",
        "srun singularity exec x.sif …",
        "lumiimg check x.sif --no-such-option",
        "lumiimg chekc x.sif",
        "source <(lumiimg bind)",
        "export LD_LIBRARY_PATH=/path/of/plugin",
        "export LD_LIBRARY_PATH=FOLDER:$LD_LIBRARY_PATH",
    ):
        assert fault(bad), bad
    for good in ("lumiimg host scan -o host.json && lumiimg check /a/IMAGE.sif --host host.json", "unset NCCL_NET"):
        assert fault(good) is None, good


def test_what_a_log_proposes_has_the_names_of_the_case_or_is_no_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    image = fabric_builder.image(tmp_path / "it's an image")
    monkeypatch.chdir(FIXTURES / "nccl")
    named = ("--image", str(image), "--site", "lumi")
    proposed = 0
    for log, options in sampled(itertools.product(LOGS, ((), named)), 40):
        main(["log", str(log), "--json", *options])
        data = json.loads(capsys.readouterr().out)
        command = data["advice"]["next"]
        proposed += command is not None
        assert command is None or fault(command) is None, (log.name, command)
        first = data["causes"][0]["remedy"][0] if data["causes"] else ""
        if options and "image.sif" not in first and " lumiimg " in first:
            assert shlex.quote(str(image)) in first, (log.name, first)
        assert not [one for cause in data["causes"] for one in cause["remedy"] if "{image}" in one or "{log}" in one]
    assert proposed


def test_what_is_proposed_to_look_at_in_a_log_prints_lines_of_it(tmp_path: Path) -> None:
    """Each example of the knowledge base, and other logs, in files of any name, plain and compressed."""
    ends = "srun: error: n1: task 3: Exited with exit code 1"
    texts = [log.read_bytes() for log in LOGS] + [f"step 1\n{one.example}\n{ends}\n".encode() for one in KNOWN]
    commands = set()
    for number, text in sampled(enumerate(texts), 120):
        is_packed = number % 9 == 0
        file = tmp_path / f"it's {{image}} {number}{'.gz' if is_packed else '.out'}"
        file.write_bytes(gzip.compress(text) if is_packed else text)
        name = shell_quote(str(file))
        answer = answer_of_log(read_log([str(file)], lambda _: None), None, {"log": name})
        steps = {step.command for cause in answer.report.causes for step in cause.remedy if step.command}
        commands |= {step for step in steps if name in step and not step.startswith("lumiimg ")}
    assert len(commands) > 20
    script = "".join(f'[ -n "$({one})" ] || echo {shlex.quote(one)}\n' for one in sorted(commands))
    done = subprocess.run(["bash"], input=script, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")


USUAL = ("image.sif", "demo.sif", "adapted.sif", "with-plugin.sif", "host.json", "now.json", "job.sh")
"""Files that commands write by default, or that proposed commands write."""


@pytest.mark.usefixtures("clean_home")
def test_what_is_proposed_writes_over_nothing_where_each_usual_name_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A hook of all tests (tests/shared/proposals.py) fails on a proposal that would overwrite a file."""
    monkeypatch.chdir(tmp_path)
    fabric_builder.image(tmp_path / "fits")
    fabric_builder.image(tmp_path / "bare", plugin=False)
    shutil.copytree(FIXTURES / "flight", tmp_path / "dumps")
    example = next(one.example for one in KNOWN if one.id == "plugin-absent")
    for name in USUAL:
        (tmp_path / name).write_text("kept")
    (tmp_path / "slurm-4711.out").write_text(f"{example}\n")
    proposed = set[tuple[str, str]]()
    for words in (
        *("check --level static fits --site lumi", "check --level static bare --site lumi", "doctor"),
        *("explain --recipe demo", "log slurm-4711.out --image bare --site lumi", "log dumps"),
        *("check --level static fits --site frontier", "build --base rocm-6.4.4 --add sglang"),
    ):
        main([*words.split()])
        output = "".join(capsys.readouterr())
        proposed |= {*re.findall(r"^next[^:\n]*:  (.*)$|that works[^:\n]*: (lumiimg .*)$", output, re.MULTILINE)}
    commands = {one or other for one, other in proposed}
    assert {
        "lumiimg host scan -o host-2.json && lumiimg check fits --site lumi --host host-2.json",
        "lumiimg adapt bare --site lumi -o with-plugin-2.sif",
        "lumiimg build --base debian-13 --add netprobe --site generic -o image-2.sif",
        "lumiimg adapt ./bare --site lumi -o adapted-2.sif",
        "lumiimg log --verbose dumps",
    } <= commands, commands
    for command in commands:
        written = re.findall(r"(?<= -o )\S+", command)
        assert fault(command) is None, command
        assert not {*written} & {*USUAL}, command


@pytest.mark.everything
def test_what_a_log_proposes_of_the_program_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each read-only command of lumiimg ends with an answer, not with a usage error or an internal fault."""
    image = fabric_builder.image(tmp_path / "image")
    commands = set()
    for log in LOGS:
        main(["log", str(log), "--json", "--image", str(image), "--site", "lumi"])
        commands.add(json.loads(capsys.readouterr().out)["advice"]["next"])
    looking = [one for one in commands if one and one.startswith(("lumiimg check", "lumiimg ldd", "lumiimg list"))]
    making = [f"{one} --dry-run" for one in commands if one and one.startswith(("lumiimg adapt", "lumiimg build"))]
    assert making
    for command in (*looking, *making):
        words = shlex.split(command)[1:]
        done = subprocess.run(
            [sys.executable, "-m", "lumiimg", *words], capture_output=True, text=True, cwd=tmp_path, check=False
        )
        assert done.returncode in {0, 1, 3}, (command, done.stderr)


def test_a_remedy_is_a_sentence_where_a_name_is_not_known() -> None:
    remedy = Remedy("look at it", "lumiimg check {image} --site {site}", "on a node")
    whole = remedy.concluded({"image": "'{site} a.sif'", "site": "lumi"})
    assert (whole.command, whole.reason) == ("lumiimg check '{site} a.sif' --site lumi", "look at it, on a node")
    assert whole == "look at it, on a node: lumiimg check '{site} a.sif' --site lumi"
    lacking = remedy.concluded({"site": "lumi"})
    assert (lacking, lacking.command) == ("look at it, on a node: lumiimg check image.sif --site lumi", None)
    assert Advice("why", lacking.command).next is None
    for name in STAND_INS:
        shown = str(Remedy("set it", f"export X=/opt/{{{name}}}/lib").concluded({}))
        assert not re.search(r"[<>]|/path", shown), "a shell would read a file, or write one"


@pytest.mark.threat
def test_a_word_out_of_an_image_stays_as_it_is_whatever_place_for_a_name_it_seems_to_have() -> None:
    for path in ("/opt/{image}$(touch PWNED){image}/lib.so", "/o'b/{site}", "a\n{rest}", '"{image}"'):
        foreign = shell_quote(path)
        for remedy in (
            Remedy("load it first", f"export X={foreign}"),
            Remedy(f"ln -s {foreign} x   (in the image's %post)"),
        ):
            for name in ("o'b/v.sif", "sp ace.sif", "a;touch PWNED;.sif", "v.sif"):
                assert remedy.concluded({"image": shlex.quote(name), "site": "lumi"}) == remedy, (path, name)
                shown = Remedy(f"the image's {remedy}", "check {image}").concluded({"image": shlex.quote(name)})
                assert shown == f"the image's {remedy}: check {shlex.quote(name)}", "its own place is filled"
