"""What the environment scripts of an image export, read as text: nothing of an image is ever run.

Engines source `/.singularity.d/env/*.sh` in the order of their names. Understood is what they, and definition files,
write as a rule: assignments and exports at the top level, with quotes and `$K`, `${K}`, `${K:-word}`, `${K:+word}` and
their forms without a colon (POSIX shell 2.6.2). Variables that the image does not set count as unset, as with
`--cleanenv`. A statement beyond that (a condition, `$(command)`) is left out and named in the warnings.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_BRACED = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(:?[-+=])?")
_OPENING = frozenset({"if", "case", "for", "while", "until", "{", "("})
_CLOSING = frozenset({"fi", "esac", "done", "}", ")"})
_MAX_NESTING = 32
_MAX_VALUE = 1 << 16
_MAX_TOTAL, _MAX_VARIABLES = 1 << 20, 10_000
_SHOWN_CHARACTERS = 80


class _NotUnderstoodError(Exception):
    """Shell text beyond what is read here."""


@dataclass
class Environment:
    """Shell variables while scripts are read one after the other."""

    variables: dict[str, str] = field(default_factory=dict)
    exported: set[str] = field(default_factory=set)
    warnings: list[str] = field(default_factory=list)
    _total: int = 0
    """Characters of all values."""

    def read(self, text: str, where: str) -> None:
        """Read one script."""
        depth = 0
        for statement in _statements(text.replace("\\\n", "")):
            first = statement.split(None, 1)[0]
            if first in _CLOSING:
                depth = max(0, depth - 1)
            elif first in _OPENING or first.endswith("()"):
                depth += 1
            elif depth == 0:
                self._statement(statement, where)
            elif re.search(r"\bexport\b|^[A-Za-z_][A-Za-z0-9_]*=", statement):
                self._left_out(statement, where)

    def result(self) -> dict[str, str]:
        """Return what is exported and set."""
        return {name: self.variables[name] for name in sorted(self.exported) if name in self.variables}

    def _statement(self, statement: str, where: str) -> None:
        exports = statement.split(None, 1)[0] == "export"
        rest = statement.split(None, 1)[1] if exports and " " in statement.replace("\t", " ") else statement
        if not exports and not _ASSIGNMENT.match(statement):
            return
        try:
            position = 0
            while position < len(rest):
                position = self._word(rest, position, exports=exports)
        except _NotUnderstoodError:
            self._left_out(statement, where)

    def _set(self, name: str, value: str) -> None:
        total = self._total - len(self.variables.get(name, "")) + len(value)
        if total > _MAX_TOTAL or len(self.variables) >= _MAX_VARIABLES:
            raise _NotUnderstoodError
        self._total = total
        self.variables[name] = value

    def _word(self, text: str, position: int, *, exports: bool) -> int:
        """Read one `K=value` or, after export, one `K`; return where the next word starts."""
        assignment = _ASSIGNMENT.match(text, position)
        if assignment:
            value, end = self._value(text, assignment.end(), stop="", depth=0)
            self._set(assignment[1], value)
            name = assignment[1]
        else:
            bare = _NAME.match(text, position)
            if bare is None or not exports:
                raise _NotUnderstoodError
            name, end = bare[0], bare.end()
        if end < len(text) and text[end] not in " \t":
            raise _NotUnderstoodError
        if exports:
            self.exported.add(name)
        while end < len(text) and text[end] in " \t":
            end += 1
        return end

    def _value(self, text: str, position: int, *, stop: str, depth: int, quoted: bool = False) -> tuple[str, int]:
        """Return (the expanded text, where it ends): at a blank outside quotes, or at the stop character."""
        if depth > _MAX_NESTING:
            raise _NotUnderstoodError
        parts: list[str] = []
        size = 0
        while position < len(text):
            character = text[position]
            if character == stop:
                break
            if character in " \t" and not stop:
                break
            if character == "'" and not quoted:
                end = text.find("'", position + 1)
                if end < 0:
                    raise _NotUnderstoodError
                part, position = text[position + 1 : end], end + 1
            elif character == '"':
                part, position = self._value(text, position + 1, stop='"', depth=depth + 1, quoted=True)
                position = _past(text, position, '"')
            elif character == "\\":
                part, position = _escape(text, position, quoted=quoted)
            elif character == "$":
                part, position = self._expansion(text, position, depth=depth, quoted=quoted)
            elif character == "`":
                raise _NotUnderstoodError
            else:
                part, position = character, position + 1
            parts.append(part)
            size += len(part)
            if size > _MAX_VALUE:
                raise _NotUnderstoodError
        return "".join(parts), position

    def _expansion(self, text: str, position: int, *, depth: int, quoted: bool) -> tuple[str, int]:
        braced = _BRACED.match(text, position)
        if braced is None:
            bare = _NAME.match(text, position + 1)
            if bare is None:
                raise _NotUnderstoodError
            return self.variables.get(bare[0], ""), bare.end()
        name, operator = braced[1], braced[2]
        word, end = self._value(text, braced.end(), stop="}", depth=depth + 1, quoted=quoted)
        end = _past(text, end, "}")
        if operator is None:
            if word:
                raise _NotUnderstoodError
            return self.variables.get(name, ""), end
        value = self.variables.get(name)
        counts = value is not None and (value != "" or ":" not in operator)
        if operator.endswith("+"):
            return (word if counts else ""), end
        if operator.endswith("=") and not counts:
            self._set(name, word)
        return (value or "") if counts else word, end

    def _left_out(self, statement: str, where: str) -> None:
        self.warnings.append(f"{where}: left out, beyond a plain export: {statement.strip()[:_SHOWN_CHARACTERS]}")


def _past(text: str, position: int, character: str) -> int:
    if position >= len(text) or text[position] != character:
        raise _NotUnderstoodError
    return position + 1


def _escape(text: str, position: int, *, quoted: bool) -> tuple[str, int]:
    following = text[position + 1 : position + 2]
    if not following:
        raise _NotUnderstoodError
    return (following if not quoted or following in '$`"\\}' else "\\" + following), position + 2


def _statements(text: str) -> list[str]:
    """Split at newlines and semicolons outside quotes, without comments."""
    found: list[str] = []
    current: list[str] = []
    quotes: list[str] = []
    position = 0
    while position < len(text):
        character = text[position]
        inside = quotes[-1] if quotes else ""
        if character == "\\" and inside != "'":
            current.append(text[position : position + 2])
            position += 2
            continue
        if inside == "'":
            if character == "'":
                quotes.pop()
        elif text.startswith("${", position):
            quotes.append("}")
            current.append("$")
            position += 1
            character = "{"
        elif character == inside:
            quotes.pop()
        elif character == '"' or (character == "'" and '"' not in quotes):
            quotes.append(character)
        elif not quotes and character == "#" and (not current or current[-1] in " \t"):
            end = text.find("\n", position)
            position = len(text) if end < 0 else end
            continue
        elif not quotes and character in "\n;":
            found.append("".join(current))
            current = []
            position += 1
            continue
        current.append(character)
        position += 1
    found.append("".join(current))
    return [statement.strip() for statement in found if statement.strip()]
