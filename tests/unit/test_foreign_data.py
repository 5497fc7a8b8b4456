"""Foreign locks, layers, sites, snapshots and images are data: every text in them is made hostile, one at a time.

Each such file is refused in one line, or no part of it becomes a section, a command, or a path outside.
"""

from __future__ import annotations

import copy
import hashlib
import json
import random
import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest
import tomli_w

from lumiimg.build.provenance import carried_files, read_carried, write_folder
from lumiimg.catalog.catalogue import Catalogue, open_catalogue
from lumiimg.cli.main import main
from lumiimg.core.errors import ExitCode, LumiimgError
from lumiimg.definition.definition import BUILD_FOLDER
from lumiimg.definition.text import DefinitionError
from lumiimg.definition.writer import write_chain, write_flat
from lumiimg.fetch.mirrors import Mirrors, parse_mirrors
from lumiimg.resolve.context import PlanContext
from lumiimg.resolve.lock_check import lock_of
from lumiimg.resolve.lock_file import read_document, to_record
from lumiimg.resolve.planner import decide
from lumiimg.resolve.request import Request
from tests.shared import fabric_builder
from tests.shared.layer_builder import BASE, LAYER, SITE, MakeLayer
from tests.shared.programs import EVERYTHING
from tests.shared.sif_builder import made_sif
from tests.shared.world import World, serve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from lumiimg.definition.definition import Definition
    from lumiimg.resolve.lock import Lock

ZEROS = "0" * 64
_ALL = slice(None)
_PARTS = 10 if EVERYTHING else 1
"""Parts of an exhaustive test, each of which ends within five minutes even on a slow machine."""
WHOLE = (
    LAYER
    + f"""\
files = ["tool.c"]
has = {{ tool = "{{VERSION}}" }}
provides = ["thing"]
conflicts = ["enemy"]
[arguments.VERSION]
default = "2.0"
help = "which"
[arguments.NOTE]
default = "text"
help = "free"
[sources.src]
url = "https://x.test/{{VERSION}}.tar.gz"
file = "t-{{VERSION}}.tar.gz"
key = "{{VERSION}}"
source = "s"
[sources.src.sha256]
"2.0" = "{ZEROS}"
[environment.set]
A = "{{NOTE}}"
[environment.prepend]
B = "/opt/{{VERSION}}"
[[release]]
version = "2.0"
wheels = ["snake==2.0+rocm6.4"]
indexes = ["https://download.pytorch.org/whl/rocm6.4"]
source = "the tests"
[release.arguments]
NOTE = "of it"
[[trouble]]
given = ["python<3"]
outcome = "warning"
rule = "layers"
because = "it is old"
source = "the tests"
"""
)
BOX = BASE.replace("[[", 'provides = ["python3"]\nhas = { python = "3.12", glibc = "2.39" }\ninclude = ["gcc"]\n[[', 1)
SECTIONS = {"%files", "%environment", "%post -c /bin/bash", "%test", "%labels"}
MOST_CHARS = 8_000
"""Length limit of an error message: the offending text can be long, but the message must not."""
OBEYED = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e]")


