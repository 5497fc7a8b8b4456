"""Scripts that lie as files beside the code that fills them in, and text of others in them: comments, values, words."""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Iterable
from importlib import resources

from lumiimg.core.errors import BadInputError, one_line

COLUMNS = 112
_REFERENCE = re.compile(r"\$(\{)?([A-Za-z_]\w*)(?(1)\})", re.ASCII)
_REFERENCE_OR_SPECIAL = re.compile(rf'{_REFERENCE.pattern}|[\\"$`]', re.ASCII)
_BARE = re.compile(r"[\w./:,%@=+-]+", re.ASCII)
_PLACE = re.compile(r"^@([A-Z]+)@\n|@([A-Z]+)@", re.MULTILINE)
_REASON = re.compile(r"^( *#)\?( .*\n)", re.MULTILINE)
_CONTROL = r"\x00-\x1f\x7f-\x9f\ud800-\udfff"
NOT_IN_PATHS = re.compile(rf"[{_CONTROL}]")
# engines evaluate the values of variables as a shell does; none of these is in a path that somebody means
UNSAFE = re.compile(rf"[{_CONTROL}$`\"'\\]")


def filled(name: str, *, annotate: bool = True, **values: str | Iterable[str]) -> str:
    """Return a file of this room, in which `@NAME@` stands for a value, or lines; one for nothing is left out.

    Lines that begin with `#?` are reasons: comments, or left out without `annotate`.
    """

    def value(match: re.Match[str]) -> str:
        given = values[match[1] or match[2]]
        text = given if isinstance(given, str) else "\n".join(given)
        return f"{text}\n" if match[1] and text and not text.endswith("\n") else text

    text = resources.files(__package__).joinpath(name).read_text("utf-8")
    return _PLACE.sub(value, _REASON.sub(r"\1\2" if annotate else "", text))


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


def comment(text: str) -> list[str]:
    """Return a text in lines of comment; a backslash at the end of one would take the next along in Tcl."""
    return [f"{line} " if line.endswith("\\") else line for line in wrapped(text, COLUMNS, "# ", "# ")]


def folded(first: str, words: Iterable[str]) -> str:
    """Return a command of words that are quoted already, on as many lines as it takes."""
    lines = [first]
    for word in words:
        if len(lines[-1]) + len(word) < COLUMNS or len(word) > COLUMNS:
            lines[-1] += f" {word}"
        else:
            lines.append(f"    {word}")
    return " \\\n".join(lines)


def names_in(text: str) -> set[str]:
    """Return the names of the variables that a value names, as `$NAME` or `${NAME}`."""
    return {match[2] for match in _REFERENCE.finditer(text)}


def without_names(text: str) -> str:
    """Return a value without the variables that it names."""
    return _REFERENCE.sub("", text)


def if_set(text: str) -> str:
    """Return a value for double quotes of a shell in which what it names need not be set."""
    return _REFERENCE.sub(r"${\2-}", text)


def value(text: str, *, literal: bool = False) -> str:
    """Return a value for `sh`, in double quotes: `$NAME` stays one, unless `literal`; all else is text.

    Raises BadInputError for control characters: they come out of an image or a file, and mean nothing there.
    """
    if not text.isprintable():
        raise BadInputError("holds a control character, so it cannot be set in a job", where=one_line(text))
    if literal or _BARE.fullmatch(text):
        return shlex.quote(text)
    escaped = _REFERENCE_OR_SPECIAL.sub(lambda found: found[0] if found[2] else rf"\{found[0]}", text)
    return f'"{escaped}"'
