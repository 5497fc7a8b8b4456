"""Of `image/`: what an image is made of, and what it says of itself."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import hashlib
import json
import lzma
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

from lumiimg.host.job_process import jobs_of
from lumiimg.image import FileKind, ImageError, RootFileSystem, open_image
from lumiimg.image.byte_source import ByteSource
from lumiimg.image.environment import ShellEnvironment
from lumiimg.image.oci.archive import read_docker_archive, read_oci_layout
from lumiimg.image.oci.files import StoredArchive, StoredFolder
from lumiimg.image.oci.tree import LayeredTree
from lumiimg.image.sif import DESCRIPTOR, HEADER, MAGIC, PARTITION, DataType, read_sif
from lumiimg.image.squashfs.tree import SquashfsTree
from lumiimg.image.stack import StackedTree
from tests.fuzz.target import Target
from tests.fuzz.targets.scratch import BORDER, parts, root_of, scratch, text_of, written
from tests.shared import oci_builder
from tests.shared.oci_builder import LAYER, MANIFEST, PACK, Layout, link, make_config, member, tar
from tests.shared.programs import squashed

_MOST_FILES = 500
_READ_BYTES = 65536


def _visit(root: RootFileSystem) -> None:
    """Use everything of a file system."""
    for _, entry in zip(range(_MOST_FILES), root.walk(), strict=False):
        with contextlib.suppress(OSError):
            root.stat(entry.path)
            if entry.kind is FileKind.FILE:
                with contextlib.closing(root.open(entry.path)) as file:
                    file.read_at(0, _READ_BYTES)
            elif entry.kind is FileKind.SYMLINK:
                root.readlink(entry.path)
                root.resolve(entry.path)


def _image(data: bytes) -> None:
    with open_image(written(data, "image")) as image:
        _ = (image.labels, image.environment, image.definition, image.warnings, image.architecture)
        _visit(image.root)


def _squashfs(data: bytes) -> None:
    with contextlib.closing(ByteSource.open(written(data, "squashfs"))) as source:
        tree = SquashfsTree(source)
        tree.has_opaque()
        tree.xattrs(tree.root)
        _visit(RootFileSystem(StackedTree([tree, tree])))
        _visit(RootFileSystem(tree))


def _sif(data: bytes) -> None:
    with contextlib.closing(ByteSource.open(written(data, "sif"))) as source:
        sif = read_sif(source)
        sif.overlays()
        sif.root_partition("sif")


def _layer(data: bytes) -> None:
    """One layer in each packing: its digest is right, so that every byte gets to the reader."""
    layout = Layout()
    kind = {b"\x1f\x8b": "+gzip", b"\x28\xb5": "+zstd"}.get(data[:2], "")
    described = [layout.blob(data, LAYER + kind), layout.blob(_ABOVE, LAYER)]
    config = layout.json(make_config(), oci_builder.CONFIG)
    layout.index(layout.json({"config": config, "layers": described}, MANIFEST))
    _stored(layout)


def _stored(layout: Layout) -> None:
    with tempfile.TemporaryDirectory(dir=scratch()) as name:
        folder = layout.write_folder(Path(name))
        with contextlib.closing(StoredFolder(folder)) as files:
            _visit(RootFileSystem(LayeredTree(read_oci_layout(files)[1], "layout")))


def _documents(data: bytes) -> None:
    """Index, manifest and config of a layout, which name each other by digest whatever they say."""
    index, manifest, config = parts(data, 3)
    layout = Layout()
    layer = layout.blob(_ABOVE, LAYER)
    layout.blob(config, oci_builder.CONFIG)
    manifest = manifest.replace(b"CONFIG", _hex(config)).replace(b"LAYER", layer["digest"][7:].encode())
    manifest = manifest.replace(b"111", b"%d" % len(config)).replace(b"222", b"%d" % layer["size"])
    layout.blob(manifest, MANIFEST)
    filled = index.replace(b"MANIFEST", _hex(manifest)).replace(b"111", b"%d" % len(manifest))
    layout.files["index.json"] = filled
    _stored(layout)


def _hex(data: bytes) -> bytes:
    return hashlib.sha256(data).hexdigest().encode()


def _docker(data: bytes) -> None:
    """manifest.json and config of a `docker save`, in a tar."""
    manifest, config, layer = parts(data, 3)
    config = config.replace(b"LAYER", _hex(layer))
    files = {"manifest.json": manifest, "config.json": config, "0/layer.tar": layer}
    packed = tar(*(member(name, content) for name, content in files.items()))
    source = ByteSource.open(written(packed, "docker.tar"))
    with contextlib.closing(source):
        archive = StoredArchive(source)
        _visit(RootFileSystem(LayeredTree(read_docker_archive(archive)[1], "archive")))


def _environment(data: bytes) -> str:
    environment = ShellEnvironment()
    environment.read(text_of(data), "90-environment.sh")
    environment.result()
    return ""


def _python(data: bytes) -> None:
    """An interpreter of a virtual environment, and what decides where it looks for modules."""
    program, configuration, lines = parts(data, 3)
    site = "/opt/venv/lib/python3.12/site-packages"
    files = {
        "/opt/venv/bin/python": program,
        "/opt/venv/pyvenv.cfg": configuration,
        "/opt/venv/lib/python3.12/os.py": b"",
        f"{site}/a.pth": lines,
        f"{site}/torch/lib/libtorch_global_deps.so": b"",
        f"{site}/torch/_rocm_init.py": lines,
    }
    root_of("python", files)
    (scratch() / "python/opt/venv/bin/python").chmod(0o755)
    with open_image(scratch() / "python") as image:
        jobs_of(image, {"SINGULARITYENV_PATH": "/opt/venv/bin"})


def _description(data: bytes) -> None:
    """A sandbox's environment script, labels and definition."""
    script, labels, definition = parts(data, 3)
    files = {
        "/.singularity.d/env/90-environment.sh": script,
        "/.singularity.d/labels.json": labels,
        "/.singularity.d/Singularity": definition,
    }
    root_of("sandbox", files)
    with open_image(scratch() / "sandbox") as image:
        _ = (image.labels, image.environment, image.definition, image.warnings)


