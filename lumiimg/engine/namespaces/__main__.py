"""Start programs in namespaces: those of an image (`exec`), or of this machine as root (`root`).

Ends with the program's own exit status (128 + N for signal N); with 255 and one line where there is no container, as
engines do.
"""

from __future__ import annotations

import grp
import os
import pwd
import re
import resource
import select
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import NoReturn

from lumiimg.engine.namespaces import variables
from lumiimg.engine.namespaces.ids import IdsError, map_own, map_range
from lumiimg.engine.namespaces.layers import Served, layers_of, squashfuse, unpacked
from lumiimg.engine.namespaces.options import PREFIXES, ContainerStart, read_words
from lumiimg.engine.namespaces.root import MountStage, RootError, ShownPath, shown_path
from lumiimg.engine.namespaces.syscalls import (
    CAP_SYS_ADMIN,
    MountFlag,
    Namespace,
    die_with_parent,
    forbid_tracing,
    gain_no_privileges,
    has_capability,
    leave_keys,
    mount,
    mount_proc,
    open_in_root,
    unshare,
)
from lumiimg.engine.process import which
from lumiimg.errors import LumiimgError, one_line

_FAILED = 255
_HOME_OF_ROOT = "/root"
_DEFAULTS = ("/dev", "/sys", "/tmp", "/var/tmp", "/etc/resolv.conf")  # noqa: S108 - as engines show them
_DEFAULTS_OF_USER = ("/etc/localtime", "/etc/hosts")
_NEVER_SHOWN = frozenset(
    ("/", "/bin", "/dev", "/etc", "/lib", "/lib64", "/mnt", "/opt", "/proc", "/sbin", "/sys", "/usr", "/var")
)
"""Homes and current folders that would hide what is the image's."""
_NAMED = re.compile(rb"#![ \t]*([^ \t\n\0]+)")
_NAMED_BYTES, _MOST_INTERPRETERS = 256, 6
"""Source: execve(2), Interpreter scripts; Linux fs/exec.c, exec_binprm."""
_USERS_OF_MACHINE = 0xEFFFFFFD
"""Source: Linux include/uapi/linux/nsfs.h, USER_NS_INIT_INO."""
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_MOST_USERS = "/proc/sys/user/max_user_namespaces"
_LIMITS = {
    _MOST_USERS: ("0", "user.max_user_namespaces is 0"),
    "/proc/sys/kernel/unprivileged_userns_clone": ("0", "kernel.unprivileged_userns_clone is 0"),
    "/proc/sys/kernel/apparmor_restrict_unprivileged_userns": (
        "1",
        "kernel.apparmor_restrict_unprivileged_userns is 1",
    ),
}
"""Settings that keep users from namespaces. Source: user_namespaces(7), kernels of Debian and Ubuntu."""


def main() -> NoReturn:
    """Carry out one command."""
    command, *rest = sys.argv[1:]
    _end(_guarded(lambda: _root(rest) if command == "root" else _exec(read_words(rest, _environment()))))


def why_not() -> str:
    """Return which setting of this machine keeps users from namespaces, as the end of a sentence; or nothing."""
    for path, (value, means) in _LIMITS.items():
        with suppress(OSError):
            if Path(path).read_text(encoding="utf-8").strip() == value:
                return f" ({means})"
    return ""


def _environment() -> dict[str, str]:
    """Return the environment that this program was given: Python adds LC_CTYPE to it (PEP 538)."""
    words = Path("/proc/self/environ").read_bytes().split(b"\0")
    return {
        os.fsdecode(name): os.fsdecode(value) for name, is_one, value in (w.partition(b"=") for w in words) if is_one
    }


def _guarded(act: Callable[[], int]) -> int:
    """Return the status of an act, or say in one line why there is none."""
    try:
        return act()
    except (LumiimgError, IdsError, RootError) as error:
        said = str(error)
    except OSError as error:
        said = f"{os.fsdecode(error.filename or 'the kernel')}: {error.strerror or error}{why_not()}"
    except Exception as error:  # noqa: BLE001 - a process that was forked would end without a word
        said = f"{type(error).__name__}: {error}"
    sys.stderr.write(f"FATAL:   {one_line(said)}\n")  # as engines begin the line that says why
    return _FAILED


