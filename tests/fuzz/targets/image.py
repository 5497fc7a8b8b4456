"""Of `image/`: what an image is made of, and what it says of itself."""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
from itertools import islice
from pathlib import Path

from lumiimg.core.access import BytesInMemory
from lumiimg.host.jobs import jobs_of
from lumiimg.host.module_finder import ModuleFinder, ModuleSpec, SpecKind
from lumiimg.host.startup_code import StartupCode, StartupProcess
from lumiimg.image import FileKind, ImageError, RootFileSystem, open_image
from lumiimg.image.environment import source
from lumiimg.image.host_files import HostFile
from lumiimg.image.oci.layers import _chunks, _decoder
from lumiimg.image.overlay import OverlayTree
from lumiimg.image.shell import Shell
from lumiimg.image.sif import DESCRIPTOR, HEADER, MAGIC
from lumiimg.image.squashfs.tree import SquashfsTree
from tests.fuzz.target import target
from tests.fuzz.targets.scratch import parts, root_of, scratch, text_of, written
from tests.shared import oci_builder
from tests.shared.oci_builder import LAYER, MANIFEST, Layout, make_config, member, tar
from tests.shared.python_image import FIRST_MODULES

_MOST_FILES = 500
_READ_BYTES = 65536
_MOST_CHUNKS = 64


def sums(data: bytes) -> bytes:
    """Return a tar whose headers have the sums that they should have."""
    changed = bytearray(data)
    for at in range(0, len(changed) - 511, 512):
        if changed[at + 257 : at + 262] == b"ustar":
            changed[at + 148 : at + 156] = b" " * 8
            changed[at + 148 : at + 156] = b"%06o\0 " % sum(changed[at : at + 512])
    return bytes(changed)


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


@target(
    "image-file",
    "image.image.open_image",
    "image.sif.parse_sif",
    refuses=(ImageError,),
    form="bytes",
    repair=lambda data: sums(data) if data[257:262] == b"ustar" else data,
    rounds=8,
)
def _image(data: bytes) -> None:
    with open_image(written(data, "image"), lambda: scratch() / "cache") as image:
        _ = (image.description.labels, image.environment, image.description.warnings, image.description.architecture)
        _visit(image.root)


@target(
    "squashfs",
    "image.squashfs.tree.SquashfsTree",
    "image.squashfs.blocks.Blocks",
    "image.squashfs.format.Superblock",
    "image.squashfs.blocks.Decompressor",
    "image.overlay.OverlayTree",
    refuses=(ImageError,),
    form="bytes",
    rounds=12,
)
def _squashfs(data: bytes) -> None:
    with contextlib.closing(HostFile.from_image(written(data, "squashfs"))) as source:
        tree = SquashfsTree(source)
        tree.has_opaque()
        tree.xattrs(tree.root)
        _visit(RootFileSystem(OverlayTree([tree, tree])))
        _visit(RootFileSystem(tree))


@target(
    "oci-layer",
    "image.oci.tar.read_members",
    "image.oci.layers.open_layers",
    "image.oci.tree.LayeredTree",
    refuses=(ImageError,),
    form="bytes",
    repair=sums,
    rounds=12,
)
def _layer(data: bytes) -> None:
    """One layer in each packing: its digest is right, so that every byte gets to the reader."""
    unpacking = _decoder(BytesInMemory(data))
    content = b"".join(islice(_chunks("layer", *unpacking), _MOST_CHUNKS)) if unpacking else data
    layout = Layout()
    described = [layout.blob(layer, LAYER) for layer in (data, _ABOVE)]
    config = layout.json(make_config(content, _ABOVE), oci_builder.CONFIG)
    layout.index(layout.json({"config": config, "layers": described}, MANIFEST))
    _stored(layout)


def _stored(layout: Layout) -> None:
    with tempfile.TemporaryDirectory(dir=scratch()) as name:
        folder = Path(name)
        with open_image(layout.write_folder(folder / "layout"), lambda: folder / "cache") as image:
            _ = image.description.labels, image.environment, image.description.architecture
            _visit(image.root)


