"""`lumiimg lock`, `build --locked`, `diff`: everything is resolved, recorded, and built only from the record."""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lumiimg.catalog.catalogue import Catalogue
from lumiimg.cli.main import main
from lumiimg.core.errors import ExitCode, MissingHereError
from lumiimg.fetch.http import Http
from lumiimg.fetch.mirrors import parse_mirrors
from lumiimg.fetch.store import Sources, Store
from lumiimg.resolve.complete_lock import BaseDigest, complete_lock
from lumiimg.resolve.context import PlanContext
from lumiimg.resolve.lock_file import read_document
from lumiimg.resolve.planner import decide
from lumiimg.resolve.request import Request
from tests.shared.layer_builder import BOX, LAYER, MakeLayer
from tests.shared.oci_builder import digest
from tests.shared.world import World, serve, wheel

SNAKE = (
    LAYER
    + """\
[[release]]
version = "2.0"
wheels = ["snake==2.0+rocm6.4"]
indexes = ["https://download.pytorch.org/whl/rocm6.4"]
source = "the tests"

[[release]]
version = "1.0"
wheels = ["snake==1.0+rocm6.4"]
indexes = ["https://download.pytorch.org/whl/rocm6.4"]
source = "the tests"
"""
)
ARCHIVE = (
    LAYER
    + """\
[sources.tool]
url = "https://github.com/x/tool/archive/v1.tar.gz"
file = "tool.tar.gz"
key = "1"
source = "the tests"
"""
)
pytestmark = pytest.mark.usefixtures("clean_home", "impatient")


@pytest.fixture
def world() -> Iterator[World]:
    world = World(
        of_layers={"snake": {"2.0+rocm6.4": ("egg>=1", "shell; python_version < '3'"), "1.0+rocm6.4": ("egg",)}},
        wheels={
            "egg": {"1.0": (), "1.5": ("yolk<3",), "2.0": ("yolk>=2",)},
            "yolk": {"1.0": (), "2.5": (), "3.0": ()},
            "snake": {"9.9": ("nvidia-cublas",)},
        },
    )
    with serve(world):
        yield world


