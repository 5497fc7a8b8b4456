"""SIF: what Apptainer writes is read; contradictions are reported in one line, and nothing else is ever raised."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from lumiimg.image import ImageError, ImageKind, open_image, require_room
from tests.shared.programs import squashed

DEFINITION, PARTITION, SIGNATURE, JSON, OCI_INDEX = 0x4001, 0x4004, 0x4005, 0x4006, 0x400A
_TABLE_AT = 4096


def _partition(file_system: int = 1, kind: int = 2) -> bytes:
    return struct.pack("<ii3s", file_system, kind, b"02\0")


def _sif(
    objects: list[tuple[int, str, bytes, bytes]], *, total: int | None = None, used: int = 1, shift: int = 0
) -> bytes:
    """Write a SIF by hand; objects are (type, name, content, extra)."""
    table = b""
    body = b""
    start = _TABLE_AT + 585 * 8
    for number, (kind, name, content, extra) in enumerate(objects, 1):
        body += bytes(-(start + len(body)) % 4096)
        offset = start + len(body) + shift
        sizes = (offset, len(content), len(content), 0, 0, 0, 0)
        table += struct.pack("<iBIII7q128s384s", kind, used, number, 0xF0000001, 0, *sizes, name.encode(), extra)
        body += content
    count = len(objects) if total is None else total
    numbers = (0, 0, 0, count, _TABLE_AT, 585 * count, start, len(body))
    header = struct.pack("<32s10s3s3s16s8q", b"#!/run", b"SIF_MAGIC\0", b"01\0", b"02\0", bytes(16), *numbers)
    return header.ljust(_TABLE_AT, b"\0") + table.ljust(585 * 8, b"\0") + body


@pytest.fixture(scope="module")
def squashfs(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("sif")
    scripts = folder / "tree/.singularity.d/env"
    scripts.mkdir(parents=True)
    (scripts / "10-docker2singularity.sh").write_text(
        'export PATH="${PATH:-"/usr/bin:/bin"}"\nexport A="${A:-"v w"}"\n'
    )
    (scripts / "90-environment.sh").write_text('export LD_LIBRARY_PATH="/opt/x:${LD_LIBRARY_PATH:-}"\n')
    (folder / "tree/hello").write_text("hello")
    return squashed(folder / "tree", folder / "s").read_bytes()


def _metadata() -> bytes:
    attributes = {"labels": {"maintainer": "me", "n": 3}, "deffile": "x"}
    return json.dumps({"data": {"attributes": attributes}, "type": "container"}).encode()


def _good(squashfs: bytes) -> list[tuple[int, str, bytes, bytes]]:
    return [
        (DEFINITION, "", b"Bootstrap: docker\n", b""),
        (JSON, "inspect-metadata.json", _metadata(), b""),
        (PARTITION, "squash", squashfs, _partition()),
        (SIGNATURE, "", b"signed", b""),
    ]


def _write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def test_files_labels_and_environment(squashfs: bytes, tmp_path: Path) -> None:
    with open_image(_write(tmp_path / "name-says-nothing", _sif(_good(squashfs)))) as image:
        assert image.kind is ImageKind.SIF
        assert image.description.architecture == "amd64"
        assert image.root.read_bytes("/hello", 100) == b"hello"
        assert image.description.labels == {"maintainer": "me", "n": "3"}
        path = "/usr/bin:/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/sbin"  # what Docker's lacks, the engine adds
        assert image.environment == {"PATH": path, "A": "v w", "LD_LIBRARY_PATH": "/opt/x:"}
        assert image.description.warnings == ()


def test_overlay_partitions_are_laid_over_the_root_in_their_order(squashfs: bytes, tmp_path: Path) -> None:
    overlays = [(PARTITION, "", _packed(tmp_path, content), _partition(kind=4)) for content in ("lower", "upper")]
    with open_image(_write(tmp_path / "a.sif", _sif([*_good(squashfs), *overlays]))) as image:
        assert image.root.read_bytes("/hello", 100) == b"upper"
        assert image.root.read_bytes("/lower", 100) == b"lower"
        assert image.environment["A"] == "v w"
        assert image.description.warnings == ()


@pytest.mark.threat
def test_what_an_overlay_hides_counts_before_it_is_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lumiimg.image.image._ALWAYS_ALLOWED_BYTES", 1 << 20)
    for folder, size_bytes in (("below", 24 << 20), ("above", 0)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "zeros").write_bytes(bytes(size_bytes))
    below, above = (
        squashed(tmp_path / name, tmp_path / f"{name}.squashfs").read_bytes() for name in ("below", "above")
    )
    image = _sif([*_good(below), (PARTITION, "", above, _partition(kind=4))])
    with pytest.raises(ImageError, match="100 times"):
        require_room(_write(tmp_path / "a.sif", image), tmp_path)


def _packed(folder: Path, content: str) -> bytes:
    (folder / content).mkdir()
    for name in ("hello", content):
        (folder / content / name).write_text(content)
    return squashed(folder / content, folder / f"{content}.squashfs").read_bytes()


def test_overlay_partition_that_is_not_read_is_a_warning(squashfs: bytes, tmp_path: Path) -> None:
    objects = [*_good(squashfs), (PARTITION, "overlay", b"ext3", _partition(file_system=2, kind=4))]
    with open_image(_write(tmp_path / "a.sif", _sif(objects))) as image:
        assert image.description.warnings == ("overlay partition 5 has an unsupported format: its changes are ignored",)


def _only(kind: int, squashfs: bytes, extra: bytes = b"") -> bytes:
    return _sif([(kind, "", squashfs, extra)])


def _over_each_other(squashfs: bytes) -> bytes:
    data = bytearray(_sif(_good(squashfs)))
    second, third = (_TABLE_AT + 585 * index + 17 for index in (1, 2))
    data[second : second + 8] = data[third : third + 8]
    return bytes(data)


HOSTILE: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "total minus one": (lambda s: _sif(_good(s), total=-1), "claims -1 descriptors"),
    "used 2": (lambda s: _sif(_good(s), used=2), "used flag"),
    "offset negative": (lambda s: _sif(_good(s), shift=-(10**6)), "offset -"),
    "offset past end": (lambda s: _sif(_good(s), shift=10**9), "cut off"),
    "over the descriptors": (lambda s: _sif(_good(s), shift=-8192), "overlap"),
    "over each other": (_over_each_other, "overlap"),
    "two roots": (lambda s: _sif([*_good(s), _good(s)[2]]), "2 root file systems"),
    "no root": (lambda s: _only(DEFINITION, s), "without a root"),
    "damaged overlay": (lambda s: _sif([*_good(s), (PARTITION, "", s[:200], _partition(kind=4))]), "cut off"),
    "oci-sif": (lambda s: _only(OCI_INDEX, s), "OCI-SIF"),
    "encrypted": (lambda s: _only(PARTITION, s, _partition(5)), "encrypted"),
    "ext3": (lambda s: _only(PARTITION, s, _partition(2)), "ext3"),
    "unknown format": (lambda s: _only(PARTITION, s, _partition(9)), "unknown format"),
    "no squashfs": (lambda _: _only(PARTITION, b"not squashfs" * 20, _partition()), "not a squashfs"),
    "partial download": (lambda s: _sif(_good(s))[:-3000], "cut off"),
    "a script": (lambda _: b"#!/bin/sh\necho hello\n", "neither"),
    "empty": (lambda _: b"", "empty"),
}


@pytest.mark.threat
def test_hostile_file_is_named_in_one_line(squashfs: bytes, tmp_path: Path) -> None:
    for name, (make, words) in HOSTILE.items():
        with pytest.raises(ImageError) as caught:
            open_image(_write(tmp_path / "bad\nname.sif", make(squashfs)))
        assert words in str(caught.value), name
        assert "\n" not in str(caught.value), name
    os.mkfifo(tmp_path / "fifo")
    for path, words in (("nowhere.sif", "No such file"), ("fifo", "neither a file nor a folder")):
        with pytest.raises(ImageError, match=words):
            open_image(tmp_path / path)
