"""Given any bytes, a parser accepts them or refuses them in one line, soon and in little memory; each has a target."""

from __future__ import annotations

import importlib
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fuzz import corpus
from tests.fuzz.mutation import mutated
from tests.fuzz.table import NOT_FOREIGN, TARGETS
from tests.fuzz.target import FaultError, Target, bounded, try_input
from tests.fuzz.targets.scratch import PACKAGE

_READS = re.compile(
    r"\bjson\.(?:loads?|JSONDecoder)\b|\b(?:parse|read)_toml\(|\.splitlines\(\)|struct\.Struct\(|\.iter_unpack\("
    r"|\.unpack_from\(|HTMLParser|from_email|ZipFile\(|\bdecode\([A-Z]|tarfile\.open\(|decompressobj\(|parsedate"
)
"""Code by which a module parses foreign bytes or text."""


@pytest.mark.threat
@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS.keys())
def test_a_parser_bears_any_input(target: Target) -> None:
    inputs = corpus.inputs(target.name)
    chance = random.Random(target.name)  # noqa: S311 - the same inputs each time
    with bounded():
        taken = sum([_tried(target, data) for data in inputs])
        for _ in range(target.rounds):
            _tried(target, mutated(target, chance, inputs))
    assert taken, "no input of the corpus is a good one"


def _tried(target: Target, data: bytes) -> bool:
    try:
        return try_input(target, data)
    except FaultError as fault:
        path = corpus.keep_find(target.name, "fault", data)
        raise AssertionError(f"{fault}; again: python -m tests.fuzz {target.name} {path}") from fault


def test_a_target_names_parsers_that_there_are() -> None:
    for target in TARGETS.values():
        for parser in target.parsers:
            module, _, name = f"lumiimg.{parser}".rpartition(".")
            assert hasattr(importlib.import_module(module), name), parser


def test_each_module_that_takes_foreign_bytes_apart_has_a_target_or_a_reason() -> None:
    has_target = {module for target in TARGETS.values() for parser in target.parsers for module in _modules_of(parser)}
    readers = {_module(path) for path in _sources() if _READS.search(path.read_text(encoding="utf-8"))}
    assert readers - has_target - NOT_FOREIGN.keys() == set(), "a target for it, or a reason in tests/fuzz/table.py"
    assert {module for module in NOT_FOREIGN if module not in readers} == set(), "a reason that nothing needs any more"
    assert NOT_FOREIGN.keys() & has_target == set()


def test_the_corpus_is_of_targets_and_small() -> None:
    for path in corpus.FOLDER.iterdir():
        assert path.name.removesuffix(".zip") in TARGETS, path
    sizes = [path.stat().st_size for path in corpus.FOLDER.rglob("*") if path.is_file()]
    assert max(sizes) < 64 << 10
    assert sum(sizes) < 2 << 20


class OwnError(Exception):
    """An error that a parser may raise."""


def _refuse(_: bytes) -> None:
    raise OwnError("two\nlines")


def _endless() -> None:
    while True:
        pass


FAULTS: list[tuple[Callable[[bytes], str | None], str]] = [
    (lambda data: dict[bytes, str]()[data], "KeyError"),
    (lambda _: _endless(), "takes more than 0 s"),
    (lambda _: str(bytearray(1 << 30)), "takes more than 256 MiB"),
    (lambda _: "a\x1b[2J", "not printable"),
    (_refuse, "one printable line"),
]


def test_a_fault_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.fuzz.target.LIMIT_S", 0.05)
    for fault, what in FAULTS:
        with bounded(), pytest.raises(FaultError, match=what):
            try_input(Target("x", (), fault, refuses=(OwnError,)), b"")


def _sources() -> Iterator[Path]:
    return PACKAGE.rglob("*.py")


def _module(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts)


def _modules_of(parser: str) -> Iterator[str]:
    """Yield the modules that a parser may mean: it is a function or class of a module, or a module."""
    yield parser
    yield parser.rpartition(".")[0]
