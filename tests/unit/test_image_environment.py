"""Environment scripts are read as text: what a real shell exports is what is found, and nothing is ever run."""

from __future__ import annotations

import os
import subprocess

import pytest

from lumiimg.image.environment import Environment


def _read(text: str) -> Environment:
    environment = Environment()
    environment.read(text, "/.singularity.d/env/90-environment.sh")
    return environment


@pytest.mark.parametrize(
    "script",
    [
        "export A=b",
        "export A='b c' B=\"d e\"; export C=f",
        'export A="${A:-"v w"}"',
        'export A="${A:-"quote \\" dollar \\$X back \\\\ tick \\`"}"',
        'export LD_LIBRARY_PATH="/x:${LD_LIBRARY_PATH:-}"',
        'export LD_LIBRARY_PATH="/x${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"',
        'export L=/a\nexport L="/b${L:+:$L}"',
        "A=1\nB=2\nexport B",
        "export A",
        "export A=1 # a comment\n# export B=2\nexport C='#no comment' D=a#b",
        'export A="two\nlines"',
        "export A=a\\\nb",
        'export A="${X-dash}${Y:+no}${Z:=set}$Z"',
        "\texport   A=1\t  B=2  ",
        'export A="it\'s" B=\'say "hi"\'',
        "export A=",
        'export A=""',
    ],
)
def test_result_is_that_of_a_real_shell(script: str) -> None:
    done = subprocess.run(["/bin/sh", "-c", f"{script}\nexec /usr/bin/env -0"], env={}, capture_output=True, check=True)
    said = dict(item.split("=", 1) for item in os.fsdecode(done.stdout).split("\0") if item)
    expected = {name: value for name, value in said.items() if name not in ("PWD", "OLDPWD", "SHLVL", "_")}
    environment = _read(script)
    assert environment.result() == expected
    assert environment.warnings == []


@pytest.mark.parametrize(
    "script",
    [
        "export A=$(touch /tmp/run)",
        "export A=`id`",
        "if true; then\n  export A=1\nfi",
        "f() {\n export A=1\n}",
        "export A=${A%x}",
        'export A="open',
        "for x in 1 2; do export A=$x; done",
    ],
)
def test_what_is_beyond_a_plain_export_is_left_out_and_said(script: str) -> None:
    environment = _read(script + "\n")
    assert "A" not in environment.result()
    assert environment.warnings


def test_all_values_together_are_bounded() -> None:
    environment = Environment()
    text = f"export A={'x' * 32_000}\n" + "".join(f"export V{number}=$A$A\n" for number in range(5_000))
    environment.read(text, "big.sh")
    assert sum(map(len, environment.result().values())) <= 1 << 20
    assert environment.warnings
