"""Writes the pages of docs/reference that come from the program and its data: `make docs`."""

from __future__ import annotations

import argparse
import re
import tomllib
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from lumiimg.check.codes import meanings
from lumiimg.cli.commands import make_parser
from lumiimg.errors import ExitCode
from lumiimg.findings import Code, Level, Severity
from lumiimg.nccl.vocabulary import vocabulary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lumiimg.check.codes import Meaning

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "lumiimg"
REFERENCE = ROOT / "docs" / "reference"
WRITTEN = "Written by `make docs` from the program and its data."


_OFTEN = 3
"""Commands with the same option, from which on it is described once."""
_FEW = 5

_MESSAGE = re.compile(
    r"^.{0,60}?NCCL (?:WARN|INFO) +|^libfabric:.{0,90}?<(?:warn|info|error)> \w+: +|^.{0,60}?\|CCL_\w+\| +"
)
"""What stands before the message in an example: node, process, place in the source."""

_EXIT_CODES = """
`lumiimg COMMAND --help` has them for the commands that answer a question. With `--json` the result is on standard output, and text for people on standard error.

## 0: good
Evidence at the level that was taken ([what each level proves](../explanation/levels.md)), never a promise. `explain` of a request gives 0 with
doubts, too: its first line says "with doubts", and each has a `?`.

## 1: the answer is no, or the work failed
A command that **answers** (`check`, `log`, `explain`, `bind`, `drift`, `ldd`, `doctor`) has found what stands against it: do what the
lines `do:` say, from the first on. `diff` says 1 where two locks differ, `why` where a layer would be built again.

A command that **makes** something could not make it; a line on standard error says what, where, and what to do:

- **a build that failed**: a script of a layer ended with an error, a server refused, or a file or a layer here is another than the lock says. What
  was built and downloaded before is kept: mend it, and run the same command again;
- **a disk that is full**, or a quota: free some room, or name another place (`-o`, `LUMIIMG_CACHE`);
- **a file that cannot be written**. Under that name is nothing, or what was there before.

## 2: wrong usage or bad input
Nothing was done. The line names the word or the file, and what would be right: a file that is not there or is something else, a name that is not
known (with the nearest), an output that is there already (`--force` replaces it). The folder of `-o` of `build`, `lock`, `job` and `host scan`, of `--html`
and of `--junit` must be there; `module -o`, `draft -o` and `build --definitions` make theirs.

## 3: cannot decide
Something that it hangs on is not known here. That is not a yes: a script that waits for a good image waits on. The answer names what would
decide it, mostly in a line `do:`

| command | what is not known | what decides it |
|---|---|---|
| `check` | what stands after a `?`; `level …` says which levels were not taken, and why | the `do:` of that `?`: `--host host.json` for what comes from the machine, or the same check where the job will run. With `--nodes`: the nodes that gave no answer are named; where Slurm did not take the job, its own words say why (`--sbatch`) |
| `log` | no line names the network, or the fast one was selected and no line shows traffic | a run on two nodes with `NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET,ENV` |
| `explain IMAGE` | what the image gets from the host; with `--host`, what stands after a `?` | `lumiimg host scan -o host.json` on a compute node, then `--host host.json`; else the `do:` of that `?` |
| `bind`, `module` | which libraries must be bound: the snapshot has no libfabric for Slingshot, or the image no glibc | a snapshot of a compute node, with the modules of the job loaded |
| `drift` | the two snapshots are of nodes of different kinds, or one has no fabric or no known driver | both snapshots from nodes of one partition |
| `host scan` | the network: there is no libfabric for Slingshot. The snapshot is written, and says so | a compute node, with the module of the site loaded |
| `ldd` | musl's loader, which is not modelled | the container itself |
| `bench import` | a part of the counts: the engine is set-user-id, or the kernel reads the image | what the line on standard error says |
| `adapt` | whether nothing has to be added | what its doubts say |
| `doctor` | whether builds work here: the engine starts no container, for a reason that lumiimg does not know | the engine's own words behind the `?` |

## 4: something needed is missing here
The same command can do its work elsewhere. The line names what is missing, how to get it, and what goes without: a container engine (`build`,
`doctor`, `check --level probe`; without it go `--dry-run`, `--definitions` and `check --level static`); GPUs
(`check --level run`); Slurm (`check --nodes`); strace (`bench import`); a network (`lock`, and what a build has to fetch:
[carry the lock over](../howto/mirrors.md#without-a-network)). A server that was reached, and says no, is a 1.

## In a script

<!-- run: with image.sif -->
```sh
code=0
lumiimg check image.sif --level static --quiet || code=$?
case $code in
    0) echo "no obstacle found at this level" ;;
    1) echo "no: without --quiet it says what to do" ;;
    3) echo "not known yet" ;;
    *) exit $code ;;
esac
```
"""


