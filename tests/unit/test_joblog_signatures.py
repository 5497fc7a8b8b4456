"""The knowledge base: each entry matches its own example, noise matches nothing, and no pattern backtracks."""

from __future__ import annotations

import re
import time
import tomllib
from itertools import product
from pathlib import Path

import pytest

from lumiimg.core.findings import STAND_INS
from lumiimg.core.redact import redact
from lumiimg.joblog import LogReader, read_lines
from lumiimg.joblog.gate import Gate
from lumiimg.joblog.lines import evidence_text, excerpt, messages
from lumiimg.joblog.vocabulary import Weight, compiled, vocabulary
from tests.shared.programs import patient
from tests.shared.remedies import COMMAND

VOCABULARY = vocabulary()
NOISE = tomllib.loads((Path(__file__).parents[1] / "fixtures/nccl-noise.toml").read_text())["examples"]
ENTRIES = VOCABULARY.entries
SIGNATURES = list(VOCABULARY.signatures.values())
HOSTILE_SIZE = 100_000


def test_each_entry_matches_its_own_example() -> None:
    gate = Gate(VOCABULARY)
    for entry in ENTRIES:
        line = entry.example.encode()
        texts = [message.text for message in messages(line)]
        assert any(
            entry.match(message) and any(hint in message.text for hint in entry.hints) for message in messages(line)
        ), entry.id
        assert not any(name in text for name in VOCABULARY.foreign for text in texts), entry.id
        _, ((_, _, entries),) = gate.select(line)
        assert entry in entries, entry.id
    for hint, entries in VOCABULARY.hints.items():
        found = gate.entries(f"zzz qqq xxx {hint} yyy".encode())
        assert {entry.id for entry in entries} <= {entry.id for entry in found}, hint


def test_each_entry_is_whole() -> None:
    known = {entry.id for entry in ENTRIES}
    assert len(known | {one.id for one in VOCABULARY.advice.values()}) == len(ENTRIES) + len(VOCABULARY.advice)
    for entry in ENTRIES:
        is_any = entry.id == "warning"
        assert is_any or not re.search(r"WARN|INFO|\.cc?\b", entry.pattern), (
            f"{entry.id} leans on the level or the place"
        )
    for signature in SIGNATURES:
        (entry,) = [entry for entry in ENTRIES if entry.id == signature.id]
        texts = [signature.summary, *signature.because, *signature.remedy]
        used = {name for text in texts for name in re.findall(r"(?<!\$)\{([a-z_]+)\}", text)}
        groups = set(compiled(entry.pattern).groupindex)
        assert used <= groups | STAND_INS.keys(), signature.id
        assert not groups & STAND_INS.keys(), signature.id
        assert set(signature.given) | set(signature.unless) <= known, signature.id
        assert signature.source, signature.id
        assert signature.remedy, signature.id
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", str(signature.date)), signature.id
        assert signature.because or signature.weight in {Weight.NOTE, Weight.ECHO}, signature.id
        for text in texts:
            assert text == text.strip(), signature.id
            assert not text.endswith("."), signature.id
            assert "\n" not in text, signature.id


def test_each_remedy_is_a_command_with_at_most_a_short_reason_before_it_or_a_sentence() -> None:
    remedies = {one.id: one.remedy for one in SIGNATURES} | {one.id: one.remedy for one in VOCABULARY.advice.values()}
    for name, remedy in remedies.items():
        for step in remedy:
            command = step.command or ""
            assert not command or COMMAND.match(command), (name, step)
            assert "project_" not in command, "it is nobody's"
            assert "{log}" not in command or command.startswith("lumiimg "), "words may not be in it"
            assert len(step.reason or "") <= 140, (name, step)
            assert not (step.reason or "a").endswith((":", ".")), (name, step)


def test_noise_is_no_cause() -> None:
    for line in NOISE:
        assert [c.id for c in read_lines("j", [line]).causes] == ["nothing-decided"], line


NEEDS_MORE = {"assertion-failed", "plugin-file-name", "plugin-api-too-old", "cxi-device-passed-over", "interface-not-hsn", "plugin-crash"} | {
    "memory-registration-efa", "endpoint-error-efa", "efa-passed-over", "mpi-gpu-memory", "step-aborted", "network-not-of-the-plugin", "oneccl-libfabric-call", "rings-without-trees", "oneccl-slow-mpi"
}  # fmt: skip
"""Signatures that need more than one line; tests/fixtures/nccl-excerpts.toml has such logs, and other wordings."""


