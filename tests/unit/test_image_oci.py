"""OCI layouts, OCI archives and `docker save`: one root, as the engines would unpack it."""

from __future__ import annotations

import random
import tarfile
from pathlib import Path

import pytest

from lumiimg.image import FileKind, ImageError, ImageKind, RootFileSystem, open_image
from tests.shared.oci_builder import INDEX, MANIFEST, PACK, Layout, docker_save, image, link, make_config, member, tar

_NOISE = random.Random(3).randbytes(1 << 20)  # noqa: S311
_ODD = b"odd-\xff".decode("utf-8", "surrogateescape")


def _base() -> bytes:
    return tar(
        member("./"),
        member("./bin", mode=0o700, uid=5, gid=6, mtime=1234),
        member("bin/tool", b"tool", mode=0o4755, uid=100_000_000),
        member("/etc/name", b"absolute"),
        member("../../up", b"up"),
        member("lib/large", _NOISE),
        member("lib/" + "n" * 200 + "/" + "m" * 200, b"long"),
        member(_ODD, b"odd"),
        member("twice", b"first"),
        member("twice", b"second"),
        link("to-lib", "lib"),
        link("hard", "bin/tool", tarfile.LNKTYPE),
        member("null", b"", type=tarfile.CHRTYPE, devmajor=1, devminor=3),
        member("fifo", b"", type=tarfile.FIFOTYPE),
        member("gone", b"gone"),
        member("folder/old", b"old"),
        member("opaque/old", b"old"),
        member("again/old", b"old"),
        member("file-then-folder", b"file"),
        member("folder-then-file/x", b"x"),
    )


def _second() -> bytes:
    return tar(
        member(".wh.gone", b""),
        member(".wh.never-there", b""),
        member("nowhere/.wh.x", b""),
        member("folder/.wh.old", b""),
        member("folder/new", b"new"),
        member("opaque/new", b"new"),
        member("opaque/.wh..wh..opq", b""),
        member("again/new", b"new"),
        member(".wh.again", b""),
        member("file-then-folder"),
        member("file-then-folder/x", b"x"),
        member("folder-then-file", b"file"),
        member(".wh..wh.plnk", b""),
        member("to-lib/through", b"link"),
        style=tarfile.GNU_FORMAT,
    )


def _check(root: RootFileSystem) -> None:
    contents = {
        entry.path: root.read_bytes(entry.path, 8 << 20) for entry in root.walk() if entry.kind is FileKind.FILE
    }
    assert contents == {
        "/bin/tool": b"tool",
        "/etc/name": b"absolute",
        "/up": b"up",
        "/lib/large": _NOISE,
        f"/lib/{'n' * 200}/{'m' * 200}": b"long",
        f"/{_ODD}": b"odd",
        "/twice": b"second",
        "/hard": b"tool",
        "/folder/new": b"new",
        "/opaque/new": b"new",
        "/again/new": b"new",
        "/file-then-folder/x": b"x",
        "/folder-then-file": b"file",
        "/lib/through": b"link",
    }
    assert not root.exists("/nowhere")
    assert root.readlink("/to-lib") == "lib"
    folder, tool = root.stat("/bin"), root.stat("/bin/tool")
    assert (folder.permissions, folder.uid, folder.gid, folder.mtime_s) == (0o700, 5, 6, 1234)
    assert (tool.permissions, tool.uid, tool.links) == (0o4755, 100_000_000, 2)
    assert root.stat("/hard").identity == tool.identity == root.open("/hard").identity
    assert root.stat("/null").kind is FileKind.DEVICE
    assert root.stat("/fifo").kind is FileKind.FIFO


def test_files_of_every_form_are_what_an_engine_unpacks(tmp_path: Path) -> None:
    content = _base(), _second()
    forms = {image(*content, pack=pack).write_folder(tmp_path / f"layout{pack}"): ImageKind.OCI_LAYOUT for pack in PACK}
    layout = image(*content)
    forms[layout.write_tar(tmp_path / "a.tar")] = ImageKind.OCI_ARCHIVE
    layout.files["manifest.json"] = b"[]"  # as a newer Docker has it beside the layout
    forms[layout.write_tar(tmp_path / "newer.tar")] = ImageKind.OCI_ARCHIVE
    for pack in ("", "+gzip"):
        forms[docker_save(tmp_path / f"docker{pack}.tar", *content, pack=pack)] = ImageKind.DOCKER_ARCHIVE
    for path, kind in forms.items():
        with open_image(path) as opened:
            assert opened.kind is kind
            _check(opened.root)


@pytest.mark.parametrize("pack", PACK)
def test_ranges_in_any_order_are_those_of_the_files(tmp_path: Path, pack: str) -> None:
    noise = random.Random(5)  # noqa: S311
    files = {f"f{number}": noise.randbytes(noise.randrange(1, 400_000)) * 2 for number in range(10)}
    content = tar(*(member(name, data) for name, data in files.items()))
    layout = image(content, pack=pack)
    if pack:
        # several members or frames, as estargz and zstd:chunked have them, and the padding that some writers leave
        pieces = [PACK[pack](content[at : at + 1_000_000]) for at in range(0, len(content), 1_000_000)]
        layout = Layout()
        described = layout.blob(b"".join(pieces) + bytes(99), f"application/vnd.oci.image.layer.v1.tar{pack}")
        config = layout.json(make_config(), "application/vnd.oci.image.config.v1+json")
        layout.index(layout.json({"config": config, "layers": [described]}, MANIFEST))
    with open_image(layout.write_tar(tmp_path / "a.tar")) as opened:
        for _ in range(100):
            name = noise.choice(list(files))
            offset, size = noise.randrange(900_000), noise.randrange(300_000)
            assert opened.root.open(f"/{name}").read_at(offset, size) == files[name][offset : offset + size]


def _platforms(layout: Layout, *platforms: str) -> list[dict[str, object]]:
    items = []
    for platform in platforms:
        system, architecture = platform.split("/")
        described = {"os": system, "architecture": architecture}
        items.append(layout.manifest(tar(member("platform", platform.encode())), platform=described))
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
