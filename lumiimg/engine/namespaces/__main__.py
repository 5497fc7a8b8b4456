"""Start programs in namespaces: programs of an image (`exec`), or of this machine as root (`root`).

Exits with the program's own status (128 + N for signal N); like engines, with 255 and one line if no container starts.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from lumiimg.core.errors import FailedError
from lumiimg.engine.namespaces import processes
from lumiimg.engine.namespaces.layers import LowerLayers, lower_layers
from lumiimg.engine.namespaces.options import (
    DESCRIPTOR,
    PREFIXES,
    ContainerStart,
    read_words,
    restored_variables,
    script,
)
from lumiimg.engine.namespaces.processes import MAX_USERNS, become, in_namespaces, map_own, map_range, warn
from lumiimg.engine.namespaces.root import MountStage, User, shown_path, shown_paths
from lumiimg.engine.namespaces.syscalls import (
    CAP_SYS_ADMIN,
    MountFlag,
    Namespace,
    gain_no_privileges,
    has_capability,
    leave_keys,
    mount,
    mount_proc,
    open_in_root,
    unshare,
)

_HOME_OF_ROOT = "/root"
_SHELLS = ("/bin/bash", "/bin/sh")
_USERS_OF_MACHINE = 0xEFFFFFFD
"""Source: Linux include/uapi/linux/nsfs.h, USER_NS_INIT_INO."""


def main() -> NoReturn:
    """Run one command."""
    command, *rest = sys.argv[1:]
    processes.end_as(lambda: _root(rest) if command == "root" else _exec(read_words(rest, _environment())))


def _environment() -> dict[str, str]:
    """Return the original environment of this program, to which Python adds LC_CTYPE (PEP 538)."""
    words = os.fsdecode(Path("/proc/self/environ").read_bytes()).split("\0")
    return {name: value for name, is_one, value in (word.partition("=") for word in words) if is_one}


def _root(words: Sequence[str]) -> int:
    """Run a program of this machine as root of a user namespace with all ids; with `--mounts`, with its own mounts."""
    if words[:1] != ["--mounts"]:
        return in_namespaces(map_range if os.geteuid() else None, lambda: become(words, os.environ))

    def inside() -> int:
        # No separate network: a job has none either, and plugins find other NICs in one (docs/security.md).
        unshare(Namespace.MOUNT)
        mount("", "/", flags=MountFlag.SLAVE | MountFlag.RECURSIVE)

        def started() -> int:
            mount_proc("/proc")
            return become(words[1:], os.environ)

        return processes.in_pid_namespace(started)

    return in_namespaces(None if _mounts_alone() else map_range, inside)


def _exec(container: ContainerStart) -> int:
    """Run a program in an image."""
    user = User.from_process()
    maker: Callable[[int], None] | None = map_range
    if user.uid and not container.as_root:
        maker = map_own
    elif _mounts_alone() and ((container.as_root and _is_of_machine()) or not processes.makes_users()):
        maker = None  # in a user namespace it could not create devices
    if container.writable and not container.image.is_dir():
        raise FailedError(f"{container.image} is a file, so nothing can be written into it")

    def first() -> int:
        # Programs of the image get an inner PID namespace, with their own first process; this process is outside.
        unshare(Namespace.PID)
        return processes.child(lambda: _start(container, user, layers, has_users=maker is not None))

    with lower_layers(container.image, os.environ) as layers:
        return in_namespaces(maker, lambda: processes.in_pid_namespace(first))


def _start(container: ContainerStart, user: User, layers: LowerLayers, *, has_users: bool) -> int:
    """Assemble the root of a container, and become the image's shell in it."""
    # No separate network: a job has none either, and plugins find other NICs in one (docs/security.md).
    unshare(Namespace.MOUNT)
    stage = MountStage()
    for folder in layers.folders:
        if not os.access(folder, os.R_OK | os.X_OK, effective_ids=True):
            raise FailedError(f"{folder} cannot be read: its owner or its permissions deny this user access")
    sources = list(shown_paths(container, user))
    images = [shown_path(f"{folder}", f"{number}") for number, folder in enumerate(layers.folders)]
    stage.cover()
    if container.writable:
        stage.write_into(images[0])
    else:
        lowers = [each.mount(stage.folder(f"{number}")) for number, each in enumerate(layers.served)]
        stage.lay(lowers or [stage.put(each) for each in images], sources)
    stage.show(sources, {} if container.as_root else user.tables, read_only=not container.writable)
    home = _HOME_OF_ROOT if container.as_root else user.home
    environment = restored_variables(container.environment) | {
        "HOME": home,
        **{f"{prefix}_NAME": container.image.name for prefix in PREFIXES},
        **{f"{prefix}_CONTAINER": f"{container.image}" for prefix in PREFIXES},
    }
    if not stage.show_processes():
        warn("the kernel does not mount /proc here: programs see the names of all processes on this machine")
    _renounce(as_root=container.as_root, has_users=has_users)
    sys.meta_path.clear()  # a module imported from now on would be the image's
    stage.enter()
    for start in (container.cwd or user.folder, home, "/"):
        with suppress(OSError):
            os.chdir(start)
            break
    environment["PWD"] = os.getcwd()  # noqa: PTH109
    return _start_in_image(container, environment)


