"""Of `host/`, `build/` and `cluster/`: snapshots, answers and documents that other processes wrote."""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path
from unittest import mock

from lumiimg.build.cache import LayerCache
from lumiimg.build.changes import _date
from lumiimg.build.compile_cache import UNREADABLE, unpack_files
from lumiimg.build.keys import differences
from lumiimg.build.merge import merge_squashfs
from lumiimg.build.metadata import date_labels, write_config, write_metadata
from lumiimg.build.provenance import PLAN, SBOM, bill, read_document
from lumiimg.build.safe_fs import folder
from lumiimg.cluster.module.folder import RECORD, _record_in
from lumiimg.cluster.nodes import check as nodes_check
from lumiimg.cluster.nodes.node import TASK, read_answer, read_task
from lumiimg.core.decode import DecodeError
from lumiimg.core.errors import BadInputError, FailedError, UndecidedError, one_safe_line
from lumiimg.definition.definition import Definition, Header, Sections
from lumiimg.elf import LoaderConfig, Process
from lumiimg.engine.process import Completed
from lumiimg.fetch.mirrors import apt_mirror, parse_mirrors
from lumiimg.host import node_facts as host_node
from lumiimg.host.image_manifest import from_bytes
from lumiimg.host.image_manifest import to_text as manifest_text
from lumiimg.host.snapshot import HostFiles, read_snapshot
from lumiimg.image import ImageError, open_image
from lumiimg.inventory.components import Inventory
from lumiimg.inventory.system import rocm_of
from lumiimg.report.text import show
from lumiimg.report.views.check import nodes_document
from lumiimg.report.views.host import snapshot_document
from lumiimg.resolve.stack import stack_of
from tests.fuzz.target import target
from tests.fuzz.targets.image import make_sif, sums
from tests.fuzz.targets.scratch import parts, printed, root_of, scratch, text_of, written

DEFINITION = Definition("01-x", ("x",), None, Sections(Header("docker", "x"), environment=(("A", "1"),)), ())


@target("snapshot", "host.snapshot.read_snapshot", refuses=(DecodeError,), form="json", rounds=5)
def _snapshot(data: bytes) -> str:
    snapshot = read_snapshot(written(data, "host.json"))
    files = HostFiles(snapshot)
    for entry in snapshot.entries[:20]:
        Process(files.root, LoaderConfig(library_path=snapshot.library_path)).start(entry.path)
    list(files.fabrics())
    return printed(show, snapshot_document(snapshot, None))


_NODE_FILES = (
    "/etc/os-release",
    "/proc/cpuinfo",
    "/sys/class/cxi/cxi0/device/uevent",
    "/sys/class/cxi/cxi0/device/properties/speed",
    "/sys/class/cxi/cxi0/device/properties/link",
)


@target(
    "node-files",
    "host.node_facts.operating_system",
    "host.node_facts.cpu",
    "host.node_facts.nics",
    "host.root_queries.read_text",
    refuses=(),
    rounds=15,
)
def _node(data: bytes) -> None:
    """The files of /etc, /proc and /sys that a scan reads."""
    root = root_of("node", dict(zip(_NODE_FILES, parts(data, len(_NODE_FILES)), strict=True)))
    host_node.operating_system(root)
    host_node.cpu(root)
    host_node.nics(root)
    host_node.devices(root)


@target("host-texts", "host.node_facts.engine_settings", refuses=())
def _texts(data: bytes) -> None:
    host_node.engine_settings(text_of(data))


@target(
    "image-contents",
    "inventory.components.Inventory",
    "inventory.system.os_release",
    "fabric.rccl",
    refuses=(ImageError,),
    rounds=10,
)
def _contents(data: bytes) -> None:
    """What an image has: os-release, ROCm's version, the name of a distribution and of a plugin, that, an RCCL."""
    release, rocm, name, plugin, rccl = parts(data, 5)
    shutil.rmtree(scratch() / "root", ignore_errors=True)
    safe = text_of(name).replace("/", "_").replace("\0", "")[:60].encode("utf-8", "replace").decode()
    site = "/opt/venv/lib/python3.12/site-packages"
    files = {
        "/etc/os-release": release,
        "/opt/rocm/.info/version": rocm,
        f"{site}/{safe}.dist-info/METADATA": b"",
        "/etc/rccl.conf": b"NCCL_NET_PLUGIN=" + name,
        "/opt/x/librccl-net.so": plugin,
        "/opt/rocm/lib/librccl.so.1": rccl,
    }
    root_of("root", files)
    with open_image(scratch() / "root") as image:
        contents = Inventory(image)
        stack_of(contents)
        bill(contents, (), "x")


@target(
    "dpkg-status", "build.provenance.bill", "inventory.system.packages_of_dpkg", "inventory.system.rocm_of", refuses=()
)
def _bill(data: bytes) -> None:
    status, release = parts(data, 2)
    files = {"/var/lib/dpkg/status": status, "/etc/os-release": release}
    root_of("dpkg", files)
    with open_image(scratch() / "dpkg") as image:
        bill(Inventory(image), (), "x")
        rocm_of(image.root, (), Inventory(image).rccl_at)


