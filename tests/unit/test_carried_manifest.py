"""The bind manifest that an image carries: what it says of an image, what is taken of a foreign one, how it differs.

The libraries are stand-ins (tests/shared/fabric_builder.py): the loader looks at nothing else of them.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lumiimg.catalog.catalogue import Catalogue
from lumiimg.catalog.sites import Site, find_site
from lumiimg.cli.main import main
from lumiimg.definition.engine_reader import read_definition
from lumiimg.definition.writer import with_manifest, write_flat
from lumiimg.fabric.path import Fabric
from lumiimg.host.carried_manifest import (
    MANIFEST_PATH,
    Basis,
    CarriedManifest,
    ManifestError,
    SettledBy,
    from_bytes,
    read_manifest,
    to_text,
)
from lumiimg.host.snapshot_file import read_snapshot
from lumiimg.host.wanted import KnownMachine, planned, wanted_by
from lumiimg.image import open_image
from lumiimg.resolve.decide import decide, locked
from lumiimg.resolve.network.mirrors import Mirrors
from lumiimg.resolve.plan import Ground
from lumiimg.resolve.request import Request
from tests.shared import fabric_builder
from tests.shared.layer_builder import BASE, MakeLayer
from tests.shared.programs import unwrapped

if TYPE_CHECKING:
    from lumiimg.host.snapshot import Snapshot

PRIVATE = "/opt/lumiimg/host"
LIBFABRIC = "/opt/cray/libfabric/1.22.0/lib64/libfabric.so.1"


@pytest.fixture
def node(tmp_path: Path) -> Snapshot:
    return read_snapshot(fabric_builder.snapshot(fabric_builder.host(tmp_path / "host"), host="nid005001"))


@pytest.fixture
def lumi(clean_home: Path) -> Site:
    return find_site("lumi", {"HOME": str(clean_home)})


def wanted(root: Path, snapshot: Snapshot | None = None, site: Site | None = None) -> CarriedManifest:
    with open_image(root) as image:
        return wanted_by(image, KnownMachine(snapshot, site))


def names(manifest: CarriedManifest) -> dict[str, str | None]:
    return {library.soname: library.host_path for library in manifest.libraries}


def needs(manifest: CarriedManifest) -> set[str]:
    return {f"{m.library_side} {m.family}_{m.need} {m.provider_side} {m.have}".rstrip() for m in manifest.versions}


def put(root: Path, manifest: CarriedManifest | bytes) -> Path:
    file = root / MANIFEST_PATH[1:]
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(manifest if isinstance(manifest, bytes) else to_text(manifest).encode())
    return root


def test_without_a_node_what_is_published_of_the_site_settles_it(tmp_path: Path, lumi: Site) -> None:
    manifest = wanted(fabric_builder.image(tmp_path / "image"), site=lumi)
    assert (manifest.fabric, manifest.settled_by) == (Fabric.HOST, SettledBy.SITE)
    assert names(manifest) == dict.fromkeys(("libfabric.so.1", "libcxi.so.1", "libnl-3.so.200"))
    assert needs(manifest) == {
        "librccl-net.so (image) FABRIC_1.3 libfabric.so.1 (host)",
        "libfabric.so.1, libcxi.so.1 (host) GLIBC_2.38 libc.so.6 (image) 2.41",
    }
    older = wanted(fabric_builder.image(tmp_path / "older", glibc=35), site=lumi)
    assert "GLIBC_2.38" in older.doubts[0]
    assert "the image has 2.35" in older.doubts[0]
    assert wanted(fabric_builder.image(tmp_path / "any")).settled_by is SettledBy.NOTHING
    own = wanted(fabric_builder.bundled(tmp_path / "own"), site=lumi)
    assert (own.fabric, own.settled_by, own.libraries) == (Fabric.BUNDLED, SettledBy.SITE, ())
    assert "/dev/cxi*" in {device.path for device in own.devices}
    assert "SLINGSHOT_VNIS" in {variable.name for variable in own.variables}


@pytest.mark.parametrize("cxi", ["linked", "linked, but not there", "not linked"])
@pytest.mark.parametrize("defines", ["FABRIC_1.3", "FABRIC_1.0"])
@pytest.mark.parametrize("own_nl", [True, False])
def test_what_the_files_alone_want_is_what_a_node_that_has_all_of_it_gives(
    cxi: str, defines: str, own_nl: bool, tmp_path: Path, node: Snapshot
) -> None:
    image = fabric_builder.image(tmp_path / "image", fabric="FABRIC_1.3")
    libraries = image / "usr/lib64"
    libc: dict[Path, tuple[str, ...]] = {image / "lib64/libc.so.6": ("GLIBC_2.14",)}
    if own_nl:
        fabric_builder.versioned(libraries / "libnl-3.so.200", defines=("libnl_3",), needs=libc)
    libcxi = fabric_builder.versioned(libraries / "libcxi.so.1", defines=("LIBCXI_1.4",), needs=libc)
    linked = libc if cxi == "not linked" else {**libc, libcxi: ("LIBCXI_1.4",)}
    fabric_builder.versioned(libraries / "libfabric.so.1", defines=(defines,), needs=linked)
    if cxi != "linked":
        libcxi.unlink()
    alone, there = wanted(image), wanted(image, node)
    assert alone.fabric is there.fabric
    # what the node's own libcxi and libfabric link, only the node shows
    assert names(there).keys() - names(alone).keys() <= {"libjson-c.so.5", "libnl-3.so.200"}
    assert names(alone).keys() <= names(there).keys()
    assert needs(alone) <= {need.rpartition(" ")[0] for need in needs(there)}
    assert bool(alone.devices) is bool(there.devices)
    if cxi == "linked" and defines == "FABRIC_1.3":
        assert alone.fabric is Fabric.BUNDLED
    elif cxi == "linked, but not there" and defines == "FABRIC_1.3":
        assert (
            alone.because == "libcxi.so.1 must come from the machine: libfabric.so.1 needs it, and the image has none"
        )
    else:
        assert alone.because.startswith("libfabric with the cxi provider must come from the machine: ")


def test_what_no_library_of_a_node_can_mend_is_said_without_a_node(tmp_path: Path, node: Snapshot) -> None:
    image = fabric_builder.image(tmp_path / "image", glibc=35)
    newer = fabric_builder.c_library(tmp_path / "newer", 38)
    stub = fabric_builder.versioned(tmp_path / "stub/libfabric.so.1", defines=("FABRIC_1.3",))
    linked: dict[Path, tuple[str, ...]] = {stub: ("FABRIC_1.3",), newer: ("GLIBC_2.38",)}
    fabric_builder.versioned(image / "usr/lib64/librccl-net.so", needs=linked, source=fabric_builder.PLUGIN)
    for manifest in (wanted(image), wanted(image, node)):
        assert manifest.fabric is Fabric.NONE
        assert "GLIBC_2.38" in manifest.because


@pytest.mark.usefixtures("clean_home")
def test_the_last_definition_and_the_flat_one_write_the_planned_manifest(tmp_path: Path) -> None:
    folder, beside = tmp_path / "defs", tmp_path / "manifest.json"
    words = ["--base", "debian-13", "--add", "netprobe", "--definitions", str(folder), "--manifest", str(beside)]
    assert main(["build", *words]) == 0
    manifest = from_bytes(beside.read_bytes())
    assert (manifest.basis, manifest.fabric) == (Basis.PLAN, Fabric.NONE)
    assert "bind-manifest" not in (folder / "01-debian-13.def").read_text()
    for name in ("02-netprobe", "flat"):
        text = (folder / f"{name}.def").read_text()
        assert "    lumiimg.bind-manifest /.lumiimg/bind-manifest.json\n" in text
        assert written_by(text, tmp_path / name) == manifest


@pytest.mark.usefixtures("clean_home")
def test_whatever_a_manifest_says_a_definition_writes_it_and_does_nothing_else(
    make_layer: MakeLayer, layers: Path, tmp_path: Path
) -> None:
    make_layer("base", BASE)
    plain = write_flat(locked(decide(Request("base", ()), Ground(Catalogue((layers,), ()), Mirrors({}), ""))))
    text = "a {{ b }} $(touch x) `y` \"'\\ \n%post\nEND_OF_MANIFEST\n\u2028 \udcff"
    hostile = replace(planned(Fabric.HOST, KnownMachine()), machine=text, doubts=(text,))
    assert written_by(with_manifest(plain, hostile).text, tmp_path / "x") == hostile
    assert sorted(path.name for path in (tmp_path / "x").iterdir()) == ["bind-manifest.json"]


def written_by(definition: str, folder: Path) -> CarriedManifest:
    """Return what the `%post` of a definition writes, as the engine's own reader has it and the shell runs it."""
    script = read_definition(definition).sections["post"].text
    start, end = script.index("mkdir -p /.lumiimg"), script.rindex("rm -rf")
    own = script[start:end].replace("/.lumiimg", str(folder))
    subprocess.run(["/bin/bash", "-eu"], input=own.encode(), cwd=folder.parent, check=True)
    return from_bytes((folder / "bind-manifest.json").read_bytes())


