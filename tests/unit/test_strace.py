"""Lines of strace become calls on files: escaped, with odd names, broken; nothing else does."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from lumiimg.check import strace
from lumiimg.check.strace import Call, Counts, count, parse, read_traces
from lumiimg.errors import BadInputError

LINES = tomllib.loads((Path(__file__).parents[1] / "fixtures/strace.toml").read_text())


def test_a_line_is_a_call_on_a_file_or_none() -> None:
    for row in LINES["call"]:
        call = parse(line := row["line"])
        assert call is not None, line
        path = row["path"].encode("latin-1").decode("utf-8", "surrogateescape")
        assert (call.name, call.path, call.error) == (line.partition("(")[0], path, row.get("error")), line
    assert [line for line in LINES["others"] if parse(line) is not None] == []


def test_an_open_says_what_it_led_to() -> None:
    line = 'openat(AT_FDCWD</>, "/proc/self/fd/3", O_RDONLY) = 4</data/a\\40b.sif>'
    assert parse(line) == Call("openat", "/proc/self/fd/3", None, "/data/a b.sif")


def test_calls_are_counted_by_kind(tmp_path: Path) -> None:
    file = tmp_path / "trace.9"
    file.write_text(
        'openat(AT_FDCWD, "/site/a.py", O_RDONLY) = 3</site/a.py>\n'
        'openat(AT_FDCWD, "/site/a.py", O_RDONLY) = 3</site/a.py>\n'
        'stat("/site/b.py", 0x7ff) = -1 ENOENT (No such file or directory)\n'
        'openat(AT_FDCWD, "/site/c.so", O_RDONLY) = -1 ENOTDIR (Not a directory)\n'
        "getdents64(3</site>, 0x7f /* 5 entries */, 32768) = 160\n"
        'readlink("/site/e", 0x7f, 4096) = -1 EINVAL (Invalid argument)\n'
        'mkdir("/site/f", 0777) = 0\n'
        "+++ exited with 0 +++\n"
    )
    counts = count(read_traces([file]))
    assert counts == Counts(metadata=7, opens=3, stats=1, readlinks=1, lists=1, others=1, failed=2, files=1)
    assert count([]) == Counts()


def test_a_trace_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "trace"
    file.write_bytes(b'stat("/a", 0x7ff) = 0\n' * 100 + b"\0" * 100_000)
    assert len(read_traces([file, file])) == 200
    monkeypatch.setattr(strace, "MAX_TRACE_BYTES", 150_000)
    assert len(read_traces([file])) == 100
    with pytest.raises(BadInputError, match="more than 150000 bytes"):
        read_traces([file, file])
