"""The commands: what each is for, its options and help, and what its exit codes say; as data, in the files beside this.

`--help`, the completion, the manual pages and the reference are made from here alone. index.toml has all commands,
NAME.toml one of them, shared.toml the options of several. What a command does is in the module of `cli/` that has its
name: `execute` there. Only what a command line needs is read.
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
"""What `check --nodes` starts on each node: in no list of commands."""
Entry = str | dict[str, Any]
"""An option as a file has it: the name of one of shared.toml, or its keys."""
_INDEX = package_toml(__package__, "index.toml")
GROUPS: dict[str, dict[str, str]] = _INDEX["groups"]
"""What each command is for, as `--help` groups them."""
COMMANDS = {name: purpose for group in GROUPS.values() for name, purpose in group.items()}
ALIASES: dict[str, str] = _INDEX["aliases"]
"""Other names that commands have."""
EXITS: dict[str, str] = _INDEX["exits"]
"""What the exit codes of all commands say."""
_ALL = (*COMMANDS, INTERNAL)


class Option(NamedTuple):
    """An option, or a word that stands alone."""

    name: str
    """As it is written, in all its ways; of a word that stands alone, what the command calls it."""
    help: str = ""
    metavar: str | None = None
    type: Literal["text", "base", "path", "number", "date", "flag"] = "text"
    most: int = 0
    """Of a number, which is from 1 on."""
    called: str = ""
    """What a wrong number is not a valid one of."""
    choices: list[str] | None = None
    default: str | int | None = None
    words: Literal["?", "*", "+"] | None = None
    """How many words there may be."""
    repeat: bool = False
    once: bool = False
    """Whether a second value is refused: it would not be added to the first."""
    required: bool = False
    hidden: bool = False
    """In no help: for lumiimg itself."""
    dest: str | None = None
    """What the command calls it, where that is not its name."""


class OptionGroup(NamedTuple):
    """Options below a title of their own."""

    title: str
    options: list[Entry]


class Action(NamedTuple):
    """A command below another: `cache ls`."""

    purpose: str
    about: str = ""
    notes: str = ""
    options: Sequence[Entry] = ()


class Command(NamedTuple):
    """What a file holds."""

    about: str
    """Above the options."""
    notes: str = ""
    """Below them."""
    usage: str | None = None
    absent: Sequence[str] = ()
    """Options that it has not, and commands that it shares work with have."""
    options: Sequence[Entry] = ()
    groups: Sequence[dict[str, Any]] = ()
    actions: Mapping[str, dict[str, Any]] = {}
    exits: Mapping[str, str] = {}
    """What each exit code says; also a word and its sentence for all of them."""


def shared_options() -> dict[str, Any]:
    """Return what shared.toml holds: options, and lists of them."""
    return _read("shared.toml")


@functools.cache
def _read(name: str) -> dict[str, Any]:
    return package_toml(__package__, name)


def read_command(name: str) -> Command:
    return Command(**_read(f"{name}.toml"))


def options_of(entries: Iterable[Entry]) -> Iterator[Option]:
    """Yield options, with what is shared put in. Raises KeyError or TypeError for what is not known."""
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
    """Add options to a parser, or to a group of its options."""
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
    """An option of which the last value does not win silently."""

    def __call__(self, _: object, namespace: argparse.Namespace, values: object, __: object = None) -> None:
        if getattr(namespace, self.dest) not in {None, values}:
            raise argparse.ArgumentError(self, "is given twice, with two values; leave one of them out")
        setattr(namespace, self.dest, values)


def _type_of(option: Option) -> Callable[[str], object]:
    if option.type == "number":
        return _number_to(option.most, option.called or f"number from 1 to {option.most}")
    kinds: dict[str, Callable[[str], object]] = {"text": str, "base": _base, "path": Path, "date": _date}
    return kinds[option.type]


def _base(text: str) -> str:
    """Return the name of a base; of an image of a Docker engine, in the form that lumiimg has for it."""
    return address_of(text) or text


def _number_to(most: int, what: str) -> Callable[[str], int]:
    """Return what reads a number from 1 to `most`; an error says that a word is not a valid `what`."""

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
    """The parser above all commands; its help shows them in groups, whichever it has a parser of."""

    @property
    def commands(self) -> Iterable[str]:
        """The names of all commands."""
        return (*COMMANDS, *ALIASES)

    def refuse(self, words: Sequence[str], others: Sequence[str] = ()) -> NoReturn:
        """Print what cannot be understood; an option of a command stands behind that."""
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
    """Return the commands that have an option; none for what is not an option."""
    if not option.startswith("-"):
        return []
    below = make_parser().below
    return [name for name in COMMANDS if option in below[name].options]


@functools.cache  # the same for a whole process
def make_parser(names: Sequence[str] = _ALL, *, offered: bool = False) -> MainParser:
    """Return the parser of the program with these of its commands; `offered`: and with the bare names of the others."""
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
    """Give a parser its options, its help and the commands below it."""
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
    """Return the parser of the program with the command that a command line names, and no other."""
    names = (ALIASES.get(word, word) for word in words)
    name = next((name for name in names if name in _ALL), None)
    return make_parser((name,) if name else (), offered=offered)
