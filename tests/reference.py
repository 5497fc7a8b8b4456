"""Writes docs/reference.md from the program and its data: `make docs`."""

from __future__ import annotations

import argparse
import ast
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

from lumiimg.catalog.catalogue import open_catalogue
from lumiimg.check.probing import EXIT_STAGES
from lumiimg.cli.main import make_parser
from lumiimg.errors import ExitCode
from lumiimg.nccl.vocabulary import vocabulary
from lumiimg.resolve.rccl import generations

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = Path(__file__).parents[1] / "lumiimg"


def main() -> None:
    print("\n".join(reference()))


def reference() -> Iterator[str]:
    yield "# Reference"
    yield "\nWritten by `make docs` from the program and its data; a test fails when it is old."
    yield from commands()
    yield "\n## Exit codes\n\n| code | meaning |\n|---|---|"
    meanings = (
        "good",
        "the answer is no",
        "wrong usage or bad input",
        "cannot decide",
        "something needed is missing here",
    )
    yield from (f"| {code.value} | {meaning} |" for code, meaning in zip(ExitCode, meanings, strict=True))
    yield from catalogue()
    yield "\n## Findings of `check`\n\n| id | severities | level |\n|---|---|---|"
    yield from findings()
    yield "\n## What RCCL's generations do with a plugin\n"
    yield "| RCCL from | ROCm | net API, in its order | file it looks for | ncclGetUniqueId without a GPU | basis |\n|---|---|---|---|---|---|"
    for entry in generations():
        api = " ".join(f"v{version}" for version in entry.accepts)
        unique = "opens the plugin" if entry.unique_id_loads_plugin else "does not look for it"
        yield f"| {entry.since} | {entry.rocm} | {api} | {', '.join(entry.files)} | {unique} | {entry.basis} |"
    yield "\n## Log signatures\n\n| id | meaning | source |\n|---|---|---|"
    for signature in vocabulary().signatures.values():
        yield f"| {signature.id} | {cell(signature.summary)} | {cell(signature.source)} |"
    yield "\n## Failures of the engine that are explained\n\n| id | meaning | what helps |\n|---|---|---|"
    for entry in tomllib.loads((PACKAGE / "engine" / "failures.toml").read_text())["failure"]:
        yield f"| {entry['id']} | {cell(entry['meaning'])} | {cell(entry['remedy'])} |"


def commands() -> Iterator[str]:
    yield from commands_of(make_parser(), "lumiimg")


def commands_of(parser: argparse.ArgumentParser, above: str) -> Iterator[str]:
    subparsers = next((a for a in parser._actions if isinstance(a, argparse._SubParsersAction)), None)
    for name, command in subparsers.choices.items() if subparsers else ():
        if any(isinstance(action, argparse._SubParsersAction) for action in command._actions):
            yield from commands_of(command, f"{above} {name}")
            continue
        yield f"\n## {above} {name}\n\n{' '.join((command.description or '').split())}\n\n| | |\n|---|---|"
        for action in command._actions:
            if "--help" in action.option_strings or action.help == argparse.SUPPRESS:
                continue
            words = ", ".join(action.option_strings) or str(action.metavar)
            choices = f"{{{','.join(action.choices)}}}" if action.choices else ""
            value = (
                f" {choices or action.metavar or ''}".rstrip() if action.option_strings and action.nargs != 0 else ""
            )
            yield f"| `{cell(words + value)}` | {cell(action.help or '')} |"


def catalogue() -> Iterator[str]:
    shipped = open_catalogue({"HOME": "/nonexistent"})
    yield "\n## Bases and layers\n\n| name | kind | status | what | requires | conflicts |\n|---|---|---|---|---|---|"
    for name in shipped.layer_names():
        layer = shipped.entry(name)
        kind = "base" if layer.is_base else "layer"
        requires, conflicts = ", ".join(map(str, layer.requires)), ", ".join(layer.conflicts)
        yield f"| {name} | {kind} | {layer.status} | {cell(layer.summary)} | {requires} | {conflicts} |"


def findings() -> Iterator[str]:
    """Yield a row for each id that the code of check/ gives to a finding."""
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
        yield f"| {identity} | {', '.join(sorted(seen))} | {', '.join(sorted(levels))} |"


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    main()
