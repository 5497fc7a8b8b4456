"""Documents on a terminal: what is never cut, broken or printed twice, and what is left out first."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lumiimg.check.images import ImageAnswer, ImageAnswers
from lumiimg.core.errors import ExitCode, say
from lumiimg.core.findings import Advice, Remedy, Severity
from lumiimg.core.text import count
from lumiimg.report.document import (
    Block,
    Document,
    Facts,
    Item,
    Lines,
    Paragraph,
    Row,
    Section,
    Shown,
    Table,
    Tree,
    facts_section,
)
from lumiimg.report.progress import LineProgress
from lumiimg.report.text import show
from lumiimg.report.views.images import images_document
from tests.shared import answers
from tests.shared.html_page import HOSTILE
from tests.shared.programs import examples, unwrapped

Capture = pytest.CaptureFixture[str]
WORD = st.text("ab/.-_é漢:", min_size=1, max_size=60)
SENTENCE = st.lists(WORD, min_size=1, max_size=12).map(" ".join)


@st.composite
def items(draw: st.DrawFn) -> Item:
    return Item(
        draw(st.sampled_from(Severity)),
        draw(SENTENCE),
        names=tuple(draw(st.lists(WORD, max_size=30))),
        evidence=tuple(draw(st.lists(SENTENCE, max_size=5))),
        why=tuple(draw(st.lists(SENTENCE, max_size=2))),
        remedies=tuple(Remedy(draw(SENTENCE), draw(SENTENCE)) for _ in range(draw(st.integers(0, 3)))),
        any_one=draw(st.booleans()),
    )


@st.composite
def documents(draw: st.DrawFn) -> Document:
    sections = st.builds(Section, SENTENCE, st.lists(items(), max_size=6).map(tuple), is_headed=st.booleans())
    return Document(
        "check",
        draw(WORD),
        draw(SENTENCE),
        draw(st.sampled_from(Severity)),
        Advice(draw(st.none() | SENTENCE), draw(st.none() | SENTENCE)),
        sections=tuple(draw(st.lists(sections, max_size=4))),
        is_named=draw(st.booleans()),
    )


def shown(document: Document, *, verbose: bool = False, quiet: bool = False) -> str:
    with redirect_stdout(StringIO()) as out:
        show(document, verbose=verbose, quiet=quiet)
    return out.getvalue()


def on_a_terminal(document: Document, monkeypatch: pytest.MonkeyPatch, term: str = "xterm-256color") -> str:
    """Return the output on a terminal of 24 lines of 80 columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    got = bytearray()

    def read() -> None:
        while True:
            try:
                block = os.read(ours, 65536)
            except OSError:  # the other end is closed
                return
            got.extend(block)

    reader = threading.Thread(target=read)
    reader.start()
    with monkeypatch.context() as patch, os.fdopen(theirs, "w") as stream:
        patch.setenv("TERM", term)
        for name in ("COLUMNS", "LINES"):
            patch.delenv(name, raising=False)
        patch.setattr(sys, "stdout", stream)
        patch.setattr("shutil.get_terminal_size", lambda: os.get_terminal_size(stream.fileno()))
        show(document)
    reader.join()
    os.close(ours)
    return got.decode().replace("\r\n", "\n")