@dataclass(frozen=True)
class Trap:
    """A file that hostile text would create, if anything obeyed it."""

    file: Path

    @property
    def values(self) -> list[str]:
        touch = f": >{self.file}"
        return [
            f"\n\n%pre\n    {touch}\n",
            f"x\n%setup\n{touch}\n",
            f"x\nBootstrap: localimage\nFrom: /x\n\n%pre\n{touch}",
            f"sha256:{ZEROS}\n%pre\n{touch}",
            f"$({touch})",
            f"`{touch}`",
            f"; {touch}; :",
            f"'; {touch}; :'",
            f'"; {touch}; :"',
            f"\\'; {touch} #",
            "../../../etc/passwd",
            "/etc/passwd",
            "--option",
            "{{ x }}",
            "%post",
            "\x1b[2J\x07",
            "a\rb\u2028c",
            "long " * 20_000,
            "",
        ]

    def is_left_alone_by(self, definitions: Sequence[Definition]) -> None:
        for text in (definition.text for definition in definitions):
            lines = text.splitlines()
            assert {line for line in lines if line.lstrip().startswith("%")} <= SECTIONS
            keys = [line.partition(":")[0] for line in lines[1 : lines.index("")]]
            assert keys in (["Bootstrap", "From"], ["Bootstrap", "OSVersion", "MirrorURL"])
            assert not OBEYED.search(text.replace("\t", ""))
        for path, target in (pair for definition in definitions for pair in definition.sections.files):
            assert target.startswith(f"{BUILD_FOLDER}/")
            assert ".." not in f"{path}{target}".split("/")
        exports = [
            line.strip()
            for definition in definitions
            for line in definition.text.splitlines()
            if line.lstrip().startswith("export ")
        ]
        script = "\n".join(line for line in exports if line != "export MAKEFLAGS")
        subprocess.run(["/bin/bash"], input=script, text=True, env={"PATH": "/usr/bin:/bin"}, check=True)
        assert not self.file.exists(), exports

    def is_left_alone_by_command(self, words: list[str], capsys: pytest.CaptureFixture[str], *, refused: bool) -> None:
        capsys.readouterr()
        code = main(words)
        shown = capsys.readouterr()
        assert not self.file.exists()
        assert len(shown.err) < MOST_CHARS
        assert not OBEYED.search(shown.out + shown.err)
        # a value of one line may begin one where a table is wrapped; these are behind a line's end
        assert not re.search(r"^\s*%(pre|setup)", shown.out + shown.err, re.MULTILINE)
        if refused:
            assert code == ExitCode.BAD_INPUT, shown
        if code == ExitCode.BAD_INPUT:
            faults = [line for line in shown.err.splitlines() if line.startswith("lumiimg: ")]
            assert len(faults) == 1, shown.err


@pytest.fixture
def trap(tmp_path: Path) -> Trap:
    return Trap(tmp_path / "ran")


def hostile(document: Any, values: Iterable[Any], count: int, part: slice = _ALL) -> Iterator[Any]:
    """Yield copies of a document with one text or key replaced by a hostile one: `count` of them, or a part of all."""
    values = list(values)
    cases = [
        (place, value)
        for place in _places(document)
        for value in values
        if place[-1] != "key" or isinstance(value, str)
    ]
    if not EVERYTHING:
        cases = random.Random(19).sample(cases, min(count, len(cases)))  # noqa: S311
    for place, value in cases[part]:
        changed = copy.deepcopy(document)
        at = changed
        for step in place[:-2]:
            at = at[step]
        if place[-1] == "key":
            at[value] = at.pop(place[-2])
        else:
            at[place[-2]] = value
        yield changed


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield (*path, key, "key")
            yield from _places(inner, (*path, key))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _places(inner, (*path, number))
    elif isinstance(value, str):
        yield (*path, "value")


def made(make: Callable[[], Sequence[Definition]]) -> tuple[Sequence[Definition], bool]:
    """Return the resulting definitions, and whether the input is refused as bad."""
    try:
        return make(), False
    except LumiimgError as error:
        assert "\n" not in str(error)  # noqa: PT017 - or it is taken
        return (), error.exit_code == ExitCode.BAD_INPUT


def written(lock: Lock) -> list[Definition]:
    return [*write_chain(lock), write_flat(lock)]


def of_whole(folder: Path) -> Lock:
    return decide(
        Request("box", ("whole",)), PlanContext(Catalogue((folder,), ()), parse_mirrors({}, []), "")
    ).require_lock()


def signed(body: str) -> str:
    """Return a lock with a matching digest, as a hostile author would add it."""
    return f'format = 3\nlumiimg = "0"\ndigest = "sha256:{hashlib.sha256(body.encode()).hexdigest()}"\n\n{body}'


