"""A document as a page and as JUnit: nothing is fetched or run, foreign text stays text, omissions are counted."""

from __future__ import annotations

import math
import re
import typing
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

import lumiimg.report
from lumiimg.core.findings import Advice, Remedy, Severity
from lumiimg.report import document as kinds
from lumiimg.report.document import (
    Curve,
    Document,
    Facts,
    Item,
    Lines,
    Meter,
    Paragraph,
    PathSteps,
    Row,
    Section,
    Table,
    Tree,
)
from lumiimg.report.junit import junit_text
from lumiimg.report.markup import shown
from lumiimg.report.page import DEPTH, EVIDENCE, LINES, ROWS, to_page
from tests.shared.answers import CHECK, DOCUMENTS, LOG, NEXT, STEPS, UNSEEN, spoiled
from tests.shared.html_page import HOSTILE, Page, judge

SHEET = (Path(lumiimg.report.__path__[0]) / "page.css").read_text()


def page(document: Document) -> Page:
    return judge(to_page(document))


def of(*blocks: kinds.Block) -> Document:
    return Document("check", "image.sif", "no obstacle found", Severity.OK, sections=(Section("What", blocks),))


def texts(value: Any) -> list[str]:
    """Return all texts of a document."""
    if isinstance(value, Remedy):
        return [*filter(None, (value.text, value.command, value.where))]
    if isinstance(value, str):
        return [] if isinstance(value, Severity) else [str(value)]
    if isinstance(value, tuple):
        return [text for one in value for text in texts(one)]
    if is_dataclass(value):
        return [text for one in fields(value) for text in texts(getattr(value, one.name))]
    return []


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_page_says_all_that_its_document_says(name: str) -> None:
    document = DOCUMENTS[name]
    seen = page(document).words
    hidden = {"not on a page", *({step.why for step in UNSEEN} if name == "explain" else ())}
    sections = tuple(replace(s, blocks=s.blocks) for s in document.sections if s.title != "On a terminal alone")
    for text in texts((document.subject, document.sentence, document.summary, document.closing, document.advice)):
        assert text in seen
    for text in texts(
        tuple(block for section in sections for block in section.blocks if not isinstance(block, PathSteps))
    ):
        assert (
            text in seen
            or text in hidden
            or re.fullmatch(r"engine: line [23]\d .*|rows|lines|sizes|kinds of nodes|.* \(\w+\)", text)
        ), text
    assert "not on a page" not in seen


@pytest.mark.threat
def test_foreign_text_stays_text_in_every_kind_of_block() -> None:
    covered = {type(block) for document in DOCUMENTS.values() for s in document.sections for block in s.blocks}
    assert covered == set(typing.get_args(kinds.Block))
    for text in HOSTILE:
        for document in DOCUMENTS.values():
            foul = spoiled(document, text)
            seen = page(foul)
            assert seen.words.count(shown(text).strip()) > 5
            assert not re.search(r"[\0\x1b\u202e\u2066\ud800]", seen.text)
            ET.fromstring(junit_text(foul))  # noqa: S314 - of our own


# -- the path --


def test_a_path_is_drawn_once_as_it_was_seen() -> None:
    seen = page(CHECK)
    assert [box["class"] for box in seen.attributes("li") if box.get("class", "").startswith("step")] == [
        *("step ok", "step problem", "step ok"),
        *["step unknown"] * 3,
    ]
    words = seen.words
    for text in (
        "RCCL imageholds (static)2.20.5/opt/rocm-6.2.4/lib/librccl.so.1.0.60204",
        "broken (static)net API v8no net",
    ):
        assert text in words
    assert seen.attributes("svg") == []


def test_a_path_of_which_nothing_is_known_is_a_sentence() -> None:
    seen = page(of(PathSteps(UNSEEN, "Nothing is known of it.")))
    assert "Nothing is known of it." in seen.words
    assert seen.attributes("ol") == []
    assert seen.words.count("not known") == 0


# -- what is left out --