def _root(words: Sequence[str]) -> int:
    """Run a program of this machine as root of a user namespace with all ids, perhaps with mounts of its own."""
    if words[:1] != ["--mounts"]:
        return _namespaces(map_range, lambda: _run(words, os.environ)) if os.geteuid() else _run(words, os.environ)

    def inside() -> int:
        # No network of its own: a job has none either, and plugins find other NICs there (docs/security.md).
        unshare(Namespace.MOUNT)
        mount("", "/", flags=MountFlag.SLAVE | MountFlag.RECURSIVE)

        def started() -> int:
            mount_proc("/proc")
            return _run(words[1:], os.environ)

        return _apart(started)

    return _namespaces(None if _mounts_alone() else map_range, inside)


def _exec(container: ContainerStart) -> int:
    """Run a program in an image."""
    uid, gid = os.geteuid(), os.getegid()
    try:
        cwd = str(Path.cwd())
    except FileNotFoundError:  # it was removed
        cwd = _home(uid)
    people = None if container.as_root else _people(uid, gid)
    layers = layers_of(container.image)
    if container.writable and layers:
        raise RootError(f"{container.image} is a file, and nothing can be written into it")
    program = squashfuse(os.environ.get("PATH")) if layers else None
    held = unpacked(layers, os.environ) if layers and not program else nullcontext([] if layers else [container.image])
    served = [Served(program, layer) for layer in layers] if program else []

    def inside() -> int:
        return _apart(first)

    def first() -> int:
        # Programs of the image are in a namespace within, whose first process is theirs: this one is not in it.
        unshare(Namespace.PID)
        return _child(started)

    def started() -> int:
        # No network of its own: a job has none either, and plugins find other NICs there (docs/security.md).
        unshare(Namespace.MOUNT)
        stage = MountStage()
        for folder in folders:
            if not os.access(folder, os.R_OK | os.X_OK, effective_ids=True):
                raise RootError(f"{folder} cannot be read: its owner or its permissions keep this user out")
        sources = list(_sources(container, cwd))
        images = [shown_path(f"{folder}", f"{number}", is_required=True) for number, folder in enumerate(folders)]
        stage.cover()
        if container.writable:
            stage.write_into(images[0])
        else:
            lowers = [each.mount(stage.folder(f"{number}")) for number, each in enumerate(served)]
            for each, lower in zip(served, lowers, strict=True):
                each.require(lower)
            stage.lay(lowers or [stage.put(each) for each in images], sources)
        stage.show(sources, people or {}, read_only=not container.writable)
        environment = variables.kept(container.environment) | {
            "HOME": _HOME_OF_ROOT if container.as_root else _home(uid),
            **{f"{prefix}_NAME": container.image.name for prefix in PREFIXES},
            **{f"{prefix}_CONTAINER": f"{container.image}" for prefix in PREFIXES},
        }
        if not stage.show_processes():
            _warn("the kernel mounts no /proc here: programs see the names of all processes of this machine")
        _renounce(as_root=container.as_root, has_users=maker is not None)
        sys.meta_path.clear()  # a module that is imported from here on would be the image's
        stage.enter()
        for start in (container.cwd or cwd, environment["HOME"], "/"):
            with suppress(OSError):
                os.chdir(start)
                break
        environment["PWD"] = str(Path.cwd())
        return _start_in_image(container, environment)

    maker: Callable[[int], None] | None = map_range
    if uid and not container.as_root:
        maker = lambda process: map_own(process, uid, gid)  # noqa: E731
    elif _mounts_alone() and ((container.as_root and _is_of_machine()) or not _makes_users()):
        maker = None  # a namespace of users would keep it from making devices
    with held as folders:
        return _namespaces(maker, inside)


def _renounce(*, as_root: bool, has_users: bool) -> None:
    """Leave what no program of the image may have; `has_users`: this is in a namespace of users made for it."""
    gain_no_privileges(bounded=not as_root)
    if as_root:
        try:
            leave_keys()  # a program that runs as the user may need them, as for files of AFS
        except OSError as error:
            _warn(f"seccomp: {error.strerror or error}: programs may use keys of the user's (keyrings(7))")
    elif has_users:
        try:  # in a namespace within, a program would have privileges again
            Path(_MOST_USERS).write_text("0", encoding="ascii")
        except OSError as error:
            _warn(f"{_MOST_USERS}: {error.strerror}: programs may make namespaces, and have privileges in them")


