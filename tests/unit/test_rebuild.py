"""An image rebuilt from its own record, which may be a lie: nothing of it is run or read outside the container."""

from __future__ import annotations

import itertools
import json
import os
import shlex
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from msgspec import structs

from lumiimg.build import build_host, builder
from lumiimg.build.builder import ImageBuild, build_image
from lumiimg.build.cache import LayerCache
from lumiimg.build.progress import Progress
from lumiimg.build.provenance import (
    asked_for,
    carried_files,
    read_carried,
    read_plan,
    refuse_files,
    with_base,
    write_folder,
)
from lumiimg.catalog.catalogue import Catalogue
from lumiimg.cli.main import main
from lumiimg.core.decode import decode, encode
from lumiimg.core.errors import BadInputError, ExitCode, LumiimgError
from lumiimg.core.files import file_sha256
from lumiimg.definition.writer import write_chain
from lumiimg.fetch.http import Http
from lumiimg.fetch.mirrors import Mirrors
from lumiimg.fetch.store import Store
from lumiimg.host.image_manifest import MANIFEST_PATH, make_manifest, read_manifest
from lumiimg.host.image_manifest import to_text as manifest_text
from lumiimg.host.snapshot import read_snapshot
from lumiimg.image import open_image
from lumiimg.image.sif import SifHeader, write_sif
from lumiimg.resolve.context import PlanContext
from lumiimg.resolve.image_base import foreign_layer
from lumiimg.resolve.lock import layer_digest
from lumiimg.resolve.lock_check import lock_of, outside_catalogue
from lumiimg.resolve.lock_file import to_record, to_text
from lumiimg.resolve.planner import decide
from lumiimg.resolve.request import Request, options_of
from lumiimg.resolve.requirements import OF_OPTION, UserRequirement
from tests.fuzz.locks import with_digests
from tests.shared import fabric_builder
from tests.shared.build_machine import build_machine
from tests.shared.layer_builder import BASE, LAYER, MakeLayer
from tests.shared.programs import sampled, squashed
from tests.shared.sif_builder import made_sif

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumiimg.build.layer_build import LayerBuild
    from lumiimg.resolve.lock import Lock
    from lumiimg.resolve.lock_file import LockFile

ZEROS = "0" * 64
MIDDLE = f'{LAYER}files = ["tool.c"]\n[environment.set]\nA = "it\'s"\n[environment.prepend]\nPATH = "/opt/b"\n'
TOP = (
    f'{LAYER}[sources.src]\nurl = "https://x.test/t.tar.gz"\nfile = "t.tar.gz"\nkey = "one"\nsource = "s"\n'
    f'[sources.src.sha256]\none = "{ZEROS}"\n'
)


@pytest.fixture
def catalogue(layers: Path, make_layer: MakeLayer) -> Catalogue:
    make_layer("a", BASE, post="echo base\n")
    make_layer("b", MIDDLE, post="cat >x <<'E'\n\tPercent: %s\nE\n", tool_c="int x;\n", test_sh="true\n")
    make_layer("c", TOP)
    return Catalogue((layers,), ())


def locked(catalogue: Catalogue, *add: str, **changes: Any) -> Lock:
    return with_digests(decide(Request("a", add, **changes), PlanContext(catalogue)).require_lock())


@pytest.fixture
def lock(catalogue: Catalogue) -> Lock:
    """The lock of a base and a layer without a source."""
    return locked(catalogue, "b")


@pytest.fixture
def whole(catalogue: Catalogue) -> Lock:
    """The same with another layer that has a source."""
    return locked(catalogue, "b", "c")


def locked_image(
    tmp_path: Path,
    lock: Lock,
    change: Callable[[Any], object] = lambda _: None,
    spoil: Callable[[Path], object] = lambda _: None,
) -> Path:
    """Return an image that contains a lock and its layers, after changes to either."""
    root, record = tmp_path / "root", json.loads(to_record(lock))
    write_folder(root, carried_files(lock), {})
    change(record)
    spoil(root / ".lumiimg/layers/0")
    return made_sif(root, tmp_path / "image.sif", json.dumps(record).encode())


