"""Every command that the program proposes to a test can be typed: a hook of all tests (conftest.py) holds it to that."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import pytest

from lumiimg.cli.commands import parser_for
from lumiimg.errors import LumiimgError
from lumiimg.findings import STAND_INS, Advice

_WORDS = re.compile(
    r"(?<![\w$/.-])(?:IMAGE|SITE|NAME|PATH|FILE|DIR|PROGRAM|OPTIONS|PROJECT|MODEL|PID|COMMAND)(?![\w/.=-])"
)
"""Stand for a name that only the user knows."""
_PLACES = re.compile(rf"\{{(?:{'|'.join(STAND_INS)})\}}|…|<version>|/path/")
_FIRST = re.compile(r"^source <\((.*)\)$")


@cache
def fault(command: str) -> str | None:
    """Return why a command cannot be typed as it stands; None where it can."""
    if place := _WORDS.search(command) or _PLACES.search(command):
        return f"{place[0]} is no name"
    for part in _FIRST.sub(r"\1", command).split(" && "):
        try:
            words = shlex.split(part)
        except ValueError as error:
            return str(error)
        if words[:1] == ["lumiimg"] and not any("$'" in word for word in part.split()):
            try:
                parser_for(words[1:]).parse_args(words[1:])
            except (LumiimgError, SystemExit) as error:
                return f"{part}: {error}"
    return None


@contextmanager
def proposals_are_typed() -> Iterator[None]:
    """Have each advice that the program makes hold a command that its own parser takes."""
    made = Advice.__init__

    def checked(self: Advice, *values: object, **named: object) -> None:
        made(self, *values, **named)  # type: ignore[arg-type]
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if self.next is not None and caller.startswith("lumiimg.") and (why := fault(self.next)):
            pytest.fail(f"`{self.next}` is proposed and cannot be typed: {why}")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Advice, "__init__", checked)
        yield