@target(
    "oci-documents",
    "image.oci.layout.read_oci_layout",
    refuses=(ImageError,),
    form="json",
    rounds=12,
)
def _documents(data: bytes) -> None:
    """Index, manifest and config of a layout, which name each other by digest whatever they say."""
    index, manifest, config = parts(data, 3)
    layout = Layout()
    layer = layout.blob(_ABOVE, LAYER)
    config = config.replace(b"LAYER", _hex(_ABOVE))
    layout.blob(config, oci_builder.CONFIG)
    manifest = manifest.replace(b"CONFIG", _hex(config)).replace(b"LAYER", _hex(_ABOVE))
    manifest = manifest.replace(b"111", b"%d" % len(config)).replace(b"222", b"%d" % layer["size"])
    layout.blob(manifest, MANIFEST)
    filled = index.replace(b"MANIFEST", _hex(manifest)).replace(b"111", b"%d" % len(manifest))
    layout.files["index.json"] = filled
    _stored(layout)


def _hex(data: bytes) -> bytes:
    return hashlib.sha256(data).hexdigest().encode()


@target("docker-archive", "image.oci.layout.read_docker_archive", refuses=(ImageError,), form="json", rounds=20)
def _docker(data: bytes) -> None:
    """manifest.json and config of a `docker save`, in a tar."""
    manifest, config, layer = parts(data, 3)
    config = config.replace(b"LAYER", _hex(layer))
    files = {"manifest.json": manifest, "config.json": config, "0/layer.tar": layer}
    packed = tar(*(member(name, content) for name, content in files.items()))
    with open_image(written(packed, "docker.tar"), lambda: scratch() / "cache") as image:
        _visit(image.root)


@target("image-environment", "image.environment.source", "image.shell.WordReader", refuses=())
def _environment(data: bytes) -> None:
    """Two scripts, of which the second may call what the first defines."""
    shell = Shell()
    for text in text_of(data).split("\f"):
        source(text, "90-environment.sh", shell)
    _ = shell.environment, shell.doubts


@target(
    "python",
    "host.python_process.start_process",
    "host.getpath.find_paths",
    "host.python_site.Site",
    "host.jobs.jobs_of",
    refuses=(ImageError,),
    rounds=20,
)
def _python(data: bytes) -> None:
    """An interpreter of a virtual environment, and what decides where it looks for modules."""
    program, configuration, lines = parts(data, 3)
    site = "/opt/venv/lib/python3.12/site-packages"
    files = {
        "/opt/venv/bin/python": program,
        "/opt/venv/pyvenv.cfg": configuration,
        **{f"/opt/venv/lib/python3.12/{name}": b"" for name in FIRST_MODULES},
        f"{site}/a.pth": lines,
        f"{site}/torch/lib/libtorch_global_deps.so": b"",
        f"{site}/torch/__init__.py": b"from torch._C import *",
        f"{site}/torch/_rocm_init.py": lines,
        f"{site}/rocm_sdk/_dist_info.py": lines,
        f"{site}/torch-2.9.dist-info/RECORD": lines,
    }
    root_of("python", files)
    (scratch() / "python/opt/venv/bin/python").chmod(0o755)
    with open_image(scratch() / "python") as image:
        jobs_of(image, {"SINGULARITYENV_PATH": "/opt/venv/bin"})


@target("startup-code", "host.startup_code.StartupProcess", "host.code_names.read_code", refuses=(), rounds=40)
def _startup_code(data: bytes) -> str:
    """A line of a `.pth` file, sitecustomize, and a module that both may import."""
    line, customize, own = map(text_of, parts(data, 3))
    codes = [StartupCode("/s/a.pth", line), StartupCode("/s/sitecustomize.py", customize)]
    specs = {"own": ModuleSpec("own", SpecKind.SOURCE, "/s/own.py", ())}
    process = StartupProcess(specs.get, {"/s/own.py": own}.get, {"SET": "1"})
    return "\n".join(process.run(code).question or "" for code in codes)


@target("module-zip", "host.module_finder.ModuleFinder", refuses=(), form="bytes", rounds=40)
def _module_zip(data: bytes) -> None:
    """A zip on sys.path."""
    finder = ModuleFinder(root_of("modules", {"/m.zip": data}), (), (3, 14))
    for name in ("own", "package.own", "space.own"):
        finder.find_spec(name, ("/m.zip", "/m.zip/inside"))


@target("image-description", "image.description.SingularityDescription", refuses=(ImageError,), rounds=20)
def _description(data: bytes) -> None:
    """A sandbox's environment script and labels."""
    script, labels, _ = parts(data, 3)
    files = {"/.singularity.d/env/90-environment.sh": script, "/.singularity.d/labels.json": labels}
    root_of("sandbox", files)
    with open_image(scratch() / "sandbox") as image:
        _ = (image.description.labels, image.environment, image.description.warnings)


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
