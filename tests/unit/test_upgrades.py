"""Files of an earlier lumiimg can be read; those of a newer one are refused in one line and not changed.

docs/upgrading.md promises this; `python -m tests.written` writes the files of each release.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from lumiimg import __version__
from lumiimg.build import provenance
from lumiimg.build.cache import CacheKey, LayerCache
from lumiimg.build.provenance import SBOM, read_carried
from lumiimg.cli.main import main
from lumiimg.core.errors import ExitCode
from lumiimg.host.snapshot import read_snapshot
from tests.shared import fabric_builder
from tests.shared.sif_builder import made_sif
from tests.written import BELOW, DATA, WRITTEN

Capture = pytest.CaptureFixture[str]
VERSIONS = sorted(path.name for path in WRITTEN.iterdir())


@pytest.fixture(params=VERSIONS)
def written(request: pytest.FixtureRequest, tmp_path: Path, clean_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the files of that version, to be modified."""
    del clean_home
    target: Path = tmp_path / "written"
    shutil.copytree(WRITTEN / request.param, target)
    monkeypatch.chdir(target)
    monkeypatch.setenv("LUMIIMG_CACHE", str(target / "cache"))
    return target


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def changed(path: Path, **values: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def refused(capsys: Capture, words: list[str], text: str) -> None:
    """Assert that a command ends with 2 and one line."""
    capsys.readouterr()
    assert main(words) == ExitCode.BAD_INPUT
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert re.search(text, error), error


# -- locks --

MIRROR = ("--mirror", "pypi=https://h.test/pypi/simple")


@pytest.mark.usefixtures("written")
def test_a_lock_is_built(capsys: Capture) -> None:
    assert __version__ in VERSIONS, "python -m tests.written"
    assert main(["build", "--locked", "--dry-run", "--layers", "layers", *MIRROR, "--json"]) == ExitCode.GOOD
    plan = json.loads(capsys.readouterr().out)
    assert "snake" in json.dumps(plan)


def test_a_newer_lock_is_refused_and_not_written_over(written: Path, capsys: Capture) -> None:
    text = (written / "lumiimg.lock").read_text().replace("format = 3", "format = 9").replace("0.1.0", "9.0.0")
    request = ["--base", "box", "--layers", "layers"]
    newer = r"has format 9, written by lumiimg 9\.0\.0; this one reads 3; use that lumiimg, or write it again"
    for name in ("lumiimg.lock", "mine.toml"):
        (written / name).write_text(text)
        refused(capsys, ["build", "--locked", "--lock", name, "--dry-run", "--layers", "layers"], newer)
        refused(capsys, ["lock", "-o", name, *request], "has format 9, but this lumiimg writes 3; it would be lost")
        refused(capsys, ["build", "--lock", name, *request, "-o", "x.sif"], "it would be lost")
        assert (written / name).read_text() == text


# -- snapshots of nodes --


def test_a_snapshot_is_read_and_a_newer_one_is_refused_unless_only_keys_have_come(
    written: Path, capsys: Capture
) -> None:
    assert read_snapshot(written / "host.json").host == "nid005000"
    changed(written / "host.json", key_of_later={"a": 1})
    assert read_snapshot(written / "host.json").host == "nid005000"
    changed(written / "host.json", schema=9)
    words = ["drift", "host.json", "host.json", "--image", "x"]
    refused(capsys, words, r"was written by a newer lumiimg \(schema 9, this one reads 1\)")


# -- caches --


def test_layers_of_a_cache_are_found_and_are_whole(written: Path, capsys: Capture) -> None:
    cache = LayerCache(written / "cache")
    found = cache.find(CacheKey({"format": "data.sqfs", "definition": "Bootstrap: docker\n", "content": BELOW}))
    assert found is not None
    assert found.data.read_bytes() == DATA
    assert {entry.layers for entry in cache.entries()} == {("tool",)}
    assert main(["cache", "verify"]) == ExitCode.GOOD
    assert "2 layers" in capsys.readouterr().out


def test_a_cache_of_a_newer_lumiimg_is_passed_over_and_left_as_it_is(written: Path, capsys: Capture) -> None:
    for entry in written.glob("cache/layers/*/entry.json"):
        changed(entry, format=9, of_later=[1])
    before = contents(written / "cache")
    for words in (["ls"], ["verify"], ["prune"], ["prune", "--keep", "0"]):
        assert main(["cache", *words]) == ExitCode.GOOD
        assert "skipped, as a newer lumiimg wrote them: 2 layers" in capsys.readouterr().err
    assert list(LayerCache(written / "cache").entries()) == []
    assert contents(written / "cache") == before


# -- images --


def test_an_image_says_how_it_was_built_and_what_its_bill_does_not_list(
    written: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["show", "./image"]) == ExitCode.GOOD
    shown = capsys.readouterr().out
    assert "built by lumiimg " in shown
    assert "layer  tool" in shown
    assert "not known" not in shown
    plan, carried = read_carried(written / "image", written / "scratch")
    assert [one.name for one in plan.stack] == ["box", "tool"]
    assert contents(carried.layer("tool").folder) == contents(written / "layers/tool")
    properties = [{"name": "lumiimg:incomplete", "value": "packages of rpm are not listed"}]
    bill = {"metadata": {"properties": properties}, "components": []}
    read = provenance.read_document
    monkeypatch.setattr(provenance, "read_document", lambda image, name: bill if name == SBOM else read(image, name))
    assert main(["show", "./image"]) == ExitCode.GOOD
    assert "not known  packages of rpm are not listed" in capsys.readouterr().out


def test_an_image_of_another_format_is_refused_by_name_and_stays(
    written: Path, tmp_path: Path, capsys: Capture
) -> None:
    (tmp_path / "root").mkdir()
    for number in (1, 9):
        plan = json.dumps({"format": number, "lumiimg": "x.y", "layers": 7}).encode()
        image = made_sif(tmp_path / "root", written / "other.sif", plan)
        digest = hashlib.sha256(image.read_bytes()).hexdigest()
        expected = (
            rf"has format {number}, written by lumiimg x\.y; this one reads 3; use that lumiimg, or build it again"
        )
        refused(capsys, ["show", "other.sif"], expected)
        refused(capsys, ["rebuild", "other.sif", "-o", "x.sif"], expected)
        assert hashlib.sha256(image.read_bytes()).hexdigest() == digest


# -- modules --


def module(folder: Path, image: Path, *words: str) -> list[str]:
    return ["module", str(image), "-o", str(folder), "--name", "mine/1", "--site", "generic", *words]


@pytest.fixture
def modules(written: Path) -> tuple[Path, Path, dict[str, Any]]:
    """The folder of modules, the record file of the module in it, and the content of that."""
    record = written / "modules/software/mine/1/lumiimg.json"
    return written / "modules", record, json.loads(record.read_text())


def test_a_module_is_replaced_by_one_for_the_same_image(
    modules: tuple[Path, Path, dict[str, Any]], tmp_path: Path, capsys: Capture
) -> None:
    folder, record, reported = modules
    image = fabric_builder.image(tmp_path / "root")
    record.write_text(json.dumps(reported | {"image": str(image)}))
    assert main(module(folder, image)) == ExitCode.GOOD
    refused(capsys, module(folder, fabric_builder.image(tmp_path / "another")), "is for another image")


def test_a_module_of_a_newer_lumiimg_stays_also_with_force(
    modules: tuple[Path, Path, dict[str, Any]], tmp_path: Path, capsys: Capture
) -> None:
    folder, record, reported = modules
    image = fabric_builder.image(tmp_path / "root")
    record.write_text(json.dumps(reported | {"schema": 9}))
    before = contents(folder)
    for words in ([], ["--force"]):
        refused(capsys, module(folder, image, *words), r"was written by a newer lumiimg \(schema 9\); use that lumiimg")
    assert contents(folder) == before
