"""Our own files decoded into types: a good one gives what was written, a bad one is refused with all its errors."""

from __future__ import annotations

import datetime as dt
import json
import re
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import pytest
import tomli_w
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import Meta, Struct

from lumiimg.core.decode import (
    AnyText,
    DecodeError,
    Natural,
    Positive,
    PositiveFloat,
    Sha256,
    Text,
    decode_json,
    decode_toml,
    encode,
    read_toml,
    refuse,
    to_json,
)
from lumiimg.core.findings import Remedy
from tests.shared.programs import examples


class Colour(StrEnum):
    """A closed set of words."""

    RED = "red"
    BLUE = "blue"


class Step(Struct, frozen=True, forbid_unknown_fields=True):
    """A table in an array of tables, with a rule about its fields together."""

    least: Natural
    most: Positive
    hours: PositiveFloat = 1.0

    def __post_init__(self) -> None:
        refuse({"least": self.least > self.most and f"is {self.least}, above {self.most}"})


class Thing(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A value of each type that occurs in our files."""

    name: Annotated[str, Meta(pattern=r"\A[a-z]+\Z", description="a name of small letters")]
    summary: Text
    date: dt.date
    origin: Text = msgspec.field(name="from", default="here")
    note: AnyText = ""
    colour: Colour = Colour.RED
    way: Literal["up", "down"] | None = None
    sure: bool = False
    digest: Sha256 | None = None
    shape: re.Pattern[str] | None = None
    words: tuple[Text, ...] = ()
    steps: tuple[Step, ...] = msgspec.field(name="step", default=())
    values: Mapping[str, Text] = {}


@dataclass(frozen=True)
class Seen:
    """Like a snapshot: a dataclass whose unknown keys are ignored."""

    path: str
    size: int = 0
    steps: tuple[Step, ...] = ()
    remedy: Remedy | None = None
    more: Mapping[str, Colour] = field(default_factory=dict)


GOOD = 'name = "a"\nsummary = "b"\ndate = 2026-11-21\n'
BAD = {
    "missing": ("", ["key 'name' is missing", "key 'date' is missing"]),
    "unknown": (GOOD + "summery = 1\n", ["key 'summery' is not known; did you mean 'summary'? allowed: name, summary"]),
    "types": (
        GOOD.replace('"a"', "7") + 'sure = "yes"\nwords = 7\nstep = [[]]\nvalues = [{}]\n',
        [
            "key 'name' should be a string, is 7",
            "key 'sure' should be true or false, is 'yes'",
            "key 'words' should be an array, is 7",
            "key 'step[0]' should be a table, is an array",
            "key 'values' should be a table, is an array",
        ],
    ),
    "patterns": (
        GOOD.replace('"a"', '"A"') + 'digest = "12"\nshape = "("\n',
        [
            "key 'name' is 'A'; a name of small letters is needed",
            "key 'digest' is '12'; a digest of 64 hexadecimal digits is needed",
            "key 'shape' is not a valid regular expression: missing )",
        ],
    ),
    "a count that no machine holds": (GOOD + f'shape = "a{{{10**30}}}"\n', ["'shape' is not a valid regular expr"]),
    "deep pattern": (GOOD + f'shape = "{"(" * 3000}"\n', ["'shape' is not a valid regular expression"]),
    "words": (
        GOOD + 'colour = "green"\nway = "left"\n',
        ["key 'colour' is 'green'; allowed: red, blue", "key 'way' is 'left'; allowed: up, down"],
    ),
    "empty": (GOOD.replace('"b"', '" "') + 'words = ["x", ""]\n', ["'summary' is empty", "'words[1]' is empty"]),
    "dates": (GOOD.replace("2026-11-21", '"2026-11-21"'), ["'date' should be a date like 2026-11-21, without quotes"]),
    "time": (GOOD.replace("2026-11-21", "2026-11-21 10:00:00"), ["'date' should be a date like"]),
    "numbers": (
        GOOD + "step = [{least = -1, most = 0, hours = nan}, {least = 0.5, most = true}]\n",
        [
            "key 'step[0].least' is out of range",
            "key 'step[0].most' is 0; a whole number above 0 is needed",
            "key 'step[0].hours' is nan; a number above 0 is needed",
            "key 'step[1].least' should be a whole number, is 0.5",
            "key 'step[1].most' should be a whole number, is True",
        ],
    ),
    "together": (GOOD + "[[step]]\nleast = 5\nmost = 2\n", ["key 'step[0].least' is 5, above 2"]),
    "unprintable": (
        GOOD.replace('"b"', '"b\\nc"') + 'note = "b\\nc"\n"a\\u202e" = 1\n[values]\n"\\u0000" = "\\u001b"\n',
        [
            "key 'summary' holds a character that cannot be printed, or more than one line",
            r"key 'a\u202e' is not known",
            r"key 'values.\x00' holds a character",
        ],
    ),
    "not TOML": ("name = \n", ["is not TOML: Invalid value (at line 1"]),
    "too deep": (f"a = {'[' * 9999}", ["is nested too deeply"]),
    "many": ("\n".join(f"a{n} = 1" for n in range(5000)), ["key 'name' is missing", "and 56 more"]),
}


@pytest.mark.threat
@pytest.mark.parametrize("name", BAD)
def test_all_that_is_wrong_with_a_file_is_in_one_line(tmp_path: Path, name: str) -> None:
    text, parts = BAD[name]
    path = tmp_path / "thing.toml"
    path.write_text(text)
    with pytest.raises(DecodeError) as caught:
        read_toml(path, Thing)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert [part for part in parts if part not in message] == [], message
    assert message.isprintable()
    assert len(message) < 3000


@pytest.mark.threat
def test_a_value_of_any_kind_is_taken_or_refused_wherever_it_stands() -> None:
    good = tomllib.loads(GOOD)
    values: list[object] = [-1, 7, 1.5, True, "x", dt.date(2026, 1, 1), [], [[]], [{}], {}, {"a": 1}, {"a": {}}]
    for key in ("name", "date", "from", "note", "colour", "way", "sure", "digest", "shape", "words", "step", "values"):
        for value in values:
            with suppress(DecodeError):
                decode_toml(tomli_w.dumps({**good, key: value}), Thing)


def test_a_good_file_is_what_was_written() -> None:
    thing = decode_toml(GOOD + 'from = "x"\nnote = "two\\nlines"\nway = "up"\nshape = "[[a]"\n', Thing)
    assert (thing.origin, thing.note, thing.way, thing.colour) == ("x", "two\nlines", "up", Colour.RED)
    assert thing.shape is not None
    assert thing.shape.fullmatch("[")


_STEPS = st.builds(Step, st.integers(0, 5), st.integers(5, 99), st.floats(0.5, 99))
_TEXTS = st.text(st.characters(codec="utf-8"), max_size=9)
_WORDS = st.text("aZ0 é€'\"\\{}#=.,", min_size=1, max_size=9).map(lambda text: f"x{text}")


@settings(deadline=None, max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow])
@given(
    st.builds(
        Thing,
        name=st.just("a"),
        summary=_WORDS,
        date=st.dates(),
        note=_TEXTS,
        colour=st.sampled_from(Colour),
        sure=st.booleans(),
        words=st.lists(_WORDS, max_size=3).map(tuple),
        steps=st.lists(_STEPS, max_size=3).map(tuple),
        values=st.dictionaries(_WORDS, _WORDS, max_size=3),
    )
)
def test_what_is_written_is_read_back(thing: Thing) -> None:
    assert decode_toml(tomli_w.dumps(encode(thing)), Thing) == thing


@settings(deadline=None, max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow])
@given(
    st.builds(
        Seen,
        st.text(max_size=9),
        st.integers(0, 2**64 - 1),
        st.lists(_STEPS, max_size=3).map(tuple),
        st.none() | st.builds(Remedy, _TEXTS, st.none() | _TEXTS, st.none() | _TEXTS),
        st.dictionaries(_TEXTS, st.sampled_from(Colour), max_size=3),
    )
)
def test_json_is_read_back_with_any_text_in_it(seen: Seen) -> None:
    read = decode_json(to_json(seen).encode(), Seen)
    assert read == seen
    assert encode(read) == encode(seen), "a remedy has its parts"


@pytest.mark.threat
@pytest.mark.parametrize(
    ("data", "named"),
    [
        (b"", "is cut off, or not JSON"),
        (b"\xff", "is cut off, or not JSON"),
        (b"[" * 100_000, "is nested too deeply"),
        (b"[" + b"0," * 300_000 + b"0]", "has more than 262144 values"),
        (b'{"path": "x", "size": NaN}', "NaN is not a JSON number"),
        (b"[]", "should be a table, is an array"),
        (b'{"path": "x", "size": -1}', "key 'size' is out of range"),
        (b'{"path": "x", "size": 18446744073709551616}', "key 'size' is out of range"),
        (b'{"path": "%s"}' % (b"x" * 140_000), "key 'path' has 140000 characters, more than allowed"),
        (
            b'{"path": 7, "steps": [{}], "more": {"a": "b"}, "remedy": 7}',
            "key 'steps[0].most' is missing; key 'remedy' should be a remedy; key 'more.a' is 'b'; allowed: red, blue",
        ),
        (b'{"path": "x", "\\ud800": 1, "size": 1.5}', "key 'size' should be a whole number, is 1.5"),
    ],
)
def test_json_of_any_form_is_refused_in_one_line(data: bytes, named: str) -> None:
    with pytest.raises(DecodeError) as caught:
        decode_json(data, Seen, where="seen.json")
    assert named in str(caught.value)
    assert str(caught.value).isprintable()


@pytest.mark.threat
def test_a_file_that_is_none_or_large_is_refused(tmp_path: Path) -> None:
    for path, expected in ((tmp_path, "cannot be read"), (tmp_path / "no", "cannot be read: No such file")):
        with pytest.raises(DecodeError, match=expected):
            read_toml(path, Thing)
    large = tmp_path / "large"
    large.write_text(GOOD + "#" * (1 << 18))
    with pytest.raises(DecodeError, match="is larger than 262144 bytes"):
        read_toml(large, Thing)
    large.write_bytes(b"\xff\xfe")
    with pytest.raises(DecodeError, match="is not UTF-8"):
        read_toml(large, Thing)


def test_a_key_that_json_does_not_know_is_passed_over() -> None:
    assert decode_json(json.dumps({"path": "x", "of a newer one": [-1, "x" * 200_000]}).encode(), Seen) == Seen("x")