def sums(data: bytes) -> bytes:
    """Return a tar whose headers have the sums that they should have."""
    changed = bytearray(data)
    for at in range(0, len(changed) - 511, 512):
        if changed[at + 257 : at + 262] == b"ustar":
            changed[at + 148 : at + 156] = b" " * 8
            changed[at + 148 : at + 156] = b"%06o\0 " % sum(changed[at : at + 512])
    return bytes(changed)


def make_sif(*objects: tuple[int, bytes, bytes, str]) -> bytes:
    """Return a SIF of (data type, extra, content, name)."""
    at = HEADER.size + len(objects) * DESCRIPTOR.size
    table, body = b"", b""
    for number, (kind, extra, content, name) in enumerate(objects, 1):
        table += DESCRIPTOR.pack(
            kind, 1, number, 0xF0000001, 0, at + len(body), len(content), len(content), 0, 0, 0, 0, name.encode(), extra
        )
        body += content
    size = len(table)
    head = HEADER.pack(
        b"#!/x", MAGIC, b"01\0", b"02\0", bytes(16), 0, 0, 0, len(objects), HEADER.size, size, at, len(body)
    )
    return head + table + body


_ABOVE = tar(member("d/.wh.file", b""), member("e/.wh..wh..opq", b""), member("e/new", b"x"))
_BELOW = tar(member("d/file", b"content"), member("e/old", b"x"), link("link", "d"), link("h", "d/file", b"1"))


