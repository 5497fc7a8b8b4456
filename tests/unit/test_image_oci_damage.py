"""OCI and Docker images that are damaged or hostile: one line that says what is wrong, and nothing else ever."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import re
import tarfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lumiimg.image import FileKind, ImageError, open_image
from tests.shared.oci_builder import (
    CONFIG,
    INDEX,
    LAYER,
    MANIFEST,
    PACK,
    Layout,
    docker_save,
    image,
    link,
    make_config,
    member,
    tar,
)


def _visit(path: Path) -> None:
    """Use everything of an image."""
    with open_image(path) as opened:
        assert isinstance(opened.environment, dict)
        assert isinstance(opened.labels, dict)
        for entry in opened.root.walk():
            with contextlib.suppress(OSError):
                opened.root.stat(entry.path)
                if entry.kind is FileKind.FILE:
                    opened.root.open(entry.path).read_at(0, 65536)


def _one_layer(data: bytes, media_type: str = LAYER, **more: Any) -> Layout:
    """Return a layout whose one layer is these bytes."""
    layout = Layout()
    described = {**layout.blob(data, media_type), **more}
    config = layout.json(make_config(), CONFIG)
    layout.index(layout.json({"config": config, "layers": [described]}, MANIFEST))
    return layout


def _other_content(layout: Layout) -> Layout:
    """Change one byte of the layer, which stays a good gzip and tar otherwise."""
    name = next(name for name, data in layout.files.items() if data.startswith(b"\x1f\x8b"))
    data = bytearray(layout.files[name])
    data[4] ^= 1  # the time in the header of gzip
    layout.files[name] = bytes(data)
    return layout


def _other_document(layout: Layout, old: bytes, new: bytes) -> Layout:
    """Change a word of a config or a manifest for one of its length."""
    layout.files = {name: data.replace(old, new) for name, data in layout.files.items()}
    return layout


def _without(layout: Layout, start: bytes) -> Layout:
    layout.files = {name: data for name, data in layout.files.items() if not data.startswith(start)}
    return layout


def _nested(depth: int) -> Layout:
    layout = Layout()
    item = layout.manifest(tar())
    for _ in range(depth):
        item = layout.json({"manifests": [item]}, INDEX)
    layout.index(item)
    return layout


def _with_index(data: bytes) -> Layout:
    layout = image(tar())
    layout.files["index.json"] = data
    return layout


def _chain_of_links() -> bytes:
    return tar(link("a", "b"), link("b", "a"), member("a/x", b""))


def _sparse() -> bytes:
    return tar(member("holes", b"x", pax_headers={"GNU.sparse.major": "1", "GNU.sparse.minor": "0"}))


def _long_name(size: int) -> bytes:
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, size
    return info.tobuf(tarfile.GNU_FORMAT) + bytes(1024)


def _huge() -> bytes:
    """Return the header of a file of 8 GiB, and little else."""
    return member("zeros", b"", size=8 << 30)[0].tobuf(tarfile.GNU_FORMAT) + bytes(1 << 20)


def _broken(data: bytes, at: int) -> bytes:
    changed = bytearray(data)
    changed[at] ^= 0xFF
    return bytes(changed)


_PLAIN = tar(member("a", b"content" * 999))
_FOREIGN = "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip"


_FAULTS: dict[str, tuple[Callable[[], Layout], str]] = {
    "digest": (lambda: _other_content(image(_PLAIN)), "has other content; fetch the image again"),
    "config-digest": (lambda: _other_document(image(_PLAIN), b"PATH=/usr", b"PATH=/opt"), "has other content"),
    "no-layer": (lambda: _without(image(_PLAIN), b"\x1f\x8b"), "blob sha256:.* is not there"),
    "no-manifest": (lambda: _without(image(_PLAIN), b'{"schemaVersion": 2, "config"'), "is not there"),
    "other-size": (lambda: _one_layer(_PLAIN, size=5), "where 5 are announced"),
    "digest-is-a-path": (lambda: _one_layer(_PLAIN, digest="sha256:../../etc"), "not a valid sha256 or sha512"),
    "encrypted": (lambda: _one_layer(_PLAIN, LAYER + "+gzip+encrypted"), "is encrypted"),
    "kept-elsewhere": (
        lambda: _without(_one_layer(gzip.compress(_PLAIN), _FOREIGN), b"\x1f\x8b"),
        "is kept elsewhere by its owner",
    ),
    "no-tar": (lambda: _one_layer(_PLAIN, "application/vnd.x.squashfs"), "unknown type"),
    "index-deep": (lambda: _with_index(b"[" * 100_000), "index.json is not JSON"),
    "manifests-a-number": (lambda: _with_index(b'{"manifests": 3}'), "not a JSON list"),
    "index-empty": (lambda: _with_index(b"{}"), "no image"),
    "index-huge": (lambda: _with_index(b" " * (9 << 20)), "are the limit"),
    "index-nested": (lambda: _nested(9), "nested more than 4 deep"),
    "layers": (lambda: image(*[tar()] * 1001), "1001 layers"),
    "gzip-cut": (lambda: _one_layer(gzip.compress(_PLAIN)[:-9]), "cut off inside its gzip"),
    "zstd-cut": (lambda: _one_layer(PACK["+zstd"](_PLAIN)[:-9]), "cut off inside its zstd"),
    "zstd-damaged": (lambda: _one_layer(_broken(PACK["+zstd"](_PLAIN), 9)), "damaged zstd"),
    "gzip-damaged": (lambda: _one_layer(_broken(gzip.compress(_PLAIN), 12)), "damaged gzip"),
    "tar-cut": (lambda: _one_layer(_PLAIN[:1500]), "cut off inside a member"),
    "huge-member": (lambda: _one_layer(gzip.compress(_huge())), "cut off inside a member"),
    "no-tar-at-all": (lambda: _one_layer(b"no tar" * 999), "damaged tar"),
    "hard-link": (lambda: image(tar(link("a", "b", tarfile.LNKTYPE))), "hard link a to b"),
    "link-dir": (lambda: image(tar(member("d"), link("a", "d", tarfile.LNKTYPE))), "hard link a to d"),
    "links": (lambda: image(_chain_of_links()), "too many symlinks"),
    "deep": (lambda: image(tar(member("a/" * 2000 + "b", b""))), "more than 1024 directories"),
    "long-name": (lambda: image(tar(member("n" * 300, b""))), "a name of 300"),
    "long-path": (lambda: image(tar(member("a/" * 3000, b""))), "a path of 6000"),
    "sparse": (lambda: image(_sparse()), "sparse tar member holes is not read"),
    "type": (lambda: image(tar(member("a", b"", type=b"M"))), "unknown type"),
    "name-of-a-terabyte": (lambda: _one_layer(_long_name(1 << 40)), "damaged tar"),
    "name-of-two-megabytes": (lambda: _one_layer(_long_name(2 << 20)), "extended header of 2097152"),
    "size": (lambda: image(tar(member("a", b"", pax_headers={"size": "9" * 40}))), "record size"),
    "uid": (lambda: image(tar(member("a", b"", pax_headers={"uid": "x"}))), "record uid"),
}


@pytest.mark.threat
def test_hostile_image_is_named_in_one_line(tmp_path: Path) -> None:
    for name, (make, words) in _FAULTS.items():
        folder = make().write_folder(tmp_path / f"bad\n{name}")
        with pytest.raises(ImageError) as caught:
            _visit(folder)
        assert re.search(words, str(caught.value)), f"{name}: {caught.value}"
        assert "\n" not in str(caught.value), name


def test_a_docker_archive_that_lies_or_is_none_is_named(tmp_path: Path) -> None:
    config = json.dumps(make_config(_PLAIN)).encode()

    def saying(manifest: bytes) -> bytes:
        return tar(member("config.json", config), member("manifest.json", manifest), link("loop", "loop"))

    saved = docker_save(tmp_path / "a.tar", _PLAIN).read_bytes()
    for data, words in (
        (saved.replace(b"content", b"CONTENT"), "has other content; fetch the image again"),
        (saying(b"{}"), "not a JSON list"),
        (saying(b"[]"), "0 images"),
        (saying(b'[{"Config": "/etc/passwd", "Layers": []}]'), "config is not in the archive"),
        (saying(b'[{"Config": "config.json", "Layers": ["../../x"]}]'), "layer ../../x is not in the archive"),
        (saying(b'[{"Config": "config.json", "Layers": []}]'), "0 layers where the config has 1"),
        (saying(b'[{"Config": "config.json", "Layers": ["loop"]}]'), "loop is not in the archive"),
        (_PLAIN, "a tar that holds no image"),
        (gzip.compress(_PLAIN), "compressed with gzip; unpack it first"),
        (_PLAIN[:1024], "cut off"),
    ):
        (tmp_path / "a.tar").write_bytes(data)
        with pytest.raises(ImageError, match=words):
            open_image(tmp_path / "a.tar")


@pytest.mark.threat
def test_paths_never_lead_to_the_host(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("host")
    content = tar(
        link("out", str(tmp_path)),
        member("out/secret", b"image"),
        member("../../../etc/passwd", b"image"),
        member("etc/..", b"image"),
        link("up", "../../../etc"),
        link("hard", "/etc/passwd", tarfile.LNKTYPE),
    )
    with open_image(image(content).write_folder(tmp_path / "layout")) as opened:
        for path in ("/out/secret", f"{tmp_path}/secret", "/etc/passwd", "/up/passwd", "/hard"):
            assert opened.root.read_bytes(path, 99) == b"image"
        assert not [found.path for found in opened.root.walk() if ".." in found.path]
    assert (tmp_path / "secret").read_text() == "host"


@pytest.mark.threat
def test_blobs_are_not_looked_for_outside_of_the_layout(tmp_path: Path) -> None:
    layout = image(_PLAIN)
    name = next(name for name, data in layout.files.items() if data.startswith(b"\x1f\x8b"))
    (tmp_path / "outside").write_bytes(layout.files.pop(name))
    layout.write_folder(tmp_path / "layout")
    (tmp_path / "layout" / name).symlink_to(tmp_path / "outside")
    with pytest.raises(ImageError, match="is not there"):
        open_image(tmp_path / "layout")
    # an absolute link is one of the layout, also where this machine has a file of that name
    inside = Path(f"{tmp_path / 'layout'}{tmp_path}")
    inside.mkdir(parents=True)
    (inside / "outside").write_bytes((tmp_path / "outside").read_bytes())
    (tmp_path / "outside").write_bytes(b"of this machine" * 9)
    with open_image(tmp_path / "layout") as opened:
        assert opened.root.read_bytes("/a", 9999) == b"content" * 999


@pytest.mark.parametrize("pack", ["+gzip", "+zstd"])
@pytest.mark.threat
def test_layer_that_unpacks_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pack: str) -> None:
    monkeypatch.setattr("lumiimg.image.oci.layer._FREE_BYTES", 2 << 20)
    folder = image(tar(member("zeros", bytes(16 << 20))), pack=pack).write_folder(tmp_path / "layout")
    with pytest.raises(ImageError, match="more than 200 times their size"):
        open_image(folder, lambda: tmp_path / "cache")
    monkeypatch.setattr("lumiimg.image.oci.layer._MAX_SECONDS", 0)
    with pytest.raises(ImageError, match="layers that take more than 0 minutes to unpack"):
        open_image(folder, lambda: tmp_path / "cache")
    assert not [*(tmp_path / "cache/oci").iterdir()], "what was written of it is gone"


@pytest.mark.threat
def test_memory_does_not_grow_with_a_layer(tmp_path: Path) -> None:
    noise = hashlib.shake_128(b"noise").digest(1 << 20)
    content = tar(*(member(str(number), noise) for number in range(24)))
    paths = [image(content, pack=pack).write_folder(tmp_path / pack) for pack in ("+gzip", "+zstd")]
    del content
    for path in paths:
        tracemalloc.start()
        try:
            with open_image(path) as opened:
                for number in (23, 11, 0):
                    assert opened.root.open(f"/{number}").read_at(0, 1 << 20) == noise
            assert tracemalloc.get_traced_memory()[1] < 20 << 20
        finally:
            tracemalloc.stop()
