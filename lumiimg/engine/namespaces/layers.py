"""The file systems of an image: mounted by squashfuse_ll, or unpacked for one container if there is no FUSE."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lumiimg.catalog.settings import read_settings
from lumiimg.core.errors import FailedError, MissingHereError, one_line
from lumiimg.engine.failures import explain
from lumiimg.engine.namespaces.syscalls import MountFlag, mount
from lumiimg.engine.process import run, which
from lumiimg.engine.workspace import scratch_folder
from lumiimg.image import require_room
from lumiimg.image.sif import squashfs_ranges

_FUSE = "/dev/fuse"
_MEANING_LIMIT = 300


class Served:
    """A squashfs that a squashfuse_ll process serves until it is unmounted.

    The process is started outside the namespaces: in the mount namespace it would keep its own mount alive, and in the
    user namespace a program of the image could trace it (ptrace(2)), and reach this machine's files through it. It has
    its own session, so that a signal that ends the program in the container does not first remove its files.
    """

    def __init__(self, program: str, image: Path, offset: int) -> None:
        """Start the process. Raises OSError."""
        self._file = image
        self._server, waits = socket.socketpair()
        with waits:
            if os.fork() == 0:
                try:
                    self._serve(program, offset, waits)
                finally:
                    os._exit(1)

    def _serve(self, program: str, offset: int, waits: socket.socket) -> None:
        self._server.close()
        os.setsid()
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        quiet = os.open(os.devnull, os.O_RDWR)
        for descriptor in range(3):
            os.dup2(quiet, descriptor)
        for device in socket.recv_fds(waits, 1, 1)[1]:  # none if the other end died
            os.set_inheritable(device, True)
            # libfuse 3 treats this name as a file system that is already mounted (fuse(8), /dev/fd/N)
            words = [program, "-f", "-o", f"offset={offset}", f"{self._file}", f"/dev/fd/{device}"]
            os.execv(program, words)  # noqa: S606 - a shell has no part in it

    def mount(self, target: str) -> str:
        """Mount it on a folder, and return the folder. Raises OSError, and FailedError if it is not served."""
        # the kernel requires the mounting process to be in the user namespace in which the device was opened
        device = os.open(_FUSE, os.O_RDWR)
        data = f"fd={device},rootmode=40000,user_id={os.geteuid()},group_id={os.getegid()}"
        data += ",allow_other,default_permissions"
        flags = MountFlag.READ_ONLY | MountFlag.NO_SUID | MountFlag.NO_DEVICES
        mount("squashfuse", target, "fuse.squashfuse", flags, data)
        socket.send_fds(self._server, [b"1"], [device])
        os.close(device)
        self._server.close()
        try:
            os.stat(target)  # noqa: PTH116
        except OSError as error:
            raise FailedError(
                "squashfuse_ll cannot read it: perhaps it is incomplete", where=f"{self._file}"
            ) from error
        return target


@dataclass(frozen=True, slots=True)
class LowerLayers:
    """The file systems of an image, the lowest first: folders, or squashfs to be mounted."""

    folders: Sequence[Path] = ()
    served: Sequence[Served] = ()


@contextmanager
def lower_layers(image: Path, environment: Mapping[str, str]) -> Iterator[LowerLayers]:
    """Yield the file systems of an image. Raises ImageError, FailedError, MissingHereError."""
    program = which("squashfuse_ll", environment.get("PATH")) if os.access(_FUSE, os.R_OK | os.W_OK) else None
    if image.is_dir():
        yield LowerLayers(folders=[image])
    elif program is not None:
        yield LowerLayers(served=[Served(program, image, offset) for offset, _ in squashfs_ranges(image)])
    else:
        with unpacked(image, environment) as folders:
            yield LowerLayers(folders=folders)


@contextmanager
def unpacked(image: Path, environment: Mapping[str, str]) -> Iterator[list[Path]]:
    """Yield folders with the files of each layer, owned by this user. Raises FailedError, MissingHereError."""
    program = which("unsquashfs", environment.get("PATH"))
    if program is None:
        raise MissingHereError(
            "an image needs squashfuse_ll and /dev/fuse to mount, or unsquashfs to unpack: neither is available",
            hint="install squashfuse and fuse3, or squashfs-tools",
        )
    work = read_settings(environment).cache / "work"
    require_room(image, work)
    with scratch_folder(work) as scratch:
        folders = []
        for offset, _ in squashfs_ranges(image):
            folders.append(scratch / f"{offset}")
            options = ("-no-progress", "-quiet", "-no-xattrs", "-dest", folders[-1], "-offset", f"{offset}")
            done = run([program, *options, image], env=environment)
            if not done.ok:
                known = explain(done.output)
                why = known.meaning if known else one_line(done.last_line)[:_MEANING_LIMIT]
                raise FailedError(f"unsquashfs: {why}", where=f"{image}", hint=known.remedy if known else None)
        yield folders
