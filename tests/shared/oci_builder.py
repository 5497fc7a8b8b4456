"""OCI layouts and Docker archives, written directly, including forms that no engine would write."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import tarfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lumiimg.core.access import zstd

if TYPE_CHECKING:
    import random

LAYER = "application/vnd.oci.image.layer.v1.tar"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
PACK: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    "+gzip": partial(gzip.compress, compresslevel=1),
    "+zstd": zstd().compress,
}


def member(name: str, content: bytes | None = None, **attributes: Any) -> tuple[tarfile.TarInfo, bytes]:
    """Return a file, a directory if there is no content, or the given `type`."""
    info = tarfile.TarInfo(name)
    info.type = tarfile.REGTYPE if content is not None else tarfile.DIRTYPE
    info.mode = 0o644 if content is not None else 0o755
    info.size = len(content or b"")
    for key, value in attributes.items():
        setattr(info, key, value)
    return info, content or b""


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tuple[tarfile.TarInfo, bytes]:
    return member(name, b"", type=kind, linkname=target)


def tar(*members: tuple[tarfile.TarInfo, bytes], style: int = tarfile.PAX_FORMAT) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=style, errors="surrogateescape") as archive:
        for info, content in members:
            archive.addfile(info, io.BytesIO(content))
    return packed.getvalue()


def digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


class Layout:
    """The files of a layout by name."""

    def __init__(self) -> None:
        self.files = {"oci-layout": b'{"imageLayoutVersion": "1.0.0"}'}

    def blob(self, data: bytes, media_type: str, **more: Any) -> dict[str, Any]:
        """Add a blob and return its descriptor."""
        self.files[f"blobs/sha256/{digest(data)[7:]}"] = data
        return {"mediaType": media_type, "digest": digest(data), "size": len(data), **more}

    def json(self, value: object, media_type: str, **more: Any) -> dict[str, Any]:
        return self.blob(json.dumps(value).encode(), media_type, **more)

    def manifest(self, *layers: bytes, pack: str = "+gzip", config: object = None, **more: Any) -> dict[str, Any]:
        """Add an image of these uncompressed layers; return the descriptor of its manifest."""
        described = self.json(config if config is not None else make_config(*layers), CONFIG)
        packed = [self.blob(PACK[pack](layer), LAYER + pack) for layer in layers]
        return self.json({"schemaVersion": 2, "config": described, "layers": packed}, MANIFEST, **more)

    def index(self, *descriptors: object) -> None:
        self.files["index.json"] = json.dumps({"schemaVersion": 2, "manifests": descriptors}).encode()

    def write_folder(self, folder: Path) -> Path:
        for name, data in self.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data)
        return folder

    def write_tar(self, path: Path) -> Path:
        path.write_bytes(tar(*(member(f"./{name}", data) for name, data in self.files.items())))
        return path


def make_config(*layers: bytes) -> dict[str, Any]:
    return {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Env": ["PATH=/usr/bin:/bin", "A=b=c", "EMPTY="], "Labels": {"maintainer": "me"}},
        "rootfs": {"type": "layers", "diff_ids": [digest(layer) for layer in layers]},
    }


def image(*layers: bytes, pack: str = "+gzip") -> Layout:
    """Return a layout with one image."""
    layout = Layout()
    layout.index(layout.manifest(*layers, pack=pack))
    return layout


def docker_save(path: Path, *layers: bytes, pack: str = "", images: int = 1, config: object = None) -> Path:
    """Write an archive as `docker save` did before it adopted OCI."""
    listed = [
        {"Config": "config.json", "RepoTags": [f"x:{number}"], "Layers": [f"{n}/layer.tar" for n in range(len(layers))]}
        for number in range(images)
    ]
    files = [member(f"{number}/layer.tar", PACK[pack](layer)) for number, layer in enumerate(layers)]
    files.append(member("config.json", json.dumps(config or make_config(*layers)).encode()))
    path.write_bytes(tar(*files, member("manifest.json", json.dumps(listed).encode())))
    return path


def random_layer(chance: random.Random) -> bytes:
    """Return a layer; the parents of each member are folders in it, or at least nothing else in any layer."""
    long = f"{'n' * 200}/{'m' * 200}"
    names = [
        "a",
        "b",
        b"odd-\xff".decode("utf-8", "surrogateescape"),
        "d/a",
        "d/b",
        "d/e/a",
        "f/a",
        long,
        "swap",
        "swap/x",
        "to-d/through",
        "d/e",
        "f",
        "./",
    ]
    names += ["f/.wh..wh..opq", ".wh.a", "d/.wh.e", ".wh.f", "d/.wh.b", "nowhere/.wh.x", ".wh.swap", ".wh..wh.plnk"]
    members: dict[str, Any] = {"d": member("d"), "to-d": link("to-d", "d")}
    for path in chance.sample(names, chance.randrange(2, len(names))):
        kind = chance.choice(("file", "file", "file", "link", "hard link", "fifo"))
        targets = [each for each in ("a", "b", "d/a") if each in members]
        if ".wh." in path or (path == "swap" and "swap/x" in members):
            members[path] = member(path, b"")
        elif path in {"d/e", "f", "./"}:
            members[path] = member(path)
        elif kind == "link" and path != "swap":
            members[path] = link(path, chance.choice(("a", "../b", "nowhere")))
        elif kind == "hard link" and targets and path != "swap":
            members[path] = link(path, chance.choice(targets), tarfile.LNKTYPE)
        else:
            content = chance.randbytes(chance.randrange(9))
            members[path] = member(path, b"" if kind == "fifo" else content, type=b"6" if kind == "fifo" else b"0")
    if "swap/x" in members:
        members.pop("swap", None)
    for info, _ in members.values():
        info.uid, info.gid, info.mtime = os.getuid(), os.getgid(), chance.randrange(1 << 30)
        modes = (0o755, 0o4711, 0o700) if info.isdir() or info.name == "swap" else (0o644, 0o755, 0o4711, 0o400)
        info.mode = 0o777 if info.issym() else chance.choice(modes)
    return tar(*members.values(), style=chance.choice((tarfile.PAX_FORMAT, tarfile.GNU_FORMAT)))
