"""A Dockerfile as instructions and stages, as it is written: no variable is replaced, and nothing is run.

Sources: the Dockerfile reference (docs.docker.com/reference/dockerfile), and where it is silent, what BuildKit does
(moby/buildkit frontend/dockerfile/parser).

spython has a parser of Dockerfiles too, and is not used here. It takes one line at a time: a comment inside a continued
line becomes a step, so does each line of a heredoc, and a FROM in one becomes the base. It keeps the backslashes that
continue a line, puts the steps of stages without a name together, replaces $A inside $AB, has no scope for ARG and no
variables in ENV, and raises IndexError for `ENV A`. Where none of that matters, one stage with an instruction a line, a
test has it as the other opinion (tests/unit/test_dockerfile.py).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lumiimg.catalog.toml_table import read_limited
from lumiimg.definition.docker.instructions import DockerfileError, Instruction, read_instructions

FILE_LIMIT_BYTES = 1024 * 1024
STAGE_LIMIT = 300
_DIRECTIVE = re.compile(r"#\s*([A-Za-z][A-Za-z0-9]*)\s*=\s*(.+?)\s*$")
_STAGE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")


@dataclass(frozen=True, slots=True)
class Stage:
    """A FROM and what follows it."""

    index: int
    line: int
    name: str | None
    image: str
    """As it is written: variables and all."""
    platform: str | None
    instructions: tuple[Instruction, ...]

    @property
    def label(self) -> str:
        """How a person, or `--target`, calls it."""
        return self.name or str(self.index)


@dataclass(frozen=True, slots=True)
class Dockerfile:
    """All of a Dockerfile."""

    path: str
    sha256: str
    escape: str
    """The character that continues a line: a backslash, unless a directive says a backquote."""
    arguments: tuple[Instruction, ...]
    """ARG before the first FROM."""
    stages: tuple[Stage, ...]

    def stage(self, name: str, before: int | None = None) -> Stage | None:
        """Return the last stage of that name, of those before the stage with the index `before`."""
        found = [stage for stage in self.stages[:before] if stage.name and stage.name.lower() == name.lower()]
        return found[-1] if found else None

    def numbered(self, name: str, before: int | None = None) -> Stage | None:
        """Return a stage by its name or its number, as COPY --from and --target have it."""
        if (found := self.stage(name, before)) is None and re.fullmatch(r"[0-9]{1,4}", name):
            found = next((stage for stage in self.stages[:before] if stage.index == int(name)), None)
        return found

    def where(self, line: int) -> str:
        return f"{self.path}:{line}"


def read_dockerfile(path: Path) -> Dockerfile:
    """Read a file. Raises BadInputError, which says what is wrong in which line."""
    data = read_limited(path, FILE_LIMIT_BYTES + 1)
    return parse_dockerfile(data, str(path))


def parse_dockerfile(data: bytes, path: str) -> Dockerfile:
    """Return the stages of a Dockerfile. Raises DockerfileError."""
    if len(data) > FILE_LIMIT_BYTES:
        raise DockerfileError(f"larger than {FILE_LIMIT_BYTES} bytes", where=path, hint="is it a Dockerfile?")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DockerfileError("is not UTF-8", where=path, hint="is it a Dockerfile?") from error
    if (nul := text.find("\0")) >= 0:
        where = f"{path}:{text.count(chr(10), 0, nul) + 1}"
        raise DockerfileError("holds a NUL byte", where=where, hint="is it a Dockerfile?")
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    escape = _escape(lines, path)
    arguments, stages = _stages(read_instructions(lines, escape, path), path)
    return Dockerfile(path, hashlib.sha256(data).hexdigest(), escape, arguments, stages)


def _escape(lines: Sequence[str], path: str) -> str:
    """Read the parser directives: comments of one form above everything else."""
    escape, seen = "\\", set()
    for number, line in enumerate(lines, start=1):
        found = _DIRECTIVE.match(line.strip())
        if found is None or (name := found[1].lower()) not in {"escape", "syntax", "check"}:
            break
        if name in seen:
            raise DockerfileError(f"the directive {name!r} is given twice", where=f"{path}:{number}", hint="remove one")
        seen.add(name)
        if name == "escape":
            if found[2] not in {"\\", "`"}:
                hint = "a backslash or a backquote can be one"
                raise DockerfileError(f"the escape {found[2]!r}", where=f"{path}:{number}", hint=hint)
            escape = found[2]
    return escape


def _stages(found: Iterable[Instruction], path: str) -> tuple[tuple[Instruction, ...], tuple[Stage, ...]]:
    arguments: list[Instruction] = []
    stages: list[tuple[Instruction, list[Instruction]]] = []
    for instruction in found:
        where = f"{path}:{instruction.line}"
        if instruction.keyword == "FROM":
            if len(stages) == STAGE_LIMIT:
                raise DockerfileError(f"more than {STAGE_LIMIT} stages", where=where, hint="split the file")
            stages.append((instruction, []))
        elif stages:
            stages[-1][1].append(instruction)
        elif instruction.keyword == "ARG":
            arguments.append(instruction)
        else:
            hint = "only ARG is allowed before the first FROM"
            raise DockerfileError(f"{instruction.keyword} before any FROM", where=where, hint=hint)
    if not stages:
        raise DockerfileError("has no FROM", where=path, hint="of a Dockerfile in parts, put the parts together first")
    return tuple(arguments), tuple(_stage(n, start, inside, path) for n, (start, inside) in enumerate(stages))


def _stage(index: int, start: Instruction, inside: Sequence[Instruction], path: str) -> Stage:
    words = start.text.split()
    if len(words) not in {1, 3} or (len(words) == 3 and words[1].upper() != "AS"):
        hint = "write FROM image, or FROM image AS name"
        raise DockerfileError(f"FROM {start.text[:80]}", where=f"{path}:{start.line}", hint=hint)
    name = words[2] if len(words) == 3 else None
    if name is not None and not _STAGE_NAME.fullmatch(name):
        hint = "letters, digits, dots, dashes, underscores"
        raise DockerfileError(f"{name[:40]!r} is not a valid stage name", where=f"{path}:{start.line}", hint=hint)
    return Stage(index, start.line, name, words[0], start.flag("platform"), tuple(inside))