def read_again(image: Path, scratch: Path, *catalogues: Catalogue) -> Lock:
    plan, carried = read_carried(image, scratch)
    return lock_of(plan, [*catalogues, carried], Mirrors({}), "", image)


# --- what an image contains


def test_an_image_is_read_again_as_it_was_locked_with_layers_of_the_catalogue_or_its_own(
    tmp_path: Path, whole: Lock, catalogue: Catalogue, layers: Path
) -> None:
    image = locked_image(tmp_path, whole)
    again = read_again(image, tmp_path / "scratch")
    assert write_chain(again) == write_chain(replace(again, bootstrap=whole.bootstrap))
    assert [one.text for one in write_chain(again)] == [one.text for one in write_chain(whole)]
    assert [one.layer.folder.parent for one in again.stack] == [tmp_path / "scratch/0"] * 3
    assert len(outside_catalogue(again, Mirrors({}), carried=tmp_path / "scratch")) == 3
    # if the catalogue has the same layers, these are used
    again = read_again(image, tmp_path / "other", catalogue)
    assert [one.layer.folder.parent for one in again.stack] == [layers] * 3
    assert outside_catalogue(again, Mirrors({}), carried=tmp_path / "other") == []
    # a layer that differs there is taken from the image
    (layers / "b/post.sh").write_text("true\n")
    again = read_again(image, tmp_path / "third", Catalogue((layers,), ()))
    assert [one.layer.folder.parent == layers for one in again.stack] == [True, False, True]
    (reported,) = outside_catalogue(again, Mirrors({}), carried=tmp_path / "third")
    assert reported.startswith("the layer b, as the image carries it (sha256:")


@pytest.mark.threat
def test_a_carried_layer_that_is_another_in_any_file_is_listed_by_its_new_digest(
    tmp_path: Path, whole: Lock, catalogue: Catalogue
) -> None:
    """The stranger changes both record and file, so that they agree."""
    names = [path for path in carried_files(whole) if not path.endswith("/c/layer.toml")]
    more = (b"\n", b"# x\n", b"touch /x\n", b'[environment.set]\nX = "y"\n', b"\0", b"\xff", b"x = [", b"files = []\n")
    listed = 0
    for number, (name, text) in enumerate(sampled(itertools.product(names, more), 16)):
        folder = tmp_path / f"{number}"
        root, scratch = folder / "root", folder / "scratch"
        write_folder(root, carried_files(whole), {})
        with (root / ".lumiimg" / name).open("ab") as file:
            file.write(text)
        record = json.loads(to_record(whole))
        of, _, layer = name.removeprefix("layers/").rpartition("/")[0].partition("/")
        changed = Catalogue((root / ".lumiimg/layers" / of,), ())
        try:
            found = changed.base(layer) if layer == "a" else changed.layer(layer)
            for entry in (record["base"], *record["layer"]):
                entry["layer"] = layer_digest(found) if entry["name"] == layer else entry["layer"]
            image = made_sif(root, folder / "image.sif", json.dumps(record).encode())
            again = read_again(image, scratch, catalogue)
        except LumiimgError:
            continue
        (reported,) = outside_catalogue(again, Mirrors({}), carried=scratch)
        assert reported == f"the layer {layer}, as the image carries it ({layer_digest(found)})", name
        listed += 1
    assert listed > 4


Change = Callable[[Any], object]


def setting(*path: str | int, **values: object) -> Change:
    def change(record: Any) -> None:
        for key in path:
            record = record[key]
        record.update({key.rstrip("_"): value for key, value in values.items()})

    return change


def foreign(**values: object) -> Change:
    return lambda record: record.update(base={"name": "x", "agent": "oci", "from": "/x", "image": {}, **values})


