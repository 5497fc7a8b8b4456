"""The variables that an image's environment scripts export, read as text: nothing in an image is ever run.

The model follows what scripts that set variables usually contain: assignments, `export`, `unset`, quotes, `$K`,
`${K:-word}`, tests of strings and of files in the image, `if`, `&&` and `||` over these, `. file` of the image, and
the `activate` of a virtual environment. Any other statement leaves the variables that it may set in doubt. A statement
that may do anything or end the script (a function, `eval`, `return`) leaves all variables in doubt from there on.

Engines unset the user's variables before they source the scripts (apptainer 1.5.3
`internal/pkg/util/fs/files/action_script.sh`): a variable that the image does not set is unset, unless the engine or
the shell sets it.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

from lumiimg.core.toml import package_toml
from lumiimg.image.shell import (
    NAME,
    READONLY,
    STATEFUL,
    VOLATILE,
    Shell,
    ShellError,
    ShellVariable,
    ShellWord,
    WordReader,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

_COMMAND_WORK = 50
_SHOWN_CHARACTERS = 80
_BLANKS = re.compile(r"(?:[ \t]|\\\n|#.*|[12]?(?:>>?[ \t]*/dev/null|>&[12])(?![^ \t\n;&|)]))*+")
"""Text without effect between words: comments, redirections that succeed. Apptainer 1.4.5 crashes on some others."""
_OPERATOR = re.compile(r"&&|&>|\|\||;;&|;;|;&|[;&|()<>\n]")
_BARE = re.compile(r"[^ \t\n;&|<>()]*+")
_ASSIGNS = re.compile(rf"({NAME.pattern})(\+?=|\[)")
_QUOTED = re.compile(rf"[\"']({NAME.pattern})(=)(?!~)[^\\]*")
"""Quoted words that `export` also treats as assignments; Apptainer 1.4.5 expands `~` and backslashes in them again."""
_PROGRAM = re.compile(r"[A-Za-z0-9_./:+@\[-]+")
_COMPOUND = frozenset({"{", "(", "if", "while", "until", "for", "case"})
_CLOSING = frozenset({"then", "elif", "else", "fi", "do", "done", "esac", "}"})
_NOT_READ = frozenset({"!", "select", "time", "coproc", "function"})
_SPECIAL = frozenset({"export", "unset", ":", "break", "continue", "times"})
"""Commands before which assignments persist in some shells, and that a function cannot override in some."""
_ARITHMETIC = frozenset({"-eq", "-ne", "-lt", "-le", "-gt", "-ge", "-v"})
"""Operators of `[[ … ]]` whose operands may contain assignments."""
_ACTIVATE = frozenset[str](package_toml(__package__, "shell.toml")["activation"]["digests"])
"""Digests of the venv activate scripts that CPython writes (Lib/venv/__init__.py, replace_variables).

