"""Variables in a Dockerfile: `$A`, `${A:-word}` and their kin, with quotes and escapes.

Sources: Dockerfile reference, Environment replacement; moby/buildkit frontend/dockerfile/shell.

A value is kept in pieces: text that is known, the value of an ARG (whoever builds may give another), and a variable
that only the base image could have set (PATH, mostly). So `ENV PATH=/opt/x/bin:$PATH` stays what it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import Enum

from lumiimg.definition.docker.instructions import DockerfileError

VALUE_LIMIT = 16 * 1024
"""Characters of one value."""
TOTAL_LIMIT = 8 * 1024 * 1024
"""Characters of all values that a file comes to: each could be made of those before it."""
NESTING_LIMIT = 20
_GLOB_LIMIT = 256
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_RUN = re.compile(r"[^$'\"\\`}]+")
_OPERATOR = re.compile(r":?[-+?]|##?|%%?|//?")


class PieceKind(Enum):
    """Where a piece comes from."""

    TEXT = "text"
    ARGUMENT = "argument"
    BASE = "base"


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a value; of the base image's variables only the name is known."""

    text: str
    kind: PieceKind = PieceKind.TEXT
    name: str = ""


Value = tuple[Piece, ...]


@dataclass(slots=True)
class Budget:
    """What is left of TOTAL_LIMIT."""

    left: int = TOTAL_LIMIT


@dataclass(slots=True)
class Scope:
    """The variables at one place of a Dockerfile."""

    values: dict[str, Value | None] = field(default_factory=dict)
    """None for an ARG without a value."""
    environment: set[str] = field(default_factory=set)
    """Names that ENV set: a later ARG does not change them."""
    has_base: bool = False
    """Whether what nothing here sets may be set by the base image."""
    budget: Budget = field(default_factory=Budget)
    decided: set[str] = field(default_factory=set)
    """Arguments that an operator looked at: what came of it is text, and would not follow another value."""

    def copy(self) -> Scope:
        """Return a scope that can be changed without this one."""
        return replace(self, values=dict(self.values), environment=set(self.environment))


def text_of(value: Iterable[Piece]) -> str:
    """Return a value as a person reads it."""
    return "".join(f"${{{piece.name}}}" if piece.kind is PieceKind.BASE else piece.text for piece in value)


def is_open(value: Iterable[Piece]) -> bool:
    """Whether a part of the value is not known here."""
    return any(piece.kind is PieceKind.BASE for piece in value)


def expand(text: str, scope: Scope, where: str, *, escape: str = "\\", keep_quotes: bool = False) -> Value:
    """Replace the variables in a word, and take quotes and escapes away unless `keep_quotes`.

    Raises DockerfileError, at `where`.
    """
    reader = _Reader(text, scope, where, escape, keep_quotes=keep_quotes)
    return reader.word("", 0)


