"""What the driver of a machine serves: facts have a date and a rank, and one that is old or contradicted makes a doubt."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from lumiimg.catalog.sites import find_site
from lumiimg.cli.main import main
from lumiimg.errors import ExitCode
from lumiimg.host.snapshot import OperatingSystem, Snapshot
from lumiimg.resolve.driver_rule import driver_of_node, driver_window
from lumiimg.resolve.rules import RuleOutcome, RuleResult
from lumiimg.resolve.stack import OfferedComponent, Stack
from tests.shared import fabric_builder
from tests.shared.programs import unwrapped

if TYPE_CHECKING:
    from pathlib import Path

LUMI = find_site("lumi", {"HOME": "/nonexistent"})
KERNEL = "6.4.0-150600.23.73_15.0.14-cray_shasta_c"


def seen(*, gpu_driver: str, kernel: str, taken: str) -> Snapshot:
    return Snapshot(
        schema=1,
        taken=taken,
        tool="",
        host="nid001",
        architecture="x86_64",
        kernel=kernel,
        os=OperatingSystem("", "", ""),
        cpu=None,
        intel=False,
        hwcaps=(),
        glibc="2.38",
        loader="/lib64/ld-linux-x86-64.so.2",
        system_directories=(),
        lib_token="lib64",  # noqa: S106 - of the loader
        library_path=None,
        entries=(),
        libraries=(),
        links={},
        gpu_driver=gpu_driver,
    )


def judged(rocm: str, **node: str) -> RuleResult:
    """Judge a release of ROCm on LUMI, or on a node of it that was seen."""
    site = LUMI
    if node:
        site = replace(LUMI, driver=driver_of_node(LUMI.driver, seen(**node)))
    (result,) = driver_window(Stack({"rocm": OfferedComponent(rocm, "base")}), site)
    return result


@pytest.mark.parametrize(
    ("rocm", "outcome", "words"),
    [
        ("5.7", "refused", "does not serve it"),  # updates move a window up
        ("6.2.4", "unknown", "no fact of the last 90 days"),
        ("6.4.4", "ok", "a driver serves what lies between (2026-09-08)"),
        ("7.0", "ok", "lumi-multitorch-u24r70"),
        ("7.1", "unknown", "announced, 2026-02-11"),
        ("7.2.4", "unknown", "(published, 2026-09-29), but amdgpu 6.3.60300"),
        ("7.14.0", "unknown", "no fact of the last 90 days"),
        ("10.1", "unknown", "no fact of the last 90 days"),
    ],
)
def test_the_newest_of_the_highest_rank_decides_and_what_is_old_or_contradicted_is_a_doubt(
    rocm: str, outcome: str, words: str
) -> None:
    result = judged(rocm)
    assert (result.outcome, words in result.because) == (RuleOutcome(outcome), True), result


@pytest.mark.parametrize(
    ("rocm", "driver", "kernel", "outcome", "words"),
    [
        ("6.2.4", "6.10.5", KERNEL, "ok", "seen on nid001"),
        ("6.2.4", "6.10.5", "another", "ok", "seen on nid001"),  # the module is of the driver that the site names
        ("7.2.4", "6.10.5", KERNEL, "unknown", "measured, 2026-11-20"),  # the site ships an image that runs
        ("7.2.4", "6.16.13", "newer", "ok", "AMD's 30.30"),
        ("6.2.4", "6.16.13", "newer", "refused", "does not serve it"),
        ("7.2.4", "6.99.1", "newer", "unknown", "is not known"),
        ("6.4.4", "6.99.1", "newer", "unknown", "is not known"),
    ],
)
def test_what_was_seen_on_a_node_counts_more_than_what_was_said_of_the_site(
    rocm: str, driver: str, kernel: str, outcome: str, words: str
) -> None:
    result = judged(rocm, gpu_driver=driver, kernel=kernel, taken="2026-11-20T10:00:00Z")
    assert (result.outcome, words in result.because) == (RuleOutcome(outcome), True), result


def test_a_snapshot_grows_old_too() -> None:
    node = {"gpu_driver": "6.10.5", "kernel": KERNEL}
    assert judged("6.2.4", **node, taken="2026-08-27T10:00:00Z").outcome is RuleOutcome.OK
    assert judged("6.2.4", **node, taken="2026-08-25T10:00:00Z").outcome is RuleOutcome.UNKNOWN
    assert judged("6.2.4", **node, taken="some day").outcome is RuleOutcome.UNKNOWN


@pytest.mark.parametrize(("day", "outcome"), [("2026-05-12", "ok"), ("1970-01-01", "ok"), ("2099-01-01", "unknown")])
def test_a_clock_that_is_wrong_makes_a_doubt_at_most(day: str, outcome: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LUMIIMG_TODAY", day)
    assert judged("6.2.4").outcome is RuleOutcome(outcome)


def test_a_day_that_is_none_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("LUMIIMG_TODAY", "tomorrow")
    assert main(["explain", "--base", "rocm-6.2.4", "--site", "lumi"]) == ExitCode.BAD_INPUT
    assert "LUMIIMG_TODAY: not a valid date" in capsys.readouterr().err


def test_explain_names_both_facts_and_a_snapshot_lifts_the_doubt(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["explain", "--base", "rocm-7.2.1", "--add", "pytorch", "--site", "lumi", "--fabric", "bundled"]
    assert main(words) == ExitCode.GOOD
    said = unwrapped(capsys.readouterr().out)
    assert "u24r72f21m50t211-20260929_104918 runs there with ROCm 7.2 (published, 2026-09-29)" in said
    assert "serves rocm>=6.1,<7.1 alone (announced, 2026-02-11)" in said
    node = fabric_builder.snapshot(
        fabric_builder.host(tmp_path / "node"), gpu_driver="6.16.13", taken="2026-11-20T00:00:00Z"
    )
    assert main([*words, "--host", str(node), "--json"]) == ExitCode.GOOD
    rules = json.loads(capsys.readouterr().out)["rules"]
    assert [rule["outcome"] for rule in rules if rule["id"] == "driver-window"] == ["ok"]
