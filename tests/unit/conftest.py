"""What several unit tests need: no network, and layer folders that are easy to break."""

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
    """What a package index has today must not decide how a test ends."""
    really = socket.getaddrinfo

    def getaddrinfo(host: str | bytes | None, *args: object, **options: object) -> object:
        if (host.decode() if isinstance(host, bytes) else host) not in LOOPBACK:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return really(host, *args, **options)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", getaddrinfo)
        yield
    # one that goes on takes the processor from all tests behind it
    servers = [thread for thread in threading.enumerate() if "serve_forever" in thread.name]
    for thread in servers:
        thread.join(5)  # one that was shut down may be at its last line
    assert not [thread for thread in servers if thread.is_alive()]


@pytest.fixture
def layers(tmp_path: Path) -> Path:
    """A folder of layer folders."""
    folder = tmp_path / "layers"
    folder.mkdir()
    return folder


@pytest.fixture
def make_layer(layers: Path) -> MakeLayer:
    """Write a layer folder; other files by name, `_` for `.`: test_sh="…"."""

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
    """A home without settings, and a cache of its own."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    for name in ("XDG_CONFIG_HOME", "XDG_CACHE_HOME", "LUMIIMG_CACHE", "LUMIIMG_ENGINE"):
        monkeypatch.delenv(name, raising=False)
    return home


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pause before a server is asked again, and uv asks once."""
    monkeypatch.setattr("lumiimg.fetch.connection._PAUSE_S", 0.0)
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")


@pytest.fixture
def no_namespaces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for a kernel that makes no namespaces: what starts the kernel's own engine ends at once."""
    monkeypatch.setattr("lumiimg.engine.namespaces.PROGRAM", ("/bin/false",))
