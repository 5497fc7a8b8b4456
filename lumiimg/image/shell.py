"""Words of shell text and the variables in them, parsed but never run (POSIX Shell Command Language 2.2, 2.5.3, 2.6).

Syntax that shells read differently, or that is rare in scripts that set variables (here-documents, arrays, arithmetic,
`${K/a/b}`), raises ShellError: once a script cannot be parsed with certainty, nothing after that point can.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lumiimg.core.toml import package_toml
from lumiimg.image.tree import ImageError

if TYPE_CHECKING:
    from lumiimg.image.root import RootFileSystem

_TABLES = package_toml(__package__, "shell.toml")
VOLATILE = frozenset[str](_TABLES["volatile"]["names"])
"""Variables that shells or engines set themselves."""
READONLY = frozenset[str](_TABLES["readonly"]["names"])
"""Variables that cannot be set like others."""
STATEFUL = frozenset[str](_TABLES["stateful"]["names"])
"""Commands that can change any variable, or how the script continues."""

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""PATH if the image does not set it (apptainer internal/pkg/util/env/env.go, DefaultPath)."""
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*+")
_MAX_NESTING = 32
_MAX_WORK = 1 << 20
"""Total characters read from all scripts and expanded from variables; a command counts as several."""
_MAX_SCRIPT_BYTES = 1 << 16
_IN_IMAGE = re.compile(r"/(?!(?:dev|home|media|mnt|proc|root|run|sys|tmp|var/tmp)(?:/|$))(?!.*/\.\.(?:/|$))")
"""Paths at which no engine mounts by default."""
_LITERAL = {
    "": re.compile(r"[^ \t\n;&|<>()'\"\\$`~{}]+"),
    '"': re.compile(r"[^\"\\$`]+"),
    "}": re.compile(r"[^'\"\\$`~{}<>]+"),
    ")": re.compile(r"[^()'\"\\$`#]+"),
}
"""Literal text, by the character that ends the word that it is in."""
_ENDS_OF_WORDS = frozenset(" \t\n;&|<>()")
_SINGLE = re.compile(r"'([^']*+)'")
_BACKQUOTED = re.compile(r"`(?:[^`\\]|\\.)*+`", re.DOTALL)
_BARE = re.compile(rf"\$({NAME.pattern})(?!\\\n)")
_BRACED = re.compile(rf"\$\{{({NAME.pattern}|[0-9@*])(:?[-+=]|%%?|##?|(?=\}}))")
_NOT_KNOWN = re.compile(r"\$(?:\{(?:#[A-Za-z_][A-Za-z0-9_]*|[#?$!-])\}|[0-9@*#?$!-]|(?![({\['\"]))")
"""`${#K}`, `$1`, `$?`, a lone dollar."""
_HIDES_THE_END = re.compile(r"\bcase\b|<<")


class ShellError(Exception):
    """Text that is not supported here, or that exceeds a limit."""


@dataclass(slots=True)
class ShellVariable:
    """State of one variable."""

    value: str | None = None
    """Value, None if unset. If the variable is in doubt, the value that it would otherwise have."""
    exported: bool | None = False
    """Whether it is exported; None if only a shell can know."""
    doubt: str = ""
    """Statement after which only a shell can know the value."""


class Shell:
    """State of a shell after it has sourced scripts one after the other."""

    def __init__(self, root: RootFileSystem | None = None) -> None:
        self.root = None if root is None else root.for_users()
        """Files of the image; None if none are needed."""
        self.variables: dict[str, ShellVariable] = {}
        self.functions: set[str] = set()
        self.lost = ""
        """Statement that may have changed anything or ended the script: from there on, everything is in doubt."""
        self._work = 0

    def variable(self, name: str) -> ShellVariable:
        """Return the state of a variable."""
        if name not in self.variables:
            given = ShellVariable(None, None, "the first script")
            self.variables[name] = given if name in VOLATILE else ShellVariable()
        return self.variables[name]

    def has(self, path: str, operator: str) -> bool | None:
        """Evaluate `test -e`, `-f` or `-d`: True if the image has the path; otherwise None, as the host may add it."""
        if self.root is None or not _IN_IMAGE.match(path):
            return None
        return {"-e": self.root.exists, "-f": self.root.is_file, "-d": self.root.is_dir}[operator](path) or None

    def text(self, path: str) -> str:
        """Return a script of the image; an empty string if there is none that users may read."""
        with suppress(OSError, ImageError):
            if self.root is not None and _IN_IMAGE.match(path):
                return self.root.read_bytes(path, _MAX_SCRIPT_BYTES).decode("utf-8", "surrogateescape")
        return ""

    def count(self, work: int) -> None:
        """Count characters read or expanded from variables. Raises ShellError if there are too many."""
        self._work += work
        if self._work > _MAX_WORK:
            raise ShellError

    def set_default_path(self) -> None:
        """Set PATH if the image does not, as engines do before `90-environment.sh`."""
        if self.variable("PATH").value is None:
            self.complete_path()

    def complete_path(self) -> None:
        """Add the usual folders that PATH lacks, as engines do after `10-docker2singularity.sh` (`fixpath`)."""
        path = self.variable("PATH")
        folders = path.value.split(":") if path.value else []
        path.value = ":".join([*folders, *(folder for folder in DEFAULT_PATH.split(":") if folder not in folders)])
        path.exported = True

    @property
    def environment(self) -> dict[str, str]:
        """Exported variables without the volatile ones; those in doubt have the value they would otherwise have."""
        return {name: each.value for name, each in self._exported().items() if each.value is not None}

    @property
    def doubts(self) -> dict[str, str]:
        """Variables whose value or export only a shell can know, each with the statement that causes the doubt."""
        return {name: each.doubt for name, each in self._exported().items() if each.doubt}

    def _exported(self) -> dict[str, ShellVariable]:
        names = sorted(self.variables.keys() - VOLATILE)
        return {name: self.variables[name] for name in names if self.variables[name].exported is not False}


