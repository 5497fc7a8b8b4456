"""Parse a Dockerfile into stages, instructions and words. Nothing of it is run.

bash substitutes variables when the layer is built; text with values substituted here is only searched or shown.

Sources: the Dockerfile reference (docs.docker.com/reference/dockerfile), and where it is silent, BuildKit
(moby/buildkit frontend/dockerfile/parser and shell).

spython's Dockerfile parser reads each line separately: a comment inside a continued line becomes a step, as does each
line of a heredoc, and a FROM in one becomes the base. So only a test uses it, as a second opinion on simple files.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lumiimg.core.decode import read_whole
from lumiimg.core.errors import BadInputError

FILE_LIMIT_BYTES = 256 * 1024
INSTRUCTION_LIMIT = 2000
KEYWORDS = (
    *("ADD", "ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "LABEL", "MAINTAINER"),
    *("ONBUILD", "RUN", "SHELL", "STOPSIGNAL", "USER", "VOLUME", "WORKDIR"),
)
_FLAGGED = frozenset({"ADD", "COPY", "FROM", "HEALTHCHECK", "RUN"})
_WITH_HEREDOC = frozenset({"ADD", "COPY", "ONBUILD", "RUN"})
_CONTROL = re.compile(r"[^\t\n -~\xa0-\U0010ffff]")
_ESCAPE = re.compile(r"(?:[ \t]*#[ \t]*\w+[ \t]*=.*\n)*?[ \t]*#[ \t]*escape[ \t]*=[ \t]*[^\s\\]", re.IGNORECASE)
_CONTINUED = re.compile(r"(?<!\\)\\[ \t]*$")
_BETWEEN = re.compile(r"\s*(?:#.*)?")
"""A line that is skipped, even inside a continued line."""
# Files with NUL are refused, so NUL marks the end of a continued line here.
_KEYWORD = re.compile(r"[^\s\0]*")
_FLAG = re.compile(r"[\s\0]+(--[A-Za-z-]+(?:=(?:[^\s\"]|\"[^\"]*\")*)?)(?!\S)")
_HEREDOC = re.compile(r"\d*<<(-?)([^<]+)")
_FROM = re.compile(r"(\S+)(?:\s+AS\s+([a-z][a-z0-9_.-]{0,127}))?", re.IGNORECASE | re.ASCII)
_WORD = re.compile(r"(?:\\(?:.|$)|'[^']*'|\"(?:\\.|[^\"\\])*+\"|[^\s'\"\\])+", re.DOTALL)
_NAME = r"[A-Za-z_]\w*"
_PLAIN = r"[^$`\"'\\{}]"
_INNER = rf"(?:{_PLAIN}|\${_NAME}|\$\{{{_NAME}(?::?[-+]{_PLAIN}*+)?\}})*+"
_OPEN = rf"(?:{_PLAIN}|\${_NAME}|\$\{{{_NAME}(?::?[-+]{_INNER})?\}})*+"
"""Text that Docker and bash interpret alike inside double quotes; at most one `${A:-word}` inside another."""
_VALUE = re.compile(rf"({_OPEN})|\"({_OPEN})\"|'({_PLAIN}*+)'", re.ASCII)
_DEFAULT = re.compile(rf"\$\{{({_NAME})(:?)-({_INNER})\}}|\${_NAME}|\$\{{{_NAME}\}}", re.ASCII)
_NAMED = re.compile(rf"\$(?:({_NAME})|\{{({_NAME})(\}}?))", re.ASCII)


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction with its continuation lines."""

    line: int
    """First line, counted from 1."""
    keyword: str
    """Keyword in capitals."""
    pieces: tuple[str, ...]
    """The text after keyword and flags, split where the file continues a line."""
    flags: tuple[str, ...] = ()
    """Flags, as `--mount=type=cache,target=/x`."""
    heredocs: str = ""
    """The lines of all its heredocs, each with its end line."""
    stage: str = ""
    """Name or number of its stage; empty before the first FROM."""

    @property
    def text(self) -> str:
        """The text after keyword and flags, as one line."""
        return "".join(self.pieces)

    @property
    def words(self) -> tuple[str, ...] | None:
        """The words of the JSON form; None for anything else, which Docker treats as the shell form."""
        try:
            words = json.loads(self.text) if self.text.startswith("[") else None
            if isinstance(words, list) and all(isinstance(word, str) and "\0" not in word for word in words):
                return tuple(word.encode().decode() for word in words)
        except (ValueError, RecursionError):  # also a lone surrogate, which no argument can contain
            pass
        return None

    @property
    def whole(self) -> str:
        """The whole text, to be searched."""
        return "\n".join((self.text, " ".join(self.words or ()), *self.flags, self.heredocs))

    @property
    def pairs(self) -> list[tuple[str, str | None]] | None:
        """The names of ARG or ENV with their values as written; None if the text has another form than NAME=VALUE."""
        words = split_words(self.text)
        if words and self.keyword == "ENV" and "=" not in words[0] and len(words) > 1:
            return [(words[0], self.text.split(maxsplit=1)[1])]
        parted = [word.partition("=") for word in words or ()]
        is_whole = words and all(name and (equals or self.keyword == "ARG") for name, equals, _ in parted)
        return [(name, value if equals else None) for name, equals, value in parted] if is_whole else None


@dataclass(frozen=True, slots=True)
class Stage:
    """A FROM and the instructions after it."""

    start: Instruction
    """Its FROM."""
    label: str
    """Its name, else its number."""
    image: str
    """The image as written, with any variables."""
    instructions: list[Instruction]

    @property
    def line(self) -> int:
        """Line of its FROM, counted from 1."""
        return self.start.line


