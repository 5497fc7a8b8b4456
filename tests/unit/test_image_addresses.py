"""Images given by address, in a registry or a Docker engine, to commands that take an image.

Registry and engine are stand-ins on loopback; `tests/engine/test_dockerfile.py` uses a real Podman.
"""

from __future__ import annotations

import io
import json
import re
import socket
import tarfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest

from lumiimg.build.provenance import PLAN, PLAN_OF_DOCKERFILE, read_document
from lumiimg.cli.main import main
from lumiimg.core.errors import ExitCode
from lumiimg.core.text import address_of
from lumiimg.engine import room
from lumiimg.engine.room import FreeSpace
from tests.shared import fabric_builder, oci_builder
from tests.shared.loopback import Asked, Reply, listening
from tests.shared.world import World, serve

if TYPE_CHECKING:
    from collections.abc import Iterator

Capture = pytest.CaptureFixture[str]
FIXTURES = Path(__file__).parents[1] / "fixtures"
ID = "ab" * 32
pytestmark = pytest.mark.usefixtures("clean_home")


@pytest.fixture
def layer(tmp_path: Path) -> bytes:
    """The layer of a foreign image: an RCCL, and /.lumiimg as in an image that Docker built."""
    folder, content = fabric_builder.image(tmp_path / "theirs", glibc=39), io.BytesIO()
    (folder / ".lumiimg").mkdir()
    plan = read_document(FIXTURES / "written/0.1.0/image", PLAN)
    (folder / ".lumiimg" / PLAN_OF_DOCKERFILE).write_text(json.dumps(plan))
    with tarfile.open(fileobj=content, mode="w") as archive:
        archive.add(folder, ".")
    return content.getvalue()


@pytest.fixture
def world(layer: bytes, clean_home: Path) -> Iterator[World]:
    """A registry that the settings name instead of Docker Hub."""
    with serve(World(image=layer)) as world:
        settings = clean_home / ".config/lumiimg/config.toml"
        settings.parent.mkdir(parents=True)
        settings.write_text(f'[mirrors]\n"docker.io" = "{world.url}"\n')
        yield world


@contextmanager
def docker(
    layer: bytes, folder: Path, monkeypatch: pytest.MonkeyPatch, version: str = "1.44", at_save: Reply | None = None
) -> Iterator[list[str]]:
    """Run a stand-in for the API of an engine that has `mine:1`; yield the requests to it."""
    oci_builder.docker_save(folder / "saved.tar", layer)
    saved, asked_for = (folder / "saved.tar").read_bytes(), list[str]()
    found = {"Id": f"sha256:{ID}", "RepoTags": ["mine:1"], "Size": len(saved)}

    def answer(asked: Asked) -> Reply:
        path = re.sub(r"^/v[0-9.]+", "", asked.path.partition("?")[0])
        asked_for.append(path)
        answers = {"/images/mine:1/json": json.dumps(found).encode(), f"/images/sha256:{ID}/get": saved}
        answers["/images/mine:1/get"] = saved
        answers["/version"] = json.dumps({"ApiVersion": version}).encode()
        if at_save and path.endswith("/get"):
            return at_save
        if not asked.path.startswith(
            ("/version", f"/v{version}/")
        ):  # Docker 29 has none below 1.44, 24 none above 1.43
            return Reply(400, b'{"message": "client version is too old"}')
        body = answers.get(path, b'{"message": "No such image"}')
        kind = "application/x-tar" if body is saved else "application/json"
        broken = path.startswith("/images/broken")
        return Reply(500 if broken else 200 if path in answers else 404, body, {"Content-Type": kind})

    with listening(answer) as url:
        monkeypatch.setenv("DOCKER_HOST", url.replace("http", "tcp"))
        yield asked_for


