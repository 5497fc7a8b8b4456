"""What a real engine makes of the values in a definition: it says of the image what was written, to the character."""

from __future__ import annotations

import json
import os
import random
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from lumiimg.catalog.catalogue import Catalogue
from lumiimg.definition.text import DefinitionError
from lumiimg.definition.writer import write_chain
from lumiimg.resolve.decide import decide, locked
from lumiimg.resolve.network.mirrors import Mirrors
from lumiimg.resolve.plan import Ground
from lumiimg.resolve.request import Request
from tests.shared.layer_builder import BASE, FREE, ODD
from tests.shared.programs import examples

if TYPE_CHECKING:
    from pathlib import Path

    from lumiimg.definition.definition import Definition, Sections
    from lumiimg.engine.engine import Engine

pytestmark = pytest.mark.engine

_PIECES = [
    "{",
    "{{",
    " x ",
    "}}",
    "%post",
    "%",
    "\n",
    "'",
    '"',
    "$",
    "${V}",
    "`",
    "\\",
    "#",
    "bootstrap:",
    "From: ",
    "é",
    "😀",
]
_PIECES += ["\t", ";", "&", "|", "(", ")", "<", ">", "!", "*", "~", "=", ",", "a", " ", "\r", "{{.Id}}", "%%", "/", "-"]


def _values() -> list[str]:
    chance = random.Random(8)  # noqa: S311 - the same each time
    return [*ODD, *("".join(chance.choices(_PIECES, k=chance.randrange(1, 9))) for _ in range(examples(12)))]


def _catalogue(layers: Path) -> Catalogue:
    for name, toml in (("base", BASE), ("free", FREE)):
        (layers / name).mkdir(parents=True)
        (layers / name / "layer.toml").write_text(toml)
        (layers / name / "post.sh").write_text("true\n")
    return Catalogue((layers,), ())


def _facts(definition: Definition) -> Sections:
    return replace(definition.sections, files=(), post="")


def _built(engine: Engine, definition: Definition, folder: Path) -> Path:
    """Build a definition without its script: a tenth of a second, and nothing runs."""
    below = folder / f"{definition.parent}.sif"  # a folder; an engine goes by what it is
    (below / ".singularity.d" / "env").mkdir(parents=True)
    (folder / "x.def").write_text(_facts(definition).text, encoding="utf-8")
    # SingularityCE builds none for a user without this program, which has nothing to do here
    (folder / "proot").write_text("#!/bin/sh\nexit 1\n")
    (folder / "proot").chmod(0o755)
    env = os.environ | {"PATH": f"{folder}:{os.environ['PATH']}"}
    words: list[str | Path] = [engine.path, "build", "--notest", "--sandbox", "made", "x.def"]
    subprocess.run(words, cwd=folder, env=env, check=True, capture_output=True)
    return folder / "made"


def test_the_engine_says_of_an_image_what_was_written(engine: Engine, tmp_path: Path) -> None:
    catalogue = _catalogue(tmp_path / "layers")
    built = 0
    for number, value in enumerate(_values()):
        lock = locked(decide(Request("base", ("free",), {("free", "NOTE"): value}), Ground(catalogue, Mirrors({}), "")))
        try:
            definition = write_chain(lock)[1]
        except DefinitionError:
            continue
        folder = tmp_path / f"{number}"
        folder.mkdir()
        image = _built(engine, definition, folder)
        done = subprocess.run([engine.path, "inspect", "--json", "--all", image], capture_output=True, check=True)
        attributes = json.loads(done.stdout)["data"]["attributes"]
        written = _facts(definition).body.splitlines()
        assert attributes["deffile"].splitlines() == written, value
        assert {key: text for key, text in attributes["labels"].items() if key.startswith("lumiimg.")} == {
            "lumiimg.layer.02": "free"
        }
        script = image / ".singularity.d" / "env" / "90-environment.sh"
        told = subprocess.run(
            ["/bin/sh", "-c", '. "$1"; printf "%s\\0%s" "$V" "$W"', "sh", script],
            env={"PATH": "/bin", "W": "below"}, capture_output=True, check=True,
        )  # fmt: skip
        assert told.stdout.decode() == f"{value}\0{value}:below", value
        built += 1
    assert built > len(ODD) // 2
