"""Foreign TOML takes bounded time and memory, whatever its text; real files are far below each limit."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lumiimg.core.toml import TomlError, parse_toml
from tests.shared.programs import examples

_ROOT = Path(__file__).parents[2]
_LIMIT_BYTES = 2 << 20
"""Size limit of the largest TOML file that is read: a lock."""
_LIMIT_SIGNS = 150_000
_SIGNS = ".[{=,"
_CHILD = """
import resource, sys
from lumiimg.core.toml import TomlError, parse_toml
resource.setrlimit(resource.RLIMIT_AS, (384 << 20,) * 2)
resource.setrlimit(resource.RLIMIT_CPU, (10,) * 2)
for text in sys.stdin.read().split("\\0"):
    try:
        print("read", len(parse_toml(text)))
    except TomlError as error:
        print("refused:", error)
"""
_DEEP = ".".join("d" * 7)
_TEXTS: dict[str, Callable[[int], str]] = {
    "dotted headers": lambda n: f"[a{n:x}.{_DEEP}]\n",
    "tables in tables": lambda n: f"a{n:x} = {'{b=' * 31}1{'}' * 31}\n",
    "escapes": lambda n: "\\t" * 1024 if n else 'a = """',
}


def _largest(part: Callable[[int], str], most_signs: int) -> str:
    text, signs, size = list[str](), 0, 0
    while signs <= most_signs and size <= _LIMIT_BYTES:
        text.append(part(len(text)))
        signs += sum(map(text[-1].count, _SIGNS))
        size += len(text[-1])
    return "".join(text[:-1])


@pytest.mark.threat
def test_any_text_of_the_size_of_a_lock_takes_seconds_and_little_memory() -> None:
    """The greatest allowed number of tokens is read; these are the texts that took the most memory and time."""
    largest = [("dotted headers", _LIMIT_SIGNS), *((name, _LIMIT_BYTES) for name in _TEXTS)]
    texts = [_largest(_TEXTS[name], most_signs) for name, most_signs in largest]
    child = subprocess.run(
        [sys.executable, "-c", _CHILD], input="\0".join(texts), capture_output=True, text=True, check=False
    )
    assert child.returncode == 0, child.stderr[-2000:]
    output = child.stdout.splitlines()
    assert [line.partition(" ")[0] for line in output] == ["read", *("refused:" for _ in _TEXTS)]
    assert max(map(len, output)) < 500


def _between(begin: str, end: str, *pieces: str) -> st.SearchStrategy[str]:
    return st.lists(st.sampled_from(("a.", "#", *pieces)), max_size=6).map(lambda text: f"{begin}{''.join(text)}{end}")


_QUOTED = st.one_of(
    _between('"', '"', "'", '\\"', "\\\\"),
    _between("'", "'", '"', "\\"),
    _between('"""', '"""', "'", '\\"', "\\\\", '"a', '""a', "\n", "\\\n"),
    _between('"""a', '"""""', "'", '\\"', "\\\\", '""a', "\n"),
    _between("'''", "'''", '"', "\\", "'a", "''a", "\n"),
    _between("'''", "a''''", '"', "\\", "''a", "\n"),
)


@settings(deadline=None, max_examples=examples(30))
@given(st.lists(_QUOTED, min_size=1, max_size=4))
@pytest.mark.threat
def test_no_text_or_comment_hides_a_key_or_is_taken_for_one(texts: list[str]) -> None:
    text = f"x = [{', '.join(texts)}] # 'a\n"
    meant = tomllib.loads(text)
    assert parse_toml(text) == meant
    with pytest.raises(TomlError, match="a key of more than 8 parts"):
        parse_toml(f"{text}{_DEEP}.{_DEEP} = '1'\n")
    assert parse_toml(f"{text}y = '{_DEEP}.{_DEEP}' # {_DEEP}.{_DEEP}")


@pytest.mark.threat
def test_what_people_write_is_far_from_each_bound() -> None:
    files = [*_ROOT.rglob("lumiimg/**/*.toml"), *_ROOT.glob("layers/*/*.toml"), *_ROOT.glob("tests/fixtures/**/*.lock")]
    assert len(files) > 40
    for file in [*files, _ROOT / "pyproject.toml"]:
        text = file.read_text()
        assert parse_toml(text) == tomllib.loads(text)
        assert sum(map(text.count, _SIGNS)) * 10 < _LIMIT_SIGNS, file


def test_names_of_others_are_never_beside_keys_of_ours() -> None:
    """A table with a source or date has only plain keys: names chosen by others are in a separate table."""

    def walk(value: object) -> Iterator[dict[str, object]]:
        if isinstance(value, dict):
            yield value
        for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            yield from walk(item)

    for file in (*_ROOT.rglob("lumiimg/**/*.toml"), *_ROOT.glob("layers/*/*.toml"), *_ROOT.glob("recipes/*.toml")):
        for table in walk(tomllib.loads(file.read_text())):
            if {"source", "date"} & table.keys():
                assert all(re.fullmatch("[a-z][a-z0-9_]*", key) for key in table), (file, [*table])