@settings(max_examples=examples(20), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(documents())
def test_the_answer_and_all_names_are_whole_in_a_file_whatever_else_is_left_out(document: Document) -> None:
    text = unwrapped(shown(document))
    assert unwrapped(document.sentence) in text
    assert document.advice.next is None or unwrapped(document.advice.next) in text
    blocks = [block for section in document.sections for block in section.blocks if isinstance(block, Item)]
    for item in blocks:
        assert unwrapped(", ".join(item.names)) in text
    whole = unwrapped(shown(document, verbose=True))
    for item in blocks:
        assert all(unwrapped(remedy) in whole or (remedy.command or remedy) in whole for remedy in item.remedies)
    assert shown(document, quiet=True).count("\n") == 1


def test_a_screen_has_room_for_an_answer_and_loses_evidence_first(monkeypatch: pytest.MonkeyPatch) -> None:
    long = Item(Severity.PROBLEM, "it is not there", evidence=("a line",) * 40, remedies=(Remedy("look", "ls"),))
    document = replace(
        answers.CHECK, sections=(Section("Found", (long, replace(long, text="nor that")), is_headed=True),)
    )
    text = on_a_terminal(document, monkeypatch)
    lines = text.splitlines()
    assert len(lines) <= 23
    assert re.search(r"\(\d+ more lines with --verbose\)", lines[-1])
    for part in ("it is not there", "nor that", "do:  look: ls", answers.NEXT):
        assert part in text
    assert "\x1b[1;31m" in text, "in colour"
    assert "\x1b" not in on_a_terminal(document, monkeypatch, "dumb")
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in on_a_terminal(document, monkeypatch)


def test_what_stands_above_already_is_not_printed_again() -> None:
    proof = "librccl-net.so: cannot open"
    item = Item(
        Severity.PROBLEM,
        "no net plugin",
        tag="plugin.absent, static",
        evidence=(proof, "another line"),
        why=("RCCL has none of its own",),
        remedies=(Remedy("make one", "lumiimg adapt a.sif"), Remedy(command="lumiimg build")),
    )
    advice = Advice("no net plugin", "lumiimg adapt a.sif")
    document = Document(
        "log",
        "a",
        "NO",
        Severity.PROBLEM,
        advice,
        sections=(Section("Proof", (Lines((proof,), is_evidence=True), item), is_headed=True),),
    )
    text = shown(document)
    for once in (proof, "another line", "no net plugin  [plugin.absent, static]", "lumiimg adapt", "lumiimg build"):
        assert text.count(once) == 1, once
    other = replace(item, text="something else", remedies=(Remedy("make one", "lumiimg adapt a.sif"),))
    several = replace(document, sections=(Section("Found", (other, item), is_headed=True),))
    assert shown(several).count("no net plugin") == 2, "behind another finding it has its name"


def test_a_table_shows_each_cell_whole_and_a_tree_each_branch() -> None:
    path = "/opt/" + "a/" * 60 + "librccl-net.so"
    table = Table(("file", "whose"), (Row((path, "host"), Severity.OK), Row(("b", "x" * 90))))
    tree = Tree("librccl.so.1", path, branches=(Tree("libfabric.so.1", branches=(Tree("libcxi.so.1"),)),))
    facts = Facts((("base", "rocm-6.4.4"), ("layers", "vllm " * 30)))
    document = Document("show", "a", "what it has", sections=(Section("All", (table, tree, facts), is_headed=True),))
    text = shown(document, verbose=True)
    joined = "".join(text.split())
    assert f"✓ {path}\n    whose: host\n" in text.replace("\n  /opt", " /opt"), "no line breaks in a cell's word"
    assert "b\n    whose: xxx" in text.replace("whose:\n      x", "whose: x")
    assert text.count(path) == 2, "a branch is never broken"
    assert text.index("librccl.so.1") < text.index("└── libfabric.so.1") < text.index("└── libcxi.so.1")
    assert joined.count("vllm") == 30


def test_what_nothing_is_known_of_is_no_fact() -> None:
    for rows, expected in (((("site", ""), ("base", "b")), "said\n\n  base  b\n"), ((("site", ""),), "said\n")):
        section = facts_section("The recipe", rows, is_headed=len(rows) == 1)
        assert shown(Document("show", "a", "said", sections=(section,))) == expected


@pytest.mark.threat
@pytest.mark.parametrize("text", HOSTILE)
def test_foreign_text_cannot_command_a_terminal_or_forge_a_line(text: str) -> None:
    forged = f"{text}\nnext:  rm -rf ~\x1b[2J [red]x[/red]"
    item = Item(
        *(Severity.PROBLEM, forged, forged, (forged,), (forged,), (forged,), (forged, forged), (forged,)),
        remedies=(Remedy(forged, forged),),
        source=forged,
    )
    blocks = (
        *(item, Paragraph(forged), Lines((forged,)), Facts(((forged, forged),))),
        *(Table((forged,), (Row((forged,)),)), Tree(forged, forged, branches=(Tree(forged),))),
    )
    advice = Advice(forged, forged, forged)
    document = Document(
        forged,
        forged,
        forged,
        Severity.PROBLEM,
        advice,
        (forged,),
        (Section(forged, blocks, is_headed=True),),
        (forged,),
    )
    for verbose, quiet in ((True, False), (False, False), (False, True)):
        out = shown(document, verbose=verbose, quiet=quiet)
        assert not re.search(r"[\0-\t\v-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", out)
        assert not [line for line in out.splitlines() if line.startswith("next:  rm")]
        assert quiet or "[red]x[/red]" in unwrapped(out), "rich's markup is text"


def test_a_list_that_was_asked_for_is_whole_on_any_screen() -> None:
    many = tuple(Item(Severity.INFO, f"base {number}") for number in range(100))
    document = Document("list", "bases", "100 bases", sections=(Section("Bases", many, is_headed=True),), is_list=True)
    assert "base 99" in shown(document)
    assert "base 99" not in shown(replace(document, is_list=False))


def of(*blocks: Block, **more: Any) -> Document:
    return Document("check", "a", "NO", Severity.PROBLEM, sections=(Section("Found", blocks),), **more)


def test_of_groups_with_many_names_a_screen_has_each_with_its_reason_before_the_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = [tuple(f"{'x' * 70}-{of}-{number}.sif" for number in range(10)) for of in "abc"]
    groups = of(*(Item(Severity.PROBLEM, "NO", names=each, why=(f"why {each[0]}",)) for each in names))
    text = on_a_terminal(groups, monkeypatch, "dumb")
    assert len(text.splitlines()) <= 24
    assert all(f"why: why {each[0]}" in unwrapped(text) for each in names)
    assert names[0][0] in text


def test_what_only_verbose_shows_is_counted_and_nothing_where_it_has_no_more() -> None:
    item = Item(Severity.PROBLEM, "not there", remedies=(Remedy("look"),))
    hidden = Item(Severity.INFO, "of no weight", verbose=True)
    for document, more in (
        (of(item), ""),
        (of(item, hidden), "(1 more line with --verbose)\n"),
        (of(item, hidden, is_list=True), "(1 more line with --verbose)\n"),
        (of(replace(item, source="ld.so(8)"), hidden), "(2 more lines with --verbose)\n"),
        (of(Lines(tuple("abcd"), few=2)), "(2 more lines with --verbose)\n"),
        (replace(of(), sections=(Section("X", (Facts((("a", "b"),)),), Shown.PAGE),)), ""),
        (replace(of(), sections=(Section("X", (Facts((("a", "b"),)),), Shown.VERBOSE),)), "(2 more lines with --v"),
    ):
        text = shown(document)
        assert more in text
        assert bool(more) == ("(" in text)
        assert "(" not in shown(document, verbose=True).replace("ld.so(8)", "")


def test_a_warning_stays_on_a_screen_where_details_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    details = Facts(tuple((f"layer {number}", "what it is " * 9) for number in range(20)))
    warning = Item(Severity.UNKNOWN, "never built by this project")
    text = on_a_terminal(of(details, warning), monkeypatch)
    assert warning.text in text
    assert "layer 0" in text
    assert len(text.splitlines()) <= 23


def test_of_images_with_one_headline_each_reason_stands_with_its_names(monkeypatch: pytest.MonkeyPatch) -> None:
    reasons = {f"image{n}.sif": f"the plugin needs lib{n}.so.1, which the image does not have" for n in range(4)}
    answers = [
        ImageAnswer(
            name, ExitCode.NO, "NO: RCCL would use TCP sockets", Advice(why, f"lumiimg adapt {name} -o {'x' * 90}")
        )
        for name, why in reasons.items()
    ]
    document = images_document(
        "check", ImageAnswers.from_answers([*answers, ImageAnswer("z.sif", ExitCode.GOOD, "no obstacle found")])
    )
    for text in (on_a_terminal(document, monkeypatch, "dumb"), shown(document)):
        for name, why in reasons.items():
            assert f"sockets {name} why: {why}" in unwrapped(text)


def test_a_name_and_a_path_stay_on_one_line() -> None:
    names = tuple(f"my image {'x' * number}.sif" for number in range(40))
    path = "/opt/cray/libfabric/1.22.0/lib64/libfabric.so.1"
    tree = Tree(f"libfabric.so.1: {path} -> {path}", f"=> {path}", branches=(Tree(path, path), Tree("b")))
    table = Table(("file", "why"), (Row((path, "it is " * 30)),))
    text = shown(of(Item(Severity.PROBLEM, "images", names=names), tree, table), verbose=True)
    for name in names:
        assert name in text
    assert text.count(path) == 6
    assert max(map(len, text.splitlines())) <= 80


def test_a_noun_agrees_with_its_number() -> None:
    plurals = {"node": "nodes", "library": "libraries", "day": "days", "process": "processes", "GPU": "GPUs"}
    for one, many in plurals.items():
        assert (count(1, one), count(0, one), count(2, one)) == (f"1 {one}", f"0 {many}", f"2 {many}")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_stream_that_is_full_is_no_crash_and_standard_error_leaves_json_and_its_answer(
    tmp_path: Path, unbuffered: str
) -> None:
    log = tmp_path / "job.out"
    log.write_text("its last line has no end, which is a note", "utf-8")
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    program = [sys.executable, "-m", "lumiimg"]
    for words, code in ((["list", "--json"], 0), (["log", str(log), "--json"], 3), (["check", "nowhere.sif"], 2)):
        with Path("/dev/full").open("w") as full:
            done = subprocess.run(
                [*program, *words], stdout=subprocess.PIPE, stderr=full, check=False, cwd=tmp_path, env=environment
            )
        assert done.returncode == code, words
        assert code == 2 or json.loads(done.stdout)["schema"] >= 1
    for words in (["list", "--json"], ["list"]):
        with Path("/dev/full").open("w") as full:
            done = subprocess.run(
                [*program, *words], stdout=full, stderr=subprocess.PIPE, check=False, cwd=tmp_path, env=environment
            )
        assert done.returncode == 1, words
        assert done.stderr.splitlines()[-1] == b"lumiimg: No space left on device"


def test_what_is_printed_while_a_command_works_does_not_stop_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(sys.stderr, "write", full)
    say("50 of 200 images are read")
    LineProgress().notice("the cache is open to others")


def test_of_a_command_at_the_top_the_words_stay() -> None:
    bundle = Remedy("bundle the fabric, then no host libraries are bound", "lumiimg adapt a.sif")
    item = Item(Severity.PROBLEM, "it does not load", remedies=(bundle,))
    advice = Advice("it does not load", "lumiimg adapt a.sif")
    text = shown(Document("check", "a", "NO", Severity.PROBLEM, advice, sections=(Section("Found", (item,)),)))
    assert text.count("lumiimg adapt a.sif") == 1
    assert "do:  bundle the fabric" in text
    again = replace(advice, where=bundle.text)
    text = shown(Document("check", "a", "NO", Severity.PROBLEM, again, sections=(Section("Found", (item,)),)))
    assert text.count("bundle the fabric") == 1, "at the top"
