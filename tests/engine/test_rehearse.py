"""`make rehearse`, for a row that passes and for rows with a fault each, on a real Debian and the package index of this machine.

`make test-all` takes rows with torch, too, on a Debian that claims to have ROCm: torch and its triton are stand-ins.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from lumiimg.catalog.catalogue import open_catalogue
from lumiimg.catalog.folders import shipped_layers
from tests.shared.programs import EVERYTHING
from tools.rehearsal.archives import Archives
from tools.rehearsal.bases import Bases
from tools.rehearsal.index import PackageIndex
from tools.rehearsal.program import Program
from tools.rehearsal.rows import Row, lock_of, rows
from tools.rehearsal.server import Shelves, serve
from tools.rehearsal.wheels import stand_in_wheels
from tools.rehearse import Outcome, Rehearsal, told, trials

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
requires = [{requires}]
files = ["packages.sh", "python.sh"]
[[release]]
version = "1.0"
date = 2026-11-21
wheels = [{wheels}]
indexes = [{indexes}]
requires = []
source = "this test"
"""
SCRIPT = 'layer=fault\n. "$LAYER_FILES/python.sh"\n{python}\ninstall_wheels\nfinish_python\n'
WHEELS = {
    "plain": '"six==1.17.0"',
    "contradicting": '"tokenizers==0.22.1", "transformers==4.30.2"',
    "failing-test": '"six==1.17.0"',
    "cuda-triton": '"triton==3.6.0"',
}
OF_TORCH = ("transformers", "cuda-triton") if EVERYTHING else ()


def write_layers(folder: Path) -> Path:
    """Write the layers of this test and, for those on torch, the base."""
    for name, wheels in WHEELS.items():
        is_of_torch = name == "cuda-triton"
        layer = folder / name
        shutil.copytree(shipped_layers() / "lightning", layer)
        requires, indexes = ('"torch", ', '"https://download.pytorch.org/whl"') if is_of_torch else ("", "")
        facts = LAYER.format(requires=f'{requires}"python3"', wheels=wheels, indexes=indexes)
        (layer / "layer.toml").write_text(facts)
        (layer / "post.sh").write_text(SCRIPT.format(python="use_torch" if is_of_torch else "use_venv"))
        (layer / "test.sh").write_text("echo the planted failure; exit 1\n" if name == "failing-test" else "true\n")
    if OF_TORCH:
        base = folder / "debian-13"
        shutil.copytree(shipped_layers() / "debian-13", base)
        facts = (base / "layer.toml").read_text()
        assert 'rocm = "5.4.3"' in facts
        (base / "layer.toml").write_text(facts.replace('rocm = "5.4.3"', 'rocm = "7.2.4"'))
    return folder


def row_of(catalogue: Catalogue, name: str) -> Row:
    """Return the row of a layer on the base of this test: the newest release that its Python takes."""
    (row, *_) = [row for row in rows(frozenset({name}), catalogue) if row.python == PYTHON]
    return row


@pytest.fixture(scope="module")
def outcomes(images: Path) -> Iterator[dict[str, Outcome]]:
    folder = images / "rehearse"
    for name in ("sources", "wheels", "bases", "images"):
        (folder / name).mkdir(parents=True)
    layers = write_layers(folder / "layers")
    catalogue = open_catalogue({"HOME": "/nonexistent"}, [layers])
    names = dict.fromkeys(("plain", "contradicting", "failing-test", *OF_TORCH))
    of_row = {name: row_of(catalogue, name) for name in names}
    chosen = [layer.release for row in of_row.values() for plan in row.plans for layer in lock_of(plan).layers]
    index = PackageIndex(folder / "sources")
    shelves = Shelves(wheels=stand_in_wheels(filter(None, chosen), index, folder / "wheels"))
    with serve(shelves) as address:
        program = Program(
            address, index.address, folder / "images", Archives(index, folder / "sources"), layers=(layers,)
        )
        rehearsal = Rehearsal(program, Bases(folder / "bases", folder / "bases", index, shelves.wheels), shelves)
        yield {name: rehearsal.row(row) for name, row in of_row.items()}


@pytest.mark.parametrize("name", ["plain", *OF_TORCH[:1]])
def test_a_row_is_resolved_and_built_with_its_own_scripts(outcomes: dict[str, Outcome], name: str) -> None:
    found = outcomes[name]
    assert (found.failed, found.resolved, found.rehearsed) == ("", True, "debian-13")
    assert [(trial.name, trial.reach) for trial in trials([found])] == [(name, "resolved"), (name, "rehearsed")]


FAULTS = [
    ("contradicting", False, "these do not go together"),
    ("failing-test", True, "the planted failure"),
    ("cuda-triton", True, "triton"),
]


@pytest.mark.parametrize(("name", "resolved", "why"), FAULTS if EVERYTHING else FAULTS[:2])
def test_a_row_with_a_fault_is_reported_as_failed(
    outcomes: dict[str, Outcome], name: str, why: str, *, resolved: bool
) -> None:
    found = outcomes[name]
    assert why in found.failed
    assert f"layer {name}" in found.failed, "the message names it"
    assert (found.resolved, found.rehearsed) == (resolved, "")
    assert "FAILED" in told(found)
    assert len(told(found).splitlines()) == 1
    assert "rehearsed" not in [trial.reach for trial in trials([found])]
