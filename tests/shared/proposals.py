"""Two rules for all tests: every command that the program proposes can be typed, and every finding has a full sentence.

Hooks in conftest.py enforce them.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest

from lumiimg.check.registry import Findings, finding_types
from lumiimg.cli.commands import parser_for
from lumiimg.core.errors import LumiimgError
from lumiimg.core.findings import STAND_INS, Advice, Severity

_WORDS = re.compile(
    r"(?<![\w$/.-])(?:IMAGE|SITE|NAME|PATH|FILE|DIR|PROGRAM|OPTIONS|PROJECT|MODEL|PID|JOBID|COMMAND)(?![\w/.=-])"
)
"""Placeholders for a name that only the user knows."""
_PLACES = re.compile(rf"\{{(?:{'|'.join(STAND_INS)})\}}|…|<version>|/VERSION|FOLDER|/path/|project_\\d")
_ARGUMENT = re.compile(r"--arg (?:'[^']*'|\S+)")
"""Contains what the user wrote."""
_WRITTEN = re.compile(r"(?<= -o )[^\s'\"]+")
_FIRST = re.compile(r"^source <\((.*)\)$")


@cache
def fault(command: str) -> str | None:
    """Return why a command cannot be typed as it is; None if it can."""
    if place := _WORDS.search(said := _ARGUMENT.sub("", command)) or _PLACES.search(said):
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
    """Fail a test if the program advises a command that its own parser rejects, or that would overwrite a file."""
    made = Advice.__init__

    def checked(self: Advice, *values: object, **named: object) -> None:
        made(self, *values, **named)  # type: ignore[arg-type]
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if self.next is not None and caller.startswith("lumiimg.") and (why := fault(self.next)):
            pytest.fail(f"`{self.next}` is proposed and cannot be typed: {why}")
        if self.next is not None and (there := [*filter(os.path.lexists, _WRITTEN.findall(self.next))]):
            pytest.fail(f"`{self.next}` is proposed, and would write over {there}")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Advice, "__init__", checked)
        yield


@contextmanager
def sentences_are_whole() -> Iterator[None]:
    """Fail a test if a finding has no sentence, or lacks a value for a placeholder of its sentence in the registry."""
    add = Findings.add

    def checked(self: Findings, code: str, severity: Severity, summary: str | None = None, **given: Any) -> None:
        add(self, code, severity, summary, **given)
        kind = finding_types()[code]
        own = kind.reasons[given["reason"]] if given.get("reason") is not None else kind
        text = summary or own.summary or kind.summary or ""
        lacking = set(re.findall(r"\{(\w+)\}", text)) - {*(given.get("names") or {}), "where"}
        if not text or (summary is None and lacking):
            pytest.fail(f"{code} ({given.get('reason')}) has no sentence, or no name for {lacking}: {text!r}")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Findings, "add", checked)
        yield
