"""The bind manifest in an image: its content, what is accepted from a foreign one, and its use by jobs and checks.

The libraries are stand-ins (tests/shared/fabric_builder.py) with all that the loader reads.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lumiimg.catalog.catalogue import open_catalogue
from lumiimg.catalog.sites import find_site
from lumiimg.cli.main import main
from lumiimg.core.decode import DecodeError
from lumiimg.fabric.path import Fabric
from lumiimg.host.image_manifest import MANIFEST_PATH, from_bytes, make_manifest, read_manifest, to_text
from lumiimg.host.manifest import BindManifest
from lumiimg.host.snapshot import read_snapshot
from lumiimg.image import open_image
from lumiimg.resolve.context import PlanContext
from lumiimg.resolve.lock_file import to_record
from lumiimg.resolve.planner import decide
from lumiimg.resolve.request import Request
from tests.fuzz.locks import with_digests
from tests.shared import fabric_builder
from tests.shared.programs import unwrapped
from tests.shared.sif_builder import made_sif

if TYPE_CHECKING:
    from lumiimg.host.snapshot import Snapshot

PRIVATE = "/opt/lumiimg/host"
LIBFABRIC = "/opt/cray/libfabric/1.22.0/lib64/libfabric.so.1"


@pytest.fixture
def node(tmp_path: Path) -> Snapshot:
    return read_snapshot(fabric_builder.snapshot(fabric_builder.host(tmp_path / "host"), host="nid005001"))


def made(root: Path, snapshot: Snapshot) -> BindManifest:
    with open_image(root) as image:
        return make_manifest(image, snapshot)


def put(root: Path, manifest: BindManifest | bytes) -> Path:
    file = root / MANIFEST_PATH[1:]
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(manifest if isinstance(manifest, bytes) else to_text(manifest).encode())
    return root


def printed_by(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[int, str]:
    code = main([*map(str, words)])
    out, err = capsys.readouterr()
    return code, " ".join(unwrapped(out + err).split())


def test_it_is_what_bind_answers_for_the_node(
    tmp_path: Path, node: Snapshot, capsys: pytest.CaptureFixture[str]
) -> None:
    for glibc in (35, 41):
        image = fabric_builder.image(tmp_path / f"image-{glibc}", glibc=glibc)
        manifest = made(image, node)
        assert from_bytes(to_text(manifest).encode()) == manifest
        main(["bind", str(image), "--host", str(tmp_path / "host.json"), "--json"])
        answer = json.loads(capsys.readouterr().out)
        assert manifest.machine == "nid005001: glibc 2.38"
        assert manifest.fabric == answer["fabric"]
        assert [(bind.source, bind.target) for bind in manifest.binds] == [
            (bind["source"], bind["target"]) for bind in answer["binds"]
        ]
        assert {one.name: one.value for one in manifest.variables} == {
            name: variable["value"] for name, variable in answer["environment"].items()
        }
        assert [one.need for one in manifest.refusals] == [one["need"] for one in answer["refusals"]]


# --- a foreign one


GOOD: dict[str, Any] = {"schema": 2, "fabric": "host", "machine": "nid1"}
BIND = {"source": "/usr/lib64/libx.so.1", "target": f"{PRIVATE}/libx.so.1", "reason": "x"}
VARIABLE = {"name": "LD_LIBRARY_PATH", "value": f"{PRIVATE}:/usr/lib", "reason": "x"}


HOSTILE_PATHS = ["/etc/shadow", "x/libx.so.1", "/a/../libx.so.1", "/a:b/libx.so.1", "/$(x)/libx.so", "/libx.so\n"]
FAULTS: list[dict[str, Any]] = [
    {"schema": 1},
    {"schema": 3},
    {"fabric": "both"},
    {"machine": "x" * (1 << 18)},
    {"binds": [BIND, BIND]},
    {"binds": [{**BIND, "target": "/etc/libx.so.1"}]},
    {"binds": [{**BIND, "target": f"{PRIVATE}/../x.so"}]},
    {"binds": [{**BIND, "of_image": True}]},
    {"machine": "", "binds": [BIND]},
    *({"binds": [{**BIND, "source": path}]} for path in HOSTILE_PATHS),
    {"variables": [{**VARIABLE, "name": "LD_PRELOAD"}]},
    {"variables": [{**VARIABLE, "value": f"{PRIVATE}-not/lib"}]},
]
NO_MANIFESTS = [
    b"[]",
    b" " * (1 << 21),
    *(json.dumps({**GOOD, **one}).encode() for one in FAULTS),
]
"""The fuzz target bind-manifest has the rest."""


def test_a_manifest_that_no_build_writes_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = fabric_builder.image(tmp_path / "image")
    for data in NO_MANIFESTS:
        with open_image(put(root, data)) as image, pytest.raises(DecodeError) as refused:
            read_manifest(image.root)
        assert len(str(refused.value)) < 500, data[:80]
        assert main(["show", str(root)]) == 2, data[:80]
        assert capsys.readouterr().err.count("\n") == 1, data[:80]
    read = from_bytes(json.dumps({**GOOD, "binds": [BIND], "variables": [VARIABLE]}).encode())
    assert read.libraries == {"libx.so.1": "/usr/lib64/libx.so.1"}, "a good one of the same form is read"


def test_show_prints_it(tmp_path: Path, node: Snapshot, capsys: pytest.CaptureFixture[str]) -> None:
    root, home = fabric_builder.image(tmp_path / "image"), {"HOME": str(tmp_path)}
    context = PlanContext(open_catalogue(home), site=find_site("lumi", home))
    record = to_record(with_digests(decide(Request("rocm-6.2.4", ("aws-ofi-nccl",)), context).require_lock()))
    manifest = made(root, node)
    sif = made_sif(put(root, manifest), tmp_path / "image.sif", record)
    code, text = printed_by(capsys, "show", sif)
    assert (code, "bind manifest: fabric host, made for nid005001" in text) == (0, True)
    assert "librccl-net.so needs libfabric.so.1; " in text
    assert all(f"{bind.source} at {bind.target}: {bind.reason}" in text for bind in manifest.binds)
    assert main(["show", str(sif), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)["bind_manifest"]
    assert [bind["source"] for bind in shown["binds"]] == [bind.source for bind in manifest.binds]


# --- what starts from it


@pytest.mark.usefixtures("clean_home")
@pytest.mark.parametrize(
    ("build", "carries", "binds"),
    [(fabric_builder.image, False, False), (fabric_builder.image, True, True), (fabric_builder.bundled, True, False)],
)
def test_job_and_module_bind_by_one_that_was_made_for_a_node(
    build: Callable[[Path], Path],
    carries: bool,
    binds: bool,
    tmp_path: Path,
    node: Snapshot,
    capsys: pytest.CaptureFixture[str],
) -> None:
    image, modules = build(tmp_path / "image"), tmp_path / "modules"
    modules.mkdir()
    if carries:
        put(image, made(image, node))
    code, job = printed_by(capsys, "job", image, "--site", "lumi", "--nodes", "2", "--", "true")
    assert (code, f"{LIBFABRIC}:{PRIVATE}/libfabric.so.1" in job) == (0, binds)
    assert "/var/spool/slurmd" in job, "the site's own are bound, too"
    code, module = printed_by(capsys, "module", image, "-o", modules, "--site", "lumi", "--name", "x/1")
    assert (code, f"{PRIVATE}/libcxi.so.1" in (modules / "modulefiles/x/1").read_text()) == (0, binds)
    assert ("no library of the machine" in module) is not binds
    for text in (job, module):
        assert (
            "no snapshot of a node was given: the bound libraries are those of the image's bind manifest" in text
        ) is binds
        assert ("made for nid005001" in text) is binds


@pytest.mark.usefixtures("clean_home")
def test_no_job_binds_by_one_that_the_files_of_the_image_contradict(
    tmp_path: Path, node: Snapshot, capsys: pytest.CaptureFixture[str]
) -> None:
    plain, own = fabric_builder.image(tmp_path / "image"), fabric_builder.bundled(tmp_path / "own")
    good = made(plain, node)
    lacking = replace(good, binds=tuple(bind for bind in good.binds if not bind.target.endswith("libfabric.so.1")))
    for image, manifest, expected in (
        (plain, lacking, "libfabric.so.1 is needed, but is not in it"),
        (own, good, "the image's own libfabric reaches Slingshot"),
    ):
        put(image, manifest)
        code, text = printed_by(capsys, "job", image, "--site", "lumi", "--nodes", "2", "--", "true")
        assert (code, f":{PRIVATE}/" in text) == (0, False)
        assert expected in text


@pytest.mark.usefixtures("clean_home")
def test_no_text_of_a_manifest_becomes_a_line_of_a_script(
    tmp_path: Path, node: Snapshot, capsys: pytest.CaptureFixture[str]
) -> None:
    image, modules = fabric_builder.image(tmp_path / "image"), tmp_path / "modules"
    modules.mkdir()
    lines = "x\nexit 7\r$(exit 7)"
    good = made(image, node)
    binds = tuple(replace(bind, reason=lines, chain=(lines,)) for bind in good.binds)
    put(image, replace(good, machine=lines, binds=binds, notes=(lines,), refusals=()))
    for words in (
        ("job", image, "--site", "lumi", "--nodes", "2", "--annotate", "-o", tmp_path / "job.sh", "--", "true"),
        ("module", image, "-o", modules, "--site", "lumi", "--name", "x/1"),
    ):
        assert main([*map(str, words)]) == 0
    written = [tmp_path / "job.sh", *(file for file in modules.rglob("*") if file.is_file())]
    assert any("made for x" in " ".join(file.read_text().replace("#", "").split()) for file in written)
    for file in written:
        assert not [line for line in file.read_text().splitlines() if line.startswith("exit 7")], file
    capsys.readouterr()


def asked(image: Path, host: Path) -> list[list[str | Path]]:
    return [["check", image, "--level", "static", "--host", host, "--verbose"], ["bind", image, "--host", host]]


@pytest.mark.usefixtures("clean_home")
def test_a_manifest_that_lies_makes_no_answer_better(
    tmp_path: Path, node: Snapshot, capsys: pytest.CaptureFixture[str]
) -> None:
    host = tmp_path / "host.json"
    old = fabric_builder.image(tmp_path / "old", glibc=35)
    bare = fabric_builder.image(tmp_path / "bare", plugin=False)
    lies: list[BindManifest | bytes] = [
        BindManifest(Fabric.BUNDLED, "nid1"),
        BindManifest(Fabric.NONE, "nid1"),
        made(fabric_builder.image(tmp_path / "fits"), node),
        b"{",
    ]

    def answers(image: Path) -> list[int]:
        more: list[list[str | Path]] = [["check", image, "--level", "static"], ["explain", image, "--host", host]]
        return [printed_by(capsys, *words)[0] for words in (*asked(image, host), *more)]

    before = {image: answers(image) for image in (old, bare)}
    for lie in lies:
        assert {image: answers(put(image, lie)) for image in before} == before, lie
        assert ("is not used: " in printed_by(capsys, *asked(bare, host)[0])[1]) is (lie == b"{"), lie