@target(
    "engine-metadata",
    "build.metadata.date_labels",
    "build.metadata.write_config",
    "build.metadata.write_metadata",
    refuses=(ImageError, DecodeError, FailedError),
    form="json",
    rounds=10,
)
def _image(data: bytes) -> None:
    """What an image, or its config, says of itself, in the files that are read for it."""
    root, new, above = (scratch() / name for name in ("of-an-engine", "new", "above"))
    for one in (root, new, above):
        shutil.rmtree(one, ignore_errors=True)
    for name in ("labels.json", "Singularity", "test", "env/90-environment.sh"):
        written(data, f"of-an-engine/.singularity.d/{name}")
    with contextlib.suppress(FailedError):
        date_labels(root)
    with contextlib.suppress(ValueError, RecursionError):
        if isinstance(config := json.loads(data), dict):
            write_config(new, config)
    above.mkdir()
    with open_image(root) as image:
        write_metadata(above, image.root, [DEFINITION], {})


@target("bind-manifest", "host.image_manifest.from_bytes", refuses=(DecodeError,), form="json", rounds=20)
def _carried(data: bytes) -> None:
    manifest = from_bytes(data)
    one_safe_line(manifest_text(manifest))


@target("sif-documents", "build.provenance.read_document", refuses=(), form="json")
def _documents(data: bytes) -> None:
    path = written(make_sif((0x4006, b"", data, PLAN), (0x4006, b"", data, SBOM)), "documents.sif")
    read_document(path, PLAN)
    read_document(path, SBOM)


_KEY = "0" * 64


@target(
    "cache-entry",
    "build.cache.LayerCache",
    "build.cache.read_object",
    "build.keys.differences",
    refuses=(),
    form="json",
    rounds=20,
)
def _entry(data: bytes) -> None:
    """Entry and key of a cache that others may write to."""
    entry, key, _ = parts(data, 3)
    for name, content in (("entry.json", entry), ("key.json", key), ("data.squashfs", b"x")):
        written(content, f"cache/layers/{_KEY}/{name}")
    found = LayerCache(scratch() / "cache")
    read = found.read(_KEY)
    if read is not None:
        differences(found.key_of(read), {"format": 2, "files": {"a": "b"}, "definition": "x\ny"})
        _ = read.is_intact


@target("compile-cache", "build.compile_cache.unpack_files", refuses=(), form="bytes", repair=sums, rounds=15)
def _kept(data: bytes) -> None:
    folder = scratch() / "kept"
    shutil.rmtree(folder, ignore_errors=True)
    # what its caller takes for an archive that is not there
    with contextlib.suppress(*UNREADABLE):
        unpack_files(written(data, "kept.tar"), folder)


@target("compiled-python", "build.changes._date", refuses=(), form="bytes", rounds=15)
def _compiled(data: bytes) -> None:
    path = written(data, "upper/__pycache__/a.cpython-312.pyc")
    written(b"", "upper/a.py")
    with folder(scratch() / "upper", "__pycache__") as at:
        _date(at, path.name)


@target("woven-layers", "build.merge.merge_squashfs", refuses=(ImageError,), form="bytes", rounds=8)
def _merged(data: bytes) -> None:
    """A layer of the cache, over itself."""
    layers = [written(data, name) for name in ("below.sqfs", "above.sqfs")]
    merge_squashfs(layers, scratch() / "merged.sqfs", 0)


@target("node-answer", "cluster.nodes.node.read_answer", form="json")
def _answer(data: bytes) -> str:
    return f"{read_answer(written(data, 'answer'))}"


@target(
    "own-files",
    "cluster.nodes.node.read_task",
    "cluster.module.folder._record_in",
    form="json",
    rounds=60,
)
def _own(data: bytes) -> None:
    """What we wrote on another day: the record of a module, the task of a node."""
    written(data, f"module/{RECORD}")
    with contextlib.suppress(BadInputError):
        _record_in(scratch() / "module")
    written(data, f"task/{TASK}")
    with contextlib.suppress(BadInputError):
        read_task(scratch() / "task", "nid1")


@target("apt-sources", "fetch.mirrors.apt_mirror", "fetch.mirrors.parse_mirrors")
def _sources(data: bytes) -> None:
    one, two, words = parts(data, 3)
    written(one, "apt/sources.list")
    written(two, "apt/sources.list.d/a.sources")
    apt_mirror("debian", scratch() / "apt")
    parse_mirrors({}, text_of(words).split())


@target("nodes-report", "cluster.nodes.check.check_by_job", refuses=(UndecidedError,), form="json", rounds=15)
def _report(data: bytes) -> str:
    """What a job of `check --nodes` left for who submitted it."""

    def job(script: Path, *_: object) -> Completed:
        (script.parent / nodes_check._REPORT).write_bytes(data)
        return Completed(("sbatch",), 0, "1\n")

    folder = contextlib.nullcontext(written(b"", "job/x").parent)
    with (
        mock.patch.object(nodes_check, "run_job", job),
        mock.patch.object(nodes_check, "shared_folder", return_value=folder),
    ):
        report = nodes_check.check_by_job(["check"], 2, (), {}, lambda _: None)
    return printed(show, nodes_document(report), verbose=True)