def lock_of_whole(world: World, folder: Path) -> tuple[list[str], str]:
    """Write the lock of a request; return its options, and the text of the lock below its head."""
    options = ["--layers", str(folder), *world.mirrors]
    assert main(["lock", *options, "--base", "box", "--add", "whole"]) == ExitCode.GOOD
    return options, Path("lumiimg.lock").read_text().partition("\n\n")[2]


@pytest.fixture
def world() -> Iterator[World]:
    world = World(of_layers={"snake": {"2.0+rocm6.4": ("egg",)}}, wheels={"egg": {"1.0": ()}})
    with serve(world):
        yield world


@pytest.fixture
def folder(
    layers: Path, make_layer: MakeLayer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clean_home: Path
) -> Path:
    del clean_home
    make_layer("box", BOX)
    make_layer("whole", WHOLE, tool_c="int x;\n", test_sh="true\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LUMIIMG_ENGINE", "/nonexistent")
    return layers


@pytest.mark.threat
def test_no_text_of_a_lock_becomes_a_command(
    world: World, folder: Path, trap: Trap, capsys: pytest.CaptureFixture[str]
) -> None:
    options, good = lock_of_whole(world, folder)
    body = tomllib.loads(good)
    Path("lumiimg.lock").unlink()
    catalogue, mirrors = open_catalogue({"HOME": "/nonexistent"}, [folder]), parse_mirrors({}, world.mirrors[1::2])
    path, taken = Path("lumiimg.lock"), 0
    for document in hostile(body, trap.values, 12):
        text = signed(tomli_w.dumps(document))
        path.write_text(text)
        found, refused = made(lambda: written(lock_of(read_document(path), [catalogue], mirrors, "/bin", path)))
        trap.is_left_alone_by(found)
        taken += bool(found)
        words = ["build", *options, "--locked", "--trust-lock", "--dry-run"]
        trap.is_left_alone_by_command(words, capsys, refused=refused)
        trap.is_left_alone_by_command(["lock", *options, "--offline"], capsys, refused=False)
        Path("lumiimg.lock").unlink()
    assert taken


RULE, GIVEN = r"(?=\[\[rule\]\])", r"(?s)(\[request\].*?\n\n)(?=\[base\])"
ON_THIS_MACHINE = {
    "a section in the digest": ('digest = "sha256:[0-9a-f]+"', r'digest = "sha256:1\\n\\n%pre\\n    touch /x\\n"'),
    "a line of its own": ('because = "[^"]*"', r'because = "x\\nlumiimg: all is well"'),
    "no release": ('release = "2.0"', 'release = ""'),
    "a base from elsewhere": ('from = "busybox"', 'from = "evil.test/busybox"'),
    "a section in the name": ('from = "busybox"', r'from = "busybox\\n\\n%pre\\n    touch /x\\n"'),
    "a script of debootstrap": (
        '(?s)name = "box"\nlayer = "sha256:[0-9a-f]+"(.*?)agent = "docker"\nfrom = "busybox"\ndigest = "[^"]+"',
        'name = "x"\\1agent = "debootstrap"\nfrom = "/tmp/suite"\n[base.image]',
    ),
    "a program of another agent": ('agent = "docker"', 'agent = "yum"'),
    "a source of a name outside": (RULE, f'[first-download]\n"../x" = "{"1" * 64}"\n\n'),
    "a section in an address": (GIVEN, r'\1[request.sources]\nsrc = "https://x.test/x\\n%pre\\ntouch /x"\n\n'),
    "a wheel outside": ('/snake-2.0[^"]*whl"', '/..%2f..%2fx.whl"'),
}


