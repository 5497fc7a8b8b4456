"""How old a fact may be before its age is a note, and the day by which that is counted (docs/decisions/0029)."""

from __future__ import annotations

import datetime as dt
import os

from lumiimg.errors import BadInputError

OLD_AFTER_DAYS = 90
"""A site updates driver and network two or three times a year; packages come faster."""


def today(not_before: dt.date = dt.date.min) -> dt.date:
    """Return the day by which facts are old; LUMIIMG_TODAY answers as on another.

    `not_before` is a day that has been: a clock that is behind it would make old facts new. Raises BadInputError.
    """
    text = os.environ.get("LUMIIMG_TODAY")
    try:
        return dt.date.fromisoformat(text) if text else max(not_before, dt.datetime.now(dt.UTC).date())
    except ValueError as error:
        raise BadInputError(f"not a valid date: {text!r:.40}", where="LUMIIMG_TODAY", hint="2026-11-24") from error


def age_of(date: dt.date, not_before: dt.date = dt.date.min) -> str | None:
    """Return the age of what counts as old, in words; None for what does not. Raises BadInputError as `today`."""
    days = (today(not_before) - date).days
    return f"of {date}, {days} days old" if days > OLD_AFTER_DAYS else None
