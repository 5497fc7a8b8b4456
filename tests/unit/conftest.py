"""Fixtures of unit tests: no network, and small layer folders to break."""

from __future__ import annotations

import socket
import threading
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.shared.layer_builder import LAYER, MakeLayer

LOOPBACK = {"localhost", "127.0.0.1", "::1", "", None}


@pytest.fixture(scope="session", autouse=True)
def _no_server_but_those_of_tests() -> Generator[None]:
    """The current content of a package index must not affect the result of a test."""
    really = socket.getaddrinfo

    def getaddrinfo(host: str | bytes | None, *args: object, **options: object) -> object:
        if (host.decode() if isinstance(host, bytes) else host) not in LOOPBACK:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return really(host, *args, **options)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", getaddrinfo)
        yield
    # a server that keeps running takes processor time from all later tests
    servers = [thread for thread in threading.enumerate() if "serve_forever" in thread.name]
    for thread in servers:
        thread.join(5)  # a server that was shut down may still be ending
    assert not [thread for thread in servers if thread.is_alive()]


@pytest.fixture
def layers(tmp_path: Path) -> Path:
    """A folder of layer folders."""
    folder = tmp_path / "layers"
    folder.mkdir()
    return folder


@pytest.fixture
def make_layer(layers: Path) -> MakeLayer:
    """Write a layer folder; other files are keywords, with `_` for `.`: test_sh="…"."""

    def make(name: str, toml: str = LAYER, *, post: str = "true\n", **files: str) -> Path:
        folder = layers / name
        folder.mkdir()
        (folder / "layer.toml").write_text(toml)
        (folder / "post.sh").write_text(post)
        for file, text in files.items():
            (folder / file.replace("_", ".")).write_text(text)
        return folder

    return make


@pytest.fixture
def clean_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home without settings, with its own cache."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    for name in ("XDG_CONFIG_HOME", "XDG_CACHE_HOME", "LUMIIMG_CACHE", "LUMIIMG_ENGINE"):
        monkeypatch.delenv(name, raising=False)
    return home


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pause before a request is retried, and no retries of uv."""
    monkeypatch.setattr("lumiimg.fetch.connection._PAUSE_S", 0.0)
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")


@pytest.fixture
def no_namespaces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for a kernel that creates no namespaces: the program of the kernel's own engine fails at once."""
    monkeypatch.setattr("lumiimg.engine.namespaces.PROGRAM", ("/bin/false",))