def test_the_command_at_the_top_is_not_repeated() -> None:
    assert page(CHECK).words.count(NEXT) == 1
    other = replace(CHECK, advice=Advice("RCCL finds no net plugin", "another"))
    assert page(other).words.count(NEXT) == 1
    assert "one of" in page(other).words


@pytest.mark.parametrize(
    ("blocks", "sentence"),
    [
        ([Item(Severity.PROBLEM, "x" * 5000, evidence=("line",) * 10_000)] * 250, "150 more findings; --json has all"),
        ([Item(Severity.PROBLEM, "x", evidence=("line",) * 10_000)], f"{10_000 - EVIDENCE} more lines; --json"),
        ([Lines(("line",) * 300_000)], f"{300_000 - LINES} more lines; --json has all"),
        ([Table(("a",), (Row(("x",)),) * 9000)], f"{9000 - ROWS} more rows; --json has all"),
        ([Facts((("a", "b"),) * 9000)], f"{9000 - ROWS} more facts; --json has all"),
        ([PathSteps(STEPS, "It ends.", str(n)) for n in range(9000)], f"{9000 - 6} more paths; --json has all"),
        ([Meter("a", "b", 0.5)] * 9000, f"{9000 - ROWS} more bars; --json has all"),
        ([Paragraph("a")] * 9000, f"{9000 - ROWS} more parts; --json has all"),
        ([Tree("a", branches=(Tree("b"),) * 9000)], f"{9001 - ROWS} more branches"),
    ],
)
def test_what_is_too_much_for_a_page_is_left_out_and_counted(blocks: list[kinds.Block], sentence: str) -> None:
    seen = page(of(*blocks))
    assert sentence in seen.words
    assert len(seen.text) < 1_000_000


def test_a_tree_of_any_depth_makes_a_page() -> None:
    tree = Tree("leaf")
    for number in range(5000):
        tree = Tree(str(number), branches=(tree,))
    seen = page(of(tree))
    assert len(seen.attributes("li")) == DEPTH + 1
    assert "1 more branches" in seen.words


def test_names_of_nodes_in_a_table_are_seen_whole() -> None:
    names = ",".join(f"nid{number:06}" for number in range(0, 4000, 2))
    assert names in page(of(Table(("nodes",), (Row((names,), Severity.PROBLEM),)))).words
    assert shown("x" * 5000).endswith("x… (cut)")


def test_a_secret_that_ends_beyond_what_is_shown_is_hidden() -> None:
    for length in range(1900, 2000):
        assert "sekret" not in shown(f"{'x' * length} https://user:sekret-word@host/ HF_TOKEN=sekret-word")


def test_long_lines_of_anything_cost_no_time() -> None:
    for piece in ("a.", "token", "://", "'", "hf_", "/", "eyJ-.", '="'):
        assert len(shown(piece * 500_000)) < 30_000


def test_a_section_without_blocks_has_no_heading() -> None:
    document = replace(CHECK, sections=(Section("Empty", ()), Section("", (Paragraph("alone"),))))
    seen = page(document)
    assert seen.attributes("h2") == []
    assert "alone" in seen.words


# -- meters and curves --


@pytest.mark.parametrize(("share", "value"), [(0.5, "0.500"), (7.0, "1.000"), (-1.0, "0.000")])
def test_a_meter_shows_its_share(share: float, value: str) -> None:
    (meter,) = page(of(Meter("libcxi", "needs GLIBC_2.38", share, Severity.OK))).attributes("meter")
    assert (meter["value"], meter["aria-label"]) == (value, "libcxi needs GLIBC_2.38")


def test_a_curve_has_its_axes_and_its_lines_in_words() -> None:
    seen = page(LOG)
    words = seen.words
    for text in (
        "message, bytes",
        "bus bandwidth, GB/s",
        "solid line, dots: this job",
        "dashed line, squares: lumi in 2026-11",
        "100M",
    ):
        assert text in words
    (svg,) = seen.attributes("svg")
    assert "this job" in svg["aria-label"]
    assert len(seen.attributes("polyline")) == 2