def _warn(text: str) -> None:
    sys.stderr.write(f"WARNING: {text}\n")  # as engines begin such a line


def _sources(container: ContainerStart, cwd: str) -> Iterator[ShownPath]:
    """Yield what is shown of this machine, in its order. Raises RootError for a bind that is not here."""
    defaults = list(_DEFAULTS)
    if not container.as_root:
        defaults += _DEFAULTS_OF_USER
        own = [_home(os.geteuid())] if container.home else []
        own += (
            [cwd]
            if container.cwd is None and not any(Path(cwd).is_relative_to(path) for path in defaults + own)
            else []
        )
        defaults += [path for path in own if path not in _NEVER_SHOWN]
    for path in defaults:
        with suppress(RootError):  # not on this machine
            yield shown_path(path, path)
    for bind in container.binds:
        yield shown_path(bind.source, bind.target, read_only=bind.read_only, is_required=True)


def _home(uid: int) -> str:
    """Return the user's home: the table's, whatever the variable says, as Apptainer 1.4.5 takes it."""
    try:
        path = pwd.getpwuid(uid).pw_dir
    except KeyError:
        path = os.environ.get("HOME", "")
    return os.path.normpath(f"/{path.lstrip('/')}")


def _people(uid: int, gid: int) -> dict[str, str]:
    """Return the lines of the user for the tables of an image."""
    try:
        user = pwd.getpwuid(uid)
        name, about, shell = user.pw_name, user.pw_gecos, user.pw_shell
    except KeyError:
        name, about, shell = f"{uid}", "", "/bin/sh"
    groups = []
    for each in dict.fromkeys((gid, *os.getgroups())):
        with suppress(KeyError):
            groups.append(f"{grp.getgrgid(each).gr_name}:x:{each}:{name}\n")
    return {"/etc/passwd": f"{name}:x:{uid}:{gid}:{about}:{_home(uid)}:{shell}\n", "/etc/group": "".join(groups)}


def _mounts_alone() -> bool:
    """Whether this is a root who needs no namespace of users for one of mounts; those of many containers do."""
    return os.geteuid() == 0 and has_capability(CAP_SYS_ADMIN)


def _is_of_machine() -> bool:
    """Whether this namespace of users is the machine's: root of another one has power over what was mounted in it.

    By that a program could enter the mounts around its container (NS_MNT_GET_PREV of ioctl_nsfs(2), Linux 6.12).
    """
    return Path("/proc/self/ns/user").stat().st_ino == _USERS_OF_MACHINE


def _makes_users() -> bool:
    """Whether the kernel makes a namespace of users."""
    child = os.fork()
    if child == 0:
        with suppress(OSError):
            unshare(Namespace.USER)
            os._exit(0)
        os._exit(1)
    return os.waitpid(child, 0)[1] == 0


def _namespaces(maker: Callable[[int], None] | None, inside: Callable[[], int]) -> int:
    """Run `inside` in a process of its own, in a namespace of users to which `maker` gives its ids from outside."""
    if maker is None:
        return _child(lambda: _closed(inside))
    asks, told = os.pipe(), os.pipe()

    def wait_for_ids() -> int:
        os.close(asks[0])
        os.close(told[1])
        unshare(Namespace.USER)
        os.write(asks[1], b"1")
        if not os.read(told[0], 1):
            os._exit(_FAILED)  # why is said outside
        return _closed(inside)

    child = _fork(wait_for_ids)
    os.close(asks[1])
    os.close(told[0])
    try:
        if os.read(asks[0], 1):
            maker(child)
            os.write(told[1], b"1")
    finally:
        os.close(told[1])
        status = _wait(child)
    return status


def _closed(act: Callable[[], int]) -> int:
    """Run `act` where root of this namespace of users cannot look into this process, nor into those forked from it."""
    forbid_tracing()
    return act()


def _apart(act: Callable[[], int]) -> int:
    """Run `act` below the first process of a new namespace of processes, which is this program.

    It dies with its parent, whatever those below it do, and then the kernel ends all of them.
    """
    unshare(Namespace.PID)
    return _child(lambda: _child(act))


