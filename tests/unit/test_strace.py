"""Lines of strace become calls on files: cut in two, escaped, with odd names, broken; nothing else does.

The lines are real ones of strace 6.1, but for the few that say otherwise.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from lumiimg.check import strace
from lumiimg.check.strace import Call, CallKind, Counts, TraceError, count, parse, read_trace

_HERE = "AT_FDCWD</tmp/w>"


def one(line: str) -> Call:
    (call,) = parse([line])
    return call


@pytest.mark.parametrize(
    ("line", "kind", "path", "error"),
    [
        (
            f'9 openat({_HERE}, "/usr/lib/libm.so.6", O_RDONLY|O_CLOEXEC) = 3</usr/lib/libm.so.6>',
            CallKind.OPEN,
            "/usr/lib/libm.so.6",
            None,
        ),
        ('9 openat(AT_FDCWD, "/usr/x", O_RDONLY)  = -1 ENOENT (No such file or directory)', CallKind.OPEN, "/usr/x", "ENOENT"),
        ('9 open("/proc/sys/vm/overcommit_memory", O_RDONLY) = 3</proc/sys/vm/overcommit_memory>', CallKind.OPEN, "/proc/sys/vm/overcommit_memory", None),
        ('9 access("/etc/ld.so.preload", R_OK)      = -1 ENOENT (No such file or directory)', CallKind.STAT, "/etc/ld.so.preload", "ENOENT"),
        (f'9 newfstatat({_HERE}, "/usr/lib", {{st_mode=S_IFDIR|0755, st_size=0, ...}}, 0) = 0', CallKind.STAT, "/usr/lib", None),
        ('9 readlink("/usr/bin/python3", "python3.13", 4096) = 10', CallKind.READLINK, "/usr/bin/python3", None),
        ("9 getdents64(5</tmp/w>, 0x21accdc0 /* 0 entries */, 32768) = 0", CallKind.LIST, "/tmp/w", None),
        ('9 execve("/usr/bin/python3", [""..., ""...], 0x7ffc2c8edce0 /* 52 vars */) = 0', CallKind.OPEN, "/usr/bin/python3", None),
        ('9 statfs("/home/a", {f_type=EXT2_SUPER_MAGIC, f_bsize=4096, ...}) = 0', CallKind.OTHER, "/home/a", None),
        # names below the current folder, and below an open one
        (f'9 newfstatat({_HERE}, "demo.sif", {{st_mode=S_IFREG|0755, ...}}, 0) = 0', CallKind.STAT, "/tmp/w/demo.sif", None),
        ('9 openat(3</srv/a>, "b/../c", O_RDONLY) = 4</srv/a/c>', CallKind.OPEN, "/srv/a/c", None),
        # odd names
        (f'9 openat({_HERE}, "q\\"uote", O_RDWR|O_CREAT, 0777) = 3</tmp/w/q"uote>', CallKind.OPEN, '/tmp/w/q"uote', None),
        (f'9 openat({_HERE}, "new\\nline", O_RDONLY) = 3</tmp/w/new\\nline>', CallKind.OPEN, "/tmp/w/new\nline", None),
        (f'9 openat({_HERE}, "gr>ea<ter", O_RDONLY) = 3</tmp/w/gr\\76ea\\74ter>', CallKind.OPEN, "/tmp/w/gr>ea<ter", None),
        (f'9 openat({_HERE}, "paren) = 3", O_RDONLY) = 3</tmp/w/paren) = 3>', CallKind.OPEN, "/tmp/w/paren) = 3", None),
        (f'9 openat({_HERE}, "\\303\\274mlaut", O_RDONLY) = 3</tmp/w/\\303\\274mlaut>', CallKind.OPEN, "/tmp/w/ümlaut", None),
        (f'9 openat({_HERE}, "\\377\\376bad", O_RDONLY) = 3</tmp/w/\\377\\376bad>', CallKind.OPEN, "/tmp/w/\udcff\udcfebad", None),
        (f'9 openat({_HERE}, "a, b", O_RDONLY) = 3</tmp/w/a, b>', CallKind.OPEN, "/tmp/w/a, b", None),
        (f'9 openat({_HERE}, "back\\\\slash", O_RDONLY) = 3</tmp/w/back\\\\slash>', CallKind.OPEN, "/tmp/w/back\\slash", None),
        (f'9 openat({_HERE}, "/xxx"..., O_RDONLY) = -1 ENAMETOOLONG (File name too long)', CallKind.OPEN, "/xxx", "ENAMETOOLONG"),
    ],
)  # fmt: skip
def test_a_line_is_a_call_on_a_file(line: str, kind: CallKind, path: str, error: str | None) -> None:
    call = one(line)
    assert (call.kind, call.path, call.error) == (kind, path, error)


@pytest.mark.parametrize(
    ("line", "path", "size"),
    [
        ('9 read(3</tmp/w/w.py>, ""..., 8192)       = 912', "/tmp/w/w.py", 912),
        ('9 pread64(4</home/a/demo.sif>, ""..., 72793, 8005625) = 72793', "/home/a/demo.sif", 72793),
        ('9 read(3</tmp/w/paren) = 3>, "", 10) = 0', "/tmp/w/paren) = 3", 0),
        ("9 mmap(NULL, 8192, PROT_READ, MAP_SHARED, 7</tmp/w/big>, 0x6000) = 0x7efc8ee13000", "/tmp/w/big", 0x8000),
        # not a real one: flags that hold what opens a path
        ("9 mmap(NULL, 8192, PROT_READ, MAP_HUGETLB|21<<MAP_HUGE_SHIFT, 7</x>, 0) = 0x7e", "/x", 8192),
    ],
)
def test_bytes_are_counted_where_they_are_read_or_mapped(line: str, path: str, size: int) -> None:
    call = one(line)
    assert (call.path, call.size_bytes) == (path, size)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "\n",
        "garbage",
        "9 --- SIGCHLD {si_signo=SIGCHLD, si_code=CLD_EXITED, si_pid=30435, si_uid=0, si_status=0} ---",
        "9 +++ exited with 3 +++",
        "9 +++ killed by SIGKILL +++",
        "strace: Process 9 attached",
        '9 getcwd("/home/a", 4096)                = 8',
        '9 newfstatat(3</tmp/w/x>, "", {st_mode=S_IFREG|0644, ...}, AT_EMPTY_PATH) = 0',
        '9 read(3<pipe:[4497842]>, ""..., 4096) = 18',
        "9 mmap(NULL, 16384, PROT_READ|PROT_WRITE, MAP_PRIVATE|MAP_ANONYMOUS, -1, 0) = 0x7efc8ee11000",
        '9 openat(AT_FDCWD, "/x", O_RDONLY <unfinished ...>',
        "9 <... openat resumed>) = 3</x>",  # whose beginning was before the trace
        '9 openat(AT_FDCWD, "/x", O_RDONLY) = ?',
        '9 openat(AT_FDCWD, "/x',
        "9 openat(((((",
    ],
)  # fmt: skip
def test_any_other_line_is_none(line: str) -> None:
    assert list(parse([line])) == []


def test_calls_that_other_threads_cut_in_two_are_put_together() -> None:
    lines = [
        f'11 newfstatat({_HERE}, "/nowhere/2",  <unfinished ...>\n',
        "12 mmap(NULL, 16384, PROT_READ|PROT_WRITE, MAP_PRIVATE|MAP_ANONYMOUS, -1, 0 <unfinished ...>\n",
        f'13 openat({_HERE}, "/a", O_RDONLY|O_CLOEXEC <unfinished ...>\n',
        "11 <... newfstatat resumed>0x7efc8f614960, 0) = -1 ENOENT (No such file or directory)\n",
        "12 <... mmap resumed>)               = 0x7efc8e60c000\n",
        "13 --- SIGCONT {si_signo=SIGCONT, si_code=SI_USER, si_pid=30431, si_uid=0} ---\n",
        "13 <... openat resumed>)             = 3</a>\n",
    ]
    assert [(call.name, call.path, call.error) for call in parse(lines)] == [
        ("newfstatat", "/nowhere/2", "ENOENT"),
        ("openat", "/a", None),
    ]


def test_counts_are_of_the_wanted_paths() -> None:
    lines = [
        '9 openat(AT_FDCWD, "/site/a.py", O_RDONLY) = 3</site/a.py>',
        '9 read(3</site/a.py>, ""..., 8192) = 100',
        '9 read(3</site/a.py>, "", 8192) = 0',
        '9 openat(AT_FDCWD, "/site/a.py", O_RDONLY) = 3</site/a.py>',
        '9 stat("/site/b.py", 0x7ff) = -1 ENOENT (No such file or directory)',
        '9 openat(AT_FDCWD, "/site/c.so", O_RDONLY) = -1 ENOTDIR (Not a directory)',
        "9 mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, 3</site/d.so>, 0) = 0x7f00",
        "9 mmap(0x7f00, 4096, PROT_EXEC, MAP_PRIVATE, 3</site/d.so>, 0x2000) = 0x7f00",
        "9 getdents64(3</site>, 0x7f /* 5 entries */, 32768) = 160",
        '9 readlink("/site/e", 0x7f, 4096) = -1 EINVAL (Invalid argument)',
        '9 mkdir("/site/f", 0777) = 0',
        '9 openat(AT_FDCWD, "/usr/lib/g", O_RDONLY) = 3</usr/lib/g>',
    ]
    counts = count(parse(lines), lambda path: path.startswith("/site"))
    assert counts == Counts(
        opens=3,
        stats=1,
        readlinks=1,
        lists=1,
        others=1,
        failed=2,
        files=1,
        reads=2,
        read_bytes=100,
        mapped_bytes=0x3000,
    )
    assert counts.metadata == 7
    assert (counts + counts).metadata == 14


def test_a_trace_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "trace"
    file.write_bytes(b'9 stat("/a", 0x7ff) = 0\n' * 100 + b"\0" * 100_000)
    assert len(read_trace(file)) == 100
    monkeypatch.setattr(strace, "MAX_TRACE_BYTES", 1000)
    with pytest.raises(TraceError, match="more than 1000 bytes"):
        read_trace(file)
