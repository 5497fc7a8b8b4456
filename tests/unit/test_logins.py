"""Which logins leave this machine: a server on loopback requests one from each program that lumiimg starts."""

from __future__ import annotations

import base64
import io
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

import pytest

from lumiimg.build.base import build_by_engine, run_as_root
from lumiimg.build.builder import ImageBuild
from lumiimg.build.layer_build import LayerBuild
from lumiimg.cli import image_build, rebuild
from lumiimg.cli.main import main
from lumiimg.core.errors import ExitCode, FailedError, LumiimgError
from lumiimg.definition.definition import Definition, Header, Sections
from lumiimg.engine.engine import Engine, EngineKind
from lumiimg.fetch.http import Http
from lumiimg.fetch.pull import save_from_daemon
from lumiimg.resolve import python_project
from tests.shared.build_machine import build_machine
from tests.shared.layer_builder import BASE, MakeLayer
from tests.shared.loopback import Asked, Reply, listening
from tests.shared.programs import needs
from tests.shared.tls import CERTIFICATE, certified
from tests.shared.world import resolved_at

if TYPE_CHECKING:
    from lumiimg.build.builder import ImageBuild

ENGINE = Engine(Path("/x/apptainer"), EngineKind.APPTAINER, "1.4.5", frozenset())
WORD = 'a b"\\/@:#?%'
NAMED = "machine 127.0.0.1 login m@e password " + '"a b\\"\\\\/@:#?%"\n'
NETRCS = {
    "default": "default login me password word\n",
    "named": NAMED,
    "other": NAMED.replace("127.0.0.1", "host.test"),
}
MINE = f"Basic {base64.b64encode(f'm@e:{WORD}'.encode()).decode()}"
JSON = "application/vnd.pypi.simple.v1+json"


@dataclass
class Server:
    """A server that requests a login and rejects all of them, or redirects to another server."""

    url: str = ""
    asked: list[Asked] = field(default_factory=list)
    leads: Callable[[Asked], Reply] | None = None

    def answer(self, asked: Asked) -> Reply:
        self.asked.append(asked)
        return self.leads(asked) if self.leads else Reply(401, b"", {"WWW-Authenticate": 'Basic realm="x"'})

    def logins(self) -> set[str]:
        """Return the logins received since the last call."""
        assert self.asked, "it was asked"
        found = {asked.headers["authorization"] for asked in self.asked if "authorization" in asked.headers}
        self.asked.clear()
        return found


@pytest.fixture
def plain() -> Iterator[Server]:
    server = Server()
    with listening(server.answer) as server.url:
        yield server


