"""The shell inside an engine and our reader give the same result for the scripts of an image."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
from itertools import islice
from typing import TYPE_CHECKING

import pytest

from lumiimg.image import open_image
from tests.shared.shells import CRASHES, OPEN, PLAIN, collected, driver, generated, read, wrongly_sure

if TYPE_CHECKING:
    from pathlib import Path

    from lumiimg.engine.engine import Engine

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("engine")]

_SCRIPT = ".singularity.d/env/90-environment.sh"
_OF_THE_ENGINE = frozenset(
    f"{engine}_{name}"
    for engine in ("APPTAINER", "SINGULARITY")
    for name in ("APPNAME", "BIND", "COMMAND", "CONTAINER", "ENVIRONMENT", "NAME")
)


@pytest.fixture
def sandbox(tmp_path: Path) -> Path:
    """A root file system that only contains `env`."""
    folder = tmp_path / "sandbox"
    linked = subprocess.run(["ldd", "/usr/bin/env"], capture_output=True, text=True, check=True).stdout
    for path in ("/usr/bin/env", *re.findall(r"/\S+", linked)):
        (folder / path[1:]).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, folder / path[1:])
    for name in ("bin", "dev", "etc", "proc", "sys", "tmp", ".singularity.d/env"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    shutil.copy("/usr/bin/env", folder / "bin/sh")  # the engine requires one
    return folder


def _in_engine(engine: Engine, sandbox: Path, *bound: Path) -> dict[str, str]:
    binds = [argument for path in bound for argument in ("--bind", str(path))]
    options = ["--cleanenv", "--no-home", "--pwd", "/", *binds]
    argv = [str(engine.path), "exec", *options, str(sandbox), "/usr/bin/env", "-0"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    return dict(item.split("=", 1) for item in done.stdout.split("\0") if "=" in item)


def test_what_is_sure_after_any_script_is_what_the_shell_of_an_engine_has(
    engine: Engine, sandbox: Path, tmp_path: Path
) -> None:
    chance = random.Random("engine")  # noqa: S311 - the same scripts each time
    scripts = [*PLAIN, *OPEN, *islice(generated(chance), 600)]
    followed = [script for script in scripts if script not in CRASHES and not read(script).lost]
    bound = tmp_path / "scripts"
    bound.mkdir()
    text = driver(followed, bound).replace(
        "( . ", "( unset A B C L X Y Z HOME NCCL_NET FI_PROVIDER LD_LIBRARY_PATH; . "
    )
    (sandbox / _SCRIPT).write_text(text.removeprefix("exec 2>/dev/null\n"))
    _in_engine(engine, sandbox, bound)
    for script, real in zip(followed, collected(followed, bound), strict=True):
        assert wrongly_sure(script, real, _OF_THE_ENGINE) is None


def test_path_in_the_container_is_the_one_that_is_read(engine: Engine, sandbox: Path) -> None:
    docker = sandbox / ".singularity.d/env/10-docker2singularity.sh"
    for text, of_docker in (
        ("export PATH=/opt/rocm/bin:$PATH\n", None),
        ("#!/bin/sh\n", 'export PATH="/opt/x:/bin"\n'),
    ):
        (sandbox / _SCRIPT).write_text(text)
        if of_docker:
            docker.write_text(of_docker)
        with open_image(sandbox) as image:
            assert image.description.warnings == ()
            assert image.environment["PATH"] == _in_engine(engine, sandbox)["PATH"]