RECORDS: dict[str, Change] = {
    "another format": setting(format=99),
    "a huge format": setting(format=10**4000),
    "an older format": setting(format=1),
    "no format": lambda record: record.pop("format"),
    "no base": lambda record: record.pop("base"),
    "the same layer twice": lambda record: record["layer"].append(record["layer"][0]),
    "a layer that is a path": setting("layer", 0, name="../../x"),
    "a layer that is not there": setting("layer", 0, name="z"),
    "a layer of another digest": setting("layer", 0, layer=f"sha256:{ZEROS}"),
    "a layer without one": lambda record: record["layer"][0].pop("layer"),
    "the base as a layer": lambda record: record["layer"].append(record["base"]),
    "another release": setting("layer", 0, release="9"),
    "an argument of nobody": setting("request", arguments={"b.X": "y"}),
    "a wheel without a name": setting("layer", 0, wheels={"https://x.test/?x.whl": ZEROS}),
    "a wheel that is a file": setting("layer", 0, wheels={"file:///etc/x-1-py3-none-any.whl": ZEROS}),
    "a base from elsewhere": setting("base", from_="evil.test/x"),
    "a base without a digest": lambda record: record["base"].pop("digest"),
    "a base by debootstrap": foreign(agent="debootstrap", **{"from": "/tmp/suite"}),
    "a base by yum": foreign(agent="yum"),
    "a base in this folder": foreign(**{"from": "x.sif"}),
    "a digest of a file that is a path": foreign(image={"sha256": "../../x"}),
    "a source without a digest": setting("request", sources={"src": "/etc/passwd"}),
    "a source of another scheme": setting("request", sources={"src": "file:///etc/passwd"}),
    "a source with a password": setting("request", sources={"src": f"https://a:b@x.test/y#sha256={ZEROS}"}),
    "a digest for what has one": setting(**{"first-download": {"https://x.test/t.tar.gz": ZEROS}}),
    "a requirement that is none": setting("request", own=[{"text": "-e .", "where": "x"}]),
    "half a character": setting("request", add=["\ud800"]),
    "a million layers": setting(layer=[{}] * 100_000),
    "an endless address": setting("base", from_="y" * 1_000_000),
}


def replaced(folder: Path, name: str) -> None:
    (folder / name).write_text("echo evil\n")


def linked(folder: Path) -> None:
    (folder / "b/post.sh").unlink()
    (folder / "b/post.sh").symlink_to("/etc/passwd")


def linked_whole(folder: Path) -> None:
    folder.parent.rename(folder.parent.with_name("others"))
    folder.parent.symlink_to("others")


FOLDERS: dict[str, Callable[[Path], object]] = {
    **{f"another {name}": partial(replaced, name=name) for name in ("b/post.sh", "a/post.sh", "b/tool.c", "b/test.sh")},
    "no file": lambda folder: (folder / "b/tool.c").unlink(),
    "no layer": lambda folder: shutil.rmtree(folder / "a"),
    "no layers": shutil.rmtree,
    "a layer without end": lambda folder: (folder / "b/layer.toml").write_text("x = [" * 10_000),
    "a link": linked,
    "a link to all layers": linked_whole,
}
NO_RECORDS = (
    b"",
    b"[]",
    b"\xff",
    b"[" * 100_000,
    b'{"a":' * 900 + b"1" + b"}" * 900,
    b'{"format": 1e999}',
    b"1" * 5000,
)


@pytest.mark.threat
def test_an_image_that_lies_about_itself_is_refused(tmp_path: Path, whole: Lock) -> None:
    lies = [(what, {"change": change}) for what, change in RECORDS.items()]
    lies += [(what, {"spoil": spoil}) for what, spoil in FOLDERS.items()]
    images: list[tuple[str, Callable[[Path], Path]]] = [
        (what, partial(locked_image, lock=whole, **lie))  # type: ignore[arg-type]
        for what, lie in lies
    ]
    images += [(f"{data[:20]!r}", partial(without_record, data=data)) for data in NO_RECORDS]
    for number, (what, make) in enumerate(images):
        folder = tmp_path / f"{number}"
        folder.mkdir()
        image = make(folder)
        with pytest.raises(LumiimgError) as caught:
            read_again(image, folder / "a/b/scratch")
        assert caught.value.exit_code in {ExitCode.BAD_INPUT, ExitCode.NO}, what
        message = str(caught.value)
        assert "\n" not in message, what
        assert len(message) < 3000, what
        assert {path.name for path in folder.iterdir()} <= {"a", "root", "image.sif"}, what


