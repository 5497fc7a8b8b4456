"""Whether an engine starts a container at all, found out by starting one, with a program of some hundred bytes."""

from __future__ import annotations

import platform
import struct
from typing import TYPE_CHECKING

from lumiimg.engine.engine import clean_environment, execute, run_script

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from lumiimg.engine.engine import Engine
    from lumiimg.engine.process import Completed

_AT = 0x400000
# exit(0): number of the machine (elf(5), e_machine), and instructions. Source: syscall(2), of what each takes its calls
_PROGRAMS = {
    "x86_64": (62, bytes.fromhex("b83c000000 31ff 0f05")),
    "aarch64": (183, bytes.fromhex("a80b80d2 000080d2 010000d4")),
}


def start_containers(
    engine: Engine, environment: Mapping[str, str], scratch: Path, timeout_s: float
) -> list[Completed]:
    """Start a container as builds do, and where that fails and is not the same, as checks do; return how each ended.

    The program needs no library, so that a folder with it alone is an image: one that ended with 0 has been run. On
    processors for which there is none, nothing is returned.
    """
    if platform.machine() not in _PROGRAMS:
        return []
    root = scratch / "root"
    program = root / "bin" / "sh"  # engines run scripts of theirs before the program, and fakeroot(1) is one
    program.parent.mkdir(parents=True)
    program.write_bytes(_program(*_PROGRAMS[platform.machine()]))
    program.chmod(0o755)
    argv = ["/bin/sh"]
    done = [run_script(engine, root, argv, environment=environment, scratch=scratch, timeout_s=timeout_s)]
    if not done[0].ok and "--fakeroot" in done[0].argv:
        done.append(execute(engine, root, argv, environment=clean_environment(environment), timeout_s=timeout_s))
    return done


def _program(machine: int, code: bytes) -> bytes:
    """Return an executable of one segment. Source: elf(5)."""
    header, segment = 64, 56
    size = header + segment + len(code)
    ident = b"\x7fELF\x02\x01\x01"  # 64 bits, little end first
    executable, loaded, readable_and_run = 2, 1, 5
    return (
        struct.pack(
            "<16sHHIQQQIHHHHHH",
            *(ident, executable, machine, 1, _AT + header + segment, header, 0, 0, header, segment, 1, 0, 0, 0),
        )
        + struct.pack("<IIQQQQQQ", loaded, readable_and_run, 0, _AT, _AT, size, size, 0x1000)
        + code
    )
