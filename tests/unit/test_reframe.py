"""`lumiimg reframe`: a test that ReFrame loads and runs. The `lumiimg` that it starts is a stand-in."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from lumiimg.cli.main import main
from tests.shared import fabric_builder
from tests.shared.programs import needs, tenth_of

Capture = pytest.CaptureFixture[str]
NAME = "an 'image' \"x\" $HOME `id` \\ {b}.sif"


def reframe(test: Path, folder: Path, *argv: str, says: str = "{}", code: int = 0) -> str:
    """Run ReFrame, with a `lumiimg` on PATH that prints its arguments into a file, something, and ends with a code."""
    needs("reframe")
    standin = folder / "bin/lumiimg"
    standin.parent.mkdir(exist_ok=True)
    standin.write_text(f"#!/bin/bash\nprintf '%s\\0' \"$@\" > '{folder}/argv'\necho '{says}'\nexit {code}\n")
    standin.chmod(0o755)
    env = {**os.environ, "PATH": f"{standin.parent}:{os.environ['PATH']}", "HOME": str(folder), "RFM_COLORIZE": "0"}
    words: list[str | Path] = ["reframe", "-c", test, "--prefix", folder / "rfm", *argv]
    done = subprocess.run(words, env=env, cwd=folder, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


@pytest.fixture
def image(tmp_path: Path) -> Path:
    return fabric_builder.image(tmp_path / "image").rename(tmp_path / NAME)


@pytest.fixture
def test_file(tmp_path: Path, image: Path, capsys: Capture) -> Path:
    assert main(["reframe", str(image), "--site", "lumi"]) == 0
    path = tmp_path / "network.py"
    path.write_text(capsys.readouterr().out)
    return path


def test_reframe_lists_it_and_runs_it_dry(test_file: Path, tmp_path: Path) -> None:
    assert "- lumiimg_an_image_x_home_id_b /" in reframe(test_file, tmp_path, "-l")
    assert "Ran 1/1 test case(s) from 1 check(s) (0 failure(s)" in reframe(test_file, tmp_path, "--dry-run")


def test_reframe_runs_the_check_with_the_site_s_bandwidth_as_reference(
    test_file: Path, image: Path, tmp_path: Path
) -> None:
    says = json.dumps({"run": [{"measurements": [{"name": "all_reduce_perf", "best_gb_s": 84.2}]}]})
    said = reframe(test_file, tmp_path, "-r", "--performance-report", says=says)
    assert "all_reduce_perf: 84.2 GB/s (r:85.0, l:-0.6588, u:None)" in said
    assert (tmp_path / "argv").read_text().split("\0") == ["check", str(image), "--nodes", "2", "--json", ""]
    assert "failed to meet reference" in reframe(test_file, tmp_path, "-r", says=says.replace("84.2", "20"))
    # without GPUs nothing is measured, and nothing is compared
    assert "PASSED" in reframe(test_file, tmp_path, "-r")


NO_YES = [(1, "does not use the fast network"), (3, "cannot be decided"), (4, "is missing here"), (9, "did not run")]


@pytest.mark.parametrize(("code", "words"), NO_YES[: tenth_of(len(NO_YES))])
def test_what_is_no_yes_fails_in_words(test_file: Path, tmp_path: Path, code: int, words: str) -> None:
    said = reframe(test_file, tmp_path, "-r", code=code)
    assert "FAILED" in said
    assert words in said
    assert f"(exit {code})" in said


def test_the_reference_is_the_site_s(image: Path, capsys: Capture) -> None:
    assert main(["reframe", str(image), "--site", "lumi", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["reference"] == {"test": "all_reduce_perf", "gb_s": 85, "least_gb_s": 29}
    assert main(["reframe", str(image), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["reference"] is None


def test_what_is_no_image_gets_no_test(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "x").write_text("x")
    assert main(["reframe", str(tmp_path / "x")]) == 2
    assert capsys.readouterr().out == ""


def test_the_check_runs_with_the_variables_of_a_job_there(
    test_file: Path, image: Path, tmp_path: Path, capsys: Capture
) -> None:
    assert main(["reframe", str(image), "--site", "lumi", "--json"]) == 0
    wanted = json.loads(capsys.readouterr().out)["environment"]
    assert main(["job", str(image), "--site", "lumi", "--nodes", "2", "--json", "--", "true"]) == 0
    of_job = {item["name"]: item["value"] for item in json.loads(capsys.readouterr().out)["environment"]}
    assert wanted.items() <= of_job.items()
    assert {"NCCL_NET_GDR_LEVEL", "FI_MR_CACHE_MONITOR", "FI_CXI_DISABLE_HOST_REGISTER"} <= wanted.keys()
    reframe(test_file, tmp_path, "-r")
    (script,) = (tmp_path / "rfm").rglob("rfm_job.sh")
    for name, value in wanted.items():
        assert f"export {name}={value}\n" in script.read_text()


@pytest.mark.threat("S33")
def test_a_site_s_value_is_one_word_of_the_test_s_script(image: Path, tmp_path: Path, capsys: Capture) -> None:
    mine = tmp_path / "mine.toml"
    value = "a b;touch here `touch here` \u00e9'\""
    mine.write_text(
        'title = "mine"\nsource = "me"\ndate = 2026-11-22\n[[environment]]\nname = "MINE"\nnodes = "any"\n'
        f'because = "x\\\\ntouch here"\nsource = "me"\nvalue = {json.dumps(value)}\n'
    )
    assert main(["reframe", str(image), "--site", str(mine)]) == 0
    test = tmp_path / "mine.py"
    test.write_text(capsys.readouterr().out)
    reframe(test, tmp_path, "-r")
    (script,) = (tmp_path / "rfm").rglob("rfm_job.sh")
    (line,) = [line for line in script.read_text().splitlines() if line.startswith("export MINE=")]
    done = subprocess.run(["sh", "-c", f'{line}; printf %s "$MINE"'], capture_output=True, text=True, check=True)
    assert done.stdout == value
