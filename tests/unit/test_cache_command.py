"""`lumiimg cache`, `build --why` and space for builds: what is reported about stored results, without an engine."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

import pytest

from lumiimg.build.cache import CacheEntry, CacheKey, LayerCache, verify
from lumiimg.build.keys import BuildStep, CacheLookup, content_after, why_rebuilt
from lumiimg.catalog.catalogue import open_catalogue
from lumiimg.cli.main import main
from lumiimg.core.errors import ExitCode, FailedError
from lumiimg.definition.definition import Definition, Header, Sections
from lumiimg.report.text import show
from lumiimg.report.views.cache import why_document
from tests.shared.build_machine import build_machine, stored
from tests.shared.programs import EVERYTHING
from tests.shared.world import World, serve, wheels_of_layers

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clean_home: Path) -> LayerCache:
    del clean_home
    monkeypatch.setenv("LUMIIMG_CACHE", str(tmp_path / "cache"))
    return LayerCache(tmp_path / "cache")


def keep(cache: LayerCache, name: str, content: bytes, *, below: str = "", **parts: object) -> CacheEntry:
    return stored(cache, CacheKey({"definition": f"{name}\n", **parts, "content": below}), content, name)


def why(cache: LayerCache, *inputs: Mapping[str, object], of: str) -> CacheLookup:
    """Look up the last of some steps with these inputs."""
    names = ["base", of][-len(inputs) :]
    chain = [Definition(name, (name,), None, Sections(Header("docker", "x")), ()) for name in names]
    return why_rebuilt(of, [BuildStep(*both) for both in zip(chain, inputs, strict=True)], cache)


@pytest.mark.threat
def test_damage_is_found_and_pruned(cache: LayerCache, capsys: Capture) -> None:
    keep(cache, "good", b"1")
    bad = keep(cache, "bad", b"22")
    bad.data.write_bytes(b"33")
    assert main(["cache", "verify"]) == ExitCode.NO
    assert "its content has changed" in capsys.readouterr().out
    other = keep(cache, "other", b"4")
    other.data.with_name("key.json").write_text('{"definition": "of another"}')
    assert main(["cache", "verify"]) == ExitCode.NO
    assert "does not match its name" in capsys.readouterr().out
    cache.remove(other.key)
    bad.data.write_bytes(b"333")
    (left := cache.root / f".{'0' * 64}.4711").mkdir()  # by a removal that was killed
    assert main(["cache", "prune"]) == ExitCode.GOOD
    assert not left.exists()
    assert [entry.layers for entry in cache.entries()] == [("good",)]
    assert main(["cache", "verify"]) == ExitCode.GOOD


@pytest.mark.parametrize("text", ["x", "-1", "1.5G", "9999999999G", "1e3"])
def test_a_size_that_is_none_is_one_line(text: str, cache: LayerCache, capsys: Capture) -> None:
    del cache
    assert main(["cache", "prune", f"--keep={text}"]) == ExitCode.BAD_INPUT
    assert "is not a valid size" in capsys.readouterr().err


SPOILED: dict[str, tuple[str, object]] = {
    "deep": ("entry.json", "[" * 100_000),
    "another size": ("entry.json", {"size_bytes": 8}),
    "another digest": ("entry.json", {"sha256": "0" * 64}),
    "another's name": ("entry.json", {"key": "0" * 64}),
    "a file elsewhere": ("entry.json", {"data": "../../secret"}),
    "an older format": ("entry.json", {"format": 1}),
    "no number of seconds": ("entry.json", {"seconds": float("nan")}),
    "garbage": ("entry.json", "\udcff\0["),
    "other data": ("data.sqfs", "torch'S"),
    "shorter data": ("data.sqfs", "torch'"),
}
"""Spoiled content of a file of an entry; it is noticed if this machine has not read the entry before."""


@pytest.mark.threat
def test_an_entry_that_was_carried_is_used_whole_or_not_at_all(cache: LayerCache, tmp_path: Path) -> None:
    kept = keep(cache, "torch", b"torch's")
    key = CacheKey({"definition": "torch\n", "content": ""})
    there = LayerCache(tmp_path / "there")
    for name, (file, spoiled) in {"as it was": ("entry.json", {}), **SPOILED}.items():
        shutil.rmtree(there.root, ignore_errors=True)
        shutil.copytree(cache.root, there.root)
        path = there.root / "layers" / kept.key / file
        text = {**json.loads(path.read_text()), **spoiled} if isinstance(spoiled, dict) else spoiled
        path.write_bytes(os.fsencode(text) if isinstance(text, str) else json.dumps(text).encode())
        found = there.find(key)
        assert (found is not None and found.is_intact) is (name == "as it was"), name
        is_fault = name not in {"as it was", "an older format"}
        assert [fault.key for fault in verify(there).faults] == [kept.key] * is_fault, name


def test_layers_are_removed_by_name_or_key(cache: LayerCache, capsys: Capture) -> None:
    keep(cache, "vllm", b"1")
    keep(cache, "vllm (compiled)", b"22")
    other = keep(cache, "torch", b"333")
    assert main(["cache", "rm", "vllm (compiled)", "--json"]) == ExitCode.GOOD
    assert json.loads(capsys.readouterr().out)["freed_bytes"] == 2
    assert main(["cache", "rm", "vllm", other.key[:5]]) == ExitCode.BAD_INPUT, "too short for a key; nothing is removed"
    assert [entry.layers for entry in cache.entries()] in ([("torch",), ("vllm",)], [("vllm",), ("torch",)])
    assert main(["cache", "rm", "vllm", other.key[:6]]) == ExitCode.GOOD
    assert "removed 2 layers" in capsys.readouterr().out
    assert list(cache.entries()) == []


def test_entries_of_an_older_lumiimg_are_not_found_and_go_by_prune_or_by_their_keys(
    cache: LayerCache, capsys: Capture
) -> None:
    old = [keep(cache, name, b"1") for name in ("torch", "vllm")]
    for entry in old:
        document = entry.data.with_name("entry.json")
        document.write_text(json.dumps(json.loads(document.read_text()) | {"format": 2, "below": ""}))
    assert list(cache.entries()) == []
    assert cache.find(CacheKey({"definition": "torch\n", "content": ""})) is None
    assert main(["cache", "verify"]) == ExitCode.GOOD, "no build finds them"
    assert main(["cache", "rm", old[0].key[:12]]) == ExitCode.GOOD
    assert "removed 1 layer" in capsys.readouterr().out
    assert cache.names() == [old[1].key]
    assert main(["cache", "prune"]) == ExitCode.GOOD
    assert cache.names() == []


def test_why_shows_that_what_is_below_came_out_differently(cache: LayerCache, capsys: Capture) -> None:
    base, upper = {"definition": "base\n"}, {"definition": "vllm\n"}
    below = keep(cache, "base", b"1")
    keep(cache, "vllm", b"2", below=content_after("", below))
    assert why(cache, base, upper, of="vllm").entry is not None
    cache.remove(below.key)
    answer = why(cache, base, upper, of="vllm")
    assert answer.entry is None
    assert "not known until the layers below are built" in answer.differences[0].lines[1]
    keep(cache, "base", b"another day's")
    answer = why(cache, base, upper, of="vllm")
    assert answer.entry is None
    show(why_document(answer))
    assert "the layer below it came out differently" in capsys.readouterr().out


def test_why_shows_how_old_the_base_is_also_of_one_that_was_carried(
    cache: LayerCache, tmp_path: Path, capsys: Capture
) -> None:
    base, upper = {"definition": "base\n"}, {"definition": "vllm\n"}
    os.utime(keep(cache, "base", b"1").data, (1_790_000_000,) * 2)
    shutil.copytree(cache.root, tmp_path / "there")
    there = LayerCache(tmp_path / "there")
    for one, keys in ((cache, [base]), (cache, [base, upper]), (there, [base])):
        show(why_document(why(one, *keys, of="base" if keys == [base] else "vllm")))
        page = " ".join(capsys.readouterr().out.split())
        again = "do: to build it with today's packages, give `lumiimg build` the same options and --fresh"
        assert f"its base base was built on 2026-09-21 {again}" in page


def test_why_shows_the_least_difference(cache: LayerCache, capsys: Capture) -> None:
    base = {"definition": "base\n"}
    content = content_after("", keep(cache, "base", b"0"))
    keep(cache, "vllm", b"1", files={"files/vllm/a": "1"}, below="p", engine="apptainer")
    near = keep(cache, "vllm", b"2", files={"files/vllm/a": "2"}, below=content, engine="apptainer")
    wanted = {
        "definition": "vllm\nmore\n",
        "files": {"files/vllm/a": "2", "files/vllm/b": "3"},
        "engine": "apptainer",
    }
    answer = why(cache, base, wanted, of="vllm")
    assert answer.entry is None
    assert answer.nearest == near
    assert [difference.part for difference in answer.differences] == ["definition", "files/vllm/b"]
    show(why_document(answer))
    page = capsys.readouterr().out
    assert "would be built again" in page
    assert "+ more" in page.replace("+more", "+ more")
    show(why_document(why(cache, {"definition": "x"}, of="new")))
    assert "never built with this cache" in capsys.readouterr().out
    below = {"definition": "vllm\n", "files": {"files/vllm/a": "2"}, "engine": "apptainer"}
    show(why_document(why(cache, {"definition": "base2\n"}, below, of="vllm")))
    assert "lumiimg build --why base, with the same options, says why" in " ".join(capsys.readouterr().out.split())


def test_why_is_an_option_of_build_and_builds_nothing(
    cache: LayerCache, capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = build_machine()
    monkeypatch.setattr("lumiimg.cli.image_build.host_for_builds", lambda *_: machine)
    request = ["build", "--base", "debian-13", "--add", "netprobe", "--site", "generic"]
    assert main([*request, "--why", "netprobe"]) == ExitCode.NO
    assert "netprobe: never built with this cache" in capsys.readouterr().out
    assert main([*request, "--why", "torch"]) == ExitCode.BAD_INPUT
    assert "'torch' is not a layer of this image; it has: debian-13" in capsys.readouterr().err
    assert main([*request, "--why", "netprobe", "-o", str(tmp_path / "x.sif")]) == ExitCode.BAD_INPUT
    assert "--why and --output" in capsys.readouterr().err
    monkeypatch.chdir(tmp_path)
    assert main(["lock", *request[1:], "--offline"]) == ExitCode.GOOD
    assert main([*request, "--why", "netprobe", "--lock", "lumiimg.lock"]) == ExitCode.BAD_INPUT
    assert main(["build", "--locked", "--why", "netprobe"]) == ExitCode.NO
    assert "netprobe: never built with this cache" in capsys.readouterr().out
    assert list(cache.entries()) == []


REQUESTS = (
    ["--recipe=lumi-pytorch"],
    *(
        ["--base", base, "--add", layer, "--fabric", fabric, "--site", "lumi"]
        for base, layer, fabric in (
            ("rocm-6.2.4", "sglang", "auto"),
            ("rocm-7.2.4", "aws-ofi-nccl", "host"),
            ("rocm-6.4.4", "vllm", "bundled"),
            ("rocm-6.2.4", "pytorch", "host"),
            ("debian-13", "netprobe", "none"),
        )
    ),
    *([f"--recipe={name}"] for name in open_catalogue({"HOME": "/nonexistent"}).recipe_names()),
)


class ReachedError(FailedError):
    """Raised where the build would start."""


def test_why_is_asked_of_what_a_build_would_build(
    cache: LayerCache, capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same digests, wheels and sources, or the same refusal."""
    del cache
    machine = build_machine(path=os.environ["PATH"])
    reached: list[object] = []

    def keys(definition: object, *_: object) -> NoReturn:
        reached.append(definition)
        raise ReachedError("was reached")

    monkeypatch.setattr("lumiimg.cli.image_build.host_for_builds", lambda *_: machine)
    with serve(World(wheels=wheels_of_layers(), of_layers=wheels_of_layers())) as world:
        for words in REQUESTS if EVERYTHING else REQUESTS[:3]:  # vLLM's take seconds
            reported: list[tuple[int, str]] = []
            names = layers_of(words, capsys)
            for more in (["-o", str(tmp_path / "x.sif"), "--quiet"], ["--why", names[-1] if names else "x", "--quiet"]):
                with monkeypatch.context() as patch:
                    patch.setattr("lumiimg.build.keys.layer_inputs", keys)
                    code = main(["build", *words, *more, *world.mirrors])
                reported.append((code, capsys.readouterr().err))
            assert reported[0] == reported[1], words
            assert len(reached) == (2 if names else 0), (words, reported)
            assert reached[:1] == reached[1:], words
            reached.clear()


def layers_of(words: list[str], capsys: Capture) -> list[str]:
    """Return the layers of a request, as --dry-run lists them."""
    code, out = main(["build", *words, "--dry-run", "--json"]), capsys.readouterr().out
    return [layer["name"] for layer in json.loads(out)["plan"]["layers"]] if code == ExitCode.GOOD else []