@pytest.fixture
def folder(layers: Path, make_layer: MakeLayer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    make_layer("box", BOX)
    make_layer("snake", SNAKE)
    make_layer("tool", ARCHIVE)
    monkeypatch.chdir(tmp_path)
    return layers


def lock(world: World, layers: Path, *words: str, code: int = ExitCode.GOOD) -> None:
    assert main(["lock", "--layers", str(layers), *world.mirrors, *words]) == code


def locked() -> dict[str, str]:
    """Return the versions of the Python distributions in the lock in the current folder."""
    wheels = (wheel for layer in read_document(Path("lumiimg.lock")).layer for wheel in layer.locked_wheels)
    return {wheel.name: wheel.version for wheel in wheels}


def test_a_lock_has_all_that_a_layer_requires_with_digests(world: World, folder: Path, tmp_path: Path) -> None:
    lock(world, folder, "--base", "box", "--add", "snake", "--add", "tool")
    text = (tmp_path / "lumiimg.lock").read_text()
    document = tomllib.loads(text)
    assert document["base"]["digest"].startswith("sha256:")
    assert locked() == {"snake": "2.0+rocm6.4", "egg": "2.0", "yolk": "3.0"}
    archive = b"archive of /archives/x/tool/archive/v1.tar.gz"
    (address,) = (source["url"] for source in tomllib.loads(ARCHIVE)["sources"].values())
    assert document["first-download"] == {address: digest(archive).removeprefix("sha256:")}
    (egg,) = [sha256 for url, sha256 in document["layer"][0]["wheels"].items() if "/egg-" in url]
    assert egg == digest(wheel("egg", "2.0", ("yolk>=2",))).removeprefix("sha256:")
    assert not any("/pypi/simple/snake" in path for path in world.asked), "a pinned name is asked for in its own index"
    # addresses are those without the mirror; the index that `pypi` names does not mirror a single address
    assert "https://download.pytorch.org/whl/" in text
    assert "127.0.0.1" not in text.replace(f"{world.url}/pypi/simple/", "")


def test_the_command_that_a_lock_proposes_builds_it_from_where_it_was_locked(
    world: World, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lock(world, folder, "--base", "box", "--add", "snake", "-o", "a lock.toml")
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("next:")]
    words = shlex.split(line)[2:]
    assert main([*words, "--dry-run"]) == ExitCode.GOOD
    assert "3 Python distributions, each with its sha256" in capsys.readouterr().out
    assert all(word in words for word in (*world.mirrors, str(folder), "a lock.toml"))
    for more, fault in (
        (["--site", "lumi"], "is for generic, not for lumi"),
        (["--add", "tool"], "--add and --locked"),
    ):
        assert main([*words, "--dry-run", *more]) == ExitCode.BAD_INPUT
        assert fault in capsys.readouterr().err


def test_what_is_locked_stays_until_an_upgrade_is_asked_for(
    world: World, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own, site = tmp_path / "mine.tar.gz", tmp_path / "here.toml"
    own.write_bytes(b"mine")
    site.write_text('title = "here"\nsource = "the tests"\ndate = 2026-11-21\n')
    words = ["--base", "box", "--add", "snake==1.0", "--add", "tool", "--source", f"tool={own}", "--site", str(site)]
    lock(world, folder, *words)
    before = tomllib.loads((tmp_path / "lumiimg.lock").read_text())
    assert before["site"] == "here"
    assert before["request"]["sources"] == {"tool": f"{own}#sha256={digest(b'mine').removeprefix('sha256:')}"}
    world.image, world.earlier = b"another image under the same tag", (world.image,)
    world.archives = b"replaced "
    world.wheels["egg"]["3.0"] = ()
    world.wheels["yolk"]["4.0"] = ()
    lock(world, folder)
    assert locked() == {"snake": "1.0+rocm6.4", "egg": "2.0", "yolk": "3.0"}
    assert "no difference" in capsys.readouterr().out
    lock(world, folder, "--upgrade", "yolk")
    after = tomllib.loads((tmp_path / "lumiimg.lock").read_text())
    assert locked() == {"snake": "1.0+rocm6.4", "egg": "2.0", "yolk": "4.0"}
    assert "python yolk of snake: 3.0" in capsys.readouterr().out
    for document in (before, after):
        document["layer"] = [{key: layer[key] for key in layer if key != "wheels"} for layer in document["layer"]]
    assert [after[key] for key in ("base", "layer", "site")] == [before[key] for key in ("base", "layer", "site")]
    lock(world, folder, "--upgrade", "all")
    assert locked() == {"snake": "1.0+rocm6.4", "egg": "3.0"}
    newest = tomllib.loads((tmp_path / "lumiimg.lock").read_text())
    assert newest["base"]["digest"] != before["base"]["digest"]
    for options, fault in (
        (["--upgrade", "ham"], "the lock has no 'ham'"),
        *(([option, value], f"{option} without --base") for option, value in (("--add", "tool"), ("--fabric", "host"))),
    ):
        lock(world, folder, *options, code=ExitCode.BAD_INPUT)
        assert fault in capsys.readouterr().err


def test_a_lock_that_cannot_be_read_is_replaced_by_a_whole_request(
    world: World, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "lumiimg.lock").write_text("rubbish")
    lock(world, folder, code=ExitCode.BAD_INPUT)
    capsys.readouterr()
    lock(world, folder, "--base", "box", "--add", "snake")
    assert "are ignored" in capsys.readouterr().err
    (folder / "snake" / "post.sh").write_text("echo another\n")
    lock(world, folder)
    assert locked()["snake"] == "2.0+rocm6.4"


def test_a_tag_stays_the_image_that_it_was_until_it_is_asked_for_again(
    world: World, folder: Path, tmp_path: Path
) -> None:
    mirrors, http = parse_mirrors({}, world.mirrors[1::2]), Http()
    sources = Sources(http, Store(tmp_path / "sources", http, mirrors), mirrors, tmp_path, lambda _: None)
    made = decide(Request("box"), PlanContext(Catalogue((folder,), ()), mirrors)).require_lock()

    def digest_of(base: BaseDigest, sources: Sources = sources) -> str | None:
        image = complete_lock(made, sources, base=base).bootstrap.image
        return image.digest if image else ""

    first = digest_of("noted")
    assert (first is not None, digest_of("open")) == (True, None)
    world.image, world.earlier = b"another image under the same tag", (world.image,)
    world.asked.clear()
    assert (digest_of("noted"), world.asked) == (first, [])
    second = digest_of("asked")
    assert second != first
    offline = replace(sources, web=Http(offline=True))
    assert digest_of("noted", offline) == second
    with pytest.raises(MissingHereError, match=r"the digest of the base is not known.*lumiimg lock"):
        digest_of("noted", replace(offline, cache=tmp_path / "empty"))


def definitions(layers: Path, world: World, folder: Path, *words: str) -> dict[str, bytes]:
    words = ("--layers", str(layers), *world.mirrors, "--definitions", str(folder), "--quiet", *words)
    assert main(["build", *words]) == ExitCode.GOOD
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_the_mirror_of_a_bases_packages_stays_where_the_lock_is_built(
    world: World, folder: Path, make_layer: MakeLayer, tmp_path: Path
) -> None:
    make_layer("mirrored", f'{BOX}mirror = "debian"\n')
    words = ("--mirror", "debian=http://archive.example/debian")
    first = definitions(folder, world, tmp_path / "one", *words, "--base", "mirrored", "--lock", "my.lock")
    assert b"export MIRROR=http://archive.example/debian\n" in first["flat.def"]
    assert definitions(folder, world, tmp_path / "two", *words, "--locked", "--lock", "my.lock") == first


def test_offline_builds_what_was_fetched_before(
    world: World, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lock(world, folder, "--base", "box", "--add", "snake")
    words = ["build", "--layers", str(folder), "--locked", "--offline", *world.mirrors, "--definitions", "defs"]
    world.asked.clear()
    assert main(words) == ExitCode.GOOD
    assert "sources cannot be reached from here" in capsys.readouterr().out
    assert (tmp_path / "defs/fetch.sh").is_file()
    assert world.asked == []
    definitions(folder, world, tmp_path / "one", "--locked")
    world.asked.clear()
    assert main([*words[:-1], "again"]) == ExitCode.GOOD
    assert world.asked == []
    assert not (tmp_path / "again/fetch.sh").exists()


def test_a_lock_that_was_changed_is_refused_in_one_line(
    world: World, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lock(world, folder, "--base", "box", "--add", "snake")
    file = tmp_path / "lumiimg.lock"
    text = file.read_text()
    capsys.readouterr()
    for old, new, fault in (
        ('release = "2.0"', 'release = "1.0"', "changed after it was written"),
        ("format = 3", "format = 2", "has format 2, written by lumiimg 0.1.0; this one reads 3; use that lumiimg, or"),
        ("format = 3\n", "", "'format' is missing"),
        ("format = 3\n", "format = \n", "is not a lock: it is not TOML"),
        ("format = 3\n", f"{'.'.join('a' * 10_000)} = 1\n", "a key of more than 8 parts"),
    ):
        assert old in text
        file.write_text(text.replace(old, new))
        assert main(["build", "--layers", str(folder), "--locked", "--dry-run"]) == ExitCode.BAD_INPUT
        error = capsys.readouterr().err
        assert fault in error
        assert error.count("\n") == 1
    file.write_text(text)
    assert main(["build", "--locked", "--dry-run"]) == ExitCode.BAD_INPUT
    assert "--layers DIR, with the folder that the lock was written with" in capsys.readouterr().err


@pytest.mark.threat
def test_a_requirement_with_an_address_of_its_own_is_refused_and_not_looked_up_by_name(
    world: World, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for version, where in (("4.0", "https://host.test/yolk-9-py3-none-any.whl"), ("5.0", "git+ssh://host.test/yolk")):
        world.wheels["egg"][version] = (f"yolk @ {where}",)
        world.asked.clear()
        lock(world, folder, "--base", "box", "--add", "snake", code=ExitCode.NO)
        message = capsys.readouterr().err
        assert f"`egg=={version}`" in message
        assert "`yolk` was included as a URL dependency" in message
        assert "Consider" not in message
        assert not [path for path in world.asked if "yolk" in path]
        assert not (tmp_path / "lumiimg.lock").exists()


def test_what_cannot_be_locked_is_one_line_with_the_layer_need_and_have_and_the_lock_stays(
    world: World, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lock(world, folder, "--base", "box", "--add", "tool")
    before = (tmp_path / "lumiimg.lock").read_bytes()
    world.wheels["ham"] = {"1.0": ("egg<2",)}
    world.uploaded = {"egg 2.0": "2026-11-22T00:00:00Z"}
    world.requirements = {"requirements/rocm.txt": "egg\n--extra-index-url https://h.test\n"}
    archive = ARCHIVE.removeprefix(LAYER).replace("/x/tool", "/vllm-project/tool")
    for toml, expected in (
        (
            f'{archive}requirements = ["requirements/rocm.txt"]\n',
            ["the layer tool, https://github.com/", "line 2 of requirements/rocm.txt: the option --extra-index-url"],
        ),
        (
            '[[release]]\nversion = "1"\nwheels = ["egg==2.0", "ham==1.0"]\nsource = "the tests"\n',
            [
                "ham depend on egg<2",
                "; the layer tool pins egg==2.0; the layer tool pins ham==1.0; ask for another release",
            ],
        ),
        (
            'packages = ["egg>=2"]\n',
            [
                "layer-tool",
                "egg>=2",
                "only egg<=1.5 is available",
                "; uploads after 2026-11-21 are excluded: use another date",
            ],
        ),
    ):
        (folder / "tool" / "layer.toml").write_text(LAYER + toml)
        capsys.readouterr()
        lock(world, folder, "--quiet", "--base", "box", "--add", "tool", code=ExitCode.NO)
        (line,) = capsys.readouterr().err.splitlines()
        assert [words for words in expected if words not in line] == [], line
        assert (tmp_path / "lumiimg.lock").read_bytes() == before


def test_the_date_of_the_newest_release_bounds_what_is_taken_and_another_is_stored_in_the_lock(
    world: World, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world.uploaded = {"egg 2.0": "2026-03-02T00:00:00Z", "snake 2.0+rocm6.4": "2026-06-01T00:00:00Z"}
    toml = SNAKE.replace('version = "2.0"', 'version = "2.0"\ndate = 2026-03-01', 1)
    (folder / "snake" / "layer.toml").write_text(toml)
    request = ("--base", "box", "--add", "snake")
    lock(world, folder, *request)
    assert locked() == {"snake": "2.0+rocm6.4", "egg": "1.5", "yolk": "2.5"}
    assert "as of 2026-03-01" in capsys.readouterr().err
    lock(world, folder, *request, "--exclude-newer", "2026-03-02", "--upgrade", "egg")
    assert locked()["egg"] == "2.0"
    lock(world, folder, "--upgrade", "egg")
    assert locked()["egg"] == "2.0"
    assert f"{read_document(Path('lumiimg.lock')).request.until}" == "2026-03-02"
    for option, value, fault in (
        ("--exclude-newer", "soon", "not a valid date: 'soon'"),
        ("--downloads", "17", "is not a valid number from 1 to 16"),
    ):
        with pytest.raises(SystemExit, match="2"):
            lock(world, folder, *request, option, value)
        assert fault in capsys.readouterr().err


@pytest.mark.threat
def test_a_lock_takes_no_other_files_place(
    world: World, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "image.def"
    mine.write_text("Bootstrap: docker\n")
    words = ["--layers", str(folder), *world.mirrors, "--base", "box"]
    assert main(["lock", *words, "-o", str(mine)]) == ExitCode.BAD_INPUT
    assert main(["build", *words, "--lock", str(mine), "--definitions", str(tmp_path / "d")]) == ExitCode.BAD_INPUT
    assert capsys.readouterr().err.count("is not a lock, and would be lost") == 2
    assert mine.read_text() == "Bootstrap: docker\n"
    lock(world, folder, "--base", "box", "-o", "other")
    lock(world, folder, "--base", "box", "--add", "tool", "-o", "other")
    assert main(["build", *words, "--dry-run", "--lock", "a.lock"]) == ExitCode.BAD_INPUT
    assert "lumiimg lock" in capsys.readouterr().err
    assert not (tmp_path / "a.lock").exists()
