"""Translate the steps of a Dockerfile into a layer's post.sh, and report the parts that cannot be translated.

bash substitutes variables when the layer is built. Each RUN is passed unchanged to its own shell, so its quoting is
preserved. An omitted part becomes a comment if the build can safely continue without it; else `todo` ends the build.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from lumiimg.catalog.layers import RESERVED, VARIABLE
from lumiimg.core.errors import one_line
from lumiimg.core.findings import Severity
from lumiimg.core.redact import HIDDEN, is_secret_name, redact
from lumiimg.definition.docker.read import value_of, variables, with_values
from lumiimg.definition.text import quote_bash, trap

if TYPE_CHECKING:
    from lumiimg.definition.docker.read import Instruction

_FOLDERS = frozenset({"LD_LIBRARY_PATH", "PATH"})
"""Lists that a layer extends but never replaces: the fabric's libraries, and /opt/venv, are found through them."""
_READ_ONLY = frozenset({"UID", "EUID", "PPID", "SHELLOPTS", "BASHOPTS", "BASH_VERSINFO"})
"""Read-only variables of bash."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# A piece in which all quotes are closed: the shell, like Docker, ignores a continued line break after it.
_WHOLE = re.compile(r"(?:[^'\"\\#`<]|\\.|'[^']*'|\"(?:[^\"\\$`]|\\.|\$\([^()'\"\\`#]*\)|\$(?!\())*+\")*+")
_ALONE = re.compile(r"\d*<<(-?)[^<\s]+")
_FROM = re.compile(r"--from=(.+)")
_HARMLESS = re.compile(r"--network=.*|--mount=(?:.*,)?type=(?:cache|tmpfs)(?:,.*)?")
"""Flags that do not change the result of the step."""
_OWN_VALUE = re.compile(r"\$\{(\w+):?[-+](:?)(?:\$\{?\1\}?)?(:?)\}", re.ASCII)
"""The base's own value, with a colon if it is not empty: `${PATH:+:$PATH}`."""
_STARTS = "a layer has no start command: singularity exec image.sif COMMAND"
_HARMLESS_STEPS = {
    "CMD": _STARTS,
    "ENTRYPOINT": _STARTS,
    "EXPOSE": "a Singularity container uses the ports of the machine",
    "HEALTHCHECK": "nothing monitors a Singularity container",
    "LABEL": "lumiimg writes the labels",
    "MAINTAINER": "lumiimg writes the labels",
    "ONBUILD": "for stages that start from this one: put it after their FROM, and draft again",
    "STOPSIGNAL": "only the job stops a Singularity container",
    "USER": "a layer is built as root, and run as the user who starts it",
    "VOLUME": "bind a folder when the container is started",
}
_NOT_FOR_BASH = "write its value in bash syntax, under a name that bash lets you set"
_WITHHELD = (
    "contains or uses a secret, which a layer must not store: fetch what needs it before the build, and provide it as "
    "a file or a source of the layer"
)
_HEAD = """
# Each RUN is unchanged from the Dockerfile. `todo` ends the build where something is missing: provide it, by a source
# archive in layer.toml or a layer below this one, and delete the line.

# As in Docker, an unset variable is empty, and all values in an ENV see the variables as they were before it.
# shellcheck disable=SC2016,SC2119,SC2120,SC2154,SC2318
set -eo pipefail +u

todo() {
    echo "the draft is not finished: $*" >&2
    return 1
}

shell=(/bin/sh -c)
# The text of a RUN is read from standard input; its shell has an empty standard input, as in Docker.
run() {
    "${shell[@]}" "${1-$(cat)}" </dev/null
}

# The base's own WORKDIR is not known here.
cd /
"""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A part of a step that the draft omits."""

    line: int
    """Line of the instruction, counted from 1."""
    keyword: str
    """Instruction: `ENTRYPOINT`, …"""
    what: str
    """The omitted part, and why or what to do instead."""
    ends_build: bool
    """Whether the build ends there until the user has edited the draft."""
    is_secret: bool = False

    @property
    def severity(self) -> Severity:
        """Its effect on the draft."""
        if self.is_secret:
            return Severity.PROBLEM
        return Severity.UNKNOWN if self.ends_build else Severity.INFO


@dataclass(frozen=True, slots=True)
class DraftArgument:
    """An ARG of the steps."""

    name: str
    """Name of the ARG."""
    value: str | None
    """Value at its first declaration; null: none."""
    line: int
    """Line of that declaration, counted from 1."""
    is_fixed: bool
    """Whether the layer has no such argument: FROM uses it, its value uses variables, or its name is not allowed."""

    @property
    def template(self) -> str:
        """Its value in layer.toml, or a variable if layer.toml cannot contain the value."""
        if not self.is_fixed:
            return f"{{{self.name}}}"
        return f"${self.name}" if set(self.value or "") & {*"{}$"} else self.value or ""


def comment(text: str) -> str:
    """Return text as a comment: printable, short, and with nothing that a definition file would interpret."""
    return f"# {one_line(text).replace('{{', '{ {')[:300]}"


@dataclass(slots=True)
class Script:
    """A post.sh that is written step by step."""

    given: Mapping[str, str]
    """Values of ARG from the command line."""
    outer: Mapping[str, str]
    """Values of ARG before the first FROM."""
    decided: frozenset[str]
    """Names that are used in the image of FROM."""
    secrets: set[str]
    """Names whose values are secrets, even if the name does not show it."""
    lines: list[str] = field(default_factory=lambda: [_HEAD])
    steps: list[Instruction] = field(default_factory=list)
    """The added steps, without their secrets."""
    left_out: list[LeftOut] = field(default_factory=list)
    """Omitted parts, in the order of the file."""
    arguments: dict[str, DraftArgument] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    """Variables of the finished image set by ENV, in the form of layer.toml: `{NAME}` for an argument."""
    prepend: dict[str, str] = field(default_factory=dict)
    """Lists of folders that ENV prepended to those of the base."""

    def add(self, step: Instruction) -> None:
        """Write the translation of a step."""
        step, secrets = self._without_secrets(step)
        if not self.steps or self.steps[-1].stage != step.stage:
            self.lines += [comment(f"---- stage {step.stage}"), ""]
        self.steps.append(step)
        head = f"line {step.line}: {step.keyword}"
        self.lines.append(comment(head if step.keyword in {"ENV", "RUN"} else f"{head} {step.text}"))
        if secrets:
            ends = step.keyword not in {"ARG", "ENV", *_HARMLESS_STEPS}
            self.leave_out(step, secrets, ends=ends, is_secret=True)
        if step.keyword in {"ARG", "ENV"} and step.text != HIDDEN:
            self._set(step)
        elif step.keyword == "RUN" and not secrets:
            self._run(step)
        elif not secrets:
            self._do(step)
        self.lines.append("")

    def _without_secrets(self, step: Instruction) -> tuple[Instruction, str]:
        """Return a step without secrets, and a message about what was removed, which is empty if there was nothing."""
        if step.keyword in {"ARG", "ENV"} and step.pairs:
            left = [name for name, text in step.pairs if self._is_set_to_secret(name, text)]
            self.secrets.update(left)
            shown = [(name, HIDDEN if name in left else text) for name, text in step.pairs]
            text = " ".join(name if value is None else f"{name}={value}" for name, value in shown)
            what = f"{', '.join(left)}, left out as a secret, by name or value: give it to the job that runs the image"
            return (replace(step, pieces=(text,)), what) if left else (step, "")
        if self._is_secret(f"{step.keyword} {step.whole}") or "type=secret" in " ".join(step.flags):
            return replace(step, pieces=(HIDDEN,), flags=(), heredocs=""), _WITHHELD
        return step, ""

    def _is_set_to_secret(self, name: str, text: str | None) -> bool:
        """Return whether an ARG or ENV is a secret; its value may be from `--arg` or before the first FROM."""
        values = (text or "", self.given.get(name, ""), self.outer.get(name, ""))
        is_name = name in self.secrets or is_secret_name(name)
        return is_name or any(self._is_secret(f"{name}={value}") for value in values)

    def _is_secret(self, text: str) -> bool:
        used = variables(text)
        return redact(text) != text or not self.secrets.isdisjoint(used) or any(map(is_secret_name, used))

    def leave_out(self, step: Instruction, what: str, *, ends: bool = True, is_secret: bool = False) -> None:
        """Record and write that a step, or a part of it, is omitted."""
        self.left_out.append(LeftOut(step.line, step.keyword, what, ends, is_secret))
        note = comment(f"line {step.line}: {step.keyword}: {what}")[2:].replace("'", "'\\''")
        self.lines.append(f"todo '{note}'" if ends else comment(f"  omitted: {what}"))

    def _set(self, step: Instruction) -> None:
        if step.pairs is None:
            self.leave_out(step, f"{step.text}: {_NOT_FOR_BASH}")
        exports = []
        known = {name: one.template for name, one in self.arguments.items()} | self.environment
        for name, text in step.pairs or ():
            value = value_of(text or "")
            if text == HIDDEN:
                continue
            if value is None or not _NAME.fullmatch(name) or name in _READ_ONLY:
                self.leave_out(step, f"{name}: {_NOT_FOR_BASH}")
            elif step.keyword == "ARG":
                exports += self._declare(step, name, None if text is None else value)
            else:
                exports.append(_assigned(name, f'"{value}"'))
                self._keep(step, name, with_values(_OWN_VALUE.sub(r"\2${\1}\3", value), known))
        if exports:  # in one command: like Docker, bash expands all values before it sets any
            self.lines.append("export " + " \\\n    ".join(exports))

    def _declare(self, step: Instruction, name: str, value: str | None) -> list[str]:
        """Record an ARG. Return the assignment of its variable; none for an argument of the layer, already set."""
        if name in self.environment or name in self.prepend:
            return []  # ENV always wins
        literal = self.given.get(name, self.outer.get(name) if value is None else None)
        is_own = VARIABLE.fullmatch(name) and not name.startswith("SOURCE_") and name not in RESERVED | self.decided
        is_fixed = not is_own or (literal is None and "$" in (value or ""))
        one = DraftArgument(name, value if literal is None else literal, step.line, is_fixed)
        first = self.arguments.setdefault(name, one)
        if first is not one:
            if value is not None and one.value != first.value:
                self.leave_out(step, f"{name} has the value from line {first.line} here")
        elif one.value is None:
            self.lines.append(f'[ -n "${{{name}-}}" ] || unset {name}')
        elif is_fixed:
            return [_assigned(name, f'"{value}"' if literal is None else quote_bash(literal))]
        return []

    def _keep(self, step: Instruction, name: str, value: str) -> None:
        """Record a variable that ENV sets for users of the image."""
        own = re.fullmatch(rf"(?:(.*):)?\$\{{?{name}\}}?(?::(.*))?", value)
        folders = [*filter(None, own.groups() if own else [value.strip(": ")] if name in _FOLDERS else [])]
        self.environment.pop(name, None)
        if any("$" in folder for folder in folders or [value]) or not value.strip(": "):
            why = "write [environment] of layer.toml" if value.strip(": ") else "a layer cannot set an empty variable"
            what = f"{name} is set only during the build: {why}"
            self.leave_out(step, what, ends=False)
        elif folders:
            self.prepend[name] = ":".join([*folders, *filter(None, [self.prepend.get(name)])])
        elif not own:
            self.environment[name] = value

    def _do(self, step: Instruction) -> None:
        origin = next(filter(None, map(_FROM.fullmatch, step.flags)), None)
        folder = value_of(step.text) if step.keyword == "WORKDIR" else None
        if step.keyword in _HARMLESS_STEPS:
            self.leave_out(step, _HARMLESS_STEPS[step.keyword], ends=False)
        elif folder is not None:
            self.lines.append(f'mkdir -p -- "{folder}"\ncd -- "{folder}"')
        elif step.keyword == "SHELL" and step.words:
            self.lines.append(f"shell=({' '.join(map(quote_bash, step.words))})")
        elif step.keyword not in {"ADD", "COPY"}:
            self.leave_out(step, f"write this in bash: {step.text}")
        elif origin:
            self.leave_out(step, f"files of {origin[1]}, another stage or image, which is not built here")
        elif "://" in step.text:
            self.leave_out(step, "a URL: put it under [sources] of layer.toml, and copy the file from $SOURCE_NAME")
        else:
            what = "files: put them beside layer.toml, name them in its `files`, and copy them from $LAYER_FILES"
            self.leave_out(step, what)

    def _run(self, step: Instruction) -> None:
        for flag in step.flags:
            if not _HARMLESS.fullmatch(flag):
                why = "its source is not here" if flag.startswith("--mount=") else "a layer is built without it"
                self.leave_out(step, f"{flag}: {why}")
        alone = _ALONE.fullmatch(step.text)
        if alone and step.heredocs.lstrip("\t").startswith("#!"):
            what = "the heredoc has its own interpreter: put it into a file of the layer, and run that"
            self.leave_out(step, what)
        if step.words:
            self.lines.append(" ".join(map(quote_bash, step.words)))
            return
        if alone:
            text = step.heredocs.rstrip("\n").rpartition("\n")[0]
            text = re.sub(r"^\t+", "", text, flags=re.MULTILINE) if alone[1] else text
        else:  # with the file's line breaks if the shell ignores them
            is_whole = all(_WHOLE.fullmatch(piece) and not piece.endswith("\\") for piece in step.pieces[:-1])
            text = (("\\\n" if is_whole else "").join(step.pieces) + "\n" + step.heredocs).rstrip("\n")
        lines, end = text.split("\n"), f"RUN_{step.line}"
        is_plain = all(line != end and line.replace("\t", "").isprintable() and not trap(line)[0] for line in lines)
        self.lines.append(f"run <<'{end}'\n{text}\n{end}" if is_plain else f"run {quote_bash(text)}")


def _assigned(name: str, word: str) -> str:
    is_replaced = name in _FOLDERS and name not in variables(word)
    return f"{name}={word}" + (f'"${{{name}:+:${name}}}"' if is_replaced else "")
