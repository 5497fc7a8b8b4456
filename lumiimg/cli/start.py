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
from typing import NamedTuple

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
_KINDS = {
    "log": re.compile(r"slurm-.+\.out"),
    "image": re.compile(r"[^-].*\.sif"),
    "lock": re.compile(r"lumiimg\.lock"),
    "dockerfile": re.compile(r"Dockerfile.*"),
}
_MOST_HINTS = 3
_MOST_NAMES = 2000
"""Of a folder: the home of a busy project may hold millions."""


class Hint(NamedTuple):
    """Something to do next."""

    because: str
    command: str


def print_start(environment: Mapping[str, str]) -> None:
    """Print the page: at most 24 lines."""
    print(_PAGE)
    print("next, from the files here:")
    for _, hint in zip(range(_MOST_HINTS), hints(environment), strict=False):
        print(f"  {printable(hint.because)}\n      {printable(hint.command)}")
    print(f"\n{_END}")


def hints(environment: Mapping[str, str]) -> Iterator[Hint]:
    """Yield what suits the current folder and the machine, the most telling first."""
    newest = _newest()
    works = _builds_work(environment)
    in_job, nodes = "SLURM_JOB_ID" in environment, environment.get("SLURM_JOB_NUM_NODES", "")
    has_several = nodes.isascii() and nodes.isdigit() and len(nodes) < 7 and int(nodes) > 1
    told = False
    for kind, name in newest.items():
        told = True
        if kind == "log":
            yield Hint("the newest output of a job:", f"lumiimg log {name}")
        elif kind == "image" and in_job and has_several:
            yield Hint(f"an image, and this is a job of {nodes} nodes:", f"lumiimg check {name} --nodes {nodes}")
        elif kind == "image":
            yield Hint("an image:", f"lumiimg check {name}")
        elif kind == "lock" and works:
            yield Hint("a lock: build what it says, and nothing else:", "lumiimg build --locked -o image.sif")
        elif kind == "lock" and works is None:
            yield Hint("a lock; can this machine build what it says?", "lumiimg doctor")
        elif kind == "lock":
            what = "a lock; not all that builds need works here, so its files, for another:"
            yield Hint(what, "lumiimg build --locked --definitions defs")
        elif kind == "dockerfile":
            yield Hint(
                "which parts of this Dockerfile the catalogue has, and the rest as a layer:", f"lumiimg draft {name}"
            )
    if in_job and not os.path.lexists("host.json"):
        told = True
        yield Hint("this is a job: record what its node offers, for bind:", "lumiimg host scan -o host.json")
    if told:
        return
    if works:
        yield Hint("builds work here; a small real image, in three minutes:", "lumiimg build --recipe demo -o demo.sif")
    elif works is None:
        yield Hint("can this machine build images? Found by trying, in seconds:", "lumiimg doctor")
    else:
        yield Hint("not all that builds need works here; what, and what to do:", "lumiimg doctor")
    yield Hint("bases, layers, recipes and sites:", "lumiimg list")


def _builds_work(environment: Mapping[str, str]) -> bool | None:
    """Return whether builds work here, bases by debootstrap too, as doctor would say; None where nobody has tried."""
    from lumiimg.build.choice import builds_here, recall_machine
    from lumiimg.catalog.settings import read_settings

    with suppress(LumiimgError):
        if machine := recall_machine(environment, read_settings(environment).cache):
            return machine.debootstraps and builds_here(machine)
    return None


def _newest() -> dict[str, str]:
    """Return the newest file of each kind that says something, ready for a command line, in the order of _KINDS."""
    found: dict[str, tuple[float, str]] = {}
    with suppress(OSError), os.scandir() as listing:  # a folder that is gone, or closed
        for entry, _ in zip(listing, range(_MOST_NAMES), strict=False):
            kind = next((kind for kind, pattern in _KINDS.items() if pattern.fullmatch(entry.name)), None)
            if kind is None or not entry.name.isprintable():
                continue
            with suppress(OSError):  # a link to nowhere
                age = entry.stat().st_mtime
                if kind not in found or age > found[kind][0]:
                    found[kind] = (age, shlex.quote(entry.name))
    return {kind: found[kind][1] for kind in _KINDS if kind in found}
