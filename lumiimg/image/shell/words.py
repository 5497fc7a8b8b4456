"""Where a word of shell text ends (POSIX Shell Command Language 2.2, 2.6)."""

from __future__ import annotations

import re

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


def end_of_word(text: str, position: int) -> int:
    """Return where a word ends, with what is quoted and expanded in it (2.2, 2.6). Raises ShellError."""
    start = position
    open_: list[tuple[str, bool]] = []  # what closes it, whether it is in double quotes
    substituted = False
    while position < len(text):
        plain = _PLAIN.match(text, position)
        if plain:
            position = plain.end()
            continue
        character = text[position]
        closing, quoted = open_[-1] if open_ else ("", False)
        if len(open_) > MAX_NESTING:
            raise ShellError(start)
        if character == closing:
            open_.pop()
            position += 1
        elif character == "\\":
            position += 2
        elif character == "'" and quoted and closing == "}":  # a quote or not, by what operator is there
            raise ShellError(start)
        elif character == "'" and not quoted:
            position = text.find("'", position + 1) + 1
            if position == 0:
                raise ShellError(start)
        elif character == '"':
            open_.append(('"', True))
            position += 1
        elif text.startswith("${", position):
            open_.append(("}", quoted))
            position += 2
        elif text.startswith("$(", position) or (character == "(" and closing == ")"):
            open_.append((")", False))
            substituted = True
            position += 2 if character == "$" else 1
        elif character == "`":
            backquoted = _BACKQUOTED.match(text, position)
            if backquoted is None:
                raise ShellError(start)
            position = backquoted.end()
        elif not open_ and character in _ENDS_OF_WORDS:
            break
        elif text.startswith("$'", position) and not quoted:  # escapes in some shells, a dollar in others
            raise ShellError(start)
        elif closing == ")" and (character == "#" or text.startswith("<<", position)):
            raise ShellError(start)  # a comment or a here-document hides what closes it
        else:
            position += 1
    position = min(position, len(text))
    if open_ or (substituted and _CASE.search(text, start, position)):
        raise ShellError(start)
    return position
