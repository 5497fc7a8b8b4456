"""A Dockerfile as it is written: its stages, instructions and values. Nothing is replaced, and nothing is run.

Sources: the Dockerfile reference (docs.docker.com/reference/dockerfile), and where it is silent, BuildKit
(moby/buildkit frontend/dockerfile/parser and shell).

spython's parser of Dockerfiles takes one line at a time: a comment inside a continued line becomes a step, so does each
line of a heredoc, and a FROM in one becomes the base. So a test alone has it, as the other opinion of simple files.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from lumiimg.decode import read_whole
from lumiimg.definition.text import quote_bash
from lumiimg.errors import BadInputError

FILE_LIMIT_BYTES = 256 * 1024
INSTRUCTION_LIMIT = 2000
STAGE_LIMIT = 100
KEYWORDS = (
    *("ADD", "ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "LABEL", "MAINTAINER"),
    *("ONBUILD", "RUN", "SHELL", "STOPSIGNAL", "USER", "VOLUME", "WORKDIR"),
)
_FLAGGED = frozenset({"ADD", "COPY", "FROM", "HEALTHCHECK", "RUN"})
_WITH_HEREDOC = frozenset({"ADD", "COPY", "ONBUILD", "RUN"})
_WITH_JSON = frozenset({"ADD", "CMD", "COPY", "ENTRYPOINT", "RUN", "SHELL", "VOLUME"})
_CONTROL = re.compile(r"[^\t\n -~\xa0-\U0010ffff]")
_CONTINUED = re.compile(r"(?<!\\)\\[ \t]*$")
_BETWEEN = re.compile(r"\s*(?:#.*)?")
"""A line that is passed over, inside a continued line, too."""
# A NUL, which is refused in a file, stands for the end of a continued line here.
_KEYWORD = re.compile(r"[^\s\0]*")
_FLAG = re.compile(r"[\s\0]+--([A-Za-z-]+)(?:=((?:[^\s\"]|\"[^\"]*\")*))?(?!\S)")
_WORD = re.compile(r"(?:\\(?:.|$)|'[^']*'|\"(?:\\.|[^\"\\])*+\"|[^\s'\"\\])+", re.DOTALL)
_HEREDOC = re.compile(r"\d*<<(-?)([^<]+)")
_ESCAPE = re.compile(r"\s*#\s*escape\s*=\s*[^\s\\]", re.IGNORECASE)
_NAME = r"[A-Za-z_]\w*"
# What Docker and bash, inside double quotes, read alike; at most one `${A:-word}` inside another.
_PLAIN = r"[^$`\"'\\{}&\n]"
_INNER = rf"(?:{_PLAIN}|\${_NAME}|\$\{{{_NAME}(?::?[-+]{_PLAIN}*+)?\}})*+"
_TOKEN = re.compile(
    rf"[^$'\"\\]+|\\(?P<escaped>.)|\$(?:(?P<name>{_NAME})|\{{(?P<opened>{_NAME})(?:(?P<operator>:?[-+?]|##?|%%?|//?)"
    rf"(?P<word>{_INNER}))?\}})|.",
    re.DOTALL | re.ASCII,
)
NAMED = re.compile(rf"\$(?:({_NAME})|\{{({_NAME})(\}}?))", re.ASCII)
_FROM = re.compile(r"(\S+)(?:\s+AS\s+([a-z0-9][a-z0-9_.-]{0,127}))?", re.IGNORECASE | re.ASCII)


class DockerfileError(BadInputError):
    """A Dockerfile that cannot be read; `where` is file:line."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction, its continuation lines put together."""

    line: int
    """Counted from 1."""
    keyword: str
    """In capitals."""
    pieces: tuple[str, ...]
    """The text behind keyword and flags, cut where the file continued a line."""
    flags: tuple[tuple[str, str], ...] = ()
    """`--mount=type=cache` as ("mount", "type=cache")."""
    heredocs: str = ""
    """The lines of all its heredocs, each with the line that ends it."""
    words: tuple[str, ...] | None = None
    """Of the JSON form; None in the shell form."""

    @property
    def text(self) -> str:
        """The text behind keyword and flags, as one line."""
        return "".join(self.pieces)

    @property
    def whole(self) -> str:
        """All that stands in it, to be searched."""
        return "\n".join((self.text, " ".join(self.words or ()), *(value for _, value in self.flags), self.heredocs))


@dataclass(frozen=True, slots=True)
class Stage:
    """A FROM and what follows it."""

    index: int
    line: int
    """Of its FROM, counted from 1."""
    name: str | None
    image: str
    """As it is written: variables and all."""
    platform: str
    """Of FROM --platform, as it is written; else empty."""
    instructions: list[Instruction]

    @property
    def label(self) -> str:
        """Its name, else its number."""
        return self.name or str(self.index)