@dataclass(slots=True)
class ShellWord:
    """A word, as written and as expanded."""

    text: str = ""
    pieces: list[str] = field(default_factory=list)
    is_known: bool = True
    """Whether all of it can be known without running anything."""
    is_sure: bool = True
    """Whether no variable in it is in doubt."""
    is_open: bool = False
    """Whether it has unquoted parts that a shell splits at blanks or expands to file names."""
    reads: set[str] = field(default_factory=set)
    sets: list[str] = field(default_factory=list)
    """Variables that `${K:=word}` in it may set."""

    @property
    def value(self) -> str:
        return "".join(self.pieces)


class WordReader:
    """A reader that parses text word by word."""

    def __init__(self, text: str, shell: Shell, nesting: int = 0) -> None:
        self.text = text
        self.at = 0
        self.shell = shell
        self.nesting = nesting

    def deeper(self) -> None:
        """Enter one more level of nesting. Raises ShellError if it is too deep."""
        self.nesting += 1
        if self.nesting > _MAX_NESTING:
            raise ShellError

    def word(self) -> ShellWord:
        """Read the word that begins here. Raises ShellError."""
        start, word = self.at, ShellWord()
        self._expand(word, "", is_quoted=False)
        word.text = self.text[start : self.at]
        if not word.text:
            raise ShellError
        return word

    def _expand(self, word: ShellWord, stop: str, *, is_quoted: bool) -> None:
        """Read up to the character that ends the word, without consuming it."""
        self.deeper()
        while (character := self.text[self.at : self.at + 1]) != stop and (stop or character not in _ENDS_OF_WORDS):
            if literal := _LITERAL[stop].match(self.text, self.at):
                self.at = literal.end()
                word.pieces.append(literal[0])
                word.is_open |= not is_quoted and not {*"*?["}.isdisjoint(literal[0])
            elif character == '"':
                self._inside(word, '"', is_quoted=True)
            elif not is_quoted and (single := _SINGLE.match(self.text, self.at)):
                self.at = single.end()
                word.pieces.append(single[1])
            elif character == "\\":
                self._escape(word, stop)
            elif character == "$":
                self._dollar(word, is_quoted=is_quoted)
            elif backquoted := _BACKQUOTED.match(self.text, self.at):
                self.at = backquoted.end()
                word.is_known = False
            elif stop == ")" and character == "(":
                self._inside(word, ")", is_quoted=False)
            elif stop != ")" and character and character in "~{}<>":  # a home folder, or a list of words in some shells
                self.at += 1
                word.is_known = False
            else:  # unterminated, or a comment hides the end; or it depends on the context whether a quote is one
                raise ShellError
        self.nesting -= 1

    def _inside(self, word: ShellWord, closing: str, *, is_quoted: bool) -> None:
        self.at += 1
        self._expand(word, closing, is_quoted=is_quoted)
        self.at += 1

    def _escape(self, word: ShellWord, stop: str) -> None:
        r"""Read a backslash and the character after it.

        Outside double quotes, the shell of Apptainer 1.4.5 preserves the backslash, and others remove it.
        """
        following = self.text[self.at + 1 : self.at + 2]
        self.at += 1 + len(following)
        if following != "\n":
            word.is_known &= stop == '"' and following not in {"", "}"}
            word.pieces.append(following if following in '$`"\\' else "\\" + following)

    def _dollar(self, word: ShellWord, *, is_quoted: bool) -> None:
        """Read an expansion."""
        start, inner = self.at, ShellWord()
        word.is_open |= not is_quoted
        if found := _BARE.match(self.text, start):
            self.at = found.end()
            self._variable(word, found[1], "", inner)
        elif found := _BRACED.match(self.text, start):
            self.at = found.end() - 1
            self._inside(inner, "}", is_quoted=is_quoted)
            self._variable(word, found[1], found[2], inner)
        elif found := _NOT_KNOWN.match(self.text, start):
            self.at = found.end()
            word.is_known = False
        elif self.text.startswith("$(", start) and not self.text.startswith("$((", start):
            self.at += 1
            self._inside(inner, ")", is_quoted=False)
            word.is_known = False
            if _HIDES_THE_END.search(self.text, start, self.at):
                raise ShellError
        else:
            raise ShellError

    def _variable(self, word: ShellWord, name: str, operator: str, inner: ShellWord) -> None:
        """Expand a variable according to an operator and the word after it."""
        word.reads |= {name, *inner.reads}
        word.sets += [*inner.sets, *([name] if operator.endswith("=") else [])]
        if not NAME.fullmatch(name) or operator[-1:] in {"%", "#"}:  # an argument of the script; a pattern
            word.is_known = False
            return
        variable = self.shell.variable(name)
        value = variable.value
        is_set = value is not None and (value != "" or ":" not in operator)
        word.is_sure &= not (variable.doubt or self.shell.lost)
        if operator and is_set == operator.endswith("+"):
            word.pieces.append(inner.value)
            word.is_known &= inner.is_known
            word.is_sure &= inner.is_sure
        elif not operator.endswith("+"):
            word.pieces.append(value or "")
        self.shell.count(len(word.pieces[-1]) if word.pieces else 0)
