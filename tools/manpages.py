"""The manual pages, from the parsers: docs/man/*.1. The wheel puts them where `man` looks (.ci/man_pages.py)."""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING

from lumiimg import __version__
from lumiimg.cli.commands import COMMANDS, EXITS, GROUPS, make_parser

if TYPE_CHECKING:
    from lumiimg.cli.parser import Parser

DATE = "2026-11-22"
"""Of the pages; the same text has the same bytes on any day."""
ENVIRONMENT = {
    "LUMIIMG_CACHE": "Where layers, bases and downloads are kept, and where builds have their scratch. It may be deleted at any "
    "time. Wins over cache in config.toml.",
    "LUMIIMG_SITE": "The machine, where --site names none: a name or a file, as site in the settings, which it replaces. generic is none.",
    "LUMIIMG_ENGINE": "The engine, and no other: a name on PATH, a path, or namespaces (the kernel's own). Without it builds take the "
    "first that works of apptainer, singularity and the kernel's; checks take the first on PATH, as jobs do.",
    "LUMIIMG_DEBUG": "If set, a fault of lumiimg itself ends with Python's traceback.",
    "XDG_CONFIG_HOME": "The folder of lumiimg/config.toml and of your own layers, recipes and sites (~/.config).",
    "XDG_CACHE_HOME": "The folder of lumiimg's cache (~/.cache), where neither LUMIIMG_CACHE nor the machine names another.",
    "TMPDIR": "Where the engine has its temporary files.",
    "PATH": "Where engine, mksquashfs and debootstrap are looked for.",
    "NO_COLOR": "If set, no colours.",
    "COLUMNS": "The width of text where standard output is no terminal (80).",
    "SLURM_JOB_ID": "With the other variables of Slurm: check --nodes uses the nodes of this job.",
}
OUTPUT = """\
The answer comes first, in one sentence; what stands behind it follows: evidence (>), reasons (why:), what to do (do:, else \
or:), the source. Text is wrapped at the width of the terminal, and never beyond 100 columns; in a pipe or a file at COLUMNS, \
else 80. Evidence, what is there to be copied, and a word that is longer than the line are never broken, and may be wider.

With --json a result for programs goes to standard output, and the text for people to standard error. With --quiet only the \
answer is printed, in one line. What stops a command is one line on standard error.
"""
FILES = {
    "~/.config/lumiimg/config.toml": "Settings: cache, and a table of mirrors.",
    "~/.config/lumiimg/layers, recipes, sites": "Your own bases, layers, recipes and sites; they are found first.",
    "~/.cache/lumiimg": "The cache; on LUMI in your project's scratch.",
    "lumiimg.lock": "What lumiimg lock writes and lumiimg build --locked builds.",
}
STATUS = {**EXITS, "70": "a fault of lumiimg itself", "130, 143": "interrupted, terminated"}
SECTIONS = {"examples": "EXAMPLES"}


def pages() -> dict[str, str]:
    """Return the pages by their file names: one for the program, one a command."""
    parser = make_parser()
    written = {"lumiimg.1": "\n".join(main_page(parser)) + "\n"}
    for name, purpose in COMMANDS.items():
        written[f"lumiimg-{name}.1"] = "\n".join(page(name, parser.below[name], purpose)) + "\n"
    return written


def subparsers(parser: argparse.ArgumentParser) -> argparse._SubParsersAction[argparse.ArgumentParser] | None:
    return next((action for action in parser._actions if isinstance(action, argparse._SubParsersAction)), None)


def main_page(parser: argparse.ArgumentParser) -> Iterator[str]:
    yield from head("lumiimg", "build ROCm AI images for HPE Slingshot machines, and prove which network they use")
    yield from (".SH SYNOPSIS", ".B lumiimg", ".I command", "[\\fIoption\\fR ...]", ".SH DESCRIPTION")
    yield from paragraphs(parser.description or "")
    yield ".PP"
    yield from paragraphs(
        "A green answer of lumiimg is evidence, never an assumption: no obstacle was found at the level that it "
        "names. Where it cannot know, it says so, and exits with 3. Without a command it shows what to do next."
    )
    for title, group in GROUPS.items():
        yield f".SS {quoted(title.capitalize())}"
        for name, purpose in group.items():
            yield from tagged(f"\\fBlumiimg\\-{escaped(name)}\\fR(1)", purpose)
    yield ".SH OPTIONS"
    yield from options(parser)
    yield ".SH EXIT STATUS"
    for code, meaning in STATUS.items():
        yield from tagged(code, meaning)
    yield ".SH ENVIRONMENT"
    for name, meaning in ENVIRONMENT.items():
        yield from tagged(f"\\fB{escaped(name)}\\fR", meaning)
    yield ".SH FILES"
    for name, meaning in FILES.items():
        yield from tagged(f"\\fI{escaped(name)}\\fR", meaning)
    yield ".SH OUTPUT"
    yield from paragraphs(OUTPUT.strip())
    yield from see_also([*(f"lumiimg-{name}" for name in COMMANDS), "apptainer"])


