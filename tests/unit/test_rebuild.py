"""An image built again from what it says about itself, which may be a lie: nothing of it runs, or is read, out here."""

from __future__ import annotations

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
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from lumiimg.build import builder, choice
from lumiimg.build.build_host import BuildHost
from lumiimg.build.builder import ImageBuild, build_image
from lumiimg.build.cache import LayerCache
from lumiimg.build.compile_cache import kept_files
from lumiimg.build.local_base import check_mirror, give_base, lock_base
from lumiimg.build.progress import Progress
from lumiimg.build.provenance import PLAN, asked_for, read_chain, write_folder
from lumiimg.catalog.catalogue import Catalogue
from lumiimg.cli.main import main
from lumiimg.definition.definition import Definition, Header
from lumiimg.definition.reader import check_definition, read_sections
from lumiimg.definition.text import DefinitionError
from lumiimg.definition.writer import write_chain
from lumiimg.engine.engine import Engine, EngineKind
from lumiimg.errors import BadInputError, ExitCode, FailedError
from lumiimg.fetch.http import Http
from lumiimg.fetch.mirrors import Mirrors
from lumiimg.fetch.store import Store
from lumiimg.files import file_sha256
from lumiimg.host.image_manifest import MANIFEST_PATH, make_manifest, read_manifest, to_text
from lumiimg.host.snapshot_file import read_snapshot
from lumiimg.image import open_image, sif_writer
from lumiimg.image.shell.parser import Simple, parse
from lumiimg.resolve.context import PlanContext
from lumiimg.resolve.image_base import foreign_layer
from lumiimg.resolve.lock import LockedSource
from lumiimg.resolve.planner import decide
from lumiimg.resolve.request import Request, options_of
from tests.shared import fabric_builder
from tests.shared.layer_builder import BASE, LAYER, MakeLayer
from tests.shared.programs import examples, squashed
from tests.shared.sif_builder import made_sif

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumiimg.build.layer_build import LayerBuild
    from lumiimg.resolve.lock import Lock

ENGINE = Engine(Path("/x/apptainer"), EngineKind.APPTAINER, "1.4.5", frozenset({"--mksquashfs-args"}))
ZEROS = "0" * 64
DEBOOTSTRAP = "Bootstrap: debootstrap\nOSVersion: trixie\nMirrorURL: https://deb.test/debian\nInclude: gcc g++\n"
TOP = LAYER + (
    'files = ["tool.c"]\n[sources.src]\nurl = "https://x.test/t.tar.gz"\nfile = "t.tar.gz"\nkey = "one"\nsource = "s"\n'
    f'[sources.src.sha256]\none = "{ZEROS}"\n[environment.set]\nA = "it\'s"\n[environment.prepend]\nPATH = "/opt/b"\n'
)


@pytest.fixture
def lock(layers: Path, make_layer: MakeLayer) -> Lock:
    make_layer("a", BASE, post="echo base\n")
    make_layer("b", TOP, post="cat >x <<'E'\n\tPercent: %s\nE\n", tool_c="int x;\n", test_sh="true\n")
    return decide(Request("a", ("b",)), PlanContext(Catalogue((layers,), ()), Mirrors({}), "")).require_lock()


@pytest.fixture
def chain(lock: Lock) -> tuple[Definition, ...]:
    return write_chain(lock)


def told(tmp_path: Path, chain: Sequence[Definition], spoil: Callable[[Path], object] = lambda _: None) -> Path:
    """An image that carries its definitions, after somebody has changed what is in its /.lumiimg."""
    root = tmp_path / "root"
    write_folder(root, chain, {})
    spoil(root / ".lumiimg")
    return made_sif(root, tmp_path / "image.sif")


def test_a_wheel_of_a_local_version_is_read_again(tmp_path: Path, lock: Lock) -> None:
    wheel = LockedSource("torch", "", "torch-2.9.1+rocm6.4-cp312-none-any.whl", ZEROS, "https://x.test/t.whl", "", "2")
    lock = replace(lock, layers=(replace(lock.layers[0], wheels=(wheel,)),))
    read = read_chain(told(tmp_path, write_chain(lock)), tmp_path / "scratch")
    assert read[1].files[-1].origin == wheel


