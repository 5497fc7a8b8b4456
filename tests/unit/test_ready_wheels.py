"""vLLM as ready-made wheels with their own torch: chosen if they fit, locked completely, never over another torch."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from packaging.version import Version

from lumiimg.catalog.catalogue import open_catalogue
from lumiimg.catalog.sites import find_site
from lumiimg.cli.main import main
from lumiimg.core.errors import ExitCode
from lumiimg.resolve.context import PlanContext
from lumiimg.resolve.planner import possible_bases
from lumiimg.resolve.request import Request
from tests.shared.world import World, serve

GENERATIONS = {
    # base, release, its index, its torch
    "rocm700": ("rocm-7.0", "0.18.0", "2.9.1+git8907517"),
    "rocm721": ("rocm-7.2.4", "0.19.0", "2.10.0+git8514f05"),
}
BESIDE = {"triton": "3.6.0", "torchvision": "0.24.1+d801a34", "torchaudio": "2.9.0+eaa9e4e", "flash-attn": "2.8.3"}
pytestmark = pytest.mark.usefixtures("clean_home", "impatient")


def vllm(torch: str) -> tuple[str, ...]:
    """Return the requirements that upstream's pin_rocm_dependencies.py adds to a wheel, and a common one."""
    return (f"torch=={torch}", *(f"{name}=={version}" for name, version in BESIDE.items()), "numba==0.61.2")


@pytest.fixture
def world() -> Iterator[World]:
    torch: dict[str, tuple[str, ...]] = {torch: ("filelock",) for *_, torch in GENERATIONS.values()}
    of_torch: dict[str, dict[str, tuple[str, ...]]] = {name: {version: ()} for name, version in BESIDE.items()}
    releases = {f"{release}+{variant}": vllm(torch) for variant, (_, release, torch) in GENERATIONS.items()}
    cuda: dict[str, dict[str, tuple[str, ...]]] = {
        "torch": {"2.9.1": ("nvidia-cublas",)},
        "flash-attn": {"2.8.3": ("nvidia-cublas",)},
        "triton": {"3.6.0": ()},
    }
    everybody: dict[str, dict[str, tuple[str, ...]]] = {
        "numba": {"0.61.2": ()},
        "filelock": {"3.20": ()},
        "vllm": {"0.18.0": ("nvidia-cublas",)},
    }
    with serve(World(of_layers={"vllm": releases, "torch": torch, **of_torch}, wheels=cuda | everybody)) as world:
        yield world


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def lock(world: World, variant: str) -> int:
    base, release, _ = GENERATIONS[variant]
    return main(["lock", "--base", base, "--add", f"vllm=={release}", "--site", "generic", *world.mirrors])


def explained(capsys: pytest.CaptureFixture[str], words: str) -> tuple[dict[str, Any], str]:
    """Return the answer for LUMI, as JSON and as text."""
    asked = ["explain", *words.split(), "--site", "lumi", "--offline"]
    code = main([*asked, "--json"])
    answer = json.loads(capsys.readouterr().out)
    assert main([*asked, "--verbose"]) == code
    return answer, " ".join(capsys.readouterr().out.split())


def chosen(answer: dict[str, Any]) -> dict[str, str | None]:
    return {layer["name"]: layer["version"] for layer in answer["layers"]}


@pytest.mark.parametrize("variant", GENERATIONS)
def test_the_set_is_locked_whole_from_its_own_index_and_is_taken_again(world: World, variant: str) -> None:
    world.hashes = variant == "rocm700"  # without, the digest is that of the first download
    assert lock(world, variant) == ExitCode.GOOD
    document = tomllib.loads(Path("lumiimg.lock").read_text())
    assert [layer["name"] for layer in document["layer"]] == ["vllm"], "no layer brings another torch"
    wheels = {unquote(url): sha256 for url, sha256 in document["layer"][0]["wheels"].items()}
    assert all(len(sha256) == 64 for sha256 in wheels.values())
    _, release, torch = GENERATIONS[variant]
    of_set = {"vllm": f"{release}+{variant}", "torch": torch, **BESIDE}
    index = f"https://wheels.vllm.ai/rocm/{release}/{variant}/files/"
    assert sorted(url.split("/files/")[1].split("/")[0] for url in wheels if url.startswith(index)) == sorted(of_set)
    assert {version for version in of_set.values() if any(f"-{version}-" in url for url in wheels)} == {
        *of_set.values()
    }
    assert main(["build", "--locked", "--dry-run", *world.mirrors]) == ExitCode.GOOD, "it is what the catalogue has"