@dataclass(frozen=True, slots=True)
class Dockerfile:
    """All of a Dockerfile."""

    path: str
    """As it was named."""
    sha256: str
    """Of the file, in hexadecimal."""
    arguments: tuple[Instruction, ...]
    """ARG before the first FROM."""
    stages: tuple[Stage, ...]

    def where(self, line: int) -> str:
        return f"{self.path}:{line}"


def read_dockerfile(path: Path) -> Dockerfile:
    """Read a file. Raises BadInputError, which says what is wrong in which line."""
    return parse_dockerfile(read_whole(path, FILE_LIMIT_BYTES), str(path))


def parse_dockerfile(data: bytes, path: str) -> Dockerfile:
    """Return the stages of a Dockerfile. Raises DockerfileError."""
    hint = "is it a Dockerfile?"
    if len(data) > FILE_LIMIT_BYTES:
        raise DockerfileError(f"larger than {FILE_LIMIT_BYTES} bytes", where=path, hint=hint)
    try:
        text = data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise DockerfileError("is not UTF-8", where=path, hint=hint) from error
    if (bad := _CONTROL.search(text)) is not None:
        where = f"{path}:{text.count(chr(10), 0, bad.start()) + 1}"
        raise DockerfileError(f"holds a control character, {bad[0]!r}", where=where, hint=hint)
    lines = text.split("\n")
    arguments, stages = _stages(_instructions(lines, path), path)
    return Dockerfile(path, hashlib.sha256(data).hexdigest(), arguments, stages)


def split_words(text: str) -> list[str] | None:
    """Split at blanks, but not inside quotes; quotes and escapes stay. None where a quote has no end."""
    return None if _WORD.sub("", text).strip() else _WORD.findall(text)


def _instructions(lines: Sequence[str], path: str) -> list[Instruction]:
    found: list[Instruction] = []
    at = 0
    while at < len(lines):
        line, where = lines[at].lstrip(), f"{path}:{at + 1}"
        start = at = at + 1
        if not found and _ESCAPE.match(line):
            hint = "end continued lines with a backslash, and remove the directive"
            raise DockerfileError("an escape directive is not supported", where=where, hint=hint)
        if _BETWEEN.fullmatch(line):
            continue
        if len(found) == INSTRUCTION_LIMIT:
            raise DockerfileError(f"more than {INSTRUCTION_LIMIT} instructions", where=where, hint="split it")
        pieces: list[str] = []
        while (cut := _CONTINUED.search(line)) is not None:
            pieces.append(line[: cut.start()])
            while at < len(lines) and _BETWEEN.fullmatch(lines[at]):
                at += 1
            line = lines[at] if at < len(lines) else ""
            at += 1
        keyword, text, flags = _parts("\0".join((*pieces, line)), where)
        joined = text.replace("\0", "")
        words = _json(joined) if keyword in _WITH_JSON else None
        begin = at
        if keyword in _WITH_HEREDOC and words is None and "<<" in joined:
            for opened in filter(None, map(_HEREDOC.fullmatch, split_words(joined) or ())):
                at = _end(lines, at, opened, where)
        heredocs = "".join(f"{line}\n" for line in lines[begin:at])
        found.append(Instruction(start, keyword, tuple(text.split("\0")), flags, heredocs, words))
    return found


def _parts(text: str, where: str) -> tuple[str, str, tuple[tuple[str, str], ...]]:
    """Return keyword, text and flags of an instruction."""
    word = (_KEYWORD.match(text) or [""])[0]
    keyword, at = word.upper(), len(word)
    if keyword not in KEYWORDS:
        near = difflib.get_close_matches(keyword[:40], KEYWORDS, n=1)
        hint = f"did you mean {near[0]}?" if near else "is it a Dockerfile?"
        raise DockerfileError(f"{word[:40]!r} is not a Dockerfile instruction", where=where, hint=hint)
    flags: list[tuple[str, str]] = []
    while keyword in _FLAGGED and (flag := _FLAG.match(text, at)) is not None:
        flags.append((flag[1], (flag[2] or "").replace("\0", "")))
        at = flag.end()
    if not (rest := text[at:].strip("\0 \t")):
        raise DockerfileError(f"{keyword} without a value", where=where, hint="give it a value, or remove it")
    return keyword, rest, tuple(flags)


