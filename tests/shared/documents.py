"""The commands in README.md and docs/: extracted, and run unchanged by bash, each page in a fresh folder.

An `sh` block is run and must succeed. In a `console` block, the commands are run and their output is compared: `…`
matches anything, and whitespace is normalized. A comment before a block gives its other needs, separated by `;`:

    <!-- run: with image.sif host.json=before.json; exit 1 -->   document files, and the codes of commands that fail
    <!-- run: engine -->        only if there is a container engine
    <!-- run: slurm -->         only if there are an engine and Slurm
    <!-- run: no, REASON -->    never; the program must still accept its commands
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.shared.programs import patient
from tools import pages

if TYPE_CHECKING:
    from _pytest.mark import ParameterSet

ROOT = Path(__file__).parents[2]
WRITTEN = frozenset(ROOT / "docs" / "reference" / name for name in pages.PAGES)
"""Pages that `make docs` writes; they do not exist before it has run."""
PAGES = sorted(
    path
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md"))
    if "_build" not in path.parts and path not in WRITTEN
)
TIMEOUT_S = 900
LIKE_AN_EXAMPLE = re.compile(r"\bIMAGE\b|\bFILE\b|\.\.\.|…|<")

_FENCE = re.compile(
    r"(?:^ *(?P<comment><!-- run:(?P<words>[^>]*)-->)\n+)?"
    r"^(?P<indent> *)```(?P<language>sh|console)\n(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)


class Where(StrEnum):
    """What a block needs in order to run, in increasing order."""

    HERE = "here"
    ENGINE = "engine"
    SLURM = "slurm"
    NOWHERE = "no"


@dataclass(frozen=True, slots=True)
class Block:
    """A block of commands on a page."""

    page: Path
    line: int
    language: str
    text: str
    where: Where
    inputs: tuple[tuple[str, str], ...]
    """Pairs of a name in the page's folder and a name of a document file."""
    codes: tuple[int, ...]
    """Exit codes of the commands that fail, in order."""

    @property
    def commands(self) -> list[str]:
        """Return what is typed: the whole text of a script, or each command of a console."""
        if self.language == "sh":
            return [self.text]
        return [command for command, _ in self.dialogue]

    @property
    def dialogue(self) -> list[tuple[str, str]]:
        """Return each command of a console with its output."""
        turns: list[tuple[list[str], list[str]]] = []
        for line in self.text.splitlines():
            if line.startswith("$ "):
                turns.append(([line[2:]], []))
            elif turns and not turns[-1][1] and line.startswith("> "):
                turns[-1][0].append(line[2:])
            elif turns:
                turns[-1][1].append(line)
        return [("\n".join(command), "\n".join(printed)) for command, printed in turns]

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> list[Block]:
    """Return the blocks of a page in order. Raises ValueError for a comment with an unknown clause."""
    text = page.read_text()
    found = []
    for match in _FENCE.finditer(text):
        line = text.count("\n", 0, match.start("language")) + 1
        directive = _directive(match["words"] or "")
        found.append(Block(page, line, match["language"], textwrap.dedent(match["text"]), *directive))
    return found


def _directive(words: str) -> tuple[Where, tuple[tuple[str, str], ...], tuple[int, ...]]:
    where = Where.HERE
    inputs: list[tuple[str, str]] = []
    codes: tuple[int, ...] = ()
    if words.strip().startswith("no,"):
        return Where.NOWHERE, (), ()
    for clause in filter(None, map(str.strip, words.split(";"))):
        verb, _, rest = clause.partition(" ")
        if verb == "with":
            inputs += [(name, of or name) for name, _, of in (word.partition("=") for word in rest.split())]
        elif verb == "exit":
            codes = tuple(map(int, rest.split()))
        else:
            where = Where(clause)
    return where, tuple(inputs), codes


def lumiimg_commands(text: str) -> Iterator[list[str]]:
    """Yield the arguments of each `lumiimg` in a piece of shell, including those that srun or a substitution starts."""
    for line in text.replace("\\\n", " ").splitlines():
        for match in re.finditer(r"(?:^|[\s(;|&/])lumiimg ([a-z].*)", line):
            words = list(_words(match[1].replace("$SLURM_NNODES", "4")))
            if not LIKE_AN_EXAMPLE.search(" ".join(words)):
                yield words


