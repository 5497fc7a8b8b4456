"""Foreign text on a page: one line, of bounded length, without what looks like a secret: a page will be shared."""

from __future__ import annotations

import re

from lumiimg.errors import one_line
from lumiimg.secret import hidden

LIMIT = 2000
"""Characters of one text; a line of a log may have millions."""


def shown(text: str) -> str:
    """Return a text as it may stand on a page: control characters spelled out, secrets left out, cut where it is long.

    Control characters are those of `errors.one_line`: NUL, which HTML cannot carry, and marks that turn the direction
    of writing are among them.
    """
    is_long = len(text) > LIMIT
    text = hidden(one_line(text[:LIMIT]))
    return f"{text}… (cut)" if is_long else text


def short(text: str, limit: int) -> str:
    """Return a text in so many characters, its end left out."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def without_folders(text: str) -> str:
    """Return a text with the last part of each path alone: for a picture, where the whole stands beside it."""
    return re.sub(r"(?<![\w.:/])/(?:[^/\s:,;]+/)+([^/\s:,;]+)", r"\1", text)
