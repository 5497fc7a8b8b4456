"""System calls that Python 3.11 lacks. All raise OSError. Source: the man pages of section 2."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from enum import IntFlag
from pathlib import Path
from typing import Final

_libc: Final = ctypes.CDLL(None, use_errno=True)
_PIVOT_ROOT: Final = {"x86_64": 155, "aarch64": 41}
_SECCOMP: Final = {"x86_64": 317, "aarch64": 277}
_OPEN_TREE, _MOVE_MOUNT, _OPENAT2 = 428, 429, 437
"""Numbers of these calls, the same on all processors."""
_OPEN_TREE_CLONE, _AT_RECURSIVE, _AT_FDCWD = 0x1, 0x8000, -100
_MOVE_EMPTY_PATHS: Final = 0x4 | 0x40
_RESOLVE_NO_OTHER_MOUNT, _RESOLVE_IN_ROOT = 0x1, 0x10
_SET_PDEATHSIG, _SET_DUMPABLE, _CAPBSET_DROP, _SET_NO_NEW_PRIVS = 1, 4, 24, 38
"""Options of prctl(2)."""
_CAPABILITY_VERSION_3: Final = 0x20080522
_MNT_DETACH: Final = 2
_SECCOMP_SET_MODE_FILTER, _SECCOMP_FILTER_FLAG_SPEC_ALLOW = 1, 4
_KEY_CALLS: Final = {0xC000003E: 248, 0x40000003: 286, 0xC00000B7: 217, 0x40000028: 309}
"""Number of add_key, followed by request_key and keyctl, for the AUDIT_ARCH_ of x86_64, i386, aarch64 and arm."""
_TRIES: Final = 1000
CAP_SYS_ADMIN: Final = 21
"""Number from capabilities(7)."""


class Namespace(IntFlag):
    """Namespaces for unshare(2)."""

    MOUNT = 0x00020000
    USER = 0x10000000
    PID = 0x20000000


class MountFlag(IntFlag):
    """Flags of mount(2)."""

    NONE = 0
    READ_ONLY = 0x1
    NO_SUID = 0x2
    NO_DEVICES = 0x4
    NO_PROGRAMS = 0x8
    REMOUNT = 0x20
    NO_ATIME = 0x400
    NO_FOLDER_ATIME = 0x800
    BIND = 0x1000
    RECURSIVE = 0x4000
    SLAVE = 1 << 19
    RELATIVE_ATIME = 1 << 21


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)
    return result


def _call(what: str, number: int | None, *words: object) -> int:
    """Make a call for which the C library has no function; integers are passed as longs."""
    if number is None:
        raise OSError(errno.ENOSYS, f"not known for {platform.machine()}", what)
    longs = (ctypes.c_long(word) if isinstance(word, int) else word for word in words)
    return _checked(_libc.syscall(ctypes.c_long(number), *longs), what)


def unshare(namespaces: Namespace) -> None:
    """Move this process into new namespaces."""
    _checked(_libc.unshare(int(namespaces)), "the kernel refuses a namespace")


def mount(source: str, target: str, kind: str = "", flags: MountFlag = MountFlag.NONE, data: str = "") -> None:
    """Mount a file system."""
    names = (os.fsencode(source), os.fsencode(target), kind.encode())
    _checked(_libc.mount(*names, ctypes.c_ulong(int(flags)), os.fsencode(data)), target)


def copy_mounts(path: str) -> int:
    """Return a descriptor of a copy of all mounts at a path and below, to mount elsewhere (open_tree(2), Linux 5.2)."""
    return _call(path, _OPEN_TREE, _AT_FDCWD, os.fsencode(path), _OPEN_TREE_CLONE | os.O_CLOEXEC | _AT_RECURSIVE)


def put_mounts(copied: int, target: int) -> None:
    """Mount the mounts from `copy_mounts` on an open file or folder (move_mount(2))."""
    _call(f"descriptor {target}", _MOVE_MOUNT, copied, b"", target, b"", _MOVE_EMPTY_PATHS)


def mount_proc(target: str) -> None:
    """Mount the /proc of this PID namespace."""
    mount("proc", target, "proc", MountFlag.NO_SUID | MountFlag.NO_DEVICES | MountFlag.NO_PROGRAMS)


def pivot_root(new: str) -> None:
    """Make a mount the root of this process; nothing in the previous root can be reached by name any longer."""
    os.chdir(new)
    _call("pivot_root", _PIVOT_ROOT.get(platform.machine()), b".", b".")
    _checked(_libc.umount2(b".", _MNT_DETACH), "the root folder of this machine")
    os.chdir("/")


def open_in_root(root: int, path: str, flags: int, *, one_mount: bool = False) -> int:
    """Open a path below the folder `root`, which is / for every link and `..` in the path (openat2(2), Linux 5.6).

    `one_mount`: refuse to cross into other mounts.
    """
    resolve = _RESOLVE_IN_ROOT | (_RESOLVE_NO_OTHER_MOUNT if one_mount else 0)
    how = struct.pack("<QQQ", flags | os.O_CLOEXEC, 0, resolve)
    tries = _TRIES
    while True:
        try:
            return _call(path, _OPENAT2, root, os.fsencode(path.lstrip("/")) or b".", how, len(how))
        except BlockingIOError:
            # the kernel is unsure of a `..` because of a concurrent mount or rename anywhere on this machine
            tries -= 1
            if not tries:
                raise


def die_with_parent(signal: int) -> None:
    """Make the kernel send this process a signal when the thread that started it ends."""
    _process_control(_SET_PDEATHSIG, signal)


def forbid_tracing() -> None:
    """Forbid tracing, and access to open files of this process, to all without privileges where its program started."""
    _process_control(_SET_DUMPABLE, 0)


def _process_control(option: int, value: int) -> None:
    _checked(_libc.prctl(option, value, 0, 0, 0), "prctl")


def leave_keys() -> None:
    """Block system calls for keys of the user (keyrings(7)) from now on, by a seccomp(2) filter; requires no_new_privs.

    A separate session keyring would not suffice: the user's own keyring can be found by its number.
    """
    load, equal, at_least, above, both, end = 0x20, 0x15, 0x35, 0x25, 0x54, 0x06  # linux/bpf_common.h
    allow, refuse, not_x32 = 0x7FFF0000, 0x00050000 | errno.ENOSYS, 0xBFFFFFFF  # linux/seccomp.h
    lines = [
        line
        for machine, first in _KEY_CALLS.items()
        for line in (
            *((load, 0, 0, 4), (equal, 0, 5, machine), (load, 0, 0, 0), (both, 0, 0, not_x32)),
            *((at_least, 0, 2, first), (above, 1, 0, first + 2), (end, 0, 0, refuse)),
        )
    ]
    lines.append((end, 0, 0, allow))
    text = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *line) for line in lines))
    program = struct.pack("@HP", len(lines), ctypes.addressof(text))
    words = (_SECCOMP_SET_MODE_FILTER, _SECCOMP_FILTER_FLAG_SPEC_ALLOW, program)
    _call("the user's keys", _SECCOMP.get(platform.machine()), *words)


def gain_no_privileges(*, bounded: bool) -> None:
    """Disable set-user-id bits and file capabilities from now on; `bounded`: no program can have capabilities."""
    _process_control(_SET_NO_NEW_PRIVS, 1)
    if not bounded:
        return
    number = 0
    while _libc.prctl(_CAPBSET_DROP, number, 0, 0, 0) == 0:
        number += 1  # up to the last capability of this kernel
    # root may have inheritable ones, as in containers of older engines (CVE-2022-24769)
    process, sets = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0), ctypes.create_string_buffer(24)
    _checked(_libc.capget(process, sets), "capget")
    words = list(struct.unpack("=6I", sets))  # effective, permitted, inheritable, twice
    words[2] = words[5] = 0
    _checked(_libc.capset(process, struct.pack("=6I", *words)), "capset")


def has_capability(number: int) -> bool:
    """Return whether this process has a capability. Source: proc_pid_status(5), CapEff."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return any(int(line.split()[1], 16) >> number & 1 for line in lines if line.startswith("CapEff:"))