def test_names_of_files_and_addresses_are_distinguished() -> None:
    for name, address in {
        "docker://a/b:1": "docker://a/b:1",
        "docker:/a/b:1": "docker://a/b:1",
        "docker-daemon:mine:1": "docker-daemon://mine:1",
        "docker-daemon://mine:1": "docker-daemon://mine:1",
        "docker-daemon:/a/b": "docker-daemon://a/b",
        **dict.fromkeys(("docker:mine", "docker.sif", "./docker:/x", "docker:///x", "oras://a/b", "x", "docker://")),
    }.items():
        assert address_of(name) == address, name


def test_an_image_of_a_registry_is_read_once_and_named_by_its_address(world: World, capsys: Capture) -> None:
    name = "docker://them/vllm:v1"
    assert main(["explain", name, "--json"]) == ExitCode.UNDECIDED
    out, err = capsys.readouterr()
    assert json.loads(out)["image"] == name
    assert f"{name}: {len(world.image) >> 20} MiB to download" in err or "KiB to download" in err
    assert "/oci/" not in out + err, "nobody asked for a file of the cache"
    world.asked.clear()
    assert main(["check", name, "--level", "static"]) == ExitCode.UNDECIDED
    assert name in "".join(capsys.readouterr())
    assert not [path for path in world.asked if "/blobs/" in path and path.endswith(oci_builder.digest(world.image))]
    assert main(["show", name]) == ExitCode.GOOD
    assert "box" in capsys.readouterr().out
    assert main(["check", name, "./nowhere.sif", "--level", "static"]) == ExitCode.BAD_INPUT
    assert name in capsys.readouterr().out
    assert main(["cache", "prune", "--keep", "0"]) == ExitCode.GOOD
    assert "and 1 image" in capsys.readouterr().out
    assert main(["check", name, "--nodes", "2"]) == ExitCode.BAD_INPUT
    assert "all nodes must see the image as a file" in capsys.readouterr().err


