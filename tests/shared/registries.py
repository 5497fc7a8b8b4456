"""Images that tests push to Debian's docker-registry on loopback."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from pathlib import Path

import requests

from lumiimg.image import FileKind, open_image
from tests.shared.programs import patient

MANIFEST = "application/vnd.oci.image.manifest.v1+json"


def push(address: str, name: str, tag: str, layer: bytes, config: dict[str, object] | None = None) -> str:
    """Push a one-layer image (OCI distribution specification) with a `config`; return its digest."""
    base = f"http://{address}/v2/{name}"

    def blob(data: bytes) -> dict[str, object]:
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        place = requests.post(f"{base}/blobs/uploads/", timeout=patient(30)).headers["Location"]
        requests.put(place, params={"digest": digest}, data=data, timeout=patient(300)).raise_for_status()
        return {"digest": digest, "size": len(data)}

    diff_id = f"sha256:{hashlib.sha256(gzip.decompress(layer)).hexdigest()}"
    rootfs = {"type": "layers", "diff_ids": [diff_id]}
    document: dict[str, object] = {"architecture": "amd64", "os": "linux", "config": config or {}, "rootfs": rootfs}
    document["history"] = [{"created_by": "a test"}]  # Buildah requires an entry per layer
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": {"mediaType": "application/vnd.oci.image.config.v1+json", **blob(json.dumps(document).encode())},
        "layers": [{"mediaType": "application/vnd.oci.image.layer.v1.tar+gzip", **blob(layer)}],
    }
    headers = {"Content-Type": MANIFEST}
    data = json.dumps(manifest)
    requests.put(f"{base}/manifests/{tag}", data=data, headers=headers, timeout=patient(30)).raise_for_status()
    return f"sha256:{hashlib.sha256(data.encode()).hexdigest()}"


def layer_of(image: Path) -> bytes:
    """Return the files of an image, read by our own reader, as a layer."""
    buffer = io.BytesIO()
    with open_image(image) as opened, tarfile.open(fileobj=buffer, mode="w") as archive:
        for path, kind in opened.root.walk():
            if path.startswith(("/.", "/dev/", "/proc/", "/sys/")) or path in {"/singularity", "/environment"}:
                continue  # the engine's own
            stat = opened.root.stat(path, follow=False)
            info = tarfile.TarInfo(path[1:])
            info.mode, info.uid, info.gid, info.mtime = stat.permissions, stat.uid, stat.gid, stat.mtime_s
            data = b""
            if kind is FileKind.DIRECTORY:
                info.type = tarfile.DIRTYPE
            elif kind is FileKind.SYMLINK:
                info.type, info.linkname = tarfile.SYMTYPE, opened.root.readlink(path)
            elif kind is FileKind.FILE:
                data = opened.root.read_bytes(path, 1 << 30)
                info.size = len(data)
            else:
                continue
            archive.addfile(info, io.BytesIO(data))
    return gzip.compress(buffer.getvalue(), 1, mtime=0)
