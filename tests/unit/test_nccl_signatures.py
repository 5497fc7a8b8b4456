"""The knowledge base keeps its word: each entry knows its own example, noise stays silent, nothing backtracks."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

import pytest

from lumiimg.nccl.gate import Gate
from lumiimg.nccl.lines import evidence_text, messages
from lumiimg.nccl.reader import LogReader, read_lines
from lumiimg.nccl.vocabulary import vocabulary

if TYPE_CHECKING:
    from lumiimg.nccl.vocabulary import Entry, Signature

VOCABULARY = vocabulary()
ENTRIES = VOCABULARY.entries
SIGNATURES = list(VOCABULARY.signatures.values())
HOSTILE_SIZE = 100_000


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda e: e.id)
def test_each_entry_matches_its_own_example(entry: Entry) -> None:
    line = entry.example.encode()
    texts = [message.text for message in messages(line)]
    assert any(entry.match(text) and any(hint in text for hint in entry.hints) for text in texts)
    assert not any(VOCABULARY.foreign.search(text) for text in texts)
    _, ((_, _, entries),) = Gate(VOCABULARY).select(line)
    assert entry in entries


@pytest.mark.parametrize("signature", SIGNATURES, ids=lambda s: s.id)
def test_each_signature_names_its_source_and_what_to_do(signature: Signature) -> None:
    assert signature.source
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", signature.date)
    assert signature.remedy


@pytest.mark.parametrize("signature", SIGNATURES, ids=lambda s: s.id)
def test_texts_use_only_names_that_the_pattern_fills(signature: Signature) -> None:
    (entry,) = [e for e in ENTRIES if e.id == signature.id]
    names = set(entry.pattern.groupindex)
    texts = [signature.summary, *signature.remedy]
    used = {name for text in texts for name in re.findall(r"(?<!\$)\{([a-z]+)\}", text)}
    assert used <= names
    known = {e.id for e in ENTRIES}
    assert set(signature.given) | set(signature.unless) <= known


def test_no_id_is_given_twice() -> None:
    ids = [e.id for e in ENTRIES] + [a.id for a in VOCABULARY.advice]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("line", VOCABULARY.noise, ids=lambda line: line[20:70])
def test_noise_is_no_cause(line: str) -> None:
    assert [c.id for c in read_lines("j", [line]).causes] == ["nothing-decided"]


def test_no_eligible_providers_is_silent_where_a_selection_follows() -> None:
    lines = ["NET/OFI No eligible providers were found", "NET/OFI Selected provider is cxi, fabric is cxi"]
    assert read_lines("j", lines).causes == ()


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda e: e.id)
def test_a_hostile_line_takes_bounded_time(entry: Entry) -> None:
    head = entry.example[: len(entry.example) // 2]
    fillers = ("a", "lib", "/", ": ", "a.so: ", head, entry.example[:-1])
    started = time.process_time()
    for filler in fillers:
        entry.pattern.search((head + filler * HOSTILE_SIZE)[:HOSTILE_SIZE])
    assert time.process_time() - started < 1.0


@pytest.mark.parametrize(
    "filler", ["n1:1:1 [0] ", "1:1:", "a.b-", "[0;", "\x1b[0", "@probe ", "[1,0]<stdout>:", "%20=", "-"]
)
def test_a_hostile_prefix_takes_bounded_time(filler: str) -> None:
    reader = LogReader()
    started = time.process_time()
    reader.feed("j", (filler * HOSTILE_SIZE)[:HOSTILE_SIZE].encode())
    reader.feed("j", ("@probe log text=" + filler * HOSTILE_SIZE)[:HOSTILE_SIZE].encode())
    reader.report()
    assert time.process_time() - started < 1.0


def test_evidence_is_one_printable_line_of_a_sane_length() -> None:
    line = "n1:1:1 [0] NCCL INFO Using network Socket \x1b]0;owned\x07\u202e" + "x" * 5000
    (evidence,) = read_lines("j", [line]).proof
    assert evidence.text.isprintable()
    assert len(evidence.text) < 500
    assert evidence_text("a\nb", (0, 1)) == "a\\nb"


def test_evidence_shows_the_message_at_the_end_of_a_long_line() -> None:
    (evidence,) = read_lines("j", ["|####" * 500 + "\rUsing network Socket"]).proof
    assert evidence.text == "Using network Socket"
