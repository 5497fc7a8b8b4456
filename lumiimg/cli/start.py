"""What `lumiimg` alone says: what it is for, and what to do next here.

Of the place only what costs nothing to see is used: names in the current folder, Slurm's variables, and what doctor or
a build has kept of this machine. No program is run, so where nothing is kept, the next thing to do is to ask doctor.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import islice

from lumiimg.build.choice import builds_here, recall_machine
from lumiimg.catalog.settings import read_settings
from lumiimg.errors import LumiimgError, printable

_PAGE = """\
lumiimg builds ROCm AI images for HPE Slingshot machines, and proves which
network they use.

  build an image with this software, in versions that fit the machine
      lumiimg build --base rocm-6.4.4 --add vllm --fabric bundled --site lumi
  will this image, mine or anyone's, use Slingshot? if not: what is missing?
      lumiimg check image.sif
  my job was slow or died: which network did it use, what went wrong?
      lumiimg log slurm-123.out
"""
_END = "all commands: lumiimg --help     one of them: lumiimg check --help"
_FILES = {
    re.compile(r"slurm-.+\.out"): ("the newest output of a job:", "lumiimg log {name}"),
    re.compile(r"[^-].*\.sif"): ("an image:", "lumiimg check {name}{nodes}"),
    re.compile(r"lumiimg\.lock"): None,
    re.compile(r"Dockerfile.*"): (
        "which parts of this Dockerfile the catalogue has, and the rest as a layer:",
        "lumiimg draft {name}",
    ),
}
"""Names of files, and what to do with the newest of each; a lock is one of _BUILDS."""
_BUILDS = {
    True: (
        ("a lock: build what it says, and nothing else:", "lumiimg build --locked -o image.sif"),
        ("builds work here; a small real image, in three minutes:", "lumiimg build --recipe demo -o demo.sif"),
    ),
    None: (
        ("a lock; can this machine build what it says?", "lumiimg doctor"),
        ("can this machine build images? Found by trying, in seconds:", "lumiimg doctor"),
    ),
    False: (
        (
            "a lock; not all that builds need works here, so its files, for another:",
            "lumiimg build --locked --definitions defs",
        ),
        ("not all that builds need works here; what, and what to do:", "lumiimg doctor"),
    ),
}
"""What to do with a lock, and where nothing else is known, by whether builds work here."""
_MOST_HINTS = 3
_MOST_NAMES = 2000
"""Of a folder: the home of a busy project may hold millions."""


def print_start(environment: Mapping[str, str]) -> None:
    """Print the page: at most 24 lines."""
    print(_PAGE)
    print("next, from the files here:")
    for because, command in islice(hints(environment), _MOST_HINTS):
        print(f"  {printable(because)}\n      {printable(command)}")
    print(f"\n{_END}")


def hints(environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield reasons and commands that suit the current folder and the machine, the most telling first."""
    of_lock, otherwise = _BUILDS[_builds_work(environment)]
    in_job, count = "SLURM_JOB_ID" in environment, environment.get("SLURM_JOB_NUM_NODES", "")
    nodes = f" --nodes {count}" if in_job and re.fullmatch(r"[1-9]\d{1,5}|[2-9]", count, re.ASCII) else ""
    newest = _newest()
    for pattern, name in newest.items():
        because, command = _FILES[pattern] or of_lock
        yield because, command.format(name=name, nodes=nodes)
    if in_job and not os.path.lexists("host.json"):
        yield "this is a job: record what its node offers, for bind:", "lumiimg host scan -o host.json"
    elif not newest:
        yield otherwise
        yield "bases, layers, recipes and sites:", "lumiimg list"


def _builds_work(environment: Mapping[str, str]) -> bool | None:
    """Return whether builds work here, bases by debootstrap too, as doctor would say; None where nobody has tried."""
    with suppress(LumiimgError):
        if machine := recall_machine(environment, read_settings(environment).cache):
            return machine.debootstraps and builds_here(machine)
    return None


def _newest() -> dict[re.Pattern[str], str]:
    """Return the newest file of each kind, ready for a command line, in the order of _FILES."""
    found: dict[re.Pattern[str], tuple[float, str]] = {}
    with suppress(OSError), os.scandir() as listing:  # a folder that is gone, or closed
        for entry in islice(listing, _MOST_NAMES):
            kind = next((pattern for pattern in _FILES if pattern.fullmatch(entry.name)), None)
            if kind is not None and entry.name.isprintable():
                with suppress(OSError):  # a link to nowhere
                    found[kind] = max(found.get(kind, (0.0, "")), (entry.stat().st_mtime, entry.name))
    return {pattern: shlex.quote(found[pattern][1]) for pattern in _FILES if pattern in found}
