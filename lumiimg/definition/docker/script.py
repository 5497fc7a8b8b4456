"""The steps of a Dockerfile as a layer's post.sh: a draft that a person goes on with.

Each RUN is given to the shell that Docker would give it to, as its standard input's text, so that its quoting stays its
own. What a layer cannot carry over is a comment where going on without it is harmless, and ends the build where it is
not: a step that compiles a folder which was never copied fails later, and less clearly, or builds something else.
"""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING

from lumiimg.catalog.layers import RESERVED, VARIABLE
from lumiimg.definition.docker.leftovers import left_out, sources_of
from lumiimg.definition.docker.shell import chunks, comment, is_heredoc_alone, is_plain, message, script_of
from lumiimg.definition.docker.substitution import Piece, PieceKind, Value, is_open, text_of
from lumiimg.definition.text import checked_body, quote_bash
from lumiimg.errors import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lumiimg.definition.docker.steps import BuildPath, Declared, DockerStep

READ_ONLY = frozenset({"UID", "EUID", "PPID", "SHELLOPTS", "BASHOPTS", "BASH_VERSINFO"})
"""Variables that bash lets nobody set."""
FOLDERS = frozenset({"LD_LIBRARY_PATH", "PATH"})
"""Lists that a layer adds to and never replaces: the fabric's libraries, and /opt/venv, are found by them."""
_SHELL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FUNCTIONS = """\
# Texts hold $NAMES as the Dockerfile has them.
# shellcheck disable=SC2016
set -euo pipefail

todo() {
    echo "the draft is not done: $*" >&2
    return 1
}

# The text of a RUN comes on standard input; its shell reads nothing, as under Docker.
run() {
    "$@" "$(cat)" </dev/null
}
"""


def usable_arguments(path: BuildPath) -> dict[str, Declared]:
    """Return the ARGs that can be arguments of a layer: a name that they take, and a value that decided nothing."""
    return {
        declared.name: declared
        for declared in path.arguments
        if VARIABLE.fullmatch(declared.name)
        and declared.name not in RESERVED | READ_ONLY | path.decided
        and not declared.name.startswith("SOURCE_")
        and (declared.value is None or is_own(declared.name, declared.value))
    }


def is_own(name: str, value: Value) -> bool:
    """Whether this is the value of the ARG itself, not that of an ENV of the same name, which always wins."""
    return len(value) == 1 and value[0].kind is PieceKind.ARGUMENT and value[0].name == name


def write_script(path: BuildPath, head: str, downloads: dict[int, str]) -> str:
    """Return post.sh; `downloads` are the variables of the sources by the line of their ADD."""
    writer = _Writer(path, downloads)
    lines = [
        head.rstrip("\n"),
        "",
        _FUNCTIONS,
        *writer.saved(),
        "# Where the base's own WORKDIR is is not known here.",
        "cd /",
    ]
    before: DockerStep | None = None
    for step in path.steps:
        if before is None or step.stage != before.stage:
            lines += ["", f"# ---- stage {one_line(step.stage)}"]
        if before is None or step.keyword != before.keyword or step.keyword not in {"ARG", "ENV"}:
            lines.append("")
        lines += writer.step(step)
        before = step
    text = "\n".join(lines).rstrip("\n") + "\n"
    return checked_body(text, "post.sh")


