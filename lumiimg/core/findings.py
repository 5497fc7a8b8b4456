"""The currency of lumiimg: one result of a check, with its evidence, its cause and what to do."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Self

from lumiimg.core.errors import ExitCode

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class Severity(StrEnum):
    """How a finding bears on the answer."""

    OK = "ok"
    """Evidence for the fast path, at the finding's level and not beyond."""
    INFO = "info"
    """True, but without effect on the answer."""
    UNKNOWN = "unknown"
    """A question that could not be answered here; keeps the answer from being green."""
    PROBLEM = "problem"
    """An obstacle: with this, the fast network is not used."""


class Answer(StrEnum):
    """The decision; it never says that the network will work."""

    NO = "no"
    """With what was found, the fast network is not used."""
    NO_OBSTACLE = "no-obstacle"
    """Nothing at this level stands in the way; only a higher level can prove more."""
    UNDECIDED = "undecided"
    """The question cannot be answered from here."""

    @property
    def exit_code(self) -> ExitCode:
        """The exit code of the process."""
        return {Answer.NO: ExitCode.NO, Answer.NO_OBSTACLE: ExitCode.GOOD, Answer.UNDECIDED: ExitCode.UNDECIDED}[self]

    @property
    def severity(self) -> Severity:
        """Severity that it is shown with."""
        return {
            Answer.NO: Severity.PROBLEM,
            Answer.NO_OBSTACLE: Severity.OK,
            Answer.UNDECIDED: Severity.UNKNOWN,
        }[self]


class Level(StrEnum):
    """How a finding was obtained; a lower level never claims what only a higher one can show."""

    STATIC = "static"
    """From the files of the image; nothing is run."""
    PROBE = "probe"
    """A program run inside the container, without a GPU."""
    RUN = "run"
    """A real collective on GPUs, or the log of one."""


STAND_INS = {
    "image": "image.sif",
    "base": "./image.sif",
    "check": "lumiimg check image.sif",
    "site": "lumi",
    "log": "job.out",
    "lines": "1,40p job.out",
    "script": "job.sh",
    "job_id": "JOBID",
    "bad_node": "NODE",
    "plugin": "FOLDER/librccl-net.so",
    "plugin_folder": "FOLDER",
    "libfabric": "FOLDER/libfabric.so.1",
    "libfabric_folder": "FOLDER",
    "folder": "FOLDER",
    "installed": "VERSION",
    "model": "MODEL",
    "newer": "newer.sif",
    "process": "PID",
    "program": "PROGRAM",
    "rest": "…",
}
"""Placeholders for names that a case does not have; the user fills in those in capitals."""
_NAME = re.compile(r"\{(\w+)\}")
_OUTSIDE_QUOTES = re.compile(rf"""(?<!\w)(?:"(?:\\.|[^"\\])*"|\$'(?:\\.|[^'\\])*'|'[^']*')|{_NAME.pattern}""")
"""A word in quotes, as `shlex.quote` and `shell_quote` write it, else a name; an apostrophe does not open quotes."""


def _joined(text: str, where: str | None) -> str | None:
    return ", ".join(filter(None, (text, where))) or None


def with_values(text: str, names: Mapping[str, str]) -> str:
    """Return a text with each placeholder that names a value, such as `{image}`, replaced by it."""
    return _NAME.sub(lambda found: names.get(found[1], found[0]), text)


def _with_names(text: str, names: Mapping[str, str]) -> str:
    return _OUTSIDE_QUOTES.sub(lambda found: names.get(found[1] or "", found[0]), text)


