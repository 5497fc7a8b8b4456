"""Where a trial on a real machine measured something else than lumiimg claims: open until somebody settles it."""

from __future__ import annotations

import datetime as dt  # noqa: TC003 - msgspec reads the types of fields
from pathlib import Path

from msgspec import Struct, field

from lumiimg.decode import Text, read_toml

QUESTIONS = Path(__file__).with_suffix(".toml")


class Question(Struct, frozen=True, forbid_unknown_fields=True):
    """A claim, and what was measured."""

    site: Text
    """Its name."""
    claim: Text
    """`site.libfabric`, `image-1.network`, as the trial calls it."""
    about: Text
    """The same for a person."""
    predicted: Text
    """What lumiimg says."""
    measured: Text
    """What the trial saw."""
    source: Text
    """Where the claim is from."""
    date: dt.date
    """Of the trial, ISO 8601."""
    trial: Text
    """The trial, and the first 16 hexadecimal digits of the SHA-256 of its file."""


class _Questions(Struct, frozen=True, forbid_unknown_fields=True):
    questions: tuple[Question, ...] = field(name="question", default=())


def read_questions(path: Path = QUESTIONS) -> tuple[Question, ...]:
    """Read the open questions. Raises DecodeError, which names the file and every wrong key."""
    return read_toml(path, _Questions).questions


def open_for(site: str) -> tuple[Question, ...]:
    """Return the open questions about a site. Raises DecodeError."""
    return tuple(question for question in read_questions() if question.site == site)