Unlike bash, Apptainer 1.4.5 cannot read those of uv and of older releases of virtualenv.
"""
_VENV = re.compile(r"""(?m)^[ \t]*(?:export )?VIRTUAL_ENV=(["']?)(/[\w./@+-]*)\1$""")
_COMMENT = re.compile(r"(?m)^[ \t]*(?:#.*)?\n|[ \t]+$")
_PROMPT = re.compile(r"""(?m)^([ \t]*(?:PS1|VIRTUAL_ENV_PROMPT)=)(?:["'(\w. @+-]|\)(?=[ "])|\$\{PS1:-\})*$""")
"""Lines that affect only the prompt."""
_BIN = re.compile(r'\$VIRTUAL_ENV/"?bin"?:\$PATH')


def source(text: str, where: str, shell: Shell, nesting: int = 0) -> None:
    """Read a script and record in the shell what it sets; `nesting` is the depth of the statement that sources it."""
    script = _Script(text, where, shell, nesting)
    if "\0" in text or "\r" in text:  # some shells drop these characters, others do not
        script.lose_rest()
        return
    try:
        shell.count(len(text))
        while script.next_of_list():
            script.item(runs=True)
    except ShellError:
        script.lose_rest()


class _Script(WordReader):
    """One script, parsed and followed.

    `runs` is whether the parsed text is run: None if only a shell can know, and then any number of times (`runs and
    None` marks a part that may run if the whole does). Methods return whether the command succeeds: None if only a
    shell can know.
    """

    def __init__(self, text: str, where: str, shell: Shell, nesting: int) -> None:
        super().__init__(text, shell, nesting)
        self._where = where
        self._loops = 0
        self._start = 0
        """Position of the command being followed."""
        self._ended = ""
        """Word that ended the last list."""

    def lose_rest(self) -> None:
        """Put everything in doubt from the line that cannot be parsed."""
        self._start = max(self._start, self.text.rfind("\n", 0, self.at) + 1)
        self.at = len(self.text)
        self._lose()

    def _lose(self) -> None:
        """Put all variables in doubt: those already set and those set later."""
        self.shell.lost = self.shell.lost or self._statement()

    def _statement(self) -> str:
        text = self.text[self._start : min(self._start + 4 * _SHOWN_CHARACTERS, self.at)]
        return f"{self._where}: {' '.join(text.split())[:_SHOWN_CHARACTERS]}"

    def _doubt(self, *names: str) -> None:
        for name in names:
            self.shell.variable(name).doubt = self._statement()
            if name in READONLY:
                self._lose()

    def _doubt_expansions(self, words: Sequence[ShellWord], *names: str) -> None:
        """Leave in doubt what `${K:=word}` or a loop sets; Apptainer 1.4.5 then no longer exports it."""
        for name in (*names, *(name for word in words for name in word.sets)):
            self._doubt(name)
            variable = self.shell.variable(name)
            variable.exported = None if variable.exported else variable.exported

    # -- what comes next --

    def _peek(self) -> str:
        """Return the next operator, or the next word up to a blank; an empty string at the end."""
        if blanks := _BLANKS.match(self.text, self.at):
            self.at = blanks.end()
        found = _OPERATOR.match(self.text, self.at) or _BARE.match(self.text, self.at)
        return found[0] if found else ""

    def _skip(self, *words: str) -> str:
        """If one of these words is next, skip it and return it."""
        found = self._peek()
        if found not in words:
            return ""
        self.at += len(found)
        return found

    def _expect(self, word: str) -> None:
        if not self._skip(word):
            raise ShellError

    def next_of_list(self) -> str:
        while self._skip("\n"):
            pass
        return self._peek()

    def _words(self) -> list[ShellWord]:
        """Read words up to an operator."""
        words = []
        while self._peek() and not _OPERATOR.match(self.text, self.at):
            words.append(self.word())
        if words and self.text[self.at - 1] == "\\":  # in a comment: Apptainer 1.4.5 takes the next line as a command
            raise ShellError
        return words

    # -- the grammar --

    def _list(self, runs: bool | None, *ends: str) -> bool | None:
        """Follow commands up to one of the closing words, and skip it."""
        status: bool | None = None
        is_empty = ";;" not in ends
        while (following := self.next_of_list()) not in ends or is_empty:
            if not following:
                raise ShellError
            status, is_empty = self.item(runs=runs), False
        self._ended = self._skip(*ends)
        return status

    def item(self, *, runs: bool | None) -> bool | None:
        """Follow commands joined by `&&` and `||`, and skip the terminator."""
        status, is_one = self._pipeline(runs=runs), True
        while operator := self._skip("&&", "||"):
            self.next_of_list()
            is_one = False
            if status is None:
                self._pipeline(runs=runs and None)
            elif status is (operator == "&&"):
                status = self._pipeline(runs=runs)
            else:
                self._pipeline(runs=False)
        if self._skip("&"):
            if runs and not is_one:  # it was followed as if in this shell, but runs in a subshell
                self._lose()
        elif not self._skip(";", "\n") and self._peek() not in {"", ")", ";;", ";&", ";;&", *_CLOSING}:
            raise ShellError
        return status

    def _pipeline(self, *, runs: bool | None) -> bool | None:
        inverted = self._skip("!")
        status = self._command(runs=runs)
        while self._skip("|"):
            self.next_of_list()
            status = self._command(runs=runs and None)
        return not status if inverted and status is not None else status

    def _command(self, *, runs: bool | None) -> bool | None:
        self.shell.count(_COMMAND_WORK)
        self.deeper()
        following = self._peek()
        if following in _CLOSING or following in _NOT_READ or self.text.startswith("((", self.at):
            raise ShellError
        if following in _COMPOUND:
            self._start = self.at
            self.at += len(following)
            status = self._compound(following, runs)
            if runs and following in {"{", "if"} and self._peek() in {"|", "&"}:
                self._lose()  # it was followed as if in this shell, but runs in a subshell
        else:
            status = self._simple(runs)
        self.nesting -= 1
        return status if runs else None

    def _compound(self, opening: str, runs: bool | None) -> bool | None:
        if opening == "{":
            return self._list(runs, "}")
        perhaps = runs and None
        if opening == "(":
            self._list(False, ")")
        elif opening == "if":
            self._if(runs)
        elif opening == "case":
            self._case(perhaps)
        else:
            self._loops += 1
            self._for(perhaps) if opening == "for" else self._list(perhaps, "do")
            self._list(perhaps, "done")
            self._loops -= 1
        return None

    def _if(self, runs: bool | None) -> None:
        """Follow the branch taken; `runs` applies to the remaining branches."""
        self._ended = "elif"
        while self._ended == "elif":
            holds = self._list(runs, "then")
            taken = holds if runs else runs
            self._list(taken, "elif", "else", "fi")
            runs = runs and (None if taken is None else not taken)
        if self._ended == "else":
            self._list(runs, "fi")

    def _case(self, perhaps: bool | None) -> None:
        """Follow the commands of each pattern."""
        self._peek()
        words = [self.word()]
        self.next_of_list()
        self._expect("in")
        self._ended = ";;"
        while self._ended != "esac":
            self.next_of_list()
            if self._skip("esac"):
                break
            self._skip("(")
            words += self._words()
            while self._skip("|"):
                words += self._words()
            self._expect(")")
            self._list(perhaps, ";;", ";&", ";;&", "esac")
        if perhaps is not False:
            self._doubt_expansions(words)

    def _for(self, perhaps: bool | None) -> None:
        """Follow the head of a loop."""
        words = self._words()
        self._skip(";")
        self.next_of_list()
        self._expect("do")
        if not words or not NAME.fullmatch(words[0].text):
            raise ShellError
        if perhaps is not False:
            self._doubt_expansions(words, words[0].text)

    def _function(self, name: str) -> None:
        self._expect("(")
        self._expect(")")
        if self._loops or name in _SPECIAL or self.next_of_list() not in _COMPOUND:
            raise ShellError
        self.shell.functions.add(name)
        self._command(runs=False)

    # -- simple commands --

    def _simple(self, runs: bool | None) -> bool | None:
        start = self.at
        words = self._words()
        if words and words[0].text == "[[":  # it has its own operators
            while words[-1].text != "]]" and self._skip("&&", "||"):
                words += self._words()
            if words[-1].text != "]]" or not _ARITHMETIC.isdisjoint(word.text for word in words):
                raise ShellError
        following = self._peek()
        if following == "(" and len(words) == 1 and _PROGRAM.fullmatch(words[0].text):
            self._function(words[0].text)
            return True
        if not words or following in {"(", "<", ">", "&>"}:  # `&>` is one operator in some shells, two in others
            raise ShellError
        if runs is False or following == "&":
            return None
        self._start = start
        return self._follow(words, None if following == "|" else runs)

    def _follow(self, words: Sequence[ShellWord], runs: bool | None) -> bool | None:
        """Follow a command; one that may do anything puts all variables in doubt."""
        before = next((number for number, word in enumerate(words) if not _ASSIGNS.match(word.text)), len(words))
        assigned, name, arguments = words[:before], words[before].text if words[before:] else "", words[before + 1 :]
        is_call = name in self.shell.functions
        if not name or (name == "export" and not assigned and not is_call):
            return self._assignments(arguments if name else assigned, runs, exports=name != "")
        self._doubt_expansions(words)
        if is_call or (assigned and name in _SPECIAL):
            self._lose()
        elif name == "unset":
            self._unset(arguments, runs)
            return True
        elif name in {".", "source"} and not assigned and (text := self._sourced(arguments)):
            if folder := _activated_venv(text):
                self._activate(folder, runs)
            elif runs:
                source(text, arguments[0].value, self.shell, self.nesting)
            else:
                self._lose()
        elif name in STATEFUL or not _PROGRAM.fullmatch(name):
            self._lose()
        elif name in {"break", "continue"} and (arguments or not self._loops):
            self._lose()  # engines source all scripts in one loop
        elif name in {":", "true", "false"}:
            return name != "false"
        elif name == "test" or (name == "[" and arguments and arguments[-1].text == "]"):
            return _evaluate_test(arguments[:-1] if name == "[" else arguments, self.shell)
        return None

    def _sourced(self, arguments: Sequence[ShellWord]) -> str:
        """Return the text of a sourced script of the image; an empty string if its path is not known."""
        match arguments:
            case [script] if script.is_known and script.is_sure and not script.sets:
                return self.shell.text(script.value)
        return ""

    def _activate(self, folder: str, runs: bool | None) -> None:
        """Apply the `activate` of a virtual environment; a second one undoes the first."""
        self._doubt("VIRTUAL_ENV_PROMPT")
        self.shell.variable("VIRTUAL_ENV_PROMPT").exported = None
        path, before = self.shell.variable("PATH"), self.shell.variable("_OLD_VIRTUAL_PATH")
        if before.value is not None or before.doubt:
            self._lose()
        before.value = path.value or ""
        for name, value in (("PATH", f"{folder}/bin:{before.value}"), ("VIRTUAL_ENV", folder), ("PYTHONHOME", None)):
            variable = self.shell.variable(name)
            if not runs:
                self._doubt(name)
                variable.exported = variable.exported or None
            elif value is None and not variable.doubt:
                self.shell.variables[name] = ShellVariable()
            elif value is not None:
                variable.value, variable.exported = value, True
        self.shell.functions.add("deactivate")

    def _assignments(self, words: Sequence[ShellWord], runs: bool | None, *, exports: bool) -> bool | None:
        """Assign or export; shells differ in whether a later word sees what an earlier word sets."""
        seen = set[str]()
        for word in words:
            found = _ASSIGNS.match(word.text)
            if exports and not word.is_open:
                found = found or _QUOTED.fullmatch(word.text)
            if found[2] == "[" if found else not NAME.fullmatch(word.text):
                self._lose()
                return None
            if word.sets or word.reads & seen or (found and found[2] == "+="):
                runs = None
            seen.add(found[1] if found else word.text)
        self._doubt_expansions(words)
        for word in words:
            name, equals, value = word.value.partition("=")
            name = name.rstrip("+")
            variable = self.shell.variable(name)
            if exports and runs:
                variable.exported = True
            elif exports and not variable.exported:
                variable.exported = None
                self._doubt(name)
            if equals and runs and word.is_known:
                variable.value = value
                if variable.exported is not None and name not in VOLATILE:
                    variable.doubt = ""
            if equals and not (runs and word.is_known and word.is_sure and name not in READONLY):
                self._doubt(name)
        return True if exports or all(word.is_known for word in words) else None

    def _unset(self, words: Sequence[ShellWord], runs: bool | None) -> None:
        """Unset variables; options and readonly variables put everything in doubt."""
        for name in (word.text for word in words):
            variable = self.shell.variable(name)
            if name in READONLY or not NAME.fullmatch(name):
                self._lose()
            elif runs and name not in VOLATILE and (variable.value is not None or variable.exported is False):
                self.shell.variables[name] = ShellVariable()  # in Apptainer 1.4.5 one without a value stays exported
            else:
                self._doubt(name)
                variable.exported = None if variable.exported else variable.exported


def _evaluate_test(words: Sequence[ShellWord], shell: Shell) -> bool | None:
    """Evaluate a test by its number of arguments (POSIX `test`); None if it depends on host files or on numbers."""
    if not all(word.is_known and word.is_sure and not word.is_open and not word.sets for word in words):
        return None
    match [word.value for word in words]:
        case []:
            return False
        case [one]:
            return one != ""
        case [left, "=" | "!=" as how, right] if left[:1] not in {"-", "!", "("}:
            return (left == right) is (how == "=")
        case ["-z", one]:
            return one == ""
        case ["-n", one]:
            return one != ""
        case ["-e" | "-f" | "-d" as operator, path]:
            return shell.has(path, operator)
        case ["!", _, *_]:
            status = _evaluate_test(words[1:], shell) if len(words) < 5 else None
            return None if status is None else not status
    return None


def _activated_venv(text: str) -> str | None:
    """Return the folder of the virtual environment that a script activates; None for any other script."""
    folders = {found[2] for found in _VENV.finditer(text)}
    if len(folders) != 1:
        return None
    (folder,) = folders
    return folder if _shape_digest(text) in _ACTIVATE else None


def _shape_digest(text: str) -> str:
    """Return the digest of a script without its comments, prompt and location."""
    cut = _COMMENT.sub("", text.replace("\r", "\0"))
    cut = _BIN.sub("$VIRTUAL_ENV/bin:$PATH", _PROMPT.sub(r"\1", cut))
    for _, folder in set(_VENV.findall(cut)):
        cut = re.sub(rf"""(VIRTUAL_ENV=|cygpath )(["']?){re.escape(folder)}\2""", r"\1", cut)
    return hashlib.sha256(cut.encode("utf-8", "surrogateescape")).hexdigest()[:20]