@pytest.fixture
def tls() -> Iterator[Server]:
    server = Server()
    with listening(server.answer, certified()) as server.url:
        yield server


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    home.mkdir()
    for name in ("NETRC", "SSL_CERT_FILE", "PIP_INDEX_URL", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {
        "HOME": str(home),
        "NO_PROXY": "*",
        **dict.fromkeys(("UV_HTTP_RETRIES", "PIP_RETRIES"), "0"),
        **dict.fromkeys(("REQUESTS_CA_BUNDLE", "PIP_CERT"), str(CERTIFICATE)),
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("lumiimg.fetch.connection._PAUSE_S", 0.0)
    return home


def write_netrc(home: Path, text: str) -> None:
    (home / ".netrc").write_text(text)
    (home / ".netrc").chmod(0o600)


def by_uv(url: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python_project, "_index_of", lambda _, indexes, __: indexes[0])
    with pytest.raises(LumiimgError):
        resolved_at(f"{url}/simple", folder, pins=("egg==1.0",), indexes=(f"{url}/whl",), requires=("ham",))


def by_docker(url: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", url.replace("http://", "tcp://"))
    with pytest.raises(LumiimgError):
        save_from_daemon("docker-daemon://theirs:1", folder / "saved", print)


def by_ourselves(url: str, _folder: Path, _monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LumiimgError):
        Http().get(f"{url}/file", limit_bytes=10)


def by_debootstrap(url: str, folder: Path, _monkeypatch: pytest.MonkeyPatch) -> None:
    """Fetch with its wget, which does not need root."""
    needs("wget")
    step = step_of(folder, Header("debootstrap", "stable", url))
    with pytest.raises(LumiimgError):
        run_as_root(step, ["wget", "--tries=1", "-O", os.devnull, f"{url}/dists/stable/InRelease"])


class Log(io.BytesIO):
    name = "log"


def step_of(folder: Path, header: Header) -> LayerBuild:
    kernels = Engine(Path("/x"), EngineKind.NAMESPACES, "1", frozenset())
    machine = build_machine(kernels, has_subids=False)
    folder = folder / "step"
    folder.mkdir(exist_ok=True)
    definition = Definition("01-a", ("a",), None, Sections(header), ())
    return LayerBuild(machine, dict(os.environ), definition, folder, Log(), print)


@pytest.mark.parametrize("netrc", NETRCS)
@pytest.mark.threat
def test_no_program_sends_a_login_without_tls(
    plain: Server, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, netrc: str
) -> None:
    write_netrc(home, NETRCS[netrc])
    for ask in (by_ourselves, by_uv, by_docker, by_debootstrap):
        ask(plain.url, tmp_path, monkeypatch)
        assert plain.logins() == set(), ask


@pytest.mark.parametrize("netrc", NETRCS)
@pytest.mark.threat
def test_a_login_over_tls_is_that_of_the_host_that_is_named(
    tls: Server, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, netrc: str
) -> None:
    write_netrc(home, NETRCS[netrc])
    for ask in (by_ourselves, by_uv):
        ask(tls.url, tmp_path, monkeypatch)
        assert tls.logins() == ({MINE} if netrc == "named" else set()), ask


@pytest.mark.threat
def test_a_login_does_not_follow_uv_to_where_a_server_leads(
    tls: Server, plain: Server, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not to the same host without TLS, either by a redirect or by the link to a wheel."""
    write_netrc(home, NAMED)
    file = "egg-1.0-py3-none-any.whl"
    entry = {"filename": file, "url": f"{plain.url}/{file}", "hashes": {}, "core-metadata": True}
    page = json.dumps({"meta": {"api-version": "1.0"}, "name": "egg", "files": [entry]}).encode()
    for reply in (Reply(302, b"", {"Location": f"{plain.url}/simple/egg/"}), Reply(200, page, {"Content-Type": JSON})):
        tls.leads = lambda _, reply=reply: reply
        by_uv(tls.url, tmp_path, monkeypatch)
        assert tls.logins() == {MINE}
        assert plain.logins() == set()


def test_the_lock_that_comes_of_an_index_with_a_login_has_none(tls: Server, home: Path, tmp_path: Path) -> None:
    write_netrc(home, NAMED)
    file = "egg-1.0-py3-none-any.whl"
    entry = {"filename": file, "url": f"../../{file}", "hashes": {"sha256": "a" * 64}, "core-metadata": True}
    page = json.dumps({"meta": {"api-version": "1.0"}, "name": "egg", "files": [entry]}).encode()

    def answer(asked: Asked) -> Reply:
        if asked.headers.get("authorization") != MINE:
            return Reply(401)
        is_page = asked.path.endswith("/egg/")
        return Reply(
            200, page if is_page else b"Metadata-Version: 2.1\nName: egg\nVersion: 1.0\n", {"Content-Type": JSON}
        )

    tls.leads = answer
    found = resolved_at(f"{tls.url}/simple", tmp_path, pins=("egg==1.0",), indexes=(f"{tls.url}/whl",))
    assert [wheel.location for wheel in found.by_layer["a"]] == [f"{tls.url}/{file}"]


@pytest.mark.threat
def test_an_engine_gets_a_login_for_registries_with_tls_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine is a stand-in that prints what it gets."""
    engine = tmp_path / "apptainer"
    engine.write_text("#!/bin/sh\nenv >&2\nexit 1\n")
    engine.chmod(0o755)
    logins = {"APPTAINER_DOCKER_PASSWORD": "word", "APPTAINER_CONFIGDIR": "/c", "DOCKER_CONFIG": "/d", "HOME": "/h"}
    for name, value in logins.items():
        monkeypatch.setenv(name, value)
    cases = {("docker", False): True, ("docker", True): False, ("debootstrap", False): False}
    for (agent, plain_http), gets in cases.items():
        step = step_of(tmp_path, Header(agent, "host.test/a"))
        machine = build_machine(Engine(engine, EngineKind.APPTAINER, "1", frozenset()), has_subids=False)
        definition, log = replace(step.definition, plain_http=plain_http), Log()
        with pytest.raises(LumiimgError):
            build_by_engine(replace(step, machine=machine, definition=definition, log=log), tmp_path / "target")
        output = set(log.getvalue().decode().splitlines())
        assert bool(output & {f"{name}={value}" for name, value in logins.items()}) == gets, agent


@pytest.mark.threat
def test_the_password_variables_of_an_engine_go_to_the_registry_that_was_named(
    home: Path, tmp_path: Path, layers: Path, make_layer: MakeLayer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They do not name one: an engine would send them to a mirror, and to the registry of a foreign image's base."""
    make_layer("box", BASE.replace("busybox", f"busybox@sha256:{'0' * 64}"))
    logins = {"APPTAINER_DOCKER_USERNAME": "me", "SINGULARITY_DOCKER_PASSWORD": "word"}
    for name, value in {**logins, "LUMIIMG_CACHE": f"{home}/cache"}.items():
        monkeypatch.setenv(name, value)
    seen: list[bool] = []

    def built(build: ImageBuild) -> None:
        assert build.environment["HOME"] == str(home)
        seen.append(logins.items() <= build.environment.items())
        assert seen[-1] or not logins.keys() & build.environment.keys()
        raise FailedError("was asked")

    for verb in (image_build, rebuild):
        monkeypatch.setattr(verb, "build_image", built)
        monkeypatch.setattr(verb, "host_for_builds", lambda *_: build_machine(ENGINE))
    words = ["build", "--layers", f"{layers}", "--base", "box", "-o", f"{tmp_path}/x.sif"]
    for more in ((), ("--mirror", "docker.io=https://near.test"), ("--mirror", "quay.io=https://near.test")):
        assert main([*words, *more]) == ExitCode.NO
    assert seen == [True, False, True]
    for name in ("_read_lock", "write_chain"):
        monkeypatch.setattr(rebuild, name, mock.MagicMock())
    (tmp_path / "old.sif").write_bytes(b"")
    assert main(["rebuild", "--quiet", f"{tmp_path}/old.sif", "-o", f"{tmp_path}/x.sif"]) == ExitCode.NO
    assert seen[3:] == [False]
