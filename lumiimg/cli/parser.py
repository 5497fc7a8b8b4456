"""The parser of one command: what is wrong is one line, and the help ends with the exit codes."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, NoReturn

from lumiimg.cli.error_output import write_error
from lumiimg.core.errors import BadInputError, ExitCode
from lumiimg.core.files import unused

_WORDS = 8
"""That are named of those that a command does not take."""
_WIDTH = 80


def exit_codes(exits: Mapping[str, str]) -> str:
    """Return what the exit codes say, as the end of a help."""
    lines = [f"{code} {sentence}" for code, sentence in exits.items()]
    starts = ["exit codes: ", *[" " * 12] * len(lines)]
    return "".join(
        f"{textwrap.fill(line, _WIDTH, initial_indent=start, subsequent_indent=' ' * 14)}\n"
        for start, line in zip(starts, lines, strict=False)
    )


class Parser(argparse.ArgumentParser):
    """argparse, but an error is one line: what is wrong, what was meant perhaps, and where the help is."""

    words: ClassVar[Sequence[str]] = ()
    """The command line, for hints."""
    exits: Mapping[str, str]
    """What each exit code says; behind the codes a word and its sentence for all of them."""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401 - as argparse has them
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **options)
        self.exits = {}

    @property
    def below(self) -> dict[str, Parser]:
        """The parsers of the commands below this one."""
        actions = [action for action in self._actions if isinstance(action, argparse._SubParsersAction)]  # noqa: SLF001
        return dict(actions[0].choices) if actions else {}

    @property
    def commands(self) -> Iterable[str]:
        """The names of the commands below this one."""
        return self.below

    @property
    def options(self) -> Iterable[str]:
        """The options of this command, as they are written."""
        return self._option_string_actions

    def format_help(self) -> str:
        end = exit_codes(self.exits)
        return super().format_help() + (f"\n{end}" if end else "")

    def behind_command(self, words: Sequence[str]) -> list[str]:
        """Return words with options that stand before a command behind it: `--offline explain` is `explain --offline`.

        Its own options stay, and so does what names no command.
        """
        at, named, moved = self, list[str](), list[str]()
        for number, word in enumerate(words):
            if not at.below:
                return [*named, *moved, *words[number:]]
            if word in at.below:
                at = at.below[word]
                named.append(word)
            elif word.partition("=")[0] in at.options or not (moved or word.startswith("-")):
                break
            else:
                moved.append(word)
        return [*named, *moved] if named and not at.below else list(words)

    def _check_value(self, action: argparse.Action, value: Any) -> None:  # noqa: ANN401 - as argparse has it
        is_command = isinstance(action, argparse._SubParsersAction)  # noqa: SLF001
        if is_command and action.choices is not None and value not in action.choices:
            from lumiimg.cli.suggestions import did_you_mean  # only where something is wrong

            self.error(f"there is no command {value!r}{did_you_mean(value, self.commands)}")
        super()._check_value(action, value)

    def refuse(self, words: Sequence[str], others: Sequence[str] = ()) -> NoReturn:
        """Print what cannot be understood, with the option that was meant perhaps, and leave with 2.

        `others`: the commands that take the first of the words, if it is an option.
        """
        from lumiimg.cli import suggestions  # only where something is wrong

        first = words[0].partition("=")[0]
        options = self._option_string_actions
        question = suggestions.did_you_mean(first, options, others) if first.startswith("-") else ""
        shown = f"{' '.join(words[:_WORDS])}{' …' if len(words) > _WORDS else ''}"
        self.error(
            f"unrecognized arguments: {shown}{question}", suggestions.for_extra_words(words, self.words, options)
        )

    def take(self, words: Sequence[str], arguments: argparse.Namespace, others: Sequence[str] = ()) -> None:
        """Put words with those that stand alone, where there may be any number: argparse gives up behind an option.

        Where there may not, leave with 2; `others`: the commands that take the first of them, if it is an option.
        """
        several = next((one for one in self._actions if not one.option_strings and one.nargs in {"*", "+"}), None)
        if several is None or any(word.startswith("-") for word in words):
            self.refuse(words, others)
        more = [self._get_value(several, word) for word in words]
        setattr(arguments, several.dest, [*getattr(arguments, several.dest), *more])

    def program_in(self, words: Sequence[str]) -> tuple[list[str], list[str]]:
        """Return the words of this command, and those from its second positional on, which are a program's.

        Raises BadInputError where the program has a word that may be an option of this command.
        """
        options, positions, takes = self._option_string_actions, 0, 0
        for number, word in enumerate(words):
            if takes:
                takes -= 1
            elif word.startswith("-") and word != "-":
                action = options.get(word)
                takes = 0 if action is None or action.nargs == 0 else 1
            else:
                positions += 1
                if positions > 1:
                    program = list(words[number:])
                    if both := next((one for one in program if one.partition("=")[0] in options), None):
                        what = f"{both} may be an option of {self.prog} or of {program[0]}"
                        raise BadInputError(what, hint=f"put `--` before the program: -- {program[0]} …")
                    return list(words[:number]), program
        return list(words), []

    def error(self, message: str, hint: str | None = None) -> NoReturn:
        """Print what is wrong and leave with 2."""
        if hint is None and "arguments are required: --host" in message:
            node = unused("host.json")
            hint = f"on a node of the machine, `lumiimg host scan -o {node}` writes the file: --host {node}"
        hint = hint or f"see `{self.prog} --help`"
        write_error(self.prog, f"{message} ({hint})", message, hint)
        raise SystemExit(ExitCode.BAD_INPUT)
