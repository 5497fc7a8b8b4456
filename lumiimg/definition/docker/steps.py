"""What following a Dockerfile gives: the steps from a base image to a stage, as values."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lumiimg.definition.docker.instructions import DockerfileError, Instruction, split_words

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from lumiimg.definition.docker.dockerfile import Dockerfile, Stage
    from lumiimg.definition.docker.substitution import Value

PLATFORM = {
    "TARGETPLATFORM": "linux/amd64",
    "TARGETOS": "linux",
    "TARGETARCH": "amd64",
    "TARGETVARIANT": "",
    "BUILDPLATFORM": "linux/amd64",
    "BUILDOS": "linux",
    "BUILDARCH": "amd64",
    "BUILDVARIANT": "",
}
"""What BuildKit defines before the first FROM; the machines of the sites are all of this kind."""
SHELL = ("/bin/sh", "-c")
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+))")


@dataclass(frozen=True, slots=True)
class DockerStep:
    """One instruction, in the order of the build."""

    stage: str
    instruction: Instruction
    values: tuple[tuple[str, Value | None], ...] = ()
    """ENV and ARG: name and value. WORKDIR: the whole path. ADD and COPY: sources, then the target. Else one value."""
    shell: tuple[str, ...] = SHELL
    reading: str = ""
    """Of RUN: the text with what is known in the place of $A and ${A}, to be searched; never to be run."""
    sources: tuple[Stage | str, ...] = ()
    """Stages of the file, or images, that files are taken from."""
    contents: tuple[Value, ...] = ()
    """Of COPY: what its heredocs hold."""
    withheld: str = ""
    """Why the step, or some of its variables, is taken out: it holds a secret."""

    @property
    def line(self) -> int:
        """Where it stands."""
        return self.instruction.line

    @property
    def keyword(self) -> str:
        """In capitals."""
        return self.instruction.keyword

    @property
    def text(self) -> str:
        """What stands behind keyword and flags."""
        return self.instruction.text


@dataclass(frozen=True, slots=True)
class Declared:
    """An argument, with the value that it has where it is first declared."""

    name: str
    value: Value | None
    line: int
    uses: tuple[int, ...]
    """Lines that name it."""


@dataclass(frozen=True, slots=True)
class BuildPath:
    """The way from a base image to a stage."""

    dockerfile: Dockerfile
    stages: tuple[Stage, ...]
    """From the one that starts at the base to the target."""
    base: str | None
    """The image, its variables replaced; None for `scratch`."""
    platform: str | None
    """What FROM --platform asks for."""
    steps: tuple[DockerStep, ...]
    arguments: tuple[Declared, ...]
    environment: Mapping[str, Value]
    decided: frozenset[str]
    """Arguments whose value decided something when this was read: an image of FROM, a word of `${A:-word}`."""
    needed: tuple[Stage, ...]
    """Other stages, files of which are taken, directly or by one of them."""
    needed_steps: tuple[DockerStep, ...]
    """What is done in those."""

    @property
    def target(self) -> Stage:
        """The stage that was asked for."""
        return self.stages[-1]


def mount_of(value: str) -> dict[str, str]:
    """Return the fields of RUN --mount=…; one without a value has an empty one, and the type is bind."""
    fields = (part.partition("=") for part in value.split(","))
    found = {key.strip().lower(): text for key, _, text in fields}
    return {"type": "bind", **found}


def variables(text: str) -> set[str]:
    """Return the names that a text has as $NAME or ${NAME…}."""
    return {match[1] or match[2] for match in _VARIABLE.finditer(text)}


def declared(steps: Sequence[DockerStep]) -> Iterator[Declared]:
    """Yield the arguments that the steps declare, each once, with the lines that use them."""
    uses: dict[str, list[int]] = {}
    first: dict[str, tuple[Value | None, int]] = {}
    for step in steps:
        text = " ".join([step.instruction.text, *(heredoc.content for heredoc in step.instruction.heredocs)])
        for name in variables(text):
            uses.setdefault(name, []).append(step.line)
        if step.keyword == "ARG":
            for name, value in step.values:
                first.setdefault(name, (value, step.line))
    for name, (value, line) in first.items():
        yield Declared(name, value, line, tuple(uses.get(name, ())))


def check_given(dockerfile: Dockerfile, given: Mapping[str, str]) -> None:
    """Raise DockerfileError for the value of an argument that nothing declares: a slip of the pen, mostly."""
    instructions = [*dockerfile.arguments, *(i for stage in dockerfile.stages for i in stage.instructions)]
    texts = (i.text for i in instructions if i.keyword == "ARG")
    known = {word.partition("=")[0] for text in texts for word in split_words(text, dockerfile.escape)}
    for name in given:
        if name not in known and name not in PLATFORM:
            near = difflib.get_close_matches(name[:60], known, n=1)
            hint = f"did you mean {near[0]}?" if near else "`lumiimg draft DOCKERFILE` shows its arguments"
            raise DockerfileError(f"--arg {name[:60]}: no ARG of that name", where=dockerfile.path, hint=hint)
