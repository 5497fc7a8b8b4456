"""The files that define the commands: nothing in them is misspelt or unused."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lumiimg.cli import commands
from lumiimg.cli.commands import (
    ALIASES,
    COMMANDS,
    INTERNAL,
    Action,
    Command,
    Entry,
    Option,
    OptionGroup,
    add_options,
    make_parser,
    options_of,
    read_command,
    shared_options,
)

FOLDER = Path(commands.__file__).parent
NAMES = (*COMMANDS, INTERNAL)


def lists_of(command: Command) -> Iterator[list[Entry]]:
    yield [*command.options]
    yield from ([*OptionGroup(**row).options] for row in command.groups)
    yield from ([*Action(**row).options] for row in command.actions.values())


def checked(value: Any, of: type) -> None:
    msgspec.convert(tuple(value), of)  # raises for a value of another type


@pytest.mark.parametrize("name", NAMES)
def test_the_file_of_a_command_holds_what_is_known_of_the_types_that_are_meant(name: str) -> None:
    command = read_command(name)
    checked(command, Command)
    for group in command.groups:
        checked(OptionGroup(**group), OptionGroup)
    for action in command.actions.values():
        checked(Action(**action), Action)
    for entries in lists_of(command):
        for option in options_of(entries):
            checked(option, Option)
    assert callable(import_module(f"lumiimg.cli.{name}").execute)


def test_what_a_node_has_is_given_by_either_name() -> None:
    for name in ("--host", "--snapshot"):
        assert make_parser().parse_args(["bind", "image.sif", name, "node.json"]).host == Path("node.json")


@pytest.mark.parametrize(
    ("entry", "error"),
    [
        ({"name": "--x", "hlep": "…"}, TypeError),
        ({"name": "--x", "type": "pth"}, KeyError),
        ({"shared": "--iste"}, KeyError),
        ({"help": "without a name"}, TypeError),
        ("--iste", KeyError),
    ],
)
def test_what_is_misspelt_is_an_error(entry: Entry, error: type[Exception]) -> None:
    with pytest.raises(error):
        add_options(argparse.ArgumentParser(), [entry])


def test_each_file_is_of_a_command_and_each_shared_option_is_used() -> None:
    assert {path.stem for path in FOLDER.glob("*.toml")} == {*NAMES, "index", "shared", "start"}
    assert set(ALIASES.values()) <= set(COMMANDS)
    shared = shared_options()
    used, pending = set[str](), [entries for name in NAMES for entries in lists_of(read_command(name))]
    while pending:
        for entry in pending.pop():
            name = entry if isinstance(entry, str) else entry.get("shared")
            if name is not None and name not in used:
                used.add(name)
                pending += [shared[name]] if isinstance(shared[name], list) else []
    assert used == set(shared)
