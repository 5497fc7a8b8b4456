"""What the environment scripts of an image export, read as text: nothing of an image is ever run.

Followed is what scripts that set variables write as a rule: assignments, `export`, `unset`, quotes, `$K`, `${K}`,
`${K:-word}` and its like, `${K%literal}`, `:`, tests of strings, and `if`, `&&`, `||` over these. Everything else is
one of three. It cannot set a variable: a program, a subshell, a function that nobody calls. Or it can set some that its
text names (a condition on a file, `$(program)`): from there on they are unsure. Or it can change anything, or end the
script (`. file`, `eval`, `return`): from there on all are unsure. The warnings name what can change anything, and each
statement that makes a variable unsure by which somebody goes (`shell.names.is_read`). Of the others, an unsure one is
left out without a word.

Engines unset the user's variables before they source the scripts (apptainer 1.5.3
`internal/pkg/util/fs/files/action_script.sh`): what the image does not set is unset, but for what the engine and the
shell set themselves.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from lumiimg.image.shell.names import ABLE, GUARDED, is_read
from lumiimg.image.shell.parser import AndOr, Apart, BraceGroup, Command, Function, If, Maybe, Not, Simple, parse
from lumiimg.image.shell.variables import BeyondError, ShellVariables, UnsureError, set_by_expansions
from lumiimg.image.shell.words import NAME, ShellError

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Where an image sets none (apptainer internal/pkg/util/env/env.go, DefaultPath)."""
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=")
_SETS = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?=|\[)")
_PROGRAM = re.compile(r"[A-Za-z0-9_./:+@\[-]+")
_SPECIAL = ("export", "unset", ":", "break", "continue", "times")
"""Commands of which an error ends the script in some shells, and assignments before them stay."""
_ARITHMETIC = frozenset({"-eq", "-ne", "-lt", "-le", "-gt", "-ge"})
_MAX_TEXT = 1 << 18
_MAX_WARNINGS = 50
_SHOWN_CHARACTERS = 80


