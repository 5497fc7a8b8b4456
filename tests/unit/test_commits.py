"""Requirements at a git commit, from repositories served by git's own http-backend to the lock."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lumiimg.cli.main import main
from lumiimg.core.errors import BadInputError, ExitCode, FailedError, MissingHereError
from lumiimg.core.files import EPOCH, file_sha256
from lumiimg.fetch import git as fetched
from lumiimg.fetch.git import git_address, write_commit
from lumiimg.fetch.http import Http
from lumiimg.fetch.mirrors import Mirrors
from lumiimg.fetch.store import Store
from lumiimg.resolve.lock_file import read_document
from lumiimg.resolve.requirements import read_own
from tests.shared.git_server import commit, git, serving
from tests.shared.layer_builder import BOX, MakeLayer
from tests.shared.loopback import Reply, listening
from tests.shared.programs import needs
from tests.shared.world import World, forged, serve

if TYPE_CHECKING:
    from collections.abc import Iterator

TOOL = """\
[build-system]
requires = ["setuptools>=61"]
[project]
name = "Little.Tool"
version = "1.5"
dependencies = ["egg>=1"]
[project.optional-dependencies]
more = ["ham"]
"""
PLACE = "https://git.test/org/tool.git"
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def world() -> Iterator[World]:
    wheels: dict[str, dict[str, tuple[str, ...]]] = {name: {"80.0": ()} for name in ("setuptools", "wheel", "ham")}
    wheels |= {"egg": {"1.0": ()}, "cudaful": {"1.0": ("nvidia-cublas-cu12",)}, "nvidia-cublas-cu12": {"1.0": ()}}
    with serve(World(wheels=wheels)) as world:
        yield world


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    needs("git")
    return tmp_path / "served/org/tool.git"


@pytest.fixture
def mirror(repository: Path) -> Iterator[str]:
    """The address of a server in place of `https://git.test`."""
    with serving(repository.parents[1]) as url:
        yield url


@pytest.fixture
def run(
    world: World,
    mirror: str,
    make_layer: MakeLayer,
    layers: Path,
    tmp_path: Path,
    clean_home: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Run:
    del clean_home
    make_layer("box", BOX)
    monkeypatch.chdir(tmp_path)
    return Run(("--layers", f"{layers}", *world.mirrors, "--mirror", f"https://git.test={mirror}"))


class Run:
    """`lumiimg lock` with lines of a requirements file."""

    def __init__(self, common: tuple[str, ...]) -> None:
        self.common = common

    def __call__(self, *lines: str) -> int:
        Path("r.txt").write_text("\n".join([*lines, ""]))
        return main(["lock", *self.common, "--site", "generic", "--base", "box", "-r", "r.txt"])


def written(address: str, target: Path, mirror: str) -> dict[str, tuple[bytes, int, float]]:
    """Return the files of the tar made for an address: content, mode and time."""
    found = git_address(address)
    assert found is not None
    write_commit(found, target, Mirrors({"https://git.test": mirror}), offline=False)
    with tarfile.open(target) as archive:
        members = {one.name.partition("/")[2]: one for one in archive}
        contents = {name: archive.extractfile(one) if one.isfile() else None for name, one in members.items()}
        return {
            name: (file.read() if file else b"", members[name].mode, members[name].mtime)
            for name, file in contents.items()
        }


def test_a_project_at_a_commit_is_locked_with_commit_and_digest_and_what_it_requires(
    run: Run, repository: Path, tmp_path: Path
) -> None:
    at = commit(repository, {"pyproject.toml": TOOL, "little_tool.py": "x = 1\n"})
    commit(repository, {"pyproject.toml": TOOL.replace("1.5", "2.0")})
    assert run(f"little_tool[more] @ git+{PLACE}@{at}", "egg") == ExitCode.GOOD
    (entry,) = read_document(Path("lumiimg.lock")).layer
    assert {one.name: one.version for one in entry.locked_wheels} == {
        "egg": "1.0", "ham": "80.0", "setuptools": "80.0", "little-tool": "1.5"
    }  # fmt: skip
    (tool,) = entry.commits.values()
    assert tool.address == f"git+{PLACE}@{at}"
    cache = Path("~/.cache/lumiimg/sources").expanduser()
    assert file_sha256(cache / tool.sha256) == tool.sha256
    offline = Store(cache, Http(offline=True), Mirrors({}))
    assert offline.get(tool.address, tool.sha256).name == tool.sha256, "a build needs neither git nor a network"
    with pytest.raises(MissingHereError, match="--offline"):
        Store(tmp_path / "empty", Http(offline=True), Mirrors({})).get(tool.address, tool.sha256)
    Path("lumiimg.lock").unlink()
    assert run(f"git+{PLACE}@{at}#egg=little_tool[more]", "egg") == ExitCode.GOOD
    assert read_document(Path("lumiimg.lock")).layer == (entry,), "pip's older form means the same"


def test_what_is_locked_is_what_is_built_and_another_commit_is_refused(
    run: Run, repository: Path, capsys: Capture
) -> None:
    at = commit(repository, {"pyproject.toml": TOOL})
    other = commit(repository, {"x": "x"})
    assert run(f"little-tool @ git+{PLACE}@{at}") == ExitCode.GOOD
    build = ["build", "--locked", *run.common, "--dry-run", "-o", "x.sif"]
    assert main(build) == ExitCode.BAD_INPUT
    assert f"Python package little-tool 1.5 of own-packages from git+{PLACE}@{at}" in capsys.readouterr().err
    assert main([*build, "--trust-lock"]) == ExitCode.GOOD
    text = Path("lumiimg.lock").read_text()
    forged(text.replace(f'address = "git+{PLACE}@{at}"', f'address = "git+{PLACE}@{other}"'))
    capsys.readouterr()
    assert main([*build, "--trust-lock"]) == ExitCode.BAD_INPUT
    assert "but the lock has another commit of it, or none" in capsys.readouterr().err


def test_the_tar_is_the_files_of_the_commit_whatever_their_attributes_and_the_same_each_time(
    repository: Path, mirror: str, tmp_path: Path
) -> None:
    attributes = "[attr]all export-ignore\n* export-subst text eol=crlf ident filter=evil\nhidden export-ignore\n"
    files = {".gitattributes": attributes, "hidden": "h\n", "said": "$Format:%H$ $Id$\n", "python/pyproject.toml": TOOL}
    at = commit(repository, files, links={"python/link": "../said"})
    (repository / "tool").write_text("#!/bin/sh\n")
    (repository / "tool").chmod(0o700)
    at = commit(repository, {})
    found = written(f"git+{PLACE}@{at}", tmp_path / "a.tar", mirror)
    expected = {"said": (b"$Format:%H$ $Id$\n", 0o644, EPOCH), "tool": (b"#!/bin/sh\n", 0o755, EPOCH)}
    assert found.items() >= expected.items()
    assert {*found} == {*files, "tool", "python/link"}
    written(f"git+{PLACE}@{at}", tmp_path / "b.tar", mirror)
    assert (tmp_path / "a.tar").read_bytes() == (tmp_path / "b.tar").read_bytes()
    with pytest.raises(FailedError, match="a link that points outside: link"):
        written(f"git+{PLACE}@{at}#subdirectory=python", tmp_path / "c.tar", mirror)
    git(repository, "rm", "--quiet", "python/link")
    at = commit(repository, {})
    inside = written(f"git+{PLACE}@{at}#subdirectory=python", tmp_path / "c.tar", mirror)
    assert {*inside} == {"pyproject.toml"}


def test_without_a_commit_the_one_of_today_is_proposed_where_the_server_says_it(
    run: Run, repository: Path, capsys: Capture
) -> None:
    first = commit(repository, {"pyproject.toml": TOOL})
    git(repository, "-c", "tag.gpgsign=false", "tag", "--annotate", "--message=x", "v1")
    at = commit(repository, {"x": "x"})
    for ref, now in (("", at), ("@main", at), ("@v1", first), (f"@{at[:12]}", "COMMIT"), ("@gone", "COMMIT")):
        assert run(f"little-tool @ git+{PLACE}{ref}#subdirectory=python") == ExitCode.BAD_INPUT
        assert capsys.readouterr().err.splitlines()[-1] == (
            "lumiimg: line 1 of r.txt: little-tool is not pinned to a commit (40 hexadecimal digits), so it may change "
            f"tomorrow; write little-tool @ git+{PLACE}@{now}#subdirectory=python"
        )


def test_a_commit_in_capitals_is_the_commit() -> None:
    (one,) = read_own([], [f"pip:egg @ git+{PLACE}@{'AB' * 20}"])
    assert one.text == f"egg @ git+{PLACE}@{'ab' * 20}"


@pytest.mark.threat
def test_no_other_place_or_way_is_taken_for_a_requirement_of_git(tmp_path: Path) -> None:
    at = "0" * 40
    for line, expected in (
        (f"git+{PLACE}@{at}", "name it: NAME @ git+https://HOST/REPOSITORY@COMMIT"),
        *(
            (f"egg @ git+{place}@{at}", "egg has an unsupported address")
            for place in (
                "http://h.test/x", "file:///etc", "ssh://git@h.test/x", "ext::id", "https://me:sesame@h.test/x",
                "https://h.test/x?token=sesame", "https://h.test/../x", "https://h.test/x\x1b", "https://h.test/y$z",
            )
        ),
        (f"egg @ git+{PLACE}@{at} --upload-pack=x", "the option --upload-pack is not supported"),
        (f"egg @ git+{PLACE}@--upload-pack=x", "has an unsupported address"),
        (f"egg @ git+{PLACE}@{at}#subdirectory=../x", "has an unsupported address"),
        (f"egg @ git+{PLACE}@{at}#subdirectory=/x", "has an unsupported address"),
        (f"egg @ git+{PLACE}@{at} ; python_version > '3'", "has both a commit and a marker"),
        (f"egg @ git+{PLACE}@{at.upper()}x", "is not pinned to a commit"),
    ):  # fmt: skip
        (tmp_path / "r.txt").write_text(f"{line}\n")
        with pytest.raises(BadInputError) as caught:
            read_own([f"{tmp_path}/r.txt"], [])
        assert expected in str(caught.value), line
        assert "sesame" not in str(caught.value)


@pytest.mark.threat
def test_a_server_of_git_cannot_have_more_done_than_one_commit_fetched(
    repository: Path, mirror: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = commit(repository, {"a": "a"})
    target = tmp_path / "x.tar"
    with pytest.raises(FailedError, match=r"^git\+https://git.test/org/tool.git@0000.*: git: "):
        written(f"git+{PLACE}@{'0' * 40}", target, mirror)
    for leads in ("file:///", f"ext::touch% {tmp_path}/ran", "ftp://127.0.0.1/"):
        reply = Reply(302, headers={"Location": leads})
        with listening(lambda _, reply=reply: reply) as url, pytest.raises(FailedError):  # type: ignore[misc]
            written(f"git+{PLACE}@{at}", target, url)
    with pytest.raises(FailedError, match="without TLS"):
        written(f"git+{PLACE}@{at}", target, "http://host.test")
    (repository / "large").write_bytes(bytes(range(256)) * 1024)
    large = commit(repository, {})
    with monkeypatch.context() as small:
        small.setattr(fetched, "_MAX_BYTES", 1 << 16)
        with pytest.raises(FailedError, match="is larger than 0 MiB"):
            written(f"git+{PLACE}@{large}", target, mirror)
    git(repository, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", f"{repository}", "sub")
    with pytest.raises(FailedError, match="has submodules"):
        written(f"git+{PLACE}@{commit(repository, {})}", target, mirror)
    monkeypatch.setenv("PATH", f"{tmp_path}")
    with pytest.raises(MissingHereError, match="git, which fetches requirements at a commit, is not on PATH"):
        written(f"git+{PLACE}@{at}", target, mirror)
    assert not (tmp_path / "ran").exists()


def test_what_a_project_says_of_itself_must_be_what_a_lock_can_hold(
    run: Run, repository: Path, capsys: Capture
) -> None:
    for text, expected in (
        (TOOL.replace("Little.Tool", "other"), "is the project other, not little-tool"),
        (TOOL.replace("egg>=1", "egg @ https://h.test/egg.zip"), "requires a package by its address"),
        (
            TOOL.replace("egg>=1", "cudaful"),
            "for which cudaful requires nvidia-cublas-cu12, which is for NVIDIA's GPUs",
        ),
        (TOOL.replace("egg>=1", "egg>=7"), "change line 1 of r.txt (little-tool @ git+"),
        ("[", "pyproject.toml"),
    ):
        at = commit(repository, {"pyproject.toml": text})
        assert run(f"little-tool @ git+{PLACE}@{at}") == ExitCode.NO, expected
        err = " ".join(capsys.readouterr().err.split())
        assert expected in err, err
    git(repository, "rm", "--quiet", "pyproject.toml")
    assert run(f"little-tool @ git+{PLACE}@{commit(repository, {'README': 'x'})}") == ExitCode.NO
    assert "has neither pyproject.toml nor setup.py" in capsys.readouterr().err
    at = commit(repository, {"setup.py": "raise SystemExit('it ran')\n"})
    assert run(f"little-tool @ git+{PLACE}@{at}") == ExitCode.GOOD, capsys.readouterr().err
    assert "little-tool lists its requirements only when it is built" in capsys.readouterr().err
    (entry,) = read_document(Path("lumiimg.lock")).layer
    assert entry.commits["little-tool"].version == f"0+g{at[:12]}"
    assert {one.name for one in entry.locked_wheels} == {"little-tool", "setuptools", "wheel"}


def test_a_project_at_a_commit_is_asked_for_once_and_never_in_the_place_of_what_is_there(
    run: Run, repository: Path, make_layer: MakeLayer, capsys: Capture
) -> None:
    at, line = commit(repository, {"pyproject.toml": TOOL}), "little-tool @ git+{}@{}".format
    for other in (line(PLACE, "0" * 40), "Little.Tool==1.6", "little_tool", line(PLACE, at).replace(" @", "[more] @")):
        assert run(line(PLACE, at), other) == ExitCode.BAD_INPUT, other
        assert "line 1 of r.txt requires little-tool @ git+" in capsys.readouterr().err
    assert run(line(PLACE, at), f"Little.Tool @ git+{PLACE}@{at}#egg=x") == ExitCode.GOOD, "the same, said twice"
    make_layer("with-egg", BOX.replace("has = {", 'has = { egg = "1.5",'))
    asked = [*run.common, "--site", "generic", "--base", "with-egg", "-r", "r.txt"]
    Path("r.txt").write_text(f"Egg @ git+https://not.test/there@{at}\n")
    for command in ("explain", "lock", "build"):
        assert main([command, *asked, *(["--dry-run"] if command == "build" else [])]) == ExitCode.NO
        captured = capsys.readouterr()
        assert "and the image has egg, which is not replaced" in " ".join((captured.out + captured.err).split()), (
            command
        )
