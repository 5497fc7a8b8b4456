"""Releases without a row, read from the package index that this machine is configured to use."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lumiimg.cli.main import main

pytestmark = pytest.mark.engine


@pytest.mark.parametrize(
    ("request_", "version"),
    [
        ("jax==0.11.1", "it does not say which rocm it is made for"),
        ("vllm==0.25.1", "never tried"),
    ],
)
def test_a_real_release_is_read_from_the_real_index(
    request_: str, version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LUMIIMG_CACHE", str(tmp_path / "cache"))
    torch = ("--mirror", "https://download.pytorch.org=http://127.0.0.1:1")  # which has a newer torch, or will
    assert main(["explain", "--base", "rocm-7.2.4", "--add", request_, "--site", "generic", *torch, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["layers"][-1]["status"] == "read"
    assert version in " ".join(rule["because"] for rule in answer["rules"])