GOOD: dict[str, Any] = {"schema": 1, "fabric": "host", "because": "x", "basis": "image"}
LIBRARY = {"soname": "libx.so.1", "target": f"{PRIVATE}/libx.so.1", "reason": "x"}


HOSTILE_PATHS = ["/etc/shadow", "x/libx.so.1", "/a/../libx.so.1", "/a:b/libx.so.1", "/$(x)/libx.so", "/libx.so\n"]
FAULTS: list[dict[str, Any]] = [
    {"schema": 2},
    {"fabric": "both"},
    {"because": "x" * (1 << 18)},
    {"libraries": [LIBRARY, LIBRARY]},
    {"libraries": [{**LIBRARY, "target": "/etc/libx.so.1"}]},
    {"libraries": [{**LIBRARY, "soname": "../x.so", "target": f"{PRIVATE}/../x.so"}]},
    *({"libraries": [{**LIBRARY, "host_path": path}]} for path in HOSTILE_PATHS),
]
NO_MANIFESTS = [
    b"",
    b"[]",
    b"\xff",
    b"[" * 100_000,
    b" " * (1 << 21),
    *(json.dumps({**GOOD, **one}).encode() for one in FAULTS),
]
"""The fuzz target bind-manifest has the rest."""


def test_a_manifest_that_no_build_writes_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = fabric_builder.image(tmp_path / "image")
    for data in NO_MANIFESTS:
        with open_image(put(root, data)) as image, pytest.raises(ManifestError) as refused:
            read_manifest(image.root)
        assert len(str(refused.value)) < 500, data[:80]
        assert main(["show", str(root)]) == 2, data[:80]
        assert capsys.readouterr().err.count("\n") == 1, data[:80]
    path = "/opt/cray/libfabric/1.22.0/lib64/libx.so.1"
    read = from_bytes(json.dumps({**GOOD, "libraries": [{**LIBRARY, "host_path": path}]}).encode())
    assert names(read) == {"libx.so.1": path}, "a good one of the same form is read"


