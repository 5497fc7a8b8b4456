"""The shipped recipes: each resolves against a registry and indexes on loopback, and renders the definitions that are kept here."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from lumiimg.catalog.catalogue import open_catalogue
from lumiimg.cli.main import main
from lumiimg.core.errors import ExitCode
from lumiimg.definition.writer import write_chain, write_flat
from lumiimg.fabric.path import Fabric
from lumiimg.fetch.mirrors import Mirrors
from lumiimg.resolve.lock_check import lock_of
from lumiimg.resolve.lock_file import read_document
from tests.shared.layer_builder import RECIPES
from tests.shared.world import World, serve, wheels_of_layers

GOLDENS = Path(__file__).parents[1] / "fixtures" / "recipes"
HOME = {"HOME": "/nonexistent"}
DEBIAN = ("demo", "debian-jax")  # their bases come from a mirror of Debian that the machine names
DOUBTED = {"debian-jax": ["fabric"]}
REFUSED = {"lumi-sglang": "lumiimg lock --base rocm-6.4.4 --add vllm --fabric bundled --site lumi"}


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    wheels = wheels_of_layers()
    with serve(World(of_layers=wheels, wheels=wheels)) as world:
        yield world


@pytest.mark.usefixtures("clean_home")
def test_a_recipe_is_locked_and_renders_its_definitions(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert set(open_catalogue(HOME).recipe_names()) == {*RECIPES, *REFUSED, *DEBIAN}
    for recipe in RECIPES:
        assert main(["lock", "--recipe", recipe, *world.mirrors, "--quiet", "-o", f"{recipe}.lock"]) == ExitCode.GOOD
        path = tmp_path / f"{recipe}.lock"
        lock = lock_of(read_document(path), [open_catalogue(HOME)], Mirrors({}), "", path)
        assert lock.fabric is Fabric.BUNDLED, recipe
        assert all(source.sha256 for layer in lock.stack for source in (*layer.sources, *layer.wheels)), recipe
        flat = write_flat(lock)
        golden = GOLDENS / f"{recipe}.def"
        if os.environ.get("LUMIIMG_WRITE_GOLDENS"):
            golden.write_text(flat.text)
        assert flat.text == golden.read_text(), "look at the difference; LUMIIMG_WRITE_GOLDENS=1 keeps it"
        chain = write_chain(lock)
        assert [definition.layers[0] for definition in chain] == [layer.layer.name for layer in lock.stack]


@pytest.mark.usefixtures("clean_home")
def test_a_recipe_is_a_plan_that_nothing_is_known_against(capsys: pytest.CaptureFixture[str]) -> None:
    for recipe in open_catalogue(HOME).recipe_names():
        refused = recipe in REFUSED
        assert main(["explain", "--recipe", recipe, "--json"]) == (ExitCode.NO if refused else ExitCode.GOOD)
        rules = json.loads(capsys.readouterr().out)["rules"]
        assert [rule["id"] for rule in rules if rule["outcome"] == "warning"] == DOUBTED.get(recipe, []), recipe
        outcomes = {rule["outcome"] for rule in rules} - {"warning"}
        assert outcomes == ({"ok", "refused"} if refused else {"ok"}), recipe
        if refused:
            assert main(["lock", "--recipe", recipe]) == ExitCode.NO
            assert REFUSED[recipe] in capsys.readouterr().err
    for recipe, fabric in (("lumi-vllm", "bundled"), ("demo", "auto")):
        assert main(["show", recipe, "--json"]) == ExitCode.GOOD
        assert json.loads(capsys.readouterr().out)["fabric"] == fabric