class ShellEnvironment:
    """What shells have after scripts that are sourced one after the other."""

    def __init__(self) -> None:
        self.variables = ShellVariables()
        self.warnings: list[str] = []
        self._functions: set[str] = set()
        self._text = 0
        self._where = ""

    def read(self, text: str, where: str) -> None:
        """Read one script."""
        self._where = where
        self._text += len(text)
        if self._text > _MAX_TEXT:
            self.variables.lose()
            self._warn(f"not read: the scripts together have more than {_MAX_TEXT} characters")
            return
        try:
            for command in parse(text):
                self._run(command)
        except ShellError as error:
            self.variables.lose()
            self._warn(f"not read from here on: {_shown(text[error.position :])}")

    def set_default_path(self) -> None:
        """Set PATH where the image does not, as engines do before `90-environment.sh`."""
        if "PATH" not in self.variables.values:
            self.complete_path()

    def complete_path(self) -> None:
        """Add the usual folders that PATH lacks, as engines do after `10-docker2singularity.sh` (`fixpath`)."""
        path = self.variables.values.get("PATH")
        folders = path.split(":") if path else []
        lacking = [folder for folder in DEFAULT_PATH.split(":") if folder not in folders]
        unsure = "PATH" in self.variables.unsure
        self.variables.set("PATH", ":".join([*folders, *lacking]))
        self.variables.export("PATH")
        if unsure:
            self.variables.unsure.add("PATH")

    def result(self) -> dict[str, str]:
        """Return what is exported and set; of the unsure ones those that the warnings are about, without the doubt."""
        values, unsure = self.variables.values, self.variables.unsure
        exported = sorted(self.variables.exported & values.keys())
        return {name: values[name] for name in exported if name not in unsure or is_read(name)}

    def unsure(self) -> frozenset[str]:
        """Return which of these may have another value, or none: whoever goes by one has an open question."""
        return frozenset(self.result().keys() & self.variables.unsure)

    # -- what is followed --

    def _run(self, command: Command) -> bool | None:
        """Follow a command; return whether it succeeds, None where that is not known."""
        match command:
            case Simple():
                return self._simple(command)
            case AndOr(first, rest):
                status = self._run(first)
                for operator, following in rest:
                    if status is None:
                        self._maybe(following)
                    elif status == (operator == "&&"):
                        status = self._run(following)
                return status
            case Not(inner):
                status = self._run(inner)
                return None if status is None else not status
            case BraceGroup(body):
                return self._all(body)
            case If(branches, otherwise):
                return self._if(branches, otherwise)
            case Function(name):
                self._functions.add(name)
                return True
            case _:
                self._maybe(command)
                return None

    def _all(self, commands: Iterable[Command]) -> bool | None:
        status: bool | None = True
        for command in commands:
            status = self._run(command)
        return status

    def _if(
        self, branches: Sequence[tuple[tuple[Command, ...], tuple[Command, ...]]], otherwise: Sequence[Command]
    ) -> bool | None:
        for number, (condition, body) in enumerate(branches):
            status = self._all(condition)
            if status is None:
                self._maybe(BraceGroup(body))
                self._maybe(If(tuple(branches[number + 1 :]), tuple(otherwise)))
                return None
            if status:
                return self._all(body)
        return self._all(otherwise)

    def _simple(self, command: Simple) -> bool | None:
        if command.redirected:
            self._maybe(command)
            return None
        try:
            return self._followed(command.words)
        except UnsureError:
            self._maybe(command)
        except BeyondError:
            self._lose(command.text)
        return None

    def _followed(self, words: tuple[str, ...]) -> bool | None:
        """Follow a command. Raises UnsureError for one that is not known, BeyondError for one that may do anything."""
        if all(_ASSIGNMENT.match(word) for word in words):
            for word in words:
                self._assign(word)
            return True
        name, *arguments = words
        if name in self._functions:
            raise BeyondError
        if name == "export" and arguments:
            self._export(arguments)
            return True
        if name == "unset" and arguments:
            for word in _unset(arguments):
                self.variables.unset(word)
            return True
        if name in (":", "true", "false"):
            for word in arguments:
                self.variables.expanded(word)
            return name != "false"
        if name == "test":
            return self._test(arguments)
        if name == "[" and words[-1] == "]":
            return self._test(arguments[:-1])
        raise UnsureError

    def _export(self, words: Sequence[str]) -> None:
        if not all(_ASSIGNMENT.match(word) or NAME.fullmatch(word) for word in words):
            raise BeyondError
        set_before: set[str] = set()
        for word in words:
            name, equals, text = word.partition("=")
            if not set_before.isdisjoint(NAME.findall(text)):
                raise UnsureError  # a shell expands all words first, the one in engines does not
            if equals:
                self._assign(word)
                set_before.add(name)
            self.variables.export(name)

    def _assign(self, word: str) -> None:
        name, _, text = word.partition("=")
        value, sure = self.variables.expanded(text)
        self.variables.set(name, value)
        if not sure:
            self._make_unsure(name, word)

    def _test(self, words: Sequence[str]) -> bool | None:
        arguments: list[str] = []
        for word in words:
            found, sure = self.variables.fields(word)
            if not sure:
                raise UnsureError
            arguments += found
        return _judged(arguments)

    # -- what may be --

    def _maybe(self, command: Command) -> None:
        """Make unsure what a command can set, whether and however often it is run."""
        match command:
            case Simple():
                try:
                    self._maybe_simple(command)
                except BeyondError:
                    self._lose(command.text)
            case Maybe(text, words, name, body):
                self._functions.update(_functions_in(body))
                try:
                    self._side_effects(words, text)
                    if name is not None:
                        self._maybe_set(name, text)
                except BeyondError:
                    self._lose(text)
                self._maybe(BraceGroup(body))
            case Function(name):
                self._functions.add(name)
            case _:
                for inner in _inside(command):
                    self._maybe(inner)

    def _maybe_simple(self, command: Simple) -> None:
        words, text = command.words, command.text
        if command.redirected and (not words or _SETS.match(words[0]) or words[0] in _SPECIAL):
            raise BeyondError  # a file that cannot be opened ends the script
        self._side_effects(words, text)
        before = next((number for number, word in enumerate(words) if not _SETS.match(word)), len(words))
        if before == len(words):
            for word in words:
                self._maybe_set(word, text)
            return
        name, *arguments = words[before:]
        if name in self._functions or name in ABLE or not _PROGRAM.fullmatch(name) or (before and name in _SPECIAL):
            raise BeyondError
        if name == "[[" and not _ARITHMETIC.isdisjoint(arguments):
            raise BeyondError  # operands may assign
        if name == "printf" and arguments and arguments[0].lstrip("'\"").startswith(("-", "$", "`", "\\")):
            raise BeyondError  # `-v NAME`
        if name == "export":
            for word in arguments:
                self._maybe_set(word, text)
                self.variables.perhaps_exported.add(word.partition("=")[0].rstrip("+"))
        elif name == "unset":
            for word in _unset(arguments):
                self._maybe_set(word, text)
                self.variables.perhaps_exported.add(word)  # set again, it may be exported no more

    def _maybe_set(self, word: str, text: str) -> None:
        """Make unsure what `K`, `K=value` or `K+=value` sets."""
        sets = _SETS.match(word)
        name = sets[1] if sets else word
        if not NAME.fullmatch(name) or name in GUARDED or (sets and sets[2] == "["):  # an index is arithmetic
            raise BeyondError
        self._make_unsure(name, text)

    def _side_effects(self, words: Iterable[str], text: str) -> None:
        for word in words:
            for name in set_by_expansions(word):
                self._maybe_set(name, text)

    def _make_unsure(self, name: str, text: str) -> None:
        self.variables.unsure.add(name)
        if is_read(name):
            self._leave_out(text)

    def _lose(self, text: str) -> None:
        self.variables.lose()
        self._leave_out(text)

    def _leave_out(self, text: str) -> None:
        self._warn(f"left out, beyond a plain export: {_shown(text)}")

    def _warn(self, text: str) -> None:
        warning = f"{self._where}: {text}"
        if len(self.warnings) < _MAX_WARNINGS and warning not in self.warnings:
            self.warnings.append(warning)