def main() -> None:
    for name, lines in PAGES.items():
        (REFERENCE / name).write_text(text(lines))


def text(lines: Callable[[], Iterator[str]]) -> str:
    return "\n".join(lines()) + "\n"


def exit_codes() -> Iterator[str]:
    yield "# Exit codes\n\nFor whoever got a number, or writes scripts.\n"
    yield f"{WRITTEN}\n\n| code | meaning |\n|---|---|"
    meanings = (
        "good",
        "the answer is no, or the work failed",
        "wrong usage or bad input",
        "cannot decide: neither yes nor no",
        "something needed is missing here",
    )
    yield from (f"| {code.value} | {meaning} |" for code, meaning in zip(ExitCode, meanings, strict=True))
    yield "| 70 | a fault of lumiimg itself: please report it, with what `LUMIIMG_DEBUG=1` shows |"
    yield "| 130, 143 | interrupted: by Ctrl-C, by SIGTERM; nothing half-written is left |"
    yield _EXIT_CODES.rstrip()


def commands() -> Iterator[str]:
    yield "# Commands\n\nEvery command with its options, as `lumiimg COMMAND --help` has them.\n"
    yield WRITTEN
    found = list(commands_of(make_parser(), "lumiimg"))
    often = Counter(pair for _, _, options in found for pair in options if pair[0].startswith("-")).most_common()
    shared: dict[str, str] = {}
    for (words, meaning), count in often:
        if count >= _OFTEN:
            shared.setdefault(words, meaning)
    yield "\n## Options of several commands\n\nWith the commands that list them:\n"
    yield from (f"- `{words}`: {meaning}" for words, meaning in sorted(shared.items()))
    for name, description, options in found:
        yield f"\n## {name}\n\n{description}\n"
        yield from (f"- `{words}`: {meaning}" for words, meaning in options if shared.get(words) != meaning)
        own = {words for words, meaning in options if shared.get(words) == meaning}
        if own:
            all_but = len(shared) - len(own) <= _FEW
            named = ", ".join(
                f"`{words.split()[0].rstrip(',')}`" for words in sorted(shared) if (words in own) != all_but
            )
            yield f"- as [above](#options-of-several-commands): {'all but ' if all_but else ''}{named}"


def commands_of(parser: argparse.ArgumentParser, above: str) -> Iterator[tuple[str, str, list[tuple[str, str]]]]:
    """Yield each command's name, what it does, and its options, each with what it is."""
    subparsers = next((a for a in parser._actions if isinstance(a, argparse._SubParsersAction)), None)
    told = {action.dest for action in subparsers._choices_actions} if subparsers else set()
    for name, command in subparsers.choices.items() if subparsers else ():
        if name not in told:  # not for people
            continue
        if any(isinstance(action, argparse._SubParsersAction) for action in command._actions):
            yield from commands_of(command, f"{above} {name}")
            continue
        yield f"{above} {name}", " ".join((command.description or "").split()), list(_options(command))


