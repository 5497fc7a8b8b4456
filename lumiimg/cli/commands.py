"""The commands of the program: their names, what `--help` says of each, and their parsers.

A command is the module of this folder that has its name. It is imported when it is called: `lumiimg --help` needs
none of them. Its docstring is its help: what it does up to the first blank line, the rest below its options.
`configure_parser` adds what it takes, and `execute` does it and returns the exit code.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any, ClassVar, NoReturn

from lumiimg import __version__
from lumiimg.cli.complaint import complain
from lumiimg.errors import BadInputError, ExitCode

GROUPS = {
    "everyday commands": {
        "build": "build an image from a base and layers",
        "check": "will this image use the fast network? if not: what is missing, and what to do",
        "log": "read a job's log: which network it used, why not the fast one, what to do",
        "explain": "explain why an image fits a machine, or a request its site, or why not",
        "adapt": "add to someone else's image what it lacks to use a machine's network",
        "job": "write a job script for an image on a site: ranks, cores, variables, binds",
        "venv": "make a Python environment over an image, for packages of your own: its torch stays",
        "show": "list bases, layers, recipes and sites; show one of them, or an image",
        "lock": "resolve every version, address and digest of an image, and write them to a lock",
        "rebuild": "build an image again from its own record",
        "diff": "compare two locks or two images",
        "host": "record what this machine offers to a container",
        "bind": "print the fewest binds from a machine that an image needs, each with its reason",
        "ldd": "list the libraries that a file of an image would load, from where, and by which rule",
        "cache": "list, verify or remove layers that were built before",
        "doctor": "find out whether this machine can build images, and how",
        "schema": "print the JSON Schemas of what --json prints",
        "completion": "let the shell complete commands, options and names",
    },
    "for support staff": {
        "module": "write a module for an image (Lmod, Tcl) with wrappers: python, pip, torchrun, …",
        "drift": "show what a system update changed, which images it breaks, and what to do",
        "trial": "try on real nodes what lumiimg claims of them and of images",
        "draft": "read a Dockerfile: list what the catalogue has, and draft a layer for the rest",
        "bench": "count what the start of a program asks of the shared file system",
    },
}
"""The commands and what each is for, as `--help` groups them."""
COMMANDS = {name: purpose for group in GROUPS.values() for name, purpose in group.items()}
ALIASES = {"list": "show"}
"""Other names that commands have."""
_WORDS = 8
"""That are named of those that a command does not take."""
INTERNAL = "node"
"""What `check --nodes` starts on each node: in no list of commands."""
_EPILOG = """\
exit codes: 0 good · 1 the answer is no · 2 wrong usage or bad input ·
3 cannot decide (says what would) · 4 something needed is missing here
the next step here: lumiimg      help on a command: lumiimg help COMMAND
"""


class Parser(argparse.ArgumentParser):
    """argparse, but an error is one line: what is wrong, what was meant perhaps, and where the help is."""

    words: ClassVar[Sequence[str]] = ()
    """The command line, for hints."""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401 - as argparse has them
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **options)

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
        if action.choices is not None and value not in action.choices:
            for name in action.option_strings or ("",):
                self._refuse_retired([name, value] if name else [value])
            if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
                from lumiimg.cli.slips import meant  # only where something is wrong

                self.error(f"there is no command {value!r}{meant(value, self.commands)}")
        super()._check_value(action, value)

    def _refuse_retired(self, words: Sequence[str]) -> None:
        """Leave with 2 and the name of the successor where one of the words was a command or an option once."""
        from lumiimg.cli.retired import retired  # only where something is wrong

        if found := retired(self.prog.partition(" ")[2], words):
            gone, instead = found
            self.error(f"{gone} is gone", instead)

    def refuse(self, words: Sequence[str]) -> NoReturn:
        """Print what cannot be understood, with the option that was meant perhaps, and leave with 2."""
        from lumiimg.cli import slips  # only where something is wrong

        self._refuse_retired(self.words)
        first = words[0].partition("=")[0]
        options = self._option_string_actions
        question = slips.meant(first, options) if first.startswith("-") else ""
        told = f"{' '.join(words[:_WORDS])}{' …' if len(words) > _WORDS else ''}"
        self.error(f"unrecognized arguments: {told}{question}", slips.of_words(words, self.words, options))

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
                        what = f"{both} may be of {self.prog}, or of {program[0]}"
                        raise BadInputError(what, hint=f"put `--` before the program: -- {program[0]} …")
                    return list(words[:number]), program
        return list(words), []

    def error(self, message: str, hint: str | None = None) -> NoReturn:
        """Print what is wrong and leave with 2."""
        if "arguments are required" in message:
            self._refuse_retired(self.words)
        if hint is None and message.endswith("arguments are required: --host"):
            hint = "on a node of the machine, `lumiimg host scan -o host.json` writes the file: --host host.json"
        hint = hint or f"see `{self.prog} --help`"
        complain(self.prog, f"{message} ({hint})", message, hint)
        raise SystemExit(ExitCode.BAD_INPUT)


class MainParser(Parser):
    """The parser above all commands; its help shows them in groups, whichever it has a parser of."""

    @property
    def commands(self) -> Iterable[str]:
        """The names of all commands."""
        return (*COMMANDS, *ALIASES)

    def refuse(self, words: Sequence[str]) -> NoReturn:
        """Print what cannot be understood; an option of a command stands behind that."""
        option = words[0].partition("=")[0]
        if option.startswith("-"):
            takes = (name for name, command in make_parser().below.items() if option in command.options)
            if name := next(takes, None):
                self.error(f"{option} is an option of commands, such as {name}: lumiimg {name} {option}")
        super().refuse(words)

    def format_help(self) -> str:
        formatter = self._get_formatter()
        formatter.add_usage("lumiimg COMMAND ...", (), ())
        formatter.add_text(self.description)
        for title, group in GROUPS.items():
            formatter.start_section(title)
            formatter.add_arguments([argparse.Action((), name, help=purpose) for name, purpose in group.items()])
            formatter.end_section()
        formatter.start_section("options")
        formatter.add_arguments([action for action in self._actions if action.option_strings])
        formatter.end_section()
        formatter.add_text(self.epilog)
        return formatter.format_help()


@functools.cache  # the same for a whole process
def make_parser(names: tuple[str, ...] = (*COMMANDS, INTERNAL)) -> MainParser:
    """Return the parser of the program with these of its commands, whose modules are imported."""
    parser = MainParser(
        prog="lumiimg",
        description="Build ROCm AI images for HPE Slingshot machines, and prove which network\nthey use.",
        epilog=_EPILOG,
    )
    parser.add_argument("--version", action="version", version=f"lumiimg {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=Parser)
    for name in names:
        aliases = [other for other, named in ALIASES.items() if named == name]
        shown: dict[str, Any] = {} if name == INTERNAL else {"help": COMMANDS[name]}
        command = commands.add_parser(name, aliases=aliases, **shown)
        module = import_module(f"lumiimg.cli.{name}")
        command.description, _, command.epilog = (module.__doc__ or "").partition("\n\n")
        command.set_defaults(execute=module.execute)
        module.configure_parser(command)
    return parser


def parser_for(words: Iterable[str]) -> MainParser:
    """Return the parser of the program with the command that a command line names, and no other."""
    names = (ALIASES.get(word, word) for word in words)
    name = next((name for name in names if name in COMMANDS or name == INTERNAL), None)
    return make_parser((name,) if name else ())
