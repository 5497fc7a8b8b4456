"""What engines show of themselves. By a real one: tests/engine/test_engine_behaviour.py; here a stand-in that misbehaves."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tools import engine_behaviour as behaviour
from tools.engine_behaviour import TRIES, behaviour_of, tried_differences

if TYPE_CHECKING:
    from collections.abc import Callable

Shown = dict[str, tuple[str | None, str]]
ROWS = {row["id"]: row for row in tried_differences()}
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
        assert row["shows"].keys() == {"apptainer", "singularityce"}
        assert row["id"] == "bound-squashfs" or len({*row["shows"].values()}) == 2, "nothing told them apart"


@pytest.mark.parametrize("name", ["apptainer-1.4.5", "singularityce-4.1.3"])
def test_options_of_build_are_those_that_the_real_programs_printed(name: str) -> None:
    there = recorded(name)["build-help"]["output"].split()
    tried = 0
    for row in ROWS.values():
        asked = {text for shown in row["shows"].values() for text in shown.split(", ") if text.startswith("build --")}
        for text in asked:
            tried += 1
            is_said = text in row["shows"][name.partition("-")[0]].split(", ")
            assert is_said is (text.removeprefix("build ") in there), text
    assert tried >= 8


@pytest.mark.parametrize("name", ["apptainer-1.4.5", "singularityce-4.1.3"])
def test_what_the_real_programs_printed_is_read_as_the_table_has_it(
    name: str, standin: Callable[[str], Shown], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
    found = standin(script)
    for key in ("told-variables", "variables-inside", "fakeroot-without-ids"):
        assert found[key][0] == ROWS[key]["shows"][name.partition("-")[0]]


@pytest.fixture
def standin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Shown]:
    def answers(script: str) -> Shown:
        path = tmp_path / "singularity"
        path.write_text(f"{BEGINS}{script}\n")
        path.chmod(0o755)
        monkeypatch.setenv("LUMIIMG_ENGINE", str(path))
        (tmp_path / "image.sif").touch()
        return behaviour_of(tmp_path / "image.sif", os.environ)[1]

    return answers


def test_an_engine_that_starts_no_image_shows_what_needs_none(standin: Callable[[str], Shown]) -> None:
    found = standin('[ "$2" = --help ] && echo "  --oci  --no-oci" && exit; echo "FATAL: no space"; exit 255')
    assert found["oci-mode"][0] == ROWS["oci-mode"]["shows"]["singularityce"]
    assert found["unpacking"][0] == "no such option"
    for name in ("told-variables", "variables-inside", "image-path", "fakeroot-without-ids", "bound-squashfs"):
        assert found[name] == (None, "the image does not start: FATAL: no space")
