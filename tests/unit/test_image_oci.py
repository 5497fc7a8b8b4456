"""OCI layouts, OCI archives and `docker save`: one root, as engines unpack it; and damaged or hostile ones."""

from __future__ import annotations

import contextlib
import errno
import gzip
import hashlib
import io
import itertools
import json
import os
import random
import re
import shutil
import subprocess
import tarfile
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from lumiimg.cli.main import main
from lumiimg.core.errors import ExitCode, MissingHereError
from lumiimg.image import FileKind, ImageError, ImageKind, open_image
from lumiimg.image.compare import compare
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
    random_layer,
    tar,
)
from tests.shared.programs import examples, needs, patient

Capture = pytest.CaptureFixture[str]
_CONTENT = tar(member("a", b"content" * 9999), member("etc/name", b"name"))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clean_home: Path) -> Path:
    del clean_home
    monkeypatch.setenv("LUMIIMG_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def _unpacked(cache: Path) -> list[Path]:
    return sorted((cache / "oci").iterdir())


def _files(path: Path, cache: Path) -> dict[str, bytes]:
    """Return the files of an image, after reading everything else in it."""
    found = {}
    with open_image(path, lambda: cache) as opened:
        assert isinstance(opened.environment, dict)
        assert isinstance(opened.description.labels, dict)
        for entry in opened.root.walk():
            with contextlib.suppress(OSError):
                opened.root.stat(entry.path)
                if entry.kind is FileKind.FILE:
                    found[entry.path] = opened.root.read_bytes(entry.path, 8 << 20)
    return found


def _unpack(layer: bytes, folder: Path) -> None:
    """Remove what whiteouts name, then what is in the way of members; let GNU tar do the rest."""
    with tarfile.open(fileobj=io.BytesIO(layer)) as archive:
        members = [(folder / info.name, info.isdir()) for info in archive]
    gone: list[Path] = []
    before: list[Path] = []

    def without(path: Path) -> None:
        """Remove a path, except what came before in this layer, and the folders above that."""
        if not any(path in (one, *one.parents) for one in before):
            gone.append(path)
        elif path.is_dir():
            for inner in path.glob("*"):
                without(inner)

    for path, is_folder in members:
        if path.name == ".wh..wh..opq":
            for inner in path.parent.glob("*"):
                without(inner)
        elif path.name.startswith(".wh."):
            without(path.with_name(path.name.removeprefix(".wh.")))
        elif path.is_dir() != is_folder:
            gone.append(path)
        elif path.parent.exists() and not path.parent.is_dir():
            gone.append(path.parent)
        before.append(path)
    for path in gone:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.parent.is_dir():
            path.unlink(missing_ok=True)
    subprocess.run(["tar", "-xpf", "-", "--exclude=.wh.*", "-C", folder], input=layer, check=True, umask=0o022)


def _layout_as_docker_writes_it_now(path: Path, *layers: bytes, pack: str) -> Path:
    layout = image(*layers, pack=pack)
    layout.files["manifest.json"] = b"[]"
    return layout.write_tar(path)


_FORMS: list[tuple[ImageKind, Callable[..., Path]]] = [
    (ImageKind.OCI_LAYOUT, lambda path, *layers, pack: image(*layers, pack=pack).write_folder(path)),
    (ImageKind.OCI_ARCHIVE, lambda path, *layers, pack: image(*layers, pack=pack).write_tar(path)),
    (ImageKind.OCI_ARCHIVE, _layout_as_docker_writes_it_now),
    (ImageKind.DOCKER_ARCHIVE, docker_save),
]


def test_any_stack_of_layers_in_any_form_is_what_tar_makes_of_it(tmp_path: Path, cache: Path) -> None:
    needs("tar")
    forms = itertools.cycle(itertools.product(_FORMS, PACK))
    for seed, ((kind, write), pack) in zip(range(examples(24)), forms, strict=False):
        chance = random.Random(seed)  # noqa: S311 - the same layers each time
        (folder := tmp_path / f"{seed}").mkdir()
        layers = [random_layer(chance) for _ in range(3)]
        for layer in layers:
            _unpack(layer, folder)
        with open_image(write(tmp_path / f"{seed}.image", *layers, pack=pack), lambda: cache) as theirs:
            assert theirs.kind is kind
            with open_image(folder) as ours:
                found = compare(theirs.root, ours.root).files
                assert [each for each in found if each.what != "time" or not ours.root.is_dir(each.path)] == [], seed


def test_what_no_tar_unpacks_so(tmp_path: Path) -> None:
    """Owners that only root may give, devices, and one inode by two names."""
    layer = tar(
        member("./bin", mode=0o700, uid=5, gid=6, mtime=1234),
        member("bin/tool", b"tool", mode=0o4755, uid=100_000_000),
        link("hard", "bin/tool", tarfile.LNKTYPE),
        member("null", b"", type=tarfile.CHRTYPE, devmajor=1, devminor=3),
    )
    with open_image(image(layer, pack="").write_folder(tmp_path)) as opened:
        folder, tool, null = map(opened.root.stat, ("/bin", "/bin/tool", "/null"))
        assert (folder.permissions, folder.uid, folder.gid, folder.mtime_s) == (0o700, 5, 6, 1234)
        assert (tool.permissions, tool.uid, tool.links) == (0o4755, 100_000_000, 2)
        assert opened.root.stat("/hard").identity == tool.identity == opened.root.open("/hard").identity
        assert (null.kind, null.device) == (FileKind.DEVICE, (False, 1, 3))


def test_a_whiteout_spares_what_its_own_layer_brought_before_and_the_folders_above_it(tmp_path: Path) -> None:
    """As Apptainer 1.4.5 unpacks it (umoci, upperPaths)."""
    lower = (
        member("f", mode=0o700, mtime=1234),
        member("f/low", b""),
        member("g", mode=0o711),
        member("g/b", b""),
        member("a", b""),
    )
    files = (member("f/a", b""), member("g/c", b""), link("hard", "a", tarfile.LNKTYPE))
    whiteouts = (member(".wh.f", b""), member("g/.wh..wh..opq", b""), member(".wh.a", b""))
    for upper, f in ((files + whiteouts, (0o700, 1234)), (whiteouts + files[:2], (0o755, 0))):
        with open_image(image(tar(*lower), tar(*upper), pack="").write_folder(tmp_path / f"{f}")) as opened:
            found, seen = {entry.path for entry in opened.root.walk()}, opened.root.stat("/f")
            assert found - {"/hard"} == {"/f", "/f/a", "/g", "/g/c"}
            assert (seen.permissions, seen.mtime_s, opened.root.stat("/g").permissions) == (*f, 0o711)
            assert opened.root.exists("/hard") is (upper[0] is files[0])


@pytest.mark.parametrize("pack", PACK)
def test_ranges_in_any_order_are_those_of_the_files(tmp_path: Path, cache: Path, pack: str) -> None:
    noise = random.Random(5)  # noqa: S311
    files = {f"f{number}": noise.randbytes(noise.randrange(1, 400_000)) * 2 for number in range(10)}
    content = tar(*(member(name, data) for name, data in files.items()))
    # several members or frames, as estargz and zstd:chunked have them
    pieces = [PACK[pack](content[at : at + 1_000_000]) for at in range(0, len(content), 1_000_000)]
    with open_image(_of_layer(b"".join(pieces), content).write_tar(tmp_path / "a.tar"), lambda: cache) as opened:
        for _ in range(100):
            name = noise.choice(list(files))
            offset, size = noise.randrange(900_000), noise.randrange(300_000)
            assert opened.root.open(f"/{name}").read_at(offset, size) == files[name][offset : offset + size]


def _platforms(layout: Layout, *platforms: str) -> list[dict[str, object]]:
    items = []
    for platform in platforms:
        system, architecture = platform.split("/")
        described = {"os": system, "architecture": architecture}
        items.append(layout.manifest(tar(member("platform", platform.encode())), platform=described, pack=""))
    return items


def test_platform_of_the_machines_is_taken_else_the_only_one_and_others_are_named(tmp_path: Path) -> None:
    layout = Layout()
    other, ours, windows = _platforms(layout, "linux/arm64", "linux/amd64", "windows/amd64")
    note = layout.manifest(
        tar(),
        platform={"os": "unknown", "architecture": "unknown"},
        annotations={"vnd.docker.reference.type": "attestation-manifest"},
    )
    nested = layout.json({"manifests": [other, ours, note]}, INDEX)
    tagged = {**nested, "annotations": {"org.opencontainers.image.ref.name": "second-tag"}}
    for listed, platform in (((nested, tagged), b"linux/amd64"), ((other,), b"linux/arm64")):
        layout.index(*listed)
        with open_image(layout.write_folder(tmp_path)) as opened:
            assert opened.root.read_bytes("/platform", 99) == platform
    layout.index(other, windows)
    with pytest.raises(ImageError, match="no image for linux/amd64; there is: linux/arm64, windows/amd64"):
        open_image(layout.write_folder(tmp_path))


def test_several_images_are_named_by_their_tags(tmp_path: Path) -> None:
    layout = Layout()
    items = []
    for tag in ("one", "two"):
        annotations = {"org.opencontainers.image.ref.name": tag}
        items.append(layout.manifest(tar(member(tag, b"")), annotations=annotations))
    layout.index(*items)
    with pytest.raises(ImageError, match="2 images: one, two; save only one"):
        open_image(layout.write_folder(tmp_path / "layout"))
    with pytest.raises(ImageError, match="2 images: x:0, x:1; save only one"):
        open_image(docker_save(tmp_path / "a.tar", tar(), images=2))


# -- the cache


def test_a_layer_is_unpacked_once_and_found_in_any_form_of_the_image(tmp_path: Path, cache: Path) -> None:
    forms = [image(_CONTENT, pack=pack).write_folder(tmp_path / pack) for pack in ("+gzip", "+zstd")]
    forms.append(docker_save(tmp_path / "a.tar", _CONTENT, pack="+gzip"))
    for path in forms:
        assert _files(path, cache)["/etc/name"] == b"name"
        (found,) = _unpacked(cache)
        assert found.read_bytes() == _CONTENT
        assert (found.stat().st_ino, found.stat().st_mode & 0o777) == (_unpacked(cache)[0].stat().st_ino, 0o600)


def test_without_a_cache_nothing_stays_of_what_was_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = image(_CONTENT).write_folder(tmp_path / "layout")
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    with open_image(layout) as opened:
        assert [*(tmp_path / "temporary").iterdir()] == []
        assert opened.root.read_bytes("/etc/name", 9) == b"name"


@pytest.mark.threat
@pytest.mark.parametrize("spoil", ["open", "link", "cut off", "empty"])
def test_a_tar_that_others_may_write_or_that_is_cut_off_is_not_used(tmp_path: Path, cache: Path, spoil: str) -> None:
    folder = image(_CONTENT).write_folder(tmp_path / "layout")
    good = _files(folder, cache)
    (found,) = _unpacked(cache)
    found.write_bytes(_CONTENT.replace(b"name", b"mane"))
    if spoil == "open":
        found.chmod(0o660)
    elif spoil == "cut off":
        found.write_bytes(_CONTENT[: 1 << 16])
    elif spoil == "empty":
        found.write_bytes(b"")
    else:
        found.symlink_to(found.rename(tmp_path / "elsewhere"))
    assert _files(folder, cache) == good
    assert [(path, path.read_bytes(), path.lstat().st_mode & 0o777) for path in _unpacked(cache)] == [
        (found, _CONTENT, 0o600)
    ]


@pytest.mark.threat
@pytest.mark.parametrize("spoil", ["swapped", "pruned"])
def test_what_was_verified_is_read_whatever_has_its_name_now(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, spoil: str
) -> None:
    folder = image(_CONTENT).write_folder(tmp_path / "layout")
    replace = Path.replace

    def replace_and_spoil(partial: Path, target: Path) -> Path:
        replace(partial, target).unlink()
        if spoil == "swapped":
            target.write_bytes(_CONTENT.replace(b"name", b"mane"))
        return target

    monkeypatch.setattr(Path, "replace", replace_and_spoil)
    assert _files(folder, cache)["/etc/name"] == b"name"


def test_without_room_one_line_names_the_folder(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    path = image(_CONTENT).write_folder(tmp_path / "layout")
    seen = os.statvfs(tmp_path)
    monkeypatch.setattr(os, "fstatvfs", lambda _: os.statvfs_result((*seen[:3], 0, 0, *seen[5:])))
    assert main(["check", "--level", "static", str(path)]) == ExitCode.MISSING_HERE
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{cache}/oci: has no space for an unpacked layer: cannot be written: {os.strerror(errno.ENOSPC)}" in line
    assert "set LUMIIMG_CACHE to a folder" in line
    assert _unpacked(cache) == []
    shutil.rmtree(cache)
    cache.write_text("a file")
    with pytest.raises(MissingHereError, match="no space for an unpacked layer: Not a directory"):
        open_image(path, lambda: cache)


def test_unpacked_layers_are_listed_verified_and_pruned(tmp_path: Path, cache: Path, capsys: Capture) -> None:
    path = image(_CONTENT).write_folder(tmp_path / "layout")
    assert main(["diff", str(path), str(path)]) == ExitCode.GOOD
    (found,) = _unpacked(cache)
    (abandoned := found.with_name(".sha256-0.x")).write_bytes(b"half")
    os.utime(abandoned, (1, 1))
    (new := found.with_name(".sha256-1.x")).write_bytes(b"half")
    capsys.readouterr()
    assert main(["cache", "ls"]) == ExitCode.GOOD
    out = " ".join(capsys.readouterr().out.split())
    assert "0 layers and 1 unpacked layer" in out
    assert "unpacked: a layer of an OCI image, sha256:" in out
    assert _unpacked(cache) == [new, found]
    assert main(["cache", "verify"]) == ExitCode.GOOD
    found.write_bytes(_CONTENT.replace(b"name", b"mane"))
    assert main(["cache", "verify"]) == ExitCode.NO
    assert "the content of a layer of an OCI image has changed" in capsys.readouterr().out
    assert main(["cache", "prune"]) == ExitCode.GOOD
    assert _unpacked(cache) == [new]
    assert main(["diff", str(path), str(path)]) == ExitCode.GOOD
    assert main(["cache", "prune", "--keep", "1G"]) == ExitCode.GOOD
    assert _unpacked(cache) == [new, found]
    assert main(["cache", "prune", "--keep", "0"]) == ExitCode.GOOD
    assert _unpacked(cache) == [new]
    assert capsys.readouterr().out.count("removed 0 layers and 1 unpacked layer") == 2


# -- damaged and hostile images


def _of_layer(data: bytes, content: bytes, media_type: str = LAYER) -> Layout:
    """Return a layout whose one layer is these bytes, while its config names this content."""
    layout = Layout()
    described = layout.blob(data, media_type)
    config = layout.json(make_config(content), CONFIG)
    layout.index(layout.json({"config": config, "layers": [described]}, MANIFEST))
    return layout


def _replaced(layout: Layout, old: bytes, new: bytes) -> Layout:
    """Replace a word of a config or manifest with one of the same length."""
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


def _long_name(size: int) -> bytes:
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, size
    return info.tobuf(tarfile.GNU_FORMAT) + bytes(1024)


_PLAIN = tar(member("a", b"content" * 999))
_GZIP = gzip.compress(_PLAIN, mtime=0)
_HARD_LINKS = (link("a", "b", tarfile.LNKTYPE), link("b", "a", tarfile.LNKTYPE))
_FAULTS: dict[str, tuple[Callable[[], Layout], str]] = {
    "other content": (lambda: _of_layer(_GZIP, b"other"), "does not match its digest.*; fetch the image again"),
    "other config": (lambda: _replaced(image(_PLAIN), b"PATH=/usr", b"PATH=/opt"), "does not match its digest"),
    "no layer": (lambda: _without(image(_PLAIN), b"\x1f\x8b"), "blobs/sha256/.* cannot be opened"),
    "digest is a path": (lambda: _replaced(image(_PLAIN), b'"sha256:', b'"../../:'), "a sha256 digest is needed"),
    "encrypted": (lambda: _of_layer(_GZIP, _PLAIN, LAYER + "+gzip+encrypted"), "has the unsupported type"),
    "index deep": (lambda: _with_index(b"[" * 100_000), "index.json: is nested too deeply"),
    "index huge": (lambda: _with_index(b" " * (9 << 20)), "the limit is"),
    "index nested": (lambda: _nested(9), "blobs/sha256/.*: key 'config' is missing"),
    "layers": (lambda: image(*[tar()] * 501), "501 layers"),
    "gzip cut": (lambda: _of_layer(_GZIP[:-9], _PLAIN), "a layer is damaged: Compressed file ended"),
    "zstd cut": (lambda: _of_layer(PACK["+zstd"](_PLAIN)[:-9], _PLAIN), "a layer is damaged: Compressed file ended"),
    "tar cut": (lambda: image(_PLAIN[:1500]), "cut off: the tar member a ends at byte"),
    "no tar": (lambda: image(b"no tar" * 999), "damaged tar"),
    "hard links in a circle": (lambda: image(tar(*_HARD_LINKS)), "hard link a points to b, which is not a file"),
    "links in a circle": (lambda: image(_chain_of_links()), "too many symlinks"),
    "deep": (lambda: image(tar(member("a/" * 2000 + "b", b""))), "nested more than 256 deep"),
    "sparse": (lambda: image(tar(member("holes", b"x", pax_headers={"GNU.sparse.major": "1"}))), "sparse tar member"),
    "name of two megabytes": (lambda: image(_long_name(2 << 20)), "extended headers above the limit"),
    "size": (lambda: image(tar(member("a", b"", pax_headers={"size": "9" * 40}))), "record size"),
}


@pytest.mark.threat
def test_hostile_image_is_named_in_one_line(tmp_path: Path) -> None:
    for name, (make, words) in _FAULTS.items():
        folder = make().write_folder(tmp_path / f"bad\n{name}")
        with pytest.raises(ImageError) as caught:
            _files(folder, tmp_path / "cache")
        assert re.search(words, str(caught.value)), f"{name}: {caught.value}"
        assert "\n" not in str(caught.value), name
    assert not [*(tmp_path / "cache").rglob(".*")], "nothing is left half written"


def test_a_docker_archive_that_lies_or_is_none_is_named(tmp_path: Path) -> None:
    config = json.dumps(make_config(_PLAIN)).encode()

    def saying(manifest: bytes) -> bytes:
        return tar(member("config.json", config), member("manifest.json", manifest), link("loop", "loop"))

    saved = docker_save(tmp_path / "a.tar", _PLAIN).read_bytes()
    for data, words in (
        (saved.replace(b"content", b"CONTENT"), "does not match its digest"),
        (saying(b"{}"), "manifest.json: should be an array"),
        (saying(b"[]"), "0 images"),
        (saying(b'[{"Config": "/etc/passwd", "Layers": []}]'), "/etc/passwd cannot be opened"),
        (saying(b'[{"Config": "config.json", "Layers": ["../../x"]}]'), "../../x cannot be opened"),
        (saying(b'[{"Config": "config.json", "Layers": []}]'), "0 layers, and 1 in the config"),
        (saying(b'[{"Config": "config.json", "Layers": ["loop"]}]'), "loop cannot be opened"),
        (_PLAIN, "a tar without an image"),
        (_GZIP, "compressed with gzip; unpack it first"),
        (_PLAIN[:1024], "cut off"),
    ):
        (tmp_path / "a.tar").write_bytes(data)
        with pytest.raises(ImageError, match=words):
            open_image(tmp_path / "a.tar")


@pytest.mark.threat
def test_a_link_that_goes_up_and_down_takes_no_time(tmp_path: Path) -> None:
    folder = image(tar(link("a", "b/" * 40_000 + "../" * 40_000), member("a/x", b"here"))).write_folder(tmp_path / "a")
    started = time.process_time()
    with open_image(folder) as opened:
        assert opened.root.read_bytes("/x", 9) == b"here"
    assert time.process_time() - started < patient(6)


@pytest.mark.threat
def test_folders_that_links_ask_for_by_the_hundred_are_bounded(tmp_path: Path) -> None:
    links = (link(f"l{number}", f"{number}/" + "y/" * 600) for number in range(1000))
    members = (one for to in links for one in (to, member(f"{to[0].name}/f", b"")))
    with pytest.raises(ImageError, match="need too many steps"):
        open_image(image(tar(*members), pack="").write_folder(tmp_path))


@pytest.mark.threat
def test_whiteouts_that_look_at_all_names_again_and_again_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lumiimg.image.oci.tree._MAX_STEPS", 1_000_000)
    members = (member(f"a/{number}", b"") for number in range(250))
    with pytest.raises(ImageError, match="need too many steps"):
        open_image(image(tar(*members, *[member("a/.wh..wh..opq", b"")] * 250), pack="").write_folder(tmp_path))


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
    with open_image(image(content, pack="").write_folder(tmp_path / "layout")) as opened:
        for path in ("/out/secret", f"{tmp_path}/secret", "/etc/passwd", "/up/passwd", "/hard"):
            assert opened.root.read_bytes(path, 99) == b"image"
        assert not [found.path for found in opened.root.walk() if ".." in found.path]
    assert (tmp_path / "secret").read_text() == "host"


@pytest.mark.threat
def test_blobs_are_not_looked_for_outside_of_the_layout(tmp_path: Path) -> None:
    layout = image(_PLAIN, pack="")
    name = next(name for name, data in layout.files.items() if data == _PLAIN)
    (tmp_path / "outside").write_bytes(layout.files.pop(name))
    layout.write_folder(tmp_path / "layout")
    (tmp_path / "layout" / name).symlink_to(tmp_path / "outside")
    with pytest.raises(ImageError, match="cannot be opened"):
        open_image(tmp_path / "layout")


@pytest.mark.parametrize("pack", ["+gzip", "+zstd"])
@pytest.mark.threat
def test_layer_that_unpacks_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pack: str) -> None:
    monkeypatch.setattr("lumiimg.image.oci.layers._ALWAYS_ALLOWED_BYTES", 2 << 20)
    folder = image(tar(member("zeros", bytes(16 << 20))), pack=pack).write_folder(tmp_path / "layout")
    with pytest.raises(ImageError, match="more than 200 times their size"):
        open_image(folder, lambda: tmp_path / "cache")
    assert _unpacked(tmp_path / "cache") == [], "what was written of it is gone"


@pytest.mark.threat
def test_memory_does_not_grow_with_a_layer(tmp_path: Path) -> None:
    noise = hashlib.shake_128(b"noise").digest(1 << 20)
    content = tar(*(member(str(number), noise) for number in range(12)))
    paths = [image(content, pack=pack).write_folder(tmp_path / pack) for pack in ("+gzip", "+zstd")]
    del content
    for path, cache in zip(paths, "ab", strict=True):
        tracemalloc.start()
        try:
            with open_image(path, lambda name=cache: tmp_path / name) as opened:  # type: ignore[misc]
                for number in (11, 5, 0):
                    assert opened.root.open(f"/{number}").read_at(0, 1 << 20) == noise
            assert tracemalloc.get_traced_memory()[1] < 8 << 20
        finally:
            tracemalloc.stop()