@pytest.mark.threat
def test_a_lock_runs_nothing_on_this_machine_in_any_verb(
    world: World, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options, good = lock_of_whole(world, folder)
    locked_ = ["build", *options, "--locked", "--trust-lock"]
    ways = [locked_, [*locked_, "--dry-run"], [*locked_, "--definitions", "defs"]]
    for number, (case, (old, new)) in enumerate(ON_THIS_MACHINE.items()):
        body, count = re.subn(old, new, good, count=1)
        assert count, case
        Path("lumiimg.lock").write_text(signed(body))
        for words in ways if EVERYTHING else [ways[number % len(ways)]]:
            capsys.readouterr()
            assert main(words) == ExitCode.BAD_INPUT, (case, words)
            message = capsys.readouterr().err
            assert message.count("\n") == 1, case
            assert message.startswith("lumiimg: lumiimg.lock: "), case
            assert not Path("defs").exists(), case
        # a lock that is not refused is resolved again, from the catalogue
        if (EVERYTHING or number % 4 == 0) and main(["lock", *options]) != ExitCode.BAD_INPUT:
            assert Path("lumiimg.lock").read_text().partition("\n\n")[2] == good, case


BASE_, WHEEL, EVIL = "\n[base]\n", '"https://download.pytorch.org/whl', "https://evil.test/"
SNAKE = "Python package snake 2.0+rocm6.4 of whole from"
ONES = "1" * 64


def given(source: str) -> str:
    return f'\n[request.sources]\nsrc = "{source}"\n\n[base]\n'


ELSEWHERE = {
    "a source": (BASE_, given(f"{EVIL}x"), "source src of whole from https://evil.t"),
    "its digest": (
        BASE_,
        given(f"https://x.test/2.0.tar.gz#sha256={ONES}"),
        "source src of whole from https://x.test/2.0.t",
    ),
    "a file of mine": (BASE_, given(f"/etc/passwd#sha256={ONES}"), "source src of whole from /etc/passwd"),
    "a wheel": (WHEEL, f'"{EVIL}', f"{SNAKE} {EVIL}"),
    "a release that is not pinned": (
        "/snake-2.0+rocm6.4-py3",
        "/snake-1.0-py3",
        "Python package snake 1.0 of whole from ",
    ),
}


@pytest.mark.threat
def test_what_a_lock_has_from_elsewhere_is_refused_or_listed_first(
    world: World, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options, body = lock_of_whole(world, folder)
    words = ["build", *options, "--locked", "--dry-run", "--quiet"]
    capsys.readouterr()
    assert main(words) == ExitCode.GOOD
    assert capsys.readouterr().err == ""
    for case, (old, new, named) in ELSEWHERE.items():
        assert old in body, case
        Path("lumiimg.lock").write_text(signed(body.replace(old, new, 1)))
        assert main(words) == ExitCode.BAD_INPUT, case
        refused = capsys.readouterr().err
        assert named in refused, case
        assert refused.count("\n") == 1, case
        assert main([*words, "--trust-lock"]) == ExitCode.GOOD, case
        assert capsys.readouterr().err.startswith(f"lumiimg: not from the catalogue, but from lumiimg.lock: {named}"), (
            case
        )


@pytest.mark.threat
def test_a_wheel_of_everybodys_index_is_from_the_index_whatever_index_is_asked_here(
    world: World, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options, body = lock_of_whole(world, folder)
    words = ["build", *options, "--locked", "--dry-run", "--quiet"]
    index = import_module("pip._internal.models.index").PyPI
    for host in (index.netloc, index.file_storage_domain):
        Path("lumiimg.lock").write_text(signed(body.replace(f"{world.url}/pypi/simple/", f"https://{host}/", 1)))
        assert main(words) == ExitCode.GOOD, host
    capsys.readouterr()
    monkeypatch.setattr(sys, "executable", "/bin/false")
    monkeypatch.setenv("PATH", "/nowhere")
    assert main(words) == ExitCode.BAD_INPUT, "no pip says which index is everybody's"
    assert f"Python package egg 1.0 of whole from https://{index.file_storage_domain}/" in capsys.readouterr().err


@pytest.mark.threat
def test_a_base_of_a_lock_that_is_not_the_catalogues_is_refused_or_listed_first(
    world: World, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    del world
    (folder / "theirs/etc").mkdir(parents=True)
    (folder / "theirs/etc/os-release").write_text("ID=x\n")
    assert main(["lock", "--base", str(folder / "theirs")]) == ExitCode.GOOD
    shown = capsys.readouterr().out
    assert "not from the catalogue: base localimage" in " ".join(shown.split())
    assert "lumiimg build --locked --trust-lock -o image.sif" in shown
    assert main(["build", "--locked", "--dry-run"]) == ExitCode.BAD_INPUT
    assert f"base localimage {folder}/theirs (without a digest)" in capsys.readouterr().err
    assert main(["build", "--locked", "--dry-run", "--trust-lock"]) == ExitCode.GOOD
    assert f"base localimage {folder}/theirs (without a digest)" in capsys.readouterr().err
    assert main(["build", "--base", "box", "--trust-lock", "--dry-run"]) == ExitCode.BAD_INPUT


@pytest.mark.threat
def test_a_digest_that_nobody_has_verified_gets_into_no_other_lock(
    world: World, folder: Path, make_layer: MakeLayer, capsys: pytest.CaptureFixture[str]
) -> None:
    make_layer(
        "tool",
        f'{LAYER}[sources.tool]\nurl = "https://github.com/x/tool"\nfile = "t.tar.gz"\nkey = "1"\nsource = "s"\n',
    )
    options = ["--layers", str(folder), *world.mirrors]
    assert main(["lock", *options, "--base", "box", "--add", "tool"]) == ExitCode.GOOD
    good = Path("lumiimg.lock").read_text()
    body = good.partition("\n\n")[2]
    (of_base,) = re.findall(r'^digest = "(.*)"$', body, re.MULTILINE)
    (of_tool,) = re.findall(r'^"https://github.com/x/tool" = "(.*)"$', body, re.MULTILINE)
    for digest_, other, expected in (
        (of_base, f"sha256:{ZEROS}", "no such image"),
        (of_tool, ZEROS, "has the wrong digest"),
    ):
        bad = signed(body.replace(digest_, other))
        Path("lumiimg.lock").write_text(bad)
        for words, code in (([], ExitCode.NO), (["--offline"], ExitCode.MISSING_HERE)):
            capsys.readouterr()
            assert main(["lock", *options, *words]) == code
            message = capsys.readouterr().err
            assert words or (expected in message and "lumiimg lock --upgrade all" in message)
            assert Path("lumiimg.lock").read_text() == bad
    Path("lumiimg.lock").write_text(good)
    assert main(["lock", *options]) == ExitCode.GOOD
    assert Path("lumiimg.lock").read_text() == good


@pytest.mark.threat
def test_no_text_of_a_layer_becomes_a_command(folder: Path, trap: Trap, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("box", "whole"):
        file = folder / name / "layer.toml"
        document = tomllib.loads(file.read_text())
        for changed in hostile(document, trap.values, 6):
            file.write_text(tomli_w.dumps(changed))
            found, refused = made(lambda: written(of_whole(folder)))
            trap.is_left_alone_by(found)
            words = ["--layers", str(folder), "--base", "box", "--add", "whole"]
            for verb in (["build", "--dry-run"], ["lock", "--offline"], ["explain"]):
                trap.is_left_alone_by_command([*verb, *words], capsys, refused=refused)
            trap.is_left_alone_by_command(["build", "--why", "whole", *words], capsys, refused=False)  # needs an engine
            file.write_text(tomli_w.dumps(document))


@pytest.mark.threat
def test_no_text_of_a_site_becomes_a_command(folder: Path, trap: Trap, capsys: pytest.CaptureFixture[str]) -> None:
    more = (
        'domain = "x.test"\n[[bind]]\npath = "/opt/x"\nreason = "b"\nsource = "s"\n'
        '[[environment]]\nname = "A"\nvalue = "b"\nnodes = "any"\nbecause = "c"\nsource = "s"\n'
    )
    document = tomllib.loads(SITE.replace("[driver]", f'scheduler = "Slurm"\n{more.partition("[")[0]}[driver]', 1))
    document |= tomllib.loads(more)
    site = folder.parent / "there.toml"
    image = fabric_builder.image(folder.parent / "image")
    words = ["--layers", str(folder), "--base", "box", "--add", "whole", "--site", str(site), "--fabric", "none"]
    site.write_text(tomli_w.dumps(document))
    assert main(["build", "--dry-run", *words]) == ExitCode.GOOD, capsys.readouterr().err
    for changed in hostile(document, trap.values, 12):
        site.write_text(tomli_w.dumps(changed))
        trap.is_left_alone_by_command(["build", "--dry-run", *words], capsys, refused=False)
        trap.is_left_alone_by_command(["explain", *words], capsys, refused=False)
        Path("job.sh").unlink(missing_ok=True)
        if main(["job", str(image), "--site", str(site), "-o", "job.sh", "--", "true"]) == ExitCode.GOOD:
            subprocess.run(["/bin/bash", "job.sh"], env={"PATH": "/nonexistent"}, check=False, capture_output=True)
            assert not trap.file.exists()


@pytest.mark.threat
@pytest.mark.parametrize("part", range(_PARTS))
def test_no_text_of_a_snapshot_becomes_a_command(
    part: int, tmp_path: Path, clean_home: Path, trap: Trap, capsys: pytest.CaptureFixture[str]
) -> None:
    del clean_home
    image = fabric_builder.image(tmp_path / "image")
    node = fabric_builder.snapshot(fabric_builder.host(tmp_path / "host"))
    document = json.loads(node.read_text())
    for changed in hostile(document, trap.values, 12, slice(part, None, _PARTS)):
        node.write_text(json.dumps(changed))
        trap.is_left_alone_by_command(["explain", str(image), "--host", str(node)], capsys, refused=False)
        main(["bind", str(image), "--host", str(node)])
        exports = capsys.readouterr().out
        subprocess.run(["/bin/bash"], input=exports.encode(), env={"PATH": "/nonexistent"}, check=False)
        assert not trap.file.exists()


@pytest.mark.threat
def test_no_text_of_an_image_s_record_becomes_a_command(world: World, folder: Path, trap: Trap, tmp_path: Path) -> None:
    lock_of_whole(world, folder)
    catalogues = [open_catalogue({"HOME": "/nonexistent"}, [folder])]
    mirrors, path = parse_mirrors({}, world.mirrors[1::2]), Path("lumiimg.lock")
    lock = lock_of(read_document(path), catalogues, mirrors, "/bin", path)
    taken = 0
    for number, changed in enumerate(hostile(json.loads(to_record(lock)), trap.values, 20)):
        root = tmp_path / f"{number}"
        write_folder(root, carried_files(lock), {})
        image = made_sif(root, tmp_path / f"{number}.sif", json.dumps(changed).encode())
        made_of = partial(rebuilt, image, catalogues, mirrors)
        found, refused = made(made_of)
        assert refused or found
        trap.is_left_alone_by(found)
        taken += bool(found)
    assert taken


def rebuilt(image: Path, catalogues: list[Catalogue], mirrors: Mirrors) -> list[Definition]:
    with TemporaryDirectory() as folder:
        plan, carried = read_carried(image, Path(folder))
        return written(lock_of(plan, [*catalogues, carried], mirrors, "/bin", image))


@pytest.mark.threat
def test_no_header_of_a_definition_is_more_than_one_line(folder: Path) -> None:
    lock = of_whole(folder)
    bootstrap = lock.bootstrap
    assert bootstrap.image is not None
    for changed in (
        replace(bootstrap, image=replace(bootstrap.image, digest=f"sha256:{ZEROS}\n\n%pre\n  true\n")),
        replace(bootstrap, image=None, origin="x\n%setup\ntouch /x"),
        replace(bootstrap, image=None, origin="{{ x }}"),
        replace(bootstrap, image=None, agent="debootstrap", origin="trixie", mirror_url="https://x.test\nInclude: x"),
    ):
        for write in (write_chain, write_flat):
            with pytest.raises(DefinitionError):
                write(replace(lock, bootstrap=changed))
