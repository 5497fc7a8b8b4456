"""What is kept about a machine: asked once, and again as soon as anything that it depends on is another."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from lumiimg.build import capability_cache
from lumiimg.engine.engine import EngineKind
from tests.shared.counted_machine import PROGRAMS, CountedMachine


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CountedMachine:
    return CountedMachine(tmp_path, monkeypatch)


@pytest.mark.parametrize("name", PROGRAMS)
def test_another_program_is_tried_anew(world: CountedMachine, name: str) -> None:
    world.ask()
    program = world.bin / name
    os.utime(program, ns=(1, 1))
    world.ask()
    assert world.tried == 2
    program.write_text("#!/bin/sh\n:\n")  # longer
    os.utime(program, ns=(1, 1))
    world.ask()
    assert world.tried == 3
    program.unlink()
    world.proot_works = False
    assert world.ask().proot is world.ask().proot is None
    assert world.tried == 4


def _moved(world: CountedMachine) -> None:
    other = world.bin.rename(world.bin.with_name("other"))
    world.bin.symlink_to(other)
    world.environment = {"PATH": str(other)}


def test_another_situation_is_tried_anew(
    world: CountedMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranges = tmp_path / "subuid"
    ranges.write_text("a:1:2\n")
    own = monkeypatch.setattr
    release = os.uname()
    own(capability_cache, "_RANGES", (str(ranges),))
    situations: dict[str, Callable[[], object]] = {
        "kernel": lambda: own(os, "uname", lambda: os.uname_result((*release[:2], "7.0", *release[3:]))),
        "version": lambda: setattr(world, "engine", dataclasses.replace(world.engine, version="1.4.6")),
        "kind": lambda: setattr(world, "engine", dataclasses.replace(world.engine, kind=EngineKind.SINGULARITY)),
        "path": lambda: _moved(world),
        "temporary": lambda: world.environment.update(TMPDIR="/var/tmp"),
        "ranges": lambda: ranges.write_text("a:1:2\nb:3:4\n"),
    }
    for name, change in situations.items():
        world.ask()
        tried = world.tried
        change()
        world.ask()
        assert world.tried == tried + 1, name


def test_a_damaged_file_is_as_none(world: CountedMachine) -> None:
    first = world.ask()
    good = world.file.read_text()
    others = ({"format": 99}, {"maps_ids": "yes"}, {"mounts": None}, {"trials": None}, {"trials": [7]})
    wrong_trials = ({"trials": [{"name": "x"}]}, {"trials": [{"name": "x", "works": 1, "said": ""}]})
    texts = ["", good[: len(good) // 2], "[]", "7", "[" * 60_000, good + " " * 100_000]
    for number, text in enumerate([*texts, *(json.dumps(json.loads(good) | o) for o in (*others, *wrong_trials))]):
        world.file.write_text(text)
        assert world.ask() == first
        assert world.tried == 2 + number, text[:80]
    world.ask()
    assert world.tried == 2 + number, "it was written anew"


def test_what_is_no_file_of_this_user_is_as_none(
    world: CountedMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.ask()
    good = tmp_path / "elsewhere.json"
    world.file.rename(good)
    for kind in ("link", "pipe", "folder"):
        if kind == "link":
            world.file.symlink_to(good)
        elif kind == "pipe":
            os.mkfifo(world.file)
        else:
            world.file.mkdir()
        tried = world.tried
        world.ask()
        assert world.tried == tried + 1
        world.file.rmdir() if world.file.is_dir() else world.file.unlink()
    world.ask()
    mine = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
    tried = world.tried
    world.ask()
    assert world.tried == tried + 1


def test_a_cache_that_cannot_be_written_is_no_hindrance(world: CountedMachine) -> None:
    world.cache.write_text("a file")
    world.ask()
    world.ask()
    assert world.tried == 2
    world.cache = Path("/proc/nothing")
    world.ask()
    assert world.tried == 3