def test_an_image_of_an_engine_is_read_once(
    layer: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    with docker(layer, tmp_path, monkeypatch) as asked:
        for name in ("docker-daemon:mine:1", "docker-daemon://mine:1"):
            assert main(["explain", name, "--json"]) == ExitCode.UNDECIDED
            out, err = capsys.readouterr()
            assert json.loads(out)["image"] == "docker-daemon://mine:1"
        assert len([path for path in asked if path.endswith("/get")]) == 1
        assert "to copy" not in err
        assert (
            main(["explain", "--base", "docker-daemon:mine:1", "--add", "netprobe", "--site", "generic"])
            == ExitCode.GOOD
        )
        assert "no obstacle found" in capsys.readouterr().out
        adapt = ["adapt", "--add", "netprobe", "--site", "generic", "--dry-run", "--verbose"]
        assert main([*adapt, "docker-daemon:mine:1"]) == ExitCode.GOOD
        output = capsys.readouterr().out
        assert "would build mine-1 + netprobe" in output
        assert "docker-archive" in output
        assert main([*adapt, "docker-daemon://other:1"]) == ExitCode.NO
        assert "the engine does not have it" in capsys.readouterr().err
    assert main([*adapt, "docker-daemon://mine:1"]) == ExitCode.MISSING_HERE
    assert "no Docker engine answers" in capsys.readouterr().err
    # and it is removed like other entries of the cache
    assert main(["cache", "ls", "--json"]) == ExitCode.GOOD
    assert [image["key"] for image in json.loads(capsys.readouterr().out)["images"]] == [ID]
    assert main(["cache", "rm", ID[:12], "--json"]) == ExitCode.GOOD
    assert json.loads(capsys.readouterr().out)["images"] == [ID]
    assert main(["cache", "ls", "--json"]) == ExitCode.GOOD
    assert json.loads(capsys.readouterr().out)["size_bytes"] == 0


def test_what_an_engine_does_not_give_is_one_line_and_no_verdict(
    layer: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    def error_of(name: str, code: ExitCode, lines: int = 1) -> str:
        assert main(["check", name, "--level", "static"]) == code
        error = capsys.readouterr().err
        assert error.count("\n") == lines, error
        return error

    with docker(layer, tmp_path, monkeypatch):
        assert "the engine does not have it; docker pull other:1" in error_of(
            "docker-daemon:other:1", ExitCode.BAD_INPUT
        )
        assert "the engine did not provide it" in error_of("docker-daemon:broken:1", ExitCode.BAD_INPUT)
        with monkeypatch.context() as full:
            full.setattr(room, "room_at", lambda folder: FreeSpace(folder, 1024, in_memory=False))
            error = error_of("docker-daemon:mine:1", ExitCode.MISSING_HERE, lines=2)
        assert re.search(r"docker-daemon://mine:1: needs \S+ \S+, but only 1 KiB is left in .*; free some space", error)
    where = f"unix://{tmp_path}/none.sock"
    monkeypatch.setenv("DOCKER_HOST", where)
    error = error_of("docker-daemon:mine:1", ExitCode.MISSING_HERE)
    assert f"no Docker engine answers at {where}: No such file or directory; start one" in error

    def refused(*_: object) -> NoReturn:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(socket.socket, "connect", refused)
    assert f"you may not use the Docker engine at {where}" in error_of("docker-daemon:mine:1", ExitCode.MISSING_HERE)


@pytest.mark.parametrize("version", ["1.41", "1.43", "1.52"])
def test_an_engine_is_asked_by_the_version_that_it_names(
    version: str, layer: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with docker(layer, tmp_path, monkeypatch, version):
        assert main(["explain", "docker-daemon:mine:1"]) == ExitCode.UNDECIDED


def test_an_image_that_an_engine_did_not_save_whole_is_copied_again(
    layer: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """An error in the middle appears as the end of the file (moby, getImagesGet), or the connection is lost."""
    half = layer[: len(layer) // 2]
    for reply, expected in (
        (Reply(body=half + b'{"message": "no space left"}'), "fetch or save it again"),
        (Reply(body=half, length=len(layer)), "the engine did not provide it: "),
        (Reply(500, b'{"message": "boom"}'), "the engine did not provide it: boom"),
    ):
        with docker(layer, tmp_path, monkeypatch, at_save=reply):
            for command in (["check", "--level", "static"], ["explain", "--site", "generic", "--base"]):
                assert main([*command, "docker-daemon:mine:1"]) != ExitCode.GOOD
                error = capsys.readouterr().err
                assert "docker-daemon://mine:1: " in error
                assert expected in error
    with docker(layer, tmp_path, monkeypatch):
        assert main(["explain", "docker-daemon:mine:1"]) == ExitCode.UNDECIDED


def test_an_image_that_was_damaged_in_the_cache_is_reported_and_fetched_again(
    world: World, clean_home: Path, capsys: Capture
) -> None:
    name = "docker://them/vllm:v1"

    def damage() -> None:
        [blob] = (clean_home / ".cache/lumiimg/oci").glob(f"*/blobs/sha256/{oci_builder.digest(world.image)[7:]}")
        blob.write_bytes(blob.read_bytes()[::-1])
        for tar in (clean_home / ".cache/lumiimg/oci").glob("*.tar"):
            tar.unlink()

    assert main(["explain", name]) == ExitCode.UNDECIDED
    damage()
    assert main(["cache", "verify"]) == ExitCode.NO
    assert "the content of an image has changed" in capsys.readouterr().out
    assert main(["cache", "prune"]) == ExitCode.GOOD
    assert "and 1 image" in capsys.readouterr().out
    for command in (["explain"], ["explain", "--site", "generic", "--base"]):
        assert main(["explain", name]) == ExitCode.UNDECIDED
        damage()
        assert main([*command, name]) == ExitCode.BAD_INPUT
        assert f"{name}: " in capsys.readouterr().err
        assert main(["explain", name]) == ExitCode.UNDECIDED, "the same command again"
