"""What the driver of a machine serves: facts have a date and a rank, one that is contradicted makes a doubt, and its date is a note."""

from __future__ import annotations

import datetime as dt
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from msgspec.structs import replace

from lumiimg.catalog.drivers import Rank
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


def test_the_newest_of_the_highest_rank_decides_and_what_is_contradicted_is_a_doubt() -> None:
    for rocm, outcome, words in (
        ("5.7", "refused", "does not support it"),  # updates move a window up
        (
            "6.2.4",
            "ok",
            "serves it; last confirmed on 2026-02-11. To be sure, add --host with a snapshot of `lumiimg host scan`",
        ),
        (
            "6.4.4",
            "ok",
            "serves it; last confirmed on 2026-02-11. To be sure, add --host with a snapshot of `lumiimg host scan`",
        ),
        ("7.0", "ok", "runs there with ROCm 7.0; last confirmed on 2026-09-29. To be sure"),
        ("7.1", "unknown", "announced, 2026-02-11"),
        ("7.2.4", "unknown", "(published, 2026-09-29), but amdgpu 6.3.60300"),
        ("7.14.0", "unknown", "updates move a driver's window up"),
        ("10.1", "unknown", "updates move a driver's window up"),
    ):
        result = judged(rocm)
        assert (result.outcome, words in result.because) == (RuleOutcome(outcome), True), result


def test_what_was_seen_on_a_node_counts_more_than_the_facts_of_the_site() -> None:
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


def test_only_what_was_seen_on_a_node_refuses_a_newer_rocm() -> None:
    """What a site published of its driver may be of any age, and updates move a window up; a snapshot says what it saw."""
    assert LUMI.driver is not None
    for rank in Rank:
        site = replace(LUMI, driver=replace(LUMI.driver, rank=rank, evidence=()))
        (result,) = driver_window(Stack({"rocm": OfferedComponent("7.14.0", "base")}), site)
        assert result.outcome is (RuleOutcome.REFUSED if rank is Rank.MEASURED else RuleOutcome.UNKNOWN)


def test_whoever_gives_a_snapshot_of_any_age_is_not_sent_for_one() -> None:
    for taken in ("1970-01-01", "2026-02-11", "9999-12-31"):
        for rocm, outcome in (
            ("5.7", "refused"),
            ("6.4.4", "ok"),
            ("7.0", "ok"),
            ("7.2.4", "unknown"),
            ("10.1", "refused"),
        ):
            result = judged(rocm, gpu_driver="6.10.5", kernel=KERNEL, taken=taken)
            assert result.outcome is RuleOutcome(outcome), (rocm, taken)
            assert "host scan" not in result.because
            assert "a snapshot" not in result.because
            assert taken in f"{result.because} {result.source}"
    # one of a login node, which has no GPU
    for rocm in ("7.2.4", "10.1"):
        seen = judged(rocm, gpu_driver=cast("str", None), kernel=KERNEL, taken="2026-11-20")
        assert seen.because.endswith(": a snapshot that shows the driver decides")


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
            words = ["check", str(image), "--level", "static", "--host", str(node), "--verbose", *site]
            assert (main(words), site) == (code, site)
            assert "AMD's 30.30" in unwrapped(capsys.readouterr().out)
    job = ["job", str(image), "--site", "lumi", "--host", str(node), "-o", str(tmp_path / "job.sh"), "--", "true"]
    assert main(job) == ExitCode.GOOD
    output = unwrapped("".join(capsys.readouterr()))
    assert "AMD's 30.30" in output
    assert "amdgpu 6.3.60300" not in output
