"""The instructions of a Dockerfile: continued lines, comments between them, flags, JSON forms, heredocs.

Sources: the Dockerfile reference, and where it is silent moby/buildkit frontend/dockerfile/parser.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from lumiimg.errors import BadInputError

INSTRUCTION_LIMIT = 2000
FLAG_LIMIT = 50
"""Of one instruction."""
KEYWORDS = (
    "ADD",
    "ARG",
    "CMD",
    "COPY",
    "ENTRYPOINT",
    "ENV",
    "EXPOSE",
    "FROM",
    "HEALTHCHECK",
    "LABEL",
    "MAINTAINER",
    "ONBUILD",
    "RUN",
    "SHELL",
    "STOPSIGNAL",
    "USER",
    "VOLUME",
    "WORKDIR",
)
_HEREDOC = re.compile(r"\d*<<(-?)([^<]+)")
_FLAGGED = {"ADD", "COPY", "FROM", "HEALTHCHECK", "RUN"}
_WITH_HEREDOC = {"ADD", "COPY", "RUN"}
_WITH_JSON = {"ADD", "CMD", "COPY", "ENTRYPOINT", "RUN", "SHELL", "VOLUME"}


class DockerfileError(BadInputError):
    """A Dockerfile that cannot be read; `where` is file:line."""


@dataclass(frozen=True, slots=True)
class Heredoc:
    """The lines behind a `<<NAME`."""

    name: str
    content: str
    is_literal: bool
    """Whether the name was quoted: variables are not replaced."""
    strips_tabs: bool
    """`<<-`."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction, its continuation lines put together."""

    line: int
    keyword: str
    """In capitals."""
    pieces: tuple[str, ...]
    """What stands behind keyword and flags, cut where the file continued a line; together they are `text`."""
    flags: tuple[tuple[str, str], ...] = ()
    """`--mount=type=cache` as ("mount", "type=cache")."""
    heredocs: tuple[Heredoc, ...] = ()
    words: tuple[str, ...] | None = None
    """Of the JSON form; None in the shell form."""
    trigger: Instruction | None = None
    """Of ONBUILD: the instruction for a stage that starts from this one."""

    @property
    def text(self) -> str:
        """What stands behind keyword and flags, as one line."""
        return "".join(self.pieces)

    def flag(self, name: str) -> str | None:
        return next((value for key, value in reversed(self.flags) if key == name), None)


def split_words(text: str, escape: str = "\\") -> list[str]:
    """Split at blanks, but not inside quotes; quotes and escapes stay. A quote without its end ends the list."""
    words: list[str] = []
    word, quote, at = "", "", 0
    while at < len(text):
        character = text[at]
        if character == escape and quote != "'" and at + 1 < len(text):
            word += text[at : at + 2]
            at += 2
            continue
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character in " \t":
            if word:
                words.append(word)
            word = ""
            at += 1
            continue
        word += character
        at += 1
    return [*words, word] if word and not quote else words


def read_instructions(lines: Sequence[str], escape: str, path: str) -> list[Instruction]:
    """Return the instructions of a file's lines. Raises DockerfileError."""
    # An escape before it keeps an escape from continuing the line.
    continues = re.compile(rf"(?<!{re.escape(escape)}){re.escape(escape)}[ \t]*$")
    found: list[Instruction] = []
    at = 0
    while at < len(lines):
        start = at
        line = lines[at].lstrip()
        at += 1
        if not line or line.startswith("#"):
            continue
        if len(found) == INSTRUCTION_LIMIT:
            raise DockerfileError(f"more than {INSTRUCTION_LIMIT} instructions", where=f"{path}:{at}", hint="split it")
        pieces: list[str] = []
        while (cut := continues.search(line)) is not None:
            pieces.append(line[: cut.start()])
            # Comments and empty lines inside a continued line are passed over.
            while at < len(lines) and (not lines[at].strip() or lines[at].lstrip().startswith("#")):
                at += 1
            line = lines[at] if at < len(lines) else ""
            at += 1
        pieces.append(line)
        instruction = _instruction(pieces, start + 1, escape, path)
        heredocs = []
        bearer = instruction.trigger or instruction
        if bearer.keyword in _WITH_HEREDOC and bearer.words is None and "<<" in bearer.text:
            for opened in _opened(bearer.text, escape):
                content, at = _content(lines, at, opened, f"{path}:{start + 1}")
                heredocs.append(replace(opened, content=content))
        if heredocs:
            bearer = replace(bearer, heredocs=tuple(heredocs))
            instruction = replace(instruction, trigger=bearer) if instruction.trigger else bearer
        found.append(instruction)
    return found


