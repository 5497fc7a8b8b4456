"""Where a trial on a real machine measured something else than lumiimg claims: open until somebody settles it."""

from __future__ import annotations

import datetime as dt  # noqa: TC003 - the schema of `show` is made from Question
from dataclasses import dataclass
from pathlib import Path

from lumiimg.catalog.toml_table import Table, read_toml

QUESTIONS = Path(__file__).with_suffix(".toml")


@dataclass(frozen=True, slots=True)
class Question:
    """A claim, and what was measured."""

    site: str
    """Its name."""
    claim: str
    """`site.libfabric`, `image-1.network`, as the trial calls it."""
    about: str
    """The same for a person."""
    predicted: str
    """What lumiimg says."""
    measured: str
    """What the trial saw."""
    source: str
    """Where the claim is from."""
    date: dt.date
    """Of the trial, ISO 8601."""
    trial: str
    """The trial, and the first 16 hexadecimal digits of the SHA-256 of its file."""


def read_questions(path: Path = QUESTIONS) -> tuple[Question, ...]:
    """Read the open questions. Raises CatalogError, which names the file and every wrong key."""
    table = Table(read_toml(path), path)
    found = tuple(entry.fill(Question) for entry in table.tables("question"))
    table.finish()
    return found


def open_for(site: str) -> tuple[Question, ...]:
    """Return the open questions about a site. Raises CatalogError."""
    return tuple(question for question in read_questions() if question.site == site)
