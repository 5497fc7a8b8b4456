"""What engines show of themselves. By a real one: tests/engine/test_engine_behaviour.py; here a stand-in that misbehaves."""

from __future__ import annotations

import json
import os
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lumiimg.catalog.sites import find_site
from lumiimg.cli.main import main
from lumiimg.cluster.trial.case import TrialCase, read_case
from lumiimg.cluster.trial.claims import of_site
from lumiimg.cluster.trial.engine import STEP, of_engine
from lumiimg.cluster.trial.folder import TrialFolder
from lumiimg.cluster.trial.measure import outcome, reading
from lumiimg.cluster.trial.reading import NOT_KNOWN
from lumiimg.cluster.trial.values import ClaimOutcome, Ending, Record, TrialPlan
from lumiimg.engine import behaviour
from lumiimg.engine.behaviour import TRIES, Behaviour, Shown, behaviour_of, tried_differences
from lumiimg.errors import ExitCode
from tests.shared import fabric_builder

if TYPE_CHECKING:
    from collections.abc import Callable

LUMI = find_site("lumi", {})
ROWS = {row.id: row for row in tried_differences()}
RECORDINGS = Path(__file__).parents[1] / "fixtures" / "engines"
BEGINS = """\
#!/bin/sh
case "$1 $2" in
--version*) echo singularity-ce version 4.1.3; exit;;
"build --help") echo "  --oci  --no-oci"; exit;;
esac
"""


def recorded(name: str) -> dict[str, Any]:
    return tomllib.loads((RECORDINGS / f"{name}.toml").read_text())


def test_each_row_that_says_what_engines_show_is_tried_and_each_try_has_a_row() -> None:
    assert ROWS.keys() == TRIES.keys()
    for row in ROWS.values():
        assert row.shows.keys() == {"apptainer", "singularityce"}
        assert row.id == "bound-squashfs" or len({*row.shows.values()}) == 2, "nothing told them apart"


@pytest.mark.parametrize("name", ["apptainer-1.4.5", "singularityce-4.1.3"])
def test_options_of_build_are_those_that_the_real_programs_printed(name: str) -> None:
    there = recorded(name)["build-help"]["output"].split()
    tried = 0
    for row in ROWS.values():
        asked = {text for shown in row.shows.values() for text in shown.split(", ") if text.startswith("build --")}
        for text in asked:
            tried += 1
            is_said = text in row.shows[name.partition("-")[0]].split(", ")
            assert is_said is (text.removeprefix("build ") in there), text
    assert tried >= 8


@pytest.mark.parametrize("name", ["apptainer-1.4.5", "singularityce-4.1.3"])
def test_what_the_real_programs_printed_is_read_as_the_table_has_it(
    name: str, standin: Callable[[str], Behaviour], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = {key: entry["output"].strip() for key, entry in recorded(name).items()}
    told = "lumiimg-engine: S{} A{} B{}".format(*said["told"].splitlines()[-1].split(" "))
    exported = "".join(f"export {line}\n" for line in said["environment"].splitlines())
    for file, text in (("told", told), ("env", f"lumiimg-engine:\n{exported}"), ("ids", said["no-subuid"])):
        (tmp_path / file).write_text(f"{text}\n")
    (tmp_path / "subuid").touch()
    monkeypatch.setattr(behaviour, "_SUBUID", str(tmp_path / "subuid"))
    monkeypatch.setattr("os.getuid", lambda: 12345)
    script = """cd "${0%/*}"
case "$*" in
*LI_S*) cat told;;
*--cleanenv*) cat env;;
*--fakeroot*) cat ids; exit 255;;
*) echo lumiimg-engine: starts;;
esac"""
    found = {one.id: one.answer for one in standin(script).shown}
    for key in ("told-variables", "variables-inside", "fakeroot-without-ids"):
        assert found[key] == ROWS[key].shows[name.partition("-")[0]]


@pytest.fixture
def standin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Behaviour]:
    def answers(script: str) -> Behaviour:
        path = tmp_path / "singularity"
        path.write_text(f"{BEGINS}{script}\n")
        path.chmod(0o755)
        monkeypatch.setenv("LUMIIMG_ENGINE", str(path))
        (tmp_path / "image.sif").touch()
        return behaviour_of(tmp_path / "image.sif", os.environ)

    return answers


def test_an_engine_that_starts_no_image_shows_what_needs_none(standin: Callable[[str], Behaviour]) -> None:
    shown = standin('[ "$2" = --help ] && echo "  --oci  --no-oci" && exit; echo "FATAL: no space"; exit 255')
    found = {one.id: one for one in shown.shown}
    assert shown.engine == "SingularityCE 4.1.3"
    assert found["oci-mode"].answer == ROWS["oci-mode"].of(shown.engine)
    assert found["unpacking"].answer == "no such option"
    for name in ("told-variables", "variables-inside", "image-path", "fakeroot-without-ids", "bound-squashfs"):
        assert found[name].answer is None
        assert found[name].why == "the image does not start: FATAL: no space"