def _instruction(pieces: Iterable[str], line: int, escape: str, path: str) -> Instruction:
    pieces = _cut(pieces, 0)
    text = "".join(pieces)
    word = text.split(maxsplit=1)[0] if text.strip() else ""
    keyword, where = word.upper(), f"{path}:{line}"
    if keyword not in KEYWORDS:
        near = difflib.get_close_matches(keyword[:40], KEYWORDS, n=1)
        hint = f"did you mean {near[0]}?" if near else "is it a Dockerfile?"
        raise DockerfileError(f"{word[:40]!r} is not a Dockerfile instruction", where=where, hint=hint)
    pieces = _cut(pieces, len(word))
    flags: list[tuple[str, str]] = []
    while keyword in _FLAGGED and (flag := re.match(r"--(\S*)", text := "".join(pieces))):
        word = next(iter(split_words(text[:4096], escape)), flag[0])
        pieces = _cut(pieces, len(word))
        if word == "--":
            break
        name, _, value = word[2:].partition("=")
        flags.append((name, value))
        if len(flags) > FLAG_LIMIT:
            raise DockerfileError(
                f"{keyword} with more than {FLAG_LIMIT} flags", where=where, hint="is it a Dockerfile?"
            )
    text = "".join(pieces)
    if not text and keyword != "MAINTAINER":
        raise DockerfileError(f"{keyword} without a value", where=where, hint="give it a value, or remove it")
    instruction = Instruction(line, keyword, tuple(pieces), tuple(flags))
    if keyword == "ONBUILD":
        trigger = _instruction(pieces, line, escape, path)
        if trigger.keyword in {"ONBUILD", "FROM", "MAINTAINER"}:
            hint = "Docker allows neither ONBUILD nor FROM there"
            raise DockerfileError(f"ONBUILD {trigger.keyword}", where=where, hint=hint)
        return replace(instruction, trigger=trigger)
    return replace(instruction, words=_json(text)) if keyword in _WITH_JSON else instruction


def _cut(pieces: Iterable[str], count: int) -> list[str]:
    """Take `count` characters away, and all blanks before what is left and behind it."""
    left = list(pieces)
    while left and len(left[0]) <= count:
        count -= len(left.pop(0))
    if left:
        left[0] = left[0][count:]
    while left and not left[0].strip():
        left.pop(0)
    while left and not left[-1].strip():
        left.pop()
    if left:
        left[0] = left[0].lstrip()
        left[-1] = left[-1].rstrip()
    return left


def _json(text: str) -> tuple[str, ...] | None:
    """Return the words of a JSON array; what is none is the shell form, as Docker has it."""
    if not text.startswith("["):
        return None
    try:
        words = json.loads(text)
        if isinstance(words, list) and all(isinstance(word, str) and "\0" not in word for word in words):
            return tuple(word.encode().decode() for word in words)
    except (ValueError, RecursionError):  # half of a surrogate pair, too, which no file name or argument can hold
        return None
    return None


def _opened(text: str, escape: str) -> list[Heredoc]:
    found = []
    for word in split_words(text, escape):
        if (match := _HEREDOC.fullmatch(word)) is not None:
            name = re.sub(r"['\"\\]", "", match[2])
            if name:
                found.append(Heredoc(name, "", is_literal=name != match[2], strips_tabs=bool(match[1])))
    return found


def _content(lines: Sequence[str], at: int, opened: Heredoc, where: str) -> tuple[str, int]:
    for end in range(at, len(lines)):
        if (lines[end].lstrip("\t") if opened.strips_tabs else lines[end]) == opened.name:
            return "".join(f"{line}\n" for line in lines[at:end]), end + 1
    hint = f"a line with nothing but {opened.name[:40]} ends it"
    raise DockerfileError(f"the heredoc {opened.name[:40]!r} has no end", where=where, hint=hint)