def _renounce(*, as_root: bool, has_users: bool) -> None:
    """Drop privileges that no program of the image may have; `has_users`: this is in a user namespace made for it."""
    gain_no_privileges(bounded=not as_root)
    if as_root:
        try:
            leave_keys()  # a program that runs as the user may need them, for example for AFS
        except OSError as error:
            warn(f"seccomp: {error.strerror}: programs can use the user's keys (keyrings(7))")
    elif has_users:
        try:  # in a nested namespace, a program would have privileges again
            MAX_USERNS.write_text("0", encoding="ascii")
        except OSError as error:
            warn(f"{MAX_USERNS}: {error.strerror}: programs can create namespaces, and have privileges in them")


def _mounts_alone() -> bool:
    """Return whether this is root that needs no user namespace to mount; root in many containers does."""
    return os.geteuid() == 0 and has_capability(CAP_SYS_ADMIN)


def _is_of_machine() -> bool:
    """Return whether this user namespace is the machine's: root of any other has power over mounts made in it.

    That would let a program enter the mounts around its container (NS_MNT_GET_PREV of ioctl_nsfs(2), Linux 6.12).
    """
    return Path("/proc/self/ns/user").stat().st_ino == _USERS_OF_MACHINE


def _start_in_image(container: ContainerStart, environment: dict[str, str]) -> int:
    """Become a shell of the image, which sources its scripts and starts the program."""
    shell = next((path for path in _SHELLS if os.access(path, os.X_OK)), None)
    if shell is None:
        raise FailedError(f"the image has none of {', '.join(_SHELLS)}, which are needed to start its programs")
    _require_own(shell)
    text = os.memfd_create("environment", 0)
    os.write(text, script(container.environment, container.injected))
    os.lseek(text, 0, os.SEEK_SET)
    if text != DESCRIPTOR:
        os.dup2(text, DESCRIPTOR)
        os.close(text)
    return become([shell, f"/proc/self/fd/{DESCRIPTOR}", *container.argv], environment)


def _require_own(shell: str) -> None:
    """Raise FailedError if a shell is a script, or a link to a file that this process runs or has open.

    That is this machine's Python, which a program of the image could then overwrite (CVE-2019-5736); a script may name
    such a link as its interpreter. A shell outside the image itself is also refused: anyone who may write there, as in
    /tmp, could replace it by such a link right afterwards.
    """
    try:
        root = os.open("/", os.O_PATH | os.O_CLOEXEC)
        program = open_in_root(root, shell, os.O_RDONLY | os.O_NONBLOCK, one_mount=True)
        begins = os.pread(program, 2, 0)
    except OSError as error:
        raise FailedError(f"{shell} of the image cannot be started: {error.strerror}") from error
    if begins == b"#!":
        raise FailedError(f"{shell} of the image cannot be started: it is a script")


if __name__ == "__main__":
    main()
