"""Script templates, stored as files beside the code that fills them in, and foreign text in them, quoted safely."""

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
# engines evaluate the values of variables as a shell does; no intended path contains one of these
UNSAFE = re.compile(rf"[{_CONTROL}$`\"'\\]")


def filled(name: str, *, annotate: bool = True, **values: str | Iterable[str]) -> str:
    """Return a template of this package with each `@NAME@` replaced by a value or lines; an empty line is dropped.

    Lines that begin with `#?` are reasons: with `annotate` they become comments, without it they are left out.
    """

    def value(match: re.Match[str]) -> str:
        given = values[match[1] or match[2]]
        text = given if isinstance(given, str) else "\n".join(given)
        return f"{text}\n" if match[1] and text and not text.endswith("\n") else text

    text = resources.files(__package__).joinpath(name).read_text("utf-8")
    return _PLACE.sub(value, _REASON.sub(r"\1\2" if annotate else "", text))


def wrapped(text: str, columns: int, first: str, rest: str) -> list[str]:
    """Return a text as lines, which none of its characters can break; `first` and `rest` are the indents."""
    return textwrap.wrap(
        one_line(text),
        columns,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


def comment(text: str) -> list[str]:
    """Return a text as comment lines; in Tcl, a backslash at the end of one would continue it on the next line."""
    return [f"{line} " if line.endswith("\\") else line for line in wrapped(text, COLUMNS, "# ", "# ")]


def folded(first: str, words: Iterable[str]) -> str:
    """Return a command, wrapped onto as many lines as it needs; the words are already quoted."""
    lines = [first]
    for word in words:
        if len(lines[-1]) + len(word) < COLUMNS or len(word) > COLUMNS:
            lines[-1] += f" {word}"
        else:
            lines.append(f"    {word}")
    return " \\\n".join(lines)


def names_in(text: str) -> set[str]:
    """Return the names of the variables that a value refers to as `$NAME` or `${NAME}`."""
    return {match[2] for match in _REFERENCE.finditer(text)}


def without_names(text: str) -> str:
    """Return a value without its references to variables."""
    return _REFERENCE.sub("", text)


def if_set(text: str) -> str:
    """Return a value for a shell's double quotes in which the variables that it refers to may be unset."""
    return _REFERENCE.sub(r"${\2-}", text)


def value(text: str, *, literal: bool = False) -> str:
    """Return a value quoted for `sh`: `$NAME` stays a reference unless `literal`; everything else is text.

    Raises BadInputError for control characters: they come from an image or a file and have no use there.
    """
    if not text.isprintable():
        raise BadInputError("contains a control character, so it cannot be set in a job", where=one_line(text))
    if literal or _BARE.fullmatch(text):
        return shlex.quote(text)
    escaped = _REFERENCE_OR_SPECIAL.sub(lambda found: found[0] if found[2] else rf"\{found[0]}", text)
    return f'"{escaped}"'