class _Writer:
    def __init__(self, path: BuildPath, downloads: dict[int, str]) -> None:
        self._arguments = usable_arguments(path)
        self._decided = path.decided
        self._downloads = downloads
        values = [value for step in path.steps if step.keyword != "ARG" for _, value in step.values if value]
        values += [content for step in path.steps for content in step.contents]
        pieces = [piece for value in values for piece in value]
        self._base = {piece.name for piece in pieces if piece.kind is PieceKind.BASE}
        # The value of these is wanted still when something else has their name.
        shadowed = {
            name
            for step in path.steps
            if step.keyword in {"ARG", "ENV"}
            for name, value in step.values
            if name in self._arguments and value is not None and value != self._arguments[name].value
        }
        shadowed |= set(path.environment) & self._arguments.keys()
        self._held = shadowed & {piece.name for piece in pieces if piece.kind is PieceKind.ARGUMENT}
        self._passed: dict[str, str] = {}
        """Variables that bash cannot hold, for env(1)."""

    def saved(self) -> Iterator[str]:
        """Keep what steps below refer to, and change."""
        for name in sorted(self._base):
            yield f"base_{name}=${{{name}-}}"
        for name in sorted(self._held):
            yield f"arg_{name}=${{{name}-}}"
        if self._base or self._held:
            yield ""

    def step(self, step: DockerStep) -> Iterator[str]:
        head = f"line {step.line}: {step.keyword}"
        if step.keyword == "ARG":
            for name, value in step.values:
                yield from self._argument(name, value, step.line)
            yield from (comment(f"{head}: not carried over: {what}") for what, _ in left_out(step))
            return
        yield comment(head if step.keyword in {"RUN", "ENV"} else f"{head} {step.instruction.text}")
        for what, is_wrong in left_out(step):
            yield f"todo {message(f'{head}: {what}')}" if is_wrong else comment(f"  not carried over: {what}")
        if step.keyword == "ENV":
            for name, value in step.values:
                yield self._export(name, value or ())
        elif step.withheld:
            return
        elif step.keyword == "RUN":
            yield from self._run(step)
        elif step.keyword == "WORKDIR":
            folder = self._word(step.values[0][1] or ())
            yield f"mkdir -p -- {folder}"
            yield f"cd -- {folder}"
        elif step.keyword in {"ADD", "COPY"}:
            yield from self._files(step)

    def _export(self, name: str, value: Value) -> str:
        if not _SHELL_NAME.fullmatch(name):
            return comment(f"  not carried over: {name} is not a valid variable name")
        if name in READ_ONLY:
            self._passed[name] = self._word(value)
            return comment(f"  {name} is bash's own; it is given to each RUN")
        word = self._word(value)
        if name in FOLDERS and not any(piece.kind is PieceKind.BASE and piece.name == name for piece in value):
            word += f'"${{{name}:+:${name}}}"'
        return f"export {name}={word}"

    def _argument(self, name: str, value: Value | None, line: int) -> Iterator[str]:
        head = f"line {line}: ARG {name}"
        declared = self._arguments.get(name)
        if value is not None and not is_own(name, value):
            yield comment(f"{head}: has the value that ENV gave it")
        elif declared is None:
            why = ": its value decided something when this was drafted" if name in self._decided else ""
            yield comment(f"{head}{why}{', without a value' if value is None else ''}")
            if value is not None:
                yield self._export(name, text_only(value))
        elif value is not None and declared.value != value:
            yield comment(f"{head}: an argument of the layer; another default from here on")
            default, other = (self._word(text_only(v)) for v in (declared.value or (), value))
            yield f'[ "${{{name}-}}" != {default} ] || export {name}={other}'
        else:
            yield comment(f"{head}: an argument of the layer{'' if line == declared.line else ', as above'}")
            if value is None and line == declared.line:
                yield f'[ -n "${{{name}-}}" ] || unset {name}'

    def _word(self, value: Value) -> str:
        """Return one word of bash: text quoted, arguments and the base's variables as they are when it runs."""
        words = []
        for piece in value:
            declared = self._arguments.get(piece.name)
            if piece.kind is PieceKind.BASE:
                words.append(f'"${{base_{piece.name}}}"')
            elif declared is not None and declared.value == (piece,):
                words.append(f'"${{{"arg_" if piece.name in self._held else ""}{piece.name}}}"')
            elif piece.text:
                words.append(quote_bash(piece.text))
        return "".join(words) or "''"

    def _run(self, step: DockerStep) -> Iterator[str]:
        instruction = step.instruction
        before = " ".join(f"{name}={word}" for name, word in self._passed.items())
        before = f"env {before} " if before else ""
        if instruction.words is not None:
            yield before + " ".join(map(quote_bash, instruction.words))
            return
        script = script_of(instruction)
        if is_heredoc_alone(instruction) and script.startswith("#!"):
            yield "script=$(mktemp)"
            yield f'printf %s {chunks(script)} >"$script"'
            yield 'chmod 700 "$script"'
            yield f'{before}"$script"'
            yield 'rm -f "$script"'
            return
        argv = " ".join(map(quote_bash, step.shell))
        end = f"RUN_{step.line}"
        if is_plain(script, end):
            yield f"run {before}{argv} <<'{end}'"
            yield script.rstrip("\n")
            yield end
        else:
            yield f"{before}{argv} \\"
            yield chunks(script)

    def _files(self, step: DockerStep) -> Iterator[str]:
        if not step.values:
            return
        target = step.values[-1][1] or ()
        if step.line in self._downloads:
            name = text_of(sources_of(step)[0]).partition("?")[0].rpartition("/")[2]
            yield f'install -D -m 600 -- "${self._downloads[step.line]}" {self._word(_inside(target, name))}'
        for heredoc, content in zip(step.instruction.heredocs, step.contents, strict=True):
            path = _inside(target, heredoc.name)
            folder = posixpath.dirname(text_of(path))
            if folder and not is_open(path):
                yield f"mkdir -p -- {quote_bash(folder)}"
            is_known = all(piece.kind is PieceKind.TEXT for piece in content)
            text = chunks(text_of(content)) if is_known else self._word(content)
            yield f"printf %s {text} >{self._word(path)}"
            if re.fullmatch(r"[0-7]{3,4}", mode := step.instruction.flag("chmod") or ""):
                yield f"chmod {mode} -- {self._word(path)}"


def text_only(value: Value) -> Value:
    """Return a value with the arguments in it as the text that they have."""
    return (Piece(text_of(value)),)


def _inside(target: Value, name: str) -> Value:
    return (*target, Piece(name)) if text_of(target).endswith("/") else target