@dataclass(frozen=True, slots=True)
class Dockerfile:
    """A parsed Dockerfile."""

    path: str
    """Path as the user gave it."""
    sha256: str
    """SHA-256 of the file, in hexadecimal."""
    arguments: list[Instruction]
    """ARG instructions before the first FROM."""
    stages: list[Stage]


def read_dockerfile(path: Path) -> Dockerfile:
    """Parse a file. Raises BadInputError with the fault and its line."""
    data, hint = read_whole(path, FILE_LIMIT_BYTES), "is it a Dockerfile?"
    try:
        text = data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise BadInputError("is not UTF-8", where=str(path), hint=hint) from error
    if (bad := _CONTROL.search(text)) is not None:
        where = f"{path}:{text.count(chr(10), 0, bad.start()) + 1}"
        raise BadInputError(f"contains a control character, {bad[0]!r}", where=where, hint=hint)
    if (directive := _ESCAPE.match(text)) is not None:
        where, hint = f"{path}:{directive[0].count(chr(10)) + 1}", "end continued lines with a backslash, and remove it"
        raise BadInputError("an escape directive is not supported", where=where, hint=hint)
    arguments: list[Instruction] = []
    stages: list[Stage] = []
    for number, one in enumerate(_instructions(text.split("\n"), path)):
        where = f"{path}:{one.line}"
        if number == INSTRUCTION_LIMIT:
            raise BadInputError(f"more than {INSTRUCTION_LIMIT} instructions", where=where, hint="split it")
        if one.keyword == "FROM":
            if (parts := _FROM.fullmatch(one.text)) is None:
                raise BadInputError(f"FROM {one.text[:80]}", where=where, hint="FROM image, or FROM image AS name")
            stages.append(Stage(one, parts[2] or str(len(stages)), parts[1], []))
        elif stages:
            stages[-1].instructions.append(replace(one, stage=stages[-1].label))
        elif one.keyword == "ARG":
            arguments.append(one)
        else:
            raise BadInputError(f"{one.keyword} before any FROM", where=where, hint="only ARG is allowed there")
    if not stages:
        raise BadInputError("has no FROM", where=str(path), hint="is it only part of a Dockerfile?")
    return Dockerfile(str(path), hashlib.sha256(data).hexdigest(), arguments, stages)


def _instructions(lines: Sequence[str], path: Path) -> Iterator[Instruction]:
    at = 0
    while at < len(lines):
        line, where = lines[at].lstrip(), f"{path}:{at + 1}"
        start = at = at + 1
        if _BETWEEN.fullmatch(line):
            continue
        pieces: list[str] = []
        while (cut := _CONTINUED.search(line)) is not None:
            pieces.append(line[: cut.start()])
            while at < len(lines) and _BETWEEN.fullmatch(lines[at]):
                at += 1
            line = lines[at] if at < len(lines) else ""
            at += 1
        one = _instruction("\0".join((*pieces, line)), start, where)
        begin = at
        if one.keyword in _WITH_HEREDOC and "<<" in one.text and one.words is None:
            for opened in filter(None, map(_HEREDOC.fullmatch, split_words(one.text) or ())):
                at = _end(lines, at, opened, where)
        yield replace(one, heredocs="".join(f"{line}\n" for line in lines[begin:at]))


def _instruction(text: str, line: int, where: str) -> Instruction:
    word = (_KEYWORD.match(text) or [""])[0]
    keyword, at = word.upper(), len(word)
    if keyword not in KEYWORDS:
        what = f"{word[:40]!r} is not a Dockerfile instruction"
        raise BadInputError(what, where=where, hint="is it a Dockerfile?")
    flags: list[str] = []
    while keyword in _FLAGGED and (flag := _FLAG.match(text, at)) is not None:
        flags.append(flag[1].replace("\0", ""))
        at = flag.end()
    if not (rest := text[at:].strip("\0 \t")):
        raise BadInputError(f"{keyword} without a value", where=where, hint="give it a value, or remove it")
    return Instruction(line, keyword, tuple(rest.split("\0")), tuple(flags))


def _end(lines: Sequence[str], at: int, opened: re.Match[str], where: str) -> int:
    """Return the index of the line after a heredoc."""
    name = re.sub(r"['\"\\]", "", opened[2])
    for end in range(at, len(lines)):
        if (lines[end].lstrip("\t") if opened[1] else lines[end]) == name:
            return end + 1
    hint = f"a line with only {name[:40]} ends it"
    raise BadInputError(f"the heredoc {name[:40]!r} has no end", where=where, hint=hint)


def split_words(text: str) -> list[str] | None:
    """Split at whitespace outside quotes; quotes and escapes are preserved. None if a quote is not closed."""
    return None if _WORD.sub("", text).strip() else _WORD.findall(text)


def value_of(text: str) -> str | None:
    """Return a value without its quotes, for use in double quotes in bash; None if bash would read it differently."""
    found = _VALUE.fullmatch(text) if text.isprintable() else None
    return found and next((value for value in found.groups() if value is not None), "")


def variables(text: str) -> list[str]:
    """Return the names that a text uses as $NAME or ${NAME…}, once for each use."""
    return [match[1] or match[2] for match in _NAMED.finditer(text)]


def with_values(text: str, values: Mapping[str, str]) -> str:
    """Replace $A and ${A} by their known values."""
    return _NAMED.sub(lambda m: m[0] if m[2] and not m[3] else values.get(m[1] or m[2], m[0]), text)


def resolved(text: str, values: Mapping[str, str]) -> str:
    """Replace variables, assuming that no others have a value, so that `${A:-word}` may become the word."""

    def value(found: re.Match[str]) -> str:
        name, colon, word = found.groups()
        if name is None:
            return with_values(found[0], values)
        is_set = values.get(name) if colon else name in values
        return values[name] if is_set else resolved(word, values)

    return _DEFAULT.sub(value, text)