def test_a_set_whose_vllm_pins_another_torch_than_the_catalogue_has_is_refused_in_one_line(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.of_layers["vllm"]["0.18.0+rocm700"] = vllm("2.10.0+git8514f05")
    assert lock(world, "rocm700") == ExitCode.NO
    error = capsys.readouterr().err.splitlines()[-1]
    message = "the wheels of vllm 0.18.0 require torch==2.10.0+git8514f05, but its row has torch==2.9.1+git8907517"
    assert error.startswith(f"lumiimg: {message}; use another release")
    assert not Path("lumiimg.lock").exists()


def test_wheels_come_before_a_compile_of_the_same_version_unless_the_request_names_a_torch(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for words, torch, expected in (
        (
            "--base rocm-7.2.4 --add vllm==0.22.1",
            "2.10.0+git8514f05",
            "ready wheels with their own torch: minutes; from source: hours",
        ),
        ("--base rocm-7.2.4 --add vllm==0.22.1 --add pytorch==2.11.0", "2.11.0+rocm7.2", "from source: hours"),
        (
            "--base rocm-7.0 --add vllm",
            "2.10.0+rocm7.0",
            "ready wheels with their own torch, minutes: --add vllm==0.18.0",
        ),
        (
            "--base rocm-7.0 --add transformers --add vllm==0.18.0",
            "2.9.1+git8907517",
            "ready wheels with their own torch",
        ),
    ):
        answer, text = explained(capsys, words)
        assert answer["torch"] == torch, words
        assert expected in text, words


@pytest.mark.parametrize(
    "words", ["--base lumi-multitorch-u24r70", "--base rocm-7.0 --add pytorch", "--recipe lumi-vllm --add pytorch"]
)
def test_a_torch_that_is_there_is_never_replaced_by_that_of_the_set(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answer, text = explained(capsys, words if "--recipe" in words else f"{words} --add vllm==0.18.0")
    assert answer["decision"] == "refused"
    assert text.partition(" why: ")[2].startswith("needs no torch below, has torch 2.")
    assert "and a layer cannot replace another [torch] next, the nearest that works" in text


def test_ready_wheels_that_a_layer_of_torch_rules_out_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    _, text = explained(capsys, "--base rocm-7.0 --add pytorch --add vllm")
    assert "from source: hours; ready wheels with their own torch, minutes: --add vllm==0.18.0, without pytorch" in text


def test_a_named_base_stays_and_a_newer_pair_for_the_machine_is_named_in_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    answer, text = explained(capsys, "--base rocm-6.2.4 --add vllm")
    assert (answer["base"], chosen(answer)["vllm"]) == ("rocm-6.2.4", "0.10.1")
    assert "vllm 0.10.1: from source: hours; no ready wheels fit rocm-6.2.4" in text
    assert answer["newer"]["recipe"] == "lumi-vllm"
    assert "lumiimg build --recipe lumi-vllm" in text
    for words in ("--base rocm-6.2.4 --add vllm==0.10.1", "--recipe lumi-vllm"):
        assert explained(capsys, words)[0]["newer"] is None


def test_the_recipe_for_lumi_has_the_newest_wheels_that_were_rehearsed_and_that_no_rule_doubts_there() -> None:
    catalogue = open_catalogue({"HOME": "/nonexistent"})
    context = PlanContext(catalogue, site=find_site("lumi", {}))
    recipe = catalogue.recipe("lumi-vllm")
    newest, seen = Version(recipe.add[0].partition("==")[2]), list[str]()
    for version in dict.fromkeys(row.version for row in catalogue.layer("vllm").releases if row.wheels):
        asked = Request(base="", add=(f"vllm=={version}",), fabric=recipe.fabric)
        plans = [plan for plan in possible_bases(asked, context).bases if not plan.is_doubtful]
        if Version(version) == newest:
            assert recipe.base in [plan.base.name for plan in plans]
            break
        ready = [plan.layers[-1] for plan in plans if (release := plan.layers[-1].release) and release.wheels]
        seen += [layer.status for layer in ready]
    assert not {"rehearsed", "built", "run"} & {*seen}, (
        "a newer one was rehearsed: the recipe, and all pages, name that"
    )
