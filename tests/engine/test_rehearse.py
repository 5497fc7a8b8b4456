"""`make rehearse`, for a good row and rows with one fault each, on a real Debian and this machine's package index."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from lumiimg.catalog.catalogue import open_catalogue
from lumiimg.catalog.folders import shipped_layers
from tools.rehearsal.archives import Archives
from tools.rehearsal.bases import Bases
from tools.rehearsal.compile import Compiler
from tools.rehearsal.headers import Headers
from tools.rehearsal.index import PackageIndex
from tools.rehearsal.program import Program
from tools.rehearsal.rows import Row, lock_of, rows
from tools.rehearsal.server import Shelves, serve
from tools.rehearsal.wheels import stand_in_wheels
from tools.rehearse import Outcome, Rehearsal, row_line, trials

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from lumiimg.catalog.catalogue import Catalogue

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("engine")]

PYTHON = "3.13"
LAYER = """\
kind = "layer"
summary = "A row with a fault"
source = "this test"
date = 2026-11-23
requires = ["python3"]
lib = ["packages.sh", "python.sh"]
[[release]]
version = "1.0"
date = 2026-11-21
wheels = [{wheels}]
indexes = []
requires = []
source = "this test"
"""
SCRIPT = 'layer=fault\n. "$LAYER_FILES/python.sh"\nuse_venv\ninstall_wheels\nfinish_python\n'
WHEELS = {
    "plain": '"six==1.17.0"',
    "contradicting": '"tokenizers==0.22.1", "transformers==4.30.2"',
    "failing-test": '"six==1.17.0"',
}


def write_layers(folder: Path) -> Path:
    for name, wheels in WHEELS.items():
        layer = folder / name
        shutil.copytree(shipped_layers() / "lightning", layer)
        (layer / "layer.toml").write_text(LAYER.format(wheels=wheels))
        (layer / "post.sh").write_text(SCRIPT)
        (layer / "test.sh").write_text("echo the planted failure; exit 1\n" if name == "failing-test" else "true\n")
    return folder


def row_of(catalogue: Catalogue, name: str) -> Row:
    """Return the row of a layer on the base of this test: the newest release that supports its Python."""
    (row, *_) = [row for row in rows(frozenset({name}), catalogue) if row.python == PYTHON]
    return row


@pytest.fixture(scope="module")
def outcomes(images: Path) -> Iterator[dict[str, Outcome]]:
    folder = images / "rehearse"
    for name in ("sources", "wheels", "bases", "images"):
        (folder / name).mkdir(parents=True)
    layers = write_layers(folder / "layers")
    catalogue = open_catalogue({"HOME": "/nonexistent"}, [layers])
    of_row = {name: row_of(catalogue, name) for name in WHEELS}
    chosen = [layer.release for row in of_row.values() for plan in row.plans for layer in lock_of(plan).layers]
    index = PackageIndex(folder / "sources")
    shelves = Shelves(wheels=stand_in_wheels(filter(None, chosen), index, folder / "wheels"))
    with serve(shelves) as address:
        archives = Archives(index, folder / "sources")
        program = Program(address, index.address, folder / "images", archives, layers=(layers,))
        bases = Bases(folder / "bases", folder / "bases", index, shelves.wheels)
        compiler = Compiler(archives, Headers(index, folder / "headers"), folder / "sources")
        rehearsal = Rehearsal(program, bases, shelves, compiler)
        yield {name: rehearsal.row(row) for name, row in of_row.items()}


def test_a_row_is_resolved_and_built_with_its_own_scripts(outcomes: dict[str, Outcome]) -> None:
    found = outcomes["plain"]
    assert (found.failed, found.resolved, found.rehearsed) == ("", True, "debian-13")
    assert [(trial.name, trial.reach) for trial in trials([found])] == [("plain", "resolved"), ("plain", "rehearsed")]


@pytest.mark.parametrize(
    ("name", "resolved", "why"),
    [("contradicting", False, "no solution"), ("failing-test", True, "the planted failure")],
)
def test_a_row_with_a_fault_is_reported_as_failed(
    outcomes: dict[str, Outcome], name: str, why: str, *, resolved: bool
) -> None:
    found = outcomes[name]
    assert why in found.failed
    assert f"layer {name}" in found.failed.replace("layer-", "layer "), "the message names it"
    assert (found.resolved, found.rehearsed) == (resolved, "")
    assert "FAILED" in row_line(found)
    assert len(row_line(found).splitlines()) == 1
    assert "rehearsed" not in [trial.reach for trial in trials([found])]
