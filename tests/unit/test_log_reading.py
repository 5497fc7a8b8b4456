"""How far a long log was read is shown on a terminal, and nowhere else."""

from __future__ import annotations

import io
import sys
import time
from typing import TYPE_CHECKING

from lumiimg.report.reading import Reading

if TYPE_CHECKING:
    import pytest


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, total: int | None, *, quiet: bool = False) -> str:
    clock = iter(range(100))
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    seen = Reading(total, quiet=quiet)
    for part in range(1, 6):
        seen(part * 200_000_000)
    seen.close()
    return stream.getvalue()


def test_from_the_third_second_on_a_line_says_how_much_was_read_and_then_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines = shown(monkeypatch, Terminal(), 1_000_000_000).split("\r\x1b[K")
    assert len(lines) == 5
    assert lines[1].startswith("read ")
    assert [line.rpartition(", ")[2] for line in lines[1:4]] == ["60 %", "80 %", "100 %"]
    assert lines[-1] == ""


def test_of_a_pipe_no_share_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(monkeypatch, Terminal(), None)
    assert "read " in text
    assert "%" not in text


def test_a_file_or_a_quiet_command_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(monkeypatch, io.StringIO(), 1_000_000_000) == ""
    assert shown(monkeypatch, Terminal(), 1_000_000_000, quiet=True) == ""