# --- definitions


def test_what_the_writer_writes_is_taken(chain: tuple[Definition, ...]) -> None:
    for golden in sorted((Path(__file__).parents[1] / "fixtures").rglob("0*.def")):
        text = golden.read_text()
        layer = golden.stem.partition("-")[2]
        lines = text.partition("%files\n")[2].partition("\n\n")[0].splitlines() if "%files\n" in text else []
        files = tuple(replace(chain[1].files[0], path=line.split()[0]) for line in lines)
        head = text.partition("\n\n")[0]
        parent = head.partition("From: ")[2].removesuffix(".sif") if "localimage" in head else None
        sections = read_sections(text, golden.name)
        assert sections.text == text, golden
        check_definition(Definition(golden.stem, (layer,), parent, sections, files))


SECTIONS = {
    "setup": ("%post", "%setup\ntouch /x\n\n%post"),
    "indented": ("%post", "  %pre\ntouch /x\n\n%post"),
    "behind a space of another kind": ("%post", "\u00a0%setup\ntouch /x\n\n%post"),
    "files of a stage": ("%files\n", "%files from x\n"),
    "another shell": ("%post -c /bin/bash", "%post -c /bin/sh"),
    "runscript": ("%labels", "%runscript\ntrue\n\n%labels"),
    "another stage": ("#!/bin/bash", "bootstrap: localimage\nFrom: /home/x/y.sif"),
    "build argument": ("#!/bin/bash", "echo {{ x }}"),
    "carriage return": ("#!/bin/bash", "#!/bin/bash\r"),
    "one more file": ("%files\n", "%files\n    /etc/passwd /opt/x\n"),
    "another target": ("/opt/lumiimg/build/b/files/tool.c", "/tmp/tool.c"),
    "environment": ("    export A=", "    touch /x; export A="),
    "a command behind a variable": ("    export A='", "    export A='x'; touch /y; : '"),
    "a variable in a variable": ("    export A='", "    export A='x'$HOME'"),
    "into a file": ("    export A='", "    export A='x' >/y : '"),
    "label": ("    lumiimg.layer.02 b", "    lumiimg.layer.02 c"),
    "parent": ("From: 01-a.sif", "From: /home/x/y.sif"),
    "agent": ("Bootstrap: localimage", "Bootstrap: yum"),
    "header of two lines": ("From: 01-a.sif\n", "From: 01-a.sif\\\n"),
}


@pytest.mark.threat
def test_a_definition_that_lumiimg_does_not_write_is_refused(chain: tuple[Definition, ...], tmp_path: Path) -> None:
    for number, (what, (old, new)) in enumerate(SECTIONS.items()):
        one = next(one for one in (chain[1], chain[0]) if old in one.text)

        def spoil(folder: Path, one: Definition = one, old: str = old, new: str = new) -> None:
            (folder / f"definitions/{one.name}.def").write_bytes(one.text.replace(old, new, 1).encode())

        (tmp_path / f"{number}").mkdir()
        with pytest.raises(BadInputError) as caught:
            read_chain(told(tmp_path / f"{number}", chain, spoil), tmp_path / "scratch")
        assert str(caught.value).startswith(f"{one.name}.def"), what