def test_show_prints_it_of_an_image_that_an_engine_built_from_definitions(
    tmp_path: Path, node: Snapshot, capsys: pytest.CaptureFixture[str]
) -> None:
    image = fabric_builder.image(tmp_path / "image")
    assert main(["show", str(image)]) == 2
    put(image, wanted(image, node))
    capsys.readouterr()
    assert main(["show", str(image)]) == 0
    said = unwrapped(capsys.readouterr().out)
    for words in (
        "bind manifest: 4 libraries of the host, read from the files of the image",
        "settled with the snapshot of nid005001",
        f"libfabric.so.1 at {PRIVATE}/libfabric.so.1: it has the cxi provider of this machine",
        f"from {LIBFABRIC}",
        "librccl-net.so (image) needs FABRIC_1.3 of libfabric.so.1 (host): it has up to FABRIC_1.7",
        "device /dev/cxi*",
    ):
        assert " ".join(words.split()) in " ".join(said.split())
    old = fabric_builder.image(tmp_path / "old", glibc=35)
    put(old, wanted(old, node))
    assert main(["show", str(old)]) == 0
    said = unwrapped(capsys.readouterr().out)
    assert "bind manifest: 3 libraries of the host, which do not load in it, read from" in said
    assert "no set of binds of nid005001 loads" in said
    assert main(["show", str(image), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["plan"] is None
    assert next(one["soname"] for one in shown["bind_manifest"]["libraries"]) == "libfabric.so.1"


# --- what starts from it


def said_by(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[int, str]:
    code = main([*map(str, words)])
    out, err = capsys.readouterr()
    return code, " ".join(unwrapped(out + err).split())


@pytest.mark.usefixtures("clean_home")
def test_check_bind_and_drift_say_where_the_node_differs_and_judge_by_the_node(
    tmp_path: Path, node: Snapshot, capsys: pytest.CaptureFixture[str]
) -> None:
    image, host = fabric_builder.image(tmp_path / "image"), tmp_path / "host.json"
    without = [said_by(capsys, *words)[0] for words in asked(image, host)]
    put(image, wanted(image, node))
    for words, code in zip(asked(image, host), without, strict=True):
        now, text = said_by(capsys, *words)
        assert now == code
        assert "differs" not in text
    assert "(settled with nid005001: glibc 2.38) agrees" in said_by(capsys, *asked(image, host)[0])[1]
    # the node had another libfabric when the image was built, and none of this json-c
    old = wanted(image, node)
    moved = tuple(replace(one, host_path=f"/old/{one.soname}") for one in old.libraries if "json" not in one.soname)
    put(image, replace(old, libraries=moved))
    for words, code in zip(asked(image, host), without, strict=True):
        now, text = said_by(capsys, *words)
        assert now == code
        assert "libjson-c.so.5 is needed from this node, and is not in it" in text
        assert "libcxi.so.1 was /old/libcxi.so.1; this node has /usr/lib64/libcxi.so.1" in text


def asked(image: Path, host: Path) -> list[list[str | Path]]:
    return [
        ["check", image, "--level", "static", "--host", host, "--verbose"],
        ["bind", image, "--host", host],
        ["drift", host, host, "--image", image, "--verbose"],
    ]


@pytest.mark.usefixtures("clean_home")
def test_a_manifest_that_lies_makes_no_answer_better(
    tmp_path: Path, node: Snapshot, capsys: pytest.CaptureFixture[str]
) -> None:
    host = tmp_path / "host.json"
    old = fabric_builder.image(tmp_path / "old", glibc=35)
    bare = fabric_builder.image(tmp_path / "bare", plugin=False)
    lies: list[CarriedManifest | bytes] = [
        planned(Fabric.BUNDLED, KnownMachine()),
        planned(Fabric.NONE, KnownMachine()),
        wanted(fabric_builder.image(tmp_path / "fits"), node),
        b"{",
    ]

    def answers(image: Path) -> list[int]:
        more: list[list[str | Path]] = [["check", image, "--level", "static"], ["explain", image, "--host", host]]
        return [said_by(capsys, *words)[0] for words in (*asked(image, host)[:2], *more)]

    before = {image: answers(image) for image in (old, bare)}
    for lie in lies:
        assert {image: answers(put(image, lie)) for image in before} == before, lie
        text = said_by(capsys, *asked(bare, host)[0])[1]
        assert ("is not used: " if lie == b"{" else "bind manifest that the image carries") in text, lie


@pytest.mark.usefixtures("clean_home")
def test_job_and_module_bind_by_a_settled_manifest_where_no_node_is_seen(
    tmp_path: Path, node: Snapshot, capsys: pytest.CaptureFixture[str]
) -> None:
    image = fabric_builder.image(tmp_path / "image")
    job: list[str | Path] = ["job", image, "--site", "lumi", "--nodes", "2", "--", "true"]
    assert f":{PRIVATE}/" not in said_by(capsys, *job)[1]
    put(image, wanted(image, node))
    code, text = said_by(capsys, *job)
    assert code == 0
    for bind in (
        f"{LIBFABRIC}:{PRIVATE}/libfabric.so.1",
        f"/usr/lib64/libcxi.so.1:{PRIVATE}/libcxi.so.1",
        "/var/spool/slurmd",
    ):
        assert bind in text
    assert "no node was looked at" in text
    assert "settled with nid005001" in text
    modules = tmp_path / "modules"
    modules.mkdir()
    code, text = said_by(capsys, "module", image, "-o", modules, "--site", "lumi", "--name", "x/1")
    assert (code, "no node was looked at" in text) == (0, True)
    lua = (modules / "modulefiles/x/1.lua").read_text()
    assert f"{PRIVATE}/libcxi.so.1" in lua
    assert "/scratch" in lua


@pytest.mark.usefixtures("clean_home")
def test_no_job_binds_by_a_manifest_that_was_planned_or_that_the_files_contradict(
    tmp_path: Path, node: Snapshot, lumi: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    image = fabric_builder.image(tmp_path / "image")
    good = wanted(image, node)
    others = (
        planned(Fabric.HOST, KnownMachine(node)),
        wanted(image, site=lumi),
        replace(good, versions=tuple(replace(margin, need="9.9") for margin in good.versions)),
        replace(good, libraries=(replace(good.libraries[0], host_path=None), *good.libraries[1:])),
    )
    for manifest in others:
        put(image, manifest)
        code, text = said_by(capsys, "job", image, "--site", "lumi", "--nodes", "2", "--", "true")
        assert (code, f":{PRIVATE}/" in text) == (0, False)
    bundled = put(fabric_builder.bundled(tmp_path / "own"), good)
    code, text = said_by(capsys, "job", bundled, "--site", "lumi", "--nodes", "2", "--", "true")
    assert (code, f":{PRIVATE}/" in text) == (0, False)
    assert "it says fabric host, and bundled is what is found" in text
