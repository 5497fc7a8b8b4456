"""The commands as data: purpose, options, help and exit codes of each, in the TOML files of this folder.

`--help`, completion, manual pages and the reference all come from this data. index.toml lists all commands, NAME.toml
describes one, shared.toml has options of several. A command's code is `execute` in the module of `cli/` with its name.
Only the files that a command line needs are read.
"""

from __future__ import annotations

import argparse
import datetime as dt
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn

from lumiimg import __version__
from lumiimg.cli.parser import Parser, exit_codes
from lumiimg.core.text import address_of
from lumiimg.core.toml import package_toml

LOCK = "lumiimg.lock"
INTERNAL = "node"
"""The command that `check --nodes` starts on each node; it is not listed."""
Entry = str | dict[str, Any]
"""An option in a TOML file: the name of one in shared.toml, or its keys."""
_INDEX = package_toml(__package__, "index.toml")
GROUPS: dict[str, dict[str, str]] = _INDEX["groups"]
"""Purpose of each command, in the groups of `--help`."""
COMMANDS = {name: purpose for group in GROUPS.values() for name, purpose in group.items()}
ALIASES: dict[str, str] = _INDEX["aliases"]
"""Alternative names of commands."""
EXITS: dict[str, str] = _INDEX["exits"]
"""Meanings of the exit codes of all commands."""
_ALL = (*COMMANDS, INTERNAL)


class Option(NamedTuple):
    """An option or a positional argument."""

    name: str
    """All spellings of an option; for a positional argument, its name in the code."""
    help: str = ""
    metavar: str | None = None
    type: Literal["text", "base", "path", "number", "date", "flag"] = "text"
    most: int = 0
    """Maximum of a number; the minimum is 1."""
    called: str = ""
    """Description of a valid number, for the error message."""
    choices: list[str] | None = None
    default: str | int | None = None
    words: Literal["?", "*", "+"] | None = None
    """Number of values, as `nargs` of argparse."""
    repeat: bool = False
    once: bool = False
    """Whether a second, different value is refused, because it would replace the first."""
    required: bool = False
    hidden: bool = False
    """Whether it is left out of the help, as it is only for lumiimg itself."""
    dest: str | None = None
    """Its name in the code, if different."""


class OptionGroup(NamedTuple):
    """Options under a title."""

    title: str
    options: list[Entry]


class Action(NamedTuple):
    """A subcommand, such as `cache ls`."""

    purpose: str
    about: str = ""
    notes: str = ""
    options: Sequence[Entry] = ()


class Command(NamedTuple):
    """The contents of a command's file."""

    about: str
    """Help text above the options."""
    notes: str = ""
    """Help text below the options."""
    usage: str | None = None
    absent: Sequence[str] = ()
    """Options that it lacks, but that commands with which it shares code have."""
    options: Sequence[Entry] = ()
    groups: Sequence[dict[str, Any]] = ()
    actions: Mapping[str, dict[str, Any]] = {}
    exits: Mapping[str, str] = {}
    """Meaning of each exit code; also a word with a sentence about all of them."""


def shared_options() -> dict[str, Any]:
    """Return the contents of shared.toml: options, and lists of options."""
    return _read("shared.toml")


@functools.cache
def _read(name: str) -> dict[str, Any]:
    return package_toml(__package__, name)


def read_command(name: str) -> Command:
    return Command(**_read(f"{name}.toml"))


def options_of(entries: Iterable[Entry]) -> Iterator[Option]:
    """Yield options, with shared ones expanded. Raises KeyError or TypeError for unknown names or keys."""
    for entry in entries:
        row = {"shared": entry} if isinstance(entry, str) else dict(entry)
        shared = row.pop("shared", None)
        found = shared_options()[shared] if shared else {}
        if isinstance(found, list):
            yield from options_of(found)
            continue
        row = ({"name": shared} if shared else {}) | found | row
        row["help"] = row.get("help", "") + row.pop("more", "") + (" (may be repeated)" if row.get("repeat") else "")
        yield Option(**row)


def add_options(parser: argparse._ActionsContainer, entries: Iterable[Entry]) -> None:
    """Add options to a parser or to an option group."""
    for option in options_of(entries):
        names = option.name.split()
        more: dict[str, Any] = {"help": argparse.SUPPRESS if option.hidden else option.help}
        if option.type == "flag":
            more |= {"action": "store_true"}
        else:
            more |= {"metavar": option.metavar, "type": _type_of(option), "choices": option.choices}
            more["nargs"] = option.words
        if option.default is not None:
            more["default"] = option.default
        if option.repeat:
            more |= {"action": "extend" if option.words else "append", "default": []}
        if option.once:
            more["action"] = _Once
        if option.required:
            more["required"] = True
        if option.dest:
            more["dest"] = option.dest
        parser.add_argument(*names, **more)