def _options(command: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    for action in command._actions:
        if "--help" in action.option_strings or action.help == argparse.SUPPRESS:
            continue
        words = ", ".join(action.option_strings) or str(action.metavar)
        choices = f"{{{','.join(action.choices)}}}" if action.choices else ""
        value = f" {choices or action.metavar or ''}".rstrip() if action.option_strings and action.nargs != 0 else ""
        yield words + value, " ".join((action.help or "").split())


_FINDINGS = """
A line of `check` ends with the id of its finding and the level that found it: `[plugin.absent, static]`. Behind each id here: the part of the fabric
path that a problem breaks, and how grave the finding can be at each [level](../explanation/levels.md). `ok` is evidence for the fast path, `info` has
no weight, `unknown` is an open question, `problem` is an obstacle.

A collective that goes over Slingshot (`run.network` with `ok`) answers every open question and outweighs every obstacle of a lower level. A probe answers a finding
of level static if it finds the same id, or the id behind *answered by*, with `ok`. What is answered is left out, is printed as `info`, or does not
keep the answer open any more.
"""


def findings() -> Iterator[str]:
    yield "# Findings of `check`\n\nFor whoever reads the output of `lumiimg check`.\n"
    yield f"{WRITTEN}\n{_FINDINGS}"
    for code, meaning in sorted(meanings().items()):
        grave = (f"{level} {'/'.join(found)}" for level in Level if (found := meaning.severities(level)))
        answer = _answered_by(meaning)
        notes = filter(None, (meaning.part or meaning.decided_by, *grave, answer and f"answered by {answer}"))
        yield f"- `{code}` ({'; '.join(notes)}): {cell(meaning.text)}"


def _answered_by(meaning: Meaning) -> str:
    """Return what below a collective answers a finding of files that keeps an answer from being good."""
    if not {Severity.UNKNOWN, Severity.PROBLEM} & set(meaning.static):
        return ""
    probe = meaning.replaced_by or meaning.noted_beside
    if probe is not None:
        return f"`{probe}`"
    return "" if meaning.outlasts_probes or Severity.UNKNOWN not in meaning.static else f"`{Code.PROVIDER_CXI}`"


def signatures() -> Iterator[str]:
    yield "# Log signatures\n\nThe messages that `lumiimg log` knows: the id of each, what it means, a line as it was printed, and words of other lines. `lumiimg log FILE` prints"
    yield "causes and remedies; `lumiimg log --signatures` lists all of them, with their sources.\n"
    yield f"{WRITTEN} [How to add one](../extend/signature.md).\n"
    patterns = {entry.id: entry for entry in vocabulary().entries if entry.is_trouble}
    for signature in vocabulary().signatures.values():
        line = _MESSAGE.sub("", signature.example.strip())
        others = [
            hint.strip(" :") for hint in patterns[signature.id].hints if hint.lower() not in signature.example.lower()
        ]
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
    yield "# SingularityCE and Apptainer\n\nIn what SingularityCE 4.1, which LUMI has, and Apptainer 1.4 differ, as far as lumiimg or its users meet it.\n"
    yield f"{WRITTEN}\n"
    yield "Each row but those with a \\* was seen with both real programs: SingularityCE 4.1.3 built from its sources, without"
    yield "set-user-id, and Apptainer 1.4.5 of Debian. A row with a \\* was read in the sources. None was seen on LUMI, where"
    yield "SingularityCE is set-user-id. The file behind each row is in `lumiimg/engine/differences.toml`.\n"
    yield "[`lumiimg trial`](../howto/trial.md) tries the rows with a + on the engine of the nodes. These tries ran with Apptainer;"
    yield "what is expected of SingularityCE in them is taken from what it printed when the rows were written.\n"
    yield "| id | what | Apptainer | SingularityCE |\n|---|---|---|---|"
    for row in tomllib.loads((PACKAGE / "engine" / "differences.toml").read_text())["difference"]:
        mark = ("" if row["tried"] == "run" else " \\*") + (" +" if "shows" in row else "")
        yield f"| `{row['id']}`{mark} | {cell(row['what'])} | {cell(row['apptainer'])} | {cell(row['singularityce'])} |"


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


PAGES: dict[str, Callable[[], Iterator[str]]] = {
    "commands.md": commands,
    "engine-failures.md": engine_failures,
    "engines.md": engines,
    "exit-codes.md": exit_codes,
    "findings.md": findings,
    "signatures.md": signatures,
}

if __name__ == "__main__":
    main()