class _Reader:
    def __init__(self, text: str, scope: Scope, where: str, escape: str, *, keep_quotes: bool) -> None:
        self._text = text
        self._at = 0
        self._scope = scope
        self._where = where
        self._escape = escape
        self._keep_quotes = keep_quotes

    def word(self, stop: str, depth: int) -> Value:
        if depth > NESTING_LIMIT:
            raise self._fault(f"variables nested more than {NESTING_LIMIT} deep", "write it in steps")
        pieces: list[Piece] = []
        quoted = False
        while self._at < len(self._text):
            character = self._text[self._at]
            if character in stop and not quoted:
                break
            if (run := _RUN.match(self._text, self._at)) is not None:
                pieces.append(Piece(run[0]))
                self._at = run.end()
            elif character == "$":
                self._at += 1
                pieces += self._variable(depth)
            elif character == self._escape:
                pieces.append(Piece(self._escaped(quoted=quoted)))
            elif self._keep_quotes or character not in ("'", '"') or (quoted and character == "'"):
                pieces.append(Piece(character))
                self._at += 1
            elif character == "'":
                end = self._text.find("'", self._at + 1)
                if end < 0:
                    raise self._fault("a quote ' has no end", "close it")
                pieces.append(Piece(self._text[self._at + 1 : end]))
                self._at = end + 1
            else:
                quoted = not quoted
                self._at += 1
        if quoted:
            raise self._fault('a quote " has no end', "close it")
        return self._checked(pieces)

    def _escaped(self, *, quoted: bool) -> str:
        following = self._text[self._at + 1 : self._at + 2]
        self._at += 1 + len(following)
        if not following or (self._keep_quotes and following != "$"):
            return self._escape + following
        if quoted and following not in ('"', "$", self._escape):
            return self._escape + following
        return following

    def _variable(self, depth: int) -> Value:
        if self._text[self._at : self._at + 1] != "{":
            if (name := _NAME.match(self._text, self._at)) is None:
                return (Piece("$"),)
            self._at = name.end()
            return self._lookup(name[0]) or ()
        self._at += 1
        name = _NAME.match(self._text, self._at)
        if name is None:
            raise self._fault(f"${{{self._text[self._at : self._at + 20]} names no variable", "write ${NAME}")
        self._at = name.end()
        operator = _OPERATOR.match(self._text, self._at)
        self._at = operator.end() if operator else self._at
        word = self.word("}", depth + 1) if operator else ()
        if self._text[self._at : self._at + 1] != "}":
            raise self._fault(f"${{{name[0][:40]} has no closing brace, or has an unsupported operator", "close it")
        self._at += 1
        value = self._lookup(name[0])
        return self._operated(name[0], value, operator[0], word) if operator else value or ()

    def _lookup(self, name: str) -> Value | None:
        if name in self._scope.values:
            return self._scope.values[name]
        return (Piece("", PieceKind.BASE, name),) if self._scope.has_base else None

    def _operated(self, name: str, value: Value | None, operator: str, word: Value) -> Value:
        unknown = name not in self._scope.values and value is not None
        if value is None:
            self._scope.decided.add(name)
        self._scope.decided |= {piece.name for piece in value or () if piece.kind is PieceKind.ARGUMENT}
        if operator.strip(":") in {"-", "+", "?"}:
            is_set = value is not None and (is_open(value) or bool(text_of(value)) or ":" not in operator)
            if unknown:
                # ${PATH:-} and ${PATH:+:$PATH} are about the base's own; what else it may have set is not counted on.
                is_set = not text_of(word) or any(piece.name == name for piece in word)
            if operator.endswith("+"):
                return word if is_set else ()
            if operator.endswith("?") and not is_set:
                raise self._fault(f"{name[:40]} is not set: {text_of(word)[:80]}", f"give it: --arg {name[:40]}=VALUE")
            return (value or ()) if is_set or operator.endswith("?") else word
        if value is None or is_open(value):
            return value or ()
        return (Piece(self._cut(text_of(value), operator, text_of(word))),)

    def _cut(self, text: str, operator: str, pattern: str) -> str:
        if operator in {"/", "//"}:
            old, _, new = pattern.partition("/")
            if not old or set(old) & set("*?["):
                raise self._fault(f"the pattern {old[:40]!r} is not supported", "write the value in full")
            return text.replace(old, new, 1 if operator == "/" else -1)
        if len(pattern) > _GLOB_LIMIT or "[" in pattern:
            raise self._fault(f"the pattern {pattern[:40]!r} is not supported", "write the value in full")
        if operator.startswith("#"):
            return text[_prefix(text, pattern, longest=operator == "##") :]
        return text[: len(text) - _prefix(text[::-1], pattern[::-1], longest=operator == "%%")]

    def _checked(self, pieces: Iterable[Piece]) -> Value:
        merged: list[Piece] = []
        size = 0
        for piece in pieces:
            size += len(piece.text) + len(piece.name)
            if size > VALUE_LIMIT:
                raise self._fault(f"a value of more than {VALUE_LIMIT} characters", "shorten it")
            if piece.kind is PieceKind.TEXT and merged and merged[-1].kind is PieceKind.TEXT:
                merged[-1] = Piece(merged[-1].text + piece.text)
            elif piece.text or piece.kind is not PieceKind.TEXT:
                merged.append(piece)
        self._scope.budget.left -= size
        if self._scope.budget.left < 0:
            raise self._fault(f"its values are longer than {TOTAL_LIMIT} characters in total", "shorten them")
        return tuple(merged)

    def _fault(self, what: str, hint: str) -> DockerfileError:
        return DockerfileError(what, where=self._where, hint=hint)


def _prefix(text: str, pattern: str, *, longest: bool) -> int:
    """Return how much of the beginning a pattern with * and ? takes, 0 where it does not fit.

    What a * takes is never tried again (but the last one, for the longest), so that no pattern is slow: the first place
    for what is behind a * leaves most room for the rest.
    """
    first, *behind = ("".join("." if c == "?" else re.escape(c) for c in part) for part in pattern.split("*"))
    last = f".*{behind.pop()}" if behind and longest else ""
    found = re.match(first + "".join(f"(?>.*?{part})" for part in behind) + last, text, re.DOTALL)
    return found.end() if found else 0
