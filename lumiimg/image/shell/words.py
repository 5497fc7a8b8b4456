"""Where a word of shell text ends (POSIX Shell Command Language 2.2, 2.6)."""

from __future__ import annotations

import re
from typing import NoReturn

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
MAX_NESTING = 32
_PLAIN = re.compile(r"[A-Za-z0-9_/.:,=+%@^*?!\[\]~-]+")
_BACKQUOTED = re.compile(r"`(?:[^`\\]|\\.)*`", re.DOTALL)
_CASE = re.compile(r"\bcase\b")
_ENDS_OF_WORDS = frozenset(" \t\n;&|<>()")


class ShellError(Exception):
    """Text that is not taken apart here."""

    def __init__(self, position: int) -> None:
        super().__init__(position)
        self.position = position


class _Word:
    """A word while it is read: where the reading is, and what is open there."""

    def __init__(self, text: str, start: int) -> None:
        self.text = text
        self.start = self.position = start
        self.open: list[tuple[str, bool]] = []
        """What closes it, whether it is in double quotes."""
        self.closing, self.quoted = "", False
        """Of the innermost that is open."""
        self.substituted = False

    def begin(self, closing: str, *, quoted: bool) -> None:
        self.open.append((closing, quoted))
        self.closing, self.quoted = closing, quoted
        self.substituted = self.substituted or closing == ")"

    def end(self) -> None:
        self.open.pop()
        self.closing, self.quoted = self.open[-1] if self.open else ("", False)

    def has(self, text: str) -> bool:
        return self.text.startswith(text, self.position)

    def refuse(self) -> NoReturn:
        raise ShellError(self.start)


def end_of_word(text: str, position: int) -> int:
    """Return where a word ends, with what is quoted and expanded in it (2.2, 2.6). Raises ShellError."""
    word = _Word(text, position)
    while word.position < len(text):
        if plain := _PLAIN.match(text, word.position):
            word.position = plain.end()
            continue
        character = text[word.position]
        if len(word.open) > MAX_NESTING:
            word.refuse()
        if character == word.closing:
            word.end()
            word.position += 1
        elif not word.open and character in _ENDS_OF_WORDS:
            break
        else:
            word.position += _READERS.get(character, _itself)(word)
    end = min(word.position, len(text))
    if word.open or (word.substituted and _CASE.search(text, word.start, end)):
        word.refuse()
    return end


def _itself(_: _Word) -> int:
    return 1


def _escaped(_: _Word) -> int:
    return 2


def _single_quote(word: _Word) -> int:
    if word.quoted and word.closing == "}":  # a quote or not, by what operator is there
        word.refuse()
    if word.quoted:
        return 1
    end = word.text.find("'", word.position + 1)
    if end < 0:
        word.refuse()
    return end + 1 - word.position


def _double_quote(word: _Word) -> int:
    word.begin('"', quoted=True)
    return 1


def _dollar(word: _Word) -> int:
    if word.has("${"):
        word.begin("}", quoted=word.quoted)
        return 2
    if word.has("$("):
        word.begin(")", quoted=False)
        return 2
    if word.has("$'") and not word.quoted:  # escapes in some shells, a dollar in others
        word.refuse()
    return 1


def _parenthesis(word: _Word) -> int:
    if word.closing == ")":
        word.begin(")", quoted=False)
    return 1


def _backquote(word: _Word) -> int:
    backquoted = _BACKQUOTED.match(word.text, word.position)
    if backquoted is None:
        word.refuse()
    return backquoted.end() - word.position


def _hiding(word: _Word) -> int:
    if word.closing == ")" and (word.has("#") or word.has("<<")):
        word.refuse()  # a comment or a here-document hides what closes it
    return 1


_READERS = {
    "\\": _escaped,
    "'": _single_quote,
    '"': _double_quote,
    "$": _dollar,
    "(": _parenthesis,
    "`": _backquote,
    "#": _hiding,
    "<": _hiding,
}
"""By the first character: how far it reaches."""
