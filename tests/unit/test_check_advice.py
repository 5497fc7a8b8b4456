"""What `check` proposes mends what it found: carried out on the files of images with each fault, the fault is gone."""

from __future__ import annotations

import shlex
import shutil
from typing import TYPE_CHECKING

import pytest

from lumiimg.check.answer import Answer
from lumiimg.check.pipeline import check_image
from lumiimg.cli.main import main
from lumiimg.errors import ExitCode
from lumiimg.findings import Level, Severity
from lumiimg.host.container_view import told_to_engine
from tests.shared.job.bases import make
from tests.shared.job.changes import CHANGES
from tests.shared.job.ground import ground_here
from tests.shared.job.world import PLUGIN, World, clone

if TYPE_CHECKING:
    from pathlib import Path

    from lumiimg.check.answer import CheckReport

planned: set[str] = set()
SITE = ("--site", "lumi")
LAYER = "/opt/aws-ofi-nccl/lib"
"""Where the layer aws-ofi-nccl puts the plugin, and what it puts in front of LD_LIBRARY_PATH."""


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("advice")
    return make("torch-of-rocm", folder / "good", ground_here(folder / "ground"))


def checked(world: World, variables: dict[str, str]) -> CheckReport:
    environment = told_to_engine(variables)
    return check_image(world.root, environment, Level.STATIC, program=world.program, machine=SITE)


def problems(report: CheckReport) -> set[str]:
    return {finding.summary for finding in report.findings if finding.severity is Severity.PROBLEM}


def carry_out(command: str, world: World, good: World) -> dict[str, str]:
    """Do what a command would do to the image, or return what it sets."""
    words = shlex.split(command)
    if words[0] == "export":
        return {name.removeprefix("SINGULARITYENV_"): value for name, _, value in (w.partition("=") for w in words[1:])}
    assert words[:2] in (["lumiimg", "adapt"], ["lumiimg", "build"]), command
    shutil.copytree(good.at(PLUGIN), world.at(LAYER), symlinks=True)
    world.prepend("LD_LIBRARY_PATH", LAYER)
    return {}


@pytest.mark.parametrize("change", CHANGES)
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
