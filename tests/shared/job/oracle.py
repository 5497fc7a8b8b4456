"""What happens: a job started in its image by the kernel and the image's own ld.so, in a namespace; what it has mapped."""

from __future__ import annotations

import ctypes
import os
import re
import stat
import subprocess
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lumiimg.host.container_view import ENGINE_LIBRARIES
from lumiimg.image import DEFAULT_PATH

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tests.shared.job.world import World

_NEW_USER, _NEW_MOUNTS = 0x10000000, 0x00020000
_SET_NO_NEW_PRIVS = 38
_BIND, _RECURSIVE, _PRIVATE = 4096, 16384, 1 << 18
NOBODY = 65534
"""Who jobs are: of an image that root made they may read what everybody may."""
_TIMEOUT_S = 60
_JOB = """\
network = 'nothing was done'
try:
{program}
except BaseException as error:
    network = f'failed: {{error}}'
print('@network', network.replace(chr(10), ' '))
try:
    maps = open('/proc/self/maps')
except OSError:  # of a program that its user may not read
    maps = []
for line in maps:
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


def variables_inside(world: World, given: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a process in the container: the image's, what the engine gets, the engine's own."""
    environment = {"PATH": DEFAULT_PATH, **world.variables, **given}
    path = environment.get("LD_LIBRARY_PATH")
    environment["LD_LIBRARY_PATH"] = f"{path}:{ENGINE_LIBRARIES}" if path else ENGINE_LIBRARIES
    return environment


def run_job(
    world: World, job: str, given: Mapping[str, str], binds: Sequence[tuple[Path, str]] = (), python: str = "python"
) -> Happened:
    """Start a job in a namespace of its own, with the image as its root, as a user who owns nothing there.

    Where the tests are not root's, nobody else's rights can be had: the owner then has those of all (`as_strangers`).
    """
    made = [place for _, target in binds if (place := _target(world, target))]
    program = _JOB.format(program="".join(f"    {line}\n" for line in job.splitlines()))
    argv = [world.program] if world.program else [python, "-B", "-c", program]
    root, environment = world.root, variables_inside(world, given)

    def enter() -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        user, of_group = os.geteuid(), os.getegid()
        _checked(libc.unshare(_NEW_MOUNTS | (_NEW_USER if user else 0)))
        if user:
            maps = ("uid_map", f"{NOBODY} {user} 1"), ("gid_map", f"{NOBODY} {of_group} 1")
            for file, text in (("setgroups", "deny"), *maps):
                Path(f"/proc/self/{file}").write_text(text)
        else:
            _checked(libc.mount(None, b"/", None, _RECURSIVE | _PRIVATE, None))
        for source, target in [(Path("/proc"), "/proc"), *binds]:
            words = (os.fsencode(source), os.fsencode(root / target.lstrip("/")))
            _checked(libc.mount(*words, None, _BIND | _RECURSIVE, None))
        os.chroot(root)
        os.chdir("/")
        if not user:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
        _checked(libc.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0))  # as engines do: no program has its owner's rights

    try:
        with as_strangers(root):
            done = subprocess.run(
                argv, env=environment, preexec_fn=enter, capture_output=True, check=False, timeout=_TIMEOUT_S
            )
    except OSError as error:
        return Happened(f"died: {error}", frozenset())  # no program of that name that its user may start
    finally:
        for place in made:
            place.unlink()
    return read_happened(
        done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")
    )


@contextmanager
def as_strangers(root: Path) -> Iterator[None]:
    """Give the owner of an image the rights of all others for a while, where the owner is who runs the tests."""
    changed: list[tuple[Path, int]] = []
    if os.geteuid():
        for place in [root, *root.rglob("*")]:
            mode = stat.S_IMODE(place.lstat().st_mode)
            if not place.is_symlink() and mode >> 6 & 7 != mode & 7 and (place.is_file() or place.is_dir()):
                changed.append((place, mode))
    for place, mode in reversed(changed):
        place.chmod(mode & 0o77 | (mode & 7) << 6)
    try:
        yield
    finally:
        for place, mode in changed:
            place.chmod(mode)


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
