"""What several unit tests need: layer folders that are easy to break."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.shared.layer_builder import LAYER, MakeLayer


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
def no_namespaces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for a kernel that makes no namespaces: what starts the kernel's own engine ends at once."""
    monkeypatch.setattr("lumiimg.engine.namespaces.PROGRAM", ("/bin/false",))