@settings(max_examples=examples(30), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(word=st.text("'\"$;&|<>(){}\\ ax#`:+=~", max_size=12))
@example(word="x'; touch /y; : '")
@pytest.mark.threat
def test_a_variable_of_a_definition_is_one_word_for_the_reader_of_environment_scripts(
    word: str, chain: tuple[Definition, ...]
) -> None:
    sections = replace(chain[1].sections, environment=(("A", f"'{word}"),))
    try:
        check_definition(replace(chain[1], sections=sections))
    except DefinitionError:
        return
    line = f"export A='{word}"
    assert list(parse(line)) == [Simple(line, ("export", f"A='{word}"), redirected=False)]


BASES: dict[str, tuple[str, dict[str, Any], bool]] = {
    "docker": ("Bootstrap: docker\nFrom: docker.io/library/x:1\n", {}, True),
    "digest": (f"Bootstrap: docker\nFrom: localhost:5000/x@sha256:{ZEROS}\n", {"plain_http": True}, True),
    "oras": ("Bootstrap: oras\nFrom: x.test/a/b:1\n", {}, True),
    "debootstrap": (DEBOOTSTRAP, {}, True),
    "its own file": ("Bootstrap: localimage\nFrom: /x/y.sif\n", {"origin": Path("/x/y.sif")}, True),
    "its own folder": ("Bootstrap: oci\nFrom: /x/y\n", {"origin": Path("/x/y")}, True),
    "another file": ("Bootstrap: localimage\nFrom: /x/z.sif\n", {"origin": Path("/x/y.sif")}, False),
    "a file": ("Bootstrap: localimage\nFrom: /x/y.sif\n", {}, False),
    "a daemon": ("Bootstrap: docker-daemon\nFrom: docker.io/library/x:1\n", {}, False),
    "no image": ("Bootstrap: docker\nFrom: ../x\n", {}, False),
    "one more key": ("Bootstrap: docker\nFrom: docker.io/library/x:1\nRegistry: y.test\n", {}, False),
    "an option of debootstrap": (DEBOOTSTRAP.replace("trixie", "--foreign"), {}, False),
    "a folder as mirror": (DEBOOTSTRAP.replace("https://deb.test", "file:///x"), {}, False),
    "no packages": (DEBOOTSTRAP.replace("gcc", "--x"), {}, False),
    "a build argument": (DEBOOTSTRAP.replace("deb.test", "{{x}}"), {}, False),
    "the order": ("From: docker.io/library/x:1\nBootstrap: docker\n", {}, False),
    "nothing": ("", {}, False),
}


@pytest.mark.threat
def test_a_base_is_one_that_lumiimg_writes(chain: tuple[Definition, ...]) -> None:
    head, _, rest = chain[0].text.partition("\n\n")
    for what, (header, changes, good) in BASES.items():
        text = f"{head.partition(chr(10))[0]}\n{header}\n{rest}"
        try:
            one = replace(chain[0], sections=read_sections(text, "01-a.def"), **changes)
            check_definition(one)
        except DefinitionError:
            assert not good, what
        else:
            assert good, what
            assert one.text == text, what


@pytest.mark.threat
def test_debootstrap_takes_packages_from_where_a_person_says(
    chain: tuple[Definition, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lumiimg.build.local_base.apt_mirror", lambda _: None)
    header = Header("debootstrap", "trixie", "https://deb.test/debian", ("gcc",))
    one = replace(chain[0], sections=replace(chain[0].sections, header=header))
    with pytest.raises(BadInputError, match=r"if you trust it: --mirror debian=https://deb\.test/debian"):
        check_mirror([one], Mirrors({}))
    check_mirror([one], Mirrors({"debian": "https://deb.test/debian"}))
    monkeypatch.setattr("lumiimg.build.local_base.apt_mirror", lambda _: "https://deb.test/debian")
    check_mirror([one], Mirrors({}))
    check_mirror(chain, Mirrors({}))


# --- chain.json

Change = Any


def with_file(source: object, path: str = "files/b/source/src/t.tar.gz") -> Change:
    return lambda chain: chain["definitions"][1]["files"].__setitem__(1, {"path": path, "source": source})


def setting(at: int, **values: object) -> Change:
    return lambda chain: chain["definitions"][at].update(values)


SOURCE = {
    "name": "src",
    "variable": "V",
    "file": "t.tar.gz",
    "sha256": ZEROS,
    "location": "https://x.test/t.tar.gz",
    "note": "",
    "version": "",
}
SHAPES: dict[str, Change] = {
    "another format": lambda chain: chain.update(format=99),
    "a huge format": lambda chain: chain.update(format=10**4000),
    "no definitions": lambda chain: chain.update(definitions=[]),
    "the same definition twice": lambda chain: chain.update(definitions=chain["definitions"][:1] * 2),
    "no layers": setting(0, layers=[]),
    "a layer that is a path": setting(0, layers=["../../x"]),
    "a name that is a path": setting(0, name="../x"),
    "another parent": setting(1, parent="01-b"),
    "needs of nothing": setting(1, needs=["03-c"]),
    "an origin in this folder": setting(0, origin="x.sif"),
    "a file that it does not start from": setting(0, origin="/etc/passwd"),
    "a million files": setting(1, files=[{}] * 100_000),
    "a path outside": with_file(None, "files/../../x"),
    "a path of another layer": with_file(SOURCE, "files/a/source/src/t.tar.gz"),
    "a path twice": lambda chain: chain["definitions"][1]["files"].append(chain["definitions"][1]["files"][0]),
    "an endless address": with_file({**SOURCE, "location": "https://x.test/" + "y" * 10_000}),
    "a digest of nothing": setting(0, origin_sha256=ZEROS),
    "a digest that is a path": with_file({**SOURCE, "sha256": "../../x"}),
    "a file as source": with_file({**SOURCE, "location": "file:///etc/passwd"}),
    "a source with a password": with_file({**SOURCE, "location": "https://a:b@x.test/y"}),
    "half a character": setting(1, needs=["\ud800"]),
}


def spoiled(folder: Path, change: Change) -> None:
    record = folder / "chain.json"
    document = json.loads(record.read_text())
    change(document)
    record.write_text(json.dumps(document))


def recorded(folder: Path, data: bytes) -> None:
    (folder / "chain.json").write_bytes(data)


def without(folder: Path, name: str) -> None:
    (folder / name).unlink()


def outside(folder: Path) -> None:
    definition = folder / "definitions/02-b.def"
    definition.write_text(definition.read_text().replace("files/b/files/tool.c", "files/../../../outside"))
    spoiled(folder, lambda chain: chain["definitions"][1]["files"][0].update(path="files/../../../outside"))


def from_here(folder: Path) -> None:
    definition = folder / "definitions/01-a.def"
    head, _, rest = definition.read_text().partition("\n\n")
    definition.write_text(f"{head.partition(chr(10))[0]}\nBootstrap: localimage\nFrom: x.sif\n\n{rest}")
    spoiled(folder, setting(0, origin="x.sif"))


def a_path_as_layer(folder: Path) -> None:
    (folder / "definitions/01-..").mkdir()
    text = (folder / "definitions/01-a.def").read_text().replace("lumiimg.layer.01 a", "lumiimg.layer.01 ../x")
    (folder / "definitions/01-../x.def").write_text(text)
    spoiled(folder, lambda chain: chain["definitions"].__delitem__(1))
    spoiled(folder, setting(0, name="01-../x", layers=["../x"]))


NO_RECORDS = (
    b"",
    b"[]",
    b"\xff",
    b"[" * 100_000,
    b'{"a":' * 900 + b"1" + b"}" * 900,
    b'{"format": 1e999}',
    b"1" * 5000,
)
LIES: dict[str, tuple[Callable[[Path], object], str]] = {
    **{what: (partial(spoiled, change=change), "") for what, change in SHAPES.items()},
    **{f"{data[:20]!r}": (partial(recorded, data=data), "is damaged") for data in NO_RECORDS},
    **{
        f"without {name}": (partial(without, name=name), "")
        for name in ("definitions/01-a.def", "files/b/files/tool.c", "chain.json")
    },
    # and its definitions lie with it
    "a file outside": (outside, "names the file"),
    "a base in the current folder": (from_here, "starts from"),
    "a layer that is a path": (a_path_as_layer, "names the layers"),
}


@pytest.mark.threat
def test_an_image_that_lies_about_itself_is_refused(tmp_path: Path, chain: tuple[Definition, ...]) -> None:
    for number, (what, (lie, words)) in enumerate(LIES.items()):
        folder = tmp_path / f"{number}"
        folder.mkdir()
        (folder / "outside").write_text("theirs")
        with pytest.raises(BadInputError) as caught:
            read_chain(told(folder, chain, lie), folder / "a/b/scratch")
        said = str(caught.value)
        assert words in said, what
        assert "\n" not in said, what
        assert len(said) < 1000, what
        assert not [path for path in folder.rglob("outside") if path.parent != folder], what


def test_a_file_that_is_no_image_is_named_as_such(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("text")
    for name, words in {"none": "No such file", "log": "neither a SIF"}.items():
        with pytest.raises(BadInputError, match=words):
            read_chain(tmp_path / name, tmp_path / "scratch")


@pytest.mark.threat
def test_the_files_of_an_image_are_bounded(
    tmp_path: Path, chain: tuple[Definition, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lumiimg.build.provenance._FILES_LIMIT_BYTES", 6)
    with pytest.raises(BadInputError, match="7 bytes where 6 are the limit"):
        read_chain(told(tmp_path, chain), tmp_path / "scratch")
    monkeypatch.setattr("lumiimg.build.provenance._MAX_FILES", 1)
    (tmp_path / "many").mkdir()
    with pytest.raises(BadInputError, match="has 2 files; 1 are the limit"):
        read_chain(told(tmp_path / "many", chain), tmp_path / "scratch")


@pytest.mark.threat
def test_a_source_that_was_a_file_counts_only_where_it_is_kept_already(
    tmp_path: Path, chain: tuple[Definition, ...]
) -> None:
    image = told(tmp_path, chain, lambda folder: spoiled(folder, with_file({**SOURCE, "location": "/home/x/t.tar.gz"})))
    with pytest.raises(BadInputError, match=r"was /home/x/t\.tar\.gz of the machine that built the image \(sha256 000"):
        read_chain(image, tmp_path / "scratch")
    assert read_chain(image, tmp_path / "scratch", has=lambda source: source.sha256 == ZEROS)


def test_a_local_source_is_a_file_of_some_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path / "store", Http(), Mirrors({}))
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_text("content")
    monkeypatch.setattr("lumiimg.fetch.store.SIZE_LIMIT_BYTES", 6)
    for name, what in (
        ("/dev/zero", "is not a file"),
        ("pipe", "is not a file"),
        (".", "cannot be read"),
        ("no", "such"),
    ):
        with pytest.raises(FailedError, match=what) as caught:
            store.get(str(tmp_path / name), ZEROS)
        assert str(tmp_path / name) in str(caught.value)
    with pytest.raises(FailedError, match="is larger than 6 bytes"):
        store.add(str(tmp_path / "file"))
    monkeypatch.setattr("lumiimg.fetch.store.SIZE_LIMIT_BYTES", 7)
    assert store.add(str(tmp_path / "file")) == file_sha256(tmp_path / "file")


# --- a base that is a file or a folder


@pytest.fixture
def local(lock: Lock, tmp_path: Path) -> Lock:
    """A lock whose base is a file."""
    file = tmp_path / "theirs.sif"
    file.write_text("a base")
    layer = foreign_layer("localimage", str(file), {}, ())
    bootstrap = replace(lock.bootstrap, agent="localimage", origin=str(file), mirror_url=None, image=None)
    return replace(lock, base=replace(lock.base, layer=layer), bootstrap=bootstrap)


@pytest.mark.threat
def test_the_base_of_an_image_is_given_by_a_person_and_is_the_same(local: Lock, tmp_path: Path) -> None:
    cache, said = tmp_path / "cache", list[str]()
    chain = write_chain(lock_base(local, cache, said.append))
    image, file, digest = tmp_path / "image.sif", tmp_path / "theirs.sif", chain[0].origin_sha256

    def given(path: Path | None, chain: Sequence[Definition] = chain) -> tuple[Definition, ...]:
        return give_base(chain, path, image, cache, said.append)

    with pytest.raises(BadInputError, match="was not built on a file"):
        given(file, (replace(chain[0], origin=None, origin_sha256=None), *chain[1:]))
    with pytest.raises(BadInputError, match=rf"was built on {file} \(sha256 {digest}\), .*--base FILE"):
        given(None)
    assert given(file) == chain
    other = file.rename(tmp_path / "moved.sif")
    moved = given(other)
    check_definition(moved[0])
    assert (moved[0].origin, moved[1:]) == (other, chain[1:])
    assert f"From: {other}\n" in moved[0].text
    other.write_text("another")
    with pytest.raises(BadInputError, match=rf"its sha256 is {file_sha256(other)}, not {digest}"):
        given(other)
    for path, what in ((tmp_path, "it is a folder, not"), (file, "is not a file or folder")):
        with pytest.raises(BadInputError, match=what):
            given(path)
    folder = (replace(chain[0], origin_sha256=None), *chain[1:])
    said.clear()
    assert given(other, folder)[0].origin == other
    assert any("is not known" in line for line in said)


# --- the command


class Stand:
    """A stand-in for a way to build: a base holds the file that the test names, and nothing is run."""

    suffix = ".sqfs"

    def __init__(self) -> None:
        self.content = "one"
        self.files: Path | None = None
        """What else is in the base."""
        self.built: list[str] = []
        self.found: list[list[str]] = []
        """What each layer's script found of what an earlier one kept."""

    def base(self, step: LayerBuild, target: Path, _store: object = None) -> None:
        self.built.append(step.definition.name)
        root = step.folder / "root"
        root.mkdir()
        if self.files is not None:
            shutil.copytree(self.files, root, symlinks=True, dirs_exist_ok=True)
        (root / "content").write_text(self.content)
        os.utime(root / "content", (0, 0))
        os.utime(root, (0, 0))
        front = sif_writer.Front(step.definition.text, {})
        squashed(root, target, offset=front.size_bytes)
        sif_writer.write_front(target, front, identity="base")

    def layer(self, step: LayerBuild, below: Sequence[Path], target: Path) -> None:
        del below
        self.built.append(step.definition.name)
        self.found.append([name for name, _ in kept_files(step.kept)])
        step.kept.mkdir(parents=True, exist_ok=True)
        (step.kept / "wheel").write_text("compiled")
        root = step.folder / "root"
        root.mkdir()
        squashed(root, target)


@pytest.fixture
def stand(monkeypatch: pytest.MonkeyPatch, clean_home: Path) -> Stand:
    del clean_home
    machine = BuildHost(ENGINE, False, False, False, None, Path("/usr/bin/unsquashfs"), None, None, ())
    stand = Stand()
    for module in ("build.choice", "cli.image_build", "cli.rebuild"):
        monkeypatch.setattr(f"lumiimg.{module}.host_for_builds", lambda *_: machine)
    monkeypatch.setattr(builder, "new_strategy", lambda *_: stand)
    return stand


def build(chain: Sequence[Definition], output: Path, cache: Path, stand: Stand, **changes: Any) -> bool:
    """Build as `lumiimg build` does; whether something was written."""
    del stand
    plan = ImageBuild(
        chain=chain,
        output=output,
        machine=choice.host_for_builds({}),
        way="sandbox",
        documents={PLAN: b"{}"},
        environment=dict(os.environ),
        cache=cache,
        downloads=Store(cache / "sources", Http(), Mirrors({})),
        **{"node": None, "progress": Progress(), **changes},
    )
    return build_image(plan).is_new


def without_source(chain: Sequence[Definition]) -> tuple[Definition, Definition]:
    base, top = chain
    return base, replace(top, files=top.files[:1], sections=replace(top.sections, files=top.sections.files[:1]))


def rebuild(image: Path, output: Path, *words: str | Path) -> int:
    return main(["rebuild", str(image), "-o", str(output), "--strategy", "sandbox", *map(str, words)])


@pytest.fixture
def image(chain: tuple[Definition, ...], stand: Stand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    cache = tmp_path / "cache"
    monkeypatch.setenv("LUMIIMG_CACHE", str(cache))
    assert build(without_source(chain), tmp_path / "image.sif", cache, stand)
    return tmp_path / "image.sif"


def test_an_image_carries_what_it_wants_of_the_machine_and_a_label_that_names_it(
    stand: Stand, chain: tuple[Definition, ...], tmp_path: Path
) -> None:
    stand.files = fabric_builder.image(tmp_path / "files")
    labels = stand.files / ".singularity.d/labels.json"
    labels.write_text('{"a": "b"}')
    node = read_snapshot(fabric_builder.snapshot(fabric_builder.host(tmp_path / "host")))
    image, cache = tmp_path / "image.sif", tmp_path / "cache"
    assert build(chain[:1], image, cache, stand)
    assert not build(chain[:1], image, cache, stand)
    with open_image(image) as opened:
        settled = read_manifest(opened.root)
        assert opened.labels == {"a": "b", "lumiimg.bind-manifest": "/.lumiimg/bind-manifest.json"}
        assert (
            opened.root.stat("/.singularity.d").permissions
            == stand.files.joinpath(".singularity.d").stat().st_mode & 0o777
        )
    assert settled is not None
    assert settled.machine == ""
    # for a node it is another one: another image of the same layers
    assert build(chain[:1], image, cache, stand, node=node, replaces=True)
    with open_image(image) as opened:
        assert opened.root.read_bytes(MANIFEST_PATH, 1 << 20) == to_text(make_manifest(opened, node)).encode()
    assert stand.built == [chain[0].name]


def test_a_fresh_build_has_its_base_again_and_what_is_above_it_only_where_it_came_out_differently(
    image: Path, stand: Stand, chain: tuple[Definition, ...], tmp_path: Path
) -> None:
    cache, alone = tmp_path / "cache", without_source(chain)
    stand.built.clear()
    assert not build(alone, image, cache, stand)
    assert build(alone, image, cache, stand, fresh=True)
    assert stand.built == [chain[0].name], "its base came to the same"
    stand.content = "another day's"
    assert build(alone, image, cache, stand, fresh=True)
    assert stand.built == ["01-a", "01-a", "02-b"]


@pytest.mark.threat
def test_each_build_says_where_its_cache_is_open_to_others(
    chain: tuple[Definition, ...], stand: Stand, tmp_path: Path
) -> None:
    class Noted(Progress):
        said: ClassVar[list[str]] = []

        def notice(self, text: str) -> None:
            self.said.append(text)

    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)
    assert build(chain[:1], tmp_path / "one.sif", cache, stand, progress=Noted())
    assert Noted.said == []
    cache.chmod(0o770)
    for name in ("two.sif", "three.sif"):
        assert build(chain[:1], tmp_path / name, cache, stand, progress=Noted())
    assert (
        Noted.said == [f"the cache {cache} can be written by others: whoever can write to it decides what is built"] * 2
    )


@pytest.mark.threat
def test_the_log_of_a_build_has_no_secret_of_its_environment(
    chain: tuple[Definition, ...], stand: Stand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://me:canary-of-a-proxy@proxy.test:3128")
    monkeypatch.setenv("SERVICE_TOKEN", "canary-of-a-token")
    base = stand.base

    def tells(step: LayerBuild, target: Path, _store: object) -> None:
        step.log.write(b"by canary-of-a-proxy, with canary-of-a-token and hf_" + b"aB3" * 10 + b"\n")
        base(step, target)

    monkeypatch.setattr(stand, "base", tells)
    assert build(chain[:1], tmp_path / "image.sif", tmp_path / "cache", stand)
    assert (tmp_path / "image.sif.log").read_text().count("[hidden]") == 3
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or b"canary-of" not in path.read_bytes(), path


def test_an_image_is_not_built_over_itself(image: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = image.read_bytes()
    (tmp_path / "link.sif").symlink_to(image)
    (tmp_path / "hard.sif").hardlink_to(image)
    (tmp_path / "new.sif.log").hardlink_to(image)
    for name in ("image.sif", "link.sif", "hard.sif", "new.sif"):
        assert rebuild(image, tmp_path / name, "--force", "--fresh") == ExitCode.BAD_INPUT
        assert f"is {image} itself" in capsys.readouterr().err
    assert rebuild(image, tmp_path / "x.sif", "--base", tmp_path / "x.sif") == ExitCode.BAD_INPUT
    assert image.read_bytes() == before


def test_fresh_builds_whatever_is_there_and_tells_by_its_exit_code(image: Path, stand: Stand, tmp_path: Path) -> None:
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
    image: Path, stand: Stand, tmp_path: Path, chain: tuple[Definition, ...]
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
    assert len(list(cache.entries())) == len(chain), "its layers are kept"


# --- show


DOCUMENTS = [
    b'{"base": {"agent": ["localimage"]}}',
    b'{"base": [1]}',
    b'{"layers": "abc"}',
    b'{"layers": [{"sources": {"a": 1}, "name": ["x"], "version": {"y": 1}}], "lumiimg": [1], "fabric": {}}',
    b'{"layers": [' + b",".join([b"{}"] * 20_000) + b"]}",
    b'{"a": ' + b"[" * 900 + b"]" * 900 + b"}",
    b'{"a": NaN}',
    b'{"lumiimg": "\\ud800", "\\ud800": 1}',
    b'{"lumiimg": "\\u001b[2J"}',
    b'{"lumiimg": "' + b"x" * 1_000_000 + b'"}',
]
BILLS = [
    b"[]",
    b'{"components": {"purl": 5}}',
    b'{"components": [{"purl": ["x"]}, {"purl": "pkg:deb/x"}]}',
    b'{"components": ' + b"[" * 900 + b"]" * 900 + b"}",
]


def test_what_an_image_says_is_shown_or_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "root").mkdir()
    for plan, bill in [*((plan, b"{}") for plan in DOCUMENTS), *((b"{}", bill) for bill in BILLS)]:
        image = made_sif(tmp_path / "root", tmp_path / "x.sif", plan, bill)
        for words in ([], ["--json"]):
            code = main(["show", str(image), *words])
            out, error = capsys.readouterr()
            assert code in {ExitCode.GOOD, ExitCode.BAD_INPUT}, plan[:99]
            assert code == ExitCode.GOOD or error.count("\n") == 1, plan[:99]
            out.encode()
            assert words or (len(out) < 10_000 and "\x1b" not in out), plan[:99]
            assert not (words and code == ExitCode.GOOD) or json.loads(out)["plan"] == json.loads(plan)


# -- the options that it was built with, to be proposed again --


def says(tmp_path: Path, words: object) -> tuple[str, ...]:
    root = tmp_path / "root"
    root.mkdir(exist_ok=True)
    return asked_for(made_sif(root, tmp_path / "asked.sif", json.dumps({"request": words}).encode()))


def test_what_an_image_was_asked_for_is_proposed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own layers").mkdir()
    (tmp_path / "one.tar").write_text("")
    request = Request(
        "debian-13",
        ("netprobe",),
        {("netprobe", "PREFIX"): "/a b"},
        sources={"one": "one.tar"},
        site="lumi",
        mirrors=("https://a=https://b",),
        layers=(Path("own layers"),),
    )
    words = shlex.split(options_of(replace(request, mirrors=())))
    assert says(tmp_path, words) == tuple(words)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes a link of somebody else's")
def test_a_file_of_ones_own_behind_a_link_of_somebody_elses_is_not_proposed(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    link = tmp_path / "link"
    link.symlink_to("own")
    words = ["--base", "debian-13", "--layers", str(link)]
    assert says(tmp_path, words) == tuple(words)
    os.lchown(link, 12345, 12345)
    assert says(tmp_path, words) == ()


OF_STRANGERS: tuple[object, ...] = (
    ["--base", "docker://somebody/else"],
    ["--base", "/etc/passwd-of-nobody"],
    ["--base", "debian-13", "--layers", "/"],
    ["--base", "debian-13", "--source", "one=https://somebody.test/one.tar"],
    ["--base", "debian-13", "--mirror", "https://a=https://somebody.test"],
    ["--base", "debian-13", "-r", "nowhere.txt"],
    ["--base", "debian-13", "--add", "own-packages", "--add", "pip:evil"],
    ["--base", "debian-13", "--add", "netprobe @ https://somebody.test/x"],
    ["--base", "debian-13", "--arg", "netprobe.FROM=https://somebody.test"],
    ["--base", "debian-13", "--output", "/etc/passwd"],
    ["--add", "x"] * 200,
    None,
)


def test_what_a_stranger_could_have_written_there_is_not_proposed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 12345)  # whose none of the files is
    assert [words for words in OF_STRANGERS if says(tmp_path, words) != ()] == []
