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

    def length(self, character: str) -> int:
        """Return how far what begins here reaches, and note what it opens."""
        match character:
            case "\\":
                return 2
            case "'" if self.quoted and self.closing == "}":
                self.refuse()  # a quote or not, by what operator is there
            case "'" if not self.quoted:
                return self._up_to(self.text.find("'", self.position + 1) + 1)
            case '"':
                self.begin('"', quoted=True)
            case "$" if self.has("${"):
                self.begin("}", quoted=self.quoted)
                return 2
            case "$" if self.has("$("):
                self.begin(")", quoted=False)
                return 2
            case "$" if self.has("$'") and not self.quoted:
                self.refuse()  # escapes in some shells, a dollar in others
            case "(" if self.closing == ")":
                self.begin(")", quoted=False)
            case "`":
                backquoted = _BACKQUOTED.match(self.text, self.position)
                return self._up_to(backquoted.end() if backquoted else 0)
            case "#" | "<" if self.closing == ")" and (self.has("#") or self.has("<<")):
                self.refuse()  # a comment or a here-document hides what closes it
        return 1

    def _up_to(self, end: int) -> int:
        if not end:
            self.refuse()  # it has no end
        return end - self.position


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
            word.position += word.length(character)
    end = min(word.position, len(text))
    if word.open or (word.substituted and _CASE.search(text, word.start, end)):
        word.refuse()
    return end
