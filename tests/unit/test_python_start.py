"""How a Python of an image starts, beside real ones over the same files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lumiimg.host.python_start import NoPythonError, start_python
from lumiimg.image import open_image

PYTHONS = [sys.executable, *filter(None, os.environ.get("LUMIIMG_TEST_PYTHONS", "").split(":"))]
_ASK = "import sys, json, importlib.machinery as m; print(json.dumps([sys.path[1:], m.EXTENSION_SUFFIXES, sys.version_info[:2]]))"


@pytest.mark.parametrize("python", PYTHONS)
def test_a_python_of_this_machine_starts_as_the_model_says(python: str) -> None:
    environment = {"PYTHONNOUSERSITE": "1"}
    real = subprocess.run([python, "-c", _ASK], env=environment, capture_output=True, text=True, check=True).stdout
    with open_image(Path("/")) as image:
        found = start_python(image.root, python, environment)
    path, *facts = json.loads(real)
    assert facts == [[*found.suffixes], [*found.version]]
    assert path[: len(found.path)] == [*found.path]


def test_a_program_without_a_python_is_refused(tmp_path: Path) -> None:
    (tmp_path / "script").write_text("#!/usr/bin/env bash\n")
    (tmp_path / "text").write_text("nothing")
    with open_image(tmp_path) as image:
        for name, words in (
            ("script", "is a script (#!/usr/bin/env bash)"),
            ("text", "is not a program"),
            ("x", "leads nowhere"),
        ):
            with pytest.raises(NoPythonError) as caught:
                start_python(image.root, f"/{name}", {})
            assert words in str(caught.value)
