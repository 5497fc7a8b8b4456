"""Text of others in a script: as a comment, as a value that may name variables."""

from __future__ import annotations

import re
import shlex
import textwrap

from lumiimg.core.errors import BadInputError, one_line

_COLUMNS = 100
_REFERENCE = re.compile(r"\$(?:[A-Za-z_]\w*|\{[A-Za-z_]\w*\})", re.ASCII)
_SPECIAL = re.compile(r'([\\"$`])')


def wrapped(text: str, columns: int, first: str, rest: str) -> list[str]:
    """Return a text in lines, none of which a character of it ends; `first` and `rest` are what they begin with."""
    return textwrap.wrap(
        one_line(text),
        columns,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


def comment(text: str, indent: str = "") -> list[str]:
    """Return a text in lines of comment."""
    return wrapped(text, _COLUMNS, f"{indent}# ", f"{indent}# ")


def value(text: str, *, literal: bool = False) -> str:
    """Return a value for `sh`, in double quotes: `$NAME` stays one, unless `literal`; all else is text.

    Raises BadInputError for control characters: they come out of an image or a file, and mean nothing there.
    """
    if not text.isprintable():
        raise BadInputError("holds a control character, so it cannot be set in a job", where=one_line(text))
    if literal:
        return shlex.quote(text)
    parts, end = [], 0
    for match in _REFERENCE.finditer(text):
        parts += [_escaped(text[end : match.start()]), match[0]]
        end = match.end()
    return f'"{"".join(parts)}{_escaped(text[end:])}"'


def _escaped(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", text)
