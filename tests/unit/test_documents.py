"""The documents are correct: their commands, their links, the generated pages."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import tomllib
from typing import TYPE_CHECKING

import pytest

from lumiimg.catalog.catalogue import open_catalogue
from lumiimg.cli.commands import make_parser
from lumiimg.cli.main import without_program
from tests.shared.doc_files import make_doc_files
from tests.shared.documents import (
    LIKE_AN_EXAMPLE,
    PAGES,
    ROOT,
    WRITTEN,
    Where,
    blocks,
    lumiimg_commands,
    parameters,
    run_page,
)
from tests.shared.programs import needs
from tests.shared.world import World, serve, wheels_of_layers
from tools import manpages, pages

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.shared.documents import DocFiles

RUN_HERE = [page for page in PAGES if any(block.where is Where.HERE for block in blocks(page))]
SET_BY_JOBS = {"LUMIIMG_JOB", "LUMIIMG_NODES", "LUMIIMG_TASKS", "LUMIIMG_NUMBER"}
"""Variables that our own scripts pass to each other; a value set by the user does not reach them."""


@pytest.fixture(scope="module")
def doc_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DocFiles]:
    wheels = wheels_of_layers()
    with serve(World(of_layers=wheels, wheels=wheels)) as world:
        yield make_doc_files(tmp_path_factory.mktemp("shelf"), world)


@pytest.mark.documents
@pytest.mark.parametrize("page", parameters(RUN_HERE))
def test_the_commands_of_a_page_do_what_it_says(page: Path, doc_files: DocFiles, tmp_path: Path) -> None:
    needs("gcc", "mksquashfs")
    assert run_page(page, (Where.HERE,), doc_files, tmp_path / "page")


def inline_commands() -> Iterator[list[str]]:
    """Yield the arguments of every `lumiimg …` in inline code that could be typed as it is."""
    text = "\n".join(path.read_text() for path in PAGES)
    for line in sorted(set(re.findall(r"`(lumiimg [^`…]*)`", text))):
        # `lumiimg show NAME`, `lumiimg check --nodes`: names for a command, not commands
        if not LIKE_AN_EXAMPLE.search(line) and not re.search(r" [A-Z]{4,}\b| --[a-z-]+$| import$", line):
            words, _ = without_program(shlex.split(line)[1:])
            yield [*words, "--help"] if re.fullmatch(r"[a-z]+( [a-z]+)?", " ".join(words)) else words


def test_a_documented_command_is_one_that_the_program_takes(capsys: pytest.CaptureFixture[str]) -> None:
    found = [block for page in PAGES for block in blocks(page)]
    commands = [(str(block), words) for block in found for line in block.commands for words in lumiimg_commands(line)]
    refused = []
    for place, words in [*commands, *(("in a sentence", words) for words in inline_commands())]:
        own, _ = without_program(words)
        try:
            make_parser().parse_args(own)
        except SystemExit as end:
            if end.code:
                refused.append((place, words, capsys.readouterr().err))
    assert refused == []
    assert len(commands) > 100


def test_links_between_documents_lead_somewhere() -> None:
    lost = []
    for document in (*PAGES, ROOT / "CHANGELOG.md"):
        for target, place in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", document.read_text()):
            page = (document.parent / target).resolve() if target else document
            if page in WRITTEN and "docs" in document.relative_to(ROOT).parts:
                continue  # Sphinx looks at these
            if not page.exists() or (place and place not in places(page)):
                lost.append(f"{document.relative_to(ROOT)}: {target}#{place}")
    assert lost == []


def test_files_that_a_page_for_developers_names_are_there() -> None:
    written_for = {
        "contributing",
        "extend",
        "CONTRIBUTING.md",
        "architecture.md",
        "decisions.md",
        "security.md",
    }
    parts = ("lumiimg", "tests", "tools", "layers", "docs", ".ci")
    files = [*ROOT.glob("*.toml"), *(file for part in parts for file in (ROOT / part).rglob("*.*"))]
    there = "".join(f"{file}\n" for file in files)
    lost = [
        f"{page.relative_to(ROOT)}: {name}"
        for page in PAGES
        if {page.name, page.parent.name} & written_for
        for name in re.findall(r"`([a-z_.][a-z\d_./]*\.(?:py|toml))\b", page.read_text())
        if f"/{name}\n" not in there
    ]
    assert lost == []


def test_each_page_says_first_who_it_is_for_and_last_what_comes_next() -> None:
    wrong = []
    for page in PAGES:
        text = page.read_text()
        if "docs" not in page.relative_to(ROOT).parts or (page.name == "index.md" and "{toctree}" in text):
            continue
        if text.startswith("```{include}"):
            continue  # CHANGELOG.md, which GitHub shows as well
        _, first, *_, last = filter(None, text.splitlines())
        if not (re.fullmatch(r"\*For [^*]{4,90}\.\*", first) and last.startswith("Next: ")):
            wrong.append((str(page.relative_to(ROOT)), first, last))
    assert wrong == []


def places(page: Path) -> set[str]:
    """Return the anchors of a page's headings as GitHub makes them; the site must use the same."""
    text = page.read_text()
    if included := re.search(r"\{include\} (\S+)", text):
        text = (page.parent / included[1]).read_text()
    titles = re.findall(r"^#+ (.+)$", re.sub(r"(?ms)^```.*?^```$", "", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_the_readme_names_targets_of_the_makefile() -> None:
    readme, makefile = ((ROOT / name).read_text() for name in ("README.md", "Makefile"))
    for target in re.findall(r"`?make ([a-z-]+)", readme):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


_PROSE = (
    "lumiimg/**/*.py",
    "lumiimg/**/*.toml",
    "lumiimg/**/*.sh",
    "recipes/*.toml",
    "docs/**/*.md",
    "README.md",
    "CHANGELOG.md",
)


_DATA = re.compile(r"(?m)^(?:#.*|(?:source|example|hints)s? = .*)$|(?s:^\w+ = '''.*?''')")
"""Parts of a TOML file that no user reads, or that others wrote."""


def _sentences(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the texts of a file that a user sees, with their lines: in Python, the strings without docstrings."""
    if path.suffix != ".py":
        text = path.read_text()
        yield 1, _DATA.sub(lambda hit: "\n" * hit[0].count("\n"), text) if path.suffix == ".toml" else text
        return
    tree = list(ast.walk(ast.parse(path.read_text())))
    documented = {id(node.value) for node in tree if isinstance(node, ast.Expr)}
    for node in tree:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documented:
            yield node.lineno, node.value


def test_no_sentence_reads_translated() -> None:
    words = tomllib.loads((ROOT / "tests/words.toml").read_text())["word"]
    patterns = [(re.compile(word["pattern"], re.IGNORECASE | re.MULTILINE), word) for word in words]
    found = []
    # pages that are generated from data are not in git: the data is checked instead
    for path in (path for glob in _PROSE for path in ROOT.glob(glob) if path not in WRITTEN):
        whole, shown = [(1, path.read_text())], list(_sentences(path))
        for pattern, word in patterns:
            for first, text in whole if word.get("docstrings") else shown:
                lines = (first + text.count("\n", 0, hit.start()) for hit in pattern.finditer(text))
                found += [f"{path.relative_to(ROOT)}:{line}: {word['better']} ({word['reason']})" for line in lines]
    assert not found, "\n".join(found)


def test_all_pages_name_the_vllm_of_the_recipe() -> None:
    recipe = open_catalogue({"HOME": "/nonexistent"}).recipe("lumi-vllm")
    (asked,) = recipe.add
    shown = f"--base {recipe.base} --add {asked} --fabric {recipe.fabric} on lumi"
    for name in ("README.md", "docs/tutorials/build-vllm.md", "docs/howto/newest-vllm.md"):
        text = (ROOT / name).read_text()
        answers = re.findall(r"no obstacle found: (--base \S+ --add vllm\S* --fabric bundled on lumi)", text)
        assert answers[0] == shown, name
        assert "--recipe lumi-vllm" in text.partition(shown)[0], name
        assert re.findall(r"(?i)vllm ([0-9.]+[0-9])", text)[0] == asked.partition("==")[2], name
    for command in ("start", "build", "explain", "lock"):
        assert "--recipe lumi-vllm" in (ROOT / f"lumiimg/cli/commands/{command}.toml").read_text(), command


# -- the pages that are written from the program --


def test_each_page_of_the_reference_is_written_and_in_the_index() -> None:
    index = (ROOT / "docs/reference/index.md").read_text()
    for name, lines in pages.PAGES.items():
        assert next(iter(lines())).startswith("# "), name
        assert f"({name})" in index
        assert f"/docs/reference/{name}" in (ROOT / ".gitignore").read_text()


def test_no_manual_page_makes_mandoc_complain_and_one_is_read_as_it_was_meant(tmp_path: Path) -> None:
    needs("mandoc")
    for name, text in manpages.pages().items():
        (tmp_path / name).write_text(text)
    argv: list[str | Path] = ["mandoc", "-T", "lint", "-W", "warning", *sorted(tmp_path.glob("*.1"))]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("", 0)
    argv = ["mandoc", "-T", "utf8", tmp_path / "lumiimg-check.1"]
    text = re.sub(r".\x08", "", subprocess.run(argv, capture_output=True, text=True, check=True).stdout)
    sections = "NAME DESCRIPTION ENVIRONMENT SEE-ALSO"
    assert " ".join(line.replace(" ", "-") for line in re.findall(r"^[A-Z][A-Z ]+$", text, re.MULTILINE)) == sections
    assert "lumiimg check image.sif --nodes 64" in text, "hyphens are those of a command line"
    assert max(map(len, text.splitlines())) <= 90


def test_every_variable_in_the_manual_is_honoured_and_every_one_of_ours_is_in_it() -> None:
    code = "\n".join(file.read_text() for file in (ROOT / "lumiimg").rglob("*.py"))
    names = set(re.findall(r"""(?:environment|environ)(?:\.get\(|\[)"(\w+)\"""", code))
    assert set(manpages.ENVIRONMENT) <= names | {"NO_COLOR"}  # rich reads that one
    ours = {name for name in names if name.startswith("LUMIIMG_")}
    assert ours == {name for name in manpages.ENVIRONMENT if name.startswith("LUMIIMG_")}
    exported = set(re.findall(r"export (LUMIIMG_\w+)=", code)) - {"LUMIIMG_HERE", "LUMIIMG_BELOW"}
    assert exported <= SET_BY_JOBS