def without_record(folder: Path, data: bytes) -> Path:
    (folder / "root").mkdir()
    return made_sif(folder / "root", folder / "image.sif", data)


@pytest.mark.threat
def test_the_files_of_an_image_are_bounded(tmp_path: Path, lock: Lock, monkeypatch: pytest.MonkeyPatch) -> None:
    image = locked_image(tmp_path, lock)
    monkeypatch.setattr("lumiimg.build.provenance._FILES_LIMIT_BYTES", 300)
    with pytest.raises(BadInputError, match=r"bytes; the limit is [0-9]+"):
        read_carried(image, tmp_path / "scratch")
    monkeypatch.setattr("lumiimg.build.provenance._MAX_FILES", 1)
    with pytest.raises(BadInputError, match="contains more than 1 files and folders"):
        read_carried(image, tmp_path / "scratch")


@pytest.mark.threat
def test_a_source_that_was_a_file_counts_only_where_it_is_cached_already(tmp_path: Path, catalogue: Catalogue) -> None:
    file, store = tmp_path / "t.tar.gz", Store(tmp_path / "store", Http(), Mirrors({}))
    file.write_text("mine")
    given = {"src": f"{file}#sha256={file_sha256(file)}"}
    again = read_again(locked_image(tmp_path, locked(catalogue, "c", sources=given)), tmp_path / "scratch", catalogue)
    with pytest.raises(
        BadInputError, match=rf"src was {file} on the machine that built the image \(sha256 {given['src'][-64:]}"
    ):
        refuse_files(again, store, tmp_path / "scratch")
    store.get(str(file), None)
    refuse_files(again, store, tmp_path / "scratch")


@pytest.mark.threat
def test_a_base_of_a_carried_layer_is_no_file_of_this_machine(
    tmp_path: Path, layers: Path, make_layer: MakeLayer
) -> None:
    (tmp_path / "key").write_text("mine")
    make_layer("a", BASE.replace('"docker"', '"localimage"').replace("busybox", str(tmp_path / "key")))
    mine, store = Catalogue((layers,), ()), Store(tmp_path / "store", Http(), Mirrors({}))
    context = PlanContext(mine, images={"a": mine.base("a")})  # which nobody reads
    image = locked_image(tmp_path, with_digests(decide(Request("a"), context).require_lock()))
    refuse_files(read_again(image, tmp_path / "scratch", mine), store, tmp_path / "scratch")
    with pytest.raises(BadInputError, match=rf"its layer a names the file {tmp_path}/key"):
        refuse_files(read_again(image, tmp_path / "scratch"), store, tmp_path / "scratch")


# --- a base that is a file or a folder


@pytest.mark.threat
def test_the_base_of_an_image_is_given_by_a_person_and_is_the_same(lock: Lock, tmp_path: Path) -> None:
    cache, reported, file = tmp_path / "cache", list[str](), tmp_path / "theirs.sif"
    file.write_text("a base")
    digest = file_sha256(file)
    bootstrap = replace(lock.bootstrap, agent="localimage", origin=str(file), image=None, sha256=digest)
    base = replace(lock.base, layer=foreign_layer("localimage", str(file), {}, ()))
    local = replace(lock, base=base, bootstrap=bootstrap, request=structs.replace(lock.request, base=str(file)))
    image = locked_image(tmp_path, local)
    plan, of_catalogue = read_plan(image), read_plan(locked_image(tmp_path / "other", lock))
    assert plan is not None
    assert of_catalogue is not None

    def given(path: Path | None, plan: LockFile = plan) -> LockFile:
        return with_base(plan, path, image, cache, reported.append)

    with pytest.raises(BadInputError, match="was not built on a file"):
        given(file, of_catalogue)
    with pytest.raises(BadInputError, match=rf"was built on {file} \(sha256 {digest}\), .*--base FILE"):
        given(None)
    assert given(file) == plan
    other = file.rename(tmp_path / "moved.sif")
    moved = given(other)
    assert (moved.base.origin, moved.request.base, moved.layer) == (str(other), str(other), plan.layer)
    again = lock_of(moved, [read_carried(image, tmp_path / "scratch")[1]], Mirrors({}), "", image)
    assert f"From: {other}\n" in write_chain(again)[0].text
    assert not any(one.startswith("base") for one in outside_catalogue(again, Mirrors({}), given=other))
    other.write_text("another")
    with pytest.raises(BadInputError, match=rf"its sha256 is {file_sha256(other)}, not {digest}"):
        given(other)
    for path, what in ((tmp_path, "it is a folder, not"), (file, "is not a file or folder")):
        with pytest.raises(BadInputError, match=what):
            given(path)
    reported.clear()
    unknown = decode({**encode(plan), "base": {**encode(plan.base), "image": {}}}, type(plan))
    assert given(other, unknown).base.origin == str(other)
    assert any("is not known" in line for line in reported)


