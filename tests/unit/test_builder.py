"""The builder without an engine: the store, the key, and what an engine's last words mean."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from lumiimg.build.builder import scratch_parent
from lumiimg.engine import failures
from lumiimg.engine.engine import Engine, EngineKind, clean_environment, unpacking_in
from lumiimg.engine.failures import explain, telling_line
from lumiimg.engine.process import run

KNOWN = tomllib.loads((Path(failures.__file__).parent / "failures.toml").read_text())["failure"]


@pytest.mark.parametrize("entry", KNOWN, ids=lambda entry: entry["id"])
def test_each_known_failure_is_found_in_its_example(entry: dict[str, str]) -> None:
    found = explain(f"INFO:    Starting build...\n{entry['example']}\n")
    assert found is not None
    assert found.id == entry["id"]
    assert "{" not in found.meaning
    assert entry["source"]


def test_the_telling_line_is_the_scripts_not_the_engines() -> None:
    output = "+ make\nmake: *** [all] Error 2\n\x1b[31mFATAL:   While performing build: exit status 2\x1b[0m\n"
    assert telling_line(output) == "make: *** [all] Error 2"
    assert telling_line("") == ""
    only_the_engine = "INFO:    gocryptfs not found, will not be able to use gocryptfs\n+ exit 3\n"
    assert telling_line(only_the_engine) == ""
    assert telling_line(f"FATAL:   no room\n{only_the_engine}") == "FATAL:   no room"


def test_the_engines_scratch_is_where_the_engine_can_work() -> None:
    assert scratch_parent(Path("/scratch/project_1/me")) == Path("/scratch/project_1/me/work")
    for awkward in ("/it's", "/a b", "/a\nb", "/a,b", "/a:b", "/a;b", "/a&b", '/a"b'):
        assert not str(scratch_parent(Path(awkward))).startswith(awkward)


@pytest.mark.threat
def test_a_users_profile_does_not_reach_the_build(tmp_path: Path) -> None:
    environment = {
        "PATH": "/bin",
        "SINGULARITY_BIND": "/x",
        "APPTAINERENV_LD_LIBRARY_PATH": "/y",
        "SINGULARITYENV_X": "1",
        "APPTAINER_CACHEDIR": "/cache",
        "SINGULARITY_DOCKER_PASSWORD": "p",
    }
    kept = {"PATH", "APPTAINER_CACHEDIR", "SINGULARITY_DOCKER_PASSWORD"}
    assert set(clean_environment(environment)) == kept
    program = tmp_path / "engine"
    program.write_text("#!/bin/sh\nenv\n")
    program.chmod(0o755)
    engine = Engine(program, EngineKind.APPTAINER, "1.4.5", frozenset())
    done = run([program], env=unpacking_in(tmp_path, engine, environment))
    seen = {line.partition("=")[0] for line in done.output.splitlines()}
    assert seen - {"PWD", "SHLVL", "_", "TMPDIR", "APPTAINER_TMPDIR"} == kept
