"""What the driver of a machine serves: facts have a date and a rank, one that is contradicted makes a doubt, and age is a note."""

from __future__ import annotations

import datetime as dt
import itertools
import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from msgspec.structs import replace

from lumiimg.catalog.sites import find_site
from lumiimg.cli.main import main
from lumiimg.core.errors import ExitCode
from lumiimg.resolve.driver_rule import driver_of_node, driver_window
from lumiimg.resolve.rules import RuleOutcome, RuleResult
from lumiimg.resolve.stack import OfferedComponent, Stack
from tests.shared import fabric_builder
from tests.shared.programs import unwrapped

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from lumiimg.host.snapshot import Snapshot

LUMI = find_site("lumi", {"HOME": "/nonexistent"})
KERNEL = "6.4.0-150600.23.73_15.0.14-cray_shasta_c"


def judged(rocm: str, **node: str) -> RuleResult:
    """Judge a release of ROCm on LUMI, or on a node of it that was seen."""
    site = LUMI
    if node:
        day = dt.date.fromisoformat(node.pop("taken")[:10]) if "taken" in node else None
        seen = cast("Snapshot", SimpleNamespace(host="nid001", day=day, **node))
        site = replace(LUMI, driver=driver_of_node(LUMI.driver, seen))
    (result,) = driver_window(Stack({"rocm": OfferedComponent(rocm, "base")}), site)
    return result


def test_the_newest_of_the_highest_rank_decides_what_is_old_is_a_note_and_what_is_contradicted_a_doubt() -> None:
    for rocm, outcome, words in (
        ("5.7", "refused", "does not support it"),  # updates move a window up
        ("6.2.4", "ok", "serves it (2026-02-11); that is of 2026-02-11, "),
        ("6.4.4", "ok", "serves it (2026-02-11); that is of 2026-02-11, "),
        ("7.0", "ok", "lumi-multitorch-u24r70"),
        ("7.1", "unknown", "announced, 2026-02-11"),
        ("7.2.4", "unknown", "(published, 2026-09-29), but amdgpu 6.3.60300"),
        ("7.14.0", "unknown", "updates move a driver's window up"),
        ("10.1", "unknown", "updates move a driver's window up"),
    ):
        result = judged(rocm)
        assert (result.outcome, words in result.because) == (RuleOutcome(outcome), True), result


def test_what_was_seen_on_a_node_counts_more_than_what_was_said_of_the_site() -> None:
    for rocm, driver, kernel, outcome, words in (
        ("6.2.4", "6.10.5", KERNEL, "ok", "seen on nid001"),
        ("6.2.4", "6.10.5", "another", "ok", "seen on nid001"),  # the module is of the driver that the site names
        ("7.2.4", "6.10.5", KERNEL, "unknown", "measured, 2026-11-20"),  # the site ships an image that runs
        ("7.1", "6.10.5", KERNEL, "unknown", "u24r72"),  # what serves 7.2 may serve 7.1
        ("7.2.4", "6.16.13", "newer", "ok", "AMD's 30.30"),
        ("6.2.4", "6.16.13", "newer", "refused", "does not support it"),
        ("6.2.4", "6.16.13", KERNEL, "refused", "does not support it"),  # a driver was exchanged under the same kernel
        ("6.4.4", "6.99.1", KERNEL, "ok", "seen on nid001"),  # nobody says which release has that module
        ("7.2.4", "6.99.1", "newer", "unknown", "is not known"),
        ("6.4.4", "6.99.1", "newer", "unknown", "is not known"),
    ):
        result = judged(rocm, gpu_driver=driver, kernel=kernel, taken="2026-11-20T10:00:00Z")
        assert (result.outcome, words in result.because) == (RuleOutcome(outcome), True), result


def test_no_day_and_no_clock_changes_an_answer_about_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither that of this machine nor that of the node; what is old is said with its date."""
    days = ("0001-01-01", "1970-01-01", "2026-02-10", "2026-05-13", "2026-11-28", "2029-11-28", "9999-12-31")
    takens = ("", "1970-01-01", "2026-02-11", "2099-01-01", "9999-12-31")
    for rocm, taken in itertools.product(("5.7", "6.2.4", "6.4.4", "7.0", "7.2.4", "7.14.0"), takens):
        node = {"gpu_driver": "6.10.5", "kernel": KERNEL, "taken": f"{taken}T00:00:00Z"} if taken else {}
        outcomes = set()
        for day in days:
            monkeypatch.setenv("LUMIIMG_TODAY", day)
            outcomes.add((result := judged(rocm, **node)).outcome)
        assert len(outcomes) == 1, (rocm, taken, outcomes)
        assert "days old" in result.because or result.outcome is not RuleOutcome.OK or "9999" in taken, (rocm, taken)


def test_of_a_network_what_is_known_grows_old_and_that_is_a_note(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """LUMI's glibc and libfabric are of 2026-09-08."""

    def rules(day: str, *more: str) -> dict[str, dict[str, str]]:
        monkeypatch.setenv("LUMIIMG_TODAY", day)
        assert main(["explain", "--base", "rocm-6.4.4", "--site", "lumi", "--json", *more]) == ExitCode.GOOD
        found = json.loads(capsys.readouterr().out)["rules"]
        assert {rule["outcome"] for rule in found} == {"ok"}
        return {rule["id"]: rule for rule in found}

    for day, old in (("2026-12-07", False), ("2026-12-08", True)):
        gate = rules(day)["glibc-gate"]
        assert ("that is of 2026-09-08, 91 days old: a snapshot of a node shows" in gate["because"]) is old
    assert "115 days old" in rules("2027-01-01", "--fabric", "bundled")["fabric"]["because"]


def test_a_day_that_is_none_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("LUMIIMG_TODAY", "tomorrow")
    assert main(["explain", "--base", "rocm-6.2.4", "--site", "lumi"]) == ExitCode.BAD_INPUT
    assert "LUMIIMG_TODAY: not a valid date" in capsys.readouterr().err


def test_the_driver_that_was_seen_counts_where_no_site_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By every command that judges an image against a snapshot, as where `--site generic` says that there is none."""
    image = fabric_builder.bundled(tmp_path / "image")
    info = image / "opt/rocm/.info"
    info.mkdir(parents=True)
    node = fabric_builder.snapshot(
        fabric_builder.host(tmp_path / "node"), gpu_driver="6.16.13", taken="2026-11-20T00:00:00Z"
    )
    for rocm, code in (("6.2.4", ExitCode.NO), ("7.2.1", ExitCode.GOOD), ("7.14.0", ExitCode.NO)):
        (info / "version").write_text(f"{rocm}-1\n")
        for site in ([], ["--site", "generic"]):
            words = ["check", str(image), "--level", "static", "--host", str(node), *site]
            assert (main(words), site) == (code, site)
            assert "AMD's 30.30" in unwrapped(capsys.readouterr().out)
    job = ["job", str(image), "--site", "lumi", "--host", str(node), "-o", str(tmp_path / "job.sh"), "--", "true"]
    assert main(job) == ExitCode.GOOD
    said = unwrapped("".join(capsys.readouterr()))
    assert "AMD's 30.30" in said
    assert "amdgpu 6.3.60300" not in said
