"""Environment scripts are read as text: sure values are those that shells export, others are in doubt; nothing runs."""

from __future__ import annotations

import json
import random
import time
from importlib.resources import files
from itertools import islice
from pathlib import Path

from lumiimg.image import DEFAULT_PATH, open_image
from tests.shared.closed_roots import strangers_mode
from tests.shared.programs import EVERYTHING
from tests.shared.shells import OPEN, PLAIN, exported, generated, read, wrongly_sure

_ENV = ".singularity.d/env"


def test_what_is_sure_after_any_script_is_what_real_shells_have(tmp_path: Path) -> None:
    """`return`, `eval`, `export -n`, `&&`, `if`, subshells, functions, odd quotes: real shells give the truth."""
    made = generated(random.Random("shell"))  # noqa: S311 - the same scripts each time
    scripts = [*PLAIN, *OPEN, *islice(made, 120)]
    for _ in range(20 if EVERYTHING else 1):
        for shell in ("dash", "bash"):
            found = map(wrongly_sure, scripts, exported(shell, scripts, tmp_path))
            assert [each for each in found if each] == [], shell
        after = [read(script) for script in scripts]
        sure = sum(len(each.environment.keys() - each.doubts.keys()) for each in after if not each.lost)
        assert sure > len(scripts), "of some it is sure all the same"
        scripts = [*islice(made, 200)]


def test_what_scripts_write_as_a_rule_is_followed_and_what_only_a_shell_knows_is_in_doubt() -> None:
    assert [script for script in PLAIN if read(script).lost or read(script).doubts] == []
    assert [script for script in OPEN if not (read(script).lost or read(script).doubts)] == []
    for name in ("01-base.sh", "90-environment.sh", "99-base.sh", "99-runtimevars.sh"):
        text = (files("lumiimg.build") / "apptainer/env" / name).read_text()
        assert not read("export LD_LIBRARY_PATH=/opt/x", text).lost, name
        assert read("export LD_LIBRARY_PATH=/opt/x", text).doubts == {}, name
    assert read(text).environment == {"PATH": DEFAULT_PATH}


def test_a_doubt_names_the_script_and_the_statement_and_nothing_in_doubt_is_taken_for_known() -> None:
    where = "/.singularity.d/env/90-environment.sh"
    doubts = read("if [ -d /opt/rocm ]; then\n  export NCCL_NET=Socket\nfi").doubts
    assert doubts == {"NCCL_NET": f"{where}: export NCCL_NET=Socket"}
    assert read("NCCL_NET=Socket\neval $(cat x)\nexport NCCL_NET").lost == f"{where}: eval $(cat x)"
    after = read("[ -d /opt ] && export OMP_NUM_THREADS=1\nexport COPY=$OMP_NUM_THREADS SURE=1")
    assert (after.environment["SURE"], {*after.doubts}) == ("1", {"OMP_NUM_THREADS", "COPY"})
    after = read("ROOT=$(rocm-path)\nexport LD_LIBRARY_PATH=$ROOT/lib")
    assert after.doubts == {"LD_LIBRARY_PATH": f"{where}: export LD_LIBRARY_PATH=$ROOT/lib"}
    assert read("ROOT=$(rocm-path)\nROOT=/opt/rocm\nexport LD_LIBRARY_PATH=$ROOT/lib").doubts == {}


def test_what_one_script_defines_the_next_can_call() -> None:
    assert read("f() { export NCCL_NET=Socket; }", "f").lost
    assert read("A=/opt/x", "export LD_LIBRARY_PATH=$A").environment["LD_LIBRARY_PATH"] == "/opt/x"


UNITS = (
    "${",
    "''",
    "a;",
    "a|",
    "a && ",
    "(",
    "$(",
    "if true; then ",
    "f() ",
    "B=$A.\n",
    "f() { f; f; }; f; ",
    "$A",
    "a&\n",
)