def _json(text: str) -> tuple[str, ...] | None:
    """Return the words of a JSON array; anything else is the shell form, as Docker has it."""
    if not text.startswith("["):
        return None
    try:
        words = json.loads(text)
        if isinstance(words, list) and all(isinstance(word, str) and "\0" not in word for word in words):
            return tuple(word.encode().decode() for word in words)
    except (ValueError, RecursionError):  # half of a surrogate pair, too, which no file name or argument can hold
        return None
    return None


def _end(lines: Sequence[str], at: int, opened: re.Match[str], where: str) -> int:
    """Return the line behind a heredoc."""
    name = re.sub(r"['\"\\]", "", opened[2])
    for end in range(at, len(lines)):
        if (lines[end].lstrip("\t") if opened[1] else lines[end]) == name:
            return end + 1
    hint = f"a line with nothing but {name[:40]} ends it"
    raise DockerfileError(f"the heredoc {name[:40]!r} has no end", where=where, hint=hint)


def _stages(found: Iterable[Instruction], path: str) -> tuple[tuple[Instruction, ...], tuple[Stage, ...]]:
    arguments: list[Instruction] = []
    stages: list[Stage] = []
    for one in found:
        where = f"{path}:{one.line}"
        if one.keyword == "FROM":
            if (parts := _FROM.fullmatch(one.text)) is None:
                hint = "write FROM image, or FROM image AS name, of letters, digits, dots, dashes, underscores"
                raise DockerfileError(f"FROM {one.text[:80]}", where=where, hint=hint)
            if len(stages) == STAGE_LIMIT:
                raise DockerfileError(f"more than {STAGE_LIMIT} stages", where=where, hint="split the file")
            stages.append(Stage(len(stages), one.line, parts[2], parts[1], dict(one.flags).get("platform", ""), []))
        elif stages:
            stages[-1].instructions.append(one)
        elif one.keyword == "ARG":
            arguments.append(one)
        else:
            hint = "only ARG is allowed before the first FROM"
            raise DockerfileError(f"{one.keyword} before any FROM", where=where, hint=hint)
    if not stages:
        raise DockerfileError("has no FROM", where=path, hint="of a Dockerfile in parts, put the parts together first")
    return tuple(arguments), tuple(stages)


class ArgumentText(NamedTuple):
    """The value of an ARG, in the place of its name: whoever builds the layer may give another."""

    name: str
    text: str


class Reference(NamedTuple):
    """A variable whose value is not known here: the base image's, mostly."""

    name: str
    text: str
    """As a Dockerfile, and bash, have it."""
    operator: str = ""
    word: str = ""


Value = tuple[str | ArgumentText | Reference, ...]


def text_of(value: Value | None) -> str:
    """Return a value as a person reads it."""
    return "".join(part if isinstance(part, str) else part.text for part in value or ())


def variables(text: str) -> set[str]:
    """Return the names that a text has as $NAME or ${NAME…}."""
    return {match[1] or match[2] for match in NAMED.finditer(text)}


def parse_value(text: str, where: str) -> Value:
    """Return a word of a Dockerfile without its quotes and escapes. Raises DockerfileError, at `where`."""
    parts: list[str | Reference] = []
    quoted, at = False, 0
    while (found := _TOKEN.match(text, at)) is not None:
        at = found.end()
        if name := found["name"] or found["opened"]:
            shown = f"${{{name}}}" if found["name"] else found[0]
            parts.append(Reference(name, shown, found["operator"] or "", found["word"] or ""))
        elif found["escaped"]:
            parts.append(found[0] if quoted and found["escaped"] not in '"$\\' else found["escaped"])
        elif found[0] == '"':
            quoted = not quoted
        elif found[0] == "'" and not quoted:
            if (end := text.find("'", at)) < 0:
                raise DockerfileError("a quote has no end", where=where, hint="close it")
            parts.append(text[at:end])
            at = end + 1
        elif found[0] == "$" and text.startswith("{", at):
            what, hint = f"${text[at : at + 40]} has no closing brace, or is not supported", "write the value in full"
            raise DockerfileError(what, where=where, hint=hint)
        else:
            parts.append(found[0])
    if quoted:
        raise DockerfileError("a quote has no end", where=where, hint="close it")
    return tuple(parts)


def bash_word(value: Value) -> str:
    """Return one word of bash, in which variables alone are open."""
    parts = []
    for part in value:
        if isinstance(part, Reference):
            parts.append(part.text)
        elif (text := text_of((part,))).isprintable():
            parts.append(re.sub(r"[\\\"$`]", r"\\\g<0>", text))
        else:
            parts.append(f'"{quote_bash(text)}"')  # outside the quotes around it
    # `{""{` is the same to bash, and no build argument of a definition file
    return '"' + re.sub(r"\{(?=\{)", '{""', "".join(parts)) + '"'