def _words(text: str) -> Iterator[str]:
    """Yield the words of the first command of a piece of shell, without redirections."""
    reader = shlex.shlex(text, posix=True, punctuation_chars=True)
    reader.whitespace_split = True
    held: str | None = None
    for word in reader:
        ends = re.fullmatch(r"[();<>|&]+", word)
        if held is not None and not (ends and held.isdigit()):
            yield held
        if ends:
            return
        held = word
    if held is not None:
        yield held


@dataclass(frozen=True, slots=True)
class DocFiles:
    """The files that pages find in their folders: for each name, a function that writes the file to a path."""

    put: Mapping[str, Callable[[Path], object]]

    def place(self, block: Block, folder: Path) -> None:
        for name, of in block.inputs:
            if of not in self.put:
                raise AssertionError(f"{block}: there is no document file {of}")
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            self.put[of](target)


def parameters(pages: Sequence[Path]) -> list[ParameterSet]:
    """Return pages as parameters of a test; CI runs README.md and the tutorials."""
    names = [f"{page.relative_to(ROOT)}" for page in pages]
    return [
        pytest.param(page, id=name, marks=[pytest.mark.core] if name.startswith(("README", "docs/tutorials/")) else [])
        for page, name in zip(pages, names, strict=True)
    ]


def run_page(
    page: Path, wheres: Sequence[Where], doc_files: DocFiles, folder: Path, environment: Mapping[str, str] | None = None
) -> int:
    """Run the blocks of a page that can run here, in one shell, and assert what they promise; return their number."""
    wanted = [block for block in blocks(page) if block.where in wheres]
    folder.mkdir(parents=True, exist_ok=True)
    notes = folder / ".notes"
    (folder / ".home").mkdir()
    notes.mkdir()
    script = ["set -o pipefail -o errtrace", _TRAP]
    for number, block in enumerate(wanted):
        inputs = notes / f"{number}.inputs"
        doc_files.place(block, inputs)
        if block.inputs:
            script.append(f"cp -r {inputs}/. .")
        for part, command in enumerate(block.commands):
            name = f"{notes}/{number}.{part}"
            Path(f"{name}.sh").write_text(f"{command}\n")
            script += [f"note={name}", f"source {name}.sh >{name}.out 2>&1 </dev/null", f"touch {name}.done"]
    environment = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(folder / ".home"),
        "USER": os.environ.get("USER", "somebody"),
        "LANG": "C.UTF-8",
        "EDITOR": "true",
        **(environment or {}),
    }
    subprocess.run(
        ["bash", "-c", "\n".join(script)], cwd=folder, env=environment, timeout=patient(TIMEOUT_S), check=False
    )
    for number, block in enumerate(wanted):
        _judge(block, notes, number)
    shutil.rmtree(folder, ignore_errors=True)
    return len(wanted)


_TRAP = (
    """trap 'code=$?; case "$BASH_COMMAND" in "source $note.sh"*) ;; *) echo "$code" >>"$note.failed" ;; esac' ERR"""
)
"""Records the exit code of each failed command; that of `source` is skipped, as it repeats one from within."""


def _judge(block: Block, notes: Path, number: int) -> None:
    """Assert that the exit codes and the output of a block's commands are those on the page."""
    codes: list[int] = []
    printed = ""
    for part, command in enumerate(block.commands):
        name = notes / f"{number}.{part}"
        out = Path(f"{name}.out")
        printed = out.read_text(errors="replace") if out.exists() else ""
        failed = Path(f"{name}.failed")
        codes += map(int, failed.read_text().split()) if failed.exists() else []
        assert Path(f"{name}.done").exists(), f"{block}: the shell ended at: {command}\n{printed}"
        if block.language == "console":
            expected = block.dialogue[part][1]
            assert _matches(expected, printed), (
                f"{block}: {command}\n--- the page:\n{expected}\n--- printed:\n{printed}"
            )
    assert tuple(codes) == block.codes, (
        f"{block}: exit codes {codes}, not {list(block.codes)}:\n{block.text}\n{printed}"
    )


def _matches(expected: str, printed: str) -> bool:
    parts = [re.escape(" ".join(part.split())) for part in expected.split("…")]
    return re.fullmatch(r"\s*" + r".*?".join(parts) + r"\s*", " ".join(printed.split()), re.DOTALL) is not None
