"""The ledger reports how far a row was tested, as long as the row has not changed since."""

from __future__ import annotations

import datetime as dt
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lumiimg.catalog import ledger
from lumiimg.catalog.layers import Layer, Reach, read_layer
from lumiimg.catalog.ledger import LEDGER, LedgerEntry, fingerprint, read_ledger
from lumiimg.cli.main import main
from lumiimg.core.errors import ExitCode
from tests.shared.layer_builder import LAYER, SITE, MakeLayer
from tests.shared.programs import unwrapped
from tools import ledger as tool

if TYPE_CHECKING:
    from lumiimg.catalog.releases import Release

Capture = pytest.CaptureFixture[str]
HOME = {"HOME": "/nonexistent"}
ROWS = list(tool.rows())
TODAY = dt.date(2026, 11, 23)


def row(name: str, version: str = "") -> tuple[Layer, Release | None]:
    return next(one for one in ROWS if one[0].name == name and (one[1].version if one[1] else "") == version)


def trial(layer: Layer, release: Release | None, reach: Reach, how: str = "by the tests") -> LedgerEntry:
    version = release.version if release else ""
    return LedgerEntry(layer.name, version, reach, fingerprint(layer, release, reach), TODAY, how)


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty ledger in place of the shipped one."""
    path = tmp_path / "ledger.toml"
    path.write_text("")
    monkeypatch.setattr(ledger, "LEDGER", path)
    monkeypatch.setattr(ledger, "_by_name", ledger._by_name.__wrapped__)  # it is written more than once
    monkeypatch.setattr(tool, "LEDGER", path)
    return path


def statuses(capsys: Capture) -> dict[str, str]:
    assert main(["list", "--json"]) == ExitCode.GOOD
    return {entry["name"]: entry["status"] for entry in json.loads(capsys.readouterr().out)["entries"]}


# -- the shipped one --


def test_each_entry_is_about_a_row_of_the_catalogue() -> None:
    known = {(layer.name, release.version if release else "") for layer, release in ROWS}
    for entry in read_ledger(LEDGER):
        assert (entry.name, entry.release) in known, f"{entry}: python -m tools.ledger --prune"
        assert entry.how.strip() == entry.how
        assert entry.date >= TODAY


def test_the_file_is_what_the_tool_writes(tmp_path: Path) -> None:
    again = tmp_path / "ledger.toml"
    tool.write(read_ledger(LEDGER), again)
    assert again.read_text() == LEDGER.read_text(), "it is not written by hand"


# -- what people see --


def test_a_trial_is_shown_with_its_word_date_and_how(written: Path, capsys: Capture) -> None:
    vllm = row("vllm", "0.18.0")
    tool.record(
        [trial(*vllm, "resolved", "152 wheels"), trial(*vllm, "rehearsed", "stand-ins: torch")],
        written,
    )
    words = statuses(capsys)
    assert (words["vllm"], words["jax"]) == ("rehearsed", "documented")
    assert main(["show", "vllm"]) == ExitCode.GOOD
    page = unwrapped(capsys.readouterr().out)
    assert "vllm (layer, rehearsed)" in page
    assert "0.18.0 (rehearsed): on" in page
    assert "resolved 2026-11-23: 152 wheels rehearsed 2026-11-23: stand-ins: torch" in page
    assert "0.25.0 (documented): on" in page


def test_a_rehearsal_that_fails_removes_the_entry_of_an_earlier_one(written: Path) -> None:
    vllm = row("vllm", "0.18.0")
    before = [trial(*vllm, "resolved"), trial(*vllm, "rehearsed"), trial(*vllm, "built")]
    tool.record([*before, trial(*row("vllm", "0.12.0"), "rehearsed")], written)
    tool.record(before[:1], written, [(one.reach, one.content) for one in before[:2]])
    assert [(one.release, one.reach) for one in read_ledger(written)] == [
        ("0.12.0", "rehearsed"),
        ("0.18.0", "resolved"),
        ("0.18.0", "built"),
    ]


@pytest.mark.usefixtures("clean_home")
def test_what_readme_says_was_built_is_in_the_ledger(capsys: Capture) -> None:
    """All layers of `debian-jax`, in the versions that README.md names."""
    text = unwrapped((Path(__file__).parents[2] / "README.md").read_text())
    named = text.partition("the recipe `debian-jax` from real sources (")[2].partition(")")[0]
    assert main(["explain", "--recipe", "debian-jax", "--json"]) == ExitCode.GOOD
    layers = {layer["name"]: layer for layer in json.loads(capsys.readouterr().out)["layers"]}
    assert {layer["status"] for layer in layers.values()} == {"built"}
    assert f"JAX {layers['jax']['version']}" in named
    assert f"aws-ofi-nccl {layers['aws-ofi-nccl']['version']}" in named


def test_a_plan_names_what_nobody_has_built(written: Path, capsys: Capture) -> None:
    request = ["--base", "rocm-6.4.4", "--add", "vllm==0.12.0"]
    tool.record([trial(*row("vllm", "0.12.0"), "resolved"), trial(*row("rocm-6.4.4"), "built")], written)
    assert main(["explain", *request]) == ExitCode.GOOD
    output = unwrapped(capsys.readouterr().out)
    assert "never built by this project: pytorch 2.9.1 (documented: from published" in output
    assert "; vllm 0.12.0 (resolved: Python packages fit together)" in output
    assert "rocm-6.4.4 (" not in output
    assert main(["build", *request, "--dry-run", "--json"]) == ExitCode.GOOD
    layers = json.loads(capsys.readouterr().out)["plan"]["layers"]
    assert [one["status"] for one in layers] == ["built", "documented", "resolved"]


def test_what_was_built_is_not_claimed_of_other_sources_or_gpus(written: Path, tmp_path: Path, capsys: Capture) -> None:
    """An argument that names another archive names something untested."""
    layer, release = row("fabric-bundled")
    tool.record([trial(layer, release, "built"), trial(*row("vllm", "0.18.0"), "built")], written)
    chosen = next(name for source in layer.sources for name in re.findall(r"\{([A-Z_]+)\}", source.key))
    other = f"fabric-bundled.{chosen}={layer.arguments[chosen].default[:-1]}9"
    site = tmp_path / "mine.toml"
    fabric = ["--base", "debian-13", "--add", "fabric-bundled"]
    vllm = ["--base", "rocm-7.0", "--add", "vllm==0.18.0", "--site", str(site)]
    for request, gpu, status in (
        (fabric, "gfx90a", "built"),
        ([*fabric, "--arg", other], "gfx90a", "documented"),
        (vllm, "gfx90a", "built"),
        (vllm, "gfx942", "documented"),
    ):
        site.write_text(SITE.replace("gfx90a", gpu))
        assert main(["build", *request, "--dry-run", "--json"]) == ExitCode.GOOD
        found = json.loads(capsys.readouterr().out)["plan"]["layers"]
        named = request[3].partition("=")[0]
        assert {one["name"]: one["status"] for one in found}[named] == status, (request, gpu)


# -- what counts --


FACTS = (
    LAYER
    + """\