def _unset(words: Sequence[str]) -> Sequence[str]:
    """Return the variables that `unset` takes away. Raises BeyondError where they are not to be seen."""
    names = words[1:] if words[:1] == ["-v"] else words
    if words[:1] == ["-f"]:
        return ()
    if not all(map(NAME.fullmatch, names)):
        raise BeyondError
    return names


def _inside(command: Command) -> Iterator[Command]:
    """Yield the commands that a command is made of."""
    match command:
        case AndOr(first, rest):
            yield first
            yield from (following for _, following in rest)
        case Not(inner):
            yield inner
        case If(branches, otherwise):
            for condition, body in branches:
                yield from (*condition, *body)
            yield from otherwise
        case BraceGroup(body) | Maybe(body=body):
            yield from body
        case Simple() | Apart() | Function():
            return


def _functions_in(commands: Iterable[Command]) -> Iterator[str]:
    for command in commands:
        if isinstance(command, Function):
            yield command.name
        yield from _functions_in(_inside(command))


def _judged(arguments: Sequence[str]) -> bool | None:
    """Judge a test of strings by the number of its arguments (POSIX `test`); None where files decide, or numbers."""
    match arguments:
        case []:
            return False
        case [one]:
            return one != ""
        case [left, "=", right]:
            return left == right
        case [left, "!=", right]:
            return left != right
        case ["-z", one]:
            return one == ""
        case ["-n", one]:
            return one != ""
        case ["!", *rest] if len(rest) < 4:
            status = _judged(rest)
            return None if status is None else not status
    return None


def _shown(text: str) -> str:
    return " ".join(text[: 4 * _SHOWN_CHARACTERS].split())[:_SHOWN_CHARACTERS]
