"""Both container engines: what the real programs printed (tests/fixtures/engines), and what lumiimg concludes."""

from __future__ import annotations

import os
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lumiimg.engine.binds import binds_of
from lumiimg.engine.engine import EngineKind, build_words, find_engine
from lumiimg.engine.failures import explain
from lumiimg.host.container_view import TO_ENGINE, engine_env

if TYPE_CHECKING:
    from collections.abc import Callable

RECORDINGS = Path(__file__).parents[1] / "fixtures" / "engines"
APPTAINER, SINGULARITYCE = "apptainer-1.4.5", "singularityce-4.1.3"
BOTH = (APPTAINER, SINGULARITYCE)
STANDIN = """\
#!{python}
import pathlib, sys, tomllib
said = tomllib.loads(pathlib.Path({recording!r}).read_text())
names = {{"--version": "version", "build --help": "build-help"}}
name = names.get(sys.argv[1]) or names.get(" ".join(sys.argv[1:3]))
if name:
    print(said[name]["output"])
"""


def recorded(name: str) -> dict[str, Any]:
    return tomllib.loads((RECORDINGS / f"{name}.toml").read_text())


@pytest.fixture
def program(tmp_path: Path) -> Callable[[str], Path]:
    """A stand-in that answers as the real program did."""

    def make(name: str) -> Path:
        path = tmp_path / "singularity"
        path.write_text(STANDIN.format(python=sys.executable, recording=str(RECORDINGS / f"{name}.toml")))
        path.chmod(0o755)
        return path

    return make


@pytest.mark.parametrize(
    ("name", "expected"),
    [(APPTAINER, (EngineKind.APPTAINER, "1.4.5")), (SINGULARITYCE, (EngineKind.SINGULARITY, "4.1.3"))],
)
def test_each_is_known_by_what_it_says_of_itself(
    name: str, expected: tuple[EngineKind, str], program: Callable[[str], Path]
) -> None:
    engine = find_engine({"LUMIIMG_ENGINE": str(program(name))})
    assert (engine.kind, engine.version) == expected
    assert "--fakeroot" in engine.build_flags, "both have it: that it is there does not say that it works"
    assert ("--mksquashfs-args" in engine.build_flags) is (name == APPTAINER)
    assert ("--no-oci" in engine.build_flags) is (name == SINGULARITYCE)


@pytest.mark.parametrize("name", BOTH)
def test_builds_pass_only_options_that_the_engine_has(
    name: str, program: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    engine = find_engine({"LUMIIMG_ENGINE": str(program(name))})
    built = [
        [str(word) for word in build_words(way, "x.def", tmp_path / "x", plain_http=plain_http)]
        for way, plain_http in ((engine, False), (engine, True), (engine.without_fakeroot, False))
    ]
    options = {word.partition("=")[0] for words in built for word in words if word.startswith("--")}
    assert options <= {*recorded(name)["build-help"]["output"].split()}
    assert ["--fakeroot" in words for words in built] == [True, True, False]
    assert all("--no-oci" in words for words in built) is (name == SINGULARITYCE)


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize(
    "refusal",
    [
        *("bind-source", "bind-destination", "registry", "newuidmap", "root-capabilities", "fuse-device"),
        *("no-subuid", "no-subuid-debootstrap", "proot-in-image", "no-proot"),
    ],
)
def test_what_each_says_when_it_cannot_is_known(name: str, refusal: str) -> None:
    reported = recorded(name).get(refusal)
    if reported is None or reported["exit"] == 0 or (name, refusal) == (APPTAINER, "no-subuid"):
        assert (name, refusal) in {
            *((APPTAINER, only) for only in ("no-subuid", "no-subuid-debootstrap", "proot-in-image", "no-proot")),
            (SINGULARITYCE, "fuse-device"),
        }, "one of them goes on, where the other does not"
        return
    known = explain(reported["output"])
    assert known is not None, reported["output"]
    assert known.id == refusal.replace("no-subuid-debootstrap", "debootstrap-root")


@pytest.mark.parametrize(("name", "engine"), [(APPTAINER, "Apptainer"), (SINGULARITYCE, "SingularityCE")])
def test_of_the_variables_for_an_engine_those_count_that_it_was_seen_to_read(name: str, engine: str) -> None:
    variables = {"SINGULARITYENV_X": "s", "APPTAINERENV_Y": "a", "SINGULARITYENV_Z": "s", "APPTAINERENV_Z": "a"}
    counts = engine_env(engine, variables)
    model = [next((counts[p + x] for p in TO_ENGINE if p + x in counts), "") for x in "XYZ"]
    assert " ".join(model) == recorded(name)["told"]["output"].splitlines()[-1]
    binds = engine_env(engine, {"APPTAINER_BIND": "/x/b1:/m1", "SINGULARITY_BIND": "/x/b1:/m2"})
    targets = [bind.target for _, found in binds_of(binds) for bind in found]
    assert targets == recorded(name)["binds"]["output"].split()[-1:]
