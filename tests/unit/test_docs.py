"""The documents tell the truth of today."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from lumiimg.cli.main import make_parser, without_program
from tests.compatibility import compatibility
from tests.reference import reference
from tests.schemas import page

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
]


def test_the_reference_is_what_the_program_says() -> None:
    assert (ROOT / "docs" / "reference.md").read_text() == "\n".join(reference()) + "\n", "run `make docs`"


def test_the_tables_of_compatibility_are_those_of_the_catalogue() -> None:
    assert (ROOT / "docs" / "compatibility.md").read_text() == "\n".join(compatibility()) + "\n", "run `make docs`"


def test_the_tables_of_the_json_are_those_of_the_schemas() -> None:
    assert (ROOT / "docs" / "reference" / "json.md").read_text() == "\n".join(page()) + "\n", "run `make docs`"


def documented_commands() -> list[str]:
    """Every `lumiimg …` of a code block or a line of code in the README that is meant to be typed."""
    text = (ROOT / "README.md").read_text()
    blocks = "\n".join(re.findall(r"^```(?:sh|console)\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
    lines = [line.removeprefix("$ ").partition("  #")[0].strip() for line in blocks.splitlines()]
    inline = re.findall(r"`(lumiimg [^`…]*)`", text)
    return sorted({line for line in [*lines, *inline] if re.match(r"lumiimg \w+ \S", line) and "IMAGE" not in line})


@pytest.mark.parametrize("command", documented_commands())
def test_a_documented_command_is_one_that_the_program_takes(command: str) -> None:
    words, _ = without_program(shlex.split(command)[1:])
    make_parser().parse_args(words)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_between_documents_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", document.read_text()):
        assert (document.parent / target).exists(), target


def test_the_readme_names_the_makefiles_targets() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"`?make ([a-z-]+)", (ROOT / "README.md").read_text()):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
