"""The builder without an engine: the store, the key, and what an engine's last words mean."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from lumiimg.build.builder import scratch_parent
from lumiimg.engine import engine as engines
from lumiimg.engine import failures
from lumiimg.engine.engine import Engine, EngineKind, clean_environment
from lumiimg.engine.failures import explain, telling_line
from lumiimg.engine.workspace import remove_stale, scratch_folder, written_by_rename
from lumiimg.errors import FailedError
from lumiimg.resolve.lock import file_sha256
from lumiimg.resolve.network.mirrors import Mirrors
from lumiimg.resolve.network.web import Web
from lumiimg.resolve.store import Store
from tests.shared.loopback import Reply, listening
from tests.shared.programs import needs

ENGINE = Engine(Path("/x/apptainer"), EngineKind.APPTAINER, "1.4.5", frozenset({"--mksquashfs-args"}))
KNOWN = tomllib.loads((Path(failures.__file__).parent / "failures.toml").read_text())["failure"]


@pytest.mark.parametrize("entry", KNOWN, ids=lambda entry: entry["id"])
def test_each_known_failure_is_found_in_its_example(entry: dict[str, str]) -> None:
    found = explain(f"INFO:    Starting build...\n{entry['example']}\n")
    assert found is not None
    assert found.id == entry["id"]
    assert "{" not in found.meaning
    assert entry["source"]


def test_the_failure_that_ended_the_build_is_told_not_one_that_it_survived() -> None:
    output = "cp: x: No space left on device\nE: Unable to locate package librccl1\nFATAL:   While performing build\n"
    found = explain(output)
    assert found is not None
    assert found.id == "apt"
    # a download of a layer's own script is no registry
    assert explain("curl: (7) Failed to connect: Connection refused\n") is None


def test_the_telling_line_is_the_scripts_not_the_engines() -> None:
    output = "+ make\nmake: *** [all] Error 2\n\x1b[31mFATAL:   While performing build: exit status 2\x1b[0m\n"
    assert telling_line(output) == "make: *** [all] Error 2"
    assert telling_line("") == ""
    only_the_engine = "INFO:    gocryptfs not found, will not be able to use gocryptfs\n+ exit 3\n"
    assert telling_line(only_the_engine) == ""
    assert telling_line(f"FATAL:   no room\n{only_the_engine}") == "FATAL:   no room"


METADATA_FAILED = """\
  error: subprocess-exited-with-error

  \u00d7 python setup.py egg_info did not run successfully.
  \u2502 exit code: 1
  \u2570\u2500> [21 lines of output]
      Traceback (most recent call last):
        File "<string>", line 2, in <module>
      AttributeError: module 'triton' has no attribute '__version__'
      [end of output]

  note: This error originates from a subprocess, and is likely not a problem with pip.
error: metadata-generation-failed

\u00d7 Encountered error while generating package metadata.
\u2570\u2500> See above for output.

note: This is an issue with the package mentioned above, not pip.
hint: See above for details.
"""
WHEEL_FAILED = """\
      error: command '/usr/bin/g++' failed with exit code 1
      [end of output]

  note: This error originates from a subprocess, and is likely not a problem with pip.
  ERROR: Failed building wheel for apex
Failed to build apex
error: failed-wheel-build-for-install