def _squashfs_seeds() -> Iterator[bytes]:
    """With nothing packed, so that fields can be changed, and with each compressor."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "root"
        (folder / "d/e").mkdir(parents=True)
        (folder / "d/file").write_bytes(b"content" * 50)
        (folder / "big").write_bytes(b"abc" * 3000)
        (folder / "holes").write_bytes(bytes(9000))
        (folder / "link").symlink_to("d/file")
        (folder / "hard").hardlink_to(folder / "d/file")
        env = folder / ".singularity.d/env"
        env.mkdir(parents=True)
        (env / "90-environment.sh").write_text("#!/bin/sh\nexport A=1\n")
        options = [
            ["-noI", "-noD", "-noF", "-noX"],
            ["-noI", "-noId", "-noD", "-no-fragments", "-always-use-fragments"],
        ]
        options += [["-comp", one] for one in ("gzip", "xz", "zstd", "lz4")]
        pseudo = ["-p", "dev c 644 0 0 0 0", "-p", "d x trusted.overlay.opaque=y"]
        for number, words in enumerate(options):
            target = Path(name) / f"{number}.sqfs"
            squashed(folder, target, "-b", "4096", "-no-exports", "-nopad", *pseudo, *words)
            yield target.read_bytes()


def _sif_seeds() -> Iterator[bytes]:
    squash = next(iter(_squashfs_seeds()))
    part = PARTITION.pack(1, 2, b"02\0")
    over = PARTITION.pack(1, 4, b"02\0")
    metadata = json.dumps({"data": {"attributes": {"labels": {"a": "b"}, "environment": {"/e": "export A=1"}}}})
    yield make_sif(
        (DataType.DEFINITION, b"", b"Bootstrap: docker\n", "def"),
        (DataType.JSON, b"", metadata.encode(), "oci-config"),
        (DataType.PARTITION, part, squash, "root"),
        (DataType.PARTITION, over, squash, "over"),
    )
    for system in (2, 3, 4, 5, 6, 9):
        yield make_sif((DataType.PARTITION, PARTITION.pack(system, 2, b"04\0"), b"x" * 200, "root"))
    yield make_sif((DataType.OCI_ROOT_INDEX, b"", b"{}", "index"))


def _layer_seeds() -> Iterator[bytes]:
    plain = tar(member("d/" + "n" * 150, b"long"), link("d/l", "x" * 120), member("u", b"x", uid=1 << 30))
    gnu = tar(member("d/" + "n" * 150, b"long"), style=tarfile.GNU_FORMAT)
    yield from (_BELOW, plain, gnu, _ABOVE, tar(member("é\udcff", b"x", mtime=-1.5, mode=0o4755)))
    for pack in ("+gzip", "+zstd"):
        yield PACK[pack](_BELOW)
    yield gzip.compress(_BELOW[:1024]) + gzip.compress(_BELOW[1024:])


def _document_seeds() -> Iterator[bytes]:
    platform = {"os": "linux", "architecture": "amd64"}
    named = {"org.opencontainers.image.ref.name": "x", "vnd.docker.reference.type": "attestation-manifest"}
    index = {"schemaVersion": 2, "manifests": [_described(MANIFEST, "MANIFEST", 111, platform=platform)]}
    manifest = {
        "schemaVersion": 2,
        "config": _described(oci_builder.CONFIG, "CONFIG", 111),
        "layers": [_described(LAYER, "LAYER", 222)],
    }
    yield _documented(index, manifest, make_config(_ABOVE))
    both = [{**index["manifests"][0], "platform": None}, {**index["manifests"][0], "annotations": named}]  # type: ignore[index]
    yield _documented({"manifests": both}, manifest, {})
    nested = {"manifests": [_described(oci_builder.INDEX, "MANIFEST", 111)]}
    yield _documented(nested, index, make_config())


def _described(kind: str, digest: str, size: int, **more: object) -> dict[str, object]:
    return {"mediaType": kind, "digest": f"sha256:{digest}", "size": size, **more}


def _documented(*documents: object) -> bytes:
    return BORDER.join(json.dumps(document).replace('"111"', "111").encode() for document in documents)


def _docker_seeds() -> Iterator[bytes]:
    listed = [{"Config": "config.json", "RepoTags": ["x:1"], "Layers": ["0/layer.tar"]}]
    config = {**make_config(), "rootfs": {"type": "layers", "diff_ids": ["sha256:LAYER"]}}
    yield _documented(listed, config) + BORDER + _ABOVE
    yield _documented([*listed, *listed], config) + BORDER + _BELOW


def _script_seeds() -> Iterator[bytes]:
    yield b"#!/bin/sh\n# Custom environment shell code should follow\n\nexport PATH=/opt/x/bin:$PATH\n"
    yield b"export A='it'\\''s' B=\"$A ${C:-x} ${D-y} ${E:+z}\"\nexport A\nG=1; export G\nunset A\n"
    yield b'if [ -n "$X" ]; then\n  export A=1\nfi\nexport B=`id`\nf() {\n export C=$(x)\n}\nexport D=a\\\nb # c\n'
    yield b'f() {\n export A=1\n}\n[ -d /x ] && export NCCL_NET=Socket || exit 1\n{ : ${B:="$A"} >/dev/null; } 2>&1\n'
    yield b"case $A in (a|b) C=1;; *) D=$((1+1));; esac\nfor i in 1 2; do E=$i; done\nwhile f; do :; done | cat &\n"
    yield b'if [ "x$A" = x ]; then B=${A%:}; elif ! test -z "${A+y}"; then . /x; else (exit 1); fi\n[[ $A =~ ^(a|b)$ ]]\n'


def _image_seeds() -> Iterator[bytes]:
    yield next(iter(_sif_seeds()))
    yield next(iter(_squashfs_seeds()))
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "a.tar"
        yield oci_builder.image(_BELOW, _ABOVE).write_tar(path).read_bytes()
        yield oci_builder.docker_save(path, _BELOW, _ABOVE).read_bytes()
    for pack in (gzip.compress, bz2.compress, lzma.compress):
        yield pack(b"x")


def _description_seeds() -> Iterator[bytes]:
    for script in _script_seeds():
        yield BORDER.join((script, b'{"org.label-schema.schema-version": "1.0", "x": 1}', b"Bootstrap: docker\n"))


_ONLY = (ImageError,)
TARGETS = (
    Target(
        "image-file",
        ("image.image.open_image",),
        _image,
        _image_seeds,
        _ONLY,
        "bytes",
        rounds=8,
        repair=lambda data: sums(data) if data[257:262] == b"ustar" else data,
    ),
    Target(
        "squashfs",
        (
            "image.squashfs.tree.SquashfsTree",
            "image.squashfs.superblock.read_superblock",
            "image.squashfs.inodes.read_inode",
            "image.squashfs.inodes.read_listing",
            "image.squashfs.metadata.Metadata",
            "image.squashfs.xattrs.Xattrs",
            "image.squashfs.compression.decompressor",
            "image.stack.StackedTree",
        ),
        _squashfs,
        _squashfs_seeds,
        _ONLY,
        "bytes",
        rounds=12,
    ),
    Target("sif", ("image.sif.read_sif",), _sif, _sif_seeds, _ONLY, "bytes"),
    Target(
        "oci-layer",
        (
            "image.oci.tar.read_members",
            "image.oci.layer.OciLayer",
            "image.oci.decoding.decoder_of",
            "image.oci.unpacking.Unpacked",
            "image.oci.tree.LayeredTree",
        ),
        _layer,
        _layer_seeds,
        _ONLY,
        "bytes",
        repair=sums,
        rounds=12,
    ),
    Target(
        "oci-documents",
        (
            "image.oci.archive.read_oci_layout",
            "image.oci.choice.choose_manifest",
            "image.oci.document.config_of",
            "image.oci.document.read_document",
            "image.oci.document.Digest",
        ),
        _documents,
        _document_seeds,
        _ONLY,
        "json",
        rounds=12,
    ),
    Target(
        "docker-archive",
        ("image.oci.archive.read_docker_archive", "image.oci.files.StoredArchive"),
        _docker,
        _docker_seeds,
        _ONLY,
        "json",
        rounds=20,
    ),
    Target(
        "image-environment",
        ("image.environment.ShellEnvironment", "image.shell.parser.parse"),
        _environment,
        _script_seeds,
        (),
    ),
    Target(
        "python",
        ("image.python.read_python", "host.job_process.jobs_of"),
        _python,
        lambda: [BORDER.join((b"\x7fELF", b"home = /usr/bin\n", b"/opt\npreload_shortnames=['rccl']\n"))],
        _ONLY,
        rounds=20,
    ),
    Target(
        "image-description",
        ("image.description.SingularityDescription",),
        _description,
        _description_seeds,
        _ONLY,
        rounds=20,
    ),
)
