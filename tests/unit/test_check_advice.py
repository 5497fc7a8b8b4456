"""The proposals of `check` repair what it found: carried out on images with each fault, they remove the fault."""

from __future__ import annotations

import itertools
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lumiimg.cli.commands import parser_for
from lumiimg.cli.main import main
from lumiimg.core.errors import ExitCode
from lumiimg.core.findings import Answer, Severity
from lumiimg.host.container_view import as_engine_variables
from lumiimg.joblog import vocabulary
from tests.shared import checks, fabric_builder
from tests.shared.elf_builder import library
from tests.shared.job.bases import make
from tests.shared.job.changes import CHANGES
from tests.shared.job.system import stand_in_system
from tests.shared.job.world import PLUGIN, World, clone
from tests.shared.programs import EVERYTHING, sampled

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator

    from lumiimg.check.pipeline import CheckReport

planned: set[str] = set()
SITE = ("--site", "lumi")
ALWAYS = ("rccl-for-another-hip", "plugin-with-much-static-tls", "plugin-with-an-executable-stack")
"""Changes to an image that are tried in every run, as their advice is unlike that of others."""
LAYER = "/opt/aws-ofi-nccl/lib"
"""The folder in which the layer aws-ofi-nccl puts the plugin, and which it prepends to LD_LIBRARY_PATH."""


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("advice")
    return make("torch-of-rocm", folder / "good", stand_in_system(folder / "system"))


def checked(world: World, variables: dict[str, str]) -> CheckReport:
    environment = as_engine_variables(variables)
    return checks.checked(world.root, environment, program=world.program, machine=SITE)


def problems(report: CheckReport) -> set[str]:
    return {finding.summary for finding in report.findings if finding.severity is Severity.PROBLEM}


def carry_out(command: str, world: World, good: World) -> dict[str, str]:
    """Do to the image what a command would do, or return the variables that it sets."""
    words = shlex.split(command)
    if words[0] == "export":
        return {name.removeprefix("SINGULARITYENV_"): value for name, _, value in (w.partition("=") for w in words[1:])}
    assert words[:2] in (["lumiimg", "adapt"], ["lumiimg", "build"]), command
    shutil.copytree(good.at(PLUGIN), world.at(LAYER), symlinks=True)
    world.prepend("LD_LIBRARY_PATH", LAYER)
    return {}


def test_a_library_of_the_image_that_nobody_finds_is_not_looked_for_on_a_host(tmp_path: Path) -> None:
    image = fabric_builder.bundled(tmp_path / "image")
    (image / "opt/hidden").mkdir()
    (image / "usr/lib64/libfabric.so.1").rename(image / "opt/hidden/libfabric.so.1")
    command = checks.checked(image, {}).advice.next or ""
    name, _, value = command.removeprefix("export ").partition("=")
    mended = checks.checked(image, {name: value})
    assert {"plugin.needs-host"} == {each.id for each in checks.checked(image, {}).findings} - {
        each.id for each in mended.findings
    }