\u00d7 Failed to build installable wheels for some pyproject.toml based projects
\u2570\u2500> apex
"""


@pytest.mark.parametrize(
    ("output", "telling"),
    [
        (METADATA_FAILED, "AttributeError: module 'triton' has no attribute '__version__'"),
        (WHEEL_FAILED, "error: command '/usr/bin/g++' failed with exit code 1"),
    ],
)
def test_of_a_failed_pip_the_telling_line_is_that_of_the_build(output: str, telling: str) -> None:
    assert telling_line(output) == telling


def test_what_is_not_finished_is_never_under_its_name(tmp_path: Path) -> None:
    target = tmp_path / "x.sif"

    def fail_half_way() -> None:
        with written_by_rename(target) as partial:
            partial.write_text("half")
            assert not target.exists()
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_half_way()
    assert list(tmp_path.iterdir()) == []
    with written_by_rename(target) as partial:
        partial.write_text("whole")
    assert [path.name for path in tmp_path.iterdir()] == ["x.sif"]


@pytest.mark.threat
def test_what_a_killed_build_left_is_removed_and_what_a_living_one_has_is_not(tmp_path: Path) -> None:
    with scratch_folder(tmp_path) as mine:
        owner = mine.name.split(".")[1]
        pid, started, place = owner.partition("@")[0].split("-")

        def other(pid: str = pid, started: str = started, place: str = place) -> Path:
            folder = tmp_path / mine.name.replace(owner.partition("@")[0], f"{pid}-{started}-{place}")
            folder.mkdir()
            (folder / "file").write_text("x")
            return folder

        dead, used_anew = other(pid="4194999"), other(started="1")
        elsewhere, older = tmp_path / mine.name.replace("@", "@other-"), other(pid="4194999", place="f" * 12)
        before = tmp_path / mine.name.replace(f"{pid}-{started}-{place}", "4194999")
        for folder in (elsewhere, before):
            folder.mkdir()
        remove_stale(tmp_path)
        assert not dead.exists()
        assert not used_anew.exists(), "another process has its number now"
        assert mine.exists()
        assert elsewhere.exists(), "another node's: only it can tell"
        assert older.exists(), "another namespace's, or boot's: whether it lives cannot be seen from here"
        assert before.exists(), "an earlier lumiimg's, which did not say in which namespace it counts"
        for folder in (mine, elsewhere, older, before):
            os.utime(folder, (time.time() - 8 * 86400,) * 2)
        remove_stale(tmp_path)
        assert {path for path in tmp_path.iterdir() if path.is_dir()} == {mine}
    assert not mine.exists()


def test_a_build_is_not_taken_for_dead_in_another_namespace_of_processes(tmp_path: Path) -> None:
    needs("unshare")
    maps = ["--map-root-user"] if os.geteuid() else []
    inside = ["unshare", *maps, "--pid", "--fork", "--mount-proc"]
    if subprocess.run([*inside, "true"], check=False, capture_output=True).returncode:
        pytest.skip("no namespaces of processes here")
    script = "import sys, pathlib, lumiimg.engine.workspace as w; w.remove_stale(pathlib.Path(sys.argv[1]))"
    with scratch_folder(tmp_path) as mine:
        subprocess.run([*inside, sys.executable, "-c", script, tmp_path], check=True, cwd=Path(__file__).parents[2])
        assert mine.exists()


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
    for done in (
        engines.build(engine, tmp_path / "x.def", tmp_path / "x.sif", environment=environment, scratch=tmp_path),
        engines.run_script(engine, tmp_path, ["true"], environment=environment, scratch=tmp_path),
    ):
        seen = {line.partition("=")[0] for line in done.output.splitlines()}
        assert seen - {"PWD", "SHLVL", "_", "TMPDIR", "APPTAINER_TMPDIR"} == kept


REPLIES = {
    "/good": Reply(body=b"content"),
    "/other": Reply(body=b"changed"),
    "/short": Reply(body=b"content", length=100),
    "/loop": Reply(302, headers={"Location": "/loop"}),
    "/500": Reply(500, b"content"),
}


@pytest.fixture
def server() -> Iterator[str]:
    def dripping() -> Iterator[bytes]:
        while True:
            yield b"x"
            time.sleep(0.1)

    drip = Reply(body=dripping(), length=1_000_000)
    with listening(lambda asked: REPLIES.get(asked.path, drip)) as url:
        yield url


@pytest.mark.parametrize(
    ("path", "what"),
    [
        ("/other", "has another digest"),
        ("/short", "broke off"),
        ("/loop", "redirects more than"),
        ("/500", "answers 500"),
        ("/drip", "did not come within"),
    ],
)
@pytest.mark.threat
def test_a_hostile_server_is_left_with_one_line_and_nothing_used(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, what: str
) -> None:
    monkeypatch.setattr("lumiimg.resolve.network.download.TOTAL_S", 0.3 if path == "/drip" else 60.0)
    monkeypatch.setattr("lumiimg.resolve.network.download._PAUSE_S", 0.0)
    monkeypatch.setattr("lumiimg.resolve.network.web._ATTEMPTS", 0)
    store = tmp_path / "store"
    downloads = Store(store, Web(), Mirrors({}))
    digest = hashlib.sha256(b"content").hexdigest()
    with pytest.raises(FailedError, match=what) as caught:
        downloads.get(f"{server}{path}", digest)
    assert "\n" not in str(caught.value)
    assert not (store / digest).exists()
    kept = downloads.get(f"{server}/good", digest)
    assert kept.read_bytes() == b"content"
    assert list(store.iterdir()) == [kept]


@pytest.mark.threat
def test_a_source_is_kept_by_its_digest_and_refused_with_another(tmp_path: Path) -> None:
    file = tmp_path / "s.tar.gz"
    file.write_bytes(b"content")
    store = Store(tmp_path / "store", Web(), Mirrors({}))
    digest = file_sha256(file)
    kept = store.get(str(file), digest)
    assert kept.read_bytes() == b"content"
    file.write_bytes(b"changed while nobody looked")
    assert store.get(str(file), digest) == kept, "the store has it"
    kept.write_bytes(b"bit rot")
    with pytest.raises(FailedError, match="another digest"):
        store.get(str(file), digest)