# --- the command


class Stand:
    """A stand-in for a build strategy: a base contains the file that the test names, and nothing is run."""

    suffix = ".sqfs"

    def __init__(self) -> None:
        self.content = "one"
        self.files: Path | None = None
        """Further files of the base."""
        self.built: list[str] = []
        self.found: list[list[str]] = []
        """What each layer's script found of what an earlier one stored."""

    def base(self, step: LayerBuild, target: Path, _store: object = None) -> None:
        self.built.append(step.definition.name)
        root = step.folder / "root"
        root.mkdir()
        if self.files is not None:
            shutil.copytree(self.files, root, symlinks=True, dirs_exist_ok=True)
        (root / "content").write_text(self.content)
        os.utime(root / "content", (0, 0))
        os.utime(root, (0, 0))
        header = SifHeader(step.definition.text, {})
        squashed(root, target, offset=header.size_bytes)
        write_sif(target, header, identity="base")

    def layer(self, step: LayerBuild, below: Sequence[Path], target: Path) -> None:
        del below
        self.built.append(step.definition.name)
        self.found.append([path.name for path in step.compile_cache.rglob("*")])
        step.compile_cache.mkdir(parents=True, exist_ok=True)
        (step.compile_cache / "wheel").write_text("compiled")
        root = step.folder / "root"
        root.mkdir()
        squashed(root, target)


@pytest.fixture
def stand(monkeypatch: pytest.MonkeyPatch, clean_home: Path) -> Stand:
    del clean_home
    machine = build_machine(has_subids=False, path=os.environ["PATH"])
    stand = Stand()
    for module in ("cli.image_build", "cli.rebuild", "build.build_host"):  # those that import it before it is another
        monkeypatch.setattr(f"lumiimg.{module}.host_for_builds", lambda *_: machine)
    for way in ("Overlay", "Sandbox"):
        monkeypatch.setattr(builder, way, lambda *_: stand)
    monkeypatch.setattr(builder, "make_base", stand.base)
    return stand


def build(lock: Lock, output: Path, cache: Path, stand: Stand, **changes: Any) -> bool:
    """Build as `lumiimg build` does; return whether an image was written."""
    del stand
    plan = ImageBuild(
        chain=write_chain(lock),
        output=output,
        machine=build_host.host_for_builds({}),
        lock=lock,
        environment=dict(os.environ),
        cache=cache,
        downloads=Store(cache / "sources", Http(), Mirrors({})),
        on_start=lambda *_: None,
        **{"node": None, "progress": Progress(), **changes},
    )
    return build_image(plan).is_new


def base_alone(lock: Lock) -> Lock:
    return replace(lock, layers=(), request=structs.replace(lock.request, add=()))


def rebuild(image: Path, output: Path, *words: str | Path) -> int:
    words = ("--strategy", "sandbox", "--trust-lock", *words)
    return main(["rebuild", str(image), "-o", str(output), *map(str, words)])