def page(name: str, parser: Parser, purpose: str) -> Iterator[str]:
    yield from head(f"lumiimg-{name}", purpose)
    yield ".SH SYNOPSIS"
    below = subparsers(parser)
    leaves = below.choices if below else {"": parser}
    for number, leaf in enumerate(leaves.values()):
        if number:
            yield ".br"
        yield from synopsis(leaf)
    yield ".SH DESCRIPTION"
    yield from paragraphs(parser.description or purpose)
    if below is None:
        yield ".SH OPTIONS"
        yield from options(parser)
    else:
        yield ".SH COMMANDS"
        told = {action.dest: action.help or "" for action in below._choices_actions}
        for leaf_name, leaf in leaves.items():
            yield f".SS {quoted(leaf_name)}"
            yield from paragraphs(leaf.description or told[leaf_name])
            yield from options(leaf)
    sections = epilog([parser, *leaves.values()])
    for title, lines in sections.items():
        yield f".SH {quoted(title)}"
        yield from (".nf", *map(line_of, lines), ".fi")
    yield ".SH EXIT STATUS"
    for code, meaning in parser.exits.items():
        yield from tagged(code, meaning)
    yield from (".SH ENVIRONMENT", "As of all commands: see lumiimg(1).")
    yield from see_also(["lumiimg"])


def head(name: str, about: str) -> Iterator[str]:
    yield '.\\" Written by `make docs` from the program.'
    yield f'.TH {quoted(name.upper())} 1 {DATE} "lumiimg {__version__}" "lumiimg manual"'
    yield from (".nh", ".ad l")
    yield from (".SH NAME", f"{escaped(name)} \\- {escaped(about)}")


def synopsis(parser: argparse.ArgumentParser) -> Iterator[str]:
    usage = " ".join(parser.format_usage().removeprefix("usage: ").split())
    words = usage.removeprefix(parser.prog).strip()
    yield f".B {escaped(parser.prog)}"
    yield escaped(words) or "\\&"


def options(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        if action.help == argparse.SUPPRESS or isinstance(action, argparse._SubParsersAction):
            continue
        choices = f"{{{','.join(map(str, action.choices))}}}" if action.choices else ""
        value = choices if choices and action.metavar is None else str(action.metavar or choices)
        if action.option_strings:
            words = ", ".join(f"\\fB{escaped(option)}\\fR" for option in action.option_strings)
            tag = f"{words} \\fI{escaped(value)}\\fR" if action.nargs != 0 else words
        else:
            tag = f"\\fI{escaped(value)}\\fR"
        yield from tagged(tag, (action.help or "").replace("%(default)s", str(action.default)))


def epilog(parsers: list[argparse.ArgumentParser]) -> dict[str, list[str]]:
    """Return what stands below the options, by section: `examples:`, and notes, each as it is written."""
    found: dict[str, list[str]] = {"NOTES": [], "EXAMPLES": []}
    for parser in dict.fromkeys(parsers):
        for block in re.split(r"\n\n(?=\S)", (parser.epilog or "").strip("\n")):
            title, colon, rest = block.partition(":")
            section = SECTIONS.get(title, "NOTES") if colon else "NOTES"
            text = block if section == "NOTES" else " " * len(f"{title}:") + rest if rest[:1] == " " else rest
            lines = textwrap.dedent(text.strip("\n")).split("\n")
            if found[section] and block:
                lines.insert(0, "")
            found[section] += lines if block else []
    return {section: lines for section, lines in found.items() if lines}


def line_of(line: str) -> str:
    return escaped(line) or "\\&"


def tagged(tag: str, text: str) -> Iterator[str]:
    yield from (".TP", tag, escaped(" ".join(text.split())) or "\\&")


def paragraphs(text: str) -> Iterator[str]:
    for number, part in enumerate(text.split("\n\n")):
        if number:
            yield ".PP"
        yield escaped(" ".join(part.split()))


def see_also(names: list[str]) -> Iterator[str]:
    yield ".SH SEE ALSO"
    yield ",\n".join(f".BR {escaped(name)} (1)" for name in names)


def quoted(text: str) -> str:
    return f'"{escaped(text)}"'


def escaped(text: str) -> str:
    """Return text as roff takes it: hyphens that can be copied, no line that begins with a control character."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("`", "\\(ga")
    text = "".join(c if c.isascii() else f"\\[u{ord(c):04X}]" for c in text)
    return f"\\&{text}" if text.startswith(".") else text
