"""Writes the pages of docs/reference that come from the program and its data: `make docs`."""

from __future__ import annotations

import argparse
import ast
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

from lumiimg.check.probing import EXIT_STAGES
from lumiimg.cli.main import make_parser
from lumiimg.errors import ExitCode
from lumiimg.nccl.vocabulary import vocabulary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "lumiimg"
REFERENCE = ROOT / "docs" / "reference"
WRITTEN = "Written by `make docs` from the program and its data; a test fails when it is old."


def main() -> None:
    for name, lines in PAGES.items():
        (REFERENCE / name).write_text(text(lines))


def text(lines: Callable[[], Iterator[str]]) -> str:
    return "\n".join(lines()) + "\n"


def exit_codes() -> Iterator[str]:
    yield "# Exit codes\n\nFor whoever writes scripts: what the number says with which a command ends.\n"
    yield f"{WRITTEN}\n\n| code | meaning |\n|---|---|"
    meanings = (
        "good",
        "the answer is no",
        "wrong usage or bad input",
        "cannot decide",
        "something needed is missing here",
    )
    yield from (f"| {code.value} | {meaning} |" for code, meaning in zip(ExitCode, meanings, strict=True))
    yield "| 70 | a fault of lumiimg itself: please report it |"
    yield "| 130, 143 | interrupted: by Ctrl-C, by SIGTERM |"
    yield "\nA green 0 is evidence at the level that was taken ([what each level proves](../explanation/levels.md)), 3 says what"
    yield "would decide. With `--json` the result is on standard output, and text for people on standard error."


def commands() -> Iterator[str]:
    yield "# Commands\n\nEvery command with its options, as `lumiimg COMMAND --help` has them.\n"
    yield WRITTEN
    yield from commands_of(make_parser(), "lumiimg")


def commands_of(parser: argparse.ArgumentParser, above: str) -> Iterator[str]:
    subparsers = next((a for a in parser._actions if isinstance(a, argparse._SubParsersAction)), None)
    told = {action.dest for action in subparsers._choices_actions} if subparsers else set()
    for name, command in subparsers.choices.items() if subparsers else ():
        if name not in told:  # not for people
            continue
        if any(isinstance(action, argparse._SubParsersAction) for action in command._actions):
            yield from commands_of(command, f"{above} {name}")
            continue
        yield f"\n## {above} {name}\n\n{' '.join((command.description or '').split())}\n\n| option | |\n|---|---|"
        for action in command._actions:
            if "--help" in action.option_strings or action.help == argparse.SUPPRESS:
                continue
            words = ", ".join(action.option_strings) or str(action.metavar)
            choices = f"{{{','.join(action.choices)}}}" if action.choices else ""
            value = (
                f" {choices or action.metavar or ''}".rstrip() if action.option_strings and action.nargs != 0 else ""
            )
            yield f"| `{cell(words + value)}` | {cell(action.help or '')} |"


def findings() -> Iterator[str]:
    """Yield a row for each id that the code of check/ gives to a finding."""
    yield "# Findings of `check`\n\nFor whoever reads `lumiimg check --json`: the ids, how grave they can be, and the level that finds them.\n"
    yield f"{WRITTEN}\n\n| id | severities | level |\n|---|---|---|"
    found: dict[str, tuple[set[str], set[str]]] = {}
    for file, level in (
        *((file, "static") for file in ("static", "variables", "library", "plugin", "copies", "binding")),
        ("probing", "probe"),
        ("checker", "probe"),
        ("simulation", "probe"),
        ("running", "run"),
        ("surroundings", "run"),
        ("bandwidth", "run"),
    ):
        for node in ast.walk(ast.parse((PACKAGE / "check" / f"{file}.py").read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add"):
                continue
            if len(node.args) < 3:
                continue
            ids = {n.value for n in ast.walk(node.args[0]) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
            severities = {n.attr.lower() for n in ast.walk(node.args[1]) if isinstance(n, ast.Attribute)}
            for identity in ids:
                if "." in identity.rstrip("."):
                    levels, seen = found.setdefault(identity, (set(), set()))
                    levels.add(level)
                    seen.update(severities or {"problem", "unknown"})
    for stage in EXIT_STAGES.values():
        found[f"plugin.{stage}"] = ({"probe"}, {"problem", "unknown"})
    for identity, (levels, seen) in sorted(found.items()):
        yield f"| `{identity}` | {', '.join(sorted(seen))} | {', '.join(sorted(levels))} |"


def signatures() -> Iterator[str]:
    yield "# Log signatures\n\nThe messages that `lumiimg log` knows: what each means, and where that is known from. Causes and remedies are"
    yield "printed with the answer (`lumiimg log --signatures` lists them, too).\n"
    yield f"{WRITTEN} [How to add one](../extend/signature.md).\n\n| id | meaning | source |\n|---|---|---|"
    for signature in vocabulary().signatures.values():
        yield f"| `{signature.id}` | {cell(signature.summary)} | {cell(signature.source)} |"


def engine_failures() -> Iterator[str]:
    yield "# Failures of the engine\n\nSingularityCE and Apptainer end with 255 whatever went wrong; what they print is matched with these.\n"
    yield f"{WRITTEN}\n\n| id | meaning | what helps |\n|---|---|---|"
    for entry in tomllib.loads((PACKAGE / "engine" / "failures.toml").read_text())["failure"]:
        yield f"| `{entry['id']}` | {cell(entry['meaning'])} | {cell(entry['remedy'])} |"


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


PAGES: dict[str, Callable[[], Iterator[str]]] = {
    "commands.md": commands,
    "engine-failures.md": engine_failures,
    "exit-codes.md": exit_codes,
    "findings.md": findings,
    "signatures.md": signatures,
}

if __name__ == "__main__":
    main()