@pytest.fixture
def image(lock: Lock, stand: Stand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    cache = tmp_path / "cache"
    monkeypatch.setenv("LUMIIMG_CACHE", str(cache))
    assert build(lock, tmp_path / "image.sif", cache, stand)
    return tmp_path / "image.sif"


@pytest.mark.threat
def test_layers_of_an_image_that_the_catalogue_does_not_have_are_refused_or_listed_first(
    image: Path, layers: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["rebuild", str(image), "-o", str(tmp_path / "new.sif"), "--strategy", "sandbox"]
    assert main(words) == ExitCode.BAD_INPUT
    message = capsys.readouterr().err
    assert "uses parts that are not from the catalogue: the layer a, as the image carries it (sha256:" in message
    assert message.count("\n") == 1
    assert not (tmp_path / "new.sif").exists()
    assert main([*words, "--trust-lock"]) == ExitCode.GOOD
    noted = capsys.readouterr().err
    assert noted.startswith(f"lumiimg: not from the catalogue, but from {image}: the layer a, as the image carries it")
    # the layers in a user's own folder are trusted already
    assert main([*words[:2], "-o", str(tmp_path / "own.sif"), *words[4:], "--layers", str(layers)]) == ExitCode.GOOD
    assert "catalogue" not in capsys.readouterr().err
    assert (tmp_path / "own.sif").read_bytes() == image.read_bytes()


@pytest.mark.threat
def test_no_site_and_no_node_of_a_lock_is_read(
    stand: Stand, lock: Lock, layers: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    del stand
    node = tmp_path / "node.json"
    node.write_text("not a snapshot")
    file, image = tmp_path / "their.lock", tmp_path / "image.sif"
    file.write_text(
        to_text(replace(lock, request=structs.replace(lock.request, site=str(tmp_path / "site.toml"), host=str(node))))
    )
    words = ["build", "--locked", "--lock", str(file), "--layers", str(layers), "--strategy", "sandbox"]
    assert main([*words, "-o", str(image)]) == ExitCode.GOOD
    assert f"the image gets no bind manifest: the lock names {node}" in capsys.readouterr().err
    assert main([*words, "-o", str(tmp_path / "other.sif"), "--host", str(node)]) == ExitCode.BAD_INPUT
    assert str(node) in capsys.readouterr().err


def test_an_image_carries_what_it_wants_of_the_machine_and_a_label_that_names_it(
    stand: Stand, lock: Lock, tmp_path: Path
) -> None:
    stand.files = fabric_builder.image(tmp_path / "files")
    labels = stand.files / ".singularity.d/labels.json"
    labels.write_text('{"a": "b"}')
    node = read_snapshot(fabric_builder.snapshot(fabric_builder.host(tmp_path / "host")))
    image, cache = tmp_path / "image.sif", tmp_path / "cache"
    assert build(base_alone(lock), image, cache, stand)
    assert not build(base_alone(lock), image, cache, stand)
    with open_image(image) as opened:
        assert (read_manifest(opened.root), opened.description.labels) == (None, {"a": "b"})
        assert (
            opened.root.stat("/.singularity.d").permissions
            == stand.files.joinpath(".singularity.d").stat().st_mode & 0o777
        )
    # for another node, the same layers give another image
    assert build(base_alone(lock), image, cache, stand, node=node, replaces=True)
    with open_image(image) as opened:
        assert opened.description.labels == {"a": "b", "lumiimg.bind-manifest": "/.lumiimg/bind-manifest.json"}
        assert opened.root.read_bytes(MANIFEST_PATH, 1 << 20) == manifest_text(make_manifest(opened, node)).encode()
    assert stand.built == ["01-a"]


def test_a_fresh_build_has_its_base_again_and_what_is_above_it_only_where_it_came_out_differently(
    image: Path, stand: Stand, lock: Lock, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    stand.built.clear()
    assert not build(lock, image, cache, stand)
    assert build(lock, image, cache, stand, fresh=True)
    assert stand.built == ["01-a"], "its base came to the same"
    stand.content = "another day's"
    assert build(lock, image, cache, stand, fresh=True)
    assert stand.built == ["01-a", "01-a", "02-b"]


@pytest.mark.threat
def test_each_build_says_where_its_cache_is_open_to_others(lock: Lock, stand: Stand, tmp_path: Path) -> None:
    class Noted(Progress):
        reported: ClassVar[list[str]] = []

        def notice(self, text: str) -> None:
            self.reported.append(text)

    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)
    assert build(base_alone(lock), tmp_path / "one.sif", cache, stand, progress=Noted())
    assert Noted.reported == []
    cache.chmod(0o770)
    for name in ("two.sif", "three.sif"):
        assert build(base_alone(lock), tmp_path / name, cache, stand, progress=Noted())
    assert (
        Noted.reported
        == [f"the cache {cache} can be written by others: anyone who can write to it controls what is built"] * 2
    )


def test_a_build_that_finds_its_image_starts_no_container(
    lock: Lock, stand: Stand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    assert build(base_alone(lock), tmp_path / "one.sif", tmp_path / "cache", stand)
    machine = build_host.host_for_builds({})
    for name in ("container", "overlay", "fuse"):
        del vars(machine)[name]
    monkeypatch.setattr(build_host, "_try_container", lambda *_: asked.append(machine))
    assert not build(base_alone(lock), tmp_path / "one.sif", tmp_path / "cache", stand)
    assert asked == []


@pytest.mark.threat
def test_the_log_of_a_build_has_no_secret_of_its_environment(
    lock: Lock, stand: Stand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://me:canary-of-a-proxy@proxy.test:3128")
    monkeypatch.setenv("SERVICE_TOKEN", "canary-of-a-token")
    base = stand.base

    def writes_base(step: LayerBuild, target: Path, _store: object) -> None:
        step.log.write(b"by canary-of-a-proxy, with canary-of-a-token and hf_" + b"aB3" * 10 + b"\n")
        base(step, target)

    monkeypatch.setattr(builder, "make_base", writes_base)
    assert build(base_alone(lock), tmp_path / "image.sif", tmp_path / "cache", stand)
    assert (tmp_path / "image.sif.log").read_text().count("[hidden]") == 3
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or b"canary-of" not in path.read_bytes(), path


def test_an_image_is_not_built_over_itself(image: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = image.read_bytes()
    (tmp_path / "link.sif").symlink_to(image)
    (tmp_path / "hard.sif").hardlink_to(image)
    (tmp_path / "new.sif.log").hardlink_to(image)
    for name, place in (*((name, name) for name in ("image.sif", "link.sif", "hard.sif")), ("new.sif", "new.sif.log")):
        assert rebuild(image, tmp_path / name, "--force", "--fresh") == ExitCode.BAD_INPUT
        assert f"{tmp_path / place}: is an input of the command" in capsys.readouterr().err
    assert rebuild(image, tmp_path / "x.sif", "--base", tmp_path / "x.sif") == ExitCode.BAD_INPUT
    assert image.read_bytes() == before


def test_fresh_builds_whatever_is_there_and_reports_by_its_exit_code(image: Path, stand: Stand, tmp_path: Path) -> None:
    new = tmp_path / "new.sif"
    assert rebuild(image, new) == ExitCode.GOOD
    assert new.read_bytes() == image.read_bytes()
    stand.built.clear()
    assert rebuild(image, new) == ExitCode.GOOD
    assert stand.built == []
    assert rebuild(image, new, "--fresh") == ExitCode.GOOD
    assert stand.built == ["01-a", "02-b"]
    stand.content = "two"
    assert rebuild(image, new, "--fresh", "--quiet") == ExitCode.NO
    with open_image(new) as opened:
        assert opened.root.read_bytes("/content", 10) == b"two"
    assert rebuild(image, new) == ExitCode.GOOD, "its number is that of the image"


def test_a_rebuild_neither_takes_nor_leaves_what_scripts_compiled(
    image: Path, stand: Stand, tmp_path: Path, lock: Lock
) -> None:
    cache = LayerCache(tmp_path / "cache")
    compiled = [entry for entry in cache.entries() if entry.data.suffix == ".tar"]
    assert len(compiled) == 1, "of the build"
    for entry in cache.entries():
        if entry.data.suffix != ".tar":
            cache.remove(entry.key)
    assert rebuild(image, tmp_path / "new.sif") == ExitCode.GOOD
    assert stand.found == [[], []], "neither the build nor the rebuild found any"
    for entry in list(cache.entries()):
        cache.remove(entry.key)
    assert rebuild(image, tmp_path / "other.sif") == ExitCode.GOOD
    assert [entry for entry in cache.entries() if entry.data.suffix == ".tar"] == []
    assert len(list(cache.entries())) == len(lock.stack), "its layers are kept"


# --- show


RECORD: dict[str, Any] = {"format": 3, "lumiimg": "0.1.0", "request": {"base": "a"}}
RECORD["base"] = {
    "name": "a",
    "layer": f"sha256:{ZEROS}",
    "agent": "docker",
    "from": "busybox",
    "digest": f"sha256:{ZEROS}",
}
CHANGES: tuple[dict[str, Any], ...] = (
    {},
    {"base": {"agent": ["localimage"]}},
    {"base": [1]},
    {"layer": "abc"},
    {"layer": [{"arguments": {"a": 1}, "name": ["x"], "release": {"y": 1}}], "lumiimg": [1], "fabric": {}},
    {"layer": [{}] * 20_000},
    {"layer": [RECORD["base"] | {"name": "b"}] * 3},
    {"layer": [{"name": f"x{number}", "release": "\x1b[2J"} for number in range(500)]},
    {"lumiimg": "\x1b[2J"},
    {"lumiimg": "x" * 1_000_000},
    {"site": "x" * 100_000},
)
DOCUMENTS = [
    *(json.dumps(RECORD | changes).encode() for changes in CHANGES),
    b'{"a": ' + b"[" * 900 + b"]" * 900 + b"}",
    b'{"a": NaN}',
    b'{"format": 3, "lumiimg": "\\ud800", "\\ud800": 1}',
]
BILLS = [
    b"[]",
    b'{"components": {"purl": 5}}',
    b'{"components": [{"purl": ["x"]}, {"purl": "pkg:deb/x"}]}',
    b'{"components": ' + b"[" * 900 + b"]" * 900 + b"}",
]


def test_what_an_image_says_is_shown_or_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "root").mkdir()
    for plan, bill in [*((plan, b"{}") for plan in DOCUMENTS), *((DOCUMENTS[0], bill) for bill in BILLS)]:
        image = made_sif(tmp_path / "root", tmp_path / "x.sif", plan, bill)
        for words in ([], ["--json"]):
            code = main(["show", str(image), *words])
            out, error = capsys.readouterr()
            assert code in {ExitCode.GOOD, ExitCode.BAD_INPUT}, plan[:99]
            assert code == ExitCode.GOOD or error.count("\n") == 1, plan[:99]
            out.encode()
            assert words or (len(out) < 10_000 and "\x1b" not in out), plan[:99]


# -- the original options, proposed again --


def says(tmp_path: Path, request: Request) -> tuple[str, ...]:
    root = tmp_path / "root"
    root.mkdir(exist_ok=True)
    return asked_for(made_sif(root, tmp_path / "asked.sif", json.dumps(RECORD | {"request": encode(request)}).encode()))


NAMED = Request("debian-13", ("netprobe", "vllm==0.10.1"), site="lumi")
OF_STRANGERS = (
    structs.replace(NAMED, base="docker://somebody/else"),
    structs.replace(NAMED, base="/etc/passwd-of-nobody"),
    structs.replace(NAMED, sources={"one": "https://somebody.test/one.tar"}),
    structs.replace(NAMED, own_files=("nowhere.txt",)),
    structs.replace(NAMED, own=(UserRequirement("evil", OF_OPTION),)),
    structs.replace(NAMED, add=("netprobe @ https://somebody.test/x",)),
    structs.replace(NAMED, add=("--output=/etc/passwd",)),
    structs.replace(NAMED, arguments={"netprobe.FROM": "https://somebody.test"}),
    structs.replace(NAMED, site="/etc/passwd"),
)


def test_what_an_image_was_asked_for_is_proposed_again_unless_a_stranger_could_mean_something_else(
    tmp_path: Path,
) -> None:
    assert says(tmp_path, NAMED) == tuple(shlex.split(options_of(NAMED)))
    assert [request for request in OF_STRANGERS if says(tmp_path, request) != ()] == []
