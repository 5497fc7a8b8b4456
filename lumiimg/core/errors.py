"""Errors that users see: one class = one exit code = one message with a next step.

Exit codes: 0 good · 1 the answer is no · 2 wrong usage or bad input · 3 cannot decide · 4 something that the command
needs is missing here. 1 and 3 as *verdicts* of a check are return values; the classes below are for what stops a
command. Rooms subclass these where a caller distinguishes cases (`ElfError(BadInputError)`), never to change the code.
"""

from __future__ import annotations

import contextlib
import sys
from enum import IntEnum
from typing import TYPE_CHECKING

from lumiimg.core.redact import redact, secrets_here

if TYPE_CHECKING:
    from collections.abc import Sequence

LONG = 200
"""Maximum characters of a name or a value in a message."""
_LONG_CLAUSE = 2000
"""Maximum characters of what is wrong, and of the path before it."""


class ExitCode(IntEnum):
    """The exit code of the process."""

    GOOD = 0
    NO = 1
    BAD_INPUT = 2
    UNDECIDED = 3
    MISSING_HERE = 4


class LumiimgError(Exception):
    """A failure that a person can act on.

    `what` is one clause without a full stop; `where` is a file, a line, a key; `hint` is what to do next; `more` are
    all lines of another program, which --verbose prints.
    """

    exit_code: ExitCode

    def __init__(
        self, what: str, *, where: str | None = None, hint: str | None = None, more: Sequence[str] = ()
    ) -> None:
        self.what = what
        self.where = where
        self.hint = hint
        self.more = more
        super().__init__(what)

    def __str__(self) -> str:
        return f"{self.sentence}; {one_safe_line(self.hint)}" if self.hint else self.sentence

    @property
    def sentence(self) -> str:
        """What is wrong and where, without the hint."""
        # each is redacted on its own: the end of a path is not the name of a secret that follows
        what = shortened(one_safe_line(self.what), _LONG_CLAUSE)
        return f"{shortened(one_safe_line(self.where), _LONG_CLAUSE)}: {what}" if self.where else what


class BadInputError(LumiimgError):
    """Wrong usage, or a file that is not what it should be."""

    exit_code = ExitCode.BAD_INPUT


class FailedError(LumiimgError):
    """The command did its work and the answer is no: a build step failed, a download was refused."""

    exit_code = ExitCode.NO


class RefusedError(FailedError):
    """The request cannot be met: a rule forbids it, or something that was locked has changed."""


class UndecidedError(LumiimgError):
    """The question stays open, through no fault of its subject: a job was not accepted, or ended too early."""

    exit_code = ExitCode.UNDECIDED


class MissingHereError(LumiimgError):
    """Something that the command needs is not on this machine."""

    exit_code = ExitCode.MISSING_HERE


def shortened(text: str, max_chars: int = LONG) -> str:
    """Return a text for a message, cut after `max_chars` characters."""
    return text if len(text) <= max_chars else f"{text[:max_chars]}…"


def one_safe_line(text: str) -> str:
    """Return `text` as it may be printed, whatever its origin: on one line, and without secrets.

    Everything printed passes through here; JSON, which has several lines, through `json_text` of report/json_output.py.
    """
    return one_line(redact(text, secrets_here()))


def write_note(text: str) -> None:
    """Print a note on standard error, which does not stop a command."""
    say(f"lumiimg: {text}")


def say(text: str) -> None:
    """Print a line on standard error while a command works; if it cannot be written, the work continues."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"{one_safe_line(text)}\n")
        sys.stderr.flush()


def one_line(text: str) -> str:
    r"""Return `text` with control characters spelled out (`\n`, `\x1b`), so that a message stays one line.

    Names and log lines come from hostile files: a newline in a file name must not forge a second message, and an
    escape sequence must not reach the terminal.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
