"""Lines of strace become calls on files: escaped, with odd names, broken; nothing else does.

The lines are real ones of strace 6.1, but for the few that say otherwise.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from lumiimg.check import strace
from lumiimg.check.strace import Call, Counts, count, parse, read_traces
from lumiimg.errors import BadInputError

_HERE = "AT_FDCWD</tmp/w>"
_ABSENT = "-1 ENOENT (No such file or directory)"
CALLS = {
    f'openat({_HERE}, "/usr/lib/libm.so.6", O_RDONLY|O_CLOEXEC) = 3</usr/lib/libm.so.6>': ("/usr/lib/libm.so.6", None),
    f'openat(AT_FDCWD, "/usr/x", O_RDONLY)  = {_ABSENT}': ("/usr/x", "ENOENT"),
    'open("/proc/sys/vm/overcommit_memory", O_RDONLY) = 3': ("/proc/sys/vm/overcommit_memory", None),
    f'access("/etc/ld.so.preload", R_OK)      = {_ABSENT}': ("/etc/ld.so.preload", "ENOENT"),
    f'newfstatat({_HERE}, "/usr/lib", {{st_mode=S_IFDIR|0755, st_size=0, ...}}, 0) = 0\n': ("/usr/lib", None),
    'readlink("/usr/bin/python3", "python3.13", 4096) = 10': ("/usr/bin/python3", None),
    "getdents64(5</tmp/w>, 0x21accdc0 /* 0 entries */, 32768) = 0": ("/tmp/w", None),
    'execve("/usr/bin/python3", [""..., ""...], 0x7ffc2c8edce0 /* 52 vars */) = 0': ("/usr/bin/python3", None),
    'statfs("/home/a", {f_type=EXT2_SUPER_MAGIC, f_bsize=4096, ...}) = 0': ("/home/a", None),
    # names below the current folder, and below an open one
    f'newfstatat({_HERE}, "demo.sif", {{st_mode=S_IFREG|0755, ...}}, 0) = 0': ("/tmp/w/demo.sif", None),
    'openat(3</srv/a>, "b/../c", O_RDONLY) = 4</srv/a/c>': ("/srv/a/c", None),
    # odd names
    f'openat({_HERE}, "q\\"uote", O_RDWR|O_CREAT, 0777) = 3</tmp/w/q"uote>': ('/tmp/w/q"uote', None),
    f'openat({_HERE}, "new\\nline", O_RDONLY) = 3</tmp/w/new\\nline>': ("/tmp/w/new\nline", None),
    f'openat({_HERE}, "gr>ea<ter", O_RDONLY) = 3</tmp/w/gr\\76ea\\74ter>': ("/tmp/w/gr>ea<ter", None),
    f'openat({_HERE}, "paren) = 3", O_RDONLY) = 3</tmp/w/paren) = 3>': ("/tmp/w/paren) = 3", None),
    f'openat({_HERE}, "p) = -1 EIO (x)", O_RDONLY) = 3</tmp/w/p) = -1 EIO (x)>': ("/tmp/w/p) = -1 EIO (x)", None),
    f'openat({_HERE}, "\\303\\274mlaut", O_RDONLY) = 3</tmp/w/\\303\\274mlaut>': ("/tmp/w/ümlaut", None),
    f'openat({_HERE}, "\\377\\376bad", O_RDONLY) = 3</tmp/w/\\377\\376bad>': ("/tmp/w/\udcff\udcfebad", None),
    f'openat({_HERE}, "a, b", O_RDONLY) = 3</tmp/w/a, b>': ("/tmp/w/a, b", None),
    f'openat({_HERE}, "back\\\\slash", O_RDONLY) = 3</tmp/w/back\\\\slash>': ("/tmp/w/back\\slash", None),
    f'openat({_HERE}, "/xxx"..., O_RDONLY) = -1 ENAMETOOLONG (File name too long)': ("/xxx", "ENAMETOOLONG"),
}
"""What is asked for, and the error."""
OTHERS = [
    "",
    "\n",
    "garbage",
    "--- SIGCHLD {si_signo=SIGCHLD, si_code=CLD_EXITED, si_pid=30435, si_uid=0, si_status=0} ---",
    "+++ exited with 3 +++",
    "+++ killed by SIGKILL +++",
    "strace: Process 9 attached",
    'getcwd("/home/a", 4096)                = 8',
    "fchdir(3</home/a>) = 0",
    'newfstatat(3</tmp/w/x>, "", {st_mode=S_IFREG|0644, ...}, AT_EMPTY_PATH) = 0',
    "getdents64(3<pipe:[4497842]>, 0x7f, 4096) = -1 ENOTDIR (Not a directory)",
    "getdents64(3, 0x7f, 4096) = 0",
    'openat(AT_FDCWD, "/x", O_RDONLY <unfinished ...>',
    'openat(AT_FDCWD, "/x", O_RDONLY) = ?',
    'openat(AT_FDCWD, "/x',
    "openat(((((",
]


def test_a_line_is_a_call_on_a_file_or_none() -> None:
    for line, (path, error) in CALLS.items():
        call = parse(line)
        assert call is not None, line
        assert (call.name, call.path, call.error) == (line.partition("(")[0], path, error), line
    assert [line for line in OTHERS if parse(line) is not None] == []


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