class _Once(argparse.Action):
    """An option that refuses a second, different value instead of using it silently."""

    def __call__(self, _: object, namespace: argparse.Namespace, values: object, __: object = None) -> None:
        if getattr(namespace, self.dest) not in {None, values}:
            raise argparse.ArgumentError(self, "is given twice, with two values; use only one of them")
        setattr(namespace, self.dest, values)


def _type_of(option: Option) -> Callable[[str], object]:
    if option.type == "number":
        return _number_to(option.most, option.called or f"number from 1 to {option.most}")
    kinds: dict[str, Callable[[str], object]] = {"text": str, "base": _base, "path": Path, "date": _date}
    return kinds[option.type]


def _base(text: str) -> str:
    """Return the name of a base; an image of a Docker engine gets the form that lumiimg uses."""
    return address_of(text) or text


def _number_to(most: int, what: str) -> Callable[[str], int]:
    """Return a parser for a number from 1 to `most`; its error says that a word is not a valid `what`."""

    def number(text: str) -> int:
        found = int(text) if text.isascii() and text.isdigit() and len(text) < 8 else 0
        if not 1 <= found <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not a valid {what}")
        return found

    return number


def _date(text: str) -> dt.date:
    try:
        return dt.date.fromisoformat(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not a valid date: {text[:40]!r}") from error


class MainParser(Parser):
    """The top-level parser; its help shows all commands in groups, even if only some have parsers."""

    @property
    def commands(self) -> Iterable[str]:
        """Names and aliases of all commands."""
        return (*COMMANDS, *ALIASES)

    def refuse(self, words: Sequence[str], others: Sequence[str] = ()) -> NoReturn:
        """Print an error for unrecognized words; a command's option must follow the command."""
        option = words[0].partition("=")[0]
        if name := next(iter(commands_with(option)), None):
            self.error(f"{option} is an option of commands, such as {name}: lumiimg {name} {option}")
        super().refuse(words, others)

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
        formatter.add_text(f"{exit_codes(EXITS)}\n{self.epilog}")
        return formatter.format_help()


def commands_with(option: str) -> list[str]:
    """Return the commands that have an option; none if the word is not an option."""
    if not option.startswith("-"):
        return []
    below = make_parser().below
    return [name for name in COMMANDS if option in below[name].options]


@functools.cache  # it does not change within a process
def make_parser(names: Sequence[str] = _ALL, *, offered: bool = False) -> MainParser:
    """Return the program's parser with parsers for these commands; `offered`: also with the names of the others."""
    parser = MainParser(prog="lumiimg", description=_INDEX["about"], epilog=_INDEX["notes"])
    parser.add_argument("--version", action="version", version=f"lumiimg {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=Parser)
    for name in dict.fromkeys((*names, *(COMMANDS if offered else ()))):
        aliases = [other for other, named in ALIASES.items() if named == name]
        shown: dict[str, Any] = {} if name == INTERNAL else {"help": COMMANDS[name]}
        command = commands.add_parser(name, aliases=aliases, **shown)
        command.set_defaults(command=name)
        if name in names:
            _fill(command, read_command(name))
    return parser


def _fill(parser: Parser, command: Command) -> None:
    """Add options, help text and subcommands to a parser."""
    parser.description, parser.epilog, parser.exits = command.about, command.notes, command.exits
    parser.usage = command.usage
    parser.set_defaults(**dict.fromkeys(command.absent))
    add_options(parser, command.options)
    for group in command.groups:
        title, entries = OptionGroup(**group)
        add_options(parser.add_argument_group(title), entries)
    if not command.actions:
        return
    below = parser.add_subparsers(title="commands", metavar="COMMAND", dest="action", required=True)
    for name, row in command.actions.items():
        action = Action(**row)
        one = below.add_parser(name, help=action.purpose, description=action.about, epilog=action.notes)
        one.exits = command.exits
        add_options(one, action.options)


def parser_for(words: Iterable[str], *, offered: bool = False) -> MainParser:
    """Return the program's parser with only the command that a command line names."""
    names = (ALIASES.get(word, word) for word in words)
    name = next((name for name in names if name in _ALL), None)
    return make_parser((name,) if name else (), offered=offered)
