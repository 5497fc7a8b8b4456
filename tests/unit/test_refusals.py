"""Refusals that help: what they propose, and hints that fit the fault."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from lumiimg.cli.main import main
from lumiimg.core.errors import ExitCode

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("words", "without", "nearest"),
    [
        (["--base", "debian-rocm", "--add", "vllm"], "", "--base rocm-7.2.4 --add vllm --site lumi"),
        (["--base", "rocm-6.3", "--add", "vllm==0.12.0"], "", "--base rocm-6.4.2 --add vllm==0.12.0 --site lumi"),
        # it works nowhere on this machine: then what does the same
        (["--base", "rocm-6.2.4", "--add", "sglang"], ", without sglang", "--base rocm-6.2.4 --add vllm --site lumi"),
    ],
)
def test_other_software_is_proposed_only_where_the_same_works_on_no_base(
    words: list[str], without: str, nearest: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = ["lock", *words, "--site", "lumi", "-o", str(tmp_path / "x.lock")]
    assert main(lock) == ExitCode.NO
    assert f"the nearest that works{without}: lumiimg lock {nearest}" in capsys.readouterr().err.replace("'", "")
    assert main(["build", *words, "--site", "lumi", "--dry-run"]) == ExitCode.NO
    assert f"the nearest that works{without}: lumiimg build {nearest}" in capsys.readouterr().err.replace("'", "")


def test_a_python_that_is_not_known_is_a_doubt(capsys: pytest.CaptureFixture[str]) -> None:
    """AMD's images of vLLM have one, whose version no tag says."""
    words = ["explain", "--base", "rocm-vllm-0.10.1", "--add", "bitsandbytes", "--site", "lumi", "--json"]
    assert main(words) == ExitCode.GOOD
    rules = json.loads(capsys.readouterr().out)["rules"]
    (reported,) = [rule for rule in rules if rule["have"].startswith("python")]
    assert (reported["outcome"], reported["have"]) == ("unknown", "python (version not known)")


def test_a_layer_that_lacks_a_component_is_refused_with_the_layer_that_has_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["explain", "--base", "debian-rocm", "--add", "jax", "--site", "generic"]) == ExitCode.NO
    output = capsys.readouterr().out
    assert "the mathematical libraries: --add debian-rocm-libraries" in " ".join(output.split())
    assert "lumiimg build --base debian-rocm --add debian-rocm-libraries --add jax --site generic" in output
