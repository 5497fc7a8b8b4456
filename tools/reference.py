"""Make the pages of docs/reference about the program's data: commands, findings, messages, engines."""

from __future__ import annotations

import argparse
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

from lumiimg.check.registry import finding_types
from lumiimg.cli.commands import COMMANDS, make_parser
from lumiimg.core.findings import Level, Remedy, Severity
from lumiimg.joblog import vocabulary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lumiimg.check.registry import FindingType, Reason

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "lumiimg"
WRITTEN = "Written by `make docs` from the program and its data."


_MESSAGE = re.compile(
    r"^.{0,60}?NCCL (?:WARN|INFO) +|^libfabric:.{0,90}?<(?:warn|info|error)> \w+: +|^.{0,60}?\|CCL_\w+\| +"
)
"""The prefix of the message in an example: node, process, place in the source."""


def commands() -> Iterator[str]:
    yield f"# Commands\n\nEvery command with its options, as `lumiimg COMMAND --help` prints them.\n\n{WRITTEN}"
    for command in commands_of(make_parser()):
        yield f"\n## {command.prog}\n\n```text\n{command.format_help().rstrip()}\n```"


def commands_of(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    """Return the parsers of all commands below one; a command that has subcommands is replaced by them."""
    found: list[argparse.ArgumentParser] = []
    for below in parser._actions:
        if isinstance(below, argparse._SubParsersAction):
            for action in below._choices_actions:
                command = below.choices[action.dest]
                found += commands_of(command) or [command]
    return found


def exit_codes() -> Iterator[str]:
    yield "# Exit codes of each command\n\n*For users who write scripts.*\n\nWhat each code means for all commands is on [a page of its own](exit-codes.md).\n"
    yield f"{WRITTEN}\n\n| command | code | meaning |\n|---|---|---|"
    for name in COMMANDS:
        for code, meaning in make_parser().below[name].exits.items():
            yield f"| `{name}` | {code} | {cell(meaning)} |"


_FINDINGS = """
A line of `check` ends with the id of its finding and the level that found it: `[plugin.absent, static]`. Behind each id here: the part of the fabric
path that a problem breaks, and how grave the finding can be at each [level](../explanation/levels.md). `ok` is evidence for the fast path, `info` has
no weight, `unknown` is an open question, `problem` is an obstacle.

A collective that goes over Slingshot (`run.network` with `ok`) answers every open question and outweighs every obstacle of a lower level. A probe answers a finding
of level static if it finds the same id, or the id behind *answered by*, with `ok`. What is answered is left out, is printed as `info`, or does not
keep the answer open any more. What files come to for the variables and the RCCL that the process of a job was seen to have is of level probe.

Below each: its sentence where files alone show it, why it is so, what to do, and the source of the rule, with a line for each reason that it can have. `{name}` stands for a name of the case.
"""


def findings() -> Iterator[str]:
    yield "# Findings of `check`\n\n*For users who read the output of `lumiimg check`.*\n"
    yield f"{WRITTEN}\n{_FINDINGS}"
    for code, meaning in sorted(finding_types().items()):
        grave = (f"{level} {'/'.join(found)}" for level in Level if (found := meaning.severities(level)))
        answer = _answered_by(meaning)
        notes = filter(None, (meaning.part or meaning.decided_by, *grave, answer and f"answered by {answer}"))
        yield f"- `{code}` ({'; '.join(notes)}): {cell(meaning.text)}"
        for reason, finding in {"": meaning, **meaning.reasons}.items():
            yield from _reason_lines(reason, finding)


def _reason_lines(name: str, reason: Reason) -> Iterator[str]:
    """Yield the sentence, cause, remedy and source of a finding; placeholders for names are in braces."""
    remedies = "; ".join(Remedy(**parts) for parts in reason.remedy)
    parts = {"prints": reason.summary, "why": reason.cause, "do": remedies, "source": reason.source}
    if message := ". ".join(f"{word}: {cell(text)}" for word, text in parts.items() if text):
        yield f"  - {f'{name}: ' if name else ''}{message}"


def _answered_by(meaning: FindingType) -> str:
    """Return the check below a collective that settles a finding of files which prevents a good answer."""
    if not {Severity.UNKNOWN, Severity.PROBLEM} & set(meaning.static):
        return ""
    probe = meaning.answered_by or meaning.demoted_by
    if probe is not None:
        return f"`{probe}`"
    return "" if meaning.survives_probe or Severity.UNKNOWN not in meaning.static else "`provider.cxi`"


def signatures() -> Iterator[str]:
    yield "# Log signatures\n\nThe messages that `lumiimg log` knows: the id of each, what it means, a line as it was printed, and words of other lines. `lumiimg log FILE` prints"
    yield "causes and remedies; `lumiimg log --signatures` lists all of them, with their sources.\n"
    yield f"{WRITTEN} [How to add one](../extend/signature.md).\n"
    for signature in vocabulary().signatures.values():
        line = _MESSAGE.sub("", signature.example.strip())
        others = [hint.strip(" :") for hint in signature.hints if hint.lower() not in signature.example.lower()]
        also = ", ".join(_code(hint) for hint in others if " " in hint)
        yield f"- `{signature.id}`: {cell(signature.summary)}. {_code(line)}{also and f'; also {also}'}"


def _code(text: str) -> str:
    mark = "``" if "`" in text else "`"
    return f"{mark}{text}{mark}"


def engine_failures() -> Iterator[str]:
    yield "# Failures of the engine\n\nSingularityCE and Apptainer end with 255 whatever went wrong; what they print is matched with these.\n"
    yield f"{WRITTEN}\n"
    for entry in tomllib.loads((PACKAGE / "engine" / "failures.toml").read_text())["failure"]:
        yield f"- `{entry['id']}`: {cell(entry['meaning'])}. Do: {cell(entry['remedy'])}"


def engines() -> Iterator[str]:
    yield "# SingularityCE and Apptainer\n\nDifferences between SingularityCE 4.1, which LUMI has, and Apptainer 1.4 that lumiimg or its users meet.\n"
    yield f"{WRITTEN}\n"
    yield "Each row but those with a \\* was seen with both real programs: SingularityCE 4.1.3 built from its sources, without"
    yield "set-user-id, and Apptainer 1.4.5 of Debian. A row with a \\* was read in the sources. None was seen on LUMI, where"
    yield "SingularityCE is set-user-id. The file behind each row is in `tools/engine_differences.toml`.\n"
    yield "`python -m tools.engine_behaviour IMAGE`, in a clone, tries the rows with a + on the engine of a node. These tries ran with Apptainer;"
    yield "what is expected of SingularityCE in them is taken from what it printed when the rows were written.\n"
    yield "| id | what | Apptainer | SingularityCE |\n|---|---|---|---|"
    for row in tomllib.loads(Path(__file__).with_name("engine_differences.toml").read_text())["difference"]:
        mark = (" \\*" if "tried" in row else "") + (" +" if "shows" in row else "")
        yield f"| `{row['id']}`{mark} | {cell(row['what'])} | {cell(row['apptainer'])} | {cell(row['singularityce'])} |"


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


PAGES: dict[str, Callable[[], Iterator[str]]] = {
    "command-exit-codes.md": exit_codes,
    "commands.md": commands,
    "engine-failures.md": engine_failures,
    "engines.md": engines,
    "findings.md": findings,
    "signatures.md": signatures,
}
