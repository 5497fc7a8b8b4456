"""Shell text taken apart into commands (POSIX Shell Command Language 2.3, 2.9, 2.10): nothing is run or expanded.

What shells read in different ways, or what is rare in a script that sets variables (here-documents, arrays, `((`), is
a ShellError: where a script cannot be taken apart with certainty, nothing after that place is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from lumiimg.image.shell.words import MAX_NESTING, NAME, ShellError, end_of_word

_ODD = re.compile(r"[\0\r]")
"""What one shell takes out and another leaves in."""
_BLANKS = re.compile(r"(?:[ \t]|\\\n|#.*)*")
"""Before a word or an operator, comments too."""
_OPERATOR = re.compile(r"&&|\|\||;;&|;;|;&|\(\(|<<|<&|<>|>>|>&|>\||&>>|&>|[;&|<>()\n]")
_REDIRECTIONS = frozenset({"<", ">", "<&", ">&", "<>", ">>", ">|", "&>", "&>>"})
_SAFE_TARGET = re.compile(r"/dev/null|[0-9-]")
_FUNCTION = re.compile(r"[A-Za-z0-9_.:+-]+")
_COMPOUND = ("{", "(", "if", "while", "until", "for", "case")
_RESERVED = frozenset({"then", "elif", "else", "fi", "do", "done", "esac", "}"})
_NOT_READ = frozenset({"select", "time", "coproc"})
_MAX_COMMANDS = 20_000
"""In one script."""


@dataclass(frozen=True, slots=True)
class Simple:
    """A command with its words as they are written."""

    text: str
    words: tuple[str, ...]
    redirected: bool
    """To or from a file, which may not be there."""


@dataclass(frozen=True, slots=True)
class AndOr:
    """`first && second || third`."""

    first: Command
    rest: tuple[tuple[str, Command], ...]


@dataclass(frozen=True, slots=True)
class Not:
    """`! command`."""

    command: Command


@dataclass(frozen=True, slots=True)
class BraceGroup:
    """`{ a; b; }`."""

    body: tuple[Command, ...]


@dataclass(frozen=True, slots=True)
class If:
    """Conditions, each with what is done where it holds, and what is done otherwise."""

    branches: tuple[tuple[tuple[Command, ...], tuple[Command, ...]], ...]
    otherwise: tuple[Command, ...]


@dataclass(frozen=True, slots=True)
class Maybe:
    """A loop, a case, a pipeline: how often what is in it is done, and in which shell, is not followed."""

    text: str
    words: tuple[str, ...]
    name: str | None
    """The variable of a loop."""
    body: tuple[Command, ...]


@dataclass(frozen=True, slots=True)
class Apart:
    """In a shell of its own: `( … )`, `… &`. It cannot set anything outside."""


@dataclass(frozen=True, slots=True)
class Function:
    """The definition of a function, which is not a call."""

    name: str


Command = Simple | AndOr | Not | BraceGroup | If | Maybe | Apart | Function


def parse(text: str) -> Iterator[Command]:
    """Yield the commands of a script one by one. Raises ShellError when it comes to what is not read here."""
    odd = _ODD.search(text)
    if odd:
        raise ShellError(odd.start())
    return _Parser(text).commands()


class _Token(NamedTuple):
    text: str
    start: int
    end: int
    is_word: bool


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._depth = 0
        self._count = 0
        self._end = 0
        """Of what was read last."""
        self._token = self._next(0)

    def commands(self) -> Iterator[Command]:
        self._skip_newlines()
        while self._token.text:
            yield self._item()
            self._skip_newlines()

    # -- tokens --

    def _next(self, position: int) -> _Token:
        text = self._text
        if blanks := _BLANKS.match(text, position):
            position = blanks.end()
        operator = _OPERATOR.match(text, position)
        if operator:
            return _Token(operator[0], position, operator.end(), is_word=False)
        end = end_of_word(text, position)
        return _Token(text[position:end], position, end, is_word=True)

    def _advance(self) -> _Token:
        token = self._token
        self._end = token.end
        self._token = self._next(token.end)
        return token

    def _fail(self) -> ShellError:
        return ShellError(self._token.start)

    def _is(self, *words: str) -> bool:
        return self._token.text in words

    def _skip(self, *words: str) -> bool:
        """Pass over one of these, if it is next; return whether it was."""
        found = self._is(*words)
        if found:
            self._advance()
        return found

    def _expect(self, word: str) -> None:
        if not self._skip(word):
            raise self._fail()

    def _skip_newlines(self) -> None:
        while self._skip("\n"):
            pass

    # -- grammar --

    def _list(self, *ends: str, empty: bool = False) -> tuple[Command, ...]:
        found: list[Command] = []
        self._skip_newlines()
        while not self._is(*ends):
            found.append(self._item())
            self._skip_newlines()
        if not found and not empty:
            raise self._fail()
        return tuple(found)

    def _item(self) -> Command:
        """Read a list of commands with `&&` and `||`, and what ends it."""
        first = self._pipeline()
        rest: list[tuple[str, Command]] = []
        while self._is("&&", "||"):
            operator = self._advance().text
            self._skip_newlines()
            rest.append((operator, self._pipeline()))
        found = AndOr(first, tuple(rest)) if rest else first
        if self._skip("&"):
            return Apart()
        if not self._skip(";", "\n") and self._token.text and not self._is(")", ";;", ";&", ";;&", *_RESERVED):
            raise self._fail()
        return found

    def _pipeline(self) -> Command:
        start = self._token.start
        inverted = self._skip("!")
        commands = [self._command()]
        while self._skip("|"):
            self._skip_newlines()
            commands.append(self._command())
        found = commands[0]
        if len(commands) > 1:
            found = Maybe(self._text[start : self._end], (), None, tuple(commands))
        return Not(found) if inverted else found

    def _command(self) -> Command:
        self._count += 1
        self._depth += 1
        if self._depth > MAX_NESTING or self._count > _MAX_COMMANDS:
            raise self._fail()
        start = self._token.start
        compound = self._compound()
        if compound is None:
            found = self._simple()
        elif self._redirections():
            found = Maybe(self._text[start : self._end], (), None, (compound,))
        else:
            found = compound
        self._depth -= 1
        return found

    def _compound(self) -> Command | None:
        token = self._token
        if self._skip("("):
            self._list(")")
            self._advance()
            return Apart()
        if not token.is_word:
            return None
        if token.text in _RESERVED or token.text in _NOT_READ:
            raise self._fail()
        if self._skip("{"):
            body = self._list("}")
            self._advance()
            return BraceGroup(body)
        if token.text == "if":
            return self._if()
        if self._skip("while", "until"):
            condition = self._list("do")
            return Maybe(self._text[token.start : self._end], (), None, (*condition, *self._body()))
        if token.text == "for":
            return self._for()
        if token.text == "case":
            return self._case()
        if self._skip("function"):
            return self._function(self._advance().text)
        return None

    def _if(self) -> If:
        branches: list[tuple[tuple[Command, ...], tuple[Command, ...]]] = []
        otherwise: tuple[Command, ...] = ()
        while self._skip("if", "elif"):
            condition = self._list("then")
            self._advance()
            branches.append((condition, self._list("elif", "else", "fi")))
        if self._skip("else"):
            otherwise = self._list("fi")
        self._expect("fi")
        return If(tuple(branches), otherwise)

    def _for(self) -> Maybe:
        start = self._token.start
        self._advance()
        name = self._advance().text
        if not NAME.fullmatch(name):
            raise self._fail()
        self._skip_newlines()
        words: list[str] = []
        if self._skip("in"):
            while self._token.is_word and self._token.text:
                words.append(self._advance().text)
        text = self._text[start : self._end]
        self._skip(";")
        self._skip_newlines()
        return Maybe(text, tuple(words), name, self._body())

    def _body(self) -> tuple[Command, ...]:
        self._expect("do")
        body = self._list("done")
        self._advance()
        return body

    def _case(self) -> Maybe:
        start = self._token.start
        self._advance()
        words = [self._advance().text]
        self._skip_newlines()
        text = self._text[start : self._end]
        self._expect("in")
        self._skip_newlines()
        body: list[Command] = []
        while not self._is("esac"):
            self._skip("(")
            words.append(self._word())
            while self._skip("|"):
                words.append(self._word())
            self._expect(")")
            body += self._list(";;", ";&", ";;&", "esac", empty=True)
            self._skip(";;", ";&", ";;&")
            self._skip_newlines()
        self._advance()
        return Maybe(text, tuple(words), None, tuple(body))

    def _word(self) -> str:
        if not self._token.is_word or not self._token.text:
            raise self._fail()
        return self._advance().text

    def _function(self, name: str) -> Function:
        if self._skip("("):
            self._expect(")")
        self._skip_newlines()
        if not _FUNCTION.fullmatch(name) or not self._is(*_COMPOUND):
            raise self._fail()
        self._compound()
        self._redirections()
        return Function(name)

    def _redirections(self) -> bool:
        """Skip redirections; whether one is to or from a file that may not be there."""
        unsafe = False
        while self._token.text in _REDIRECTIONS and not self._token.is_word:
            operator, target = self._advance().text, self._word()
            unsafe |= operator.startswith("&") or _SAFE_TARGET.fullmatch(target) is None
        return unsafe

    def _simple(self) -> Command:
        start = self._token.start
        words: list[str] = []
        unsafe = False
        while self._token.text:
            token = self._token
            if token.text in _REDIRECTIONS and not token.is_word:
                if words and token.start == self._end:
                    number = words.pop()
                    if number.startswith("{"):  # a variable gets the number of the file
                        raise self._fail()
                    if not (number.isascii() and number.isdigit()):
                        words.append(number)
                unsafe |= self._redirections()
            elif words == ["[["]:
                return self._condition(start)
            elif token.is_word:
                words.append(self._advance().text)
            elif token.text == "(" and len(words) == 1:
                return self._function(words[0])
            else:
                break
        if not words and start == self._token.start:
            raise self._fail()
        return Simple(self._text[start : self._end], tuple(words), unsafe)

    def _condition(self, start: int) -> Simple:
        """Read `[[ … ]]`, which has a grammar of its own."""
        words = ["[["]
        while not self._skip("]]"):
            if not self._token.text or self._is("\n", ";"):
                raise self._fail()
            words.append(self._advance().text)
        return Simple(self._text[start : self._end], tuple(words), self._redirections())
