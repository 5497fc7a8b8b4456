"""What happens: a job started in its image by the kernel and the image's own ld.so, in a namespace; what it has mapped."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lumiimg.host.container_view import ENGINE_LIBRARIES
from lumiimg.image import DEFAULT_PATH

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.shared.job.world import World

_NEW_USER, _NEW_MOUNTS = 0x10000000, 0x00020000
_BIND, _RECURSIVE = 4096, 16384
_TIMEOUT_S = 60
_JOB = """\
network = 'nothing was done'
try:
{program}
except BaseException as error:
    network = f'failed: {{error}}'
print('@network', network.replace(chr(10), ' '))
for line in open('/proc/self/maps'):
    print(line.rstrip())
import os, sys
sys.stdout.flush()
os._exit(0)
"""
"""Without destructors: what is known then is known."""


@dataclass(frozen=True)
class Happened:
    """How one job ended."""

    network: str
    """`cxi`, or what RCCL went on with, or how the process died."""
    mapped: frozenset[str]
    """Libraries in /proc/self/maps, as the container has them."""

    @property
    def is_fast(self) -> bool:
        return self.network == "cxi"


def variables_inside(world: World, told: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a process in the container: the image's, what the engine is told, the engine's own."""
    environment = {"PATH": DEFAULT_PATH, **world.variables, **told}
    path = environment.get("LD_LIBRARY_PATH")
    environment["LD_LIBRARY_PATH"] = f"{path}:{ENGINE_LIBRARIES}" if path else ENGINE_LIBRARIES
    return environment


def run_job(
    world: World, job: str, told: Mapping[str, str], binds: Sequence[tuple[Path, str]] = (), python: str = "python"
) -> Happened:
    """Start a job in a namespace of its own, with the image as its root."""
    made = [place for _, target in binds if (place := _target(world, target))]
    program = _JOB.format(program="".join(f"    {line}\n" for line in job.splitlines()))
    argv = [world.program] if world.program else [python, "-B", "-c", program]
    root, environment = world.root, variables_inside(world, told)

    def enter() -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        user, of_group = os.geteuid(), os.getegid()
        _checked(libc.unshare(_NEW_USER | _NEW_MOUNTS))
        for file, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {of_group} 1")):
            Path(f"/proc/self/{file}").write_text(text)
        for source, target in [(Path("/proc"), "/proc"), *binds]:
            words = (os.fsencode(source), os.fsencode(root / target.lstrip("/")))
            _checked(libc.mount(*words, None, _BIND | _RECURSIVE, None))
        os.chroot(root)
        os.chdir("/")

    try:
        done = subprocess.run(
            argv, env=environment, preexec_fn=enter, capture_output=True, check=False, timeout=_TIMEOUT_S
        )
    except FileNotFoundError as error:
        return Happened(f"died: {error}", frozenset())  # no program of that name
    finally:
        for place in made:
            place.unlink()
    return read_happened(
        done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")
    )


def read_happened(code: int, out: str, err: str) -> Happened:
    """Return what a job printed."""
    network = re.search(r"^@network (.*)$", out, re.MULTILINE)
    mapped = re.findall(r"^[0-9a-f]+-[0-9a-f]+ .* (/\S+)$", out, re.MULTILINE)
    died = f"died ({code}): {err.strip()[-300:]}"
    return Happened(network[1] if network else died, frozenset(mapped))


def _target(world: World, target: str) -> Path | None:
    """Make the file that something is bound over, as engines do in their underlay; None where it is there."""
    place = world.at(target)
    if place.exists():
        return None
    place.parent.mkdir(parents=True, exist_ok=True)
    place.touch()
    return place


def _checked(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