@pytest.mark.parametrize(
    "points",
    [
        [(0.0, 1.0), (8.0, 0.0), (-1.0, -1.0)],
        [(1e-300, 1e300), (1e300, 1e-300)],
        [(math.inf, 1.0), (math.nan, 2.0), (4.0, math.nan)],
        [(4.0, 2.0)],
        [(4.0, 10.0), (4.0, 10.0)],
        [(float(n), float(n)) for n in range(1, 5000)],
    ],
)
def test_a_curve_of_any_points_stays_in_its_drawing(points: list[tuple[float, float]]) -> None:
    text = page(of(Curve("t", "x", "y", (("a", tuple(points)), ("none", ()))))).text
    for x, y in (pair.split(",") for line in re.findall(r'points="([^"]*)"', text) for pair in line.split()):
        assert 0 <= float(x) <= 360
        assert 0 <= float(y) <= 250
    assert not re.search(r"\bnan\b|\binf\b", text)


# -- colours --


def colours(block: str) -> dict[str, str]:
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", block))


def luminance(colour: str) -> float:
    """Return the relative luminance (WCAG 2.2)."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def test_every_text_can_be_read_on_every_background_in_light_dark_and_print() -> None:
    schemes = [found for block in SHEET.split(":root {")[1:] if len(found := colours(block.partition("}")[0])) > 5]
    assert len(schemes) == 3
    for scheme in schemes:
        for background in ("paper", "box", "ok-box", "problem-box", "unknown-box"):
            for text in ("ink", "quiet"):
                assert contrast(scheme[text], scheme[background]) >= 4.5, (text, background)
        for word in ("ok", "problem", "unknown", "host"):
            for background in ("paper", "box", f"{word}-box"):
                assert contrast(scheme[word], scheme.get(background, scheme["paper"])) >= 4.5, (word, background)


def test_the_sheet_asks_for_nothing_and_has_no_colour_but_the_named_ones() -> None:
    assert not re.search(r"url\(|@import|@font-face|expression|</", SHEET)
    rules = re.sub(r":root \{.*?\n\s*\}", "", SHEET, flags=re.DOTALL)
    assert not re.search(r"#[0-9a-f]{3,6}\b|rgba?\(|hsl", rules)


# -- JUnit --


def suite(document: Document) -> ET.Element:
    return ET.fromstring(junit_text(document))  # noqa: S314 - of our own


def test_junit_has_a_case_for_the_answer_and_one_for_each_item_that_is_a_case() -> None:
    read = suite(CHECK)
    assert [case.get("name") for case in read] == [
        *("network of image.sif", "plugin.absent (static)", "probe.engine (probe)", "library.glibc (static)")
    ]
    assert (read.get("tests"), read.get("failures"), read.get("errors")) == ("4", "2", "1")
    assert NEXT in (read.findtext("testcase[@name='plugin.absent (static)']/failure") or "")


def test_a_question_that_something_else_has_answered_is_none_for_junit() -> None:
    found = tuple(replace(block, is_answered=True) for block in CHECK.sections[1].blocks if isinstance(block, Item))
    read = suite(replace(CHECK, severity=Severity.OK, sections=(Section("Found", found[1:]),)))
    assert (read.get("tests"), read.get("failures"), read.get("errors")) == ("3", "0", "0")


def test_no_line_breaks_within_a_word_that_is_copied() -> None:
    row = Row(("no-plugin.sif", "lumiimg adapt no-plugin.sif --site lumi -o with-plugin.sif"))
    text = page(of(Table(("image", "next"), (row,)), Item(Severity.PROBLEM, "x", names=("old-1.sif", "y-2.sif")))).text
    for word in ("no-plugin.sif", "--site", "with-plugin.sif", "old-1.sif,", "y-2.sif"):
        assert f'<span class="typed">{word}</span>' in text
    assert "lumi <span" in text, "others are text"


def test_what_cannot_be_counted_has_no_bar() -> None:
    seen = page(of(Meter("libnl_3", "needs libnl_3", None, Severity.UNKNOWN)))
    assert "libnl_3 needs libnl_3" in seen.words
    assert seen.attributes("meter") == []