requires = ["torch"]
files = ["a.sh"]
packages = ["cmake>=3"]
[arguments.VERSION]
default = "1"
help = "which"
[sources.thing]
url = "https://x/{VERSION}"
file = "x-{VERSION}"
key = "{VERSION}"
requirements = ["r.txt"]
source = "the tests"
[environment.set]
A = "b"
[[release]]
version = "2.0"
date = 2026-01-01
requires = ["rocm==7.*"]
has = { rccl = "2.1" }
wheels = ["snake==2.0"]
indexes = ["https://index"]
without = ["bad"]
source = "the tests"
[[release]]
version = "1.0"
source = "the tests"
"""
)
RESOLVED = [
    *(('["torch"]', '["torch>1"]'), ("cmake>=3", "cmake>=4"), ("r.txt", "s.txt"), ("rocm==7.*", "rocm==6.*")),
    *(("2026-01-01", "2026-01-02"), ('rccl = "2.1"', 'rccl = "2.2"'), ("snake==2.0", "snake==2.0.1")),
    *(("https://index", "https://other"), ('without = ["bad"]', 'without = ["worse"]')),
]
MADE_OF = [("https://x/", "https://y/"), ("x-{", "y-{"), ('A = "b"', 'A = "c"'), ('files = ["a.sh"]', "files = []")]
PROSE = [
    *(("A layer of", "One layer of"), ('source = "the tests"', 'source = "others"'), ("2026-11-21", "2026-11-22")),
    *(("which", "whichever"), ("[sources", "# a comment\n[sources"), ('version = "1.0"', 'version = "1.1"')),
    ('default = "1"', 'default = "3"'),  # which the release names
]


def test_a_change_of_what_was_tried_is_another_content(make_layer: MakeLayer) -> None:
    folder = make_layer("thing", FACTS, a_sh="true\n", test_sh="true\n")

    def differs(file: str, old: str, new: str) -> tuple[bool, bool]:
        """Change a file temporarily; return whether that changes what was resolved, and what was built."""
        text = (folder / file).read_text()
        assert old in text
        found = []
        for message in (text.replace(old, new), text):
            (folder / file).write_text(message)
            layer = read_layer(folder)
            found.append([fingerprint(layer, layer.releases[0], reach) for reach in ("resolved", "built")])
        return found[0][0] != found[1][0], found[0][1] != found[1][1]

    for table, expected in ((RESOLVED, (True, True)), (MADE_OF, (False, True)), (PROSE, (False, False))):
        for old, new in table:
            assert differs("layer.toml", old, new) == expected, old
    for script in ("post.sh", "a.sh", "test.sh"):
        assert differs(script, "true", "true ") == (False, True), script


# -- the tool --
