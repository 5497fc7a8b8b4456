"""The parser of one command, with one-line errors and a help text that ends with the exit codes."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, NoReturn

from lumiimg.cli.error_output import write_error
from lumiimg.core.errors import BadInputError, ExitCode
from lumiimg.core.files import free_name

_WORDS = 8
"""Maximum number of unrecognized arguments in a message."""
_WIDTH = 80


def exit_codes(exits: Mapping[str, str]) -> str:
    """Return the meanings of exit codes, as the end of a help text."""
    lines = [f"{code} {sentence}" for code, sentence in exits.items()]
    starts = ["exit codes: ", *[" " * 12] * len(lines)]
    return "".join(
        f"{textwrap.fill(line, _WIDTH, initial_indent=start, subsequent_indent=' ' * 14)}\n"
        for start, line in zip(starts, lines, strict=False)
    )


class Parser(argparse.ArgumentParser):
    """argparse with one-line errors: what is wrong, a possible correction, and where to find help."""

    words: ClassVar[Sequence[str]] = ()
    """The command line, for hints."""
    exits: Mapping[str, str]
    """Meaning of each exit code; after the codes, a word with a sentence about all of them."""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401 - as in argparse
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **options)
        self.exits = {}

    @property
    def below(self) -> dict[str, Parser]:
        """Parsers of the subcommands, by name."""
        actions = [action for action in self._actions if isinstance(action, argparse._SubParsersAction)]  # noqa: SLF001
        return dict(actions[0].choices) if actions else {}

    @property
    def commands(self) -> Iterable[str]:
        """Names of the subcommands."""
        return self.below

    @property
    def options(self) -> Iterable[str]:
        """Option strings of this command."""
        return self._option_string_actions

    def format_help(self) -> str:
        end = exit_codes(self.exits)
        return super().format_help() + (f"\n{end}" if end else "")

    def behind_command(self, words: Sequence[str]) -> list[str]:
        """Return words with options moved from before a command to after it: `--offline explain` → `explain --offline`.

        This parser's own options stay, as do words that name no command.
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

    def _check_value(self, action: argparse.Action, value: Any) -> None:  # noqa: ANN401 - as in argparse
        is_command = isinstance(action, argparse._SubParsersAction)  # noqa: SLF001
        if is_command and action.choices is not None and value not in action.choices:
            from lumiimg.cli.suggestions import did_you_mean  # imported only after an error

            self.error(f"there is no command {value!r}{did_you_mean(value, self.commands)}")
        super()._check_value(action, value)

    def refuse(self, words: Sequence[str], others: Sequence[str] = ()) -> NoReturn:
        """Print the unrecognized words, perhaps with the option that was meant, and exit with 2.

        `others`: the commands that have the first word as an option.
        """
        from lumiimg.cli import suggestions  # imported only after an error

        first = words[0].partition("=")[0]
        options = self._option_string_actions
        question = suggestions.did_you_mean(first, options, others) if first.startswith("-") else ""
        shown = f"{' '.join(words[:_WORDS])}{' …' if len(words) > _WORDS else ''}"
        self.error(
            f"unrecognized arguments: {shown}{question}", suggestions.for_extra_words(words, self.words, options)
        )

    def take(self, words: Sequence[str], arguments: argparse.Namespace, others: Sequence[str] = ()) -> None:
        """Add words to a positional argument that takes any number: argparse stops at an option.

        Without such an argument, exit with 2; `others`: the commands that have the first word as an option.
        """
        several = next((one for one in self._actions if not one.option_strings and one.nargs in {"*", "+"}), None)
        if several is None or any(word.startswith("-") for word in words):
            self.refuse(words, others)
        more = [self._get_value(several, word) for word in words]
        setattr(arguments, several.dest, [*getattr(arguments, several.dest), *more])

    def program_in(self, words: Sequence[str]) -> tuple[list[str], list[str]]:
        """Return the words of this command, and those from its second positional on, which belong to a program.

        Raises BadInputError if a word of the program may be an option of this command.
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
        """Print an error and exit with 2."""
        if hint is None and "arguments are required: --host" in message:
            node = free_name("host.json")
            hint = f"on a node of the machine, `lumiimg host scan -o {node}` writes the file: --host {node}"
        hint = hint or f"see `{self.prog} --help`"
        write_error(self.prog, f"{message} ({hint})", message, hint)
        raise SystemExit(ExitCode.BAD_INPUT)