def test_an_engine_that_hangs_costs_its_time_once_each_and_leaves_nothing(
    standin: Callable[[str], Behaviour], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(behaviour, "_TRY_S", 0.3)
    monkeypatch.setattr(behaviour, "_ALL_S", 1.0)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    found = {one.id: one for one in standin("exec sleep 60").shown}
    assert {one.answer for one in found.values()} == {None, "no such option"}
    assert found["mksquashfs-args"].answer, "of `build --help` alone, which answers"
    assert found["told-variables"].why == "the image does not start: no end within 0 s"
    assert found["other-options"].why == "not begun: the tries have 1 s together"
    assert not [*(tmp_path / "tmp").iterdir()]


def test_what_an_image_prints_beside_is_no_answer_and_a_long_one_is_cut(standin: Callable[[str], Behaviour]) -> None:
    shown = standin(
        'echo "Ss Ba" ; echo "\t lumiimg-engine: Ss"; [ "$2" = --help ] || echo lumiimg-engine: $(printf "x%.0s " $(seq 999))'
    )
    found = {one.id: one for one in shown.shown}
    assert found["told-variables"].answer == "alone: none; of both: none"
    assert all(len(one.answer or one.why) <= 300 for one in shown.shown)


def test_a_node_without_an_engine_says_so_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["node", str(tmp_path), "--engine-in", str(tmp_path / "image.sif")]) == ExitCode.MISSING_HERE
    printed = capsys.readouterr()
    assert printed.out == ""
    assert len(printed.err.splitlines()) <= 2
    assert "no container engine answers here" in printed.err


# -- in a trial


def case(*shown: Shown, engine: str = "SingularityCE 4.1.3") -> TrialCase:
    claims = (*of_site(LUMI), *of_engine(LUMI))
    plan = TrialPlan(
        schema=1,
        id="0123abcd",
        made="2026-11-27T10:00:00+00:00",
        tool="0.1.0",
        site="lumi",
        site_name="lumi",
        nodes=2,
        node_minutes=9,
        images=(),
        steps=(),
        claims=claims,
    )
    return TrialCase(plan, {STEP: Record(step=STEP, ending=Ending.DONE)}, engine=Behaviour(engine, shown))


def judged(told: TrialCase, name: str) -> tuple[ClaimOutcome, str | None, str]:
    claim = next(one for one in told.plan.claims if one.id == f"engine.{name}")
    read = reading(told, claim)
    return outcome(claim, read), read.value, read.why


def test_what_the_engine_shows_is_held_against_the_column_of_its_family() -> None:
    told = case(
        Shown("oci-mode", ROWS["oci-mode"].shows["singularityce"]),
        Shown("zstd", "starts it"),
        Shown("image-path", None, "the engine is set-user-id"),
    )
    assert judged(told, "oci-mode")[0] is ClaimOutcome.SAME
    assert judged(told, "zstd") == (ClaimOutcome.DIFFERS, "starts it", "")
    assert judged(told, "image-path") == (ClaimOutcome.OPEN, None, "the engine is set-user-id")
    assert judged(told, "unpacking") == (ClaimOutcome.OPEN, None, NOT_KNOWN)
    assert judged(replace(told, engine=None), "zstd") == (ClaimOutcome.OPEN, None, "nothing was printed")


def test_what_another_engine_shows_is_one_difference_and_not_one_of_each_row() -> None:
    told = case(Shown("zstd", "starts it"), engine="Apptainer 1.4.5")
    why = "the claim is of SingularityCE, and this is Apptainer 1.4.5"
    assert judged(told, "zstd") == (ClaimOutcome.OPEN, None, why)


@pytest.mark.parametrize(("engine", "column"), [("Apptainer 1.4.5", "apptainer"), ("Podman 5", None), (None, None)])
def test_claims_are_of_the_engine_that_the_site_names(engine: str | None, column: str | None) -> None:
    found = {claim.id.removeprefix("engine."): claim.predicted for claim in of_engine(replace(LUMI, engine=engine))}
    assert found == ({row.id: row.shows[column] for row in ROWS.values()} if column else {})


def test_a_plan_tries_the_engine_with_the_first_image_behind_the_look_at_the_nodes(tmp_path: Path) -> None:
    image = fabric_builder.image(tmp_path / "image")
    assert main(["trial", "plan", str(image), "-o", str(tmp_path / "t"), "--site", "lumi", "--quiet"]) == 0
    plan = TrialFolder(tmp_path / "t").plan()
    names = [step.name for step in plan.steps]
    assert names.index(STEP) == names.index("nodes") + 1
    step = plan.steps[names.index(STEP)]
    assert step.words[-2:] == ("--engine-in", str(image))
    assert (step.nodes, step.minutes, step.limit) == (1, 1, 5)
    assert {claim.id for claim in plan.claims if claim.step == STEP} == {f"engine.{name}" for name in ROWS}
    assert all(claim.source and claim.date for claim in plan.claims if claim.step == STEP)


@pytest.mark.parametrize("output", [{}, {"engine": 7}, {"engine": "x", "shown": [[]]}, {"shown": "x" * 200_000}, []])
def test_output_that_is_not_of_the_step_leaves_its_claims_open(tmp_path: Path, output: Any) -> None:
    image = fabric_builder.image(tmp_path / "image")
    assert main(["trial", "plan", str(image), "-o", str(tmp_path / "t"), "--site", "lumi", "--quiet"]) == 0
    folder = TrialFolder(tmp_path / "t")
    folder.output_file(STEP).write_text(json.dumps(output))
    folder.keep(Record(step=STEP, ending=Ending.DONE))
    told = read_case(folder, folder.plan())
    for name in ROWS:
        assert judged(told, name)[:2] == (ClaimOutcome.OPEN, None)
