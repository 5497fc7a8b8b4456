"""The steps of a Dockerfile as the body of a layer's post.sh, and what of them a layer cannot carry over.

bash does the substitution when the layer is run. Each RUN is given to a shell of its own as it stands, so its quoting
stays its own. What is not carried over is a comment where going on without it is harmless; else `todo` ends the build.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lumiimg.catalog.layers import RESERVED, VARIABLE
from lumiimg.definition.docker.dockerfile import ArgumentText, Stage, Value, bash_word, parse_value, variables
from lumiimg.definition.docker.steps import mount_of
from lumiimg.definition.text import quote_bash, trap
from lumiimg.errors import one_line
from lumiimg.findings import Severity

if TYPE_CHECKING:
    from lumiimg.definition.docker.steps import BuildPath, Declared, DockerStep, Setting

FOLDERS = frozenset({"LD_LIBRARY_PATH", "PATH"})
"""Lists that a layer adds to and never replaces: the fabric's libraries, and /opt/venv, are found by them."""
SHELL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_READ_ONLY = frozenset({"UID", "EUID", "PPID", "SHELLOPTS", "BASHOPTS", "BASH_VERSINFO"})
"""Variables that bash lets nobody set."""
# A piece in which each quote is closed: a break behind it is nothing to the shell, as it is to Docker.
_WHOLE = re.compile(r"(?:[^'\"\\#`<]|\\.|'[^']*'|\"(?:[^\"\\$`]|\\.|\$\([^()'\"\\`#]*\)|\$(?!\())*+\")*+")
_ALONE = re.compile(r"\d*<<(-?)[^<\s]+")
_DOES = frozenset({"ADD", "COPY", "RUN", "WORKDIR"})
_STARTS = "a layer starts nothing: singularity exec image.sif COMMAND"
_NO_EFFECT = {
    "CMD": _STARTS,
    "ENTRYPOINT": _STARTS,
    "EXPOSE": "a Singularity container has the ports of the machine",
    "HEALTHCHECK": "nothing monitors a Singularity container",
    "LABEL": "lumiimg writes the labels",
    "MAINTAINER": "lumiimg writes the labels",
    "ONBUILD": "for stages that start from this one: put it behind their FROM, and draft again",
    "STOPSIGNAL": "only the job stops a Singularity container",
    "VOLUME": "bind a folder when the container is started",
}
_HEAD = """
# Each RUN is as it stands in the Dockerfile. `todo` ends the build where something is missing: put in what brings it, a
# source archive in layer.toml or a layer below this one, and take the line out.

# As under Docker, a variable that nothing sets is empty, and all of an ENV see what was before it.
# shellcheck disable=SC2016,SC2154,SC2318
set -eo pipefail +u

todo() {
    echo "the draft is not done: $*" >&2
    return 1
}

shell=(/bin/sh -c)
# The text of a RUN comes on standard input; its shell reads nothing, as under Docker.
run() {
    "${shell[@]}" "$(cat)" </dev/null
}

# Where the base's own WORKDIR is is not known here.
cd /
"""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Something of a step that the draft does not do."""

    line: int
    """Counted from 1."""
    keyword: str
    """`ENTRYPOINT`, …"""
    what: str
    """What becomes of it."""
    ends_build: bool
    """Whether the draft ends there until somebody has seen to it."""
    is_secret: bool

    @property
    def severity(self) -> Severity:
        """How it bears on the draft."""
        if self.is_secret:
            return Severity.PROBLEM
        return Severity.UNKNOWN if self.ends_build else Severity.INFO


def layer_arguments(path: BuildPath) -> dict[str, Declared]:
    """Return the ARGs that can be arguments of a layer: a name that they take, and a value that decided no FROM."""
    return {
        one.name: one
        for one in path.arguments
        if VARIABLE.fullmatch(one.name)
        and one.name not in RESERVED | _READ_ONLY | path.decided
        and not one.name.startswith("SOURCE_")
        and (one.value is None or is_own(one.name, one.value))
    }


def is_own(name: str, value: Value) -> bool:
    """Whether this is the value of the ARG itself, not that of an ENV of the same name, which always wins."""
    return len(value) == 1 and isinstance(value[0], ArgumentText) and value[0].name == name


def comment(text: str) -> str:
    """Return a text as it may stand in a comment: printable, short, and nothing that a definition file would read."""
    return f"# {one_line(text).replace('{{', '{ {')[:300]}"


def script_of(path: BuildPath) -> tuple[str, list[LeftOut]]:
    """Return the body of post.sh, and what it does not do."""
    lines, left = [_HEAD], []
    arguments = layer_arguments(path)
    stage = None
    for step in path.steps:
        head = f"line {step.line}: {step.keyword}"
        lines += [] if step.stage == stage else [comment(f"---- stage {step.stage}"), ""]
        stage = step.stage
        lines.append(comment(head if step.keyword in {"ENV", "RUN"} else f"{head} {step.text}"))
        where = path.dockerfile.where(step.line)
        for what, ends in _left_out(step):
            left.append(LeftOut(step.line, step.keyword, what, ends, bool(step.withheld)))
            note = comment(f"{head}: {what}" if ends else f"  not carried over: {what}")
            lines.append("todo '" + note[2:].replace("'", "'\\''") + "'" if ends else note)
        lines += [*_lines(step, arguments, where), ""]
    return "\n".join(lines).rstrip("\n") + "\n", left


def _left_out(step: DockerStep) -> Iterator[tuple[str, bool]]:
    """Yield what of a step a layer cannot carry over, and whether going on without it would be wrong."""
    if step.withheld:
        yield step.withheld, step.keyword in _DOES
    elif step.keyword in _NO_EFFECT:
        yield _NO_EFFECT[step.keyword], False
    elif step.keyword == "USER" and step.text.split(":")[0] not in {"root", "0"}:
        yield f"the steps behind it ran as {step.text}; a layer is built as root, and run as whoever starts it", False
    elif step.keyword in {"ARG", "ENV"}:
        for name in sorted(_READ_ONLY & {one.name for one in step.settings}):
            yield f"{name} is bash's own: write its value into the steps that use it", True
    elif step.keyword == "RUN":
        yield from _run_left_out(step)
    elif step.sources:
        yield f"files of {_origin(step.sources[0])}, which is not built here", True
    elif step.keyword in {"ADD", "COPY"}:
        if step.heredocs:
            yield "the text of its heredoc: put it into a file beside layer.toml, and copy that from $LAYER_FILES", True
        elif "://" in step.text:
            yield "an address: put it under [sources] of layer.toml, and copy it from $SOURCE_NAME", True
        else:
            what = "files of the build context: name them in `files` of layer.toml, and copy them from $LAYER_FILES"
            yield what, True


def _origin(source: Stage | str) -> str:
    return f"the stage {source.label} (line {source.line})" if isinstance(source, Stage) else f"the image {source}"


def _run_left_out(step: DockerStep) -> Iterator[tuple[str, bool]]:
    if _ALONE.fullmatch(step.text) and step.heredocs.lstrip("\t").startswith("#!"):
        yield "the heredoc is for an interpreter of its own: put it into a file of the layer, and run that", True
    for name, value in step.flags:
        mount = mount_of(value) if name == "mount" else {}
        kind = mount.get("type", "")
        if name == "security":
            yield f"--security={value}: an engine without root does not have it", False
        elif kind in {"secret", "ssh"}:
            is_required = mount.get("required", "false") in {"", "true", "1"}
            yield f"the {kind} of --mount={value}: not available in a build", is_required
        elif name == "mount" and kind not in {"cache", "tmpfs"}:  # faster with those, the same without
            origin = _origin(step.sources[0]) if mount.get("from") and step.sources else "the build context"
            yield f"--mount={value}: files of {origin}, which are not here", True


def _lines(step: DockerStep, arguments: dict[str, Declared], where: str) -> Iterator[str]:
    if step.keyword == "ARG":
        for one in step.settings:
            yield from _argument(one, arguments.get(one.name), step.line)
    elif step.keyword == "ENV":
        words = (_assigned(one) for one in step.settings if one.name not in _READ_ONLY)
        if exported := [word for word in words if word]:
            yield "export " + " \\\n    ".join(exported)  # in one: bash too expands all before it sets any
    elif step.withheld:
        return
    elif step.keyword == "WORKDIR":
        folder = bash_word(parse_value(step.text, where))
        yield f"mkdir -p -- {folder}\ncd -- {folder}"
    elif step.keyword == "SHELL" and step.words:
        yield f"shell=({' '.join(map(quote_bash, step.words))})"
    elif step.keyword == "RUN" and step.words:
        yield " ".join(map(quote_bash, step.words))
    elif step.keyword == "RUN":
        text, end = _shell_text(step).rstrip("\n"), f"RUN_{step.line}"
        lines = text.split("\n")
        if end not in lines and all(line.replace("\t", "").isprintable() and not trap(line)[0] for line in lines):
            yield f"run <<'{end}'\n{text}\n{end}"
        else:
            parts = re.findall(r"[^\n]{1,3000}\n?|\n", text)
            yield '"${shell[@]}" </dev/null \\\n' + "\\\n".join(map(quote_bash, parts))


def _shell_text(step: DockerStep) -> str:
    """Return what Docker gives to the shell; broken as in the file where the shell takes that as nothing."""
    if (alone := _ALONE.fullmatch(step.text)) is not None:
        text = step.heredocs[: step.heredocs.rstrip("\n").rfind("\n") + 1]
        return re.sub(r"^\t+", "", text, flags=re.MULTILINE) if alone[1] else text
    pieces = step.pieces
    is_plain = all(_WHOLE.fullmatch(piece) and not piece.endswith("\\") for piece in pieces[:-1])
    return ("\\\n" if is_plain else "").join(pieces) + "\n" + step.heredocs


def _assigned(one: Setting) -> str:
    if not SHELL_NAME.fullmatch(one.name):
        return ""
    word = bash_word(one.written or ())
    if one.name in FOLDERS and one.name not in variables(word):
        word = f'{word[:-1]}${{{one.name}:+:${one.name}}}"'
    return f"{one.name}={word}"


def _argument(one: Setting, declared: Declared | None, line: int) -> Iterator[str]:
    """Yield what sets the variable of an ARG; that of a layer is set already."""
    if one.written is None and one.value is not None:
        yield comment(f"{one.name} has the value that ENV gave it")
    elif declared is None:
        if one.written is not None and one.name not in _READ_ONLY and (word := _assigned(one)):
            yield f"export {word}"
    elif declared.value is None and line == declared.line:
        yield f'[ -n "${{{one.name}-}}" ] || unset {one.name}'
    elif one.value is not None and declared.value != one.value:
        default, other = (bash_word(value or ()) for value in (declared.value, one.value))
        yield f'[ "${one.name}" != {default} ] || export {one.name}={other}'
