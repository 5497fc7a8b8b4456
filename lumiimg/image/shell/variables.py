"""Shell variables, and words as they are after expansion (POSIX Shell Command Language 2.5.3, 2.6)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from lumiimg.image.shell.names import GIVEN, GUARDED, MOVING
from lumiimg.image.shell.words import MAX_NESTING, NAME

_BRACED = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(:?[-+=])?")
_TRIMMED = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(%%?|##?)([A-Za-z0-9_./:,+=-]*)\}")
_EXPANSION = re.compile(r"\$\{|\$\(\(|\$\[")
_PURE = re.compile(
    r"\$\{(?:#?[A-Za-z_][A-Za-z0-9_]*\}|[0-9]+(?:\}|:?[-+])|[A-Za-z_][A-Za-z0-9_]*(?::?[-+]|%%?|##?|(?P<sets>:?=)))"
)
_LITERAL = re.compile(r"[^\s'\"\\$`~{}]+")
_QUOTED = re.compile(r'"[^"]*"')
_QUOTED_LITERAL = re.compile(r"'[^']*'|\"[^\"$`\\]*\"")
_SPLITS = re.compile(r"[$*?\[\\]")
_ONE_FIELD = re.compile(r"[A-Za-z0-9_./:,+@%=!-]+")
_MAX_VALUE = 1 << 16
_MAX_TOTAL, _MAX_VARIABLES = 1 << 20, 10_000
_MAX_WORK = 1 << 26
"""Characters that are put into values, of all words together."""


class UnsureError(Exception):
    """A value that is not known here."""


class BeyondError(Exception):
    """Text that may change anything."""


@dataclass
class ShellVariables:
    """What is set, and what of it is unsure."""

    values: dict[str, str] = field(default_factory=dict)
    exported: set[str] = field(default_factory=set)
    unsure: set[str] = field(default_factory=lambda: set(GIVEN | MOVING))
    """What may have another value, or none; in `values` is the one without the doubt."""
    perhaps_exported: set[str] = field(default_factory=lambda: set(GIVEN | MOVING))
    """What may be exported or not: a value is not enough to be sure of it."""
    lost: bool = False
    """Whether anything may have been changed, or the script ended: from there on nothing is sure."""
    _total: int = 0
    _work: int = 0
    _doubt: bool = False
    """Whether the word that is read depends on an unsure variable."""
    _passed_over: bool = False
    """Whether what is read is a word that the shell does not expand."""

    def set(self, name: str, value: str) -> None:
        """Set a variable. Raises BeyondError where that is not what it does, and for more than is kept."""
        total = self._total - len(self.values.get(name, "")) + len(value)
        if name in GUARDED or total > _MAX_TOTAL or len(self.values) >= _MAX_VARIABLES:
            raise BeyondError
        self._total = total
        self.values[name] = value
        if self.lost:
            self.unsure.add(name)
        self._make_sure(name)

    def export(self, name: str) -> None:
        """Export a variable, which may be unset."""
        self.exported.add(name)
        self.perhaps_exported.discard(name)

    def unset(self, name: str) -> None:
        """Unset a variable. Raises BeyondError for one that stays."""
        if name in GUARDED:
            raise BeyondError
        self._total -= len(self.values.pop(name, ""))
        self.exported.discard(name)
        self.perhaps_exported.discard(name)
        self._make_sure(name)

    def lose(self) -> None:
        """Be sure of nothing more: neither of what is set, nor of what will be."""
        self.lost = True
        self.unsure |= self.values.keys()

    def _make_sure(self, name: str) -> None:
        if not self.lost and name not in MOVING and name not in self.perhaps_exported:
            self.unsure.discard(name)

    def expanded(self, word: str) -> tuple[str, bool]:
        """Return (a word after expansion, without its quotes, as in an assignment; whether that is sure).

        Raises UnsureError where nothing is known of it, BeyondError for more than is kept.
        """
        self._doubt = self._passed_over = False
        value, _ = self._value(word, 0, stop="", depth=0)
        return value, not self._doubt

    def fields(self, word: str) -> tuple[list[str], bool]:
        """Return (the word as arguments of a command, whether that is sure): empty without quotes, it is none.

        Raises UnsureError, where it may be several, too.
        """
        value, sure = self.expanded(word)
        open_ = "" if _QUOTED.fullmatch(word) else _QUOTED_LITERAL.sub("", word)
        quotes = '"' in word or "'" in word
        if _SPLITS.search(open_) and (not _ONE_FIELD.fullmatch(value) if value else quotes):
            raise UnsureError
        return ([value] if value or quotes else []), sure

    def _value(self, text: str, position: int, *, stop: str, depth: int, quoted: bool = False) -> tuple[str, int]:
        """Return (the expanded text, where it ends): at the end or at the stop character."""
        if depth > MAX_NESTING:
            raise UnsureError
        parts: list[str] = []
        size = 0
        while position < len(text):
            character = text[position]
            literal = _LITERAL.match(text, position)
            if character == stop:
                break
            if literal:
                part, position = literal[0], literal.end()
            elif character == "'" and not quoted:
                end = text.find("'", position + 1)
                if end < 0:
                    raise UnsureError
                part, position = text[position + 1 : end], end + 1
            elif character == '"':
                part, position = self._value(text, position + 1, stop='"', depth=depth + 1, quoted=True)
                position = _past(text, position, '"')
            elif character == "\\":
                part, position = _escape(text, position, stop)
            elif character == "$":
                part, position = self._expansion(text, position, depth=depth, quoted=quoted)
            elif character == "`" or (character in "~{}" and (not quoted or character + stop == "~}")):
                raise UnsureError  # a program's output; a home, or a list of words in some shells
            else:
                part, position = character, position + 1
            parts.append(part)
            size += len(part)
            self._work += len(part)
            if size > _MAX_VALUE or self._work > _MAX_WORK:
                raise BeyondError
        return "".join(parts), position

    def _expansion(self, text: str, position: int, *, depth: int, quoted: bool) -> tuple[str, int]:
        trimmed = _TRIMMED.match(text, position)
        if trimmed is not None:
            value = self._look_up(trimmed[1]) or ""
            short = value.removesuffix(trimmed[3]) if "%" in trimmed[2] else value.removeprefix(trimmed[3])
            return short, trimmed.end()
        braced = _BRACED.match(text, position)
        if braced is not None:
            return self._braced(text, braced, depth=depth, quoted=quoted)
        bare = NAME.match(text, position + 1)
        if bare is None:
            raise UnsureError
        return self._look_up(bare[0]) or "", bare.end()

    def _braced(self, text: str, braced: re.Match[str], *, depth: int, quoted: bool) -> tuple[str, int]:
        name, operator = braced[1], braced[2] or ""
        value = self._look_up(name)
        if not operator:
            return value or "", _past(text, braced.end(), "}")
        counts = value is not None and (value != "" or ":" not in operator)
        used = counts == operator.endswith("+")
        before = self._doubt, self._passed_over
        self._doubt, self._passed_over = False, self._passed_over or not used
        word, end = self._value(text, braced.end(), stop="}", depth=depth + 1, quoted=quoted)
        end = _past(text, end, "}")
        doubt = self._doubt
        sets, self._passed_over = not self._passed_over and operator.endswith("="), before[1]
        self._doubt = before[0] or (used and doubt)
        if "=" in text[braced.start() : end] and (doubt or name in self.unsure):
            raise UnsureError  # it depends on that which variables are set by the way
        if operator.endswith("=") and (before[1] or (sets and name in self.exported)):
            raise UnsureError  # the shell of Apptainer 1.4.5 sets it though; it exports it no more
        if sets:
            self.set(name, word)
        if operator.endswith("+"):
            return (word if counts else ""), end
        return (value or "") if counts else word, end

    def _look_up(self, name: str) -> str | None:
        self._doubt |= self.lost or name in self.unsure
        return self.values.get(name)


def set_by_expansions(word: str) -> list[str]:
    """Return the variables that expansions in a word may set, as `${K:=word}` does.

    Raises BeyondError for those that may do anything: arithmetic, `${K?}`, and what only some shells have.
    """
    found: list[str] = []
    for expansion in _EXPANSION.finditer(word):
        pure = _PURE.match(word, expansion.start())
        if pure is None:
            raise BeyondError
        if pure["sets"]:
            found.append(pure[0][2 : pure.start("sets") - pure.start()])
    return found


def _past(text: str, position: int, character: str) -> int:
    if position >= len(text) or text[position] != character:
        raise UnsureError
    return position + 1


def _escape(text: str, position: int, stop: str) -> tuple[str, int]:
    """Return what a backslash makes of the character behind it, and where that ends.

    Outside double quotes it stays in the shell of Apptainer 1.4.5, and goes in others.
    """
    following = text[position + 1 : position + 2]
    if following == "\n":
        return "", position + 2
    if stop != '"' or following in ("", "}"):
        raise UnsureError
    return (following if following in '$`"\\' else "\\" + following), position + 2