class Remedy(str):
    """What to do, as the line that is shown and printed in JSON; its parts are attributes.

    A line is a sentence, a command to be pasted, or both: `On a login node, list what it used: sacct -j 1`.
    """

    __slots__ = ("command", "text", "where")

    text: str
    """What to do, or what the command does; empty where the command shows it."""
    command: str | None
    """One line for bash, with the names of this case; None where nothing is to be typed."""
    where: str | None
    """Where to type it, or what for: `on a node`; None: here, or as the text says."""

    def __new__(cls, text: str = "", command: str | None = None, where: str | None = None) -> Self:
        """Create a remedy from its parts; with only the first, it is a sentence."""
        made = super().__new__(cls, ": ".join(filter(None, (_joined(text, where), command))))
        made.text, made.command, made.where = text, command, where
        return made

    @classmethod
    def decoded(cls, value: object) -> Self:
        """Return a remedy from its form in a file: its parts, or the line that is shown. Raises ValueError."""
        parts = value if isinstance(value, dict) else {"text": value}
        if not parts.keys() <= {"text", "command", "where"} or not all(
            isinstance(p, str | None) for p in parts.values()
        ):
            raise ValueError("should be a remedy")
        return cls(**parts)

    def encoded(self) -> dict[str, str | None]:
        """Return what `decoded` reads."""
        return {"text": self.text, "command": self.command, "where": self.where}

    @property
    def reason(self) -> str | None:
        """What the command does, and where it is typed; None without a command, or where it shows that itself."""
        return _joined(self.text, self.where) if self.command else None

    def filled(self, names: Mapping[str, str]) -> Remedy:
        """Return it with placeholders such as `{image}` replaced by the names of this case, which are shell words."""
        command = None if self.command is None else with_values(self.command, names)
        return Remedy(with_values(self.text, names), command, self.where)

    def concluded(self, names: Mapping[str, str]) -> Remedy:
        """Return it as it is shown: if a name of this case is missing, as a sentence that does not propose a command.

        A word in quotes may come from the image and contain what looks like a placeholder: it is not changed.
        """
        used = {found[1] for found in _OUTSIDE_QUOTES.finditer(self)}
        if any(name in STAND_INS and name not in names for name in used):
            return Remedy(_with_names(self, {**STAND_INS, **names}))
        command = None if self.command is None else _with_names(self.command, names)
        return Remedy(_with_names(self.text, names), command, self.where)


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of a check."""

    id: str
    """What was found; stable and dotted: `plugin.absent`. lumiimg/check/registry.toml says what each means."""
    severity: Severity
    """How it bears on the answer: `ok` evidence for the fast network, `info` no effect, `unknown` a question left
    open, `problem` an obstacle."""
    level: Level
    """How it was obtained: `static` from files, `probe` from programs in the container, `run` from a real collective or
    its log."""
    summary: str
    """One sentence."""
    where: str | None = None
    """A path in the image, or file:line of a log."""
    evidence: tuple[str, ...] = ()
    """Lines as they were printed or read, verbatim."""
    chain: tuple[str, ...] = ()
    """Chain of reasons, from what was requested to what failed: librccl.so.1, librccl-net.so, libfabric.so.1."""
    cause: str | None = None
    """Why it is so; null where the summary says it."""
    remedy: tuple[Remedy, ...] = ()
    """What to do: sentences, or commands to copy."""
    source: str | None = None
    """Where the rule comes from."""

    @property
    def family(self) -> str:
        """Stage of the way to the network where it was found: `plugin` of `plugin.absent`."""
        return self.id.partition(".")[0]


@dataclass(frozen=True, slots=True)
class Advice:
    """What users read after an answer, and often all that they read."""

    why: str | None = None
    """Reason for the answer, in one sentence; null where the answer says everything."""
    next: str | None = None
    """One command to continue with, with the names of this case; null where none helps."""
    where: str | None = None
    """Where to type it, or what for; null: here, and its purpose is obvious."""
    likely: str | None = None
    """Most likely cause, by experience: nothing here shows it."""


NO_ADVICE = Advice()
"""The answer says everything, and nothing is left to do."""


def first_command(remedies: Iterable[Remedy]) -> str | None:
    """Return the first command of remedies."""
    return next((remedy.command for remedy in remedies if remedy.command), None)
