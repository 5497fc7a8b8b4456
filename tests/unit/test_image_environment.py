"""Environment scripts are read as text: what real shells export is what is found, or it is said; nothing is ever run."""

from __future__ import annotations

import json
import random
import time
from itertools import islice
from pathlib import Path

from lumiimg.image import open_image
from lumiimg.image.environment import DEFAULT_PATH, ShellEnvironment
from tests.shared.programs import EVERYTHING
from tests.shared.shells import BESIDE, LEFT_OUT, PLAIN, differences, doubtful, exported, generated, read, wrongly_sure

_ENV = ".singularity.d/env"


def test_what_is_followed_is_what_a_real_shell_exports_and_the_rest_is_said(tmp_path: Path) -> None:
    scripts = (*PLAIN, *BESIDE)
    assert [script for script in scripts if read(script).warnings] == [], "it sets nothing that counts"
    assert [script for script in LEFT_OUT if not read(script).warnings] == [], "it may set what counts"
    made = list(islice(generated(random.Random("shell")), 150))  # noqa: S311 - the same scripts each time
    followed = [*scripts, *(script for script in made if not read(script).warnings)]
    assert len(followed) > len(scripts) + 40
    for shell in ("dash", "bash"):
        found = map(differences, followed, exported(shell, followed, tmp_path))
        assert [difference for difference in found if difference] == [], shell


def test_a_warning_names_the_script_and_the_statement_and_what_is_in_doubt_is_not_taken_for_known() -> None:
    (warning,) = read("if [ -d /opt/rocm ]; then\n  export NCCL_NET=Socket\nfi").warnings
    assert warning == "/.singularity.d/env/90-environment.sh: left out, beyond a plain export: export NCCL_NET=Socket"
    environment = read("[ -d /opt ] && export OMP_NUM_THREADS=1\nexport COPY=$OMP_NUM_THREADS KEPT=1").result()
    assert environment == {"KEPT": "1", "PATH": DEFAULT_PATH}
    doubtful = read("ROOT=$(rocm-path)\nexport LD_LIBRARY_PATH=$ROOT/lib")
    assert "LD_LIBRARY_PATH=$ROOT/lib" in doubtful.warnings[0]
    assert read("ROOT=$(rocm-path)\nROOT=/opt/rocm\nexport LD_LIBRARY_PATH=$ROOT/lib").warnings == []


def test_what_may_not_be_run_leaves_no_variable_that_is_sure_and_is_another(tmp_path: Path) -> None:
    """`return`, `eval`, `export -n`, `&&`, `if`, subshells, functions: real shells say what they come to."""
    made = doubtful(random.Random("doubt"))  # noqa: S311 - the same scripts each time
    for scripts in (list(islice(made, 50)) for _ in range(20 if EVERYTHING else 1)):
        for shell in ("dash", "bash"):
            found = map(wrongly_sure, scripts, exported(shell, scripts, tmp_path))
            assert [each for each in found if each] == [], shell
        sure = [name for script in scripts for name in read(script).result().keys() - read(script).unsure()]
        assert len(sure) > len(scripts), "of some it is sure all the same"
    for script in ("return\nexport NCCL_NET=Socket", "[ -d /x ] && return; export NCCL_NET=Socket"):
        assert read(script).unsure() >= {"NCCL_NET"}, script


def test_what_one_script_defines_the_next_can_call() -> None:
    assert read("f() { export NCCL_NET=Socket; }", "f").warnings
    assert read("A=/opt/x", "export LD_LIBRARY_PATH=$A").result()["LD_LIBRARY_PATH"] == "/opt/x"


UNITS = ("${", "''", "a;", "a|", "a && ", "(", "$(", "if true; then ", "f() ", "B=$A.\n")


def test_the_time_and_the_memory_a_script_takes_are_bounded() -> None:
    for unit in (*UNITS, "[ -d /x ] && export NCCL_NET=1\n"):
        start = time.process_time()
        read(f"A={'x' * 60_000}\n" + unit * (190_000 // len(unit))).result()
        assert time.process_time() - start < 2, unit
    assert read("a;" * 150_000).warnings
    environment = ShellEnvironment()
    text = f"export A={'x' * 32_000}\n" + "".join(f"export V{number}=$A$A\n" for number in range(1_000))
    environment.read(text, "big.sh")
    assert sum(map(len, environment.result().values())) <= 1 << 20
    assert environment.warnings


# -- of an image --


def _image(folder: Path, **scripts: str) -> Path:
    for name, text in scripts.items():
        path = folder / _ENV / f"{name.replace('__', '-').strip('n')}.sh"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_scripts_that_are_too_long_alone_or_together_are_said_and_the_others_are_read(tmp_path: Path) -> None:
    folder = _image(tmp_path / "a", n90__environment="export A=1\n", n91__environment="# " + "x" * 1_100_000)
    (folder / ".singularity.d/labels.json").write_text(json.dumps({"a": "x" * 1_100_000}))
    with open_image(folder) as image:
        assert image.environment["A"] == "1"
        assert [warning.partition(": ")[0] for warning in image.warnings] == [
            f"/{_ENV}/91-environment.sh",
            "/.singularity.d/labels.json",
        ]
        assert image.labels == {}
    with open_image(_image(tmp_path / "b", **{f"n9{n}__more": "# " + "x" * 500_000 for n in range(4)})) as image:
        assert "not read" in image.warnings[0]