def _child(act: Callable[[], int]) -> int:
    return _wait(_fork(act))


def _fork(act: Callable[[], int]) -> int:
    """Return a process that carries out an act, and ends when this one does."""
    parent = os.pidfd_open(os.getpid())
    sys.stderr.flush()
    child = os.fork()
    if child:
        os.close(parent)
        # what ends the program in the container comes to all of its group; those around it wait for its end
        for number in _HEARD:
            signal.signal(number, signal.SIG_IGN)
        return child
    status = _FAILED
    try:
        die_with_parent(signal.SIGKILL)
        if not select.select([parent], [], [], 0)[0]:  # it has not ended before that
            os.close(parent)
            status = _guarded(act)
    finally:
        _end(status)


_HEARD = frozenset(number for number in _ENDING if signal.getsignal(number) is not signal.SIG_IGN)
"""A signal that is ignored stays so (SIGHUP under nohup)."""


def _wait(child: int) -> int:
    """Return how a process ends: its status, or -N for signal N."""
    ended = status = 0
    while ended != child:  # the first of a namespace gets the processes that others leave
        ended, status = os.wait()
    return os.waitstatus_to_exitcode(status)


def _end(status: int) -> NoReturn:
    """End as a process did."""
    if status < 0:
        with suppress(OSError):  # that of SIGKILL cannot be set, and need not be
            signal.signal(-status, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the program has left its own, if any
        os.kill(os.getpid(), -status)
    os._exit(status)


def _start_in_image(container: ContainerStart, kept: dict[str, str]) -> int:
    """Become a shell of the image, which sources its scripts and starts the program; without one, the program."""
    shell = next((path for path in ("/bin/bash", "/bin/sh") if os.access(path, os.X_OK)), None)
    if shell is None:
        program = which(container.argv[0], container.environment["PATH"])
        if program is None:
            raise RootError(f"{container.argv[0]} is not a program of the image")
        program = f"{Path.cwd() / program}"
        _require_own(program)
        return _run([program, *container.argv[1:]], {**container.environment, **container.injected, **kept})
    _require_own(shell)
    script = variables.script(container.environment, container.injected)
    if not os.path.isdir("/proc/self/fd"):  # noqa: PTH112 - a folder that is written into, and has no /proc
        return _run([shell, "-c", script, shell, *container.argv], kept)
    text = os.memfd_create("environment", 0)
    os.write(text, script)
    os.lseek(text, 0, os.SEEK_SET)
    if text != variables.DESCRIPTOR:
        os.dup2(text, variables.DESCRIPTOR)
        os.close(text)
    return _run([shell, f"/proc/self/fd/{variables.DESCRIPTOR}", *container.argv], kept)


def _require_own(path: str) -> None:
    """Raise RootError where a program, or what it names behind #!, is a link to what this process has open or runs.

    That is the Python of this machine, which a program of the image could then overwrite (CVE-2019-5736). What is not
    in the image itself is refused, too: who may write there, as in /tmp, could make it such a link right afterwards.
    """
    root = os.open("/", os.O_PATH | os.O_CLOEXEC)
    wanted = os.fsencode(path)
    for _ in range(_MOST_INTERPRETERS):
        try:
            program = open_in_root(root, os.fsdecode(wanted), os.O_RDONLY | os.O_NONBLOCK, one_mount=True)
        except OSError as error:
            raise RootError(f"{path} of the image cannot be started: {error.strerror}") from error
        named = _NAMED.match(os.pread(program, _NAMED_BYTES, 0))
        os.close(program)
        if named is None:
            break
        wanted = named[1]
        if not wanted.startswith(b"/"):
            raise RootError(f"{path} of the image cannot be started: it names {os.fsdecode(wanted)} to start it")
    os.close(root)


def _run(argv: Sequence[str | bytes], environment: dict[str, str] | os._Environ[str]) -> int:
    """Become a program, with the signals that it would have anywhere."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ, *_HEARD):
        signal.signal(number, signal.SIG_DFL)
    os.execvpe(argv[0], list(argv), environment)  # noqa: S606 - that is what it is for


if __name__ == "__main__":
    main()
