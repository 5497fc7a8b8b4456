"""Compressed layers of OCI and Docker images, which are unpacked once, into the cache."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from lumiimg.cli.main import main
from lumiimg.core.errors import ExitCode, MissingHereError
from lumiimg.image import ImageError, open_image
from lumiimg.image.oci import decoding, layer
from tests.shared.oci_builder import docker_save, image, member, tar

Capture = pytest.CaptureFixture[str]
_CONTENT = tar(member("a", b"content" * 9999), member("etc/name", b"name"))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clean_home: Path) -> Path:
    del clean_home
    monkeypatch.setenv("LUMIIMG_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def _read(path: Path, cache: Path) -> None:
    with open_image(path, lambda: cache) as opened:
        assert opened.root.read_bytes("/a", 1 << 20) == b"content" * 9999
        assert opened.root.read_bytes("/etc/name", 9) == b"name"


def _kept(cache: Path) -> list[Path]:
    return sorted((cache / "oci").iterdir())


@pytest.fixture
def unpacked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of the blobs that are unpacked from now on."""
    names: list[str] = []

    def unpack(source: decoding.BlobReader) -> Iterator[bytes]:
        names.append(source.name)
        return decoding.unpack(source)

    monkeypatch.setattr(layer, "unpack", unpack)
    return names


@pytest.mark.threat
def test_a_layer_is_verified_also_where_it_was_unpacked_before(tmp_path: Path, cache: Path) -> None:
    folder = image(_CONTENT).write_folder(tmp_path / "layout")
    _read(folder, cache)
    (blob,) = (path for path in folder.rglob("*") if path.is_file() and path.read_bytes().startswith(b"\x1f\x8b"))
    data = bytearray(blob.read_bytes())
    data[4] ^= 1
    blob.write_bytes(data)
    with pytest.raises(ImageError, match="has other content; fetch the image again"):
        _read(folder, cache)


@pytest.mark.threat
@pytest.mark.parametrize("spoil", ["cut", "open", "link", "docker"])
def test_a_tar_that_is_not_what_it_was_or_others_may_write_is_not_used(
    tmp_path: Path, cache: Path, unpacked: list[str], spoil: str
) -> None:
    path = docker_save(tmp_path / "a.tar", _CONTENT, pack="+gzip")
    if spoil != "docker":
        path = image(_CONTENT).write_folder(tmp_path / "layout")
    _read(path, cache)
    (found,) = _kept(cache)
    if spoil == "cut":
        found.write_bytes(_CONTENT[:-512])
    elif spoil == "open":
        found.chmod(0o666)
    elif spoil == "link":
        found.symlink_to(found.rename(tmp_path / "elsewhere"))
    else:
        found.write_bytes(_CONTENT.replace(b"name", b"mane"))
    unpacked.clear()
    _read(path, cache)
    _read(path, cache)
    assert len(unpacked) == 1
    assert _kept(cache) == [found]
    assert found.read_bytes() == _CONTENT
    assert (found.lstat().st_mode & 0o777) == 0o600


def test_without_a_cache_that_can_be_written_a_layer_goes_into_a_temporary_file(tmp_path: Path, cache: Path) -> None:
    cache.write_text("a file")
    temporary = Path(tempfile.gettempdir())
    before = {path.name for path in temporary.glob("lumiimg-*")}
    _read(image(_CONTENT).write_folder(tmp_path / "layout"), cache)
    assert {path.name for path in temporary.glob("lumiimg-*")} <= before, "it has no name"


def test_without_room_one_line_names_both_folders(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    path = image(_CONTENT).write_folder(tmp_path / "layout")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(layer, "_LOOK_BYTES", 0)
    monkeypatch.setattr(layer, "_SPARE_BYTES", 1 << 60)
    seen = os.statvfs(tmp_path)
    full = os.statvfs_result((*seen[:3], 0, 0, *seen[5:]))
    monkeypatch.setattr(os, "fstatvfs", lambda _: full)
    reason = os.strerror(errno.ENOSPC)
    with pytest.raises(MissingHereError, match=f"cannot be unpacked: {cache}: {reason}; {tmp_path}: {reason}"):
        _read(path, cache)
    assert [found.name for found in tmp_path.iterdir() if found.name.startswith("lumiimg-")] == []
    assert _kept(cache) == []
    assert main(["check", "--level", "static", str(path)]) == ExitCode.MISSING_HERE
    (line,) = capsys.readouterr().err.splitlines()
    assert "let LUMIIMG_CACHE or TMPDIR name a folder" in line


def test_unpacked_layers_are_listed_verified_and_pruned(tmp_path: Path, cache: Path, capsys: Capture) -> None:
    path = image(_CONTENT).write_folder(tmp_path / "layout")
    assert main(["diff", str(path), str(path)]) == ExitCode.GOOD
    (found,) = _kept(cache)
    (abandoned := found.with_name(".sha256-0.x")).write_bytes(b"half")
    os.utime(abandoned, (1, 1))
    (new := found.with_name(".sha256-1.x")).write_bytes(b"half")
    capsys.readouterr()
    assert main(["cache", "ls"]) == ExitCode.GOOD
    out = " ".join(capsys.readouterr().out.split())
    assert "0 layers and 1 unpacked layer" in out
    assert "unpacked: a layer of an OCI image, sha256:" in out
    assert _kept(cache) == [new, found]
    assert main(["cache", "verify"]) == ExitCode.GOOD
    os.truncate(found, 5)
    assert main(["cache", "verify"]) == ExitCode.NO
    assert "another size than it had" in capsys.readouterr().out
    assert main(["cache", "prune"]) == ExitCode.GOOD
    assert _kept(cache) == [new]
    assert main(["diff", str(path), str(path)]) == ExitCode.GOOD
    assert main(["cache", "prune", "--keep", "1G"]) == ExitCode.GOOD
    assert _kept(cache) == [new, found]
    assert main(["cache", "prune", "--keep", "0"]) == ExitCode.GOOD
    assert _kept(cache) == [new]
