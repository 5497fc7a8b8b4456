"""Make the manual pages docs/man/*.1 from the parsers; the wheel installs them where `man` looks (.ci/man_pages.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumiimg import __version__
from lumiimg.cli.commands import COMMANDS, EXITS, GROUPS, make_parser
from tools.reference import commands_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from lumiimg.cli.parser import Parser

DATE = "2026-11-22"
"""Date of the pages; it is fixed, so that the same text has the same bytes on any day."""
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


def pages() -> dict[str, str]:
    """Return the text of each page by file name: one for the program, one per command."""
    parser = make_parser()
    written = {"lumiimg.1": "\n".join(main_page()) + "\n"}
    for name, purpose in COMMANDS.items():
        written[f"lumiimg-{name}.1"] = "\n".join(page(name, parser.below[name], purpose)) + "\n"
    return written


def main_page() -> Iterator[str]:
    yield from head("lumiimg", "build ROCm AI images for HPE Slingshot machines, and prove which network they use")
    yield from (".SH SYNOPSIS", ".B lumiimg", ".I command", "[\\fIoption\\fR ...]", ".SH DESCRIPTION")
    yield escaped(
        "A green answer of lumiimg is evidence, never an assumption: no obstacle was found at the level that it "
        "names. Where it cannot know, it says so, and exits with 3. Without a command it shows what to do next."
    )
    for title, group in GROUPS.items():
        yield f".SS {quoted(title.capitalize())}"
        yield from table({f"lumiimg-{name}(1)": purpose for name, purpose in group.items()})
    for title, rows in {"EXIT STATUS": STATUS, "ENVIRONMENT": ENVIRONMENT, "FILES": FILES}.items():
        yield f".SH {title}"
        yield from table(rows)
    yield ".SH OUTPUT"
    first, *others = OUTPUT.strip().split("\n\n")
    yield escaped(" ".join(first.split()))
    for part in others:
        yield from (".PP", escaped(" ".join(part.split())))


def page(name: str, parser: Parser, purpose: str) -> Iterator[str]:
    """Yield the lines of a command's page: the output of `--help`, unchanged, and the parts that all pages share."""
    yield from head(f"lumiimg-{name}", purpose)
    yield ".SH DESCRIPTION"
    for command in commands_of(parser) or [parser]:
        yield from (".nf", *(escaped(line) or "\\&" for line in command.format_help().splitlines()), ".fi")
    yield from (".SH ENVIRONMENT", "See lumiimg(1).", ".SH SEE ALSO", ".BR lumiimg (1)")


def head(name: str, about: str) -> Iterator[str]:
    yield '.\\" Written by `make docs` from the program.'
    yield f'.TH {quoted(name.upper())} 1 {DATE} "lumiimg {__version__}" "lumiimg manual"'
    yield from (".nh", ".ad l", ".SH NAME", f"{escaped(name)} \\- {escaped(about)}")


def table(rows: Mapping[str, str]) -> Iterator[str]:
    for tag, text in rows.items():
        yield from (".TP", f"\\fB{escaped(tag)}\\fR", escaped(" ".join(text.split())))


def quoted(text: str) -> str:
    return f'"{escaped(text)}"'


def escaped(text: str) -> str:
    """Return text escaped for roff: copyable hyphens, and no line that begins with a control character."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("`", "\\(ga")
    text = "".join(c if c.isascii() else f"\\[u{ord(c):04X}]" for c in text)
    return f"\\&{text}" if text.startswith(".") else text
