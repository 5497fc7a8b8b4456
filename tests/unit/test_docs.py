"""The documents tell the truth of today."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from lumiimg.cli.commands import make_parser
from lumiimg.cli.main import without_program
from tests.shared.documents import LIKE_AN_EXAMPLE, PAGES
from tools import compatibility, reference, schemas

ROOT = Path(__file__).parents[2]
DOCUMENTS = [*PAGES, ROOT / "CHANGELOG.md"]


@pytest.mark.parametrize("name", [*reference.PAGES, *compatibility.PAGES, *schemas.PAGES])
def test_a_page_of_the_reference_is_what_the_program_says(name: str) -> None:
    lines = (reference.PAGES | compatibility.PAGES | schemas.PAGES)[name]
    assert (reference.REFERENCE / name).read_text() == reference.text(lines), "run `make docs`"


def inline_commands() -> list[str]:
    """Every `lumiimg …` in a line of code that could be typed as it is; those in blocks are in test_documents.py."""
    text = "\n".join(path.read_text() for path in PAGES)
    inline = {line for line in re.findall(r"`(lumiimg [^`…]*)`", text) if not LIKE_AN_EXAMPLE.search(line)}
    # `lumiimg show NAME`, `lumiimg check --nodes`: names for a command, not commands
    return sorted(line for line in inline if not re.search(r" [A-Z]{4,}\b| --[a-z-]+$| import$", line))


@pytest.mark.parametrize("command", inline_commands())
def test_a_documented_command_is_one_that_the_program_takes(command: str) -> None:
    words, _ = without_program(shlex.split(command)[1:])
    if re.fullmatch(r"[a-z]+( [a-z]+)?", " ".join(words)):
        words.append("--help")
        with pytest.raises(SystemExit, match="0"):
            make_parser().parse_args(words)
    else:
        make_parser().parse_args(words)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_between_documents_lead_somewhere(document: Path) -> None:
    for target, place in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", document.read_text()):
        page = document.parent / target if target else document
        assert page.exists(), target
        assert not place or place in places(page), f"{target}#{place}"


def places(page: Path) -> set[str]:
    """Return the names of a page's headings as GitHub makes them; the site must know the same."""
    text = page.read_text()
    if included := re.search(r"\{include\} (\S+)", text):
        text = (page.parent / included[1]).read_text()
    titles = re.findall(r"^#+ (.+)$", re.sub(r"(?ms)^```.*?^```$", "", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", sorted((ROOT / "docs").rglob("*.md")), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_page_says_at_its_top_what_it_is(page: Path) -> None:
    if "{include}" not in page.read_text() and "decisions" not in page.parts:
        assert re.match(r"# .+\n\n[*A-Z]", page.read_text()), "a title, and a sentence: for whom, and what it gives"


def test_the_readme_names_the_makefiles_targets() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"`?make ([a-z-]+)", (ROOT / "README.md").read_text()):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_the_readme_is_read_in_one_go() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 200


SLIPS = {
    "X is no Y: it is not a valid Y": r"(?<!there )\b(?:is|are) no (?!longer|more than|other|doubt|reason|way)[a-z]",
    "anew: again": r"\banew\b",
    "is told: is reported, printed, shown, given": r"\b(?:is|are|was|were|be|being) told\b(?! (?:where|not) to)",
    "tells: reports, prints, shows": r"\btells\b",
    "the one of X: that of X": r"\bthe one of\b",
    "so many: this number of, enough": r"\bso many\b",
    "till: until": r"\btill\b",
    "before all: first, above all": r"\bbefore all\b",
    "one a node, a rank a GPU: per": (
        r"\b(?:once|one|(?:a|one|small) (?:rank|process|program|file|task|torchrun|cell|bit|symbol|line)"
        r"|cores|ranks|tasks|processes|tiles|GPUs|NICs)"
        r" an? (?:node|rank|GPU|NIC|tile|process|core|task|version|container|file)\b"
    ),
}
"""What to write instead, by the rules of CONTRIBUTING.md, and the pattern."""
_PROSE = ("lumiimg/**/*.py", "lumiimg/**/*.toml", "lumiimg/**/*.sh", "docs/**/*.md", "README.md", "CHANGELOG.md")
PROSE = sorted(path for pattern in _PROSE for path in ROOT.glob(pattern))


@pytest.mark.parametrize("slip", SLIPS)
def test_no_sentence_reads_translated(slip: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in PROSE
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if re.search(SLIPS[slip], line, re.IGNORECASE)
    ]
    assert not found, slip