def test_each_signature_is_the_first_cause_of_its_example() -> None:
    for signature in SIGNATURES:
        if signature.id not in NEEDS_MORE:
            assert read_lines("j", [signature.example]).causes[0].id == signature.id


@pytest.mark.threat
def test_a_hostile_line_takes_bounded_time() -> None:
    for entry in ENTRIES:
        head = entry.example[: len(entry.example) // 2]
        fillers = ("a", "lib", "/", ": ", "a.so: ", head, entry.example[:-1])
        started = time.process_time()
        for filler in fillers:
            compiled(entry.pattern).search((head + filler * HOSTILE_SIZE)[:HOSTILE_SIZE])
        assert time.process_time() - started < patient(3), entry.id


@pytest.mark.threat
def test_a_hostile_prefix_takes_bounded_time() -> None:
    for filler in ["n1:1:1 [0] ", "1:1:", "a.b-", "[0;", "\x1b[0", "@probe ", "[1,0]<stdout>:", "%20=", "-"]:
        reader = LogReader()
        started = time.process_time()
        reader.feed("j", (filler * HOSTILE_SIZE)[:HOSTILE_SIZE].encode() + b"\n")
        reader.feed("j", ("@probe log text=" + filler * HOSTILE_SIZE)[:HOSTILE_SIZE].encode() + b"\n")
        reader.feed(
            "j", ("n1:1:1 [0] NCCL INFO Using network X\x1b[" + filler * HOSTILE_SIZE)[:HOSTILE_SIZE].encode() + b"\n"
        )
        reader.report()
        assert time.process_time() - started < 1.0, filler


@pytest.mark.threat
def test_evidence_is_one_printable_line_of_a_sane_length() -> None:
    line = "n1:1:1 [0] NCCL INFO Using network Socket \x1b]0;owned\x07\u202e" + "x" * 5000
    (evidence,) = read_lines("j", [line]).proof
    assert evidence.text.isprintable()
    assert len(evidence.text) < 500
    assert evidence_text(excerpt("a\nb", (0, 1))) == "a\\nb"
    (evidence,) = read_lines("j", ["|####" * 500 + "\rUsing network Socket"]).proof
    assert evidence.text == "Using network Socket", "the message at the end of a long line"


def test_what_a_log_says_runs_nothing_in_a_command_that_is_proposed() -> None:
    """Each value that a remedy repeats, as a stranger could have written it, if the pattern accepts it."""
    matched = 0
    for signature in SIGNATURES:
        names = {name for step in signature.remedy for name in re.findall(r"\{(\w+)\}", step)}
        found = compiled(next(entry.pattern for entry in ENTRIES if entry.id == signature.id)).search(signature.example)
        for name, text in product(names, ("/x$(id)/", "a;id;", "`id`", "x|id|", "/x'&id&'/")):
            if found is None or found.groupdict().get(name) is None:
                continue
            line = f"{signature.example[: found.start(name)]}{text}{signature.example[found.start(name) :]}"
            for cause in read_lines("log", [line]).causes:
                matched += text in cause.summary
                assert not [step for step in cause.remedy if text in step]
    assert matched


@pytest.mark.threat
def test_what_is_redacted_in_a_line_is_redacted_in_its_finding() -> None:
    """A pattern may mistake the end of `password=…` for a file name."""
    for signature in SIGNATURES:
        found = compiled(next(entry.pattern for entry in ENTRIES if entry.id == signature.id)).search(signature.example)
        groups = {name for name, value in found.groupdict().items() if value} if found else set()
        for name, secret in product(groups, ("password=Canary7/", "https://me:Canary7@h.test/", "HF_TOKEN=Canary7")):
            assert found
            line = f"{signature.example[: found.start(name)]}{secret}{signature.example[found.start(name) :]}"
            if "Canary7" not in redact(line):
                report = read_lines("job.out", [line])
                texts = [text for one in report.causes for text in (one.summary, *one.because, *one.remedy)]
                assert not [text for text in (report.headline, *texts) if "Canary7" in redact(text)], line


def test_a_return_code_is_read_with_or_without_its_sign() -> None:
    """Old plugins print `RC: 12`, new ones `RC: -12`."""
    printed = re.compile(r"(\bRC:?|, ret:|failed:) -(?=\d)")
    signed = [one for one in SIGNATURES if one.id not in NEEDS_MORE and printed.search(one.example)]
    assert len(signed) > 8
    for signature in signed:
        line = printed.sub(r"\1 ", signature.example)
        assert read_lines("j", [line]).causes[0].id == signature.id, line