def test_the_time_and_the_memory_a_script_takes_are_bounded() -> None:
    for unit in (
        *UNITS,
        "[ -d /x ] && export NCCL_NET=1\n",
        "".join(f"f{n}() {{ f{n + 1}; f{n + 1}; }}\n" for n in range(30)),
    ):
        start = time.process_time()
        environment = read(f"A={'x' * 60_000}\n" + unit * (30_000 // len(unit)) + "\nf0")
        assert sum(map(len, environment.environment.values())) <= 1 << 20
        assert time.process_time() - start < 2, unit
    assert read("a;" * 30_000).lost
    text = f"export A={'x' * 32_000}\n" + "".join(f"export V{number}=$A$A\n" for number in range(1_000))
    assert sum(map(len, read(text).environment.values())) <= 2 << 20
    assert read(text).lost


# -- of an image --

OF_THE_ENGINE = ("95-apps.sh", "99-base.sh", "99-runtimevars.sh")


def _image(folder: Path, **scripts: str) -> Path:
    for name, text in scripts.items():
        path = folder / _ENV / f"{name.replace('__', '-').strip('n')}.sh"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_scripts_with_names_of_the_engines_count_by_what_is_in_them(tmp_path: Path) -> None:
    own = {name: (files("lumiimg.build") / "apptainer/env" / name).read_text() for name in OF_THE_ENGINE}
    own["94-appsbase.sh"] = "#!/bin/sh\nSCIF_APPROOT_my-app=/scif/apps/my-app\nexport SCIF_APPROOT_my-app\n"
    for number, name in enumerate(own):
        for kind, more in enumerate(("", "false || export NCCL_NET=Socket\n", "return\n", "eval x\n")):
            folder = tmp_path / f"{number}-{kind}" / _ENV
            folder.mkdir(parents=True)
            (folder / "90-environment.sh").write_text(
                "export LD_LIBRARY_PATH=/opt/x\n[ -d /x ] && export PATH=/x:$PATH\n"
            )
            for each, written in own.items():
                (folder / each).write_text(written + more * (each == name))
            with open_image(folder.parents[1]) as image:
                assert image.environment.get("NCCL_NET") == ("Socket" if kind == 1 else None), name
                assert bool(image.description.lost) is (kind > 1), name
                if not kind:
                    assert image.environment == {"LD_LIBRARY_PATH": "/opt/x", "PATH": DEFAULT_PATH}
                    doubt = f"/{_ENV}/90-environment.sh: export PATH=/x:$PATH"
                    assert image.description.doubts == {"PATH": doubt}


def test_scripts_that_are_too_long_alone_or_together_are_reported_and_the_others_are_read(tmp_path: Path) -> None:
    folder = _image(tmp_path / "a", n90__environment="export A=1\n", n91__environment="# " + "x" * 1_100_000)
    (folder / ".singularity.d/labels.json").write_text(json.dumps({"a": "x" * 1_100_000}))
    with open_image(folder) as image:
        assert image.environment["A"] == "1"
        assert [warning.partition(": ")[0] for warning in image.description.warnings] == [
            f"/{_ENV}/91-environment.sh",
            "/.singularity.d/labels.json",
        ]
        assert image.description.labels == {}
    with open_image(_image(tmp_path / "b", **{f"n9{n}__more": "# " + "x" * 300_000 for n in range(4)})) as image:
        assert image.description.warnings[0].startswith(f"/{_ENV}/93-more.sh")


ACTIVATE = sorted((Path(__file__).parents[1] / "fixtures/venv").glob("activate-*"))
"""Scripts as CPython's venv wrote them, for /opt/venv."""


def _after(folder: Path, script: str, activate: str) -> tuple[dict[str, str], set[str], str]:
    """Return (environment, doubts, what is lost) of an image with this script and a virtual environment."""
    for path, text in ((f"{_ENV}/90-environment.sh", script), ("opt/venv/bin/activate", activate)):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    with open_image(folder) as image:
        return image.environment, {*image.description.doubts}, image.description.lost


def test_the_activate_of_a_virtual_environment_is_followed_where_it_is_as_venv_wrote_it(tmp_path: Path) -> None:
    assert len(ACTIVATE) > 2
    for text in (path.read_text() for path in ACTIVATE):
        for script in (
            ". /opt/venv/bin/activate",
            "V=/opt/venv\nsource $V/bin/activate",
            "if [ -f /opt/venv/bin/activate ]; then\n  . /opt/venv/bin/activate\nfi",
            "[ -d /opt/venv ] && [ ! -d /opt ] || . /opt/venv/bin/activate",
        ):
            environment, doubts, lost = _after(tmp_path, f"export PATH=/bin PYTHONHOME=/x\n{script}\n", text)
            assert (environment["PATH"], environment["VIRTUAL_ENV"]) == ("/opt/venv/bin:/bin", "/opt/venv"), script
            assert (doubts, lost, "PYTHONHOME" in environment) == ({"VIRTUAL_ENV_PROMPT"}, "", False), script
        assert "PATH" in _after(tmp_path, "[ -d /pfs ] && . /opt/venv/bin/activate\n", text)[1]
        for script in (
            ". /opt/venv/bin/activate x",
            ". /opt/venv/bin/activate; deactivate",
            ". /opt/venv/bin/activate; . /opt/venv/bin/activate",
            "A=1 . /opt/venv/bin/activate",
            ". /opt/venv/bin/other",
            ". /opt/../tmp/activate",
        ):
            assert _after(tmp_path, f"export PATH=/bin\n{script}\n", text)[2], script
        for changed in (
            f"{text}export NCCL_NET=Socket\n",
            text.replace("/opt/venv", "$(echo /opt/x)"),
            text.replace("export PATH", "export NCCL_NET=Socket", 1),
        ):
            assert changed != text
            assert _after(tmp_path, ". /opt/venv/bin/activate\n", changed)[2], changed


def test_a_script_that_another_sources_is_read_with_it(tmp_path: Path) -> None:
    for script, text, sure in (
        (". /opt/venv/bin/activate", "export A=1; export B=$A", {"B": "1"}),
        ("A=1; source /opt/venv/bin/activate; export B=$A", "A=2", {"B": "2"}),
        ("[ -n x ] && . /opt/venv/bin/activate", "unset A; export B=x", {"B": "x"}),
    ):
        environment, doubts, lost = _after(tmp_path, script, text)
        assert ({name: environment[name] for name in sure}, lost) == (sure, ""), script
        assert not doubts & sure.keys(), script
    for script, text in (
        ("[ -d /pfs ] && . /opt/venv/bin/activate", "A=1"),
        (". /opt/venv/bin/activate", "A=1; return"),
        (". /opt/venv/bin/activate", ". /opt/venv/bin/activate"),
        ("f() { :; }; . /opt/venv/bin/activate", "f"),
    ):
        assert _after(tmp_path, script, text)[2], script


def test_files_that_an_image_has_are_there_and_what_it_lacks_a_host_may_have(tmp_path: Path) -> None:
    tests = {"-d /opt/venv": "1", "-e /opt/venv/bin": "1", "-f /opt/venv/bin/activate": "1", "! -d /opt/venv": None}
    for test, value in tests.items():
        environment, doubts, _ = _after(tmp_path, f"[ {test} ] && export A=1\n", "")
        assert (environment.get("A"), doubts) == (value, set()), test
    (tmp_path / "tmp").mkdir()
    for test in ("-d /opt/none", "-f /opt/venv", "-d /tmp", "-d /opt/../tmp", "-d opt", "-d /opt/v*", "-s /opt/venv"):
        assert _after(tmp_path, f"[ {test} ] && export A=1\n", "")[1] == {"A"}, test


def test_a_script_that_only_root_may_read_sets_nothing(tmp_path: Path) -> None:
    """`. "$script"` of the engine's action script fails, and the next one is sourced (Apptainer 1.4.5)."""
    (tmp_path / _ENV).mkdir(parents=True)
    (tmp_path / _ENV / "90-environment.sh").write_text("export A=1\n")
    (tmp_path / _ENV / "91-own.sh").write_text("export A=2\n")
    (tmp_path / _ENV / "91-own.sh").chmod(strangers_mode(0o700))
    with open_image(tmp_path) as image:
        assert (image.environment["A"], image.description.warnings) == ("1", ())