@pytest.mark.parametrize(
    "change", [name for number, name in enumerate(CHANGES) if EVERYTHING or number % 6 == 0 or name in ALWAYS]
)
def test_what_is_proposed_mends_the_fault_or_shows_more_of_it(
    change: str, good: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = clone(good, tmp_path / "image")
    CHANGES[change](world)
    report = checked(world, {})
    if report.answer is not Answer.NO:
        return
    command = report.advice.next
    assert report.advice.why in problems(report)
    if command is None:
        first = next(finding for finding in report.findings if finding.severity is Severity.PROBLEM)
        assert first.remedy, "where no command mends it, a sentence says what does"
        return
    words = shlex.split(command)
    if words[:2] == ["lumiimg", "ldd"]:
        assert main(words[1:]) in {ExitCode.NO, ExitCode.GOOD}
        assert capsys.readouterr().out
        return
    if words[0] == "lumiimg" and words[1] not in planned:
        planned.add(words[1])  # once of each command: they differ in the image's name
        assert main([*words[1:], "--dry-run"]) == ExitCode.GOOD, capsys.readouterr().err
    after = checked(world, carry_out(command, world, good))
    assert report.advice.why not in problems(after)


def of_terminal(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    main(words)
    return capsys.readouterr().out


NAMES = (
    *("a b", "it's", "-x", "$(touch PWNED)", "new\nline", 'd"q', "`id`"),
    *("é", "~", "*", "#c", "!x", "a;b", "\x1b[31m"),
)


def test_the_command_as_it_is_shown_names_the_image_whatever_it_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    fabric_builder.image(tmp_path / "fits")
    fabric_builder.image(tmp_path / "bare", plugin=False)
    for number, name in enumerate(NAMES):
        (tmp_path / ("bare", "fits")[number % 2]).rename(tmp_path / name)
        typed = f"./{name}" if name.startswith("-") else name
        for words in (["check", "--level", "static"], ["explain"]):
            shown = of_terminal([*words, "--site", "lumi", "--", typed], capsys)
            command = re.search(r"^next[^:\n]*:  (.*)$", shown, re.MULTILINE)
            assert command, shown
            script = f"lumiimg() {{ printf '%s\\0' \"$@\"; }}; {command[1]}"
            done = subprocess.run(["bash", "-c", script], capture_output=True, check=True, cwd=tmp_path)
            assert {name, typed} & {*done.stdout.decode().split("\0")}, name
        (tmp_path / name).rename(tmp_path / ("bare", "fits")[number % 2])
    assert not (tmp_path / "PWNED").exists()


def test_what_jobs_start_is_named_in_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    root = fabric_builder.image(tmp_path / "image")
    library(root / "opt/app", source="int main;")
    for words in (["check", "--level", "static"], ["explain"]):
        shown = of_terminal([*words, "image", "--program", "/opt/app"], capsys)
        assert re.search("^next.* image .*--program /opt/app ", shown, re.MULTILINE), shown


_NEXT = re.compile(
    r"^(?:next[^:\n]*| +(?:do|or)[^:\n]*):  ((?:lumiimg|for image|source|export|unset|#SBATCH|sbatch) .*)$",
    re.MULTILINE,
)
_OPTIONS = ("", "--site lumi", "--site generic", "--host host.json", "--host host.json --site lumi")
_BESIDE = ("drift now.json host.json --image fits old", "doctor", "list", "")
_DRIFTS = (("host.json now.json", "--site lumi"), ("now.json host.json", "--site lumi"), ("now.json host.json", ""))
_REQUESTS = (
    "explain --add vllm --site lumi",
    "explain --add sglang==0.4.1 --site lumi",
    "explain --base rocm-6.2.4 --add sglang --site lumi",
    "explain --base rocm-5.7.1 --add vllm --site lumi",
    "explain --base ./rocm-5 --add vllm --site lumi",
)


def stand_ins(folder: Path) -> list[str]:
    """Make images, good and bad, and two states of a node; return the names of the images."""
    fabric_builder.stand_ins(folder)
    fabric_builder.bundled(folder / "bundled")
    for rocm in ("7.2.0", "5.7.1", "6.2.4"):
        fabric_builder.rocm_image(folder / f"rocm-{rocm[0]}", rocm)
    fabric_builder.image(folder / "rocm-old", plugin=False)
    shutil.copytree(folder / "rocm-5" / "opt/rocm/.info", folder / "rocm-old/opt/rocm/.info", dirs_exist_ok=True)
    (folder / "musl/lib").mkdir(parents=True)
    (folder / "musl/lib/ld-musl-x86_64.so.1").touch()
    return ["fits", "old", "bare", "bundled", "rocm-7", "rocm-5", "rocm-6", "rocm-old", "musl"]


def named_files(options: Namespace) -> Iterator[str]:
    """Yield the files that a command reads."""
    given = {name: value for name, value in vars(options).items() if name not in {"output", "program", "starts"}}
    for value in (one for values in given.values() for one in (values if isinstance(values, list) else [values])):
        if isinstance(value, Path) or (value == given.get("base") and "/" in (value or "")):
            yield str(value)


def carried_on(command: str, capsys: pytest.CaptureFixture[str], *, strict: bool = False) -> None:
    """Assert that a command can be parsed as it is, and run it if that changes nothing here.

    `strict`: a command that explains a request must not be refused either.
    """
    plain = re.sub(r"^source <\((.*)\)$", r"\1", command)
    if loop := re.match(r"for image in (.*); do (.*); done$", plain):
        turns = [loop[2].replace('"$image"', shlex.quote(image)) for image in shlex.split(loop[1])]
        for number, turn in enumerate(turns):
            carried_on(re.sub(r'"\$\(basename.*?\)"', f"{number}", turn), capsys, strict=strict)
        return
    assert not re.search(r"\b(?:IMAGE|NAME|SITE|PATH|PROGRAM|FILE|OPTIONS|LAYER)\b|…", plain), command
    written, scanned = set[str](), None
    for part in plain.split(" && "):
        words = shlex.split(part)
        if words[0] != "lumiimg":
            continue
        parser = parser_for(words[1:])
        try:
            options, rest = parser.parse_known_args(words[1:])
        except SystemExit:
            raise AssertionError(command) from None
        assert rest == [], command
        missing = {file for file in named_files(options) if not os.path.lexists(file)} - written
        assert not missing, f"{command} names {missing}"
        if "-o" in words:
            written.add(words[words.index("-o") + 1])
            assert not os.path.lexists(words[words.index("-o") + 1]), command
        capsys.readouterr()
        if words[1] == "host":  # as a node would
            scanned = Path(shutil.copy("host.json", words[words.index("-o") + 1]))
        if words[1:3] == ["explain", "--base"] and strict:
            assert main(words[1:]) == ExitCode.GOOD, command
        elif words[1] in {"adapt", "build"}:
            at = words.index("-o") if "-o" in words else len(words)
            assert main([*words[1:at], "--dry-run"]) == ExitCode.GOOD, (command, capsys.readouterr().err)
            assert "nothing was built" not in capsys.readouterr().err, command
        elif words[1] in {"explain", "ldd", "bind"} or (words[1] == "check" and "--nodes" not in words):
            code = main([*words[1:], *(["--level", "static"] if words[1] == "check" else [])])
            assert code in ({ExitCode.GOOD} if words[1] == "bind" else {0, 1, 3}), (command, capsys.readouterr().err)
    if scanned is not None:
        scanned.unlink()


def test_what_is_proposed_can_be_typed_as_it_stands_and_is_not_refused(
    good: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], clean_home: Path
) -> None:
    del clean_home
    monkeypatch.chdir(tmp_path)
    images = stand_ins(tmp_path)
    looks = ("check --level static", "explain")
    asked = [f"{verb} {image} {more}" for image in images for more in _OPTIONS for verb in looks]
    asked += [f"drift {nodes} --image {image} {more}" for image in images for nodes, more in _DRIFTS]
    asked = [*sampled(asked, 12), *sampled((*_REQUESTS, *_BESIDE), 3), "check --level static rocm-old --site lumi"]
    for change in {"libfabric-without-cxi", *sampled(CHANGES, 1)}:
        CHANGES[change](world := clone(good, tmp_path / change))
        asked += [f"{verb} {world.root.relative_to(tmp_path)} --site lumi" for verb in looks]
    proposed = set[str]()
    for words in asked:
        main(words.split())
        proposed |= {*_NEXT.findall(capsys.readouterr().out)}
    assert len(proposed) > (30 if EVERYTHING else 6)
    for command in sorted(proposed):
        carried_on(command, capsys)


_PLUGINS = ("none", "broken link", "there", "for an older host")
_ROCMS = (None, "5.7.1", "6.4.4", "7.2.0")
_NAMED = ("image", "my image", "a/image", "it's")
_ASKED = (
    *(f"{verb} {{}} {site}" for verb in ("check --level static", "explain") for site in _OPTIONS),
    "check --level static {} --site frontier",
    "bind {} --host now.json --site lumi",
    "module {} --host now.json --site lumi -o modules",
    "drift host.json now.json --site lumi --image {}",
    "drift now.json host.json --image {}",
    "check --level static {} other --site lumi",
    *(f"log {log}.log --image {{}} --site lumi" for log in ("plugin", "bundle")),
    "log plugin.log --image gone.sif --site lumi",
)


def faulty_image(root: Path, plugin: str, rocm: str | None) -> None:
    """Make an image with several obstacles."""
    fabric_builder.image(
        root, glibc=28 if plugin == "for an older host" else 41, plugin=plugin.startswith(("there", "f"))
    )
    if plugin == "broken link":
        (root / "usr/lib64").mkdir(parents=True)
        (root / "usr/lib64/librccl-net.so").symlink_to("/opt/gone/librccl-net.so")
    if rocm is not None:
        (root / "opt/rocm/.info").mkdir()
        (root / "opt/rocm/.info/version").write_text(f"{rocm}-1\n")


def test_no_command_that_is_proposed_is_refused_whatever_the_obstacle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], clean_home: Path
) -> None:
    """With two and three faults at once, drivers that serve the ROCm or not, and outputs that already exist."""
    del clean_home
    monkeypatch.chdir(tmp_path)
    fabric_builder.stand_ins(tmp_path)
    faulty_image(tmp_path / "other", "none", "5.7.1")
    for name in ("with-plugin.sif", "adapted.sif"):
        (tmp_path / name).touch()
    for cause, name in (("plugin-absent", "plugin"), ("glibc-too-old", "bundle")):
        example = next(one.example for one in vocabulary().known_signatures if one.id == cause)
        (tmp_path / f"{name}.log").write_text(f"{example}\n")
    cases = list(itertools.product(_PLUGINS, _ROCMS, _NAMED, _ASKED))
    chosen = [("none", "5.7.1", "my image", _ASKED[0]), ("broken link", "5.7.1", "image", _ASKED[-3])]
    proposed = dict[str, str]()
    for number, (plugin, rocm, name, asked) in enumerate((*chosen, *sampled(cases, 12))):
        image = f"{number}/{name}"
        faulty_image(tmp_path / image, plugin, rocm)
        main(shlex.split(asked.format(shlex.quote(image))))
        output = "".join(capsys.readouterr())
        proposed |= dict.fromkeys(_NEXT.findall(output), f"{asked}: {plugin}, ROCm {rocm}")
    assert len(proposed) > 6
    assert main(["adapt", "0/my image", "--site", "lumi", "--dry-run"]) == ExitCode.NO
    of_adapt = capsys.readouterr().err.rpartition("on another base: ")[2].strip()
    assert of_adapt.startswith("lumiimg build "), of_adapt
    proposed[of_adapt] = "adapt, which is refused"
    for command, of in proposed.items():
        try:
            carried_on(command, capsys, strict=True)
        except AssertionError as error:
            raise AssertionError(f"{of}\n{error}") from None
